"""A clone that somebody works in, brought up to date by git."""

import subprocess

import pytest
from small_course import EXERCISE, LESSON, fill_in, run_only, write_course

from pagedkv_lab.course.classroom.update import update
from pagedkv_lab.errors import PagedKVError


@pytest.fixture(autouse=True)
def _nobodys_git(monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")


@pytest.fixture
def upstream(tmp_path):
    root = write_course(tmp_path / "upstream")
    git(root, "init", "--quiet", "--initial-branch", "main")
    (root / ".gitignore").write_text(".pagedkv/\n__pycache__/\n")
    commit(root)
    return root


@pytest.fixture
def clone(upstream, tmp_path):
    git(tmp_path, "clone", "--quiet", str(upstream), "clone")
    return tmp_path / "clone"


@pytest.fixture
def newer(upstream, clone):
    """The clone is one version behind."""
    write_course(upstream, version=2)
    commit(upstream)
    return upstream


def run(clone, **options):
    said = []
    update(None, start=clone / "exercises", say=said.append, **options)
    return said


def test_where_nothing_is_newer_that_is_said(clone):
    fill_in(clone)
    assert run(clone) == ["Nothing is newer in origin/main."]


def test_what_was_only_run_is_brought_up_to_date(clone, newer):
    run_only(clone, LESSON)
    run_only(clone, EXERCISE)
    said = run(clone)
    assert f"{LESSON}: brought up to date" in said
    assert f"{EXERCISE}: brought up to date" in said
    assert any("of the package and around it" in line for line in said)
    assert (clone / EXERCISE).read_bytes() == (newer / EXERCISE).read_bytes()
    assert not (clone / ".pagedkv").exists()


def test_an_edited_exercise_is_left_as_it_is(clone, newer):
    mine = fill_in(clone)
    said = run(clone)
    assert f"{EXERCISE}: edited by you, and left as it is; the exercise itself has changed" in said
    assert (clone / EXERCISE).read_bytes() == mine
    assert (clone / LESSON).read_bytes() == (newer / LESSON).read_bytes()
    assert git(clone, "rev-parse", "HEAD") == git(newer, "rev-parse", "HEAD")


def test_a_lesson_with_notes_in_it_is_kept_and_brought_up_to_date(clone, newer):
    mine = fill_in(clone, "# a note", LESSON)
    said = run(clone)
    [copy] = (clone / ".pagedkv" / "copies").rglob("*.ipynb")
    assert copy.read_bytes() == mine
    assert f"  yours is kept in {copy.relative_to(clone).as_posix()}" in said
    assert (clone / LESSON).read_bytes() == (newer / LESSON).read_bytes()


def test_an_edited_exercise_that_has_not_changed_is_no_hindrance(clone, upstream):
    write_course(upstream, version=2, workbook_version=1)
    commit(upstream)
    mine = fill_in(clone)
    said = run(clone)
    assert not any(EXERCISE in line for line in said)
    assert (clone / EXERCISE).read_bytes() == mine
    assert (clone / LESSON).read_bytes() == (upstream / LESSON).read_bytes()


def test_a_dry_run_changes_nothing(clone, newer):
    mine, head = fill_in(clone), git(clone, "rev-parse", "HEAD")
    said = run(clone, dry_run=True)
    assert f"{LESSON}: would be brought up to date" in said
    assert f"{EXERCISE}: edited by you, and would be left as it is; the exercise itself has changed" in said
    assert (clone / EXERCISE).read_bytes() == mine
    assert git(clone, "rev-parse", "HEAD") == head


def test_where_git_says_no_everything_is_as_it_was(clone, newer):
    (clone / "Makefile").write_text("lab:\n\techo mine\n")
    commit(clone)  # a commit of one's own: no way straight forward
    mine, lesson = fill_in(clone), fill_in(clone, "# a note", LESSON)
    with pytest.raises(PagedKVError, match="git merge said no, and your files are as they were"):
        run(clone)
    assert (clone / EXERCISE).read_bytes() == mine
    assert (clone / LESSON).read_bytes() == lesson


def test_a_branch_without_an_upstream_is_told_in_words(upstream):
    with pytest.raises(PagedKVError, match="git rev-parse said no"):
        run(upstream)
