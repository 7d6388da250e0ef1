"""The image to rotate and shift on a report: its predictions are computed beforehand.

The script (explorer.js) transforms the pixels as for the model, and looks the predictions up.
"""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples
from turnwise.inference.predictor import Predictor
from turnwise.reports.figures.views import classes_to_show
from turnwise.reports.loaded_models import (
    LoadedModel,
    rotated_views,
    shifted_views,
    shifts_within,
)
from turnwise.reports.pages import data_html, image_html

STEP = 5  # degrees
REACH = 5  # largest shift in pixels
SCALE = 10_000  # a probability of 1; the page shows two decimals of a per cent
INSTRUCTIONS = (
    "Drag the slider to rotate the picture, or drag the picture to shift it; the arrow keys do the "
    f"same. The predictions were computed beforehand, for every {STEP}° and for shifts by up to "
    f"{REACH} pixels."
)


def rotated_predictions(
    model: nn.Module, image: UInt8[Tensor, "channel row col"], fill: str
) -> Float[Tensor, "angle class"]:
    """Return the probabilities at every step of 360°.

    Rotations by 90° are predicted in float64, so that equal probabilities are shown as equal:
    float32 may differ in the last digit and round the other way.
    """
    angles = [float(angle) for angle in range(0, 360, STEP)]
    probabilities = Predictor(model).probabilities(rotated_views(image, angles, fill)).double()
    exact = Predictor(model, precision="float64")
    views = rotated_views(image, [angle for angle in angles if angle % 90 == 0], fill)
    probabilities[:: 90 // STEP] = exact.probabilities(views).double()
    return probabilities


def explorer_data(
    models: Sequence[LoadedModel], examples: Examples, *, progress: bool = False
) -> dict[str, Any]:
    """Return the data of the script: pixels, classes, and predictions for every view."""
    numbers = tqdm(range(len(examples)), desc="predicting", disable=not progress, leave=False)
    shifts = shifts_within(REACH)
    entries = []
    for i in numbers:
        image, label = examples.images[i], int(examples.labels[i])
        rotated = {m.name: rotated_predictions(m.model, image, m.fill) for m in models}
        shifted = [m.predictor.probabilities(shifted_views(image, shifts)) for m in models]
        shown = classes_to_show(rotated, label)
        channels, rows, cols = image.shape
        entries.append(
            {
                "rows": rows,
                "cols": cols,
                "channels": channels,
                "pixels": encode_pixels(image),
                "label": shown.index(label),
                "classes": [models[0].classes[c] for c in shown],
                "rotated": [_whole_numbers(p[:, shown]) for p in rotated.values()],
                "shifted": [_whole_numbers(p[:, shown]) for p in shifted],
            }
        )
    return {
        "models": [m.name for m in models],
        "step": STEP,
        "reach": REACH,
        "scale": SCALE,
        "fill": models[0].fill,
        "images": entries,
    }


def encode_pixels(image: UInt8[Tensor, "channel row col"]) -> str:
    """Return the bytes of an image for a script, (row, col, channel), in base64."""
    return base64.b64encode(image.movedim(0, -1).contiguous().numpy().data).decode()


def explorer_html(data: dict[str, Any], examples: Examples) -> str:
    """Return the image, its controls, the data, and an empty box for the predictions."""
    alts = [f"a picture of {entry['classes'][entry['label']]}" for entry in data["images"]]
    choice = "".join(
        f'<button type="button" aria-pressed="false">{image_html(image, alt, 1)}</button>'
        for image, alt in zip(examples.images, alts, strict=True)
    )
    return f"""<div class="explorer">
<div>
<canvas id="explorer-image" tabindex="0" role="img"
 aria-label="the picture; drag it or press arrow keys to shift it, Home to reset it"></canvas>
<p><label for="explorer-angle">angle</label><br>
<input type="range" id="explorer-angle" min="0" max="{360 - STEP}" step="{STEP}" value="0"></p>
<p id="explorer-status" role="status"></p>
<button type="button" id="explorer-reset">reset</button>
<div class="choice" id="explorer-choice" role="group" aria-label="other pictures">{choice}</div>
</div>
<div class="models" id="explorer-models"></div>
</div>
<noscript><p>To rotate the picture, allow JavaScript; the table below needs none.</p></noscript>
{data_html("explorer-data", data)}"""


def _whole_numbers(probabilities: Float[Tensor, "view class"]) -> list[list[int]]:
    return (probabilities.double() * SCALE).round().to(torch.int64).tolist()
