"""Makes a chapter to be filled. It builds, and its tests pass, before its author has written a word.

    course/NN_topic/lesson.py, workbook.py      what a learner reads and writes
    pagedkv_lab/course/checks/topic.py          what judges it
    tests/mutants/topic_mutants.py              what shows that the judgement is right
    pagedkv_lab/course/checks/registry.py       one line more

Knows where the pieces of a chapter go. What is in them stands in template.py.
"""

import re
from pathlib import Path, PurePosixPath
from string import Template

from pagedkv_lab.course.builder.plan import find_root
from pagedkv_lab.course.classroom import template
from pagedkv_lab.course.classroom.copies import replace
from pagedkv_lab.course.outline import COURSE, NUM_WRITTEN
from pagedkv_lab.errors import PagedKVError

_REGISTRY = PurePosixPath("pagedkv_lab/course/checks/registry.py")
_LIST = re.compile(r"^_CHAPTERS = \(\n((?:    \(.*\),\n)*)\)\n", re.MULTILINE)


def new_chapter(chapter: str, start: Path | None = None) -> list[str]:
    """Write the files of the chapter NN_topic, and return what to do next, in sentences. Raises PagedKVError.

    Nothing is written where one of the files exists, or the number is taken.
    """
    root = find_root(start or Path.cwd())
    if not re.fullmatch(r"\d\d_[a-z][a-z0-9_]*", chapter):
        raise PagedKVError(
            f"a chapter is called like 16_speculative_decoding: two digits, a topic. {chapter!r} is not."
        )
    number, _, topic = chapter.partition("_")
    outlined = next((known for known in COURSE if known.folder == chapter), None)
    taken = sorted(folder.name for folder in (root / "course").glob(f"{number}_*"))
    if taken:
        raise PagedKVError(f"course/{taken[0]} is there already.")
    title = outlined.title if outlined else topic.replace("_", " ").capitalize()
    names = {"chapter": chapter, "number": number, "int": str(int(number)), "title": title}
    names["name"] = f"full_blocks_{number}"
    files = {
        PurePosixPath("course", chapter, "lesson.py"): template.LESSON,
        PurePosixPath("course", chapter, "workbook.py"): template.WORKBOOK,
        PurePosixPath("pagedkv_lab/course/checks", f"{topic}.py"): template.CHECKS,
        PurePosixPath("tests/mutants", f"{topic}_mutants.py"): template.MUTANTS,
    }
    for path in files:
        if (root / path).exists():
            raise PagedKVError(f"{path} is there already; nothing was written.")
    registry = _registered((root / _REGISTRY).read_text(encoding="utf-8"), chapter, title, topic)
    for path, text in files.items():
        replace(root / path, Template(text).substitute(names).encode("utf-8"))
    replace(root / _REGISTRY, registry.encode("utf-8"))
    return [f"wrote {path}" for path in files] + [f"added a line to {_REGISTRY}", *_what_is_next(number, names["name"])]


def _registered(text: str, chapter: str, title: str, topic: str) -> str:
    """The registry's text with a line more, in its place among the chapters."""
    found = _LIST.search(text)
    if not found:
        raise PagedKVError(f"{_REGISTRY} has no list _CHAPTERS of the form that is known; nothing was written.")
    lines = sorted({*found[1].splitlines(keepends=True), f'    ("{chapter}", "{title}", "{topic}"),\n'})
    return text[: found.start(1)] + "".join(lines) + text[found.end(1) :]


def _what_is_next(number: str, name: str) -> list[str]:
    written = f"NUM_WRITTEN is {NUM_WRITTEN}; it counts the chapters that are there"
    return [
        "It builds as it is. Next:",
        f"  pagedkv course build {number}",
        f"  python -m pytest tests/mutants -k {name}",
        "Then replace the example, piece by piece:",
        "  lesson.py, workbook.py   the shape of both: CONTRIBUTING.md, and chapter 01 to look at",
        f"  outline.py               the chapter's row in COURSE: its question, the slots it fills ({written})",
        "  checks, registry         the name of each exercise; slot=... where its solution is a part of the engine",
        "  mutants                  5 wrong and 3 right each (8 and 4 for a part), then: python tests/mutants/table.py",
        "  glossary.py              the terms that the lesson explains",
    ]
