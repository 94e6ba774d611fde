"""Step reports as the engine gives them, with only what a picture reads."""

from pagedkv_lab.blocks.manager import PoolCounts
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.engine.request import CompletionOutput, RequestOutput


def step(number: int, ran=(), preempted=(), finished=(), seconds=0.01) -> StepReport:
    """A step that ran (request, output, tokens, kind) each. finished: request ids."""
    outputs = tuple(output(request) for request in finished)
    return StepReport(number, tuple(ran), (), PoolCounts(8, 8, 0, 0), 0, 0, tuple(preempted), 0, outputs, seconds)


def output(request_id: int, ttft_s: float | None = None, tpot_s: float | None = None) -> RequestOutput:
    return RequestOutput(request_id, None, [1], [CompletionOutput(0, "", [2], "length")], 0, ttft_s, tpot_s, 0)
