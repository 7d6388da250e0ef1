"""`turnwise predict --masks` writes a mask and an overlay of every image, at full size."""

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.models import create_model, save


@pytest.fixture
def model(empty_folder):
    torch.manual_seed(0)
    network = create_model("turnwise_unet_nano", group="D4", num_classes=3, in_chans=1,
                           image_size=16, widths=(16, 32))  # fmt: skip
    network.classes = ("a", "b", "c")
    return save(network, empty_folder / "model")


@pytest.fixture
def images(empty_folder):
    folder, random = empty_folder / "images", np.random.default_rng(0)
    folder.mkdir()
    for name, shape in (("a", (21, 40)), ("b", (16, 16, 3))):
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{name}.png")
    return folder


def test_masks_and_overlays_have_the_size_of_the_image(turnwise, model, images, empty_folder):
    flags = ["--masks", empty_folder / "out", "--tile", "16", "--overlap", "4", "--device", "cpu"]
    status, output, _ = turnwise("predict", model, images, *flags)
    assert status == 0 and "2 masks and overlays written to" in output
    written = sorted(path.name for path in (empty_folder / "out").iterdir())
    assert written == ["a.overlay.png", "a.png", "b.overlay.png", "b.png"]
    mask = np.asarray(Image.open(empty_folder / "out/a.png"))
    assert mask.shape == (21, 40) and mask.dtype == np.uint16
    assert np.asarray(Image.open(empty_folder / "out/a.overlay.png")).shape == (21, 40, 3)


def test_the_mask_of_the_rotated_image_is_the_rotated_mask(turnwise, model, images, empty_folder):
    image = Image.open(images / "a.png")
    image.transpose(Image.Transpose.ROTATE_90).save(images / "b.png")
    flags = ["--masks", empty_folder / "out", "--tile", "16", "--overlap", "4", "--device", "cpu"]
    turnwise("predict", model, images, *flags)
    masks = [np.asarray(Image.open(empty_folder / f"out/{name}.png")) for name in "ab"]
    assert np.array_equal(masks[1], np.rot90(masks[0])) and len(np.unique(masks[0])) > 1


@pytest.mark.slow
def test_an_exported_file_writes_the_masks_of_its_model(turnwise, model, images, empty_folder):
    file, out = empty_folder / "m.pt2", [empty_folder / "one", empty_folder / "other"]
    turnwise("export", model, "--format", "pt2", "--output", file)
    tiles = ["--tile", "16", "--overlap", "4", "--device", "cpu"]
    for source, folder, flags in ((model, out[0], tiles), (file, out[1], tiles[4:])):
        assert turnwise("predict", source, images, "--masks", folder, *flags)[0] == 0
    for name in ("a.png", "b.png"):
        one, other = (np.asarray(Image.open(folder / name)) for folder in out)
        assert np.array_equal(one, other) and len(np.unique(one)) > 1


def test_a_classifier_writes_no_masks(turnwise, run, images, empty_folder):
    status, _, error = turnwise("predict", run, images, "--masks", empty_folder / "out")
    assert status == 2 and "predicts no masks" in error
