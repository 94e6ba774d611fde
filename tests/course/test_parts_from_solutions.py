"""The acceptance test of parts on loan: from the solutions' notebooks, by the way a learner goes, into an engine.

The workbooks of chapters 01 to 08 run in kernels, each in its own, as they stand in solutions/, down to the last
check. Then a fresh process has these parts on loan, one for every slot of the engine, and serves the bundled model with
them: once with room for all, and once in a pool that is too small, with forks and with prompts longer than a step.
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
from pagedkv_lab.course.outline import COURSE
from pagedkv_lab.course.progress import ENGINE_PARTS

ROOT = Path(__file__).parents[2]
CHAPTERS = tuple(chapter.folder for chapter in COURSE if chapter.builds)
#: Exercises whose name is not that of the slot they fill; each is the last of its slot, and the one that stays.
OTHER_NAMES = {"BlockAllocator": "CachingAllocator", "BlockTable": "ForkableTable"}

SERVE = """
import json
from pagedkv_lab import SamplingParams
from pagedkv_lab.course import mine, run_for_real

def facts(done):
    return {
        "problems": done.mine.problems,
        "ran": done.mine.names,
        "not the package's": done.engine.parts.names_of_others,
        "same as the package": done.same_as_package,
        "same as transformers": done.same_as_transformers,
        "leaked": done.leaked,
        "books": done.books,
        "found": [output.num_cached_tokens for output in done.outputs],
        "tokens": [len(one.token_ids) for output in done.outputs for one in output.outputs],
        "prompts": [len(output.prompt_token_ids) for output in done.outputs],
        "preemptions": done.engine.stats().preemptions,
        "copied blocks": done.engine.stats().copied_blocks,
        "prefix caching": done.engine.config.enable_prefix_caching,
        "step's tokens": done.engine.config.max_num_batched_tokens,
        "chunked prefill": done.engine.config.enable_chunked_prefill,
        "model": done.engine.model.name,
    }

my = mine()
roomy = run_for_real(live=False)
shared = "In a town by the sea there lived a librarian who knew every book on her shelves, and most of the people who "
tight = run_for_real(
    live=False,
    prompts=[shared + end for end in ("read them. One day", "did not. At night", "wrote them. In winter")],
    params=SamplingParams(n=2, max_tokens=24, ignore_eos=True),
    kv_cache_memory_bytes=11 * 16 * 46_080,
    max_model_len=64,
    max_num_seqs=6,
    max_num_batched_tokens=16,
    watermark=0,
)
print(json.dumps({
    "exercises": {loan.slot: loan.exercise.name for loan in my.loans if loan.exercise},
    "not loaded": my.problems,
    "roomy": facts(roomy),
    "tight": facts(tight),
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


def test_every_part_of_the_engine_is_the_learners(served):
    assert served["exercises"] == {slot: OTHER_NAMES.get(slot, slot) for slot in ENGINE_PARTS}
    assert served["not loaded"] == []
    for run in (served["roomy"], served["tight"]):
        assert run["problems"] == []
        assert set(run["ran"]) == set(run["not the package's"]) == set(ENGINE_PARTS)


@pytest.mark.parametrize("pool", ["roomy", "tight"])
def test_the_engine_serves_the_bundled_model_with_transformers_tokens(served, pool):
    run = served[pool]
    assert run["model"] == "SmolLM2-135M-Instruct"
    assert run["same as transformers"] is True
    assert run["same as the package"] is True
    assert min(run["tokens"]) > 4


@pytest.mark.parametrize("pool", ["roomy", "tight"])
def test_prefixes_were_shared_and_nothing_leaked(served, pool):
    run = served[pool]
    assert run["prefix caching"] is True
    assert run["found"][0] == 0
    assert min(run["found"][1:]) >= 16
    assert run["leaked"] == 0
    assert run["books"] == ""


def test_in_a_small_pool_there_were_forks_copies_chunks_and_preemptions(served):
    run = served["tight"]
    assert len(run["tokens"]) == 2 * len(run["prompts"])
    assert run["copied blocks"] > 0
    assert run["preemptions"] > 0
    assert run["chunked prefill"] is True
    assert min(run["prompts"]) > run["step's tokens"]
