"""Keeping a part: what is written, when nothing is, and what comes back."""

import os
import subprocess
import sys
import traceback

import pytest
from cells import Cells

from pagedkv_lab.course import CheckFailed, check
from pagedkv_lab.course import keeping as module
from pagedkv_lab.course.folder import write_whole
from pagedkv_lab.course.keeping import CannotLoad, keep, kept, load, path_of
from pagedkv_lab.course.progress import progress, remember
from pagedkv_lab.course.standalone import CannotKeep

RIGHT = "def kv_bytes_per_token(layers, heads, dim, size):\n    return int(2 * layers * heads * dim * size)"
WRONG = "def kv_bytes_per_token(layers, heads, dim, size):\n    return int(layers * heads * dim * size)"


@pytest.fixture
def cells(monkeypatch):
    return Cells(monkeypatch)


def test_a_pass_is_kept_and_said_to_be(cells, capsys):
    cells(RIGHT)
    check(kv_bytes_per_token=cells["kv_bytes_per_token"])
    assert "It is kept: `mine()` loads it in later chapters." in capsys.readouterr().out
    assert kept("kv_bytes_per_token").endswith(RIGHT + "\n")
    assert "in exercise 1.1." in kept("kv_bytes_per_token")


def test_a_kept_part_loads_in_a_fresh_process(cells):
    cells("import math\nBOTH = 2")
    cells("def product(numbers):\n    return math.prod(numbers)")
    cells("def kv_bytes_per_token(*numbers):\n    return int(BOTH * product(numbers))")
    path = keep("kv_bytes_per_token", cells["kv_bytes_per_token"])
    script = (
        "from pagedkv_lab.course.keeping import kept, load\n"
        "print(load('kv_bytes_per_token', kept('kv_bytes_per_token'))(22, 4, 64, 2))"
    )
    environment = os.environ | {"PAGEDKV_HOME": str(path.parents[1])}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout == "22528\n"


def test_the_newer_version_is_the_one_that_stays(cells):
    cells(RIGHT)
    check(kv_bytes_per_token=cells["kv_bytes_per_token"])
    cells(RIGHT.replace("int(2 *", "int(1 + 1) * int("))
    check(kv_bytes_per_token=cells["kv_bytes_per_token"])
    assert "int(1 + 1)" in kept("kv_bytes_per_token")


def test_a_failing_check_takes_nothing_away(cells):
    cells(RIGHT)
    check(kv_bytes_per_token=cells["kv_bytes_per_token"])
    before = kept("kv_bytes_per_token")
    cells(WRONG)
    with pytest.raises(CheckFailed):
        check(kv_bytes_per_token=cells["kv_bytes_per_token"])
    assert kept("kv_bytes_per_token") == before
    assert "kv_bytes_per_token" in progress().passed


def test_what_cannot_be_kept_counts_and_the_version_before_stays(cells):
    cells("import torch\ntwo = torch.tensor(2)")
    cells(RIGHT.replace("2 *", "two *"))
    said = remember("kv_bytes_per_token", cells["kv_bytes_per_token"])
    assert said.startswith(
        "It counts, but later chapters can't load it, because it uses `two` (a Tensor, which lives in"
    )
    assert "kv_bytes_per_token" in progress().passed
    assert kept("kv_bytes_per_token") is None
    cells(RIGHT)
    remember("kv_bytes_per_token", cells["kv_bytes_per_token"])
    cells(RIGHT.replace("2 *", "two *"))
    said = remember("kv_bytes_per_token", cells["kv_bytes_per_token"])
    assert said.endswith("They go on with the version that you kept before.")
    assert kept("kv_bytes_per_token").endswith(RIGHT + "\n")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("given = [lambda *n: int(2 * n[0] * n[1] * n[2] * n[3])]", "write it with `def`"),
        (
            "def make():\n    return lambda *n: int(2 * n[0] * n[1] * n[2] * n[3])\n\ngiven = [make()]",
            "write it with `def`",
        ),
        ("import functools, math\ngiven = [functools.partial(lambda *n: int(math.prod(n)), 2)]", "no source for it"),
    ],
)
def test_no_source_is_said_plainly(cells, source, why, capsys):
    cells(source)
    check(kv_bytes_per_token=cells["given"][0])
    shown = capsys.readouterr().out
    assert "passed" in shown
    assert "It counts, but later chapters can't load it" in shown
    assert why in shown


