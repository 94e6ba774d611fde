#!/usr/bin/env bash
# Compile all Triton kernels ahead of time with another version of Triton than the one in .venv: that of torch's CUDA
# build, say. Usage: scripts/aot_with.sh VERSION [options of pagedkv_lab.attention.triton_aot, such as --all]
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/aot_with.sh VERSION [--all]}
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --target "$folder" "triton==$version"
# It stands before .venv's own on the path.
PYTHONPATH="$folder:$PWD" .venv/bin/python -m pagedkv_lab.attention.triton_aot "$@"
