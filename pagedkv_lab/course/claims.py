"""The article's claims, recomputed: what it says, what came out here, and a verdict that follows from the two.

Knows claims and how a notebook shows them. Does not know where a number comes from: the lesson's cell says so,
in code, right where the claim is checked.
"""

import html
from dataclasses import dataclass
from typing import Literal

from pagedkv_lab.course.cards import inline

Verdict = Literal["holds", "holds with a condition", "does not hold"]

#: Icon (never colour alone) and a colour that stands out from a light page and from a dark one. Plain colours, no
#: CSS variables: JupyterLab takes those out of the outputs of a notebook that has not been run here yet.
_LOOKS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "#2f9e57"),
    "holds with a condition": ("◐", "#c77700"),
    "does not hold": ("✗", "#e0483d"),
}
_FAINT = "var(--jp-ui-font-color2, inherit)"
_TEXT = "color: var(--jp-content-font-color1, inherit); line-height: 1.5"


@dataclass(frozen=True)
class Claim:
    """One claim. The verdict is computed: `holds` is an expression over what was measured.

    Its texts may hold `code` in backticks.

    section: where the article says it ("§2.2"). says: the claim, in one sentence.
    measured: what came out here, as text. holds: whether that agrees with the claim.
    condition: when it holds, if it doesn't always ("" where it does). why: what to remember of it.
    """

    section: str
    says: str
    measured: str
    holds: bool
    condition: str = ""
    why: str = ""

    @property
    def verdict(self) -> Verdict:
        if not self.holds:
            return "does not hold"
        return "holds with a condition" if self.condition else "holds"

    @property
    def _verdict_in_full(self) -> str:
        return f"{self.verdict}: {self.condition}" if self.holds and self.condition else self.verdict

    def __repr__(self) -> str:
        icon, _ = _LOOKS[self.verdict]
        lines = [f"{icon} {self.section}: {self.says}", f"  here: {self.measured}", f"  {self._verdict_in_full}"]
        return "\n".join(lines + ([f"  {self.why}"] if self.why else []))

    def _repr_html_(self) -> str:
        icon, colour = _LOOKS[self.verdict]
        condition = f": {inline(self.condition)}" if self.holds and self.condition else ""
        rows = [
            f"<div>{_faint(self.section)} &ensp;{inline(self.says)}</div>",
            f"<div>{_faint('here')} &ensp;{inline(self.measured)}</div>",
            f'<div><strong style="color: {colour}">{icon} {self.verdict}</strong>{condition}</div>',
        ]
        if self.why:
            rows.append(f"<div>{_faint(self.why)}</div>")
        return (
            f'<div style="border-left: 4px solid {colour}; padding: 0.3em 0 0.3em 0.9em; margin: 0.3em 0; {_TEXT}">'
            f"{''.join(rows)}</div>"
        )


class Claims:
    """A lesson's claims, in the order in which they were checked. Shows itself as a table."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claim] = {}

    def check(
        self, section: str, says: str, *, measured: str, holds: bool, condition: str = "", why: str = ""
    ) -> Claim:
        """Judge one claim and return it, to be shown. Checking the same claim again replaces it."""
        claim = Claim(section, says, str(measured), bool(holds), condition, why)
        self._claims[section, says] = claim
        return claim

    def __iter__(self):
        return iter(self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)

    def __repr__(self) -> str:
        counts = self._counts()
        width = max((len(claim.section) for claim in self), default=0)
        lines = [f"{_LOOKS[c.verdict][0]} {c.section:<{width}}  {c.says}  ->  {c.measured}" for c in self]
        return "\n".join([*lines, counts])

    def _repr_html_(self) -> str:
        cell = 'style="text-align: left; vertical-align: top; padding: 0.25em 1em 0.25em 0; white-space: normal"'
        head = "".join(f"<th {cell}>{name}</th>" for name in ("", "article", "says", "here"))
        rows = "".join(
            f'<tr style="background: transparent">'
            f'<td {cell}><strong style="color: {_LOOKS[c.verdict][1]}" title="{c.verdict}">{_LOOKS[c.verdict][0]}'
            f"</strong></td><td {cell}>{html.escape(c.section)}</td><td {cell}>{inline(c.says)}</td>"
            f"<td {cell}>{inline(c.measured)}</td></tr>"
            for c in self
        )
        table = f'<table style="border: none"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        return f'<div style="{_TEXT}">{table}<div>{self._counts()}</div></div>'

    def _counts(self) -> str:
        verdicts = [claim.verdict for claim in self]
        return " · ".join(f"{_LOOKS[verdict][0]} {verdict}: {verdicts.count(verdict)}" for verdict in _LOOKS)


def _faint(text: str) -> str:
    return f'<span style="color: {_FAINT}">{inline(text)}</span>'
