"""The acceptance test of parts on loan: from the solutions' notebooks, by the way a learner goes, into an engine.

The workbooks of chapters 02 to 05 run in kernels, each in its own, as they stand in solutions/, down to the last
check. Then a fresh process has these parts on loan and serves the bundled model with them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pagedkv_lab.course.builder.plan import plan_chapter

ROOT = Path(__file__).parents[2]
CHAPTERS = ("02_block_allocator", "03_block_table", "04_prefix_hashing", "05_prefix_cache")

SERVE = """
import json
from pagedkv_lab.course import mine, run_for_real

my = mine()
done = run_for_real(live=False)
print(json.dumps({
    "exercises": {loan.slot: loan.exercise.name for loan in my.loans if loan.exercise},
    "problems": [*my.problems, *done.mine.problems],
    "ran": done.mine.names,
    "not the package's": done.engine.parts.names_of_others,
    "same as the package": done.same_as_package,
    "same as transformers": done.same_as_transformers,
    "leaked": done.leaked,
    "books": done.books,
    "found": [output.num_cached_tokens for output in done.outputs],
    "tokens": [len(output.token_ids) for output in done.outputs],
    "prefix caching": done.engine.config.enable_prefix_caching,
    "model": done.engine.model.name,
}))
"""


def cells_down_to_the_last_check(chapter):
    """The solution's cells above its section "Run it for real"."""
    (notebook,) = (p.notebook for p in plan_chapter(ROOT, chapter) if p.path.parts[0] == "solutions")
    notebook = nbformat.from_dict(notebook)
    end = next(i for i, cell in enumerate(notebook.cells) if cell.source.lstrip().startswith("## Run it for real"))
    assert any("check(" in cell.source for cell in notebook.cells[:end])
    notebook.cells = [cell for cell in notebook.cells[:end] if cell.cell_type == "code"]
    return notebook


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_HOME", str(home))
        patch.setenv("OMP_NUM_THREADS", "1")
        for chapter in CHAPTERS:
            client = NotebookClient(
                cells_down_to_the_last_check(chapter),
                kernel_name="python3",
                timeout=240,
                resources={"metadata": {"path": str(ROOT)}},
            )
            client.execute()
        ran = subprocess.run(
            [sys.executable, "-c", SERVE], capture_output=True, text=True, check=False, env=os.environ.copy(), cwd=home
        )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_four_parts_are_the_learners(served):
    expected = {
        "hash_block": "hash_block",
        "BlockAllocator": "CachingAllocator",
        "BlockTable": "BlockTable",
        "PrefixCache": "PrefixCache",
    }
    assert served["exercises"] == expected
    assert served["problems"] == []
    assert set(served["ran"]) == set(served["not the package's"]) == set(expected)


def test_the_engine_serves_the_bundled_model_with_transformers_tokens(served):
    assert served["model"] == "SmolLM2-135M-Instruct"
    assert served["same as transformers"] is True
    assert served["same as the package"] is True
    assert min(served["tokens"]) > 4


def test_prefixes_were_shared_and_nothing_leaked(served):
    assert served["prefix caching"] is True
    assert served["found"][0] == 0
    assert min(served["found"][1:]) >= 32
    assert served["leaked"] == 0
    assert served["books"] == ""
