"""A picture to turn and shift on a page without a server: all answers are computed beforehand.

The script (explorer.js) turns the pixels as the model saw them and looks the answers up.
"""

import base64
import copy
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples
from turnwise.reports.figures.film import classes_to_show
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.pages.page import data_html, image_html
from turnwise.reports.views import answers_to, rotated_views, shifted_views, steps_around

STEP = 5  # degrees
REACH = 5  # pixels to shift by
WHOLE = 10_000  # a probability of 1; what is shown has two decimals of a per cent


def rotated_predictions(
    model: nn.Module, picture: UInt8[Tensor, "channel row col"]
) -> Float[Tensor, "angle class"]:
    """The answers at every step of the full turn.

    Quarter turns are answered in double precision, so that what is equal is shown as equal: single
    precision may differ in the last digit and fall on the other side of a half.
    """
    angles = [float(a) for a in range(0, 360, STEP)]
    answers = answers_to(model, rotated_views(picture, angles)).double()
    quarters = [a for a in angles if a % 90 == 0]
    exact = copy.deepcopy(model).double()
    views = rotated_views(picture, quarters).double()
    answers[:: 90 // STEP] = answers_to(exact, views).double()
    return answers


def explorer_data(
    subjects: Sequence[LoadedModel], pictures: Examples, *, progress: bool = False
) -> dict[str, Any]:
    """All that the script needs, as JSON can hold it; pictures are those of the first subject."""
    shown = tqdm(range(len(pictures)), desc="asking the models", disable=not progress, leave=False)
    steps = steps_around(REACH)
    entries = []
    for i in shown:
        image, label = pictures.images[i], int(pictures.labels[i])
        turned = {s.name: rotated_predictions(s.model, image) for s in subjects}
        shifted = [answers_to(s.model, shifted_views(image, steps)) for s in subjects]
        chosen = classes_to_show(turned, label)
        channels, rows, cols = image.shape
        entries.append(
            {
                "rows": rows,
                "cols": cols,
                "channels": channels,
                "pixels": base64.b64encode(image.movedim(0, -1).contiguous().numpy().data).decode(),
                "label": chosen.index(label),
                "classes": [subjects[0].classes[c] for c in chosen],
                "turned": [_whole_numbers(said[:, chosen]) for said in turned.values()],
                "shifted": [_whole_numbers(said[:, chosen]) for said in shifted],
            }
        )
    return {
        "models": [s.name for s in subjects],
        "step": STEP,
        "reach": REACH,
        "whole": WHOLE,
        "pictures": entries,
    }


def explorer_html(data: dict[str, Any], pictures: Examples) -> str:
    """The slider, the picture, the choice of pictures, and a place for the answers."""
    choice = "".join(
        f'<button type="button" aria-pressed="false">{image_html(image, words, 1)}</button>'
        for image, words in zip(pictures.images, _names(data), strict=True)
    )
    return f"""<div class="explorer">
<div>
<canvas id="explorer-picture" tabindex="0" role="img"
 aria-label="the picture; drag it or press arrow keys to shift it, Home brings it back"></canvas>
<p><label for="explorer-angle">turn it</label><br>
<input type="range" id="explorer-angle" min="0" max="{360 - STEP}" step="{STEP}" value="0"></p>
<p id="explorer-place" role="status"></p>
<button type="button" id="explorer-back">bring it back</button>
<div class="choice" id="explorer-choice" role="group" aria-label="other pictures">{choice}</div>
</div>
<div class="voices" id="explorer-voices"></div>
</div>
<noscript><p>Turning needs JavaScript; the stills below do not.</p></noscript>
{data_html("explorer-data", data)}"""


def explorer_script() -> str:
    """The script of the page."""
    folder = files("turnwise.reports.pages")
    parts = [folder.joinpath(name).read_text("utf-8") for name in ("voices.js", "explorer.js")]
    return "\n".join(parts)


def _names(data: dict[str, Any]) -> list[str]:
    return [f"a picture of {each['classes'][each['label']]}" for each in data["pictures"]]


def _whole_numbers(said: Float[Tensor, "view class"]) -> list[list[int]]:
    return (said.double() * WHOLE).round().to(torch.int64).tolist()
