"""What every lesson of the course has: an honest header, what one can do afterwards, and papers with their sections."""

import re
from pathlib import Path

import pytest

from pagedkv_lab.course.builder.header import estimated_minutes, read_header
from pagedkv_lab.course.builder.plan import all_chapters
from pagedkv_lab.course.builder.source import Source, read_source

ROOT = Path(__file__).parents[2]
LESSONS = {
    chapter: ROOT / "course" / chapter / "lesson.py"
    for chapter in all_chapters(ROOT)
    if (ROOT / "course" / chapter / "lesson.py").exists()
}

#: Where papers are kept; other links (code, advisories, manuals) need no section.
_PAPER = re.compile(r"arxiv\.org|doi\.org|usenix\.org|acm\.org|aclanthology\.org|openreview\.net|eprint\.iacr\.org")
_SECTION = re.compile(r"§ ?\d|\b[Ss]ections? \d|\b[Cc]hapters? \d|\bAppendix [A-Z]")


@pytest.fixture(params=LESSONS)
def lesson(request) -> Source:
    return read_source(LESSONS[request.param])


def papers_without_a_section(read_on: str) -> list[str]:
    """The items of a list of references that lead to a paper and don't say where in it to read."""
    items = re.split(r"^- ", read_on, flags=re.MULTILINE)[1:]
    items = [item.split("\n\n")[0] for item in items]  # what follows the list is no part of its last item
    return [item.strip() for item in items if _PAPER.search(item) and not _SECTION.search(item)]


def test_there_are_lessons_to_look_at():
    assert {"00_start_here", "01_kv_sizing"} <= set(LESSONS)


def test_the_header_gives_minutes_difficulty_and_needs(lesson):
    header = read_header(lesson)
    assert 5 <= header.minutes <= 90
    assert 1 <= header.difficulty <= 5


def test_the_minutes_are_honest_to_a_factor_of_two(lesson):
    said, estimated = read_header(lesson).minutes, estimated_minutes(lesson)
    assert estimated / 2 <= said <= estimated * 2, (
        f"{lesson.path} says {said} minutes; by its words and code cells it takes about {estimated:.0f}: "
        "correct the header, or the length"
    )


def test_it_opens_with_a_question_and_says_what_one_can_do_afterwards(lesson):
    title = lesson.cells[0].source
    question = re.search(r"^\*\*(.+)\*\*$", title, re.MULTILINE)
    assert question
    assert "?" in question[1]
    assert re.search(r"\d|one|two|three|four|five|six|seven|eight|nine|ten", question[1]), "a question with a number"
    assert re.search(r"^Afterwards you can\n+- ", title, re.MULTILINE)


def test_every_paper_is_given_with_a_section(lesson):
    [read_on] = [cell.source for cell in lesson.cells if cell.source.startswith("## Read on")]
    assert papers_without_a_section(read_on) == []


def test_links_to_other_notebooks_lead_somewhere(lesson):
    """A lesson lies in notebooks/, and so do what it links to, or the workbooks one folder up."""
    chapters = set(all_chapters(ROOT))
    for cell in lesson.cells:
        for target in re.findall(r"\]\(([^)#]+\.ipynb)", cell.source if cell.cell_type == "markdown" else ""):
            path = (Path("notebooks") / target).as_posix()
            workbook = re.fullmatch(r"notebooks/\.\./(exercises|solutions)/(\w+)/\2\.ipynb", path)
            name = workbook[2] if workbook else path.removeprefix("notebooks/").removesuffix(".ipynb")
            assert name in chapters | {"glossary"}, target


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        ("- A, *B* ([arXiv 1](https://arxiv.org/abs/1)). Section 3.\n", 0),
        ("- A, *B* ([arXiv 1](https://arxiv.org/abs/1)), §2.1.\n", 0),
        ("- A, *B* ([arXiv 1](https://arxiv.org/abs/1)), sections 4 and 5.\n", 0),
        ("- A, *B* ([arXiv 1](https://arxiv.org/abs/1)).\n", 1),
        ("- A, *B* ([arXiv 1](https://arxiv.org/abs/1)).\n\nNext: section 3 of the workbook.\n", 1),
        ("- The [code](https://example.org/code).\n", 0),
    ],
)
def test_the_search_for_sections_is_able_to_fail(item, wanted):
    assert len(papers_without_a_section(f"## Read on\n\n{item}")) == wanted
