"""Frames show the bars of their angle; films are films, and ffmpeg is asked for where it is not."""

import shutil

import pytest
import torch
from PIL import Image

from turnwise.errors import InputError
from turnwise.reports.figures import film
from turnwise.reports.figures.film import (
    classes_to_show,
    film_frames,
    film_strip_figure,
    write_film,
)
from turnwise.reports.views import answers_to, rotated_views

ANGLES = [0.0, 90.0, 180.0]


def given(quadrant):
    views = rotated_views(quadrant.pictures.images[0], ANGLES)
    return views, ANGLES, {"a": answers_to(quadrant.model, views)}, quadrant.classes, 0


def test_few_classes_are_all_shown_and_of_many_the_likely_ones():
    answers = {"a": torch.eye(30)[[3, 7]], "b": torch.eye(30)[[9, 9]]}
    assert classes_to_show(answers, label=20, most=4) == [3, 7, 9, 20]
    assert classes_to_show({"a": torch.eye(4)}, label=0) == [0, 1, 2, 3]


def test_frames_differ_as_the_answers_do(quadrant):
    first, second, _ = (frame.copy() for frame in film_frames(*given(quadrant)))
    assert first.size == second.size and first.mode == "RGB"
    assert first.tobytes() != second.tobytes()


def test_a_gif_has_a_frame_for_each_angle(quadrant, tmp_path):
    write_film(tmp_path / "new" / "film.gif", film_frames(*given(quadrant)), len(ANGLES))
    with Image.open(tmp_path / "new" / "film.gif") as image:
        assert image.n_frames == 3
        assert image.info["duration"] == 80 and image.info["loop"] == 0


def test_the_bars_of_a_strip_are_the_answers(quadrant):
    views, angles, answers, classes, label = given(quadrant)
    figure = film_strip_figure(views, angles, answers, classes, label)
    bars = [[bar.get_width() for bar in axes.patches] for axes in figure.axes if axes.patches]
    assert torch.allclose(torch.tensor(bars).float(), answers["a"])


def test_the_right_class_is_told_by_a_darker_bar(quadrant):
    figure = film_strip_figure(*given(quadrant))
    bars = next(axes for axes in figure.axes if axes.patches).patches
    colours = [bar.get_facecolor()[:3] for bar in bars]
    assert len(set(colours[1:])) == 1 and sum(colours[0]) < sum(colours[1])


def test_a_film_of_another_kind(quadrant, tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of film '.avi'"):
        write_film(tmp_path / "film.avi", iter(()), 0)


def test_mp4_without_ffmpeg(quadrant, tmp_path, monkeypatch):
    monkeypatch.setattr(film.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="needs ffmpeg, which is not installed"):
        write_film(tmp_path / "film.mp4", film_frames(*given(quadrant)), 3)
    assert not (tmp_path / "film.mp4").exists()


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_mp4_with_ffmpeg(quadrant, tmp_path):
    write_film(tmp_path / "film.mp4", film_frames(*given(quadrant)), 3)
    assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"


def test_an_ffmpeg_that_fails_leaves_nothing(quadrant, tmp_path, monkeypatch):
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(InputError, match="ffmpeg failed: no such codec"):
        write_film(tmp_path / "out" / "film.mp4", film_frames(*given(quadrant)), 3)
    assert not (tmp_path / "out").exists()
