"""What a model answers when the object moves and nothing else does.

A picture qualifies when it can be moved without losing a pixel: with `min_shift` + 1 blank columns
(or rows) on both sides, of the chosen classes.  Moving it then is the same with zeros coming in as
with what went out coming in on the other side.  Examples with a background do not qualify; with
`circular` they all do, and are moved round.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention": one class,
          along the rows; accuracy and loss at each shift.  The other axis, all classes, agreement
          and the change of the logits are ours.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples
from turnwise.data.batches import EvaluationBatches
from turnwise.errors import InputError, require, require_known
from turnwise.evaluation.rotations import device_of
from turnwise.files import write_atomic
from turnwise.inference.precision import full_precision

AXES = {"horizontal": -1, "vertical": -2}
Images = UInt8[Tensor, "picture channel row col"]


@dataclass(frozen=True)
class ShiftTest:
    """What is moved, and how far; the published test, unless told otherwise.

    labels: of the pictures, None for all.  by_class: rows for each class, beside those for all.
    """

    labels: tuple[int, ...] | None = (1,)
    min_shift: int = 8
    axes: tuple[str, ...] = ("horizontal",)
    circular: bool = False
    by_class: bool = False


@dataclass(frozen=True)
class ShiftFigures:
    """One row of the table; the first six are those that were published."""

    run_dir: str
    shift: int
    accuracy_mean: float
    accuracy_std: float
    loss_mean: float
    loss_std: float
    axis: str
    labels: str
    pictures: int
    agreement: float
    logit_change: float


def blank_margins(images: Images, axis: str) -> Int64[Tensor, "picture 2"]:
    """The number of blank columns (rows) before the first that is not, and after the last."""
    require_known(axis, AXES, "axis")
    across = 2 if axis == "horizontal" else 3
    drawn = (images != 0).any(dim=1).any(dim=across - 1).long()
    before = (drawn.cumsum(-1) == 0).sum(-1)
    after = (drawn.flip(-1).cumsum(-1) == 0).sum(-1)
    return torch.stack([before, after], dim=-1)


def qualified(images: Images, min_shift: int, axis: str) -> Bool[Tensor, " picture"]:
    """Which pictures have at least `min_shift` + 1 blank columns (rows) on both sides."""
    return (blank_margins(images, axis) - 1 >= min_shift).all(dim=-1)


def movable(
    pictures: Examples,
    labels: Sequence[int] | None,
    min_shift: int,
    axis: str,
    *,
    circular: bool = False,
) -> Examples:
    """The pictures of these labels (None: all) that qualify; raises where there are none."""
    side = pictures.images.shape[AXES[axis]]
    require(
        0 <= min_shift < side,
        f"min_shift = {min_shift} must be from 0 to {side - 1}, below the side of the pictures.",
    )
    wanted = torch.ones(len(pictures), dtype=torch.bool)
    if labels is not None:
        wanted = torch.isin(pictures.labels, torch.tensor(list(labels), dtype=torch.int64))
    require(bool(wanted.any()), f"no picture has one of the labels {labels}.")
    if circular:
        return pictures.take(wanted.nonzero()[:, 0])
    chosen = wanted & qualified(pictures.images, min_shift, axis)
    if not chosen.any():
        margins = blank_margins(pictures.images[wanted], axis).amin(dim=-1)
        most = int(margins.max()) - 1
        cure = f"try {most} or less" if most >= 0 else "move them circularly (--circular)"
        raise InputError(
            f"no picture can be moved by {min_shift} pixels ({axis}) without losing some; {cure}."
        )
    return pictures.take(chosen.nonzero()[:, 0])


def movable_along(pictures: Examples, how: ShiftTest) -> dict[str, Examples]:
    """The pictures that are moved along each axis; raises where there are none along one."""
    return {
        axis: movable(pictures, how.labels, how.min_shift, axis, circular=how.circular)
        for axis in how.axes
    }


def label_sets(chosen: Examples, how: ShiftTest) -> dict[str, Bool[Tensor, " picture"]]:
    """What has rows of its own, and its pictures: all labels together, then each where asked."""
    name = "all" if how.labels is None else " ".join(map(str, how.labels))
    sets = {name: torch.ones(len(chosen), dtype=torch.bool)}
    if how.by_class:  # of one label it is that label's
        sets |= {str(c): chosen.labels == c for c in chosen.labels.unique().tolist()}
    return sets


@torch.no_grad()
@full_precision()
def predict_shifted(
    model: nn.Module,
    pictures: Examples,
    shifts: Sequence[int],
    axis: str,
    *,
    batch_size: int = 256,
    progress: bool = False,
) -> Float[Tensor, "shift picture class"]:
    """The logits for every picture moved by every shift: right or up are positive."""
    require_known(axis, AXES, "axis")
    was_training = model.training
    model.eval()
    batches = EvaluationBatches(pictures, batch_size, device=device_of(model))
    answers = []
    for shift in tqdm(shifts, desc=f"moving the pictures ({axis})", disable=not progress):
        steps = shift if axis == "horizontal" else -shift  # rows run down
        answers.append(
            torch.cat(
                [
                    model(model.preprocess(images.roll(steps, AXES[axis]))).double().cpu()  # type: ignore[operator]
                    for images, _ in batches
                ]
            )
        )
    model.train(was_training)
    return torch.stack(answers)


def shift_figures(
    logits: Float[Tensor, "shift picture class"],
    labels: Int64[Tensor, " picture"],
    shifts: Sequence[int],
    *,
    run_dir: str,
    axis: str,
    name: str,
) -> list[ShiftFigures]:
    """The table of one run, axis and choice of labels; spreads are over the pictures.

    agreement is the share of pictures decided as at shift 0, logit_change |z − z₀| / |z₀|.
    """
    still = logits[list(shifts).index(0)]
    rows = []
    for shift, moved in zip(shifts, logits, strict=True):
        right = (moved.argmax(-1) == labels).double()
        loss = F.cross_entropy(moved, labels, reduction="none")
        same = (moved.argmax(-1) == still.argmax(-1)).double()
        change = float((moved - still).norm() / still.norm().clamp_min(1e-300))
        rows.append(
            ShiftFigures(
                run_dir, shift, float(right.mean()), _spread(right), float(loss.mean()),
                _spread(loss), axis, name, len(labels), float(same.mean()), change,
            )
        )  # fmt: skip
    return rows


def evaluate_shifts(
    model: nn.Module,
    pictures: Examples,
    how: ShiftTest | None = None,
    *,
    run_dir: str = "",
    batch_size: int = 256,
    progress: bool = False,
) -> list[ShiftFigures]:
    """All shifts from −min_shift to min_shift along the axes, by default as published."""
    how = how or ShiftTest()
    shifts = range(-how.min_shift, how.min_shift + 1)
    rows = []
    for axis, chosen in movable_along(pictures, how).items():
        logits = predict_shifted(
            model, chosen, shifts, axis, batch_size=batch_size, progress=progress
        )
        for said, part in label_sets(chosen, how).items():
            rows += shift_figures(
                logits[:, part], chosen.labels[part], shifts,
                run_dir=run_dir, axis=axis, name=said,
            )  # fmt: skip
    return rows


def write_shift_table(rows: Sequence[ShiftFigures], path: Path) -> None:
    """CSV: the number of the row without a heading, then the published columns, then ours."""
    text = io.StringIO()
    columns = [field.name for field in fields(ShiftFigures)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *columns])
    for number, row in enumerate(rows):
        writer.writerow([number, *asdict(row).values()])
    write_atomic(path, text.getvalue().encode())


def _spread(x: Float[Tensor, " picture"]) -> float:
    """The unbiased standard deviation; 0 of a single picture."""
    return float(x.std()) if len(x) > 1 else 0.0
