"""Rule 9 in a running engine: whatever breaks, and wherever, no block is lost and the engine goes on.

Each test breaks something, looks at the books, then lets the engine finish: the tokens must still be those
that the model generates by itself. Every block is filled with NaN when it is handed out, so that a block
which a failed step never filled would spoil whoever reads it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

import pagedkv_lab.engine.engine as engine_module
from pagedkv_lab.blocks import BlockAllocator, BlockManager, PrefixCache
from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, RequestOutput, SamplingParams
from pagedkv_lab.engine.detokenizer import Detokenizer
from pagedkv_lab.engine.runner import ModelRunner
from pagedkv_lab.engine.scheduler import Scheduler
from pagedkv_lab.kv import KVPool

BLOCK_SIZE = 4

#: (prompt, parameters): a prompt longer than a step, one that begins with it, two equal ones, and a fork. The stop
#: string never comes, but has somebody look for it.
REQUESTS = [
    (random_prompt(13), SamplingParams(max_tokens=6)),
    (random_prompt(13) + random_prompt(4, 1), SamplingParams(max_tokens=5)),
    (random_prompt(8, 2), SamplingParams(max_tokens=6, stop="no such text")),
    (random_prompt(8, 2), SamplingParams(n=3, max_tokens=4)),
]


def make_engine(monkeypatch: pytest.MonkeyPatch, make: type[Engine] = Engine, **options: Any) -> Engine:
    """A toy engine so small that requests lose their blocks, and with NaN in each block that is handed out."""
    defaults: dict[str, Any] = {"max_model_len": 32, "max_num_batched_tokens": 8}
    defaults |= {"block_size": BLOCK_SIZE, "num_gpu_blocks": 9} if make is Engine else {"num_gpu_blocks": 4}
    engine = make(tiny_model("toy"), **defaults | options)
    for name in ("allocate", "allocate_many"):
        monkeypatch.setattr(BlockAllocator, name, poisoned(engine, getattr(BlockAllocator, name)))
    return engine


def poisoned(engine: Engine, allocate: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with NaN in what it hands out, be it a block or a list of them."""

    def allocate_poisoned(self: BlockAllocator, *count: int) -> Any:
        blocks = allocate(self, *count)
        if self is engine.manager.allocator:
            for pool in (*engine.runner.pool.keys, *engine.runner.pool.values):
                pool[blocks] = float("nan")
        return blocks

    return allocate_poisoned


@pytest.fixture
def python_s_own_ctrl_c() -> Iterator[None]:
    """As in a terminal; a process in the background of a shell may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@dataclass
class Asking:
    """A sequence for `BlockManager.lookup` that takes part in nothing."""

    token_ids: list[int]
    seq_id: int = 0
    name: str = "a question"
    num_computed_tokens: int = 0
    block_keys: list = field(default_factory=list)
    extra_keys: tuple = ()


def assert_no_unfilled_block_is_found(engine: Engine) -> None:
    """Between steps, whatever a prompt of this test would hit holds numbers in every layer."""
    for prompt, params in REQUESTS:
        tokens = prompt + own_tokens(engine.model, prompt, params.max_tokens)
        for block in engine.manager.lookup(Asking(tokens)):
            for pool in (*engine.runner.pool.keys, *engine.runner.pool.values):
                assert not pool[block].isnan().any(), f"block {block} is found and was never filled"


def assert_books_are_right(engine: Engine) -> None:
    engine.manager.check_invariants()
    total, free, cached, used = engine.stats().pool
    assert free + cached + used == total == engine.num_gpu_blocks
    assert_no_unfilled_block_is_found(engine)


def run_to_the_end(engine: Engine) -> dict[int, list[list[int]]]:
    """Step until nothing is left. Returns the tokens of each request's outputs."""
    done = {}
    for _ in range(500):
        if not engine.has_unfinished_requests():
            return done
        report = engine.step()
        assert_books_are_right(engine)
        done |= {out.request_id: [o.token_ids for o in out.outputs] for out in report.finished}
    raise AssertionError("the engine doesn't come to an end")


def expected_tokens(engine: Engine) -> list[list[list[int]]]:
    return [[own_tokens(engine.model, p, params.max_tokens)] * params.n for p, params in REQUESTS]


