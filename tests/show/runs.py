"""Small engines, and random runs of them: requests come, fork and are stopped between steps; blocks run out."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from tiny_models import letters_model, random_prompt, tiny_model

from pagedkv_lab.engine import Engine, Parts, SamplingParams
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.engine.request import Sequence
from pagedkv_lab.errors import RequestTooLong


def small_engine(**options: Any) -> Engine:
    """An engine whose tokens are two letters each, so that its text can be read."""
    return Engine(letters_model(), **{"block_size": 4, "num_gpu_blocks": 24, "max_model_len": 48} | options)


def toy_engine(**options: Any) -> Engine:
    """An engine whose tokens are bytes, control characters and halves of letters among them."""
    return Engine(tiny_model("toy"), **{"block_size": 4, "num_gpu_blocks": 24, "max_model_len": 48} | options)


def running(engine: Engine) -> list[Sequence]:
    """The unfinished sequences, in the order in which they were made."""
    found = [seq for request in engine.requests().values() for seq in request.sequences if seq.finish_reason is None]
    return sorted(found, key=lambda seq: seq.seq_id)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(
            st.just("add"),
            st.tuples(
                st.integers(0, 1),  # which prompt: they share a beginning with others of the same number
                st.sampled_from([3, 4, 8, 9, 16, 21]),
                st.integers(1, 14),
                st.sampled_from([1, 1, 1, 3]),
            ),
        ),
        st.tuples(st.just("fork"), st.integers(0, 9)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
    ),
    min_size=5,
    max_size=20,
)

#: Options of an engine; among them a pool in which not everybody finds room.
ENGINES = st.fixed_dictionaries(
    {
        "num_gpu_blocks": st.sampled_from([8, 8, 9, 12, 24]),
        "enable_prefix_caching": st.sampled_from([True, True, True, False]),
        "max_num_batched_tokens": st.sampled_from([6, 64, 64]),
        "parts": st.just(Parts()),
    }
)


def play(engine: Engine, moves: list[tuple[str, Any]]) -> Iterator[StepReport | None]:
    """Do these moves, then run all to the end. After each step its report, after each other move None."""
    for move, what in [("add", (0, 9, 9, 1)), ("step", 1), *moves, ("step", 300)]:
        alive = running(engine)
        if move == "step":
            for _ in range(what):
                if engine.has_unfinished_requests():
                    yield engine.step()
            continue
        if move == "add":
            seed, length, max_tokens, n = what
            params = SamplingParams(max_tokens=max_tokens, n=n, temperature=2.0 if n > 1 else 0.0)
            with suppress(RequestTooLong):
                engine.add_request(random_prompt(length, seed), params)
        elif alive and move == "abort":
            engine.abort(alive[what % len(alive)].request.request_id)
        elif alive:
            seq = alive[what % len(alive)]
            params = SamplingParams(max_tokens=seq.num_output_tokens + 3 + what, temperature=2.0 * (what % 2))
            with suppress(RequestTooLong):
                engine.fork(seq.request.request_id, params, index=seq.index)
        yield None
    assert not engine.has_unfinished_requests(), "the run doesn't come to an end"
