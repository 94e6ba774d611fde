"""Parts on loan in real kernels: passed in one notebook, a restart, loaded in another."""

import multiprocessing
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from right_parts import ALLOCATOR, CACHE, HASH, TABLE

from pagedkv_lab.course.keeping import CannotLoad, kept, load
from pagedkv_lab.course.standalone import KEPT_PREFIX

#: The allocator's imports, a helper and a constant are in other cells, as a learner may have them.
FIRST = {
    "nothing is there": "from pagedkv_lab.course import check, mine, progress, run_for_real\nmine()",
    "imports": (
        "import numpy as np\nfrom collections import OrderedDict\n"
        "from pagedkv_lab.errors import DoubleFree, OutOfBlocks"
    ),
    "constant": "NOBODY = 0",
    "helper": "def zeros(count):\n    return np.full(count, NOBODY).tolist()",
    "base": ALLOCATOR.format(name="Counting").split("\n\n", 1)[1].replace("[0] * num_blocks", "zeros(num_blocks)"),
    "allocator": "class BlockAllocator(Counting):\n    '''Mine.'''",
    "check": "check(BlockAllocator=BlockAllocator)",
    "again": "check(BlockAllocator=BlockAllocator)",
    "timed": "%%time" + CACHE,
    "check of it": "check(PrefixCache=PrefixCache)",
    "broken later": "class BlockAllocator(Counting):\n    def allocate(self):\n        return 0",
    "check fails": "check(BlockAllocator=BlockAllocator)",
    "mine": "mine(BlockAllocator=BlockAllocator)",
}
SECOND = {
    "missing": "import pagedkv_lab.course\nBlockAllocator(4, 16)",
    "missing mine": "mine()",
    "mine": "from pagedkv_lab.course import mine, progress, run_for_real\nmy = mine()\nmy",
    "twice": "mine().parts == my.parts",
    "it works": "allocator = my.parts.BlockAllocator(4, 16)\nallocator.allocate(), allocator.num_free",
    "progress": "progress()",
    "a part of this notebook": TABLE,
    "run": (
        "from pagedkv_lab import load_model\ntoy = load_model('toy')\nprefix = list(range(1, 33))\n"
        "run_for_real(BlockTable=BlockTable, model=toy, prompts=[[*prefix, 40], [*prefix, 41]], max_model_len=64)"
    ),
    "run again": (
        "run_for_real(BlockTable=BlockTable, model=toy, prompts=[[*prefix, 40], [*prefix, 41]], max_model_len=64)"
    ),
    "stub": "run_for_real(BlockTable=lambda allocator: None, model=toy)",
    "breaks in the run": (
        "class Breaks(BlockTable):\n    def append_block(self):\n        if self.allocator.block_size == 5:\n"
        "            return [].pop()\n        return super().append_block()\n\n"
        "run_for_real(BlockTable=Breaks, model=toy, prompts=[[1, 2]], max_model_len=64, block_size=5)"
    ),
    "engine still runs": "run_for_real(BlockTable=BlockTable, model=toy, prompts=[[1, 2]], max_model_len=64).passed",
}


def execute(cells, folder, home):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_HOME", str(home))
        patch.setenv("OMP_NUM_THREADS", "1")
        NotebookClient(
            notebook, allow_errors=True, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    return {name: cell.outputs for name, cell in zip(cells, notebook.cells, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("course")


@pytest.fixture(scope="module")
def first(folder):
    return execute(FIRST, folder / "exercises" / "02_block_allocator", folder / "home")


@pytest.fixture(scope="module")
def second(folder, first):
    return execute(SECOND, folder / "exercises" / "03_block_table", folder / "home")


def text(outputs):
    return "\n".join(
        "\n".join(output.traceback)
        if output.output_type == "error"
        else output.get("text", "") or output.data["text/plain"]
        for output in outputs
    )


def test_before_anything_passed_all_parts_are_the_packages(first):
    assert "0 of 8 parts of this engine are yours." in text(first["nothing is there"])


@pytest.mark.parametrize("cell", ["check", "again", "check of it"])
def test_a_pass_says_that_the_part_is_kept(first, cell):
    assert "It is kept: `mine()` loads it in later chapters." in text(first[cell])


def test_what_was_kept_has_what_other_cells_define(first, folder):
    source = (folder / "home" / "parts" / "BlockAllocator.py").read_text()
    for line in ("import numpy as np", "NOBODY = 0", "def zeros(count):", "class Counting:", "'''Mine.'''"):
        assert line in source
    assert "check" not in source.partition("\n\n")[2]


def test_a_version_that_fails_later_falls_back_to_the_kept_one(first):
    assert "CheckFailed" in text(first["check fails"])
    shown = text(first["mine"])
    assert "`BlockAllocator` of this notebook is not right" in shown
    assert "In its place: the BlockAllocator that you kept." in shown


def test_a_missing_name_in_another_notebook_says_that_it_is_kept(second):
    assert "`BlockAllocator = mine().parts.BlockAllocator` loads it" in text(second["missing"])
    assert "`from pagedkv_lab.course import mine`" in text(second["missing mine"])


def test_another_notebook_has_the_parts(second):
    shown = text(second["mine"])
    assert "2 of 8 parts of this engine are yours." in shown
    assert shown.count(", kept") == 2
    assert "<div" in second["mine"][-1].data["text/html"]
    assert text(second["twice"]) == "True"
    assert text(second["it works"]) == "(0, 3)"
    assert "where mine() loads them: BlockAllocator, PrefixCache." in text(second["progress"])


def test_the_engine_runs_on_kept_and_new_parts_with_the_pool_in_sight(second):
    pool, card = second["run"][0], second["run"][-1]
    assert "image/svg+xml" in pool.data
    shown = card.data["text/plain"]
    assert "ran on BlockAllocator, BlockTable and PrefixCache: 2 requests, 24 tokens." in shown
    assert shown.count("the same tokens") == 2
    assert "none leaked" in shown
    assert second["run again"][-1].data["text/plain"] == shown


def test_what_breaks_is_one_line(second):
    assert text(second["stub"]).startswith("CheckFailed: This cell needs `BlockTable`, which is still the stub.")
    breaks = second["breaks in the run"][-1]
    assert breaks.ename == "PartError"
    (line,) = breaks.traceback
    assert line.startswith("PartError: Your BlockTable broke in append_block(): IndexError: pop from empty list")
    assert text(second["engine still runs"]).endswith("True")


# Two notebooks at the same time

VERSION = "def hash_block(parent, token_ids, extra=()):\n    return (parent, tuple(token_ids), tuple(extra), {n})[:3]\n"


def _keep_many(folder, number):
    sys.path.insert(0, str(Path(__file__).parent))
    from pagedkv_lab.course.folder import write_whole

    for n in range(number, 400, 2):
        write_whole(folder / "parts" / "hash_block.py", VERSION.format(n=n) * 200)


def test_who_reads_while_others_write_gets_a_whole_version(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_keep_many, args=(tmp_path, number)) for number in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        if (source := kept("hash_block")) is not None:
            assert source.count("def ") == 200
            seen += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen
    assert len(list((tmp_path / "parts").iterdir())) == 1


def test_modules_of_kept_parts_are_not_left_behind_by_a_failure():
    with pytest.raises(CannotLoad):
        load("hash_block", HASH + "\n1 / 0\n")
    assert KEPT_PREFIX + "hash_block" not in sys.modules
