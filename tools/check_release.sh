#!/usr/bin/env bash
# Build wheel and sdist in dist/, check their metadata, and use the wheel in a clean environment.
# Called by `make release` with the Python of the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT

rm -rf dist
"$python" -m venv "$clean/build"
"$clean/build/bin/pip" install --quiet --disable-pip-version-check build twine
"$clean/build/bin/python" -m build --outdir dist .
"$clean/build/bin/twine" check --strict dist/*

"$python" -m venv "$clean/use"
"$clean/use/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
cd "$clean"
use/bin/turnwise --version
use/bin/turnwise models turnwise_vit_nano.rotmnist
use/bin/turnwise certify turnwise_vit_nano.rotmnist --images 4 --angles 4
use/bin/turnwise train rotmnist_gsa_net_p4 --help > /dev/null
echo "the wheel and the sdist in dist/ are good"
