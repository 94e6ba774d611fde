"""The glossary explains each term once; lessons list terms by name, and each leads to its place on the page of all."""

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from pagedkv_lab.course.builder.glossary_page import glossary_cells, linked, terms_of
from pagedkv_lab.course.builder.plan import all_chapters
from pagedkv_lab.course.builder.source import Source, SourceError, read_source
from pagedkv_lab.course.glossary import TERMS, cell_id, key_terms

ROOT = Path(__file__).parents[2]


def lesson(title: str, *code: str) -> Source:
    """A lesson of a title and these code cells."""
    cells = [new_markdown_cell(f"# {title}\n\nIts text."), *map(new_code_cell, code)]
    return Source(Path("lesson.py"), cells, list(range(1, len(cells) + 1)))


def page_of(lessons: dict[str, Source]) -> str:
    return "\n\n".join(cell.source for cell in glossary_cells(lessons))


# In a lesson


def test_terms_come_in_alphabetical_order_with_their_meaning():
    shown = repr(key_terms("slot", "block"))
    assert shown.index("block") < shown.index("slot")
    assert TERMS["slot"] in shown
    assert f"| [**slot**](glossary.ipynb#cell-id=slot) | {TERMS['slot']} |" in key_terms("slot")._repr_markdown_()


def test_a_table_says_that_its_terms_lead_to_the_page():
    assert "in the [glossary](glossary.ipynb)" in key_terms("slot")._repr_markdown_()


def test_without_a_name_all_terms_are_listed():
    assert set(key_terms().terms) == set(TERMS)


def test_an_unknown_term_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="'block table'"):
        key_terms("block tabel")


# The page of all terms


def test_every_term_has_a_cell_that_its_table_leads_to():
    _, *cells = glossary_cells({})
    assert [cell.source.splitlines()[0] for cell in cells] == [f"### {term}" for term in sorted(TERMS, key=str.lower)]
    table = key_terms()._repr_markdown_()
    for cell, term in zip(cells, sorted(TERMS, key=str.lower), strict=True):
        assert f"[**{term}**](glossary.ipynb#cell-id={cell.id})" in table


def test_cells_have_ids_of_their_own_that_jupyter_accepts():
    ids = [cell.id for cell in glossary_cells({})]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids)
    assert cell_id("KiB, MiB, GiB") == "KiB-MiB-GiB"


def test_every_link_within_the_page_leads_to_a_term():
    headings = {term.replace(" ", "-") for term in TERMS}
    leads_to = re.findall(r"\]\(#((?:[^()]|\([^()]*\))+)\)", page_of({}))
    assert len(leads_to) > len(TERMS), "the index alone has a link a term"
    assert set(leads_to) == headings


def test_a_term_names_the_chapters_that_list_it_in_order():
    lessons = {
        "05_late": lesson("05 · Late", 'key_terms("slot")'),
        "01_early": lesson(
            "01 · Early", "x = 1", 'from a import key_terms\n\nkey_terms(\n    "slot",\n    "block",\n)'
        ),
    }
    page = page_of(lessons)
    assert "*[01 · Early](01_early.ipynb) · [05 · Late](05_late.ipynb)*" in page.split("### slot")[1].split("###")[0]
    assert "05 · Late" not in page.split("### block\n")[1].split("###")[0]


def test_a_lesson_that_lists_an_unknown_term_is_named():
    with pytest.raises(SourceError, match=r"lesson\.py, cell 2.*the glossary has no 'slott'"):
        terms_of(lesson("A", 'key_terms("slott")'))


def test_a_meaning_links_other_terms_once_and_never_itself(monkeypatch):
    monkeypatch.setitem(TERMS, "new", "A block table of blocks, not the `block size`; a new block. Blocks, unblocked.")
    assert linked("new") == (
        "A [block table](#block-table) of [blocks](#block), not the `block size`; a new block. Blocks, unblocked."
    )


def test_everyday_words_are_no_links(monkeypatch):
    monkeypatch.setitem(TERMS, "new", "A part of a step that you check.")
    assert linked("new") == TERMS["new"]


# The course's own


def test_no_meaning_breaks_the_table():
    assert [term for term, meaning in TERMS.items() if "|" in meaning or "\n" in meaning] == []


def test_every_term_is_listed_in_some_lesson():
    lessons = [ROOT / "course" / chapter / "lesson.py" for chapter in all_chapters(ROOT)]
    listed = {term for path in lessons if path.exists() for term in terms_of(read_source(path))}
    assert sorted(set(TERMS) - listed) == []
