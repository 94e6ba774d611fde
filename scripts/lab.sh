#!/usr/bin/env bash
# Start JupyterLab on the first chapter. Usage: scripts/lab.sh BIN PORT (called by `make lab`).
# Works without a display and as root; Ctrl-C ends it at once, without a question and without an error.
set -u
bin=$1 port=$2
root=$([ "$(id -u)" -eq 0 ] && echo --allow-root)

# No news and no update check: the course runs without a network. This is Lab's setting in this .venv only.
settings=$("$bin/python" -c 'import sys; print(sys.prefix)')/share/jupyter/lab/settings
mkdir -p "$settings"
echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
    > "$settings/overrides.json"

echo "JupyterLab starts. Open the address below in a browser; Ctrl-C here ends it."
trap : INT
# shellcheck disable=SC2086 # $root is one option or none
"$bin/jupyter-lab" $root --no-browser --port="$port" --log-level=WARN --ServerApp.answer_yes=True --ServerApp.root_dir="$PWD" \
    --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
    --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.news_url=None
status=$?
[ "$status" -eq 130 ] && status=0
exit "$status"
