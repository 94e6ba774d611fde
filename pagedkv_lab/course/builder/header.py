"""What a lesson's first cell says about itself, and how long it takes to read by the number of its words.

    30 minutes · Difficulty ●●○○○ · Needs nothing but the bundled model.

Knows the line's form. Does not know which chapters there are.
"""

import re
from dataclasses import dataclass

from pagedkv_lab.course.builder.source import Source

_LINE = re.compile(r"^(\d+) minutes · Difficulty (●+○*) · (Needs [^.\n]+)\.", re.MULTILINE)
_EXERCISE = re.compile(r"^Difficulty [●○]{5} · Importance [●○]{5} · about (\d+) min", re.MULTILINE)
# What is not read as a word: a link's address, a tag, the bars and dashes of a table.
_NO_WORDS = re.compile(r"\]\([^)]*\)|<[^>]+>|^[|:\- ]+$", re.MULTILINE)
_WORD = re.compile(r"\w[\w'’.,-]*")

WORDS_A_MINUTE, MINUTES_A_CODE_CELL = 200, 0.5


@dataclass(frozen=True)
class Header:
    """A lesson's title and the line below it. `difficulty` is 1 to 5; `needs` begins with "Needs"."""

    title: str
    minutes: int
    difficulty: int
    needs: str

    @property
    def dots(self) -> str:
        return "●" * self.difficulty + "○" * (5 - self.difficulty)


def read_header(lesson: Source) -> Header:
    """The header of a lesson. Raises SourceError where its first cell has none in the form above."""
    text = lesson.cells[0].source
    found = _LINE.findall(text)
    if len(found) != 1 or len(found[0][1]) != 5:
        raise lesson.error(
            0, "the first cell must have one line like: 30 minutes · Difficulty ●●○○○ · Needs nothing but the ...."
        )
    minutes, dots, needs = found[0]
    return Header(title_of(lesson), int(minutes), dots.count("●"), needs)


def title_of(lesson: Source) -> str:
    """What stands after the # in its first line."""
    return lesson.cells[0].source.partition("\n")[0].removeprefix("# ")


def exercise_minutes(workbook: Source) -> int:
    """Minutes of all its exercises together, by the line below each one's heading."""
    return sum(int(minutes) for cell in workbook.cells for minutes in _EXERCISE.findall(cell.source))


def estimated_minutes(lesson: Source) -> float:
    """Minutes to read and run it: its words at a reader's pace, and half a minute a code cell."""
    prose = "\n\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")
    words = len(_WORD.findall(_NO_WORDS.sub(" ", prose)))
    code_cells = sum(cell.cell_type == "code" for cell in lesson.cells)
    return words / WORDS_A_MINUTE + code_cells * MINUTES_A_CODE_CELL
