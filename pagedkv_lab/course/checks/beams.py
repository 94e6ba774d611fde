"""The check of exercise 6.3: one step of beam search on shared blocks.

The tables are the package's own, on an allocator that refuses to share a block which nobody holds any more. So a step
that gives up a block too early, or never, shows in the counts.

Knows which candidates must survive, and who must hold which block then. Does not know how the function gets there.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.course.checks.block_table import ORDER, NotingAllocator
from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, line_of, say, say_none, say_unwritten, short, takes
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.errors import DoubleFree, NotAllocated


@dataclass(frozen=True)
class Step:
    """Beams and what they might say next. `width` of the candidates survive.

    own_blocks: blocks that each beam has for itself, behind one that all share.
    candidates: (score, beam, token).
    """

    label: str
    own_blocks: tuple[int, ...]
    candidates: tuple[tuple[float, int, int], ...]
    width: int

    @property
    def best(self) -> list[tuple[float, int, int]]:
        return sorted(self.candidates, reverse=True)[: self.width]


STEPS = (
    Step("each beam goes on once", (1, 1), ((-2.0, 1, 11), (-9.0, 0, 12), (-1.0, 0, 10)), 2),
    Step("one beam goes on twice, the other dies", (1, 1), ((-1.5, 0, 21), (-8.0, 1, 22), (-1.0, 0, 20)), 2),
    Step(
        "the prompt becomes three beams",
        own_blocks=(0,),
        candidates=((-3.0, 0, 32), (-1.0, 0, 30), (-2.0, 0, 31), (-4.0, 0, 33)),
        width=3,
    ),
    Step(
        "the last beam takes it all",
        own_blocks=(1, 2, 1),
        candidates=((-5.0, 0, 40), (-6.0, 1, 41), (-0.5, 2, 42), (-0.7, 2, 43), (-0.9, 2, 44)),
        width=3,
    ),
    Step(
        "two of four die, and two beams say the same token",
        own_blocks=(1, 1, 1, 1),
        candidates=(
            (-4.0, 0, 50), (-1.0, 3, 50), (-2.0, 1, 51), (-3.0, 3, 52), (-2.5, 1, 50), (-7.0, 2, 54),
        ),
        width=4,
    ),
    Step("one survives", (2, 1), ((-1.0, 1, 60), (-2.0, 0, 61)), 1),
)  # fmt: skip

ONE_OF_EACH = (
    "It keeps the best candidate of each beam. All candidates compete: a good beam may go on twice, and a bad one ends."
)


def examine_beam_step(function: Any) -> Report:
    """Check an implementation of `beam_step(tables, candidates, width)`."""
    probe = Probe("beam_step")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        outcomes = [_Outcome(probe, function, step) for step in STEPS]
        for outcome in outcomes:
            outcome.judge_form()
        for outcome in outcomes:
            outcome.judge_choice(outcomes)
        for outcome in outcomes:
            outcome.judge_blocks()
    except Wrong as wrong:
        return Report("beam_step", probe.cases, diagnosis=wrong.diagnosis)
    return Report("beam_step", probe.cases, ("forks", "dead beams", "beams that share blocks", "widths of 1 to 4"))


class _Outcome:
    """A step that was taken, and what is there afterwards."""

    def __init__(self, probe: Probe, function: Any, step: Step):
        self.probe, self.step = probe, step
        self.allocator = NotingAllocator(ORDER, 4)
        root = BlockTable(self.allocator)
        root.append_block()
        self.tables = [root, *(root.fork() for _ in step.own_blocks[1:])]
        for table, count in zip(self.tables, step.own_blocks, strict=True):
            for _ in range(count):
                table.append_block()
        self.blocks = [list(table.blocks) for table in self.tables]
        self.taken = len(self.allocator.handed_out)
        given, self.candidates = list(self.tables), list(step.candidates)
        if not takes(function, 3):
            message = "It can't be called with 3 arguments. Keep the stub's first line as it was."
            expected = "beam_step(tables, candidates, width)"
            probe.fail("wrong_arguments", message, call=self.text, expected=expected, hint=None)
        self.outcome = call_with_limit(function, (given, self.candidates, step.width), seconds=probe.seconds)
        error = self.outcome.error
        if self.outcome.timed_out or isinstance(error, NotImplementedError):  # it says so itself
            probe.call(function, given, self.candidates, step.width, text=self.text, expected=self.expected)
        probe.cases += 1
        if isinstance(error, NotAllocated):
            message = (
                f"Block {error.block} was given up before it was shared: nobody held it any more, and another request "
                "could have had it. Fork the survivors first, then free what is left over."
            )
            self.fail("frees_too_early", message, say(error).split(":")[0], 2, detail=line_of(function, error))
        if isinstance(error, DoubleFree):
            message = f"Block {error.block} was given back once too often. Free each beam that has ended once."
            self.fail("frees_twice", message, "DoubleFree", 2, detail=line_of(function, error))
        if error is not None:
            name = " It uses a name that is not defined." if isinstance(error, NameError) else ""
            self.fail(
                "raises", f"It raised {say(error)}.{name}", type(error).__name__, 1, detail=line_of(function, error)
            )

    @property
    def text(self) -> str:
        lines = [f"# {self.step.label}"]
        lines += [f"tables[{i}].blocks == {blocks}" for i, blocks in enumerate(self.blocks)]
        listed = ", ".join(map(str, self.step.candidates))
        return "\n".join([*lines, f"beam_step(tables, [{listed}], width={self.step.width})"])

    @property
    def expected(self) -> str:
        return ", ".join(f"({self.blocks[beam]}, {token})" for _, beam, token in self.step.best)

    def fail(self, code: str, message: str, got: str, hint: int = 1, **rest: Any) -> NoReturn:
        self.probe.fail(code, message, call=self.text, expected=self.expected, got=got, hint=hint, **rest)

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return [(pair[0], pair[1]) for pair in self.outcome.value]

    @property
    def got(self) -> str:
        return ", ".join(f"({short(table.blocks, 60)}, {short(token)})" for table, token in self.pairs) or "nothing"

    def judge_form(self) -> None:
        """A list of pairs, each of a table and a token, as many as were asked for."""
        value = self.outcome.value
        if value is None:
            if self.outcome.printed.strip():
                self.fail(*say_none(self.outcome.printed), got="None")
            self.probe.fail(UNWRITTEN, say_unwritten("`beam_step` returned None"), hint=1)
        try:
            pairs = [tuple(pair) for pair in value]
        except TypeError:
            pairs = [()]
        if not isinstance(value, list | tuple) or any(
            len(pair) != 2 or not isinstance(getattr(pair[0], "blocks", None), list) for pair in pairs
        ):
            message = f"Return a list of pairs (table, token); it returned {short(value, 80)}."
            self.fail("not_pairs", message, short(value, 80))
        if len(pairs) != self.step.width:
            if len(pairs) == len({beam for _, beam, _ in self.step.candidates}):
                self.fail("one_of_each_beam", ONE_OF_EACH, self.got)
            message = f"{self.step.width} beams go on, and it returned {len(pairs)}."
            self.fail("wrong_number", message, self.got)
        if self.candidates != list(self.step.candidates):
            message = "It changed the list of candidates. Use `sorted(...)`, which makes a new one."
            self.fail("mutates", message, short(self.candidates, 100))

    def judge_choice(self, outcomes: "list[_Outcome]") -> None:
        """The best candidates, the best first."""
        chosen, right = [token for _, token in self.pairs], [token for _, _, token in self.step.best]
        texts = [(table.blocks, token) for table, token in self.pairs]
        best = [(self.blocks[beam], token) for _, beam, token in self.step.best]
        if chosen == right and (texts == best or sorted(texts) != sorted(best)):
            return  # the tokens are right; whether the tables are is another matter
        if all(one.chose(lowest(one.step)) for one in outcomes):
            message = "It keeps the candidates with the lowest scores. A score is a log probability: -1 beats -9."
            self.fail("keeps_the_worst", message, self.got)
        if all(one.chose(best_of_each(one.step)) for one in outcomes):
            self.fail("one_of_each_beam", ONE_OF_EACH, self.got)
        if sorted(chosen) == sorted(right):
            self.fail("order", "These are the right ones. Return them in order, the best first.", self.got)
        self.fail("other_choice", "Keep the candidates with the highest scores.", self.got)

    def chose(self, tokens: list[int]) -> bool:
        return sorted(token for _, token in self.pairs) == sorted(tokens)

    def judge_blocks(self) -> None:
        """Each survivor has a table of its own with its parent's blocks, and the counts say the same."""
        survivors = [table for table, _ in self.pairs]
        if len({id(table) for table in survivors}) < len(survivors):
            message = (
                "Two of the beams are the same table. The next token of one would be the other's as well: the second "
                "survivor of a beam needs a fork."
            )
            self.fail("one_table_twice", message, self.got, 2)
        if len({id(table.blocks) for table in survivors}) < len(survivors):
            self.fail("one_list_twice", "Two of the beams have the same list of blocks. Use `fork`.", self.got, 2)
        for (_, beam, _), table in zip(self.step.best, survivors, strict=True):
            if table.blocks == self.blocks[beam]:
                continue
            if not table.blocks:
                message = (
                    f"A survivor of beam {beam} has no blocks: the beam was freed before it was forked. Fork first, "
                    "then free what is left over."
                )
                self.fail("frees_too_early", message, self.got, 2)
            if table.blocks in self.blocks:
                message = f"A candidate of beam {beam} got the blocks of another beam: another text."
                self.fail("other_parent", message, self.got, 2)
            self.fail("other_blocks", f"A survivor of beam {beam} has exactly its blocks.", self.got, 2)
        if len(self.allocator.handed_out) > self.taken:
            message = "It took fresh blocks. Nothing is copied yet: survivors share their parent's blocks."
            self.fail("takes_blocks", message, self.got, 1)
        for block in range(self.allocator.num_blocks):
            holders = sum(table.blocks.count(block) for table in survivors)
            counted = self.allocator.ref_count(block)
            if counted > holders:
                message = (
                    f"Block {block} counts {counted} holders, and {holders} of the beams that go on have it. A beam "
                    "that ended, or that was forked and is not used itself, still holds it: it leaked."
                )
                self.fail("leaks", message, self.got, 2)
            if counted < holders:
                message = (
                    f"{holders} of the beams that go on have block {block}, and it counts {counted}. It will be "
                    "somebody else's while they read it. Share through `fork`, and free only what has ended."
                )
                self.fail("not_held", message, self.got, 2)


def lowest(step: Step) -> list[int]:
    """Tokens that survive where the worst are kept."""
    return [token for _, _, token in sorted(step.candidates)[: step.width]]


def best_of_each(step: Step) -> list[int]:
    """Tokens that survive where each beam keeps its own best, then the next best fill up."""
    first = [max(c for c in step.candidates if c[1] == beam) for beam in sorted({c[1] for c in step.candidates})]
    rest = [candidate for candidate in step.best if candidate not in first]
    return [token for _, _, token in (sorted(first, reverse=True) + rest)[: step.width]]
