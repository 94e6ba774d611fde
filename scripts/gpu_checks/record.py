"""What was found, section by section, and the file that always holds all of it.

Knows checks, figures, goals, time and JSON. Does not know GPUs.

Three rules. What failed to run is never counted as passed. One case that breaks doesn't end its section, and one
section doesn't end the others. The file is replaced as a whole, so that whoever reads it, after whatever ending, reads
a complete one.
"""

import json
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

NO_TIME = "no time left"
#: Between two writes of the file while a section runs.
SAVE_EVERY_S = 2.0


class NotRun(Exception):
    """A section or a case that can't run here, for the reason given. Not a failure."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had too little memory. By name: torch has had more than one class for it."""
    return type(error).__name__ in ("OutOfMemoryError", "AcceleratorOutOfMemoryError")


def describe(error: BaseException) -> dict[str, str]:
    """An exception for the file: type, message, and the end of its traceback."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return {"type": type(error).__name__, "message": str(error)[:2000], "traceback": "".join(lines)[-2000:]}


class Section:
    """One section's findings. `deadline`, in the clock of time.monotonic(): no case begins after it."""

    def __init__(self, title: str, save: Callable[[], None], *, dry_run: bool = False):
        self.title, self.dry_run, self.deadline = title, dry_run, math.inf
        self.status, self.seconds = "waiting", 0.0
        self.error: dict[str, str] | None = None
        self.facts: dict[str, Any] = {}
        self.checks: list[dict[str, Any]] = []
        self.measured: list[dict[str, Any]] = []
        self.goals: list[dict[str, Any]] = []
        self.not_run: list[dict[str, str]] = []
        self._save = save

    # What a section says

    def check(self, name: str, passed: bool, **facts: Any) -> None:
        """Something that has to hold, and whether it does."""
        self.checks.append({"name": name, "passed": bool(passed)} | facts)
        self._save()

    def within(self, name: str, error: float, tolerance: float, **facts: Any) -> None:
        """A check of a largest error. NaN and infinity are beyond any tolerance."""
        finite = math.isfinite(error)
        shown = error if finite else str(error)
        self.check(name, finite and error <= tolerance, error=shown, tolerance=tolerance, **facts)

    def measure(self, what: str, **figures: Any) -> dict[str, Any]:
        """One row of figures, marked as no measurement in a dry run. Returns it: it may be brought up to date."""
        row = {"what": what} | ({"not_a_measurement": True} if self.dry_run else {}) | figures
        self.measured.append(row)
        self._save()
        return row

    def skip(self, name: str, why: str) -> None:
        """Something that did not run."""
        self.not_run.append({"name": name, "why": why})
        self._save()

    def goal(self, goal: str, wanted: float, reached: dict[str, float], of: int) -> None:
        """A goal that every case should reach. reached: the figure of each case that ran, of so many in all."""
        worst = min(reached, key=reached.__getitem__, default=None)
        missed = [name for name, value in reached.items() if value < wanted]
        if not reached:
            state = "not measured"
        elif missed:
            state = "missed"
        else:
            state = "met" if len(reached) == of else "met in what ran"
        if self.dry_run:
            state = "not judged in a dry run"
        self.goals.append(
            {
                "goal": goal,
                "state": state,
                "wanted": wanted,
                "worst": None if worst is None else {"case": worst, "value": reached[worst]},
                "cases": len(reached),
                "of": of,
                "missed": missed,
            }
        )
        self._save()

    # Running cases

    def in_time(self, cases: Iterable[T], name: Callable[[T], str] = str) -> Iterator[T]:
        """The cases, one by one, while there is time. The others are noted as not run."""
        for case in cases:
            if self.time_left() <= 0:
                self.skip(name(case), NO_TIME)
            else:
                yield case

    def time_left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """A case that may break: that is a failed check with the reason, and the next case runs."""
        try:
            yield
        except NotRun as reason:
            self.skip(name, str(reason))
        except Exception as error:
            if is_out_of_memory(error):
                self.skip(name, f"out of memory: {str(error)[:200]}")
            else:
                self.check(name, False, raised=describe(error))

    def as_dict(self) -> dict[str, Any]:
        found = {"title": self.title, "status": self.status, "seconds": round(self.seconds, 2), "error": self.error}
        return found | {
            "checks_passed": sum(check["passed"] for check in self.checks),
            "checks_failed": len(self.failed),
            "facts": dict(self.facts),
            "goals": list(self.goals),
            "measured": list(self.measured),
            "not_run": list(self.not_run),
            "checks": list(self.checks),
        }

    @property
    def failed(self) -> list[str]:
        return [check["name"] for check in self.checks if not check["passed"]]


