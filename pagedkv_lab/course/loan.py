"""Parts on loan: whose part goes into which slot of the engine.

    mine(PrefixCache=PrefixCache)   this notebook's PrefixCache, what earlier chapters kept, the package's for the rest

Knows slots and exercises. Does not know how a part is kept, nor how an engine runs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pagedkv_lab.course.cards import Card
from pagedkv_lab.course.checks.registry import Exercise, UnknownExercise, exercises, find
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.course.keeping import CannotLoad, kept, load, path_of
from pagedkv_lab.course.progress import ENGINE_PARTS

if TYPE_CHECKING:
    from pagedkv_lab.engine import Parts


@dataclass(frozen=True)
class Loan:
    """What is in one slot. `part` and `exercise` are None where it is the package's own."""

    slot: str
    part: Any = None
    exercise: Exercise | None = None
    from_notebook: bool = False

    def __str__(self) -> str:
        if self.exercise is not None:
            where = "this notebook" if self.from_notebook else "kept"
            name = "" if self.exercise.name == self.slot else f", {self.exercise.name}"
            return f"yours           exercise {self.exercise.number}{name}, {where}"
        later = [exercise for exercise in exercises().values() if exercise.slot == self.slot]
        return "the package's" + (f"   yours comes with exercise {later[0].number}" if later else "")


@dataclass(frozen=True, repr=False)
class MyParts:
    """Whose part is in each slot of an engine. Shows itself in a notebook and as text.

    loans: one for each slot, in the engine's order. problems: sentences about parts that could not go in.
    """

    loans: tuple[Loan, ...]
    problems: tuple[str, ...] = ()

    @property
    def parts(self) -> "Parts":
        """For `Engine(parts=...)`."""
        from pagedkv_lab.engine import Parts

        return Parts(**{loan.slot: loan.part for loan in self.loans if loan.exercise is not None})

    @property
    def names(self) -> list[str]:
        """The slots that hold the learner's part."""
        return [loan.slot for loan in self.loans if loan.exercise is not None]

    def __getitem__(self, slot: str) -> Loan:
        return next(loan for loan in self.loans if loan.slot == slot)

    def without(self, slot: str, problem: str) -> "MyParts":
        """The same with the package's own part in this slot, and a sentence that says why."""
        loans = tuple(Loan(slot) if loan.slot == slot else loan for loan in self.loans)
        return replace(self, loans=loans, problems=(*self.problems, problem))

    @property
    def headline(self) -> str:
        """ "3 of 8 parts of this engine are yours"."""
        count = len(self.names)
        return f"{count} of {len(self.loans)} parts of this engine {'is' if count == 1 else 'are'} yours"

    @property
    def _card(self) -> Card:
        mood = "good" if self.names and not self.problems else "waiting"
        rows = tuple((loan.slot, str(loan)) for loan in self.loans)
        return Card(mood, f"{self.headline}.", rows=rows, notes=self.problems)

    def __str__(self) -> str:
        return str(self._card)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._card._repr_html_()


def mine(**from_this_notebook: Any) -> MyParts:
    """The engine's parts: yours where they pass, the package's for the rest.

        engine = Engine(model, parts=mine(PrefixCache=PrefixCache).parts)

    from_this_notebook: parts by the names of their exercises. For a slot that none of them fills, the part goes in that
    an earlier chapter kept. It is loaded and checked again; where that fails, the package's goes in, and a sentence
    says why. Loading runs code: your own, from your own disk, in parts/ of the folder that `pagedkv progress` names.

    Raises UnknownExercise for a name that is not an exercise, or not one whose solution is a part of the engine.
    """
    return assemble({name: (part, find(name).examine(part)) for name, part in only_parts(from_this_notebook).items()})


def assemble(given: Mapping[str, tuple[Any, Report]]) -> MyParts:
    """`mine` for parts that have been checked already: by exercise, the part and what its check found."""
    choosing = _Choosing(given)
    return MyParts(tuple(choosing.loan_for(slot) for slot in ENGINE_PARTS), tuple(choosing.problems))


def only_parts(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in given:
        if not find(name).slot:
            slots = dict.fromkeys(exercise.name for exercise in exercises().values() if exercise.slot)
            raise UnknownExercise(
                f"{name} is an exercise, but no part of the engine: the engine does not call it. Parts are "
                f"{', '.join(slots)}."
            )
    return given


@dataclass
class _Choosing:
    """Fills slots: the notebook's part first, then a kept one, then the package's; of two exercises the later one."""

    given: Mapping[str, tuple[Any, Report]]
    problems: list[str] = field(default_factory=list)

    def loan_for(self, slot: str) -> Loan:
        candidates = [exercise for exercise in reversed(exercises().values()) if exercise.slot == slot]
        failed = []
        for exercise in candidates:
            if exercise.name in self.given:
                part, report = self.given[exercise.name]
                if report.passed:
                    return Loan(slot, part, exercise, from_notebook=True)
                failed.append(f"`{exercise.name}` of this notebook {_why_not(report)}")
        chosen = Loan(slot)
        for exercise in candidates:
            part, problem = _kept_part(exercise)
            if problem:
                failed.append(f"{problem} To keep it anew, run the cells of exercise {exercise.number} again.")
            elif part is not None:
                chosen = Loan(slot, part, exercise)
                break
        instead = f"the {chosen.exercise.name} that you kept" if chosen.exercise else "the package's"
        self.problems += [f"{problem} In its place: {instead}." for problem in failed]
        return chosen


#: What came of kept sources, by exercise and text: a part is loaded and checked once, and stays the same object.
_loaded: dict[tuple[str, str], tuple[Any, str]] = {}


def _kept_part(exercise: Exercise) -> tuple[Any, str]:
    """The part that was kept for this exercise, loaded and checked; or a sentence that says why not; or neither."""
    source = kept(exercise.name)
    try:
        path = path_of(exercise.name)
        if source is None:
            return None, (f"{path} is there, but it can't be read." if path.exists() else "")
    except OSError:  # the folder that this notebook runs in is gone, or shut
        return None, ""
    known = (exercise.name, source)
    if known not in _loaded:
        _loaded[known] = _load_and_check(exercise, source)
    part, problem = _loaded[known]
    return part, f"{path} {problem}" if problem else ""


def _load_and_check(exercise: Exercise, source: str) -> tuple[Any, str]:
    try:
        part = load(exercise.name, source)
    except CannotLoad as why:
        return None, f"{why}."
    report = exercise.examine(part)
    return (part, "") if report.passed else (None, _why_not(report))


def _why_not(report: Report) -> str:
    """The rest of a sentence about a part that does not pass."""
    assert report.diagnosis is not None
    if report.diagnosis.code == UNWRITTEN:
        return "is still the stub."
    return f"is not right: {report.diagnosis.message.splitlines()[0]}"
