"""A new chapter builds, and the tests of chapters pass on it, before anybody has written a word."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pagedkv_lab.course.classroom.new_chapter import new_chapter
from pagedkv_lab.errors import PagedKVError

ROOT = Path(__file__).parents[3]
CHAPTER = "42_small_talk"
WRITTEN = (
    f"course/{CHAPTER}/lesson.py",
    f"course/{CHAPTER}/workbook.py",
    "pagedkv_lab/course/checks/small_talk.py",
    "tests/mutants/small_talk_mutants.py",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Enough of this checkout to write a chapter in, and the chapter."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("pagedkv_lab", "tests/course", "tests/mutants"):  # with caches: compiled attention is in them
        shutil.copytree(ROOT / folder, root / folder)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "course").mkdir()
    environment_of(root)
    run(root, "-m", "pagedkv_lab.cli", "course", "new", CHAPTER)
    return root


def environment_of(root: Path) -> None:
    """An environment of this checkout's own, that sees the packages of this one: kernels import from there, too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([root / ".venv/bin/python", "-c", code], capture_output=True, text=True, check=True)
    ours = sysconfig.get_path("purelib")
    line = f"import site, sys; sys.path.insert(0, {str(root)!r}); site.addsitedir({ours!r})\n"
    Path(done.stdout.strip(), "checkout.pth").write_text(line)


def run(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [root / ".venv/bin/python", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_files_are_there_and_registered(checkout):
    for path in WRITTEN:
        text = (checkout / path).read_text()
        assert "$" not in text, path
    registry = (checkout / "pagedkv_lab/course/checks/registry.py").read_text()
    assert '    ("42_small_talk", "Small talk", "small_talk"),\n)\n' in registry


def test_it_builds(checkout):
    run(checkout, "-m", "pagedkv_lab.cli", "course", "build", "42")
    run(checkout, "-m", "pagedkv_lab.cli", "course", "build", "--check", "42")


def test_the_tests_of_chapters_pass_on_it(checkout):
    tests = [f"tests/course/{name}.py" for name in ("test_lessons", "test_untouched_exercises")]
    said = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", "42_small_talk")
    assert " passed" in said


def test_its_notebooks_run_twice_under_nbval(checkout, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "notebooks"))
    run(checkout, "-m", "pagedkv_lab.cli", "course", "build", "42")
    options = ("-q", "-p", "nbval_twice", "-p", "no:cacheprovider", "--nbval-lax")
    assert " passed" in run(checkout, "-m", "pytest", *options, "notebooks", "solutions")


def test_its_mutants_get_their_diagnoses(checkout):
    chosen = "(full_blocks_42 or small_talk) and not table"
    said = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mutants", "-k", chosen)
    assert "10 passed" in said


def test_its_code_is_written_as_the_rest(checkout):
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if ruff is None:
        pytest.skip("there is no ruff")
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, *WRITTEN], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["demo", "7_demo", "42-demo", "42_", "42_Demo", "../42_demo", "42_small_talk"])
def test_a_name_that_will_not_do_is_refused_and_nothing_is_written(checkout, name):
    before = sorted(path for path in checkout.rglob("*.py"))
    with pytest.raises(PagedKVError, match=r"is called like 16_speculative_decoding|is there already"):
        new_chapter(name, checkout)
    assert sorted(path for path in checkout.rglob("*.py")) == before


def test_a_number_that_is_taken_is_refused(checkout):
    with pytest.raises(PagedKVError, match="course/42_small_talk is there already"):
        new_chapter("42_other", checkout)


def test_a_check_of_the_same_name_is_not_overwritten(checkout):
    with pytest.raises(PagedKVError, match=r"small_talk\.py is there already; nothing was written"):
        new_chapter("43_small_talk", checkout)
    assert not (checkout / "course" / "43_small_talk").exists()


def test_it_says_what_comes_next(tmp_path):
    (tmp_path / "course").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    registry = tmp_path / "pagedkv_lab/course/checks/registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text('_CHAPTERS = (\n    ("00_start_here", "Start here", "start_here"),\n)\n')
    said = "\n".join(new_chapter("08_scheduler", tmp_path))
    for word in ("course build 08", "registry", "mutants", "glossary.py", "outline.py", "slot="):
        assert word in said
    assert '    ("08_scheduler", "Scheduler", "scheduler"),\n)' in registry.read_text()


def test_a_registry_that_looks_otherwise_is_left_alone(tmp_path):
    (tmp_path / "course").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    registry = tmp_path / "pagedkv_lab/course/checks/registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text("_CHAPTERS = []\n")
    with pytest.raises(PagedKVError, match="nothing was written"):
        new_chapter("08_scheduler", tmp_path)
    assert not (tmp_path / "course" / "08_scheduler").exists()
