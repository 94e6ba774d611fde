"""Turns a workbook's solution cell into the exercise that the learner gets.

    def slot(table, position, block_size):
        '''The pool slot of a token.'''
        ### BEGIN SOLUTION
        # Find the block first, then the place in it (2 lines).
        block = table[position // block_size]
        return block * block_size + position % block_size
        ### END SOLUTION

The comment that opens the region is the exercise's stub: it stays, the rest of the region and its markers go. So a
solution is its stub with lines added, which `lines_not_in` checks on the notebooks themselves. The markers are
nbgrader's.
"""

import ast
import re
from collections.abc import Callable

SOLUTION = ("### BEGIN SOLUTION", "### END SOLUTION")
HIDDEN_TESTS = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")

_MAGIC = re.compile(r"^([ \t]*)[%!].*", re.MULTILINE)


class RegionError(ValueError):
    """Regions that can't be cut; `line` counts from 0 within the cell."""

    def __init__(self, line: int, message: str):
        self.line = line
        super().__init__(message)


def has_region(source: str, markers: tuple[str, str]) -> bool:
    """Whether either marker occurs anywhere in the text."""
    return any(marker in source for marker in markers)


def exercise_of(source: str) -> str:
    """The exercise's text of a code cell: stubs for solutions, no hidden tests. Raises RegionError."""
    lines = _cut(source.split("\n"), HIDDEN_TESTS, keep=lambda start, region: [])
    lines = _cut(lines, SOLUTION, keep=_stub)
    exercise = "\n".join(lines).strip("\n")
    if exercise != source:
        _must_compile(exercise)
    return exercise


def lines_not_in(exercise: str, solution: str) -> list[str]:
    """The exercise's lines that don't follow one another in the solution: none if it only adds lines."""
    rest = iter(solution.split("\n"))
    missing = []
    for line in exercise.split("\n"):
        tried = []
        for candidate in rest:
            tried.append(candidate)
            if candidate == line:
                break
        else:
            missing.append(line)
            rest = iter(tried)  # go on from where the search began, to report this line and not all after it
    return missing


def _cut(lines: list[str], markers: tuple[str, str], keep: Callable[[int, list[str]], list[str]]) -> list[str]:
    """The lines outside the regions, with `keep(start, region's lines)` in the place of each."""
    begin, end = markers
    kept: list[str] = []
    start: int | None = None
    for number, line in enumerate(lines):
        found = next((marker for marker in markers if marker in line), None)
        if found and line.strip() != found:
            raise RegionError(number, f"{found!r} must stand alone on its line.")
        if found == begin:
            if start is not None:
                raise RegionError(number, f"{begin!r} inside a region that began {number - start} lines above.")
            start = number
        elif found == end:
            if start is None:
                raise RegionError(number, f"{end!r} without a {begin!r} above it.")
            kept += keep(start, lines[start + 1 : number])
            start = None
        elif start is None:
            kept.append(line)
    if start is not None:
        raise RegionError(start, f"{begin!r} without an {end!r} below it.")
    return kept


def _stub(start: int, region: list[str]) -> list[str]:
    """The comment lines before the region's first line of code; blank lines count only between comments."""
    opening = []
    for line in region:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        opening.append(line)
    while opening and not opening[-1].strip():
        opening.pop()
    if not opening:
        raise RegionError(
            start,
            "this solution has no stub: open the region with comment lines that tell the learner what to write.",
        )
    return opening


def _must_compile(exercise: str) -> None:
    if exercise.startswith("%%"):  # a cell magic: what follows need not be Python
        return
    problem = _syntax_error(exercise) and _syntax_error(_MAGIC.sub(r"\1pass", exercise))
    if problem:
        raise RegionError(
            0,
            f"without its solution this cell is not valid Python ({problem.msg}, line {problem.lineno} of the "
            "exercise): give the function a docstring, so that its body is never empty.",
        )


def _syntax_error(python: str) -> SyntaxError | None:
    try:
        compile(python, "exercise", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return error
    return None
