"""A folder to hand out has all that a learner needs and nothing that a learner should not see."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from small_course import CHAPTER, EXERCISE, write_course

from pagedkv_lab.course.builder.plan import all_chapters, plan_chapter
from pagedkv_lab.course.builder.regions import HIDDEN_TESTS, SOLUTION, exercise_of
from pagedkv_lab.course.classroom.release import release
from pagedkv_lab.errors import PagedKVError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def handout(tmp_path_factory) -> Path:
    """The course itself, all of it, handed out."""
    folder = tmp_path_factory.mktemp("release") / "handout"
    release(folder, [], ROOT)
    return folder


def notebooks(folder: Path):
    return {path: nbformat.read(path, as_version=4) for path in sorted(folder.rglob("*.ipynb"))}


def solution_lines() -> set[str]:
    """Every line that a solution adds to its stub, and that no stub nor lesson has as well."""
    added, public = set(), set()
    for chapter in all_chapters(ROOT):
        for planned in plan_chapter(ROOT, chapter):
            for cell in planned.notebook.cells:
                lines = {line.strip() for line in cell.source.splitlines()}
                if planned.path.parts[0] != "solutions":
                    public |= lines
                elif cell.cell_type == "code" and SOLUTION[0] in cell.source:
                    added |= lines - {line.strip() for line in exercise_of(cell.source).splitlines()}
    return {line for line in added - public if len(line) > 8}


def test_every_chapter_has_its_lesson_and_its_workbook(handout):
    found = {path.relative_to(handout).as_posix() for path in notebooks(handout)}
    planned = {str(one.path) for chapter in all_chapters(ROOT) for one in plan_chapter(ROOT, chapter)}
    assert found == {path for path in planned if not path.startswith("solutions")} | {"notebooks/glossary.ipynb"}


def test_no_notebook_has_a_line_of_a_solution(handout):
    lines = solution_lines()
    assert len(lines) > 5
    for path, notebook in notebooks(handout).items():
        text = {line.strip() for cell in notebook.cells for line in cell.source.splitlines()}
        assert text & lines == set(), path.name


def test_no_notebook_has_an_output(handout):
    for path, notebook in notebooks(handout).items():
        for cell in notebook.cells:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


def test_nowhere_is_a_solution_a_test_or_a_mark_of_one(handout):
    for name in ("solutions", "course", "tests", "benchmarks", "nbgrader_config.py", ".git"):
        assert not (handout / name).exists(), name
    marks = [mark.removeprefix("### ") for mark in (*SOLUTION, *HIDDEN_TESTS)]
    for path in handout.rglob("*"):
        # The builder and the templates talk about the marks; they hold no solution of this course.
        if path.is_file() and path.parent.name not in ("builder", "classroom") and path.suffix != ".png":
            text = path.read_text(encoding="utf-8")
            assert not any(mark in text for mark in marks), path
    grading = {path.name for path in (handout / "pagedkv_lab" / "course" / "classroom").iterdir()}
    assert not {"grading.py", "hidden.py"} & grading


def test_what_sets_the_course_up_is_there(handout):
    makefile = (handout / "Makefile").read_text()
    for name in re.findall(r"scripts/(?:lab|unpack_model)\.\w+", makefile):
        assert (handout / name).is_file()
    project = (handout / "pyproject.toml").read_text()
    for name in (*re.findall(r'^readme = "(.+)"', project, re.MULTILINE), "LICENSE", "constraints.txt"):
        assert (handout / name).is_file()
    readme = (handout / "README.md").read_text()
    assert "make lab" in readme
    for target in re.findall(r"\]\(([^)]+)\)", readme):
        assert (handout / target).is_file(), target


def test_the_package_in_it_runs(handout):
    code = (
        "import pagedkv_lab, pagedkv_lab.cli as cli\n"
        "from pagedkv_lab.course.checks import examine\n"
        "print(pagedkv_lab.__file__)\n"
        "print(examine('blocks_for', lambda n, size: -(-n // size)).passed)\n"
        "raise SystemExit(cli.main(['course', 'update', '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=handout, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == [str(handout / "pagedkv_lab" / "__init__.py"), "True"]


def test_its_list_of_files_is_complete(handout):
    listed = set(json.loads((handout / "handout.json").read_text())["files"])
    found = {path.relative_to(handout).as_posix() for path in handout.rglob("*") if path.is_file()}
    assert {path for path in found if "__pycache__" not in path} - listed == {"handout.json"}


@pytest.fixture
def course(tmp_path):
    return write_course(tmp_path / "course-repository")


def test_hidden_tests_are_cut_and_caches_left_behind(course, tmp_path):
    said = release(tmp_path / "out", ["0"], course)
    assert str(tmp_path / "out") in said[0]
    text = (tmp_path / "out" / EXERCISE).read_text()
    assert "double(4)" not in text
    assert "# solved" not in text
    assert "Return twice x" in text
    assert not (tmp_path / "out" / "pagedkv_lab" / "__pycache__").exists()


def test_an_empty_folder_is_filled_and_folders_above_are_made(course, tmp_path):
    (tmp_path / "empty").mkdir()
    release(tmp_path / "empty", [], course)
    release(tmp_path / "a" / "b", [CHAPTER], course)
    assert (tmp_path / "empty" / EXERCISE).read_bytes() == (tmp_path / "a" / "b" / EXERCISE).read_bytes()


def test_a_folder_with_something_in_it_is_refused_and_left_alone(course, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "thesis.txt").write_text("important")
    with pytest.raises(PagedKVError, match="is not empty, and nothing in it was touched"):
        release(folder, [], course)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(course, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PagedKVError, match="is a file"):
        release(tmp_path / "file", [], course)


def test_where_a_source_is_broken_nothing_is_written(course, tmp_path):
    (course / "course" / CHAPTER / "workbook.py").write_text("# %%\nno title\n")
    with pytest.raises(PagedKVError):
        release(tmp_path / "out", [], course)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["course-repository"]
