"""In a kernel: cards, one line in the place of a traceback, missing names explained, sources kept."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "missing check": "check(blocks_for=blocks_for)",
    "import": "from pagedkv_lab.course import check, progress, require",
    "missing exercise": "check(blocks_for=blocks_for)",
    "missing name": "engine.step()",
    "learner's own missing name": "def f():\n    return no_such_name\n\nf()",
    "unknown exercise": "check(blocks_fro=3)",
    "stub": 'def blocks_for(num_tokens, block_size):\n    """Blocks."""\n\ncheck(blocks_for=blocks_for)',
    "raises": "def blocks_for(a, b):\n    return a / 0\n\ncheck(blocks_for=blocks_for)",
    "require": "require(blocks_for=blocks_for)",
    "endless": "def blocks_for(a, b):\n    while True:\n        pass\n\ncheck(blocks_for=blocks_for)",
    "right": "def blocks_for(a, b):\n    return -(-a // b)\n\n" + "check(blocks_for=blocks_for)\n" * 2,
    "progress": "progress()",
    "kept": "from pagedkv_lab.course.progress import kept\nprint(kept('blocks_for'))",
    "part error in a cell": (
        "from pagedkv_lab.blocks.guards import call_part\n\n"
        "def allocate():\n    return [].pop()\n\ncall_part('BlockAllocator', 'allocate', allocate)"
    ),
    "part error": "from pagedkv_lab.errors import PartError\nraise PartError('Scheduler', 'step()', 'it returned 0')",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "exercises").mkdir()
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook, allow_errors=True, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGEDKV_HOME", raising=False)
        client.execute()
    assert (folder / ".pagedkv" / "progress.json").exists()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def error_of(outputs):
    assert outputs[-1].output_type == "error"
    return "\n".join(outputs[-1].traceback)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("stub", "CheckFailed: `blocks_for` returned None. It's still the stub:"),
        ("raises", "CheckFailed: `blocks_for` is not right yet. It raised ZeroDivisionError: division by zero."),
        ("endless", "CheckFailed: `blocks_for` is not right yet. It did not come back within 2 seconds."),
        ("require", "CheckFailed: This cell needs `blocks_for`, which is not right yet."),
        ("unknown exercise", "UnknownExercise: There is no exercise called blocks_fro. Did you mean blocks_for?"),
        ("missing exercise", "`blocks_for` does not exist yet in this notebook: the cell of exercise 0.1 defines it."),
        (
            "missing name",
            "`engine` does not exist yet in this notebook. If a cell above defines it, run that one first.",
        ),
        (
            "part error in a cell",
            "PartError: Your BlockAllocator broke in allocate(): IndexError: pop from empty list "
            "(in your code, line 4: return [].pop())",
        ),
        ("part error", "PartError: Your Scheduler broke in step(): it returned 0"),
    ],
)
def test_a_failure_is_one_line_without_a_traceback(outputs, cell, message):
    text = error_of(outputs[cell])
    assert text.startswith(message)
    assert "\n" not in text


@pytest.mark.parametrize("cell", ["missing check", "learner's own missing name"])
def test_other_missing_names_keep_their_traceback(outputs, cell):
    assert "Traceback" in error_of(outputs[cell])


@pytest.mark.parametrize("cell", ["stub", "raises", "endless", "right"])
def test_a_check_shows_a_card_with_html_and_text(outputs, cell):
    card = outputs[cell][0]
    assert card.output_type == "display_data"
    assert "blocks_for" in card.data["text/html"]
    assert card.data["text/plain"][0] in "✓✗○"


def test_a_pass_is_no_error_and_can_be_had_twice(outputs):
    assert [output.output_type for output in outputs["right"]] == ["display_data", "display_data"]


def test_progress_shows_itself(outputs):
    assert "1 of 1" in outputs["progress"][0].data["text/plain"]
    assert "<table" in outputs["progress"][0].data["text/html"]


def test_the_source_of_a_notebook_cell_is_kept(outputs):
    assert outputs["kept"][0].text.endswith("\n\ndef blocks_for(a, b):\n    return -(-a // b)\n\n")
