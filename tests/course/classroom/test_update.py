"""A copy brought up to date: what is new comes in, what was edited stays, and every file is told of."""

import json

import pytest
from small_course import CHAPTER, EXERCISE, LESSON, fill_in, run_only, write_course

from pagedkv_lab.course.classroom import update as module
from pagedkv_lab.course.classroom.release import release
from pagedkv_lab.course.classroom.update import update
from pagedkv_lab.errors import PagedKVError


@pytest.fixture
def first(tmp_path):
    """A copy that a learner got, version 1."""
    write_course(tmp_path / "old")
    release(tmp_path / "mine", [], tmp_path / "old")
    return tmp_path / "mine"


@pytest.fixture(params=["a checkout", "a handout"])
def second(request, tmp_path):
    """Version 2, in both forms that it may come in."""
    newer = write_course(tmp_path / "newer", version=2)
    if request.param == "a handout":
        release(tmp_path / "newer-handout", [], newer)
        newer = tmp_path / "newer-handout"
    return newer


def run(copy, source, **options):
    said = []
    update(source, start=copy, say=said.append, **options)
    return said


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_untouched_copy_becomes_the_new_one(first, second):
    said = run(first, second)
    assert f"{LESSON}: brought up to date" in said
    assert f"{EXERCISE}: brought up to date" in said
    assert "pagedkv_lab/__init__.py: brought up to date" in said
    assert b"version 2" in (first / LESSON).read_bytes()
    assert b"version 2" in (first / EXERCISE).read_bytes()
    assert not (first / ".pagedkv").exists()
    assert run(first, second) == ["Nothing is newer there."]


def test_it_ends_as_the_new_handout_is(first, second, tmp_path):
    run(first, second)
    release(tmp_path / "fresh", [], tmp_path / "newer")
    assert files(first) == files(tmp_path / "fresh")


def test_an_edited_exercise_is_not_touched(first, second):
    mine = fill_in(first)
    said = run(first, second)
    assert (first / EXERCISE).read_bytes() == mine
    assert f"{EXERCISE}: edited by you, and left as it is; the exercise itself has changed" in said
    assert b"version 2" in (first / LESSON).read_bytes()


def test_it_is_told_of_once_and_stays_edited_ever_after(first, second, tmp_path):
    mine = fill_in(first)
    run(first, second)
    assert run(first, second) == ["Nothing is newer there."]
    third = write_course(tmp_path / "third", version=3)
    assert f"{EXERCISE}: edited by you, and left as it is; the exercise itself has changed" in run(first, third)
    assert (first / EXERCISE).read_bytes() == mine


def test_an_edited_exercise_that_has_not_changed_is_not_worth_a_word(first, tmp_path):
    fill_in(first)
    newer = write_course(tmp_path / "newer", version=2, workbook_version=1)
    assert not any(EXERCISE in line for line in run(first, newer))


def test_a_lesson_with_notes_in_it_is_kept_and_brought_up_to_date(first, second):
    mine = fill_in(first, "# a note", LESSON)
    said = run(first, second)
    assert b"version 2" in (first / LESSON).read_bytes()
    [copy] = (first / ".pagedkv" / "copies").rglob("*.ipynb")
    assert copy.read_bytes() == mine
    assert f"{LESSON}: edited by you, and brought up to date" in said
    assert f"  yours is kept in {copy.relative_to(first).as_posix()}" in said


def test_running_is_not_editing(first, second):
    run_only(first, LESSON)
    run_only(first, EXERCISE)
    run(first, second)
    assert b"version 2" in (first / EXERCISE).read_bytes()
    assert not (first / ".pagedkv").exists()


def test_what_the_learner_added_stays(first, second):
    (first / "notebooks" / "my_notes.ipynb").write_text("{}")
    run(first, second)
    assert (first / "notebooks" / "my_notes.ipynb").read_text() == "{}"


def test_what_the_learner_deleted_comes_back(first, second):
    (first / LESSON).unlink()
    assert f"{LESSON}: new" in run(first, second)
    assert (first / LESSON).exists()


def test_a_dry_run_says_the_same_and_changes_nothing(first, second):
    fill_in(first)
    fill_in(first, "# a note", LESSON)
    before = files(first)
    dry = run(first, second, dry_run=True)
    assert files(first) == before
    assert f"{EXERCISE}: would be: edited by you, and left as it is; the exercise itself has changed" in dry
    wet = [line for line in run(first, second) if not line.startswith("  ")]
    assert [line.partition(":")[0] for line in dry[:-1]] == [line.partition(":")[0] for line in wet[:-1]]


def test_without_a_list_of_files_what_differs_counts_as_edited(first, second):
    (first / "handout.json").unlink()
    old_package = (first / "pagedkv_lab" / "__init__.py").read_bytes()
    old_exercise = (first / EXERCISE).read_bytes()
    said = run(first, second)
    assert (first / EXERCISE).read_bytes() == old_exercise
    assert b"version 2" in (first / LESSON).read_bytes()
    assert (first / "pagedkv_lab" / "__init__.py").read_bytes() == old_package
    assert "The package itself is not in this folder" in said[-1]
    assert not (first / "handout.json").exists()


def test_a_list_of_files_that_cannot_be_read_is_told_of(first, second):
    (first / "handout.json").write_text("[]")
    before = files(first)
    with pytest.raises(PagedKVError, match=r"handout\.json can't be read"):
        run(first, second)
    assert files(first) == before


def test_the_new_list_names_the_new_files(first, second):
    run(first, second)
    listed = json.loads((first / "handout.json").read_text())
    assert listed["chapters"] == [CHAPTER]
    assert EXERCISE in listed["files"]


@pytest.mark.parametrize("folder", ["nothing", "there"])
def test_a_source_that_is_no_course_is_refused(first, tmp_path, folder):
    (tmp_path / "there").mkdir()
    with pytest.raises(PagedKVError, match="neither a checkout of the course nor a folder that was handed out"):
        run(first, tmp_path / folder)


def test_a_copy_is_not_brought_up_to_date_from_itself(first):
    with pytest.raises(PagedKVError, match="from itself: name a newer folder with --from"):
        run(first, first)


def test_without_a_source_and_without_a_checkout_it_asks_for_one(first, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_INSTALLED_FROM", tmp_path / "site-packages")
    with pytest.raises(PagedKVError, match="from where"):
        run(first, None)


def test_without_a_source_the_checkout_of_the_package_is_taken(first, tmp_path, monkeypatch):
    newer = write_course(tmp_path / "newer", version=2)
    monkeypatch.setattr(module, "_INSTALLED_FROM", newer)
    assert f"{LESSON}: brought up to date" in run(first, None)


def test_outside_of_a_copy_it_says_where_to_run_it(tmp_path, second):
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(PagedKVError, match="run this in your copy of the course"):
        run(tmp_path / "elsewhere", second)
