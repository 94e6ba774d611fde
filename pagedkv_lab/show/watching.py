"""`watch`: generate in a cell, with everything to be seen while it runs.

Knows the engine's steps and the view. Does not answer to the browser: the kernel is busy.
"""

from collections.abc import Sequence
from typing import Any

from IPython.display import display

from pagedkv_lab.engine import Engine, RequestOutput, SamplingParams
from pagedkv_lab.engine.models import Prompt
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.engine.request import Request
from pagedkv_lab.show import fallback
from pagedkv_lab.show.frames import Frame
from pagedkv_lab.show.view import EngineView, answer_block, is_static


class WatchView(EngineView):
    """The pool with its sequences, pushed by a busy kernel. Its still picture is of the fullest moment."""

    def __init__(self, engine: Engine, **traits: Any):
        self._fullest: Frame | None = None
        super().__init__(engine, kind="watch", **traits)
        self.on_msg(self._on_message)

    def push_if_due(self, phase: str = "running") -> None:
        if is_static():  # the same moments whatever the machine's speed
            self.push(phase)
        else:
            super().push_if_due(phase)

    def show_frame(self, frame: Frame) -> None:
        if self._fullest is None or frame.numbers["used"] > self._fullest.numbers["used"]:
            self._fullest = frame
        super().show_frame(frame)

    def __repr__(self) -> str:
        return fallback.sentence(self._fullest)

    def _picture(self) -> str:
        return fallback.svg(self._fullest, self.meta, self.kind)

    def _on_message(self, widget: Any, message: dict[str, Any], buffers: Any) -> None:
        if message.get("do") == "block":
            answer_block(self, self._source, message)


def watch(
    engine: Engine,
    prompts: Prompt | Sequence[Prompt] | None = None,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    steps: int | None = None,
    cache_salt: str | None = None,
) -> list[RequestOutput]:
    """`engine.generate`, live: the pool, the sequences and their text change while the cell runs.

    prompts: None runs the requests that were added before, to the end or for so many `steps`, and returns those that
    finish.

    The notebook's stop button ends it early, without a traceback: what was generated so far is returned (finish
    reason "abort"; nothing yet where it was the first step), and its blocks are back; requests that were added before
    stay, to go on. Anything else that goes wrong is raised, as in `generate`. Raises ValueError for prompts and `steps`
    together.
    """
    if prompts is not None and steps is not None:
        raise ValueError("steps is for requests that were added before: leave out either prompts or steps")
    view = WatchView(engine)
    handle = display(view, display_id=True)
    before = set(engine.requests())
    ours: dict[int, Request | RequestOutput] = {}
    finished: list[RequestOutput] = []
    stopped = False

    def note(report: StepReport) -> None:
        ours.update((i, request) for i, request in engine.requests().items() if i not in before)
        ours.update((output.request_id, output) for output in report.finished if output.request_id not in before)

    def show(report: StepReport) -> None:
        view.push_if_due("running")

    engine.listeners += [note, show]
    try:
        if prompts is not None:
            return engine.generate(prompts, params, use_tqdm=False, cache_salt=cache_salt)
        while engine.has_unfinished_requests() and steps != 0:
            finished += engine.step().finished
            steps = None if steps is None else steps - 1
        return finished
    except KeyboardInterrupt:
        stopped = True
        if prompts is None:
            return finished
        return [one if isinstance(one, RequestOutput) else RequestOutput.of(one) for _, one in sorted(ours.items())]
    finally:
        # Not `remove`: the engine drops one that fails.
        engine.listeners[:] = [listener for listener in engine.listeners if listener not in (note, show)]
        try:
            view.push("stopped" if stopped else "paused" if engine.has_unfinished_requests() else "done")
        finally:
            view.end()
        if is_static() and handle is not None:
            handle.update(view)  # the picture of how it ended
