"""How the course shows a result: a card with HTML in a notebook, plain text everywhere else.

Knows colours, escaping and where output goes. Does not know checks or progress.
"""

import html
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

Mood = Literal["good", "bad", "waiting"]

#: Icon (never colour alone), JupyterLab's variable, and the colour where there is no such variable, or where the
#: notebook isn't trusted: JupyterLab then drops every style that has a variable in it.
_MOODS: dict[Mood, tuple[str, str, str]] = {
    "good": ("✓", "--jp-success-color1", "#2e7d32"),
    "bad": ("✗", "--jp-error-color1", "#d32f2f"),
    "waiting": ("○", "--jp-warn-color1", "#b26a00"),
}
_FAINT = "var(--jp-ui-font-color2, inherit)"
_CODE = "font-family: var(--jp-code-font-family, monospace); font-size: 0.95em"


@dataclass(frozen=True, repr=False)
class Card:
    """A headline, paragraphs (`code` in backticks), rows of (label, code) and faint notes below."""

    mood: Mood
    headline: str
    paragraphs: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{_MOODS[self.mood][0]} {self.headline}"]
        lines += [f"  {line}" for paragraph in self.paragraphs for line in paragraph.splitlines()]
        width = max((len(label) for label, _ in self.rows), default=0)
        for label, code in self.rows:
            first, *rest = code.splitlines() or [""]
            lines.append(f"    {label:<{width}}  {first}")
            lines += [f"    {'':<{width}}  {line}" for line in rest]
        lines += [f"  {line}" for note in self.notes for line in note.splitlines()]
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook stores beside the HTML

    def _repr_html_(self) -> str:
        icon, variable, plain = _MOODS[self.mood]
        colour = f"var({variable}, {plain})"
        parts = [
            f'<div style="border-left: 4px solid {plain}; border-left-color: {colour}; padding: 0.3em 0 0.3em 0.9em; '
            'margin: 0.3em 0; line-height: 1.5; color: var(--jp-content-font-color1, inherit)">',
            f'<div><strong style="color: {plain}; color: {colour}"><span aria-hidden="true">{icon}</span></strong> '
            f"<strong>{inline(self.headline)}</strong></div>",
        ]
        parts += [f'<div style="margin-top: 0.25em">{inline(text)}</div>' for text in self.paragraphs]
        if self.rows:
            cells = "".join(
                f'<div style="color: {_FAINT}">{html.escape(label)}</div>'
                f'<div style="white-space: pre-wrap; overflow-wrap: anywhere"><code style="{_CODE}">'
                f"{html.escape(code)}</code></div>"
                for label, code in self.rows
            )
            parts.append(
                '<div style="display: grid; grid-template-columns: max-content 1fr; gap: 0.1em 1em; '
                f'margin: 0.4em 0 0.4em 0">{cells}</div>'
            )
        parts += [f'<div style="color: {_FAINT}; margin-top: 0.25em">{inline(text)}</div>' for text in self.notes]
        return "".join([*parts, "</div>"])


def show(thing: Any) -> None:
    """Display it under the running cell of a notebook; print it anywhere else."""
    if in_notebook():
        from IPython.display import display

        display(thing)
    else:
        print(thing)


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, which shows HTML; IPython in a terminal doesn't."""
    return getattr(shell(), "kernel", None) is not None


def shell() -> Any | None:
    """The running IPython, or None. Doesn't import it where nobody else has."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def inline(text: str) -> str:
    """As HTML: escaped, with `code` in backticks set as code."""
    code = rf'<code style="{_CODE}">\1</code>'
    return re.sub(r"`([^`]+)`", code, html.escape(text)).replace("\n", "<br>")
