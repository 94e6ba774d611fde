"""A build makes of two sources three notebooks, the same ones each time, or says in one line why it can't."""

import base64
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from tiny_course import CHAPTER, LESSON, WORKBOOK, write_course

from pagedkv_lab.course.builder import console
from pagedkv_lab.course.builder.build import build_chapter
from pagedkv_lab.course.builder.plan import METADATA, added_only, plan_chapter
from pagedkv_lab.course.builder.source import SourceError
from pagedkv_lab.errors import PagedKVError

PATHS = ("notebooks/00_tiny.ipynb", "solutions/00_tiny/00_tiny.ipynb", "exercises/00_tiny/00_tiny.ipynb")


def read(root, path):
    notebook = nbformat.read(root / path, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return notebook


def cell(notebook, cell_id):
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


# What comes out


def test_two_builds_in_two_places_are_the_same_byte_for_byte(built_once, course):
    build_chapter(course, CHAPTER)
    for path in PATHS:
        assert (course / path).read_bytes() == (built_once / path).read_bytes(), path


def test_the_comparison_covers_a_figure(built_once):
    pictures = [o.data["image/png"] for o in outputs(read(built_once, PATHS[0])) if "image/png" in o.get("data", {})]
    assert len(pictures) == 1
    png = base64.b64decode(pictures[0])
    assert png.startswith(b"\x89PNG")
    assert b"atplotlib" not in png  # its version would change the file when nothing else does


def test_cells_ran_once_each_in_order(built_once):
    for path in PATHS[:2]:
        counts = [cell.execution_count for cell in code_cells(read(built_once, path))]
        assert counts == list(range(1, len(counts) + 1))


def test_a_failure_that_was_announced_is_kept(built_once):
    errors = [output for output in outputs(read(built_once, PATHS[0])) if output.output_type == "error"]
    assert [error.ename for error in errors] == ["ZeroDivisionError"]


def test_outputs_say_nothing_of_this_machine_and_this_run(built_once):
    noisy = cell(read(built_once, PATHS[0]), "noisy")
    shown = {output.get("name", "result"): output for output in noisy.outputs}
    assert shown["stderr"].text.startswith("<cell>:10: UserWarning: careful")
    assert "it/s" not in shown["stderr"].text
    assert shown["stdout"].text.split()[:2] == ["pagedkv-lab/notebooks", ".pagedkv"]
    assert shown["result"].data["text/plain"] == "<object at 0x...>"


def test_live_widgets_leave_their_text_only(built_once):
    notebook = read(built_once, PATHS[0])
    texts = [o.data.get("text/plain") for o in cell(notebook, "bars").outputs if "text/html" not in o.data]
    assert texts == ["IntSlider(value=3)"]
    assert notebook.metadata == METADATA
    assert "widget-view" not in (built_once / PATHS[0]).read_text()


def test_an_exercise_has_the_stub_and_no_answer_and_no_hidden_test(built_once):
    exercise = read(built_once, PATHS[2])
    assert cell(exercise, "double").source == 'def double(x):\n    """Twice x."""\n    # Return twice x (1 line).'
    assert cell(exercise, "double_test").source == "print(double(2))"
    assert [(cell.outputs, cell.execution_count) for cell in code_cells(exercise)] == [([], None)] * 3


def test_a_solution_keeps_its_markers_and_metadata_for_nbgrader(built_once):
    double = cell(read(built_once, PATHS[1]), "double")
    assert "### BEGIN SOLUTION" in double.source
    assert double.metadata.nbgrader == {
        "grade_id": "double", "grade": False, "solution": True, "locked": False, "schema_version": 3
    }  # fmt: skip


def test_the_files_are_the_plain_json_that_a_diff_reads_well(built_once):
    for path in PATHS:
        text = (built_once / path).read_text(encoding="utf-8")
        assert text == json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_a_build_has_no_part_in_the_progress_of_who_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path / "progress"))
    cell = 'import os, pathlib\nhome = pathlib.Path(os.environ["PAGEDKV_HOME"])\nhome.mkdir()\n(home / "x").touch()'
    root = write_course(tmp_path, lesson=f"# %% [markdown]\n# # T\n\n# %%\n{cell}\n")
    build_chapter(root, CHAPTER)
    build_chapter(root, CHAPTER)  # mkdir() would fail if the first build had left its folder
    assert not (tmp_path / "progress").exists()


