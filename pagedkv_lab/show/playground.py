"""`Playground`: an engine to play with.

Knows what the browser may ask for, and the engine's own calls. Nothing runs by itself: the browser asks for the next
step and gets a frame, so that the kernel stays free for other cells.
"""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

import torch
import traitlets

from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, SamplingParams, load_model
from pagedkv_lab.engine.models import Prompt
from pagedkv_lab.errors import PagedKVError
from pagedkv_lab.show.view import EngineView, answer_block

logger = logging.getLogger(__name__)

#: Seconds that steps may take before the browser gets a frame, at top speed.
SECONDS_A_PULL = 0.1
BLOCK_SIZES = (4, 8, 16, 32, 64)
POOL_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: A fork has to draw its tokens: greedily it would say what its parent says.
FORK_TEMPERATURE = 0.8
SUGGESTIONS = (
    "What is paging?",
    "Write two sentences about a lighthouse keeper.",
    "Name three things that a bakery sells.",
    "Explain a library card to a child.",
)


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the playground, which several threads may call: messages may be handled off the main thread."""

    @functools.wraps(method)
    def locked(self: "Playground", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class Playground(EngineView):
    """Run, pause and step an engine; add, fork and stop requests while it runs; rebuild it another way.

    engine: an `Engine`, a model for a new one, or None for a new one with the default model. `playground.engine` is
        the one in use: "Apply" makes a new one of the same model and parts.
    prompts: requests to begin with; text is put as a question where the model has a chat template.
    max_tokens: output tokens of each, and of those that are added by hand.
    """

    settings = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        engine: Engine | LoadedModel | str | None = None,
        prompts: Sequence[Prompt] = (),
        *,
        max_tokens: int = 64,
        suggestions: Sequence[str] = SUGGESTIONS,
    ):
        if not isinstance(engine, Engine):
            model = engine if isinstance(engine, LoadedModel) else load_model(engine)
            engine = Engine(model, num_gpu_blocks=256, max_model_len=min(1024, model.max_model_len))
        self._lock = threading.RLock()
        self._prompts: list[tuple[Prompt, SamplingParams]] = []
        self._suggestions, self._max_tokens = tuple(suggestions), max_tokens
        self._contiguous: ContiguousEngine | None = None
        self._theirs: dict[int, int] = {}  # our request ids -> the contiguous engine's
        self._colours: dict[int, int] = {}  # our request ids -> the sequence whose colour they have
        self._seeds = count(1000)
        super().__init__(engine, kind="playground")
        self._start_following()
        for prompt in prompts:
            self._add(self._as_question(prompt), SamplingParams(max_tokens=max_tokens))
        self.push(self._phase())
        self.on_msg(self._on_message)

    # The same from Python

    @_one_at_a_time
    def step(self, steps: int = 1) -> int:
        """Run so many steps, or as many as there is work for. Returns how many."""
        try:
            return self._run(lambda ran: ran < steps)
        finally:
            self.push(self._phase())

    @_one_at_a_time
    def add(self, prompt: Prompt, *, max_tokens: int | None = None, n: int = 1) -> int:
        """Queue a request; text is put as a question to a chat model. Returns its id.

        Raises RequestTooLong or ValueError, as `Engine.add_request` does.
        """
        prompt = self._as_question(prompt)
        temperature = FORK_TEMPERATURE if n > 1 else 0.0
        request = self._add(
            prompt, SamplingParams(max_tokens=max_tokens or self._max_tokens, n=n, temperature=temperature)
        )
        self.push(self._phase())
        return request

    @_one_at_a_time
    def fork(self, sequence: int) -> int:
        """A new request that goes on from a sequence (by its id) on its own, drawing its tokens. Returns its id.

        Raises ValueError where there is no such unfinished sequence, RequestTooLong as `Engine.fork` does.
        """
        for request in self.engine.requests().values():
            for seq in request.sequences:
                if seq.seq_id == sequence and seq.finish_reason is None:
                    params = SamplingParams(
                        max_tokens=request.params.max_tokens, temperature=FORK_TEMPERATURE, seed=next(self._seeds)
                    )
                    forked = self.engine.fork(request.request_id, params, index=seq.index)
                    self._note_colour(forked)
                    if self._contiguous and request.request_id in self._theirs:
                        # Where the other engine is ahead or behind, its sequence may be over or not there yet.
                        with contextlib.suppress(PagedKVError, ValueError):
                            theirs = self._contiguous.fork(self._theirs[request.request_id], params, index=seq.index)
                            self._theirs[forked] = theirs
                    self.push(self._phase())
                    return forked
        raise ValueError(f"there is no unfinished sequence {sequence} to fork")

    @_one_at_a_time
    def abort(self, request: int) -> None:
        """End a request now."""
        self.engine.abort(request)
        if self._contiguous and request in self._theirs:
            self._contiguous.abort(self._theirs[request])
        self.push(self._phase())

    @_one_at_a_time
    def clear(self) -> None:
        """An empty board and an empty pool."""
        self._prompts = []
        self.rebuild()

    @_one_at_a_time
    def rebuild(
        self,
        *,
        block_size: int | None = None,
        num_gpu_blocks: int | None = None,
        enable_prefix_caching: bool | None = None,
        baseline: bool | None = None,
    ) -> None:
        """A new engine of the same model and parts, with these options changed; the same prompts start again.

        baseline: a contiguous engine beside it, with the same requests and as many slots of memory.
        Raises ValueError where not one contiguous row fits, RequestTooLong where a prompt doesn't fit any more; then
        everything stays as it was.
        """
        old = self.engine.config
        changes = {"block_size": block_size, "num_gpu_blocks": num_gpu_blocks or self.engine.num_gpu_blocks}
        changes["enable_prefix_caching"] = enable_prefix_caching
        options = asdict(old) | {name: value for name, value in changes.items() if value is not None}
        wants_baseline = self._contiguous is not None if baseline is None else baseline
        prompts = self._prompts
        before = self.engine, self._contiguous, prompts, self._theirs, self._colours
        try:
            self.engine = Engine(self.engine.model, parts=self.engine.parts, **options)
            self._contiguous = self._make_contiguous() if wants_baseline else None
            self._prompts, self._theirs, self._colours = [], {}, {}
            for prompt, params in prompts:
                self._add(prompt, params)
        except BaseException:
            self.engine, self._contiguous, self._prompts, self._theirs, self._colours = before
            raise
        self._start_following()
        self.push(self._phase())

    # What the browser asks for

    def _on_message(self, widget: Any, message: dict[str, Any], buffers: Any) -> None:
        actions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "step": self._answer_step,
            "add": lambda m: self.add(m["prompt"], max_tokens=int(m["max_tokens"]), n=int(m.get("n", 1))),
            "fork": lambda m: self.fork(int(m["sequence"])),
            "abort": lambda m: self.abort(int(m["request"])),
            "clear": lambda m: self.clear(),
            "rebuild": self._answer_rebuild,
            "block": lambda m: answer_block(self, self._source, m),
        }
        action = actions.get(message.get("do"))
        if action is None:
            return
        try:
            with self._lock, torch.inference_mode():
                action(message)
            if message["do"] not in ("block", "step"):
                self._complain(None)
        except KeyboardInterrupt:
            self._complain("Interrupted. Run or Step goes on from here.")
        except (PagedKVError, ValueError) as error:
            self._complain(str(error))
        except Exception as error:
            logger.exception("the playground could not %s", message["do"])
            self._complain(f"{type(error).__name__}: {error}")

    def _answer_step(self, message: dict[str, Any]) -> None:
        steps, ends_at = message.get("steps"), time.perf_counter() + SECONDS_A_PULL
        ran, goes_on = 0, False
        try:
            ran = self._run(lambda ran: ran < steps if steps else time.perf_counter() < ends_at)
            goes_on = self._has_work()
        finally:
            try:
                self.push(self._phase())
            finally:  # or the browser would wait for it
                self.send({"kind": "done", "ticket": message.get("ticket"), "more": goes_on, "ran": ran})

    def _answer_rebuild(self, message: dict[str, Any]) -> None:
        self.rebuild(
            block_size=int(message["block_size"]),
            num_gpu_blocks=int(message["num_gpu_blocks"]),
            enable_prefix_caching=bool(message["enable_prefix_caching"]),
            baseline=bool(message["baseline"]),
        )

    def _complain(self, text: str | None) -> None:
        self.send({"kind": "error", "text": text})

    # Inside

    def _run(self, may_go_on: Callable[[int], bool]) -> int:
        ran = 0
        while self._has_work() and may_go_on(ran):
            if self.engine.has_unfinished_requests():
                self.engine.step()
            if self._contiguous and self._contiguous.has_unfinished_requests():
                self._contiguous.step()
            ran += 1
            self.push_if_due(self._phase())
        return ran

    def _has_work(self) -> bool:
        return self.engine.has_unfinished_requests() or bool(
            self._contiguous and self._contiguous.has_unfinished_requests()
        )

    def _phase(self) -> str:
        if self._has_work():
            return "paused"  # whether it runs is the browser's to know: it is who asks for steps
        return "done" if self.engine.stats().finished else "idle"

    def _add(self, prompt: Prompt, params: SamplingParams) -> int:
        request = self.engine.add_request(prompt, params)
        self._note_colour(request)
        if self._contiguous:
            self._theirs[request] = self._contiguous.add_request(prompt, params)
        self._prompts.append((prompt, params))
        return request

    def _as_question(self, prompt: Prompt) -> Prompt:
        if isinstance(prompt, str) and getattr(self.engine.model.tokenizer, "chat_template", None):
            return [{"role": "user", "content": prompt}]
        return prompt

    def _note_colour(self, request: int) -> None:
        self._colours[request] = self.engine.requests()[request].sequences[0].seq_id

    def _make_contiguous(self) -> ContiguousEngine:
        row_slots = self.engine.config.max_model_len
        slots = self.engine.num_gpu_blocks * self.engine.block_size
        if slots < row_slots:
            raise ValueError(
                f"Contiguous reservation takes a row of max_model_len = {row_slots:,} slots for each request, and this "
                f"pool has {slots:,}: take a larger pool, or an engine with a smaller max_model_len."
            )
        options = asdict(self.engine.config)
        for name in ("block_size", "enable_prefix_caching", "kv_cache_memory_bytes"):
            del options[name]
        return ContiguousEngine(self.engine.model, **options | {"num_gpu_blocks": slots // row_slots})

    def _start_following(self) -> None:
        engine, config = self.engine, self.engine.config
        self.follow(engine)
        self._source.baseline = self._describe_baseline
        self.settings = {
            "block_size": engine.block_size,
            "block_sizes": sorted({*BLOCK_SIZES, engine.block_size}),
            "num_gpu_blocks": engine.num_gpu_blocks,
            "pool_sizes": sorted({*POOL_SIZES, engine.num_gpu_blocks}),
            "enable_prefix_caching": config.enable_prefix_caching,
            "baseline": self._contiguous is not None,
            "suggestions": list(self._suggestions),
            "max_tokens": self._max_tokens,
        }

    def _describe_baseline(self) -> dict[str, Any] | None:
        if self._contiguous is None:
            return None
        snapshot, stats = self._contiguous.snapshot(), self._contiguous.stats()
        ours = {theirs: request for request, theirs in self._theirs.items()}
        request_of = {
            seq.seq_id: ours.get(request.request_id)
            for request in self._contiguous.requests().values()
            for seq in request.sequences
        }
        rows = [
            {"request": request, "sequence": self._colours.get(request), "filled": int(filled)}
            for owner, filled in zip(snapshot.owner, snapshot.filled, strict=True)
            for request in [request_of.get(int(owner))]
        ]
        reserved = int((snapshot.ref_count > 0).sum()) * snapshot.block_size
        return {
            "rows": rows,
            "row_slots": snapshot.block_size,
            "running": stats.running,
            "waiting": stats.waiting,
            "finished": stats.finished,
            "output_tokens": stats.output_tokens,
            "tokens_per_second": stats.output_tokens / stats.seconds if stats.output_tokens else None,
            "utilization": int(snapshot.filled.sum()) / reserved if reserved else None,
        }