def test_a_part_that_only_works_in_its_notebook_is_not_kept(cells):
    cells("answers = {}")
    cells("def kv_bytes_per_token(*numbers):\n    return answers[numbers]")
    cells("class Anything(dict):\n    def __missing__(self, n):\n        return int(2 * n[0] * n[1] * n[2] * n[3])")
    cells.names["answers"] = cells["Anything"]()
    with pytest.raises(CannotKeep, match="without its notebook it is not right: It raised KeyError"):
        keep("kv_bytes_per_token", cells["kv_bytes_per_token"])


def test_an_exercise_that_is_no_part_is_kept_in_silence(cells, capsys):
    cells("def blocks_for(n, size):\n    return -(-n // size)")
    check(blocks_for=cells["blocks_for"])
    assert "kept" not in capsys.readouterr().out
    assert "def blocks_for" in kept("blocks_for")


def test_objects_that_raise_when_they_are_looked_at(cells):
    cells("class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError('no')\n\nodd = Odd()")
    cells(RIGHT + "\n\ndef unused():\n    return odd")
    cells(RIGHT.replace("return", "odd; return"))
    said = remember("kv_bytes_per_token", cells["kv_bytes_per_token"])
    assert said == "It is kept: `mine()` loads it in later chapters." or "RuntimeError" in said


def test_a_folder_that_cannot_be_written(cells, monkeypatch):
    cells(RIGHT)

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    said = remember("kv_bytes_per_token", cells["kv_bytes_per_token"])
    assert said == "It counts, but its source could not be kept: No space left on device."
    assert progress().passed == {"kv_bytes_per_token"}


def test_a_disk_that_fills_up_in_the_middle_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "part.py"
    write_whole(file, "old\n")

    def fills_up(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fills_up)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, "new\n")
    assert file.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["part.py"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def part(:", "is not Python: "),
        (
            "import no_such_module\n\ndef part(): ...",
            "does not load: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("1 / 0", "does not load: ZeroDivisionError"),
        ("exit()", "does not load: SystemExit"),
        ("x = 1", "does not define `part`"),
        ("\x00", "is not Python|does not load: ValueError"),
    ],
)
def test_what_does_not_load_says_why_and_leaves_nothing(source, why):
    with pytest.raises(CannotLoad, match=why):
        load("part", source)
    assert not [name for name in sys.modules if name.endswith("_part")]


def test_a_file_that_never_ends_loading(monkeypatch):
    monkeypatch.setattr(module, "LOAD_SECONDS", 0.2)
    with pytest.raises(CannotLoad, match=r"did not load within 0\.2 seconds"):
        load("part", "while True:\n    pass")


def test_a_traceback_through_a_kept_part_shows_its_lines():
    part = load("part", "def part(x):\n    return 1 / x  # mine\n")
    with pytest.raises(ZeroDivisionError) as caught:
        part(0)
    shown = "".join(traceback.format_exception(caught.value))
    assert "return 1 / x  # mine" in shown
    assert str(path_of("part")) in shown


def test_a_part_that_builds_on_a_kept_one_takes_it_along(cells):
    cells.names["Base"] = load("Base", "STEP = 2\n\nclass Base:\n    def go(self):\n        return STEP\n")
    cells("class Child(Base):\n    def go(self):\n        return super().go() + 1")
    keep("Child", cells["Child"])
    assert "class Base" in kept("Child")
    sys.modules.pop("pagedkv_kept_Base")
    assert load("Child", kept("Child"))().go() == 3
