"""What authors write becomes cells with ids that stay, or a complaint that names file, cell and line."""

import re

import pytest

from pagedkv_lab.course.builder.source import SourceError, read_source

TITLE = "# %% [markdown]\n# # Title\n\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "lesson.py"
        path.write_text(text)
        return read_source(path, shown_as="lesson.py")

    return read


def ids(source):
    return [cell.id for cell in source.cells]


def test_reading_a_file_twice_gives_the_same_ids(read):
    text = TITLE + "# %%\nx = 1\n\n# %%\nx = 1\n\n# %%\ny = 2\n"
    assert ids(read(text)) == ids(read(text))


def test_editing_one_cell_changes_the_id_of_no_other(read):
    before = ids(read(TITLE + "# %%\nx = 1\n\n# %%\ny = 2\n\n# %%\nz = 3\n"))
    after = ids(read(TITLE + "# %%\nx = 1\n\n# %%\ny = 20\n\n# %%\nz = 3\n"))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_inserting_a_cell_changes_the_id_of_no_other(read):
    before = ids(read(TITLE + "# %%\nx = 1\n\n# %%\ny = 2\n"))
    after = ids(read(TITLE + "# %%\nnew = 0\n\n# %%\nx = 1\n\n# %%\ny = 2\n"))
    assert [cell_id for cell_id in after if cell_id in before] == before


def test_cells_with_the_same_text_get_ids_of_their_own(read):
    found = ids(read(TITLE + "# %%\nx = 1\n\n# %%\nx = 1\n\n# %%\nx = 1\n"))
    assert len(set(found)) == 4
    assert found[2] == f"{found[1]}-2"
    assert found[3] == f"{found[1]}-3"


def test_an_id_in_the_header_wins_and_leaves_no_trace_in_the_metadata(read):
    source = read(TITLE + '# %% id="mine" nbgrader={"grade_id": "theirs"}\nx = 1\n')
    assert source.cells[1].id == "mine"
    assert "id" not in source.cells[1].metadata


def test_nbgraders_grade_id_is_the_id_of_its_cell(read):
    assert ids(read(TITLE + '# %% nbgrader={"grade_id": "slot"}\nx = 1\n'))[1] == "slot"


def test_a_derived_id_makes_way_for_one_that_an_author_chose(read):
    derived = ids(read(TITLE + "# %%\nx = 1\n"))[1]
    both = ids(read(TITLE + f'# %%\nx = 1\n\n# %% id="{derived}"\ny = 2\n'))
    assert both[1:] == [f"{derived}-2", derived]


def test_all_ids_are_ones_that_jupyter_accepts(read):
    for cell_id in ids(read(TITLE + "# %%\nx = 1\n\n# %% [raw]\nraw\n\n# %% [markdown]\n# text\n")):
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell_id)


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ('# %% id="a b"\nx = 1\n', r"lesson.py, cell 2 \(a b\), line 5: an id has 1 to 64 letters"),
        ('# %% id="a"\nx = 1\n\n# %% id="a"\n\ny = 1\n', r"cell 3 \(a\), line 9: the id 'a' is taken"),
        ('# %% id="setup"\nx = 1\n', "the id 'setup' is taken by another cell, or by the builder"),
        ('# %% id="a"\nx = 1\n\n# %% nbgrader={"grade_id": "a"}\ny = 1\n', "the id 'a' is taken"),
        ('# %% nbgrader={"solution"}\nx = 1\n', "line 5: nbgrader= in the header must be JSON"),
    ],
)
def test_an_id_that_cant_be_used_is_refused_with_its_place(read, cells, complaint):
    with pytest.raises(SourceError, match=complaint):
        read(TITLE + cells)


@pytest.mark.parametrize("text", ["", "# %%\nx = 1\n", "# %% [markdown]\n# no title\n"])
def test_a_file_must_open_with_its_title(read, text):
    with pytest.raises(SourceError, match=r"must be text .* that opens with a title"):
        read(text)


@pytest.mark.parametrize("text", ["x = 1\n\n" + TITLE, TITLE + '# %%\ns = """\n# %% not a header\n"""\n'])
def test_text_that_belongs_to_no_cell_or_two_is_refused(read, text):
    with pytest.raises(SourceError, match="text before its first header, or a # %% inside a string"):
        read(text)


def test_a_broken_file_header_is_told_as_such(read):
    with pytest.raises(SourceError, match=r"lesson\.py: jupytext can't read it"):
        read("# ---\n# jupyter:\n#   kernelspec: {name: python3}\n# ---\n\n" + TITLE)


def test_what_jupytext_notes_for_itself_stays_out_of_the_notebook(read):
    source = read(TITLE + "# %%\nx = 1\n# %%\ndef f():\n    pass\n\n\n# %%\ny = 2\n")
    assert [cell.metadata for cell in source.cells] == [{}, {}, {}, {}]
