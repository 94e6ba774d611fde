"""Writes TABLE.md: every wrong implementation with its diagnosis, every right one. `python tests/mutants/table.py`

Each check is run first: where one says something else than the list, nothing is written.
"""

import os
from collections import Counter
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # as in the tests: said before Triton is imported

from mutant_list import Mutant, mutants, rights

from pagedkv_lab.course.checks import examine, probe
from pagedkv_lab.course.checks.registry import chapters

TABLE = Path(__file__).with_name("TABLE.md")


def text() -> str:
    """The whole table, as Markdown."""
    wrong, right = mutants(), rights()
    lines = [
        "# Mutants",
        "",
        "Wrong implementations of every exercise and what the check says of each, and right ones, which it lets pass.",
        "`python tests/mutants/table.py` writes this table; the tests run all of them.",
        "",
        "| exercise | wrong | of these, wrong in general ways | right |",
        "|:---|---:|---:|---:|",
    ]
    counts = Counter(one.exercise for one in wrong), Counter(one.exercise for one in wrong if one.general)
    exercises = [(chapter, exercise) for chapter in chapters() for exercise in chapter.exercises]
    for _, exercise in exercises:
        rights_of = sum(one.exercise == exercise.name for one in right)
        name = exercise.name
        lines.append(f"| {exercise.number} `{name}` | {counts[0][name]} | {counts[1][name]} | {rights_of} |")
    for _, exercise in exercises:
        lines += ["", f"## {exercise.number} `{exercise.name}`", "", "| wrong | diagnosis |", "|:---|:---|"]
        own = [one for one in wrong if one.exercise == exercise.name]
        lines += [f"| {_cell(one.name)} | `{one.diagnosis}` |" for one in sorted(own, key=lambda one: one.general)]
        lines += ["", "Right: " + "; ".join(_cell(one.name) for one in right if one.exercise == exercise.name) + "."]
    return "\n".join(lines) + "\n"


def surprises() -> list[Mutant]:
    """Mutants whose check says something else than the list."""
    probe.Probe.__init__.__defaults__ = (0.2,)  # seconds for a call: endless loops are among them
    found = [(one, examine(one.exercise, one.implementation).diagnosis) for one in mutants()]
    return [one for one, diagnosis in found if diagnosis is None or diagnosis.code != one.diagnosis]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    if other := surprises():
        raise SystemExit("\n".join(f"{one.exercise}: {one.name} does not get {one.diagnosis}" for one in other))
    TABLE.write_text(text(), encoding="utf-8")
    print(f"{len(mutants())} wrong, {len(rights())} right: {TABLE}")
