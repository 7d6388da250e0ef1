"""Films and orbits show what a model predicts for each view of an image."""

import shutil

import pytest
import torch
from PIL import Image

from turnwise.errors import InputError
from turnwise.groups import act_on_image
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.views import (
    OrbitParts,
    Rotation,
    classes_to_show,
    film_frames,
    film_strip_figure,
    most_confident_view,
    orbit_figure,
    write_film,
)

ANGLES = [0.0, 90.0, 180.0]


@pytest.fixture
def rotation(quadrant):
    return Rotation.of([quadrant], 0, ANGLES)


def test_few_classes_are_all_shown_and_of_many_the_probable_ones():
    predictions = {"a": torch.eye(30)[[3, 7]], "b": torch.eye(30)[[9, 9]]}
    assert classes_to_show(predictions, label=20, count=4) == [3, 7, 9, 20]
    assert classes_to_show({"a": torch.eye(4)}, label=0) == [0, 1, 2, 3]


def test_frames_differ_as_the_predictions_do(rotation):
    first, second, _ = (frame.copy() for frame in film_frames(rotation))
    assert first.size == second.size and first.mode == "RGB"
    assert first.tobytes() != second.tobytes()


def test_a_gif_has_a_frame_for_each_angle(rotation, tmp_path):
    write_film(tmp_path / "new" / "film.gif", film_frames(rotation), len(ANGLES))
    with Image.open(tmp_path / "new" / "film.gif") as image:
        assert image.n_frames == 3
        assert image.info["duration"] == 80 and image.info["loop"] == 0


def test_the_bars_of_a_strip_are_the_predictions(rotation):
    figure = film_strip_figure(rotation)
    bars = [[bar.get_width() for bar in axes.patches] for axes in figure.axes if axes.patches]
    assert torch.allclose(torch.tensor(bars).float(), rotation.predictions["quadrant"])


def test_the_bar_of_the_correct_class_is_darker(rotation):
    figure = film_strip_figure(rotation)
    bars = next(axes for axes in figure.axes if axes.patches).patches
    colours = [bar.get_facecolor()[:3] for bar in bars]
    assert len(set(colours[1:])) == 1 and sum(colours[0]) < sum(colours[1])


def test_a_film_of_another_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of film '.avi'"):
        write_film(tmp_path / "film.avi", iter(()), 0)


def test_an_mp4_without_ffmpeg_is_refused(rotation, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="needs ffmpeg, which is not installed"):
        write_film(tmp_path / "film.mp4", film_frames(rotation), 3)
    assert not (tmp_path / "film.mp4").exists()


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_an_mp4_is_written_by_ffmpeg(rotation, tmp_path):
    write_film(tmp_path / "film.mp4", film_frames(rotation), 3)
    assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"


def test_an_ffmpeg_that_fails_leaves_no_file(rotation, tmp_path, monkeypatch):
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(InputError, match="ffmpeg failed: no such codec"):
        write_film(tmp_path / "out" / "film.mp4", film_frames(rotation), 3)
    assert not (tmp_path / "out").exists()


def test_each_view_is_the_image_transformed_by_an_inverse(quadrant):
    """View h is h⁻¹f, so the rotation by h·90° reduces the quadrant by h."""
    parts = OrbitParts.of(quadrant)
    predicted = parts.predict_views(quadrant.examples.images.float() / 255).argmax(-1)
    for label in range(4):
        assert predicted[label].tolist() == [(label - h) % 4 for h in range(4)]


@pytest.mark.parametrize("name", ["orbit_vit", "vit"])
def test_predictions_for_views_are_equivariant(make_model, name):
    """They are a function on the group; the negative control is that it is not constant."""
    loaded = make_model(name, dtype=torch.float64)
    parts, images = OrbitParts.of(loaded), loaded.examples.images[:3].double() / 255
    before = parts.predict_views(images)
    after = parts.predict_views(act_on_image(parts.group, 1, images))
    for h in range(4):
        torch.testing.assert_close(after[:, h], before[:, parts.group.compose(3, h)])
    assert (after - before).abs().max() > 1e-3


def test_the_most_confident_view_has_the_highest_probability():
    predictions = torch.tensor([[[0.5, 0.5], [0.1, 0.9]], [[0.8, 0.2], [0.4, 0.6]]])
    assert most_confident_view(predictions).tolist() == [1, 0]


def test_an_orbit_is_taken_apart_and_any_other_model_is_wrapped(make_model):
    wrapped, plain = make_model("orbit_vit"), make_model("vit")
    assert OrbitParts.of(wrapped).combined is wrapped.model
    assert OrbitParts.of(wrapped).inner is wrapped.model.model
    assert OrbitParts.of(plain).inner is plain.model
    assert OrbitParts.of(plain).group.name == "C4"


def test_the_orbit_figure_marks_the_most_confident_view(quadrant):
    figure = orbit_figure([quadrant], FigureOptions(image=0)).figure
    labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
    assert len(labels) == 5 and labels[-1] == "combined"
    assert sum("▲" in label for label in labels) == 1
    heights = [bar.get_height() for bar in figure.axes[-1].patches]
    assert sum(heights[:4]) == pytest.approx(1) == sum(heights[4:])
