"""A region of a slide holds the pixels of the file, whatever the format."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data.slides import Level, Slide, is_slide, open_slide, slides_below, to_bytes
from turnwise.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
LEVELS = [PIXELS, PIXELS[::4, ::4]]


def write_plain(folder):
    Image.fromarray(PIXELS).save(folder / "slide.png")
    return folder / "slide.png"


def write_tiff(folder, name="slide.tif"):
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("tiffslide")
    with tifffile.TiffWriter(folder / name) as file:
        for number, pixels in enumerate(LEVELS):
            file.write(
                pixels, tile=(64, 64), photometric="rgb", compression="zlib",
                subfiletype=int(number > 0), resolution=(40000 / 4**number,) * 2,
                resolutionunit="CENTIMETER",
            )  # fmt: skip
    return folder / name


def write_zarr(folder, version=0.5, axes="cyx"):
    zarr = pytest.importorskip("zarr")
    path = folder / "slide.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3 if version == 0.5 else 2)
    for number, pixels in enumerate(LEVELS):
        stored = np.moveaxis(pixels, 2, 0).reshape(*(1,) * (len(axes) - 3), 3, *pixels.shape[:2])
        array = group.create_array(str(number), shape=stored.shape, chunks=stored.shape, dtype="u1")
        array[:] = stored
    image = {
        "axes": [{"name": name, "unit": "micrometer"} for name in axes],
        "datasets": [
            {
                "path": str(number),
                "coordinateTransformations": [
                    {"type": "scale", "scale": [0.25 * 4**number] * len(axes)}
                ],
            }
            for number in range(2)
        ],
    }
    group.attrs.update({"ome": {"multiscales": [image]}} if version == 0.5 else
                       {"multiscales": [image]})  # fmt: skip
    return path


WRITERS = {
    "plain": write_plain,
    "tiff": write_tiff,
    "svs": lambda folder: write_tiff(folder, "slide.svs"),
    "zarr": write_zarr,
    "zarr 0.4": lambda folder: write_zarr(folder, 0.4, "tcyx"),
}


def as_expected(pixels):
    return torch.from_numpy(np.moveaxis(pixels, 2, 0).copy())


@pytest.mark.parametrize("kind", WRITERS)
def test_regions_are_those_of_the_file(kind, tmp_path):
    slide = open_slide(WRITERS[kind](tmp_path))
    for level, pixels in enumerate(LEVELS[: len(slide.levels)]):
        assert (slide.levels[level].rows, slide.levels[level].cols) == pixels.shape[:2]
        expected = as_expected(pixels)
        assert torch.equal(slide.read(level, 8, 12, 40, 30), expected[:, 8:48, 12:42])
    assert len(slide.levels) == (1 if kind == "plain" else 2)


@pytest.mark.parametrize("kind", ["plain", "tiff", "zarr"])
def test_pixels_outside_the_image_are_black(kind, tmp_path):
    found = open_slide(WRITERS[kind](tmp_path)).read(0, -3, 190, 20, 20)
    assert found[:, :3].eq(0).all() and found[:, :, 10:].eq(0).all()
    assert torch.equal(found[:, 3:, :10], as_expected(PIXELS)[:, :17, 190:])


@pytest.mark.parametrize("kind", ["tiff", "zarr"])
def test_the_level_follows_from_microns_per_pixel(kind, tmp_path):
    slide = open_slide(WRITERS[kind](tmp_path))
    assert [level.mpp for level in slide.levels] == pytest.approx([0.25, 1.0])
    assert [slide.level_for(mpp) for mpp in (0.25, 0.5, 0.98, 0.995, 8.0)] == [0, 0, 0, 1, 1]
    with pytest.raises(InputError, match=r"0\.25 microns per pixel at its finest, more than 0\.1"):
        slide.level_for(0.1)


def test_a_plain_image_does_not_know_its_microns(tmp_path):
    with pytest.raises(InputError, match="choose a level instead"):
        open_slide(write_plain(tmp_path)).level_for(0.5)


def test_sixteen_bits_are_scaled_and_transparency_is_dropped(tmp_path):
    deep = np.full((2, 2, 4), 65535, np.uint16)
    assert (to_bytes(deep, tmp_path) == 255).all()
    assert to_bytes(deep, tmp_path).shape == (2, 2, 3)


@pytest.mark.parametrize("pixels", [np.zeros((2, 2, 7), np.uint8), np.zeros((2, 2, 3), np.float32)])
def test_other_channels_are_refused(pixels, tmp_path):
    with pytest.raises(InputError, match="give 1 or 3 channels of 8 or 16 bits"):
        to_bytes(pixels, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.svs", b"II*\0 no slide", "broken.svs cannot be read"),
        ("broken.png", b"no image", "broken.png cannot be read"),
        ("notes.txt", b"", "notes.txt is no slide"),
    ],
)
def test_a_damaged_file_is_refused(name, content, message, tmp_path):
    if name.endswith("svs"):
        pytest.importorskip("tiffslide")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_slide(tmp_path / name)


def test_a_damaged_zarr_folder_is_refused(tmp_path):
    pytest.importorskip("zarr")
    (tmp_path / "x.zarr").mkdir()
    with pytest.raises(InputError, match=r"x\.zarr cannot be read"):
        open_slide(tmp_path / "x.zarr")


def test_a_missing_slide_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no slide"):
        open_slide(tmp_path / "x.svs")


@pytest.mark.parametrize(("name", "package"), [("x.svs", "tiffslide"), ("x.zarr", "zarr")])
def test_a_missing_package_is_named(name, package, tmp_path, monkeypatch):
    path = tmp_path / name
    path.mkdir() if name.endswith("zarr") else path.touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"the package {package}; install it with pip install"):
        open_slide(path)


def test_a_region_that_cannot_be_read_is_an_input_error(tmp_path):
    def region(*where):
        raise OSError("bad tile")

    slide = Slide(tmp_path / "x.svs", (Level(9, 9),), region)
    with pytest.raises(InputError, match=r"x\.svs cannot be read \(bad tile\)"):
        slide.read(0, 0, 0, 3, 3)


def test_slides_are_found_in_folders_by_their_names(tmp_path):
    for name in ("b/x.svs", "a.ndpi", ".hidden.svs", "c.png", "d.zarr/0/e.svs"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in slides_below(tmp_path)]
    assert found == ["a.ndpi", "b/x.svs", "d.zarr"]
    assert not is_slide(tmp_path / "c.png")
