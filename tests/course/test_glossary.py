"""The glossary explains each term once; lessons list terms by name."""

import re
from pathlib import Path

import pytest

from pagedkv_lab.course.glossary import TERMS, key_terms


def test_terms_come_in_alphabetical_order_with_their_meaning():
    shown = repr(key_terms("slot", "block"))
    assert shown.index("block") < shown.index("slot")
    assert TERMS["slot"] in shown
    assert f"| **slot** | {TERMS['slot']} |" in key_terms("slot")._repr_markdown_()


def test_without_a_name_all_terms_are_listed():
    assert set(key_terms().terms) == set(TERMS)


def test_an_unknown_term_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="'block table'"):
        key_terms("block tabel")


def test_no_meaning_breaks_the_table():
    assert [term for term, meaning in TERMS.items() if "|" in meaning or "\n" in meaning] == []


def test_every_term_is_listed_in_some_lesson():
    lessons = "".join(path.read_text() for path in (Path(__file__).parents[2] / "course").glob("*/lesson.py"))
    listed = set(re.findall(r'"([^"]+)"', " ".join(re.findall(r"key_terms\((.*?)\)", lessons, re.DOTALL))))
    assert set(TERMS) == listed
