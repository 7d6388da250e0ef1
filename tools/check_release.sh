#!/usr/bin/env bash
# Build wheel and sdist in dist/, check their metadata and size, and use the wheel in a clean environment:
# find a recipe by name, train, predict, certify; with the extra onnx alone, export and predict.
# Called by `make release` with the Python of the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
limit=2000000 # bytes of the wheel
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
unset PYTHONPATH TURNWISE_DATA # nothing but the wheel

rm -rf dist
"$python" -m venv "$clean/build"
"$clean/build/bin/pip" install --quiet --disable-pip-version-check build twine
"$clean/build/bin/python" -m build --outdir dist .
"$clean/build/bin/twine" check --strict dist/*
wheel=$(ls "$PWD"/dist/*.whl)
size=$(wc -c < "$wheel")
echo "the wheel has $size of $limit bytes"
if [ "$size" -gt "$limit" ]; then echo "it is too large; unzip -v lists its files" >&2; exit 1; fi

"$python" -m venv "$clean/use"
pip=("$clean/use/bin/pip" --quiet --disable-pip-version-check install -c "$PWD/constraints.txt")
"${pip[@]}" "$wheel"
cd "$clean"
use/bin/turnwise --version
use/bin/turnwise models turnwise_vit_nano.rotmnist
use/bin/turnwise certify turnwise_vit_nano.rotmnist --images 4 --angles 4
use/bin/turnwise train rotmnist_gsa_net_p4 --help > /dev/null
use/bin/turnwise train rotmnist_turnwise_vit_nano_c16 data.name=digits data.fraction=0.1 \
    optimisation.batch_size=50 trainer.max_epochs=1 --output trained
use/bin/python -c "from turnwise.data import load_dataset; from PIL import Image
Image.fromarray(load_dataset('digits').test.images[0, 0].numpy()).save('digit.png')"
use/bin/turnwise predict trained digit.png
use/bin/turnwise predict turnwise_vit_nano.rotmnist digit.png
"${pip[@]}" "$wheel[onnx]"
use/bin/turnwise export turnwise_vit_nano.rotmnist --output model.onnx
use/bin/turnwise predict model.onnx digit.png
echo "the wheel and the sdist in dist/ are good"