# An exception at every place that a step passes


class Fault:
    """Raises in the n-th call of a function, before the function does its work or after."""

    def __init__(self, error: BaseException, nth: int, after: bool):
        self.error, self.nth, self.after = error, nth, after
        self.calls = 0
        self.raised = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            due = self.calls == self.nth
            if due and not self.after:
                self.raised = True
                raise self.error
            result = function(*args, **kwargs)
            if due:
                self.raised = True
                raise self.error
            return result

        return faulty


#: Every function that a step calls, from the engine down to the pool: (owner, name).
PLACES: dict[str, tuple[Any, str]] = {
    "schedule": (Scheduler, "schedule"),
    "keys": (BlockManager, "_keys"),
    "manager.lookup": (BlockManager, "lookup"),
    "manager.can_admit": (BlockManager, "can_admit"),
    "manager.admit": (BlockManager, "admit"),
    "manager.append": (BlockManager, "append"),
    "manager.take_copies": (BlockManager, "take_copies"),
    "manager.slots": (BlockManager, "slots"),
    "manager.block_table": (BlockManager, "block_table"),
    "manager.fork": (BlockManager, "fork"),
    "manager.commit_step": (BlockManager, "commit_step"),
    "manager.free": (BlockManager, "free"),
    "allocate": (BlockAllocator, "allocate"),
    "allocate_many": (BlockAllocator, "allocate_many"),
    "share_many": (BlockAllocator, "share_many"),
    "free_many": (BlockAllocator, "free_many"),
    "insert_many": (PrefixCache, "insert_many"),
    "forget_many": (PrefixCache, "forget_many"),
    "copy_blocks": (KVPool, "copy_blocks"),
    "write": (KVPool, "write"),
    "attention": (None, "attention"),
    "forward": (ModelRunner, "_forward"),
    "execute": (ModelRunner, "execute"),
    "sample": (engine_module, "sample"),
    "add_fork": (Scheduler, "add_fork"),
    "preempt": (Scheduler, "preempt"),
    "detokenizer.push": (Detokenizer, "push"),
    "detokenizer.finish": (Detokenizer, "finish"),
    "end_of": (Engine, "_end_of"),
    "decode": (LoadedModel, "decode"),
    "remove": (Scheduler, "remove"),
    "output": (RequestOutput, "__init__"),
}


def install(monkeypatch: pytest.MonkeyPatch, engine: Engine, place: str, fault: Fault) -> None:
    owner, name = PLACES[place]
    owner = engine.runner if owner is None else owner
    monkeypatch.setattr(owner, name, fault.wrap(getattr(owner, name)))


