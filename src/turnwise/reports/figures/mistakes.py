"""Where a model is wrong: which classes it confuses, and its worst pictures as they turn."""

from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from turnwise.evaluation.metrics import confusion_matrix
from turnwise.evaluation.rotations import equal_angles, predict_over_angles
from turnwise.geometry.warps import rotate_image
from turnwise.reports.figures.angles import draw_image
from turnwise.reports.figures.plots import LOOK, laid_out
from turnwise.reports.loaded_models import LoadedModel, spaced_examples

NUMBERED = 12  # classes up to which the cells show their counts
STEPS = 24


@dataclass(frozen=True)
class Fall:
    """A picture, and the angle at which its class loses most of its probability."""

    number: int
    degrees: float
    upright: float
    turned: float
    answer: int


def confusion_figure(subject: LoadedModel, *, pictures: int = 500, degrees: float = 90.0) -> Figure:
    """How many pictures of each class got each answer: upright, and turned."""
    sample = spaced_examples(subject, pictures)
    answers = predict_over_angles(subject.model, sample, [0.0, degrees])
    classes = len(subject.classes)
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        figure = Figure(figsize=(11, 6), layout="constrained")
        cells = figure.subplots(1, 2)
        for axes, said, title in zip(
            cells, answers, ("upright", f"turned by {degrees:g}°"), strict=True
        ):
            right = float((said.argmax(-1) == sample.labels).double().mean())
            matrix = confusion_matrix(said, sample.labels, classes)
            drawn = _matrix(axes, matrix, subject.classes)
            axes.set(xlabel="answer", title=f"{title}: {100 * right:.1f} % right")
        cells[0].set_ylabel("class of the picture")
        figure.colorbar(drawn, ax=list(cells), label="share of the class", shrink=0.8)
        figure.suptitle(f"{subject.name}, {len(sample)} {subject.origin}", fontsize=14)
        return laid_out(figure)


def worst_falls(
    subject: LoadedModel, *, pictures: int, count: int, progress: bool = False
) -> list[Fall]:
    """The pictures, among a sample, whose right class loses most when they turn; worst first."""
    sample, degrees = spaced_examples(subject, pictures), equal_angles(STEPS)
    answers = predict_over_angles(subject.model, sample, degrees, progress=progress)
    right = answers.gather(2, sample.labels.expand(STEPS, -1)[..., None])[..., 0]
    lowest = right.min(dim=0)
    order = (right[0] - lowest.values).argsort(descending=True)[:count].tolist()
    return [
        Fall(
            number=i,
            degrees=degrees[at := int(lowest.indices[i])],
            upright=float(right[0, i]),
            turned=float(lowest.values[i]),
            answer=int(answers[at, i].argmax()),
        )
        for i in order
    ]


def worst_figure(
    subject: LoadedModel, *, pictures: int = 200, count: int = 6, progress: bool = False
) -> Figure:
    """The pictures that fall deepest: upright above, at their worst angle below."""
    falls = worst_falls(subject, pictures=pictures, count=count, progress=progress)
    sample = spaced_examples(subject, pictures)
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        figure = Figure(figsize=(1.0 + 2.0 * len(falls), 5.8), layout="constrained")
        cells = figure.subplots(2, len(falls), squeeze=False)
        for column, fall in enumerate(falls):
            image = sample.images[fall.number : fall.number + 1].float() / 255
            name = subject.classes[int(sample.labels[fall.number])]
            told = f"upright\n“{name}”: {100 * fall.upright:.0f} %"
            draw_image(cells[0, column], image[0], told)
            turned = rotate_image(image, fall.degrees)[0]
            said = subject.classes[fall.answer]
            told = f"{fall.degrees:g}°: {100 * fall.turned:.0f} %\nsays “{said}”"
            draw_image(cells[1, column], turned, told)
        figure.suptitle(f"{subject.name}: largest falls over {STEPS} angles", fontsize=14)
        return laid_out(figure)


def _matrix(axes: Axes, matrix: Tensor, classes: tuple[str, ...]) -> matplotlib.image.AxesImage:
    share = matrix / matrix.sum(dim=1, keepdim=True).clamp_min(1)
    drawn = axes.imshow(share.numpy(), cmap="cividis", vmin=0, vmax=1)
    if len(classes) <= NUMBERED:
        places = range(len(classes))
        axes.set_xticks(places, classes, rotation=0 if max(map(len, classes)) < 3 else 90)
        axes.set_yticks(places, classes)
        for row, col in matrix.nonzero().tolist():
            colour = "black" if share[row, col] > 0.5 else "white"
            count = str(int(matrix[row, col]))
            axes.text(col, row, count, ha="center", va="center", color=colour, fontsize=11)
    return drawn
