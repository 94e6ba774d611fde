"""The form of a quiz in a lesson, and a reader that says where a quiz breaks it.

A quiz is Markdown with `<details>`: it works in JupyterLab, Colab, GitHub and a static page, in any theme, with
nothing running. Each choice is a fold; opening it says whether it is right, and why.

    **1. The question?**

    <details><summary>A. a choice</summary>

    > **No.** Why not.

    </details>
    <details><summary>B. another</summary>

    > **Yes.** Why.

    </details>

Knows this form. Does not know what is asked.
"""

import re
from dataclasses import dataclass

_QUESTION = re.compile(r"^\*\*(\d+)\. (.+?)\*\*$", re.MULTILINE)
_CHOICE = re.compile(r"<details><summary>([A-Z])\. (.+?)</summary>\n\n(.+?)\n\n</details>", re.DOTALL)
_VERDICT = re.compile(r"> \*\*(Yes|No)\.\*\* \S+")


@dataclass(frozen=True)
class Choice:
    """One choice with its explanation, a block quote that opens with a bold "Yes." or "No."."""

    letter: str
    text: str
    explanation: str

    @property
    def is_right(self) -> bool:
        return self.explanation.startswith("> **Yes.** ")


@dataclass(frozen=True)
class Question:
    number: int
    text: str
    choices: tuple[Choice, ...]


def read_quiz(markdown: str) -> list[Question]:
    """The questions of a quiz (its cells, one below the other), in order."""
    questions = list(_QUESTION.finditer(markdown))
    ends = [match.start() for match in questions[1:]] + [len(markdown)]
    return [
        Question(
            int(match[1]), match[2], tuple(Choice(*found) for found in _CHOICE.findall(markdown[match.end() : end]))
        )
        for match, end in zip(questions, ends, strict=True)
    ]


def problems(markdown: str) -> list[str]:
    """What is wrong with a quiz, a sentence each; empty where it is in order."""
    questions = read_quiz(markdown)
    found = []
    if markdown.count("<details>") != sum(len(question.choices) for question in questions):
        found.append("A fold is not in the form of a choice: letter, text, empty line, explanation, empty line.")
    numbers = [question.number for question in questions]
    if numbers != list(range(1, len(numbers) + 1)) or not 4 <= len(numbers) <= 6:
        found.append(f"A quiz has 4 to 6 questions, numbered from 1; this one has {numbers}.")
    for question in questions:
        where = f"Question {question.number}"
        letters = "".join(choice.letter for choice in question.choices)
        if len(letters) < 3 or letters != "ABCDEFG"[: len(letters)]:
            found.append(f"{where} has the choices {letters!r}; there are at least three, lettered from A.")
        right = sum(choice.is_right for choice in question.choices)
        if right != 1:
            found.append(f"{where} has {right} right choices, not one.")
        found += [
            f"{where}, choice {choice.letter}: the explanation must open with > **Yes.** or > **No.** and say why."
            for choice in question.choices
            if not _VERDICT.match(choice.explanation)
        ]
    return found
