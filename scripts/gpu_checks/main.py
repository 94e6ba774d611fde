"""The command: which sections there are, in which order, how much of the time each gets, and what becomes of results.

Knows arguments, time and signals. Does not know what a section does.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Name, title, share of the time, and the function: (section, device, sizes) -> None. A section's module is imported
#: when it runs, so that one which can't be imported breaks alone.
SECTIONS = (
    ("machine", "where this runs", 5, "gpu_checks.machine:run"),
    ("correctness", "every kernel against the reference in float64", 90, "gpu_checks.correctness:run"),
    ("quantized", "int8 and int4 reads against the dequantized values", 30, "gpu_checks.quantized:run"),
    ("bandwidth", "decode attention against a copy", 60, "gpu_checks.bandwidth:run"),
    ("serving", "the engine against generate and contiguous reservation", 105, "gpu_checks.serving:run"),
    ("graphs", "CUDA graphs on and off", 20, "gpu_checks.serving:graphs"),
    ("memory", "peak memory, article section 4.4", 20, "gpu_checks.memory:run"),
    ("bundled", "the bundled model in float32", 15, "gpu_checks.bundled:run"),
)
#: No case begins in the last part of the time: what runs then has to end, and the table to be printed.
LAST_PART = 0.07
INTERRUPTED, NO_GPU = 130, 2


def main(arguments: list[str], started: float, doc: str) -> int:
    """Returns the exit status. started: when the process began, in the clock of time.monotonic()."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", action="append", choices=[name for name, *_ in SECTIONS], default=None)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    # Before Triton is imported; and never on a GPU, whose kernels would not be run at all.
    os.environ.pop("TRITON_INTERPRET", None)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"

    device = find_device(options.dry_run)
    if device is None:
        print("No CUDA GPU here: nothing to check. `--dry-run` goes through the same code without one.")
        return NO_GPU
    from gpu_checks.record import Record
    from gpu_checks.report import report

    file = options.json or default_file(device)
    ends_at = started + options.minutes * 60
    record = Record(head(options, device), file, started, ends_at - LAST_PART * 60 * options.minutes)
    for name, title, share, _ in SECTIONS:
        if options.only is None or name in options.only:
            record.add(name, title, share)
    file.parent.mkdir(parents=True, exist_ok=True)
    record.save()
    say(f"{device.name}; results go to {file}")

    watchdog = stop_at(ends_at, lambda: give_up(record))
    # A plain kill ends as Ctrl-C does, with the table. (kill -9 leaves the file as it was last written.)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = run_sections(record, device)
    watchdog.cancel()
    record.finished = status == 0
    record.save()
    print(report(record.as_dict()))
    print(f"\nwritten to {file}")
    return status or (0 if record.ok else 1)


def run_sections(record: Any, device: Any) -> int:
    """All of them, in order. Returns 0, or INTERRUPTED after Ctrl-C."""
    from gpu_checks.sizes import DRY, FULL

    sizes = DRY if device.dry_run else FULL
    for name, _, _, where in SECTIONS:
        if name not in record.sections:
            continue

        def body(section: Any, where: str = where) -> None:
            module, function = where.split(":")
            getattr(import_module(module), function)(section, device, sizes)

        try:
            record.run(name, body, say)
            # Models are kept, engines and pools are not. A device that broke answers nothing any more.
            with suppress(Exception):
                device.empty_cache()
        except KeyboardInterrupt:
            say("interrupted: what was found is written")
            return INTERRUPTED
    return 0


def find_device(dry_run: bool) -> Any:
    """The GPU, its stand-in for a dry run, or None."""
    import torch

    from gpu_checks.device import CudaDevice, DryDevice

    if dry_run:
        torch.set_num_threads(1)
        return DryDevice()
    return CudaDevice() if torch.cuda.is_available() else None


def head(options: argparse.Namespace, device: Any) -> dict[str, Any]:
    """What the file says first."""
    note = "a dry run on Triton's interpreter: no figure is a measurement" if device.dry_run else "measured on this GPU"
    return {
        "suite": "gpu-check",
        "dry_run": device.dry_run,
        "figures": note,
        "date": date.today().isoformat(),
        "minutes": options.minutes,
        "only": options.only,
    }


def default_file(device: Any) -> Path:
    """Beside the other results; those of a dry run are none, and go to the temporary folder."""
    from gpu_checks.machine import gpu_name

    folder = Path(tempfile.gettempdir()) if device.dry_run else ROOT / "benchmarks" / "results"
    return folder / f"gpu-{gpu_name(device)}.json"


def say(text: str) -> None:
    print(text, flush=True)


def stop_at(when: float, stop: Callable[[], None]) -> threading.Timer:
    """Call `stop` then, from a thread: a kernel that never ends can't be interrupted from Python."""
    timer = threading.Timer(max(0.0, when - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    return timer


def give_up(record: Any) -> None:
    """The time is over, and a case still runs: write down which section, and end the process."""
    for section in record.sections.values():
        if section.status == "running":
            section.status = "stopped: the time was over in the middle of a case"
        elif section.status == "waiting":
            section.status = "not run: no time left"
    try:
        record.save()
        print(f"Time is over in the middle of a case: stopped. What was found is in {record.file}", file=sys.stderr)
    finally:
        os._exit(1)
