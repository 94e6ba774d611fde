"""The glossary as a notebook of text: every term of the course in a cell, with its meaning and its chapters.

A notebook, because JupyterLab opens one as a page whose cells can be linked to; of a Markdown file it shows the
raw text. Nothing in it runs.

Knows terms and lessons. Does not know files.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from pagedkv_lab.course.builder.header import title_of
from pagedkv_lab.course.builder.source import Source
from pagedkv_lab.course.glossary import TERMS, cell_id

#: Terms that are everyday words as well: where they stand in a meaning, they mostly mean no more than that.
_EVERYDAY = {"part", "check", "step"}

_INTRODUCTION = """\
# Glossary

The course's words, each explained once. Below a term stand the chapters that list it among their key terms: the
first one introduces it. In JupyterLab, the table of contents (☰ at the left) lists them, too."""


def terms_of(lesson: Source) -> list[str]:
    """The terms that a lesson lists: the texts in its calls of `key_terms`. Raises SourceError where one is unknown."""
    terms = []
    for index, cell in enumerate(lesson.cells):
        if cell.cell_type != "code" or "key_terms(" not in cell.source:
            continue
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            raise lesson.error(index, f"not valid Python: {error.msg}", (error.lineno or 1) - 1) from None
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "key_terms":
                terms += [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        for term in terms:
            if term not in TERMS:
                raise lesson.error(index, f"the glossary has no {term!r}: pagedkv_lab/course/glossary.py is its place.")
    return terms


def glossary_cells(lessons: Mapping[str, Source]) -> list[NotebookNode]:
    """The page's cells: an index, and one for each term. `lessons`: a chapter's lesson by its folder."""
    listed = {folder: set(terms_of(lesson)) for folder, lesson in lessons.items()}
    titles = {folder: title_of(lesson) for folder, lesson in lessons.items()}
    terms = sorted(TERMS, key=str.lower)
    index = " · ".join(f"[{term}]({_heading(term)})" for term in terms)
    cells = [_cell("all-terms", f"{_INTRODUCTION}\n\n{index}")]
    for term in terms:
        chapters = [f"[{titles[folder]}]({folder}.ipynb)" for folder in sorted(listed) if term in listed[folder]]
        text = f"### {term}\n\n{linked(term)}"
        cells.append(_cell(cell_id(term), text + (f"\n\n*{' · '.join(chapters)}*" if chapters else "")))
    return cells


def linked(term: str, others: Sequence[str] = tuple(TERMS)) -> str:
    """A term's meaning, with a link on the first mention of each other term, longest names first."""
    names = sorted((name for name in others if name != term and name not in _EVERYDAY), key=len, reverse=True)
    forms = {form.lower(): name for name in names for form in (name, f"{name}s")}
    # Code in backticks is left alone; it is matched first, and given back as it is.
    pattern = "|".join(["`[^`]*`", *(rf"(?<!\w){re.escape(form)}(?!\w)" for form in sorted(forms, key=len)[::-1])])
    seen = {term}

    def link(match: re.Match) -> str:
        name = forms.get(match[0].lower())
        if name is None or name in seen:
            return match[0]
        seen.add(name)
        return f"[{match[0]}]({_heading(name)})"

    return re.sub(pattern, link, TERMS[term], flags=re.IGNORECASE)


def _heading(term: str) -> str:
    """A link within the page: to the heading's id, which is the same in JupyterLab and in nbconvert."""
    return "#" + term.replace(" ", "-")


def _cell(name: str, text: str) -> NotebookNode:
    cell = new_markdown_cell(text)
    cell.id = name
    return cell
