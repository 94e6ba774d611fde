"""Every wrong implementation gets the diagnosis it deserves; every right one passes, however it is written."""

import ast
import warnings
from collections import Counter
from pathlib import Path

import pytest
from mutant_list import mutants, needs_all_mutants, rights
from table import TABLE, text

from pagedkv_lab.course import checks
from pagedkv_lab.course.checks import examine, probe
from pagedkv_lab.course.checks.registry import chapters, exercises

PACKAGE = checks.__name__
CHECKS = Path(checks.__file__).parent

#: Diagnoses that say it all themselves: there is no hint, or no call to show.
WITHOUT_HINT = {"not_a_function", "not_a_class", "wrong_arguments", "mutates"}
WITHOUT_EXAMPLE = {"unwritten", "not_a_function", "not_a_class"}


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: f"{m.exercise}-{m.name}".replace(" ", "-"))
def test_a_wrong_implementation_gets_its_diagnosis(mutant, monkeypatch):
    if mutant.diagnosis == "endless":  # the learner's limit is 2 s a call; there are many of these
        monkeypatch.setattr(probe.Probe.__init__, "__defaults__", (0.2,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = examine(mutant.exercise, mutant.implementation)
    found = report.diagnosis
    assert found is not None, f"{mutant.exercise}: {mutant.name} passed"
    assert found.code == mutant.diagnosis, str(report)
    assert found.message.strip().endswith((".", "?", "!", ")")), found.message
    if mutant.diagnosis not in WITHOUT_EXAMPLE:
        assert found.call
        assert found.expected or found.got or found.detail
    if mutant.diagnosis not in WITHOUT_HINT:
        assert found.hint in (1, 2, 3)


@pytest.mark.parametrize("right", rights(), ids=lambda r: f"{r.exercise}-{r.name}".replace(" ", "-"))
def test_a_right_implementation_passes(right):
    report = examine(right.exercise, right.implementation)
    assert report.passed, str(report)


@needs_all_mutants
def test_each_exercise_has_enough_wrong_and_right_implementations():
    wrong = Counter(mutant.exercise for mutant in mutants() if not mutant.general)
    right = Counter(right.exercise for right in rights())
    for name, exercise in exercises().items():
        least = (8, 4) if exercise.slot else (5, 3)
        assert wrong[name] >= least[0], name
        assert right[name] >= least[1], name


def test_no_two_of_an_exercise_go_by_the_same_name():
    counts = Counter((one.exercise, one.name) for one in (*mutants(), *rights()))
    assert [name for name, count in counts.items() if count > 1] == []


#: Modules of checks that know no exercise: the codes in them are every exercise's.
GENERAL = {"functions", "limits", "objects", "probe", "registry", "report"}


def module_and_its_imports(name: str) -> set[str]:
    """The module of checks of this name, and those of the package that it is put together from."""
    found, left = set(), [name]
    while left:
        if (module := left.pop()) in found or module in GENERAL:
            continue
        found.add(module)
        for node in ast.walk(ast.parse((CHECKS / f"{module}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                left.append(node.module.removeprefix(f"{PACKAGE}."))
    return found


CHAPTERS_OF = {
    module: [chapter for chapter in chapters() if module in module_and_its_imports(chapter.module)]
    for module in sorted(set().union(*(module_and_its_imports(chapter.module) for chapter in chapters())))
}


@needs_all_mutants
@pytest.mark.parametrize("module", CHAPTERS_OF)
def test_every_diagnosis_that_a_module_can_give_is_shown_by_a_mutant(module):
    """The codes stand in the module, as the first argument of `fail` or of a `Mistake`."""
    names = {exercise.name for chapter in CHAPTERS_OF[module] for exercise in chapter.exercises}
    shown = {mutant.diagnosis for mutant in mutants() if mutant.exercise in names}
    assert sorted(codes_in(CHECKS / f"{module}.py") - shown) == []


def codes_in(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("fail", "_fail", "Mistake") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return found


def test_every_module_of_checks_belongs_to_a_chapter_or_to_all():
    files = {file.stem for file in CHECKS.glob("*.py")} - {"__init__"}
    assert files == GENERAL | set(CHAPTERS_OF)


@needs_all_mutants
def test_the_table_of_mutants_is_as_the_command_writes_it():
    written = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    assert written == text(), "write it again: python tests/mutants/table.py"