def test_hashes_and_the_hub_are_the_same_for_everyone_who_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    cell = "import os\nprint(os.environ['HF_HUB_OFFLINE'], hash('a'))"
    root = write_course(tmp_path, lesson=f"# %% [markdown]\n# # T\n\n# %%\n{cell}\n")
    build_chapter(root, CHAPTER)
    hash_of_a = subprocess.check_output(
        [sys.executable, "-c", "print(hash('a'))"], env=os.environ | {"PYTHONHASHSEED": "0"}, text=True
    )
    assert outputs(read(root, PATHS[0]))[0].text == f"1 {hash_of_a}"


# What can't be built


def fail(root, lesson=LESSON, workbook=WORKBOOK):
    write_course(root, lesson, workbook)
    with pytest.raises(SourceError) as caught:
        build_chapter(root, CHAPTER)
    return str(caught.value)


def test_a_failing_cell_is_named_with_its_file_its_line_and_the_error(tmp_path):
    message = fail(tmp_path, lesson='# %% [markdown]\n# # T\n\n# %%\nx = 1\n\n# %% id="bad"\n\nx / 0\n')
    assert message == (
        "course/00_tiny/lesson.py, cell 3 (bad), line 9: in notebooks/00_tiny.ipynb: "
        "ZeroDivisionError: division by zero"
    )


def test_a_cell_that_kills_the_kernel_is_named(tmp_path):
    message = fail(tmp_path, lesson='# %% [markdown]\n# # T\n\n# %% id="bad"\nimport os\nos._exit(1)\n')
    assert "cell 2 (bad), line 5" in message
    assert "the kernel died" in message


def test_a_cell_that_never_ends_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("pagedkv_lab.course.builder.execute.CELL_TIMEOUT_S", 1)
    message = fail(tmp_path, lesson='# %% [markdown]\n# # T\n\n# %% id="bad"\nimport time\ntime.sleep(60)\n')
    assert "cell 2 (bad), line 5" in message
    assert "more than 1 s" in message


def test_a_solution_that_fails_leaves_all_of_the_chapters_notebooks_as_they_were(built):
    before = [(built / path).read_bytes() for path in PATHS]
    fail(built, lesson=LESSON.replace("two", "three"), workbook=WORKBOOK.replace("== 8", "== 9"))
    assert [(built / path).read_bytes() for path in PATHS] == before
    assert [name for _, _, names in os.walk(built) for name in names if name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ("    # Return twice x (1 line).\n", ""),
            r"workbook.py, cell 2 \(double\), line 7: this solution has no stub",
        ),
        (("    ### END SOLUTION\n", ""), "line 7: '### BEGIN SOLUTION' without"),
        (('"solution": true', '"solution": false'), "whose header lacks nbgrader=.*solution"),
        (('"grade": true', '"grade": false'), "hidden test in a cell whose header lacks"),
        (("### BEGIN SOLUTION\n    # Return twice x (1 line).\n", "pass\n"), "without a '### BEGIN SOLUTION'"),
        (('"grade_id": "double_test", ', ""), r"cell 3 .*: nbgrader needs a grade_id"),
        (("# # Tiny exercises", "# # T\n#\n# ### BEGIN SOLUTION"), "in text: regions are cut from code cells only"),
        (('"""Twice x."""', "# no docstring"), "without its solution this cell is not valid Python"),
    ],
)
def test_a_workbook_that_makes_no_exercise_is_refused_before_anything_runs(course, change, complaint):
    write_course(course, workbook=WORKBOOK.replace(*change))
    with pytest.raises(SourceError, match=complaint):
        plan_chapter(course, CHAPTER)


