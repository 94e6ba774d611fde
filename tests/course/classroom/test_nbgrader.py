"""nbgrader's loop with the folders of this course, from the solved workbook to feedback.

Where nbgrader is not installed this is skipped; with PAGEDKV_REQUIRE_NBGRADER=1 it fails then.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from pagedkv_lab.course.builder.plan import plan_chapter
from pagedkv_lab.course.builder.regions import HIDDEN_TESTS, SOLUTION
from pagedkv_lab.course.checks.registry import chapters

ROOT = Path(__file__).parents[3]
CHAPTER = "01_kv_sizing"
NOTEBOOK = f"{CHAPTER}/{CHAPTER}.ipynb"
STUDENTS = ("right", "wrong", "hard-coding", "untouched")

REQUIRED = os.environ.get("PAGEDKV_REQUIRE_NBGRADER") == "1"
pytestmark = pytest.mark.skipif(find_spec("nbgrader") is None and not REQUIRED, reason="nbgrader is not installed")


def exercise_names() -> list[str]:
    return [exercise.name for chapter in chapters() if chapter.folder == CHAPTER for exercise in chapter.exercises]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course's root as nbgrader needs it, with the solved workbook as its source says."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    [solution] = [one for one in plan_chapter(ROOT, CHAPTER) if one.path.parts[0] == "solutions"]
    (root / solution.path).parent.mkdir(parents=True)
    nbformat.write(solution.notebook, root / solution.path)
    return root


def nbgrader(root: Path, *arguments: str) -> str:
    assert find_spec("nbgrader"), "PAGEDKV_REQUIRE_NBGRADER=1, and nbgrader is not installed"
    environment = {name: value for name, value in os.environ.items() if name != "PAGEDKV_HOME"}
    environment |= {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "JUPYTER_CONFIG_DIR": str(root / "no-config")}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def released(course):
    nbgrader(course, "generate_assignment", CHAPTER)
    return nbformat.read(course / "class" / "release" / NOTEBOOK, as_version=4)


def submission(released, code: dict[str, str]):
    """The released notebook with these texts in its solution cells."""
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        grading = cell.metadata.get("nbgrader", {})
        if grading.get("solution"):
            cell.source = code.get(grading["grade_id"], cell.source)
    return notebook


def looked_up(name: str, check) -> str:
    """The code of somebody who has read the check: its answers, in a table."""
    answers = {repr(case.args): check.reference(*case.args) for case in check.cases}
    return f"def {name}(*args, answers={answers!r}):\n    return answers[repr(args)]"


@pytest.fixture(scope="module")
def graded(course, released):
    """Points by student and exercise, after autograde; feedback is made, too."""
    solution = nbformat.read(course / "solutions" / NOTEBOOK, as_version=4)
    right = {cell.id: cell.source for cell in solution.cells if cell.id in exercise_names()}
    wrong = right | {
        "paged_bytes": "def paged_bytes(lengths, block_size, bytes_per_token):\n"
        "    return sum(lengths) * bytes_per_token",
        "best_block_size": "def best_block_size(lengths, candidates, max_waste):\n    while True:\n        pass",
    }
    checks = {exercise.name: exercise.examine for chapter in chapters() for exercise in chapter.exercises}
    tables = {name: looked_up(name, checks[name]) for name in exercise_names()}
    for student, code in zip(STUDENTS, (right, wrong, tables, {}), strict=True):
        path = course / "class" / "submitted" / student / NOTEBOOK
        path.parent.mkdir(parents=True)
        nbformat.write(submission(released, code), path)
    nbgrader(course, "autograde", CHAPTER)
    nbgrader(course, "generate_feedback", CHAPTER)

    code = (
        "import json, sys\n"
        "from nbgrader.api import Gradebook\n"
        "with Gradebook('sqlite:///class/gradebook.db') as book:\n"
        f"    graded = [book.find_submission_notebook('{CHAPTER}', '{CHAPTER}', student) for student in sys.argv[1:]]\n"
        "    print(json.dumps({one.student.id: [{grade.name: grade.auto_score for grade in one.grades},\n"
        "                                       one.max_score] for one in graded}))"
    )
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin:/bin"])}
    done = subprocess.run(
        [sys.executable, "-c", code, *STUDENTS], cwd=course, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_what_is_handed_out_is_the_courses_own_exercise(released):
    [exercise] = [one for one in plan_chapter(ROOT, CHAPTER) if one.path.parts[0] == "exercises"]
    assert [cell.source for cell in released.cells] == [cell.source for cell in exercise.notebook.cells]
    assert not any(cell.get("outputs") for cell in released.cells)


def test_what_is_handed_out_has_no_solution_and_no_hidden_test(course, released):
    text = (course / "class" / "release" / NOTEBOOK).read_text()
    assert not any(mark in text for mark in (*SOLUTION, *HIDDEN_TESTS, "hidden_test"))
    checks = [cell for cell in released.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert len(checks) == len(exercise_names())
    assert not any(cell.metadata.get("editable", True) for cell in checks)


def total(graded, student):
    return sum(graded[student][0].values())


def test_a_right_submission_gets_all_points(graded):
    points, most = graded["right"]
    assert sum(points.values()) == most > 0


def test_a_wrong_submission_gets_the_points_of_what_is_right_in_it(graded):
    points, most = graded["wrong"]
    assert points["check_paged_bytes"] == points["check_best_block_size"] == 0
    assert 0 < sum(points.values()) < most
    right = graded["right"][0]
    assert sum(points.values()) == most - right["check_paged_bytes"] - right["check_best_block_size"]


@pytest.mark.parametrize("student", ["hard-coding", "untouched"])
def test_answers_that_were_looked_up_and_empty_ones_get_nothing(graded, student):
    assert total(graded, student) == 0


def test_it_is_the_hidden_tests_that_tell_a_table_from_a_function(course, graded):
    notebook = nbformat.read(course / "class" / "autograded" / "hard-coding" / NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            assert "hidden_test(" in cell.source
            said = "\n".join(output.traceback[0] for output in cell.outputs if output.output_type == "error")
            assert "is not right on cases that its check doesn't show" in said


def test_everybody_gets_feedback_with_the_diagnosis(course, graded):
    for student in STUDENTS:
        assert (course / "class" / "feedback" / student / NOTEBOOK).with_suffix(".html").is_file()
    page = (course / "class" / "feedback" / "wrong" / NOTEBOOK).with_suffix(".html").read_text()
    assert "paged_bytes" in page
    assert "is not right yet" in page


def test_nobodys_passes_are_found_by_the_next_or_by_the_instructor(course, graded):
    assert list(course.rglob(".pagedkv")) == []
    untouched = nbformat.read(course / "class" / "autograded" / "untouched" / NOTEBOOK, as_version=4)
    progress = untouched.cells[-1]
    assert "0 of 5" in str(progress.outputs)
