"""The outline agrees with what is there: chapters in course/, exercises in checks, slots of the engine."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pagedkv_lab.course.builder.plan import all_chapters
from pagedkv_lab.course.checks.registry import chapters
from pagedkv_lab.course.outline import COURSE, ChapterList
from pagedkv_lab.engine.parts import Parts

ROOT = Path(__file__).parents[2]


def test_chapters_are_numbered_in_order_and_named_after_their_folders():
    assert [chapter.number for chapter in COURSE] == list(range(len(COURSE)))
    assert all(re.fullmatch(rf"{chapter.number:02}_\w+", chapter.folder) for chapter in COURSE)


def test_what_is_said_to_be_written_is_what_is_in_course():
    assert [chapter.folder for chapter in COURSE if chapter.is_written] == all_chapters(ROOT)


def test_a_chapter_needs_only_what_comes_before_it():
    assert all(need < chapter.number for chapter in COURSE for need in chapter.needs)


@pytest.mark.parametrize("chapter", chapters(), ids=lambda chapter: chapter.folder)
def test_a_written_chapter_builds_the_slots_that_its_exercises_fill(chapter):
    [outlined] = [other for other in COURSE if other.folder == chapter.folder]
    assert set(outlined.builds) == {exercise.slot for exercise in chapter.exercises if exercise.slot}


def test_every_part_of_the_engine_is_built_somewhere():
    built = {name for chapter in COURSE for name in chapter.builds}
    assert built == {field.name for field in fields(Parts)}


def test_the_list_links_to_the_chapters_that_can_be_opened_only():
    table = ChapterList()._repr_markdown_()
    for chapter in COURSE:
        assert (f"]({chapter.folder}.ipynb)" in table) == chapter.is_written
        assert chapter.question in table
        assert chapter.question in repr(ChapterList())
