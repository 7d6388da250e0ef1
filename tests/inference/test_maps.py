"""Maps rotate exactly with the slide, from its pixels to the file."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from small_networks import group_net

from turnwise.errors import InputError
from turnwise.geometry.tiles import TilePlan
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference import Predictor
from turnwise.inference.jobs import Job, PartFolder, run_parts
from turnwise.inference.maps import cells_of, class_colours, stitch_maps, write_map
from turnwise.inference.preparation import Preparation
from turnwise.inference.sources import Tiling, plan_tiles

C4 = PlanarGroup.named("C4")
PIXELS = np.random.default_rng(1).integers(0, 256, (61, 45), dtype=np.uint8)
PIXELS[15:46, 5:40] = 255


def map_of(pixels, folder, network):
    folder.mkdir()
    Image.fromarray(pixels).save(folder / "slide.png")
    tiling = Tiling(12, 4, background="white", foreground=0.5)
    job = Job((plan_tiles(str(folder / "slide.png"), tiling),), Preparation(8, 1), 16, 10)
    parts = PartFolder(folder / "out")
    list(run_parts(job, range(job.parts), Predictor(network), parts))
    (found,) = stitch_maps(job.sources, (parts.read(k)[0] for k in range(job.parts))).values()
    return found


@pytest.fixture
def network():
    return group_net().eval()


@pytest.mark.parametrize("g", [1, 2, 3])
def test_the_map_of_the_rotated_slide_is_the_rotated_map(g, network, tmp_path):
    rotated = act_on_image(C4, g, torch.from_numpy(PIXELS)).numpy()
    expected = act_on_image(C4, g, map_of(PIXELS, tmp_path / "upright", network))
    found = map_of(rotated, tmp_path / "rotated", network)
    assert expected.isnan().any() and (~expected.isnan()).any()
    assert expected.nan_to_num(0).std() > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_control_a_model_that_is_not_invariant_fails(tmp_path):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    expected = act_on_image(C4, 1, map_of(PIXELS, tmp_path / "upright", network))
    rotated = np.rot90(PIXELS).copy()
    found = map_of(rotated, tmp_path / "rotated", network)
    assert (found - expected).nan_to_num(0).abs().max() > 1e-3


def test_a_map_has_one_cell_for_each_step():
    assert cells_of(TilePlan(100, 60, 20, 10)) == (10, 6)
    assert cells_of(TilePlan(5, 60, 20)) == (1, 3)


def test_background_is_white_and_classes_have_colours():
    found = class_colours(torch.tensor([[[0.9, 0.1, torch.nan]], [[0.1, 0.9, torch.nan]]]))
    assert found.shape == (1, 3, 3) and found[0, 2].tolist() == [255] * 3
    assert found[0, 0].tolist() != found[0, 1].tolist()


@pytest.mark.parametrize("kind", ["png", "tif", "zarr"])
def test_maps_are_written(kind, tmp_path):
    probabilities = torch.rand(2, 5, 7)
    if kind == "png":
        write_map(tmp_path / "m.png", probabilities)
        assert np.array_equal(Image.open(tmp_path / "m.png"), class_colours(probabilities))
    elif kind == "tif":
        tifffile = pytest.importorskip("tifffile")
        write_map(tmp_path / "m.tif", probabilities)
        assert np.array_equal(tifffile.imread(tmp_path / "m.tif"), probabilities)
    else:
        zarr = pytest.importorskip("zarr")
        for _ in range(2):  # an older map is replaced
            write_map(tmp_path / "m.zarr", probabilities)
        assert np.array_equal(zarr.open_array(tmp_path / "m.zarr", mode="r")[:], probabilities)


def test_other_formats_and_missing_packages_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="unknown format of a map 'gif'"):
        write_map(tmp_path / "m.gif", torch.rand(2, 2, 2))
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(InputError, match="the package zarr"):
        write_map(tmp_path / "m.zarr", torch.rand(2, 2, 2))
