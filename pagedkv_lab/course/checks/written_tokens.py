"""The check of exercise 6.2: write one token, and copy a shared block first.

The function gets the package's table and a pool that is an array with distinct numbers in every slot. What it leaves
behind is compared with what a right one does, and a known mistake is recognized by leaving the same behind.

Knows what a pool and the tables must look like afterwards. Does not know how the function gets there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.course.checks.block_table import NotingAllocator
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

BLOCK_SIZE, WIDTH = 4, 2
ORDER = (2, 5, 0, 4, 1, 3)
VALUE = np.array([77.0, 78.0])


@dataclass(frozen=True)
class Situation:
    """A parent of `num_tokens` tokens, perhaps forked, and who writes the token at `position`.

    at_boundary: the position has no block yet.
    """

    label: str
    num_tokens: int
    forks: int
    position: int
    writer: str = "parent"


SITUATIONS = (
    Situation("a table on its own", 2, 0, 2),
    Situation("a fork, and the child writes", 2, 1, 2, "child"),
    Situation("a fork of two blocks, and the parent writes", 6, 1, 6),
    Situation("two forks", 7, 2, 7, "child"),
    Situation("a fork at a boundary: a fresh block, no copy", 4, 1, 4, "child"),
    Situation("the first token of all", 0, 0, 0),
    Situation("a fork, and a token in the first of two blocks is written anew", 6, 1, 1, "child"),
)


@dataclass
class Scene:
    """One situation, set up anew: the tables, the allocator, the pool."""

    tables: dict[str, BlockTable]
    allocator: NotingAllocator
    pool: np.ndarray  # (num_blocks, BLOCK_SIZE, WIDTH)

    @classmethod
    def of(cls, situation: Situation) -> "Scene":
        allocator = NotingAllocator(ORDER, BLOCK_SIZE)
        parent = BlockTable(allocator)
        for _ in range(-(-situation.num_tokens // BLOCK_SIZE)):
            parent.append_block()
        tables = {"parent": parent}
        for number in range(situation.forks):
            tables["child" if number == 0 else f"child {number + 1}"] = parent.fork()
        pool = np.arange(len(ORDER) * BLOCK_SIZE * WIDTH, dtype=float).reshape(len(ORDER), BLOCK_SIZE, WIDTH)
        return cls(tables, allocator, pool)

    def state(self) -> tuple[Any, ...]:
        """All that a call can leave behind."""
        counts = tuple(self.allocator.ref_count(block) for block in range(len(ORDER)))
        return self.pool.tobytes(), tuple(tuple(map(int, table.blocks)) for table in self.tables.values()), counts


def write_token(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    """The right function, for comparison."""
    i, offset = divmod(position, BLOCK_SIZE)
    if i == len(table.blocks):
        table.append_block()
    if (copy := table.ensure_writable(i)) is not None:
        source, destination = copy
        pool[destination] = pool[source]
    pool[table.blocks[i], offset] = value


def _grow(table: BlockTable, position: int) -> tuple[int, int]:
    i, offset = divmod(position, BLOCK_SIZE)
    if i == len(table.blocks):
        table.append_block()
    return i, offset


def _never_asks(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    pool[table.blocks[i], offset] = value


def _no_copy(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    table.ensure_writable(i)
    pool[table.blocks[i], offset] = value


def _writes_first(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    pool[table.blocks[i], offset] = value
    if copy := table.ensure_writable(i):
        pool[copy[1]] = pool[copy[0]]


def _old_block(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    block = table.blocks[i]
    if copy := table.ensure_writable(i):
        pool[copy[1]] = pool[copy[0]]
    pool[block, offset] = value


def _copies_over_it(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    copy = table.ensure_writable(i)
    pool[table.blocks[i], offset] = value
    if copy:
        pool[copy[1]] = pool[copy[0]]


def _backwards(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    if copy := table.ensure_writable(i):
        pool[copy[0]] = pool[copy[1]]
    pool[table.blocks[i], offset] = value


def _logical(table: BlockTable, pool: np.ndarray, position: int, value: np.ndarray) -> None:
    i, offset = _grow(table, position)
    if copy := table.ensure_writable(i):
        pool[copy[1]] = pool[copy[0]]
    pool[i, offset] = value


@dataclass(frozen=True)
class KnownMistake:
    code: str
    message: str
    wrong: Callable[..., None]
    hint: int


MISTAKES = (
    KnownMistake(
        "writes_shared",
        "It writes into a block that another table holds, too: the other sequence now reads this token as its own. "
        "Call `table.ensure_writable(i)` before you write.",
        _never_asks,
        1,
    ),
    KnownMistake(
        "table_without_tensor",
        "The table points to a new block, and the tokens that were in the old one are not in it. A table is only "
        "numbers: what lies in the pool must be copied by you, from source to destination.",
        _no_copy,
        1,
    ),
    KnownMistake(
        "writes_first",
        "It writes first and copies then. The token is right in the copy, and it is in the shared block as well, where "
        "the other sequence reads it.",
        _writes_first,
        2,
    ),
    KnownMistake(
        "old_block",
        "It looks the block up before `ensure_writable` changes the table, and writes into the old one, which is "
        "somebody else's now. Look it up afterwards.",
        _old_block,
        2,
    ),
    KnownMistake(
        "copies_over_it",
        "It writes into the new block and then copies the old one over it: the token is gone. Copy, then write.",
        _copies_over_it,
        2,
    ),
    KnownMistake(
        "backwards",
        "It copies from destination to source. The shared block is overwritten with what happened to lie in the free "
        "one, and everybody has lost those tokens.",
        _backwards,
        3,
    ),
    KnownMistake(
        "ignores_table",
        "It writes into the block with the sequence's own number. Which block that is in the pool, the table says: "
        "`table.blocks[i]`.",
        _logical,
        3,
    ),
)


def examine_write_token(function: Any) -> Report:
    """Check an implementation of `write_token(table, pool, position, value)`."""
    probe = Probe("write_token")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        _examine(probe, function)
    except Wrong as wrong:
        return Report("write_token", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("a table on its own", "forks of one and two blocks", "a boundary", "the first token", "a token in between")
    return Report("write_token", probe.cases, tried)


def _examine(probe: Probe, function: Any) -> None:
    left: list[tuple[Any, ...] | None] = []
    problems: list[Wrong | None] = []
    untouched, returned = [], None
    for situation in SITUATIONS:
        scene = Scene.of(situation)
        before = scene.state()
        args = (scene.tables[situation.writer], scene.pool, situation.position, VALUE.copy())
        try:
            outcome = probe.call(function, *args, text=_text(situation), expected=_expected(situation))
        except Wrong as wrong:
            left.append(None)
            problems.append(wrong)
            if wrong.diagnosis.code in ("endless", UNWRITTEN, "wrong_arguments"):
                raise
            continue
        left.append(scene.state())
        problems.append(None)
        untouched.append(scene.state() == before)
        returned = outcome.value if outcome.value is not None else returned
    if untouched and all(untouched) and not any(problems):
        if returned is None:
            probe.fail(UNWRITTEN, say_unwritten("`write_token` returned None and changed nothing"), hint=1)
        message = "It returned something and left the pool as it was. Write into the array that it is given."
        probe.fail("pool_unchanged", message, call=_text(SITUATIONS[0]), expected=_expected(SITUATIONS[0]),
                   got=short(returned, 60), hint=1)  # fmt: skip
    right = [_after(write_token, situation) for situation in SITUATIONS]
    for i, situation in enumerate(SITUATIONS):
        if problems[i] is not None:
            raise problems[i]
        if left[i] != right[i]:
            _diagnose(probe, situation, left, i)


def _diagnose(probe: Probe, situation: Situation, left: list[Any], i: int) -> None:
    rest = {"call": _text(situation), "expected": _expected(situation), "got": _in_words(situation, left[i])}
    for mistake in MISTAKES:
        if all(got == _after(mistake.wrong, each) for got, each in zip(left, SITUATIONS, strict=True)):
            probe.fail(mistake.code, mistake.message, hint=mistake.hint, **rest)
    if left[i][1:] != _after(write_token, situation)[1:]:
        message = (
            "The tables or the counts are not what they should be. `append_block` and `ensure_writable` see to both."
        )
        probe.fail("wrong_tables", message, hint=2, **rest)
    probe.fail("wrong_pool", "The tables are right, and the pool holds something else than it should.", hint=2, **rest)


def _after(function: Callable[..., None], situation: Situation) -> tuple[Any, ...] | None:
    scene = Scene.of(situation)
    try:
        function(scene.tables[situation.writer], scene.pool, situation.position, VALUE.copy())
    except Exception:
        return None
    return scene.state()


def _text(situation: Situation) -> str:
    blocks = Scene.of(situation).tables["parent"].blocks
    lines = [
        f"# {situation.label}; blocks of {BLOCK_SIZE}",
        f"# parent.blocks == {blocks}, {situation.num_tokens} tokens",
    ]
    lines += [f"child{'' if n == 0 else f'_{n + 1}'} = parent.fork()" for n in range(situation.forks)]
    return "\n".join([*lines, f"write_token({situation.writer}, pool, position={situation.position}, value=[77, 78])"])


def _expected(situation: Situation) -> str:
    return _in_words(situation, _after(write_token, situation))


def _in_words(situation: Situation, state: Any) -> str:
    """Where the value lies, what the writer's table says, which blocks of the pool have changed."""
    pool = np.frombuffer(state[0]).reshape(len(ORDER), BLOCK_SIZE, WIDTH)
    before = Scene.of(situation).pool
    names = list(Scene.of(situation).tables)
    table = state[1][names.index(situation.writer)]
    changed = [block for block in range(len(ORDER)) if not np.array_equal(pool[block], before[block])]
    where = [
        f"pool[{b}, {o}]" for b in range(len(ORDER)) for o in range(BLOCK_SIZE) if np.array_equal(pool[b, o], VALUE)
    ]
    parts = [f"the value in {' and '.join(where) or 'no slot'}", f"{situation.writer}.blocks == {list(table)}"]
    copied = [
        f"block {a} copied to {b}"
        for b in changed
        for a in range(len(ORDER))
        if a != b and sum(np.array_equal(pool[b, o], before[a, o]) for o in range(BLOCK_SIZE)) >= BLOCK_SIZE - 1
    ]
    return "; ".join([*parts, *copied])
