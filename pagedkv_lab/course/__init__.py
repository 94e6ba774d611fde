"""The course around the package: parts on loan, checks, hints, progress, faults, and the notebook builder."""

from typing import Any

from pagedkv_lab.course.checks import CheckFailed, check, examine, require
from pagedkv_lab.course.loan import MyParts, mine
from pagedkv_lab.course.names import explain_missing_names
from pagedkv_lab.course.progress import progress

__all__ = ["CheckFailed", "MyParts", "RealRun", "check", "examine", "mine", "progress", "require", "run_for_real"]

explain_missing_names()


def __getattr__(name: str) -> Any:
    if name in ("RealRun", "run_for_real"):  # they bring the engine, which checks and progress do without
        from pagedkv_lab.course import real

        return getattr(real, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
