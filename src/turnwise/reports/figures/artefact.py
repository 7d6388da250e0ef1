"""The artefact off the grid: how far the answer moves at angles that pixels do not have.

Two pictures are turned: one by interpolating its pixels, and one, made of smooth spots, that is
drawn anew at every angle, without interpolation.  What is left in the second is the network's own
share: its lattice and its neighbourhoods do not turn by 45°.
"""

import math
from collections.abc import Sequence

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import rotate_image, rotation_matrices
from turnwise.reports.figures.plots import (
    LOOK,
    add_legend,
    angle_axis,
    closed_curve,
    draw_curves,
    laid_out,
    mark_exact_angles,
)
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.views import scores_of

Images = Float[Tensor, "batch channel row col"]
STEPS = 16  # every 22.5°
LEAST = 1e-9  # what is smaller is drawn here: a logarithmic axis has no zero


def spots(count: int, channels: int, size: int, degrees: float) -> Images:
    """Pictures of five smooth spots each, inside the largest circle, drawn at this angle."""
    random = torch.Generator().manual_seed(0)
    radius = 0.33 * size * torch.rand(count, 5, generator=random, dtype=torch.float64).sqrt()
    around = 2 * math.pi * torch.rand(count, 5, generator=random, dtype=torch.float64)
    centres = torch.stack([radius * around.cos(), radius * around.sin()], dim=-1)
    angle = torch.full((1,), math.radians(degrees), dtype=torch.float64)
    centres = centres @ rotation_matrices(angle)[0].T
    distance = (pixel_centres(size, size)[None, None] - centres[:, :, None, None]).square().sum(-1)
    image = (-distance / (2 * (0.045 * size) ** 2)).exp().sum(dim=1).clamp(0, 1)
    return image[:, None].expand(-1, channels, -1, -1).float()


def change_over_angles(
    model: nn.Module, channels: int, size: int, angles: Sequence[float], *, count: int = 12
) -> dict[str, list[float]]:
    """How far the scores move at each angle: mean |Φ(turned f) − Φ(f)| over the spread of Φ.

    `interpolated` turns the pixels, `drawn anew` the spots; 1 is as far as from one picture to
    another.
    """
    upright = spots(count, channels, size, 0.0)
    before = scores_of(model, upright)
    spread = before.std(dim=0).mean().clamp_min(torch.finfo(before.dtype).tiny)
    turned = {
        "interpolated": [rotate_image(upright, a) for a in angles],
        "drawn anew": [spots(count, channels, size, a) for a in angles],
    }
    return {
        how: [float((scores_of(model, views) - before).abs().mean() / spread) for views in moved]
        for how, moved in turned.items()
    }


def artefact_figure(
    subjects: Sequence[LoadedModel], *, progress: bool = False
) -> tuple[Figure, list[list[str]]]:
    """The curves, and a table of name, way, and the change at 22.5°, 45° and 90°."""
    angles = [360 * k / STEPS for k in range(STEPS)]
    curves, rows = {}, []
    for subject in tqdm(subjects, desc="turning", disable=not progress, leave=False):
        channels, size = subject.pictures.images.shape[1:3]
        for how, change in change_over_angles(subject.model, channels, size, angles).items():
            name = f"{subject.name}, {how}"
            curves[name] = closed_curve(angles, [max(LEAST, value) for value in change])
            rows.append([name, *(f"{change[angles.index(a)]:.1e}" for a in (22.5, 45.0, 90.0))])
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 6), layout="constrained")
        axes = figure.add_subplot(
            xlabel="turned by", ylabel="change of the scores\n(1: another picture)", yscale="log"
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        draw_curves(axes, curves, 36)
        angle_axis(axes)
        mark_exact_angles(axes, (0.0, 90.0, 180.0, 270.0))
        add_legend(figure, axes)
        return laid_out(figure), rows
