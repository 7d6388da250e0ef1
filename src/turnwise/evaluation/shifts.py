"""Evaluate a classifier on shifted images.

An image qualifies if it can be shifted without losing a pixel: it has `min_shift` + 1 blank columns
(or rows) on both sides.  Then a shift that fills with zeros and a circular shift are the same.
Images with a background do not qualify; with `circular` all do, and are shifted circularly.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention": one class,
          along the rows; accuracy and loss at each shift.  The other axis, all classes, agreement
          and the change of the logits are ours.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples
from turnwise.errors import InputError, require, require_known
from turnwise.files import write_atomic
from turnwise.inference.predictor import Predictor

AXES = {"horizontal": -1, "vertical": -2}
Images = UInt8[Tensor, "image channel row col"]


@dataclass(frozen=True)
class ShiftTest:
    """What is shifted, and how far; the defaults are the published test.

    labels:     the classes of the images, None for all
    min_shift:  the largest shift, in pixels
    axes:       of "horizontal" and "vertical"
    circular:   shift every image circularly, whether it qualifies or not
    by_class:   also report each class on its own
    """

    labels: tuple[int, ...] | None = (1,)
    min_shift: int = 8
    axes: tuple[str, ...] = ("horizontal",)
    circular: bool = False
    by_class: bool = False


@dataclass(frozen=True)
class ShiftFigures:
    """One row of the table; the first six columns are the published ones."""

    run_dir: str
    shift: int
    accuracy_mean: float
    accuracy_std: float
    loss_mean: float
    loss_std: float
    axis: str
    labels: str
    images: int
    agreement: float
    logit_change: float


def blank_margins(images: Images, axis: str) -> Int64[Tensor, "image 2"]:
    """Return the number of blank columns (rows) at either end."""
    require_known(axis, AXES, "axis")
    across = 2 if axis == "horizontal" else 3
    drawn = (images != 0).any(dim=1).any(dim=across - 1).long()
    before = (drawn.cumsum(-1) == 0).sum(-1)
    after = (drawn.flip(-1).cumsum(-1) == 0).sum(-1)
    return torch.stack([before, after], dim=-1)


def qualified(images: Images, min_shift: int, axis: str) -> Bool[Tensor, " image"]:
    """Return which images have at least `min_shift` + 1 blank columns (rows) on both sides."""
    return (blank_margins(images, axis) - 1 >= min_shift).all(dim=-1)


def select_shiftable(
    examples: Examples,
    labels: Sequence[int] | None,
    min_shift: int,
    axis: str,
    *,
    circular: bool = False,
) -> Examples:
    """Return the examples of these labels (None: all) that qualify; there must be one."""
    side = examples.images.shape[AXES[axis]]
    require(
        0 <= min_shift < side,
        f"min_shift = {min_shift} must be from 0 to {side - 1}, below the side of the images.",
    )
    wanted = torch.ones(len(examples), dtype=torch.bool)
    if labels is not None:
        wanted = torch.isin(examples.labels, torch.tensor(list(labels), dtype=torch.int64))
    require(bool(wanted.any()), f"no image has one of the labels {labels}.")
    if circular:
        return examples.take(wanted.nonzero()[:, 0])
    chosen = wanted & qualified(examples.images, min_shift, axis)
    if not chosen.any():
        margins = blank_margins(examples.images[wanted], axis).amin(dim=-1)
        most = int(margins.max()) - 1
        cure = f"try {most} or less" if most >= 0 else "shift them circularly"
        raise InputError(
            f"no image can be shifted by {min_shift} pixels ({axis}) without losing some; {cure}."
        )
    return examples.take(chosen.nonzero()[:, 0])


def shiftable_by_axis(examples: Examples, how: ShiftTest) -> dict[str, Examples]:
    """Return the examples that are shifted along each axis; every axis must have one."""
    labels, most = how.labels, how.min_shift
    return {
        axis: select_shiftable(examples, labels, most, axis, circular=how.circular)
        for axis in how.axes
    }


def label_sets(chosen: Examples, how: ShiftTest) -> dict[str, Bool[Tensor, " image"]]:
    """Return the examples that share a row: all of them, then those of each class if requested."""
    name = "all" if how.labels is None else " ".join(map(str, how.labels))
    sets = {name: torch.ones(len(chosen), dtype=torch.bool)}
    if how.by_class:  # for a single label this replaces the row above
        sets |= {str(c): chosen.labels == c for c in chosen.labels.unique().tolist()}
    return sets


def predict_shifted(
    model: nn.Module,
    images: Images,
    shifts: Sequence[int],
    axis: str,
    *,
    batch_size: int = 256,
    progress: bool = False,
) -> Float[Tensor, "shift image class"]:
    """Return the logits for every image at every shift: right and up are positive."""
    require_known(axis, AXES, "axis")
    predictor = Predictor(model, ("logits",), batch_size=batch_size)
    found = []
    for shift in tqdm(shifts, desc=f"shifting the images ({axis})", disable=not progress):
        steps = shift if axis == "horizontal" else -shift  # rows run down
        roll = partial(torch.roll, shifts=steps, dims=AXES[axis])
        found.append(predictor.logits(images, roll))
    return torch.stack(found)


def shift_figures(
    logits: Float[Tensor, "shift image class"],
    labels: Int64[Tensor, " image"],
    shifts: Sequence[int],
    *,
    run_dir: str,
    axis: str,
    name: str,
) -> list[ShiftFigures]:
    """Return the table of one run, axis and choice of labels; `std` is over the images.

    agreement is the share of images with the class of shift 0, logit_change is |z − z₀| / |z₀|.
    """
    upright = logits[list(shifts).index(0)]
    rows = []
    for shift, shifted in zip(shifts, logits, strict=True):
        right = (shifted.argmax(-1) == labels).double()
        loss = F.cross_entropy(shifted, labels, reduction="none")
        same = (shifted.argmax(-1) == upright.argmax(-1)).double()
        change = float((shifted - upright).norm() / upright.norm().clamp_min(1e-300))
        rows.append(
            ShiftFigures(
                run_dir, shift, float(right.mean()), _std(right), float(loss.mean()),
                _std(loss), axis, name, len(labels), float(same.mean()), change,
            )
        )  # fmt: skip
    return rows


def evaluate_shifts(
    model: nn.Module,
    examples: Examples,
    how: ShiftTest | None = None,
    *,
    run_dir: str = "",
    batch_size: int = 256,
    progress: bool = False,
) -> list[ShiftFigures]:
    """Evaluate all shifts from −min_shift to min_shift along the axes."""
    how = how or ShiftTest()
    shifts = range(-how.min_shift, how.min_shift + 1)
    rows = []
    for axis, chosen in shiftable_by_axis(examples, how).items():
        logits = predict_shifted(
            model, chosen.images, shifts, axis, batch_size=batch_size, progress=progress
        )
        for name, part in label_sets(chosen, how).items():
            rows += shift_figures(
                logits[:, part], chosen.labels[part], shifts,
                run_dir=run_dir, axis=axis, name=name,
            )  # fmt: skip
    return rows


def write_shift_table(rows: Sequence[ShiftFigures], path: Path) -> None:
    """Write a CSV file: row numbers without a heading, the published columns, then ours."""
    text = io.StringIO()
    columns = [field.name for field in fields(ShiftFigures)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *columns])
    for number, row in enumerate(rows):
        writer.writerow([number, *asdict(row).values()])
    write_atomic(path, text.getvalue().encode())


def _std(x: Float[Tensor, " image"]) -> float:
    """Return the unbiased standard deviation, 0 for a single image."""
    return float(x.std()) if len(x) > 1 else 0.0
