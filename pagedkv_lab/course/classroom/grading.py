"""nbgrader with the folders of this course: solutions/ is its source, and all that it makes goes to class/.

    # nbgrader_config.py, in the course's root
    configure(get_config())

Three steps of nbgrader's are replaced by our own: what a learner gets in the place of a solution, hidden tests, and
how a submission is run. Everything else is nbgrader's.

Knows nbgrader, which is in the extra `instructors`; nothing else imports this module.
"""

import ast
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Integer

from pagedkv_lab.course.builder.regions import HIDDEN_TESTS, SOLUTION, exercise_of, has_region

#: Where nbgrader's folders and its gradebook go, beside solutions/. Not for git: there are grades in it.
FOLDER = "class"

#: Seconds that a cell of a submission may take. The check of a chapter takes a second; the longest cell generates with
#: the bundled model. A call without an end is stopped by the check itself, after two seconds.
CELL_SECONDS = 180

# What a submission's kernel finds in its environment. No hub: a grade must not hang on a network. One thread each.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PAGEDKV_STATIC": "1"}


def configure(config: Any) -> None:
    """Set nbgrader up, in the configuration that `get_config()` gives, for the course in the working directory."""
    Path(FOLDER).mkdir(exist_ok=True)  # SQLite makes files, not folders
    # nbgrader calls `alembic` by its bare name; it lies beside this Python, whose environment need not be activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    config.CourseDirectory.source_directory = "solutions"
    for step in ("release", "submitted", "autograded", "feedback", "solution", "source_with_tests"):
        config.CourseDirectory[f"{step}_directory"] = f"{FOLDER}/{step}"
    config.ZipCollectApp.downloaded_directory = f"{FOLDER}/downloaded"
    config.CourseDirectory.db_url = f"sqlite:///{FOLDER}/gradebook.db"
    config.Execute.timeout = CELL_SECONDS
    config.GenerateAssignment.preprocessors = [
        HideTests,
        *(Stubs if step is ClearSolutions else step for step in _steps(GenerateAssignment, "preprocessors")),
    ]
    config.Autograde.autograde_preprocessors = [
        ExecuteApart if step is Execute else step for step in _steps(Autograde, "autograde_preprocessors")
    ]


class Stubs(NbGraderPreprocessor):
    """The course's own stubs: the comments that open a solution stay, and nothing is raised in its place."""

    def preprocess_cell(self, cell: NotebookNode, resources: Any, index: int) -> tuple[NotebookNode, Any]:
        if is_solution(cell) and has_region(cell.source, SOLUTION):
            cell.source = exercise_of(cell.source)
        return cell, resources


class HideTests(NbGraderPreprocessor):
    """Adds a hidden test to each check that has none: the same check, on cases that nobody has seen.

    nbgrader keeps it in its gradebook, takes it out of what is handed out, and puts it back when it grades.
    """

    seed = Integer(help="Decides which cases are drawn; another one each time an assignment is made, if not set.").tag(
        config=True
    )

    def _seed_default(self) -> int:
        return secrets.randbelow(10**9)

    def preprocess_cell(self, cell: NotebookNode, resources: Any, index: int) -> tuple[NotebookNode, Any]:
        if is_grade(cell) and cell.cell_type == "code" and not has_region(cell.source, HIDDEN_TESTS):
            checked = _checked(cell.source)
            if checked:
                begin, end = HIDDEN_TESTS
                cell.source += (
                    f"\n{begin}\nfrom pagedkv_lab.course.classroom.hidden import hidden_test\n\n"
                    f"hidden_test({self.seed}, {checked})\n{end}"
                )
        return cell, resources


class ExecuteApart(Execute):
    """Runs a submission with a memory of its own.

    A check remembers a pass and keeps parts for later chapters. Without this, those of one learner would be found in
    the next one's run, and in the instructor's own progress.
    """

    def preprocess(self, nb: NotebookNode, resources: Any, *args: Any, **kwargs: Any) -> tuple[NotebookNode, Any]:
        before = dict(os.environ)
        with tempfile.TemporaryDirectory(prefix="pagedkv-grading-") as home:
            os.environ.update(_ENVIRONMENT, PAGEDKV_HOME=home)  # the kernel inherits it
            try:
                return super().preprocess(nb, resources, *args, **kwargs)
            finally:
                os.environ.clear()
                os.environ.update(before)


def _checked(source: str) -> str:
    """The arguments of a cell's calls of `check`, as text: "paged_bytes=paged_bytes". "" where it calls none."""
    arguments = [
        keyword
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "check"
        for keyword in node.keywords
    ]
    return ", ".join(f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in arguments)


def _steps(converter: Any, name: str) -> list[Any]:
    """nbgrader's own list of steps, whatever its version has in it."""
    return converter.class_traits()[name].default()
