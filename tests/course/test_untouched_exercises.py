"""The exercises as a learner gets them, run from top to bottom without a line written."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pagedkv_lab.course.builder.plan import all_chapters, plan_chapter
from pagedkv_lab.course.checks.registry import chapters

ROOT = Path(__file__).parents[2]
WITH_WORKBOOK = [name for name in all_chapters(ROOT) if (ROOT / "course" / name / "workbook.py").exists()]


def workbook(chapter, kind):
    return next(planned.notebook for planned in plan_chapter(ROOT, chapter) if planned.path.parts[0] == kind)


@pytest.fixture(scope="module", params=WITH_WORKBOOK)
def untouched(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_HOME", str(home))
        notebook = nbformat.from_dict(workbook(request.param, "exercises"))
        NotebookClient(notebook, allow_errors=True, kernel_name="python3", timeout=120).execute()
    assert not (home / "progress.json").exists()
    return notebook


def test_every_check_says_that_its_exercise_is_not_written(untouched):
    checks = [cell for cell in untouched.cells if cell.get("metadata", {}).get("nbgrader", {}).get("grade")]
    assert checks
    for cell in checks:
        name = re.search(r"check\((\w+)=", cell.source)[1]
        error = cell.outputs[-1]
        assert error.output_type == "error", cell.source
        assert error.ename == "CheckFailed"
        assert error.traceback[0].startswith("CheckFailed: "), error.traceback
        assert "It's still the stub" in error.traceback[0], f"{name}: {error.traceback[0]}"


def test_nothing_else_fails_with_a_riddle(untouched):
    errors = [output for cell in untouched.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    for error in errors:
        assert error.ename == "CheckFailed", error.traceback
        assert len(error.traceback) == 1
    assert any("Finish exercise" in error.traceback[0] for error in errors)  # Run it for real


@pytest.mark.parametrize("chapter", WITH_WORKBOOK)
def test_every_exercise_of_the_chapter_has_a_stub_a_check_and_three_hints(chapter):
    listed = next(c for c in chapters() if c.folder == chapter).exercises
    cells = workbook(chapter, "exercises").cells
    ids = [cell.id for cell in cells]
    for exercise in listed:
        stub, check = ids.index(exercise.name), ids.index(f"check_{exercise.name}")
        assert check > stub
        assert cells[check].metadata.nbgrader.points > 0
        headings = [cell.source for cell in cells[:stub] if re.search(r"^## ", cell.source, re.MULTILINE)]
        heading, hints = headings[-1], cells[check + 1].source
        assert re.search(rf"^## \w+ {re.escape(exercise.number)}: ", heading, re.MULTILINE)
        assert re.search(r"^Difficulty [●○]{5} · Importance [●○]{5} · about \d+ min · \d", heading, re.MULTILINE)
        assert hints.count("<details>") == hints.count("</details>") == 3