def count_calls(place: str, make: type[Engine]) -> int:
    """How often a run without a fault passes the place."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        engine = make_engine(monkeypatch, make)
        never = Fault(RuntimeError(), 0, False)
        install(monkeypatch, engine, place, never)
        for request in REQUESTS:
            engine.add_request(*request)
        run_to_the_end_quickly(engine)
        return never.calls


def run_to_the_end_quickly(engine: Engine) -> dict[int, list[list[int]]]:
    done = {}
    while engine.has_unfinished_requests():
        for out in engine.step().finished:
            done[out.request_id] = [o.token_ids for o in out.outputs]
    return done


def moments(num_calls: int, how_many: int) -> list[int]:
    """Of the calls 1 .. num_calls, the first two, the last, and some in between."""
    step = max(1, num_calls // how_many)
    return sorted({1, 2, *range(1 + step, num_calls, step), num_calls} & set(range(1, num_calls + 1)))


def step_until_it_raises(engine: Engine, fault: Fault) -> dict[int, list[list[int]]]:
    done = {}
    while engine.has_unfinished_requests():
        try:
            report = engine.step()
        except BaseException as error:
            if error is not fault.error:
                raise
            return done
        done |= {out.request_id: [o.token_ids for o in out.outputs] for out in report.finished}
    raise AssertionError(f"no step raised {fault.error!r}")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES)
def test_rule_9_an_exception_anywhere_in_a_step_loses_no_block_and_no_token(monkeypatch, place, error, after):
    num_calls = count_calls(place, Engine)
    assert num_calls > 0, f"these requests never pass {place}: the test would show nothing"
    for nth in moments(num_calls, 4):
        with monkeypatch.context() as patch:
            engine = make_engine(patch)
            ids = [engine.add_request(*request) for request in REQUESTS]
            fault = Fault(error(f"{place}, call {nth}"), nth, after)
            with patch.context() as faulty:
                install(faulty, engine, place, fault)
                done = step_until_it_raises(engine, fault)
            assert_books_are_right(engine)
            done |= run_to_the_end(engine)
            assert_all_back(engine)
            assert [done.get(request_id) for request_id in ids] == expected_tokens(engine), fault.error


@pytest.mark.parametrize("place", ["schedule", "manager.append", "manager.fork", "copy_blocks", "attention", "sample"])
def test_rule_9_the_contiguous_engine_recovers_as_well(monkeypatch, place):
    num_calls = count_calls(place, ContiguousEngine)
    assert num_calls > 0
    for nth in moments(num_calls, 4):
        with monkeypatch.context() as patch:
            engine = make_engine(patch, ContiguousEngine)
            ids = [engine.add_request(*request) for request in REQUESTS]
            fault = Fault(RuntimeError(f"{place}, call {nth}"), nth, False)
            with patch.context() as faulty:
                install(faulty, engine, place, fault)
                done = step_until_it_raises(engine, fault)
            assert_books_are_right(engine)
            done |= run_to_the_end(engine)
            assert_all_back(engine)
            assert [done.get(request_id) for request_id in ids] == expected_tokens(engine)


@pytest.mark.parametrize("place", ["schedule", "manager.append", "allocate", "attention", "write", "sample", "end_of"])
def test_rule_9_what_fails_again_and_again_can_be_aborted_and_every_block_is_back(monkeypatch, place):
    engine = make_engine(monkeypatch)
    ids = [engine.add_request(*request) for request in REQUESTS]
    engine.step()
    with monkeypatch.context() as faulty:
        for _ in range(4):
            fault = Fault(RuntimeError("broken for good"), 1, False)
            with faulty.context() as once:
                install(once, engine, place, fault)
                with pytest.raises(RuntimeError, match="broken for good"):
                    engine.step()
            assert_books_are_right(engine)
        for request_id in ids:
            engine.abort(request_id)
            assert_books_are_right(engine)
    assert_all_back(engine)
    prompt, params = REQUESTS[0]
    output = engine.generate([prompt], params, use_tqdm=False)[0]
    assert output.token_ids == own_tokens(engine.model, prompt, params.max_tokens)


def test_rule_9_one_request_aborted_after_a_failure_leaves_the_others_their_tokens(monkeypatch):
    engine = make_engine(monkeypatch)
    ids = [engine.add_request(*request) for request in REQUESTS]
    for _ in range(4):
        engine.step()
    with monkeypatch.context() as faulty:
        install(faulty, engine, "attention", Fault(RuntimeError("once"), 2, False))
        with pytest.raises(RuntimeError, match="once"):
            engine.step()
    engine.abort(ids[1])
    done = run_to_the_end(engine)
    expected = dict(zip(ids, expected_tokens(engine), strict=True))
    assert done == {request_id: expected[request_id] for request_id in (ids[0], ids[2], ids[3])}
    assert_all_back(engine)


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_rule_9_what_ended_in_an_interrupted_step_is_in_the_next_report(monkeypatch):
    engine = make_engine(monkeypatch)
    prompt = random_prompt(5)
    request_id = engine.add_request(prompt, SamplingParams(max_tokens=1))
    take_tokens = engine._take_tokens

    def take_tokens_while_somebody_presses_ctrl_c(*args):
        signal.raise_signal(signal.SIGINT)  # held back until the books are in order
        return take_tokens(*args)

    monkeypatch.setattr(engine, "_take_tokens", take_tokens_while_somebody_presses_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.has_unfinished_requests(), "there is a result that nobody has seen"
    report = engine.step()
    assert [(out.request_id, out.token_ids) for out in report.finished] == [
        (request_id, own_tokens(engine.model, prompt, 1))
    ]
    assert_all_back(engine)


# generate() and stream() are interrupted


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("nth", [1, 4, 9])
def test_rule_9_generate_when_it_is_interrupted_takes_only_its_own_requests_with_it(monkeypatch, nth, error):
    engine = make_engine(monkeypatch)
    (prompt, params), *others = REQUESTS
    mine = engine.add_request(prompt, params)
    with monkeypatch.context() as faulty:
        install(faulty, engine, "attention", Fault(error("stop"), nth, False))
        with pytest.raises(error, match="stop"):
            engine.generate([p for p, _ in others], [params for _, params in others], use_tqdm=False)
    assert_books_are_right(engine)
    assert list(engine.requests()) == [mine]
    assert run_to_the_end(engine) == {mine: [own_tokens(engine.model, prompt, params.max_tokens)]}
    assert_all_back(engine)


def test_rule_9_generate_takes_back_what_it_queued_when_a_later_prompt_is_refused(monkeypatch):
    engine = make_engine(monkeypatch)
    with pytest.raises(ValueError, match="vocabulary"):
        engine.generate([random_prompt(5), [100_000]], use_tqdm=False)
    assert_all_back(engine)


def test_rule_9_a_stream_that_is_left_early_gives_its_blocks_back(monkeypatch):
    engine = make_engine(monkeypatch)
    (prompt, params), *_ = REQUESTS
    mine = engine.add_request(prompt, params)
    for piece in engine.stream("abcdefg", SamplingParams(max_tokens=20, ignore_eos=True)):
        assert piece
        break
    assert list(engine.requests()) == [mine]
    assert_books_are_right(engine)
    assert run_to_the_end(engine) == {mine: [own_tokens(engine.model, prompt, params.max_tokens)]}
    assert_all_back(engine)


# Ctrl-C, for real


class CtrlC:
    """While it is in force, SIGINT comes at the n-th point of the run (never, for n = 0).

    A point is a line of this package (or of the one file `only_in`), or a call of any Python function that it
    leads to. Not of those in which Python drops exceptions (a generator that is thrown away) or a lock of
    somebody else's would stay closed.
    """

    NOT_IN = ("tqdm", "threading", "logging", "multiprocessing", "weakref")

    def __init__(self, nth: int = 0, only_in: str | None = None):
        self.nth, self.points, self.only_in = nth, 0, only_in
        self.where = "nowhere"

    def _is_point(self, frame: Any, event: str) -> bool:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if self.only_in is not None:
            return event == "line" and file.endswith(self.only_in)
        if event == "line":
            return "pagedkv_lab" in file
        return event == "call" and function not in ("<genexpr>", "__del__") and not any(x in file for x in self.NOT_IN)

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        ours = "pagedkv_lab" in frame.f_code.co_filename
        if self._is_point(frame, event):
            self.points += 1
            if self.points == self.nth:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace if ours else None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)


def generate_the_others(engine: Engine) -> None:
    engine.generate([p for p, _ in REQUESTS[1:]], [params for _, params in REQUESTS[1:]], use_tqdm=False)


def generate_until_the_signal_comes(engine: Engine, interrupt: threading.Timer) -> None:
    interrupt.start()
    while True:
        generate_the_others(engine)


def stream_a_text(engine: Engine) -> None:
    "".join(engine.stream("abcdefg", SamplingParams(max_tokens=6, ignore_eos=True)))


@pytest.mark.usefixtures("python_s_own_ctrl_c")
@pytest.mark.parametrize(("work", "how_many"), [(generate_the_others, 120), (stream_a_text, 50)])
def test_rule_9_ctrl_c_at_any_line_loses_no_block_and_takes_only_what_it_interrupts(monkeypatch, work, how_many):
    for _ in range(2):  # a first run does some things once and for all
        with monkeypatch.context() as patch:
            engine = make_engine(patch)
            engine.add_request(*REQUESTS[0])
            ctrl_c = CtrlC()
            with ctrl_c.in_force():
                work(engine)
    stride = ctrl_c.points // how_many
    where = set()
    for nth in range(1, how_many * stride, stride):
        with monkeypatch.context() as patch:
            engine = make_engine(patch)
            prompt, params = REQUESTS[0]
            mine = engine.add_request(prompt, params)
            ctrl_c = CtrlC(nth)
            with pytest.raises(KeyboardInterrupt), ctrl_c.in_force():
                work(engine)
            where.add(ctrl_c.where)
            assert set(engine.requests()) <= {mine}, f"not aborted after Ctrl-C at {ctrl_c.where}"
            assert_books_are_right(engine)
            done = run_to_the_end(engine)
            assert done.keys() <= {mine}, f"a result of the aborted after Ctrl-C at {ctrl_c.where}"
            # It may have ended before the Ctrl-C, in a step that generate() ran.
            if done:
                assert done[mine] == [own_tokens(engine.model, prompt, params.max_tokens)]
            assert_all_back(engine)
    assert len(where) > how_many // 4, "the moments were all the same"


@pytest.mark.usefixtures("python_s_own_ctrl_c")
@pytest.mark.parametrize("work", ["making", "stepping"])
def test_ctrl_c_at_any_line_leaves_the_model_its_own_attention_and_modules(work):
    """Around the moments at which the model gets ours and gets its own back, line by line."""
    model = tiny_model("toy")
    own = model.hf.config._attn_implementation
    options = {"num_gpu_blocks": 8, "model_impl": "transformers"}

    def interrupted_at(nth: int) -> CtrlC:
        ctrl_c = CtrlC(nth, only_in="engine/runner.py")
        engine = Engine(model, **options) if work == "stepping" else None
        if engine:
            engine.add_request(*REQUESTS[0])
        try:
            with ctrl_c.in_force():
                if engine:
                    engine.step()
                else:
                    Engine(model, **options)
        except KeyboardInterrupt:
            assert nth
        return ctrl_c

    interrupted_at(0)
    num_points = interrupted_at(0).points
    assert num_points > 50
    for nth in range(1, num_points + 1):
        where = interrupted_at(nth).where
        assert model.hf.config._attn_implementation == own, f"not given back after Ctrl-C at {where}"
        assert not any("forward" in vars(m) for m in model.hf.modules()), f"not given back after Ctrl-C at {where}"


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_rule_9_ctrl_c_from_outside_at_any_time_loses_no_block(monkeypatch):
    """The signal comes from another thread, at moments spread over one run; whatever is being computed then."""
    engine = make_engine(monkeypatch)
    started = time.perf_counter()
    generate_the_others(engine)
    seconds = time.perf_counter() - started
    for i in range(12):
        interrupt = threading.Timer(seconds * i / 10, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            generate_until_the_signal_comes(engine, interrupt)
        interrupt.join()
        assert_books_are_right(engine)
        assert_all_back(engine)
    prompt, params = REQUESTS[0]
    assert engine.generate([prompt], params, use_tqdm=False)[0].token_ids == own_tokens(
        engine.model, prompt, params.max_tokens
    )


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_ctrl_c_between_steps_is_not_held_back(monkeypatch):
    engine = make_engine(monkeypatch)
    engine.add_request(*REQUESTS[0])
    engine.step()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_steps_run_off_the_main_thread_too(monkeypatch):
    engine = make_engine(monkeypatch)
    prompts, params = map(list, zip(*REQUESTS, strict=True))
    outputs = []
    thread = threading.Thread(target=lambda: outputs.extend(engine.generate(prompts, params, use_tqdm=False)))
    thread.start()
    thread.join(60)
    assert [[o.token_ids for o in out.outputs] for out in outputs] == expected_tokens(engine)


def test_tokens_of_a_repaired_step_are_drawn_from_numbers_not_from_what_the_failed_one_left(monkeypatch):
    """NaN shows: were an unfilled slot read after a failed step, the logits would not be numbers."""
    engine = make_engine(monkeypatch)
    for request in REQUESTS:
        engine.add_request(*request)
    seen = []
    execute = engine.runner.execute
    monkeypatch.setattr(engine.runner, "execute", lambda step: seen.append(execute(step)) or seen[-1])
    for nth in (1, 2, 1):  # in the first layer, in the second
        with monkeypatch.context() as faulty:
            install(faulty, engine, "write", Fault(RuntimeError("once"), nth, False))
            with pytest.raises(RuntimeError, match="once"):
                engine.step()
        engine.step()
    run_to_the_end(engine)
    assert seen
    assert all(torch.isfinite(logits).all() for logits in seen)
