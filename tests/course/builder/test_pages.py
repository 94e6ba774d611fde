"""The glossary's page and the README's list of chapters are made of the lessons, and a check finds them stale."""

import nbformat
import pytest
from tiny_course import LESSON, write_course

from pagedkv_lab.course.builder import console
from pagedkv_lab.course.builder.header import Header, estimated_minutes, exercise_minutes, read_header
from pagedkv_lab.course.builder.pages import GLOSSARY, README, build_pages, plan_pages, stale_pages
from pagedkv_lab.course.builder.source import SourceError, read_source

LINE = "25 minutes · Difficulty ●●●○○ · Needs nothing but paper. It rains."
START_HERE = f"# %% [markdown]\n# # 00 · Begin\n#\n# {LINE}\n\n# %%\nkey_terms('slot')\n"
EXERCISE = (
    "# %% [markdown]\n# # Exercises\n\n"
    "# %% [markdown]\n# ## Exercise 0.1: a\n#\n# Difficulty ●○○○○ · Importance ●●●○○ · about 3 min · 1 line\n\n"
    "# %% [markdown]\n# ## Stretch 0.2: b\n#\n# Difficulty ●○○○○ · Importance ●●●○○ · about 9 min · 1 line\n"
)
MARKED = "# Lab\n\n<!-- chapters:start -->\nold\n<!-- chapters:end -->\n\nThe rest.\n"


@pytest.fixture
def course(tmp_path):
    """A course whose only chapter is one of the outline's, with a README."""
    folder = tmp_path / "course" / "00_start_here"
    folder.mkdir(parents=True)
    (folder / "lesson.py").write_text(START_HERE)
    (folder / "workbook.py").write_text(EXERCISE)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / README).write_text(MARKED)
    return tmp_path


def source(tmp_path, text):
    path = tmp_path / "lesson.py"
    path.write_text(text)
    return read_source(path, shown_as="lesson.py")


def test_the_readme_lists_all_chapters_and_keeps_the_rest(course):
    build_pages(course)
    lines = (course / README).read_text().splitlines()
    assert lines[:3] == ["# Lab", "", "<!-- chapters:start -->"]
    assert lines[-3:] == ["<!-- chapters:end -->", "", "The rest."]
    row = next(line for line in lines if line.startswith("| 00 |"))
    assert "[Start here](notebooks/00_start_here.ipynb)" in row
    assert "| 25 + 12 | ●●●○○ |" in row
    assert "| to come |" in next(line for line in lines if line.startswith("| 07 |"))


def test_a_readme_without_the_two_comments_is_left_alone(course):
    (course / README).write_text("# Lab\n")
    assert set(plan_pages(course)) == {GLOSSARY}


def test_the_glossary_is_a_valid_notebook_of_text_alone(course):
    build_pages(course)
    notebook = nbformat.read(course / GLOSSARY, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert {cell.cell_type for cell in notebook.cells} == {"markdown"}
    assert any("*[00 · Begin](00_start_here.ipynb)*" in cell.source for cell in notebook.cells)


def test_a_second_build_changes_nothing(course):
    assert len(build_pages(course)) == 2
    assert build_pages(course) == []


def test_a_changed_header_makes_the_readme_stale_and_a_listed_term_the_glossary(course):
    build_pages(course)
    lesson = course / "course" / "00_start_here" / "lesson.py"
    lesson.write_text(START_HERE.replace("25 minutes", "30 minutes"))
    assert stale_pages(course) == [README]
    lesson.write_text(START_HERE.replace("'slot'", "'slot', 'pool'"))
    assert stale_pages(course) == [GLOSSARY]


def test_the_check_names_the_page_and_the_command_that_mends_it(built, capsys):
    (built / GLOSSARY).unlink()
    assert console.check([], built) == 1
    assert capsys.readouterr().out.splitlines() == [
        "notebooks/glossary.ipynb: is not what the lessons and the glossary make it.",
        "Run: pagedkv course build pages",
    ]
    assert console.build(["pages"], built) == 0
    assert capsys.readouterr().out == "built notebooks/glossary.ipynb\n"
    assert console.check([], built) == 0


def test_pages_can_be_named_beside_a_chapter_and_the_chapter_is_built_too(tmp_path, capsys):
    root = write_course(tmp_path, lesson="# %% [markdown]\n# # T\n")
    assert console.build(["pages", "0"], root) == 0
    assert "built notebooks/00_tiny.ipynb" in capsys.readouterr().out


# A lesson's header


def test_a_header_is_read(tmp_path):
    lesson = source(tmp_path, START_HERE)
    assert read_header(lesson) == Header("00 · Begin", 25, 3, "Needs nothing but paper")
    assert read_header(lesson).dots == "●●●○○"


@pytest.mark.parametrize(
    "line",
    ["25 minutes.", LINE.replace("●●●○○", "●●●○"), LINE.replace("Needs", "Requires"), LINE.replace("25", "Some"), ""],
)
def test_a_lesson_without_a_header_is_named(tmp_path, line):
    with pytest.raises(SourceError, match=r"lesson\.py, cell 1 .*30 minutes · Difficulty"):
        read_header(source(tmp_path, START_HERE.replace(LINE, line)))


def test_a_workbooks_minutes_are_those_of_its_exercises(tmp_path):
    assert exercise_minutes(source(tmp_path, EXERCISE)) == 12
    assert exercise_minutes(source(tmp_path, LESSON)) == 0


def test_reading_time_counts_words_and_code_cells_but_no_addresses_and_no_markup(tmp_path):
    words = " ".join(["word"] * 198)
    text = f"# %% [markdown]\n# # The title\n#\n# {words}\n#\n# | |\n# |:--|\n#\n# </details>\n\n# %%\nx = 1\n"
    assert estimated_minutes(source(tmp_path, text)) == pytest.approx(200 / 200 + 0.5)
    linked = text.replace("word ", "[word](https://example.org/a/b/c) ", 1)
    assert estimated_minutes(source(tmp_path, linked)) == pytest.approx(1.5)
