"""The course map shows each chapter and each part once, with an arrow for everything that is built or needed."""

from dataclasses import dataclass

import matplotlib.patches
import pytest
from looking import is_on_the_page, texts

from pagedkv_lab.show.figures import course_map


@dataclass
class Chapter:
    number: int
    title: str
    builds: tuple = ()
    needs: tuple = ()
    is_written: bool = True


SMALL = [
    Chapter(0, "Look"),
    Chapter(1, "Build", ("wheel",), (0,)),
    Chapter(2, "Paint", ("door", "roof"), (0, 1), is_written=False),
    Chapter(3, "Drive", (), (1, 2), is_written=False),
    Chapter(4, "Race", (), (1,)),
]


def heads(picture) -> int:
    """How many arrows are drawn, by their heads."""
    return sum(isinstance(patch, matplotlib.patches.Polygon) for patch in picture.axes[0].patches)


def dashed_boxes(picture) -> int:
    boxes = [p for p in picture.axes[0].patches if isinstance(p, matplotlib.patches.FancyBboxPatch)]
    return sum(patch.get_linestyle() not in ("-", "solid") for patch in boxes)


def test_every_chapter_and_every_part_is_written_once():
    written = texts(course_map(SMALL))
    assert all(written.count(chapter.title) == 1 for chapter in SMALL)
    assert all(written.count(part) == 1 for part in ("wheel", "door", "roof"))


def test_there_is_an_arrow_for_each_part_that_is_built_and_each_chapter_that_is_needed():
    # Built: wheel, door, roof. Needed: 0 by 1; 0 and 1 by 2; all parts (one arrow, from the frame) by 3; wheel by 4.
    assert heads(course_map(SMALL)) == 3 + 3 + 1 + 1


def test_what_is_to_come_is_dashed_and_the_map_says_so():
    picture = course_map(SMALL)
    assert dashed_boxes(picture) == 2 + 2  # two chapters, and the parts of one of them
    assert "dashed: to come" in texts(picture)
    done = course_map([Chapter(0, "Build", ("wheel",))])
    assert dashed_boxes(done) == 0
    assert "dashed: to come" not in texts(done)


def test_a_part_that_two_chapters_build_is_one_box_with_two_arrows():
    picture = course_map([Chapter(1, "Build", ("wheel",)), Chapter(2, "Mend", ("wheel",))])
    assert texts(picture).count("wheel") == 1
    assert heads(picture) == 2


def test_says_who_builds_and_needs_what():
    assert str(course_map(SMALL)) == (
        "The chapters: 00 Look; 01 Build (builds wheel, needs 00); 02 Paint (builds door and roof, needs 00 and 01, to "
        "come); 03 Drive (needs the whole engine, to come); 04 Race (needs 01)."
    )


def test_without_a_part_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="no chapter builds a part"):
        course_map([Chapter(0, "Look")])


def test_long_titles_and_many_parts_stay_in_their_boxes():
    picture = course_map([Chapter(1, "A title that is far too long for its box " * 2, ("part" * 20,))])
    assert is_on_the_page(picture)