class Record:
    """All sections, and their file. head: what the file says first.

    ends_at: in the clock of time.monotonic(). Time that a section leaves over belongs to those after it.
    """

    def __init__(self, head: dict[str, Any], file: Path, started: float, ends_at: float):
        self.head, self.file, self.started, self.ends_at = head, file, started, ends_at
        self.sections: dict[str, Section] = {}
        self.finished = False
        self._shares: dict[str, float] = {}
        self._saved_at = -math.inf
        self._lock = threading.Lock()

    def add(self, name: str, title: str, share: float) -> None:
        """Announce a section, in order. share: of the time, in any unit."""
        self.sections[name] = Section(title, self._save_now_and_then, dry_run=bool(self.head.get("dry_run")))
        self._shares[name] = share

    def run(self, name: str, body: Callable[[Section], None], say: Callable[[str], None]) -> None:
        """Run a section, whatever becomes of it. KeyboardInterrupt goes through, once it is noted."""
        section = self.sections[name]
        now = time.monotonic()
        left = self.ends_at - now
        if left <= 0:
            section.status = f"not run: {NO_TIME}"
            self.save()
            say(f"{name}: not run, {NO_TIME}")
            return
        names = list(self._shares)
        to_come = sum(self._shares[other] for other in names[names.index(name) :])
        section.deadline = now + left * self._shares[name] / to_come
        section.status = "running"
        self.save()
        say(f"{name}: {section.title} (up to {section.deadline - now:.0f} s)")
        try:
            body(section)
            section.status = "done"
        except NotRun as reason:
            section.status = f"not run: {reason}"
        except KeyboardInterrupt:
            section.status = "interrupted"
            raise
        except Exception as error:
            section.status, section.error = "broken", describe(error)
        finally:
            section.seconds = time.monotonic() - now
            self.save()
            failed = f", {len(section.failed)} failed" if section.failed else ""
            say(f"{name}: {section.status} in {section.seconds:.1f} s, {len(section.checks)} checks{failed}")

    @property
    def ok(self) -> bool:
        """Whether nothing failed. What was not run has not failed, and is listed."""
        bad = ("broken", "interrupted", "running", "stopped")
        return not any(s.failed or s.status.partition(":")[0] in bad for s in self.sections.values())

    def as_dict(self) -> dict[str, Any]:
        sections = {name: section.as_dict() for name, section in self.sections.items()}
        summary = {
            "finished": self.finished,
            "seconds": round(time.monotonic() - self.started, 1),
            "checks_passed": sum(section["checks_passed"] for section in sections.values()),
            "checks_failed": sum(section["checks_failed"] for section in sections.values()),
            "broken": [name for name, section in sections.items() if section["status"] == "broken"],
            "not_run": sum(len(section["not_run"]) for section in sections.values()),
            "goals": {goal["goal"]: goal["state"] for section in sections.values() for goal in section["goals"]},
        }
        return self.head | {"summary": summary, "sections": sections}

    def save(self) -> None:
        """Replace the file by what is known now."""
        with self._lock:
            self._saved_at = time.monotonic()
            unfinished = self.file.with_name(f".{self.file.name}.{os.getpid()}")
            text = json.dumps(_plain(self.as_dict()), indent=1, allow_nan=False, default=str)
            unfinished.write_text(text + "\n", encoding="utf-8")
            os.replace(unfinished, self.file)

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            self.save()


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: those become words."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
