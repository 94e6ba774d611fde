"""What a check found: a diagnosis by name with the smallest example, or what was tried.

Knows words and examples. Does not know how they were found.
"""

from dataclasses import dataclass

from pagedkv_lab.course.cards import Card, in_notebook
from pagedkv_lab.errors import PagedKVError

#: The diagnosis of an exercise that nobody has begun.
UNWRITTEN = "unwritten"
#: The diagnosis of one that can't be run on this machine. No pass.
NOT_CHECKED = "not_checked"

_HEADLINES = {UNWRITTEN: "is not written yet", NOT_CHECKED: "was not checked"}


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is wrong.

    `code` is its stable name ("no_factor_two"). `call`, `expected` and `got` are the smallest example that shows
    it, as text. `hint` is the number of the hint that helps, or None.
    """

    code: str
    message: str
    call: str = ""
    expected: str = ""
    got: str = ""
    detail: str = ""
    printed: str = ""
    hint: int | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """The result of one check. `diagnosis` is None exactly where the exercise is solved.

    `cases` counts what was tried, `tried` says what it was, `notes` holds remarks on a right answer.
    """

    exercise: str
    cases: int = 0
    tried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def passed(self) -> bool:
        return self.diagnosis is None

    @property
    def card(self) -> Card:
        if self.diagnosis is None:
            tried = "Tried: " + ", ".join(self.tried) + "." if self.tried else ""
            cases = "1 case" if self.cases == 1 else f"{self.cases:,} cases"
            notes = tuple(filter(None, (tried, *self.notes)))
            return Card("good", f"`{self.exercise}` passed: {cases}, all right.", notes=notes)
        found = self.diagnosis
        waiting = found.code in _HEADLINES
        rows = [
            ("example", found.call),
            ("expected", found.expected),
            ("got", found.got),
            ("your line", found.detail),
            ("it printed", found.printed.rstrip()),
        ]
        if waiting:
            rows = []
        notes = [] if found.hint is None else [f"Stuck? Open hint {found.hint} of this exercise."]
        return Card(
            "waiting" if waiting else "bad",
            f"`{self.exercise}` {_HEADLINES.get(found.code, 'is not right yet')}.",
            paragraphs=(found.message,),
            rows=tuple((label, text) for label, text in rows if text),
            notes=tuple(notes),
        )

    def __str__(self) -> str:
        return str(self.card)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.card._repr_html_()


class CheckFailed(PagedKVError):
    """A check found something. Its text is the whole report; a notebook shows the report and no traceback.

    `line` is the one line that a notebook prints where a traceback would be, below the report's card.
    """

    def __init__(self, report: Report, line: str = ""):
        self.report = report
        self.line = line or _one_line(report)
        super().__init__(str(report))

    def _render_traceback_(self) -> list[str]:
        """What IPython prints instead of a traceback. In a terminal no card was shown, so it is the report."""
        return [f"CheckFailed: {self.line}" if in_notebook() else str(self)]


def _one_line(report: Report) -> str:
    if report.diagnosis is None:
        return f"`{report.exercise}` passed."
    first = report.diagnosis.message.splitlines()[0]
    return first if report.diagnosis.code in _HEADLINES else f"`{report.exercise}` is not right yet. {first}"
