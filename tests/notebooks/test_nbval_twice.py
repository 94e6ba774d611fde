"""`make notebooks` runs every cell twice, and says which run went wrong."""

import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    """run(*cells): nbval with the plugin over one notebook of these cells."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return partial(run_nbval, pytester)


def run_nbval(pytester, *cells):
    notebook = new_notebook(cells=list(cells))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, pytester.path / "some.ipynb")
    return pytester.run(
        sys.executable, "-m", "pytest", "-p", "nbval_twice", "--nbval-lax", "-p", "no:cacheprovider", "-v", "."
    )


def test_a_notebook_that_bears_a_second_run_passes_in_both(run):
    ran = run(new_code_cell("x = 1"), new_markdown_cell("text"), new_code_cell("x += 1"))
    ran.assert_outcomes(passed=4)
    names = [line.split("::")[-1].split(" PASSED")[0] for line in ran.outlines if " PASSED" in line]
    assert names == ["Cell 0", "Cell 1", "Cell 0, again", "Cell 1, again"]


def test_a_cell_that_breaks_on_what_the_first_run_left_fails_in_the_second(run):
    ran = run(new_code_cell("y = locals().get('x', 0)\nassert y == 0"), new_code_cell("x = 1"))
    ran.assert_outcomes(passed=3, failed=1)
    ran.stdout.fnmatch_lines(["*Cell 0, again FAILED*"])


def test_outputs_are_compared_in_the_first_run_only(run):
    def counting(said):
        cell = new_code_cell("count = globals().get('count', 0) + 1\nprint(count)")
        cell.metadata["tags"] = ["nbval-check-output"]
        cell.execution_count = 1
        cell.outputs = [new_output("stream", text=f"{said}\n")]
        return cell

    run(counting(1)).assert_outcomes(passed=2)
    run(counting(7)).assert_outcomes(passed=1, failed=1)
