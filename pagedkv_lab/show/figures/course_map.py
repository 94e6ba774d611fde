"""The course as a map: the chapters that build the engine, its parts, and the chapters that use it.

Knows boxes and arrows. Does not know the course: who calls passes its chapters.
"""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path

from pagedkv_lab.show.figures.page import WIDTH, arrow, box, clip, page, write
from pagedkv_lab.show.style import BLUE, GREEN, INK, Picture, text_on

_ROW, _BOX = 0.54, 0.36  # inches: from row to row, height of a box
_TOP = 0.56  # of the first row's middle; above it the columns' names
_ARCS, _CHAPTER, _PART = 0.62, 1.95, 2.05  # widths: of the margin for arcs, of a chapter's box, of a part's
_LOW, _LOW_PITCH = 0.235, 0.28  # height of a part's box where a chapter builds several, and from one to the next
_ENGINE = 3.12  # where the engine's frame begins
_PAD = 0.14  # between the frame and the parts
_USES = WIDTH - _CHAPTER - 0.04  # where the chapters begin that use the engine
_HEAD = 0.09  # an arrow's


class Chapter(Protocol):
    """What the map asks of a chapter. `needs` holds numbers of other chapters, `builds` names of parts."""

    @property
    def number(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def builds(self) -> Sequence[str]: ...
    @property
    def needs(self) -> Sequence[int]: ...
    @property
    def is_written(self) -> bool: ...


def course_map(chapters: Sequence[Chapter]) -> Picture:
    """Chapters as boxes, parts of the engine as boxes in a frame, and arrows for what builds what and needs what.

    At the left, from top to bottom, the chapters up to the last one that builds a part; arcs lead from each to those
    that need it. In the middle the engine. At the right the chapters after that: an arrow comes from the parts of the
    chapter that they need, or from the frame where they need all of them. What is not written yet is dashed.

    Raises ValueError where no chapter builds a part.
    """
    if not any(chapter.builds for chapter in chapters):
        raise ValueError("no chapter builds a part of the engine: there is nothing to draw")
    last = max(i for i, chapter in enumerate(chapters) if chapter.builds)
    builders, users = chapters[: last + 1], chapters[last + 1 :]
    rows = {chapter.number: row for row, chapter in enumerate(builders)}
    parts = _parts(builders, rows)

    to_come = not all(chapter.is_written for chapter in chapters)
    height = _y(len(builders) - 1) + _BOX / 2 + _PAD + 0.02 + 0.24 * to_come
    with page(height, _says(chapters)) as (figure, axes):
        write(axes, _ARCS, 0.13, "chapters that build the engine", style="italic")
        if users:
            write(axes, _USES, 0.13, "chapters that use it", style="italic")
        if to_come:
            write(axes, _ARCS, height - 0.12, "dashed: to come", style="italic")
        written = {name for chapter in builders if chapter.is_written for name in chapter.builds}
        frame = _draw_engine(axes, parts, written)
        for chapter in builders:
            y = _y(rows[chapter.number])
            _draw_chapter(axes, _ARCS, y, chapter)
            for need in chapter.needs:
                _draw_need(axes, rows[need], rows[chapter.number], _dashes(chapter))
            for name in chapter.builds:
                arrow(axes, (_ARCS + _CHAPTER, y), (_ENGINE + _PAD, parts[name]), INK, _dashes(chapter))
        for row, chapter in enumerate(users):
            y = _y(row * (len(builders) - 1) / max(1, len(users) - 1))
            _draw_chapter(axes, _USES, y, chapter)
            for start in _sources(chapter, builders, parts, frame, y):
                arrow(axes, start, (_USES, y), INK, _dashes(chapter))
    return figure


def _y(row: float) -> float:
    return _TOP + _ROW * row


def _parts(builders: Sequence[Chapter], rows: dict[int, int]) -> dict[str, float]:
    """Where the middle of each part's box is: beside the first chapter that builds it, several one below the other."""
    places: dict[str, float] = {}
    for chapter in builders:
        new = [name for name in chapter.builds if name not in places]
        for i, name in enumerate(new):
            places[name] = _y(rows[chapter.number]) + (i - (len(new) - 1) / 2) * _LOW_PITCH
    return places


def _draw_engine(axes: Axes, parts: dict[str, float], written: set[str]) -> tuple[float, float]:
    """The frame with its parts. Returns the frame's top and bottom."""
    top, bottom = min(parts.values()) - 0.62, max(parts.values()) + _BOX / 2 + _PAD
    width = _PART + 2 * _PAD
    box(axes, _ENGINE, top, width, bottom - top, facecolor=(GREEN, 0.1), edgecolor=GREEN, linewidth=1.2)
    write(axes, _ENGINE + width / 2, top + 0.21, "the engine", ha="center", weight="bold", size=10)
    for name, y in parts.items():
        ready = name in written
        tall = _LOW if any(0 < abs(y - other) < _BOX for other in parts.values()) else _BOX
        style = {"facecolor": GREEN, "edgecolor": GREEN} if ready else _to_come(GREEN)
        box(axes, _ENGINE + _PAD, y - tall / 2, _PART, tall, **style)
        ink = text_on(GREEN) if ready else INK
        text = {"family": "DejaVu Sans Mono", "size": 8.5, "color": ink, "ha": "center"}
        write(axes, _ENGINE + _PAD + _PART / 2, y, clip(name, _PART, 8.5), **text)
    return top, bottom


def _draw_chapter(axes: Axes, x: float, y: float, chapter: Chapter) -> None:
    ready = chapter.is_written
    style = {"facecolor": BLUE, "edgecolor": BLUE} if ready else _to_come(BLUE)
    box(axes, x, y - _BOX / 2, _CHAPTER, _BOX, **style)
    ink = text_on(BLUE) if ready else INK
    write(axes, x + 0.1, y, f"{chapter.number:02}", color=ink, weight="bold")
    write(axes, x + 0.42, y, clip(chapter.title, _CHAPTER - 0.5, 9.5), color=ink)


def _to_come(colour: str) -> dict:
    return {"facecolor": (colour, 0.08), "edgecolor": colour, "linestyle": (0, (3, 2)), "linewidth": 1.1}


def _dashes(chapter: Chapter) -> tuple[int, int] | None:
    return None if chapter.is_written else (3, 2)


def _draw_need(axes: Axes, source: int, row: int, dashes: tuple[int, int] | None) -> None:
    """From one row's chapter to a later one's: straight down to the next row, else an arc through the margin."""
    if row == source + 1:
        x = _ARCS + 0.22
        start, end = _y(source) + _BOX / 2, _y(row) - _BOX / 2
        axes.plot([x, x], [start, end - _HEAD], color=INK, linewidth=1.3, linestyle=(0, dashes) if dashes else "-")
        tip = [(x, end), (x - _HEAD * 0.45, end - _HEAD), (x + _HEAD * 0.45, end - _HEAD)]
        axes.add_patch(Polygon(tip, facecolor=INK, edgecolor="none"))
        return
    start, end = _y(source) + 0.07, _y(row) - 0.07  # out of the lower half, into the upper one
    out = _ARCS - 0.13 - 0.11 * (row - source)
    points = [(_ARCS, start), (out, start), (out, end), (_ARCS - _HEAD, end)]
    line = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    style = {"linewidth": 1.3, "linestyle": (0, dashes) if dashes else "-"}
    axes.add_patch(PathPatch(line, fill=False, edgecolor=INK, **style))
    tip = [(_ARCS, end), (_ARCS - _HEAD, end - _HEAD * 0.45), (_ARCS - _HEAD, end + _HEAD * 0.45)]
    axes.add_patch(Polygon(tip, facecolor=INK, edgecolor="none"))


def _sources(
    chapter: Chapter, builders: Sequence[Chapter], parts: dict[str, float], frame: tuple[float, float], y: float
) -> list[tuple[float, float]]:
    """Where the arrows to a chapter at the right begin: at the parts of what it needs, or at the frame."""
    edge = _ENGINE + _PART + 2 * _PAD
    building = {other.number for other in builders if other.builds}
    if building <= set(chapter.needs):
        return [(edge, min(max(y, frame[0] + 0.1), frame[1] - 0.1))]
    needed = {name for other in builders if other.number in chapter.needs for name in other.builds}
    return [(edge - _PAD, parts[name]) for name in parts if name in needed]


def _says(chapters: Sequence[Chapter]) -> str:
    """The map in words."""
    building = {chapter.number for chapter in chapters if chapter.builds}

    def words(chapter: Chapter) -> str:
        facts = ["builds " + " and ".join(chapter.builds)] if chapter.builds else []
        if building <= set(chapter.needs):
            facts.append("needs the whole engine")
        elif chapter.needs:
            facts.append("needs " + " and ".join(f"{number:02}" for number in chapter.needs))
        facts += [] if chapter.is_written else ["to come"]
        return f"{chapter.number:02} {chapter.title}" + (f" ({', '.join(facts)})" if facts else "")

    return "The chapters: " + "; ".join(map(words, chapters)) + "."
