"""Running one suite for the command line: what ran where, the suite's own result, a table, a file.

Knows which suites there are. Does not know what they measure: each is a module with `run(*, quick, say, ...)`, which
returns what goes into the file, and `table(result)`, which makes of it something for the terminal.
"""

import inspect
import json
import subprocess
from dataclasses import asdict
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from pagedkv_lab.measure.timing import machine, num_threads, versions

SUITES = ("engine", "attention", "blocks", "scaling", "view", "perplexity")
ROOT = Path(__file__).resolve().parents[1]


def run_suite(
    name: str,
    *,
    json_file: Path | None = None,
    quick: bool = False,
    vllm_python: Path | None = None,
    nano_vllm: Path | None = None,
) -> int:
    """Run a suite, show its result, write it. Returns the exit status.

    Raises ValueError for a suite or a path that isn't there, OSError before anything runs where `json_file` can't
    be written.
    """
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}; choose one of {', '.join(SUITES)}")
    # Made absolute, since workers run in another folder; not resolved, since an environment's python is a link to
    # one that lacks its packages.
    options = {
        option: path.absolute() if path else None
        for option, path in (("vllm_python", vllm_python), ("nano_vllm", nano_vllm))
    }
    for option, path in options.items():
        if path is not None and not path.exists():
            raise ValueError(f"--{option.replace('_', '-')}: there is no {path}")
    if json_file:
        _ensure_writable(json_file)
    console = Console(highlight=False, markup=False)
    module = import_module(f"benchmarks.{name}")
    takes = inspect.signature(module.run).parameters
    result = about(name, quick) | module.run(
        quick=quick,
        # Lines and no live display: one that draws itself takes time from what is being measured.
        say=lambda text: console.print(text, style="dim", soft_wrap=True),
        **{option: value for option, value in options.items() if option in takes},
    )
    console.print(f"{machine()}, {result['threads']} threads", soft_wrap=True)
    shown = module.table(result)
    console.print(shown, soft_wrap=isinstance(shown, str))
    for missing in result.get("not_measured", ()):
        where = f" in {missing['dtype']}" if "dtype" in missing else ""
        console.print(f"not measured: {missing['peer']}{where}: {missing['why']}", soft_wrap=True)
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {json_file}", soft_wrap=True)
    return 0


def about(name: str, quick: bool) -> dict[str, Any]:
    """What every file of results says first: which suite ran, where, when and on what."""
    return {
        "suite": name,
        "quick": quick,
        "date": date.today().isoformat(),
        "commit": _commit(),
        "machine": asdict(machine()),
        "threads": num_threads(),
        "versions": versions("torch", "transformers", "numpy", "numba"),
    }


def _commit() -> str | None:
    """The checkout's commit, with "-dirty" where files differ from it; None where there is no git."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _ensure_writable(file: Path) -> None:
    """Find out now, not after half an hour. Leaves nothing behind, and what is there as it is."""
    is_new = not file.exists()
    with file.open("a", encoding="utf-8"):
        pass
    if is_new:
        file.unlink()
