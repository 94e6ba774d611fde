"""The package is built in floors: a module imports from the floors below its own, never from above or beside.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING, or as a name in a call
(`import_module("pagedkv_lab.engine")`).
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pagedkv_lab"

#: The floor of each folder or module at the top of the package: the design's table, and what it doesn't name.
FLOORS = {
    "errors": 0,  # nothing but text
    "sizing": 1,
    "bundled": 1,  # where the bundled model's files lie: knows paths, and neither tensors nor blocks
    "blocks": 2,
    "kv": 3,
    "attention": 3,
    "engine": 4,
    "measure": 5,
    "beyond": 5,
    "show": 6,
    "course": 7,
    "cli": 8,
    "__main__": 9,
}


def violations(package: Path) -> list[str]:
    """Every import that goes up or sideways, every import of the facade, and every folder without a floor."""
    found = []
    for unit in sorted(child for child in package.iterdir() if is_code(child)):
        # The facade shows what all floors offer; it imports them when asked, and is asked from outside only.
        if unit.name == "__init__.py":
            continue
        if unit.stem not in FLOORS:
            found.append(f"{package.name}/{unit.name} has no floor: give it one in FLOORS of {Path(__file__).name}")
            continue
        for file in [unit] if unit.is_file() else sorted(unit.rglob("*.py")):
            for line, target in imports(file, package):
                if problem := judge(unit.stem, target):
                    found.append(f"{file.relative_to(package.parent).as_posix()}:{line} {problem}")
    return found


def is_code(path: Path) -> bool:
    return path.suffix == ".py" if path.is_file() else any(path.rglob("*.py"))


def judge(unit: str, target: str) -> str | None:
    """What is wrong with an import of `target` ("" is the facade) from `unit`, if anything."""
    if target == unit:
        return None
    if target == "":
        return f"imports the package itself, which reaches every floor: name the module that {unit} needs"
    if target not in FLOORS:
        return f"imports {target}, which is not in the package"
    if FLOORS[target] >= FLOORS[unit]:
        floors = f"{target} (floor {FLOORS[target]}) from {unit} (floor {FLOORS[unit]})"
        return f"imports {floors}: imports go down only"
    return None


def imports(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, folder or module at the top of the package) for each import from it; "" for the facade."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        for name in names_imported(node, file, package):
            first, _, rest = name.partition(".")
            if first == package.name:
                yield node.lineno, rest.partition(".")[0]


def names_imported(node: ast.AST, file: Path, package: Path) -> list[str]:
    """Full dotted names that this statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = file.relative_to(package.parent).parent.parts
            base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
        if base != package.name:
            return [base]
        # `from pagedkv_lab import blocks` names a module, `from pagedkv_lab import Engine` asks the facade.
        names = [alias.name for alias in node.names if alias.name != "__version__"]
        modules = {child.stem for child in package.iterdir()}
        return [f"{base}.{name}" if name in modules else base for name in names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = node.args[0].value
        return [name] if isinstance(name, str) and re.fullmatch(rf"{package.name}(\.\w+)+", name) else []
    return []


def test_imports_run_down_the_floors_only():
    assert violations(PACKAGE) == []


def test_every_floor_that_stands_is_looked_at():
    """The test above must not pass because it found nothing to read."""
    seen = {target for file in (PACKAGE / "blocks").glob("*.py") for _, target in imports(file, PACKAGE)}
    assert {"errors", "sizing", "blocks"} <= seen


# The check itself, on packages with one thing wrong


@pytest.fixture
def package(tmp_path):
    """A package named like ours, from {path: source}."""

    def build(files: dict[str, str]) -> Path:
        for path, source in files.items():
            file = tmp_path / "pagedkv_lab" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        return tmp_path / "pagedkv_lab"

    return build


GOING_UP = {
    "absolute": "import pagedkv_lab.engine.engine",
    "under another name": "import pagedkv_lab.engine as e",
    "from": "from pagedkv_lab.engine.engine import Engine",
    "from the package": "from pagedkv_lab import engine",
    "relative": "from ..engine import engine",
    "relative, folder only": "from .. import engine",
    "in a function": "def f():\n    from pagedkv_lab.engine import Engine",
    "for type checkers": "if TYPE_CHECKING:\n    from pagedkv_lab.engine import Engine",
    "in a try": "try:\n    import pagedkv_lab.engine\nexcept ImportError:\n    pass",
    "by importlib": "import importlib\nimportlib.import_module('pagedkv_lab.engine')",
    "by __import__": "__import__('pagedkv_lab.engine.engine')",
    "by a helper of its own": "_import('pagedkv_lab.engine')",
}


@pytest.mark.parametrize("way", GOING_UP)
def test_an_import_that_goes_up_is_found_however_it_is_written(package, way):
    (problem,) = violations(package({"blocks/manager.py": GOING_UP[way], "engine/engine.py": ""}))
    assert problem.startswith("pagedkv_lab/blocks/manager.py:")
    assert problem.endswith("imports engine (floor 4) from blocks (floor 2): imports go down only")


def test_an_import_from_beside_is_found(package):
    (problem,) = violations(package({"kv/pool.py": "import pagedkv_lab.attention", "attention/reference.py": ""}))
    assert "imports attention (floor 3) from kv (floor 3)" in problem


def test_an_import_through_the_facade_is_found(package):
    files = {
        "kv/pool.py": "from pagedkv_lab import Engine, __version__",
        "engine/engine.py": "import pagedkv_lab",
    }
    problems = violations(package(files))
    assert [problem.partition(" ")[0] for problem in problems] == [
        "pagedkv_lab/engine/engine.py:1",
        "pagedkv_lab/kv/pool.py:1",
    ]
    assert all("imports the package itself, which reaches every floor" in problem for problem in problems)


def test_imports_that_go_down_or_stay_or_leave_the_package_are_fine(package):
    files = {
        "__init__.py": "from pagedkv_lab.engine import Engine",
        "errors.py": "import json",
        "sizing.py": "from pagedkv_lab.errors import PagedKVError",
        "blocks/table.py": "from . import allocator\nfrom .allocator import A\nfrom ..errors import Free",
        "engine/engine.py": "import pagedkv_lab.blocks.manager\nfrom pagedkv_lab import sizing, __version__",
        "cli.py": "import torch, pagedkv_lab_extras\nfrom pagedkv_lab.course import builder",
    }
    assert violations(package(files)) == []


def test_a_folder_or_module_without_a_floor_is_told_to_get_one(package):
    problems = violations(package({"quantum/qubits.py": "", "helpers.py": "", "data/readme.txt": ""}))
    assert [problem.partition(":")[0] for problem in problems] == [
        "pagedkv_lab/helpers.py has no floor",
        "pagedkv_lab/quantum has no floor",
    ]
    assert all("give it one in FLOORS" in problem for problem in problems)


# What the lower floors do without

REFUSING = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Refuse())
{body}
assert not {refused} & set(sys.modules)
"""


def without(refused: set[str], body: str) -> subprocess.CompletedProcess:
    """Run `body` in a process in which the `refused` packages are not installed."""
    script = REFUSING.format(refused=refused, body=body)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )


BLOCKS = sorted(f"pagedkv_lab.blocks.{file.stem}" for file in (PACKAGE / "blocks").glob("*.py"))


@pytest.mark.parametrize("module", ["pagedkv_lab.errors", "pagedkv_lab.sizing", *BLOCKS])
def test_the_lower_floors_import_without_torch_and_without_transformers(module):
    done = without({"torch", "transformers"}, f"import {module.removesuffix('.__init__')}")
    assert done.returncode == 0, done.stderr


def test_a_block_manager_works_without_torch_transformers_and_numpy():
    """numpy is wanted by the snapshot only, when a view asks for one."""
    body = """
from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.sizing import BUILT_IN_SHAPES, num_blocks_that_fit
import pagedkv_lab.blocks.guards, pagedkv_lab.errors

class Seq:
    seq_id, name, token_ids, num_computed_tokens = 1, "one", list(range(40)), 0
    block_keys, extra_keys = [], ()

num_blocks = num_blocks_that_fit(10**9, 16, BUILT_IN_SHAPES["TinyLlama"].kv_bytes_per_token())
manager = BlockManager(num_blocks, 16)
seq = Seq()
manager.admit(seq, manager.lookup(seq))
assert manager.append(seq, 40) == range(40)
manager.commit_step()
manager.free(seq)
manager.check_invariants()
assert manager.counts().cached == 2
"""
    done = without({"torch", "transformers", "numpy"}, body)
    assert done.returncode == 0, done.stderr


def test_the_refusal_of_a_package_is_able_to_fail():
    done = without({"numpy"}, "import numpy")
    assert done.returncode != 0
    assert "numpy is not installed here" in done.stderr
