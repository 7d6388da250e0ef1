"""Sources name images by coordinates, and read the pixels that the files hold."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.errors import InputError
from turnwise.geometry.tiles import TilePlan
from turnwise.inference.sources import (
    ArrayImages,
    ImageFiles,
    SlideTiles,
    Source,
    Tiling,
    find_sources,
    plan_tiles,
)

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 200, (50, 30, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.png", "a.png", "sub/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(PIXELS).save(tmp_path / name)
    np.savez(tmp_path / "set.npz", train_images=RANDOM.integers(0, 9, (4, 8, 8), dtype=np.uint8),
             test_images=RANDOM.integers(0, 9, (2, 8, 8, 3), dtype=np.uint8),
             train_labels=np.zeros(4))  # fmt: skip
    return tmp_path


def names(sources):
    return [source.name(i) for source in sources for i in range(len(source))]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["."], ["a.png", "b.png", "sub/c.png"]),
        (["b.png", "a.png"], ["b.png", "a.png"]),
        (["*.png"], ["a.png", "b.png"]),
        (["**/*.png"], ["a.png", "b.png", "sub/c.png"]),
        (["list.csv"], ["sub/c.png", "a.png"]),
        (["set.npz"], [f"set.npz:train_images:{i}" for i in range(4)]
         + [f"set.npz:test_images:{i}" for i in range(2)]),
    ],
)  # fmt: skip
def test_images_are_found_by_path_folder_pattern_table_and_array(folder, given, found):
    (folder / "list.csv").write_text("path,label\nsub/c.png,x\na.png,y\n")
    sources, broken = find_sources(given)
    assert names(sources) == found and not broken


def test_images_are_those_of_the_files(folder):
    (files, *arrays), _ = find_sources([".", "set.npz"])
    assert torch.equal(files.read(1), torch.from_numpy(PIXELS).permute(2, 0, 1))
    assert files.columns(1) == {"image": "b.png"}
    stored = np.load("set.npz")
    assert torch.equal(arrays[0].read(2)[0], torch.from_numpy(stored["train_images"][2]))
    assert torch.equal(
        arrays[1].read(1), torch.from_numpy(stored["test_images"][1]).permute(2, 0, 1)
    )


def test_sources_can_be_sent_to_another_process(folder):
    for source in [*find_sources([".", "set.npz"])[0], plan_tiles("a.png", Tiling(16))]:
        assert isinstance(source, Source)
        assert repr(pickle.loads(pickle.dumps(source))) == repr(source)


def test_tiles_are_regions_of_the_slide(folder):
    tiles = plan_tiles("a.png", Tiling(16, 4))
    for index, (row, col) in enumerate(tiles.plan):
        expected = torch.from_numpy(PIXELS[row : row + 16, col : col + 16]).permute(2, 0, 1)
        assert torch.equal(tiles.read(index), expected)
        assert tiles.columns(index).items() >= {"slide": "a.png", "x": col, "y": row, "level": 0,
                                                "tile": index}.items()  # fmt: skip
    assert np.isnan(tiles.mpp)


def write_pyramid(path):
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("tiffslide")
    pixels = RANDOM.integers(0, 256, (256, 512, 3), dtype=np.uint8)
    with tifffile.TiffWriter(path) as file:
        for number in range(2):
            file.write(pixels[:: 4**number, :: 4**number], tile=(64, 64), photometric="rgb",
                       subfiletype=number, resolution=(40000 / 4**number,) * 2,
                       resolutionunit="CENTIMETER")  # fmt: skip


@pytest.mark.parametrize(
    ("mpp", "level", "side", "downsample"), [(0.25, 0, 32, 1), (0.5, 0, 64, 1), (2.0, 1, 64, 4)]
)
def test_microns_per_pixel_choose_the_level_and_the_region(tmp_path, mpp, level, side, downsample):
    write_pyramid(tmp_path / "s.tif")
    tiles = plan_tiles(str(tmp_path / "s.tif"), Tiling(32, 8, mpp=mpp))
    assert (tiles.level, tiles.plan.side, tiles.downsample) == (level, side, downsample)
    assert tiles.mpp == pytest.approx(mpp)
    assert tiles.columns(1)["x"] == tiles.plan[1].col * downsample


def test_background_is_counted_in_pixels():
    white = torch.full((3, 10, 10), 255, dtype=torch.uint8)
    white[1, :3] = 0  # three rows of ten are coloured
    black = 255 - torch.full((3, 10, 10), 255, dtype=torch.uint8)

    def keeps(pixels, background, foreground):
        return tiles_of(Tiling(10, background=background, foreground=foreground)).is_foreground(
            pixels
        )

    assert keeps(white, "white", 0.3) and not keeps(white, "white", 0.31)
    assert keeps(white, "black", 1.0) and not keeps(black, "black", 0.01)
    assert keeps(black, "white", 1.0) and keeps(black, "none", 1.0)


def tiles_of(tiling):
    return SlideTiles("x.png", TilePlan(10, 10, 10), 0, 1.0, 1.0, tiling)


def test_slides_that_cannot_be_opened_are_listed(folder):
    (folder / "z.png").write_bytes(b"no image")
    sources, broken = find_sources(["a.png", "z.png"], Tiling(16))
    assert [source.path for source in sources] == ["a.png"]
    assert list(broken) == ["z.png"] and "z.png cannot be read" in broken["z.png"]
    with pytest.raises(InputError, match=r"z\.png cannot be read"):
        find_sources(["z.png"], Tiling(16))


def test_identity_changes_with_the_file(folder):
    before = ImageFiles(("a.png",)).identity()
    (folder / "a.png").write_bytes(b"other")
    assert ImageFiles(("a.png",)).identity() != before
    assert ArrayImages("set.npz", "x", 3).identity()[:3] == ["set.npz", "x", 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere.png"], "nowhere.png does not exist; give an image or a folder of images"),
        (["*.bmp"], "nothing matches"),
        (["empty"], "empty holds no images"),
        (["odd.csv"], "odd.csv must have one column of paths"),
        (["labels.npz"], "labels.npz holds no images"),
        (["x.svs"], "x.svs is a slide; choose a side"),
    ],
)
def test_what_names_no_image_is_refused(folder, given, message):
    (folder / "empty").mkdir()
    (folder / "x.svs").touch()
    (folder / "odd.csv").write_text("a,b\n1,2\n")
    np.savez("labels.npz", labels=np.zeros(3))
    with pytest.raises(InputError, match=message):
        find_sources(given)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"side": 0}, "a tile of 0 pixels"),
        ({"side": 8, "overlap": 8}, "an overlap of 8 pixels"),
        ({"side": 8, "background": "grey"}, "unknown background 'grey'"),
        ({"side": 8, "foreground": 2.0}, "must be a share"),
        ({"side": 8, "mpp": -1.0}, "microns per pixel must be positive"),
    ],
)
def test_impossible_tilings_are_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        Tiling(**numbers)


def test_a_missing_level_is_refused(folder):
    with pytest.raises(InputError, match="has the levels 0 to 0, and no level 2"):
        plan_tiles("a.png", Tiling(16, level=2))