def test_a_solution_cell_without_a_region_is_refused_because_nbgrader_wipes_it(course):
    workbook = re.sub(r"    ### .*\n", "", WORKBOOK)
    write_course(course, workbook=workbook)
    with pytest.raises(SourceError, match="nbgrader wipes a solution cell"):
        plan_chapter(course, CHAPTER)


def test_a_lesson_hides_nothing(course):
    write_course(course, lesson=LESSON + "\n# %%\n### BEGIN SOLUTION\n# stub\n### END SOLUTION\n")
    with pytest.raises(SourceError, match="a lesson has no solutions to hide"):
        plan_chapter(course, CHAPTER)


def test_a_chapter_without_sources_is_refused(tmp_path):
    (tmp_path / "course" / "01_empty").mkdir(parents=True)
    with pytest.raises(SourceError, match=r"neither a lesson\.py nor a workbook\.py"):
        plan_chapter(tmp_path, "01_empty")


# A solution only adds lines


def solution_and_exercise(root):
    _, solution, exercise = plan_chapter(root, CHAPTER)
    return solution.notebook, exercise.notebook


def test_a_solution_made_from_a_workbook_only_adds_lines(course):
    solution, exercise = solution_and_exercise(course)
    assert added_only(exercise, solution) == []


def test_a_solution_that_rewrites_a_line_of_its_stub_is_caught(course):
    solution, exercise = solution_and_exercise(course)
    cell(solution, "double").source = cell(solution, "double").source.replace("def double(x)", "def double(number)")
    assert added_only(exercise, solution) == [
        "cell 'double': the solution does not keep this line of its stub: 'def double(x):'"
    ]


@pytest.mark.parametrize("change", [lambda cells: cells.pop(), lambda cells: cells.reverse()])
def test_a_solution_with_other_cells_is_caught(course, change):
    solution, exercise = solution_and_exercise(course)
    change(solution.cells)
    assert added_only(exercise, solution) == [
        "the exercise and the solution don't have the same cells in the same order."
    ]


def test_a_workbook_whose_solution_would_rewrite_its_stub_is_refused(course, monkeypatch):
    # Cutting lines can't do that, as long as it only cuts: here it doesn't.
    monkeypatch.setattr("pagedkv_lab.course.builder.plan.exercise_of", lambda source: source.replace("x", "y"))
    with pytest.raises(SourceError, match=r"workbook\.py: cell 'double': the solution does not keep this line"):
        plan_chapter(course, CHAPTER)


# The command


def test_building_reports_each_notebook(course, capsys):
    write_course(course, lesson="# %% [markdown]\n# # T\n\n# %%\nx = 1\n")
    assert console.build(["0"], course / "course") == 0
    built = [*PATHS, "notebooks/glossary.ipynb"]
    assert capsys.readouterr().out.split() == [word for path in built for word in ("built", path)]


@pytest.mark.parametrize("names", [["01_nope"], ["7"], ["tiny"], ["00_tiny", "x"]])
def test_a_chapter_that_does_not_exist_is_named(course, names):
    with pytest.raises(PagedKVError, match=f"no chapter '{names[-1]}' in course/; there is 00_tiny"):
        console.build(names, course)


def test_outside_of_a_course_the_command_says_so(tmp_path):
    with pytest.raises(PagedKVError, match=r"no course/ folder in .* run this inside the course's repository"):
        console.build([], tmp_path)


def test_a_mistake_in_the_last_chapter_shows_before_the_first_one_is_executed(course):
    (course / "course" / "01_broken").mkdir()
    with pytest.raises(SourceError, match="01_broken"):
        console.build([], course)
    assert not (course / "notebooks").exists()
