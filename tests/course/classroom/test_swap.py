"""Swapping the stub, the solution and one's own work: nothing that a learner wrote is ever lost."""

import nbformat
import pytest
from small_course import CHAPTER, EXERCISE, fill_in, run_only, write_course

from pagedkv_lab.course.classroom import copies
from pagedkv_lab.course.classroom.swap import swap
from pagedkv_lab.errors import PagedKVError


@pytest.fixture
def course(tmp_path):
    return write_course(tmp_path)


def exercise(course) -> bytes:
    return (course / EXERCISE).read_bytes()


def kept(course) -> list[bytes]:
    return [path.read_bytes() for path in sorted((course / ".pagedkv" / "copies").rglob("*.ipynb"))]


def test_the_solution_takes_the_place_of_an_untouched_exercise(course):
    said = swap("0", "solution", course)
    assert said[0] == f"{EXERCISE} is the solution now."
    assert b"# solved" in exercise(course)
    assert kept(course) == []


def test_the_built_solution_comes_with_its_outputs(course):
    run_only(course, EXERCISE.replace("exercises", "solutions"))
    swap("0", "solution", course)
    assert b"something" in exercise(course)


def test_a_solution_that_is_not_built_comes_without_outputs(course):
    (course / EXERCISE.replace("exercises", "solutions")).unlink()
    swap("0", "solution", course)
    assert b"# solved" in exercise(course)


def test_the_exercise_comes_back_byte_for_byte_as_it_was_built(course):
    built = exercise(course)
    swap(CHAPTER, "solution", course)
    swap(CHAPTER, "exercise", course)
    assert exercise(course) == built


@pytest.mark.parametrize("to", ["solution", "exercise"])
def test_edited_work_is_kept_said_and_brought_back(course, to):
    mine = fill_in(course)
    said = swap("00", to, course)
    assert exercise(course) != mine
    [copy] = (course / ".pagedkv" / "copies").rglob("*.ipynb")
    assert copy.read_bytes() == mine
    assert copy.relative_to(course).as_posix() in said[0]
    assert "--to mine" in said[0]
    assert swap("00", "mine", course)[0].startswith(f"{EXERCISE} is your own work again, from .pagedkv/copies/")
    assert exercise(course) == mine


@pytest.mark.parametrize("to", ["solution", "exercise", "mine"])
def test_twice_in_a_row_does_no_more_than_once(course, to):
    fill_in(course)
    swap("0", "solution", course)
    swap("0", to, course)
    once, copies_once = exercise(course), kept(course)
    assert "already" in swap("0", to, course)[0]
    assert exercise(course) == once
    assert kept(course) == copies_once


def test_going_to_and_fro_keeps_one_copy_of_one_work(course):
    mine = fill_in(course)
    for to in ("solution", "mine", "exercise", "mine", "solution", "exercise", "mine"):
        swap("0", to, course)
    assert exercise(course) == mine
    assert kept(course) == [mine]


def test_work_done_in_the_solution_is_the_learners_too(course):
    first = fill_in(course)
    swap("0", "solution", course)
    second = fill_in(course, "    # a note of my own")
    assert "already" in swap("0", "mine", course)[0]
    assert exercise(course) == second
    swap("0", "exercise", course)
    assert set(kept(course)) == {first, second}
    said = swap("0", "mine", course)
    assert exercise(course) == second
    assert "an older copy beside it" in said[0]


def test_running_is_not_editing(course):
    built = exercise(course)
    run_only(course)
    assert "Its outputs are gone now" in swap("0", "exercise", course)[0]
    assert exercise(course) == built
    run_only(course)
    swap("0", "solution", course)
    assert kept(course) == []


def test_a_file_that_is_no_notebook_any_more_is_kept(course):
    (course / EXERCISE).write_bytes(b"{ half of a noteb\xff")
    swap("0", "exercise", course)
    assert kept(course) == [b"{ half of a noteb\xff"]
    nbformat.read(course / EXERCISE, as_version=4)


def test_an_exercise_that_was_deleted_comes_back(course):
    built = exercise(course)
    (course / EXERCISE).unlink()
    swap("0", "exercise", course)
    assert exercise(course) == built


def test_nothing_to_bring_back_is_said_and_nothing_is_changed(course):
    built = exercise(course)
    with pytest.raises(PagedKVError, match="nothing of yours is kept"):
        swap("0", "mine", course)
    assert exercise(course) == built


def test_it_works_from_a_folder_inside_the_course(course):
    swap("0", "solution", (course / EXERCISE).parent)
    assert b"# solved" in exercise(course)


@pytest.mark.parametrize(
    ("chapter", "to", "complaint"),
    [
        ("7", "solution", "there is no chapter '7'"),
        ("0", "theirs", "--to takes solution, exercise or mine, and not 'theirs'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(course, chapter, to, complaint):
    with pytest.raises(PagedKVError, match=complaint):
        swap(chapter, to, course)


def test_a_chapter_without_a_workbook_has_nothing_to_swap(course):
    (course / "course" / CHAPTER / "workbook.py").unlink()
    with pytest.raises(PagedKVError, match="has no workbook"):
        swap("0", "solution", course)


def test_the_file_stays_where_it_cannot_be_kept(course, monkeypatch):
    mine = fill_in(course)

    def full(root, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pagedkv_lab.course.classroom.swap.keep", full)
    with pytest.raises(OSError, match="No space left"):
        swap("0", "solution", course)
    assert exercise(course) == mine


def test_copies_of_one_second_are_numbered_and_the_last_one_is_the_latest(course):
    path = copies.PurePosixPath(EXERCISE)
    made = []
    for number in range(12):
        (course / path).write_text(str(number))
        made.append(copies.keep(course, path))
    assert len(set(made)) == 12
    assert copies.all_copies(course, path) == made
    assert (course / copies.latest_copy(course, path)).read_text() == "11"
