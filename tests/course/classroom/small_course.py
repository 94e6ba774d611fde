"""A course of one small chapter with all that a handout takes from a checkout, and what a learner does to it."""

from pathlib import Path

import nbformat

from pagedkv_lab.course.builder.plan import plan_chapter
from pagedkv_lab.course.classroom.notebooks import written

CHAPTER = "00_small"
EXERCISE = f"exercises/{CHAPTER}/{CHAPTER}.ipynb"
LESSON = f"notebooks/{CHAPTER}.ipynb"

_LESSON = """\
# %% [markdown]
# # 00 · A small lesson
#
# 5 minutes · Difficulty ●○○○○ · Needs nothing.

# %%
print("the lesson, version {version}")
"""

_WORKBOOK = '''\
# %% [markdown]
# # 00 · Workbook, version {version}
#
# Difficulty ●○○○○ · Importance ●●●●● · about 4 min · 1 line

# %% nbgrader={{"grade_id": "double", "grade": false, "solution": true, "locked": false, "schema_version": 3}}
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    # Return twice x (1 line).
    return 2 * x  # solved
    ### END SOLUTION


# %% nbgrader={{"grade_id": "check_double", "grade": true, "solution": false, "points": 2, "schema_version": 3}}
print(double(2))
### BEGIN HIDDEN TESTS
assert double(4) == 8
### END HIDDEN TESTS
'''

_OTHER_FILES = {
    "LICENSE": "Do what you like.\n",
    "Makefile": "lab:\n",
    "pyproject.toml": '[tool.pagedkv]\nrepository = ""\n',
    "constraints.txt": "",
    "environment.yml": "",
    "scripts/lab.sh": "",
    "scripts/unpack_model.py": "",
    "tests/test_secret.py": "",
    "pagedkv_lab/__init__.py": "VERSION = {version}\n",
    "pagedkv_lab/__pycache__/junk.pyc": "",
    "pagedkv_lab/course/classroom/hidden.py": "",
}


def write_course(root: Path, version: int = 1, workbook_version: int | None = None) -> Path:
    """The sources and the built notebooks, not executed. The version stands in every text that learners see."""
    files = _OTHER_FILES | {f"course/{CHAPTER}/lesson.py": _LESSON}
    for name, text in files.items():
        _write(root / name, text.replace("{version}", str(version)))
    workbook = _WORKBOOK.format(version=workbook_version or version)
    _write(root / "course" / CHAPTER / "workbook.py", workbook)
    for planned in plan_chapter(root, CHAPTER):
        (root / planned.path).parent.mkdir(parents=True, exist_ok=True)
        (root / planned.path).write_bytes(written(planned.notebook))
    return root


def fill_in(root: Path, line: str = "    return x + x", name: str = EXERCISE) -> bytes:
    """What a learner does to the exercise; returns the file. In a lesson, a line is added to the last cell."""
    notebook = nbformat.read(root / name, as_version=4)
    cell = next((cell for cell in notebook.cells if cell.source.startswith("def double")), notebook.cells[-1])
    cell.source += f"\n{line}"
    nbformat.write(notebook, root / name)
    return (root / name).read_bytes()


def run_only(root: Path, name: str = EXERCISE) -> None:
    """What running and saving does: outputs, counts, metadata, and an empty cell at the end."""
    notebook = nbformat.read(root / name, as_version=4)
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", text="something\n")]
    notebook.metadata.language_info["version"] = "3.99"
    notebook.cells.append(nbformat.v4.new_code_cell())
    nbformat.write(notebook, root / name)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
