"""`--check` finds every built notebook that is not what its source says, and never executes anything."""

import re
import shutil

import nbformat
import pytest
from tiny_course import CHAPTER, LESSON, WORKBOOK, write_course

from pagedkv_lab.course.builder import console
from pagedkv_lab.course.builder.stale import find_stale

LESSON_PATH = "notebooks/00_tiny.ipynb"
SOLUTION_PATH = "solutions/00_tiny/00_tiny.ipynb"
EXERCISE_PATH = "exercises/00_tiny/00_tiny.ipynb"


@pytest.fixture(autouse=True)
def _nothing_is_executed(monkeypatch):
    monkeypatch.setattr("nbclient.NotebookClient.execute", lambda self, **_: pytest.fail("a notebook was executed"))


def reasons(root, path=None):
    return [stale.reason for stale in find_stale(root, [CHAPTER]) if path is None or str(stale.path) == path]


def edit(root, path, change):
    notebook = nbformat.read(root / path, nbformat.NO_CONVERT)
    change(notebook)
    nbformat.write(notebook, root / path)


def cell(notebook, cell_id):
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def test_a_fresh_build_is_not_stale(built, capsys):
    assert console.check([], built) == 0
    assert capsys.readouterr().out == "The notebooks of 1 chapter are as their sources say.\n"


def test_stale_files_are_listed_with_the_command_that_mends_them(built, capsys):
    write_course(built, workbook=WORKBOOK.replace("Twice x", "Two times x"))
    assert console.check(["0"], built) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{SOLUTION_PATH}: cell 'double' has other text than in course/00_tiny/workbook.py.",
        f"{EXERCISE_PATH}: cell 'double' has other text than in course/00_tiny/workbook.py.",
        "Run: pagedkv course build 00_tiny",
    ]


def test_an_edited_lesson_makes_only_its_own_notebook_stale(built):
    write_course(built, lesson=LESSON.replace("two", "three"))
    [stale] = find_stale(built, [CHAPTER])
    assert str(stale.path) == LESSON_PATH
    assert stale.reason == "cell 3 is not what course/00_tiny/lesson.py has in its place (line 7)."


@pytest.mark.parametrize(
    ("path", "change", "reason"),
    [
        (LESSON_PATH, lambda nb: nb.cells.pop(), r"has 6 cells, by course/00_tiny/lesson\.py it has 7"),
        (
            LESSON_PATH,
            lambda nb: nb.cells.insert(2, nb.cells.pop(3)),
            r"cell 3 is not what .* has in its place \(line 7\)",
        ),
        (LESSON_PATH, lambda nb: cell(nb, "noisy").update(source="x"), "cell 'noisy' has other text"),
        (LESSON_PATH, lambda nb: cell(nb, "noisy").metadata.update(tags=["x"]), "cell 'noisy' has other metadata"),
        (LESSON_PATH, lambda nb: cell(nb, "setup").update(source="x"), "cell 'setup' has other text"),
        (LESSON_PATH, lambda nb: nb.metadata.update(widgets={}), "widget state .* GitHub refuses"),
        (LESSON_PATH, lambda nb: nb.metadata.kernelspec.update(name="mine"), "has other notebook metadata"),
        (LESSON_PATH, lambda nb: cell(nb, "noisy").update(execution_count=None), "'noisy' was not executed in order"),
        (LESSON_PATH, lambda nb: cell(nb, "noisy").update(execution_count=9), "its count is 9, not 5"),
        (
            SOLUTION_PATH,
            lambda nb: cell(nb, "double").metadata.nbgrader.update(points=3),
            "'double' has other metadata",
        ),
        (EXERCISE_PATH, lambda nb: cell(nb, "double").update(execution_count=1), "'double' was executed; .* untouched"),
        (
            EXERCISE_PATH,
            lambda nb: cell(nb, "double_test").outputs.append(nbformat.v4.new_output("stream", text="4\n")),
            "'double_test' has outputs; .* untouched",
        ),
        (
            SOLUTION_PATH,
            lambda nb: cell(nb, "double_test").outputs.append(nbformat.v4.new_output("error", ename="E", evalue="e")),
            "'double_test' failed when it was executed",
        ),
    ],
)
def test_whatever_was_changed_by_hand_is_found(built, path, change, reason):
    edit(built, path, change)
    [found] = reasons(built, path)
    assert re.search(reason, found), found


def test_outputs_may_differ_from_build_to_build(built):
    edit(built, LESSON_PATH, lambda nb: cell(nb, "noisy").outputs.pop())
    assert reasons(built) == []


def test_a_solution_that_does_not_keep_its_stub_is_told_as_such(built):
    edit(built, EXERCISE_PATH, lambda nb: cell(nb, "double").update(source="def double(x):\n    return 5"))
    assert reasons(built, EXERCISE_PATH) == [
        "cell 'double' has other text than in course/00_tiny/workbook.py.",
        "cell 'double': the solution does not keep this line of its stub: 'return 5'",
    ]


@pytest.mark.parametrize("path", [LESSON_PATH, SOLUTION_PATH, EXERCISE_PATH])
def test_a_missing_notebook_is_found(built, path):
    (built / path).unlink()
    assert reasons(built, path) == ["is missing."]


@pytest.mark.parametrize("text", ["", "not json", "{}", '{"cells": 3, "metadata": {}, "nbformat": 4}'])
def test_a_file_that_is_no_notebook_is_found(built, text):
    (built / LESSON_PATH).write_text(text)
    [reason] = reasons(built, LESSON_PATH)
    assert reason.startswith("is not a notebook: ")


def test_a_removed_chapter_leaves_orphans(built, capsys):
    shutil.copytree(built / "course" / CHAPTER, built / "course" / "01_other")
    shutil.rmtree(built / "course" / CHAPTER)
    assert console.check(["1"], built) == 1
    out = capsys.readouterr().out
    for path in (LESSON_PATH, SOLUTION_PATH, EXERCISE_PATH):
        assert f"{path}: comes from nothing in course/: delete it." in out


def test_a_removed_workbook_leaves_orphans(built):
    (built / "course" / CHAPTER / "workbook.py").unlink()
    found = [(str(stale.path), stale.chapter) for stale in find_stale(built, [CHAPTER])]
    assert found == [(EXERCISE_PATH, None), (SOLUTION_PATH, None)]


def test_jupyters_checkpoints_are_no_orphans(built):
    checkpoint = built / "notebooks" / ".ipynb_checkpoints" / "00_tiny-checkpoint.ipynb"
    checkpoint.parent.mkdir()
    shutil.copy(built / LESSON_PATH, checkpoint)
    assert reasons(built) == []


def test_a_public_home_makes_every_notebook_stale_until_it_carries_the_badges(built):
    write_course(built, repository="owner/lab")
    assert {str(stale.path) for stale in find_stale(built, [CHAPTER])} == {LESSON_PATH, SOLUTION_PATH, EXERCISE_PATH}
