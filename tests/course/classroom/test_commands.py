"""The commands of the classroom, as a person types them: what is done is said, and a refusal is one line."""

import pytest
from small_course import CHAPTER, EXERCISE, fill_in, write_course

from pagedkv_lab.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command line in a small course: exit status, lines on stdout, lines on stderr."""
    write_course(tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "repository")

    def run(*arguments):
        status = main(["course", *arguments])
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    return run


def test_swap(run):
    status, out, errors = run("swap", CHAPTER, "--to", "solution")
    assert (status, out[0], errors) == (0, f"{EXERCISE} is the solution now.", [])


def test_swap_needs_to_know_to_what(run):
    status, out, errors = run("swap", "0")
    assert (status, out) == (2, [])
    assert errors == ["pagedkv: Missing option '--to' (see pagedkv course swap --help)"]
    assert run("swap", "0", "--to", "mine")[0] == 2
    assert run("swap", "0", "--to", "nothing")[0] == 2


def test_release(run, tmp_path):
    status, out, errors = run("release", str(tmp_path / "out"), "0")
    assert (status, errors) == (0, [])
    assert str(tmp_path / "out") in out[0]
    assert (tmp_path / "out" / EXERCISE).is_file()
    status, out, [line] = run("release", str(tmp_path / "out"))
    assert (status, out) == (2, [])
    assert "is not empty" in line


def test_update(run, tmp_path, monkeypatch):
    run("release", str(tmp_path / "mine"))
    write_course(tmp_path / "repository", version=2)
    monkeypatch.chdir(tmp_path / "mine")
    fill_in(tmp_path / "mine")
    status, out, errors = run("update", "--from", "../repository", "--dry-run")
    assert (status, errors) == (0, [])
    assert out[0] == f"{EXERCISE}: would be: edited by you, and left as it is; the exercise itself has changed"
    assert run("update", "--from", "../repository")[0] == 0
    assert run("update", "--from", "../nowhere")[0] == 2


def test_new(run):
    status, out, [line] = run("new", "nonsense")
    assert (status, out) == (2, [])
    assert "is called like 16_speculative_decoding" in line
