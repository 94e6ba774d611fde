"""A solution cell becomes the exercise that its author meant, or a complaint."""

import pytest

from pagedkv_lab.course.builder.regions import RegionError, exercise_of, lines_not_in

FUNCTION = '''\
def f(x):
    """Twice x."""
'''


def test_the_opening_comment_stays_and_the_code_and_the_markers_go():
    solution = FUNCTION + (
        "    ### BEGIN SOLUTION\n    # Double it.\n    # (1 line)\n    y = 2 * x\n    # a remark\n    return y\n"
        "    ### END SOLUTION"
    )
    assert exercise_of(solution) == FUNCTION + "    # Double it.\n    # (1 line)"


def test_each_region_of_a_cell_has_its_own_stub():
    solution = (
        "a = 1\n### BEGIN SOLUTION\n# First.\na += 1\n### END SOLUTION\nb = 2\n"
        "### BEGIN SOLUTION\n\n# Second.\n\n# And third.\n\nb += 1\n### END SOLUTION\nc = 3"
    )
    assert exercise_of(solution) == "a = 1\n# First.\nb = 2\n\n# Second.\n\n# And third.\nc = 3"


def test_hidden_tests_leave_no_trace():
    solution = "assert f(1)\n### BEGIN HIDDEN TESTS\n# secret\nassert f(2)\n### END HIDDEN TESTS"
    assert exercise_of(solution) == "assert f(1)"


def test_a_cell_without_regions_is_handed_out_as_it_is():
    source = "x = 1  # BEGIN SOLUTION is only a remark here\n%timeit x\nx +"  # even if it is no Python at all
    assert exercise_of(source) == source


@pytest.mark.parametrize(
    ("source", "line", "complaint"),
    [
        ("x\n### BEGIN SOLUTION\ny\n### END SOLUTION", 1, "has no stub"),
        ("x\n### BEGIN SOLUTION\n\n### END SOLUTION", 1, "has no stub"),
        ("### BEGIN SOLUTION\n# stub\ny", 0, "without an '### END SOLUTION' below it"),
        ("x\ny\n### END SOLUTION", 2, "without a '### BEGIN SOLUTION' above it"),
        ("### BEGIN SOLUTION\n# stub\n### BEGIN SOLUTION\n### END SOLUTION", 2, "inside a region"),
        ("x = 1  ### BEGIN SOLUTION\n# stub\n### END SOLUTION", 0, "must stand alone on its line"),
        ("### BEGIN HIDDEN TESTS\nx", 0, "without an '### END HIDDEN TESTS' below it"),
        ("def f():\n    ### BEGIN SOLUTION\n    # stub\n    return 1\n    ### END SOLUTION", 0, "docstring"),
        ("x = [\n### BEGIN SOLUTION\n# stub\n1]\n### END SOLUTION", 0, "without its solution this cell is not valid"),
    ],
)
def test_regions_that_would_make_a_broken_exercise_are_refused(source, line, complaint):
    with pytest.raises(RegionError, match=complaint) as caught:
        exercise_of(source)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "rest",
    ["%matplotlib inline", "!ls", "await f()", "x = 7\ny = (x\n     % 3)", "if x:\n    %time x"],
)
def test_what_only_a_notebook_understands_is_valid_in_an_exercise(rest):
    exercise_of("### BEGIN SOLUTION\n# stub\nx = 1\n### END SOLUTION\n" + rest)


def test_a_solution_that_adds_lines_keeps_its_stub():
    assert lines_not_in("a\nc\nc", "a\nb\nc\nd\nc\n") == []


@pytest.mark.parametrize(
    ("solution", "missing"),
    [
        ("a\nB\nc", ["b"]),  # a line changed
        ("a\nc", ["b"]),  # a line left out
        ("b\na\nc", ["b"]),  # two lines swapped
        ("a\n    b\nc", ["b"]),  # a line indented
        ("", ["a", "b", "c"]),
    ],
)
def test_a_solution_that_changes_its_stub_is_found_out_line_by_line(solution, missing):
    assert lines_not_in("a\nb\nc", solution) == missing
