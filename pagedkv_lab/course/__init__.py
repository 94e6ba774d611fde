"""The course around the package: parts on loan, checks, hints, progress, faults, and the notebook builder."""

from pagedkv_lab.course.checks import CheckFailed, check, examine, require
from pagedkv_lab.course.names import explain_missing_names
from pagedkv_lab.course.progress import progress

__all__ = ["CheckFailed", "check", "examine", "progress", "require"]

explain_missing_names()
