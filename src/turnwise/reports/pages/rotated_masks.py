"""The slider of a report on models of masks: outlines in an image at several angles."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.data import Examples
from turnwise.data.transforms import resize
from turnwise.evaluation.transformations import equal_angles
from turnwise.geometry.warps import rotate_image
from turnwise.reports.figures.segmentation import outlined
from turnwise.reports.loaded_models import LoadedModel, rotated_views
from turnwise.reports.pages import data_html, encode_png
from turnwise.reports.tables import format_percent

ANGLES = 12
LARGEST = 192  # pixels of a frame, which bounds the size of the page
ABOUT = (
    "A validation picture, rotated by the angle of the slider, and the outlines that each model "
    "finds in it. Below each picture stands the share of pixels that have the class that they have "
    "upright. Rotations by 90° are exact; at other angles the pixels are interpolated."
)


def masks_data(models: Sequence[LoadedModel], examples: Examples) -> dict[str, Any]:
    """Return the frames of each model at every angle, for the first image."""
    degrees = equal_angles(ANGLES)
    shown = [_frames(model, examples.images[0], degrees) for model in models]
    return {"angles": degrees, "models": shown}


def masks_html(data: dict[str, Any]) -> str:
    """Return the slider, and a picture for each model."""
    figures = "".join(
        f'<figure><img class="pixels" src="{model["frames"][0]}" alt=""><figcaption></figcaption>'
        "</figure>"
        for model in data["models"]
    )
    return (
        f'<p><label for="masks-angle">angle</label> <input type="range" id="masks-angle" min="0" '
        f'max="{len(data["angles"]) - 1}" value="0" step="1"> '
        f'<output id="masks-status" for="masks-angle"></output></p>'
        f'<div id="masks-models" class="card">{figures}</div>{data_html("masks-data", data)}'
    )


def _frames(model: LoadedModel, image: Tensor, degrees: Sequence[float]) -> dict[str, Any]:
    views = rotated_views(image, degrees, model.fill)
    maps = model.predictor.probabilities(views)
    upright = maps[:1].argmax(dim=1)
    frames, kept = list[str](), list[str]()
    for view, found, angle in zip(views, maps, degrees, strict=True):
        pixels = (255 * view).round().to(torch.uint8)
        drawn = outlined(model.predictor, pixels, found)
        side = min(LARGEST, *drawn.shape[1:])
        png = encode_png(resize(drawn[None], side)[0])
        frames.append(f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}")
        expected = rotate_image(upright[:, None].float(), angle, model.fill, "nearest")
        same = found.argmax(dim=0) == expected[0, 0].round().long()
        kept.append(format_percent(float(same.double().mean())))
    return {"name": model.name, "frames": frames, "kept": kept}
