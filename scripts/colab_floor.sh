#!/usr/bin/env bash
# Make the environment in which `make test-colab-floor` runs. Usage: scripts/colab_floor.sh BIN FOLDER (called by make).
# It sees everything of BIN's environment, torch and the course included, but Colab's old versions come first on its path.
set -euo pipefail
bin=$1 folder=$2
packages_of() { "$1/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

"$bin/python" -m venv --clear --without-pip "$folder"
# Not a plain line with the path: the course is installed as editable, and only addsitedir reads that.
echo "import site; site.addsitedir('$(packages_of "$bin")')" > "$(packages_of "$folder/bin")/course.pth"
"$bin/python" -m pip --python "$folder/bin/python" --disable-pip-version-check --quiet install --no-deps -r constraints-colab.txt
