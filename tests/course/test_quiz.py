"""Every quiz of the course is in order: one right choice a question, and a reason for each choice."""

from pathlib import Path

import jupytext
import pytest

from pagedkv_lab.course.quiz import problems, read_quiz

LESSONS = sorted((Path(__file__).parents[2] / "course").glob("*/lesson.py"))


def quiz_of(lesson: Path) -> str:
    """The quiz's cells: from the heading to the next one."""
    cells = [cell for cell in jupytext.read(lesson).cells if cell.cell_type == "markdown"]
    starts = [i for i, cell in enumerate(cells) if cell.source.startswith("## Quiz")]
    assert len(starts) == 1, f"{lesson} has {len(starts)} cells that begin with ## Quiz"
    texts = [cells[starts[0]].source]
    for cell in cells[starts[0] + 1 :]:
        if cell.source.startswith("#"):
            break
        texts.append(cell.source)
    return "\n\n".join(texts)


def fold(letter: str, explanation: str) -> str:
    return f"<details><summary>{letter}. a choice</summary>\n\n{explanation}\n\n</details>\n"


def question(number: int, *explanations: str) -> str:
    return f"**{number}. Why?**\n\n" + "".join(fold("ABCD"[i], text) for i, text in enumerate(explanations)) + "\n"


GOOD = ("> **No.** Because.", "> **Yes.** Because.", "> **No.** Because.")


def quiz(*changed: str) -> str:
    """Four questions, the first ones as given."""
    return "".join([*changed, *(question(n, *GOOD) for n in range(len(changed) + 1, 5))])


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.parent.name for lesson in LESSONS])
def test_a_lessons_quiz_is_in_order(lesson):
    assert problems(quiz_of(lesson)) == []


def test_there_are_lessons_to_look_at():
    assert {"00_start_here", "01_kv_sizing"} <= {lesson.parent.name for lesson in LESSONS}


def test_reading_finds_questions_choices_and_the_right_one():
    found = read_quiz(quiz())
    assert [q.number for q in found] == [1, 2, 3, 4]
    assert found[0].text == "Why?"
    assert [(c.letter, c.is_right) for c in found[0].choices] == [("A", False), ("B", True), ("C", False)]
    assert problems(quiz()) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (quiz(question(1, "> **No.** a", "> **No.** b", "> **No.** c")), "0 right choices"),
        (quiz(question(1, "> **Yes.** a", "> **Yes.** b", "> **No.** c")), "2 right choices"),
        (quiz(question(1, "> **Yes.** a", "> **No.** b")), "at least three"),
        (quiz(question(1, "> **Yes.** a", "> **No.** b", "Wrong, because.")), "choice C: the explanation"),
        (quiz(question(1, "> **Yes.** a", "> **No.** b", "> **No.**")), "choice C: the explanation"),
        (quiz(question(2, *GOOD)), "numbered from 1"),
        (question(1, *GOOD), "4 to 6 questions"),
        (quiz().replace("A. a choice", "a choice"), "not in the form"),
    ],
    ids=["no right one", "two right ones", "two choices", "no verdict", "no reason", "numbers", "one question", "form"],
)
def test_a_broken_quiz_is_told_what_is_wrong(broken, complaint):
    assert any(complaint in problem for problem in problems(broken))
