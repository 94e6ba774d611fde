"""The command line as a person meets it: help at once, mistakes in one line, Ctrl-C that ends."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import typer

from pagedkv_lab.cli import app, main
from pagedkv_lab.errors import PagedKVError

COURSE_COMMANDS = [f"course {name}" for name in ("build", "new", "release", "swap", "update")]
COMMANDS = ["", "bench", "course", *COURSE_COMMANDS, "demo", "doctor", "plan", "progress"]
CHECK = ["course", "build", "--check"]


@pytest.fixture
def run(capsys):
    """Run one command line in this process: exit status, stdout, lines on stderr."""

    def run(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err.splitlines()

    return run


@pytest.fixture
def failing(monkeypatch):
    """Make `pagedkv course build --check` raise this."""

    def failing(error):
        def check(names):
            raise error

        monkeypatch.setattr("pagedkv_lab.course.builder.console.check", check)

    return failing


def pagedkv(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "pagedkv_lab.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# Help


def commands(command, path=""):
    """The names of a command and of all below it."""
    yield path.strip()
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def test_the_list_of_commands_in_this_file_is_complete():
    assert sorted(commands(typer.main.get_command(app))) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run, command):
    status, out, errors = run(*command.split(), "--help")
    assert (status, errors) == (0, [])
    assert "Usage: pagedkv" in out


@pytest.mark.parametrize("group", [[], ["course"]])
def test_a_group_alone_shows_its_help(run, group):
    assert run(*group)[:2] == run(*group, "--help")[:2]


def test_help_comes_at_once():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = pagedkv("--help")
        process.communicate(timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor, which other tests beside this one don't change.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5


def test_help_loads_nothing_heavy():
    code = "import sys; from pagedkv_lab.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "matplotlib", "jupytext", "nbclient", "IPython"}
    assert heavy & set(done.stderr.split()) == set()


def test_version(run):
    status, out, errors = run("--version")
    assert (status, errors) == (0, [])
    assert out.startswith("pagedkv 0.")


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope' (see pagedkv --help)"),
        (["--nope"], "No such option: --nope (see pagedkv --help)"),
        (["course", "nope"], "No such command 'nope' (see pagedkv course --help)"),
        (["course", "build", "--nope"], "No such option: --nope (see pagedkv course build --help)"),
        (["plan"], "Missing argument 'MODEL_OR_CONFIG' (see pagedkv plan --help)"),
        (["plan", "TinyLlama", "--users"], "Option '--users' requires an argument"),
        (["bench"], "Missing argument 'SUITE' (see pagedkv bench --help)"),
        (
            ["bench", "nope"],
            "there is no suite 'nope'; choose one of engine, attention, blocks, scaling, view, perplexity",
        ),
        (["bench", "engine", "--vllm-python", "/nowhere/python"], "--vllm-python: there is no /nowhere/python"),
        (["bench", "scaling", "--json", "/nowhere/out.json"], "/nowhere/out.json: No such file or directory"),
    ],
)
def test_a_slip_on_the_command_line_is_told_in_one_line(run, arguments, message):
    status, out, errors = run(*arguments)
    assert (status, out) == (2, "")
    assert errors == [f"pagedkv: {message}"]


def test_a_value_of_the_wrong_kind_is_told_in_one_line(run):
    status, out, [line] = run("plan", "TinyLlama", "--users", "many", "--memory", "1GB", "--tokens", "1")
    assert (status, out) == (2, "")
    assert line.startswith("pagedkv: Invalid value for '--users': ")
    assert line.endswith(" (see pagedkv plan --help)")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PagedKVError("The pool is empty."), "The pool is empty."),
        (ValueError("too many\n  users:\n  3"), "too many users: 3"),
        (FileNotFoundError(2, "No such file or directory", "a.json"), "a.json: No such file or directory"),
        (PermissionError(13, "Permission denied", "a.json"), "a.json: Permission denied"),
        (OSError("the hub can't be reached"), "the hub can't be reached"),
        (json.JSONDecodeError("Expecting value", "", 0), "Expecting value: line 1 column 1 (char 0)"),
        (ValueError(), "ValueError"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            "the package torch is not installed here; `pagedkv doctor` says what to do",
        ),
    ],
)
def test_what_is_wrong_with_the_input_is_told_in_one_line(run, failing, error, message):
    failing(error)
    assert run(*CHECK) == (2, "", [f"pagedkv: {message}"])


@pytest.mark.parametrize("error", [TypeError("no"), ModuleNotFoundError("gone", name="pagedkv_lab.gone")])
def test_a_bug_is_called_a_bug_in_one_line(run, failing, error):
    failing(error)
    status, _, [line] = run(*CHECK)
    assert status == 1
    assert line == f"pagedkv: this is a bug, {type(error).__name__}: {error} (--debug shows where)"


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(run, failing, place):
    failing(ValueError("here"))
    status, _, errors = run(*CHECK[:place], "--debug", *CHECK[place:])
    assert status == 2
    assert errors[0] == "Traceback (most recent call last):"
    assert errors[-2:] == ["ValueError: here", "pagedkv: here"]


def test_an_unknown_chapter_is_bad_input(run, tmp_path, monkeypatch):
    (tmp_path / "course" / "00_tiny").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert run("course", "build", "99") == (2, "", ["pagedkv: there is no chapter '99' in course/; there is 00_tiny."])


@pytest.mark.parametrize("verdict", [0, 1])
def test_a_commands_verdict_is_its_exit_status(run, monkeypatch, verdict):
    monkeypatch.setattr("pagedkv_lab.course.builder.console.check", lambda names: verdict)
    assert run(*CHECK) == (verdict, "", [])


def test_without_a_checkout_bench_says_where_the_benchmarks_are(run, monkeypatch, tmp_path):
    monkeypatch.setattr("pagedkv_lab.cli.__file__", str(tmp_path / "pagedkv_lab" / "cli.py"))
    status, out, [line] = run("bench", "scaling")
    assert (status, out) == (2, "")
    assert line.startswith(f"pagedkv: there is no benchmarks/ beside the package in {tmp_path}: it comes with the ")


# Being stopped


def test_control_c_is_told_in_one_line(run, failing):
    failing(KeyboardInterrupt())
    assert run(*CHECK) == (130, "", ["pagedkv: stopped"])


def test_control_c_stops_a_build_and_its_kernel_and_leaves_no_notebook(tmp_path):
    chapter = tmp_path / "course" / "00_slow"
    chapter.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (chapter / "lesson.py").write_text(
        "# %% [markdown]\n# # Slow\n\n# %%\nimport os, pathlib, time\n"
        "pathlib.Path('part').write_text(str(os.getpid()))\nos.replace('part', 'pid')\ntime.sleep(60)\n"
    )
    build = pagedkv("course", "build", cwd=tmp_path, start_new_session=True)
    pid = tmp_path / "notebooks" / "pid"
    deadline = time.monotonic() + 60
    while not pid.exists():
        assert time.monotonic() < deadline
        assert build.poll() is None, build.communicate()
        time.sleep(0.05)
    os.killpg(build.pid, signal.SIGINT)
    _, errors = build.communicate(timeout=30)
    assert (build.returncode, errors) == (130, "pagedkv: stopped\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not list(tmp_path.rglob("*.ipynb*"))


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments):
    process = pagedkv(*arguments)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=30) == 1
