"""Serve some requests, and write down what a benchmark needs: when each was there, and what the cache held.

Knows engines from outside. Judges nothing: utilization and rates are computed from these records.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagedkv_lab.engine import Engine, RequestOutput, SamplingParams
from pagedkv_lab.measure.records import RequestRecord


@dataclass(frozen=True)
class Served:
    """What came of a run.

    token_ids: the output of each request, in order. records: one for each request, in the same order.
    tables, num_tokens: the cache between two steps, when most blocks were in use
        (and of several such moments, when most tokens lay in them): the block table of each request that
        held any, and how many of its tokens lay there. block_size: tokens a block (max_model_len if contiguous).
    bytes_per_token: keys and values of one token, in all layers.
    hit_rate: share of the prompt tokens that were found in the prefix cache. leaked: blocks in use at the end.
    """

    token_ids: tuple[tuple[int, ...], ...]
    records: tuple[RequestRecord, ...]
    tables: tuple[tuple[int, ...], ...]
    num_tokens: tuple[int, ...]
    block_size: int
    bytes_per_token: int
    hit_rate: float
    leaked: int

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the blocks that were in use in that moment. A block in several tables is there once."""
        return len({block for table in self.tables for block in table}) * self.block_size * self.bytes_per_token


def serve(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    on_step: Callable[[], None] | None = None,
) -> Served:
    """All prompts at once into an engine that has nothing to do, then step after step until all are done.

    params: one for each prompt. on_step: called after each step, for a display.
    """
    arrivals = {}
    for prompt, its_params in zip(prompts, params, strict=True):
        arrived = time.perf_counter()
        arrivals[engine.add_request(prompt, its_params)] = arrived
    done: dict[int, tuple[RequestOutput, float]] = {}
    fullest, held = (0, 0), ([], [])
    while engine.has_unfinished_requests():
        report = engine.step()
        now = time.perf_counter()
        done |= {output.request_id: (output, now) for output in report.finished}
        if (now_held := (report.pool.used, report.used_slots)) > fullest:
            fullest, held = now_held, _held(engine)
        if on_step is not None:
            on_step()
    outputs = [done[request_id] for request_id in arrivals]
    return Served(
        token_ids=tuple(tuple(output.token_ids) for output, _ in outputs),
        records=tuple(
            RequestRecord(arrived, finished, len(output.prompt_token_ids), len(output.token_ids))
            for arrived, (output, finished) in zip(arrivals.values(), outputs, strict=True)
        ),
        tables=tuple(held[0]),
        num_tokens=tuple(held[1]),
        block_size=engine.block_size,
        bytes_per_token=engine.plan.bytes_per_token,
        hit_rate=engine.stats().prefix_hit_rate,
        leaked=engine.stats().pool.used,
    )


def _held(engine: Engine) -> tuple[list[tuple[int, ...]], list[int]]:
    """Block tables of all sequences that have blocks, and how many tokens lie in them."""
    running = [seq for request in engine.requests().values() for seq in request.sequences if engine.manager.room(seq)]
    return [tuple(engine.manager.block_table(seq)) for seq in running], [seq.num_computed_tokens for seq in running]
