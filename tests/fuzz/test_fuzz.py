"""Targets of fuzzing: recipes, checkpoints, images, data sets, certificates, YAML and JSON."""

import json
import random
import struct
import time
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from turnwise.data import load_dataset, read_image
from turnwise.data.readers.mnist import read_idx
from turnwise.data.readers.npz import read_arrays
from turnwise.errors import InputError
from turnwise.evaluation.certificate.certificate import from_plain, read_certificate, schema_error
from turnwise.evaluation.certificate.targets import Request, certify_request, open_target
from turnwise.models import create_model, load, save
from turnwise.parsing import parse_json, parse_yaml
from turnwise.runs import Run
from turnwise.training.recipe import make_recipe, read_recipe

from .conftest import PROFILE

SMALL = {"width": 8, "depth": 1, "heads": 2, "patch": 7}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from(["vit", "C4", "digits", "1e400", "-0", "folder:/", "../x", "\0", "auto"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner,
                                                                max_size=4),
    max_leaves=8,
)  # fmt: skip


@contextmanager
def refused_in_one_line():
    """Let `InputError` pass if it is one short line; any other exception is a finding."""
    start = time.monotonic()
    try:
        yield
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
    assert time.monotonic() - start < 30


def paths_of(values, prefix=()):
    """Yield the path of every value in nested dictionaries."""
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*prefix, key))


def mutate(content: bytes, seed: int) -> bytes:
    """Flip, cut, zero, insert or repeat bytes."""
    draw, found = random.Random(seed), bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(max(1, len(found)))
        kind = draw.randrange(5)
        if kind == 0 and found:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at : at + 8] = bytes(8)
        elif kind == 3:
            found[at:at] = draw.randbytes(draw.randint(1, 9))
        else:
            found[at:at] = found[max(0, at - 16) : at]
    return bytes(found)


RECIPE = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}})
PATHS = sorted(paths_of(RECIPE.plain()))


@PROFILE
@given(path=st.sampled_from(PATHS), value=VALUES)
def test_a_recipe_with_any_value_is_read_or_refused(path, value):
    values = json.loads(json.dumps(RECIPE.plain()))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with refused_in_one_line():
        make_recipe(values)


@PROFILE
@given(seed=st.integers(0, 2**32))
def test_a_damaged_recipe_is_read_or_refused(tmp_path_factory, seed):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(mutate(RECIPE.yaml().encode(), seed))
    with refused_in_one_line():
        read_recipe(path)


@PROFILE
@given(text=st.text(max_size=200) | st.text("{}[]&*!|>-:? \n\"'#%@,a0x_.", max_size=60))
def test_any_text_is_yaml_and_json_or_refused(text):
    with refused_in_one_line():
        parse_yaml(text)
    with refused_in_one_line():
        parse_json(text.encode("utf-8", "surrogatepass"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("fuzz"))
    path = run.checkpoint("last")
    path.parent.mkdir()
    state = create_model("vit", **SMALL).state_dict()
    torch.save({"state_dict": state, "epoch": 1, "loops": {"fit_loop": {}}}, path)
    return run, path.read_bytes()


@PROFILE
@given(seed=st.integers(0, 2**32))
def test_a_damaged_checkpoint_is_read_or_refused(checkpoint, seed):
    run, content = checkpoint
    run.checkpoint("last").write_bytes(mutate(content, seed))
    with refused_in_one_line():
        run.read_checkpoint("last")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "net"
    save(create_model("orbit_vit", **SMALL), folder)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


@PROFILE
@given(name=st.sampled_from(["config.json", "model.safetensors"]), seed=st.integers(0, 2**32))
def test_a_damaged_model_folder_is_loaded_or_refused(folder, name, seed):
    path, contents = folder
    for other, content in contents.items():
        (path / other).write_bytes(mutate(content, seed) if other == name else content)
    with refused_in_one_line():
        load(path)


def images_as_files():
    pixels = np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3)
    return [
        (kind, mode)
        for kind in ("png", "jpg", "tif", "bmp", "webp")
        for mode in ("L", "RGB")
        if pixels.size
    ]


@PROFILE
@given(form=st.sampled_from(images_as_files()), seed=st.integers(0, 2**32))
def test_a_damaged_image_is_read_or_refused(tmp_path_factory, form, seed):
    kind, mode = form
    path = tmp_path_factory.getbasetemp() / f"fuzzed.{kind}"
    Image.fromarray(np.arange(324, dtype=np.uint8).reshape(12, 9, 3)).convert(mode).save(path)
    path.write_bytes(mutate(path.read_bytes(), seed))
    with refused_in_one_line():
        read_image(path, 8, 1)


@PROFILE
@given(rows=st.integers(0, 2**31 - 1), cols=st.integers(0, 2**31 - 1), depth=st.integers(0, 17))
def test_an_image_with_any_header_is_read_or_refused(tmp_path_factory, rows, cols, depth):
    header = b"IHDR" + struct.pack(">IIBBBBB", cols, rows, depth, 0, 0, 0, 0)
    path = tmp_path_factory.getbasetemp() / "header.png"
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
    path.write_bytes(start + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IEND\xaeB`\x82")
    with refused_in_one_line():
        read_image(path, 8, 1)


@PROFILE
@given(seed=st.integers(0, 2**32), packed=st.booleans())
def test_damaged_data_sets_are_read_or_refused(tmp_path_factory, seed, packed):
    base = tmp_path_factory.getbasetemp()
    images = np.zeros((3, 4, 4), np.uint8)
    np.savez_compressed(base / "a.npz", train_images=images) if packed else np.savez(
        base / "a.npz", train_images=images
    )
    (base / "a.npz").write_bytes(mutate((base / "a.npz").read_bytes(), seed))
    with refused_in_one_line():
        read_arrays(base / "a.npz")
    header = bytes([0, 0, 8, 3]) + struct.pack(">III", *images.shape)
    (base / "idx").write_bytes(mutate(header + images.tobytes(), seed))
    with refused_in_one_line():
        read_idx(base / "idx")


@PROFILE
@given(name=st.text(max_size=30))
def test_any_name_of_a_data_set_is_refused(name):
    with refused_in_one_line():
        load_dataset(name, download=False)


@pytest.fixture(scope="module")
def certificate():
    request = Request("orbit_vit", settings=("width=8", "depth=1", "heads=2", "patch=7"),
                      group="C4", images=2, angles=1, fresh=1, fresh_seed=0)  # fmt: skip
    found, _ = certify_request(request, open_target(request))
    return json.loads(json.dumps(found.plain()))


@PROFILE
@given(data=st.data(), value=VALUES)
def test_a_certificate_with_any_value_is_read_or_refused(
    certificate, tmp_path_factory, data, value
):
    plain = json.loads(json.dumps(certificate))
    plain[data.draw(st.sampled_from(sorted(plain)))] = value
    path = tmp_path_factory.getbasetemp() / "c.json"
    path.write_text(json.dumps(plain))
    with refused_in_one_line():
        found, stated = read_certificate(path)
        assert stated in (True, False) and found.plain()
    if not schema_error(plain):
        from_plain(plain)
