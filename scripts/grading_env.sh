#!/usr/bin/env bash
# Make the environment in which nbgrader runs. Usage: scripts/grading_env.sh BIN FOLDER (called by make).
# It sees everything of BIN's environment, the course included, and adds nbgrader and what that needs: JupyterLab in BIN
# stays as it is for learners, and nothing that is pinned moves.
set -euo pipefail
bin=$1 folder=$2
packages_of() { "$1/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
install() { "$bin/python" -m pip --python "$folder/bin/python" --disable-pip-version-check --quiet install "$@"; }

"$bin/python" -m venv --clear --without-pip "$folder"
# Not a plain line with the path: the course is installed as editable, and only addsitedir reads that. Kernels and the
# templates of pages lie beside the packages, where Jupyter looks by this variable.
shared=$("$bin/python" -c 'import sys; print(sys.prefix)')/share/jupyter
echo "import os, site; site.addsitedir('$(packages_of "$bin")'); os.environ.setdefault('JUPYTER_PATH', '$shared')" \
    > "$(packages_of "$folder/bin")/course.pth"
install -c constraints.txt 'nbgrader>=0.9.5'
# nbgrader calls alembic by its name, and that one must find nbgrader: where BIN has an alembic, another one comes here.
[ -e "$folder/bin/alembic" ] || install --ignore-installed --no-deps alembic
