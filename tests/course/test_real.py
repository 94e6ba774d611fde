"""`run_for_real` on a toy model: what it compares, what it says, and what happens when a part breaks."""

from itertools import count

import pytest
from right_parts import ALLOCATOR, CACHE, made

from pagedkv_lab.course import CheckFailed, run_for_real
from pagedkv_lab.course import real as module
from pagedkv_lab.course.checks import UnknownExercise
from pagedkv_lab.course.keeping import path_of
from pagedkv_lab.engine import SamplingParams, load_model
from pagedkv_lab.errors import PartError


@pytest.fixture(scope="module")
def toy():
    return load_model("toy")


PREFIX = list(range(10, 50))
PROMPTS = [[*PREFIX, 1, 2], [*PREFIX, 3, 4, 5], [7] * 20, [*PREFIX, 1, 2]]


def run(toy, **rest):
    return run_for_real(model=toy, prompts=PROMPTS, **{"num_gpu_blocks": 40, "max_model_len": 128, **rest})


MyAllocator = made(ALLOCATOR.format(name="BlockAllocator"), "BlockAllocator")
MyCache = made(CACHE, "PrefixCache")


def keep(name, source):
    path_of(name).parent.mkdir(parents=True, exist_ok=True)
    path_of(name).write_text(source)


def test_a_part_runs_and_its_tokens_are_the_same(toy):
    done = run(toy, BlockAllocator=MyAllocator)
    assert done.passed
    assert done.same_as_package is done.same_as_transformers is True
    assert done.leaked == 0
    assert done.mine.names == ["BlockAllocator"]
    assert isinstance(done.engine.manager.allocator.part, MyAllocator)
    assert len(done.outputs) == 4
    assert done.outputs[3].num_cached_tokens == 32
    text = str(done)
    assert "ran on BlockAllocator: 4 requests, 48 tokens." in text
    assert "all 40 are back: none leaked" in text
    assert text.count("the same tokens") == 2
    assert "32 of 42 prompt tokens found" in text
    assert "✓" in done._repr_html_()


def test_a_second_run_says_the_same(toy):
    assert str(run(toy, BlockAllocator=MyAllocator)) == str(run(toy, BlockAllocator=MyAllocator))


def test_without_any_part_the_package_runs_alone(toy):
    done = run(toy)
    assert done.passed
    assert "ran on the package" in str(done)


def test_one_prompt_alone(toy):
    done = run_for_real(model=toy, prompts=[1, 2, 3], num_gpu_blocks=10, max_model_len=64)
    assert len(done.outputs) == 1
    assert done.passed


def test_a_part_that_does_not_pass_is_refused_as_require_does(toy):
    with pytest.raises(CheckFailed, match=r"This cell needs `BlockAllocator`, which .*exercise 2\.1"):
        run(toy, BlockAllocator=lambda num_blocks, block_size: None)


def test_what_is_neither_an_exercise_nor_an_option_is_said(toy):
    with pytest.raises(UnknownExercise, match="Did you mean BlockAllocator"):
        run(toy, BlockAlocator=MyAllocator)
    with pytest.raises(UnknownExercise, match="Did you mean block_size"):
        run(toy, blocksize=8)
    with pytest.raises(UnknownExercise, match="no part of the engine"):
        run(toy, blocks_for=lambda n, size: -(-n // size))


def test_a_given_part_that_breaks_in_the_run_reaches_the_learner_as_it_is(toy):
    class Breaks(MyAllocator):
        def allocate(self):
            if self.num_blocks == 40:
                raise IndexError("pop from empty list")
            return super().allocate()

    with pytest.raises(PartError, match=r"Your BlockAllocator broke in allocate.*pop from empty list"):
        run(toy, BlockAllocator=Breaks)


def breaks(method, condition):
    """An allocator that passes its check, and breaks in a pool of 40 blocks."""
    return (
        ALLOCATOR.format(name="Right")
        + f"\n\nclass BlockAllocator(Right):\n    def {method}(self, *args):\n        if {condition}:\n"
        + f"            raise IndexError('not today')\n        return super().{method}(*args)\n"
    )


def test_a_kept_part_that_breaks_in_the_run_gives_way_with_a_message(toy):
    keep("BlockAllocator", breaks("allocate", "self.num_blocks == 40"))
    done = run(toy)
    assert done.passed
    assert done.mine.names == []
    (problem,) = done.mine.problems
    assert problem == (
        "The BlockAllocator that you kept broke in this run. Your BlockAllocator broke in allocate(): IndexError: not "
        "today. The package's ran in its place."
    )
    assert "not today" in str(done)


def test_a_kept_part_that_cannot_even_be_made_gives_way(toy):
    keep("BlockAllocator", breaks("__init__", "args[0] == 40"))
    assert "broke in this run" in str(run(toy))


def test_a_kept_part_breaks_beside_one_that_was_given(toy):
    keep("BlockAllocator", breaks("allocate", "self.num_blocks == 40"))
    done = run(toy, PrefixCache=MyCache)
    assert done.mine.names == ["PrefixCache"]
    assert done.passed


def test_other_tokens_are_said(toy, monkeypatch):
    numbers = count()
    monkeypatch.setattr(module, "_tokens", lambda output: [[next(numbers)]])
    done = run(toy)
    assert done.same_as_package is done.same_as_transformers is False
    assert not done.passed
    assert str(done).count("OTHER tokens") == 2
    assert str(done).startswith("✗")


def test_leaked_blocks_are_said(toy, monkeypatch):
    monkeypatch.setattr(module, "_count_blocks", lambda engine: (3, ""))
    done = run(toy)
    assert not done.passed
    assert "3 of 40 leaked" in str(done)


def test_sampled_tokens_are_not_held_against_transformers(toy):
    done = run(toy, params=SamplingParams(temperature=1.0, max_tokens=8, seed=1))
    assert done.same_as_package
    assert done.same_as_transformers is None
    assert done.passed
    assert "drawn at random" in str(done)


def test_outputs_that_go_past_the_end_token_or_stop_before_it(toy):
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    assert run(toy, params=params).passed
    first = run(toy).outputs[0].token_ids
    assert run(toy, params=SamplingParams(max_tokens=12, stop_token_ids=[first[3]])).passed


def test_several_outputs_for_one_prompt(toy):
    done = run(toy, params=SamplingParams(max_tokens=6, n=2))
    assert done.passed
    assert "4 requests, 48 tokens" in str(done)


def test_stopped_in_the_run_and_in_the_comparison(toy, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_same_as_transformers", stop)
    done = run(toy)
    assert done.stopped
    assert done.same_as_package is True
    assert "You stopped it before all tokens were compared." in str(done)
    monkeypatch.setattr("pagedkv_lab.engine.Engine.generate", stop)
    done = run(toy)
    assert done.stopped
    assert done.leaked == 0
    assert "You stopped it" in str(done)
