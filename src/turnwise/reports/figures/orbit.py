"""Which view the model trusted: its answer to each view of a picture, and to all together."""

from dataclasses import dataclass

import matplotlib
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from turnwise.evaluation.certificate.moves import describe_element
from turnwise.geometry.warps import warp_image
from turnwise.groups import PlanarGroup
from turnwise.models.orbits import Orbit as OrbitModel
from turnwise.models.orbits import orbit
from turnwise.reports.figures.angles import draw_image
from turnwise.reports.figures.film import OTHER, RIGHT, classes_to_show
from turnwise.reports.figures.plots import COLOURS, LOOK, laid_out
from turnwise.reports.loaded_models import LoadedModel, chosen_example, spaced_examples
from turnwise.reports.views import answers_to

Images = Float[Tensor, "batch channel row col"]


@dataclass(frozen=True, eq=False)
class Orbit:
    """A classifier that is asked about every view h⁻¹f, and the answer that is made of all."""

    inner: nn.Module
    whole: nn.Module
    group: PlanarGroup

    @classmethod
    def of(cls, subject: LoadedModel) -> "Orbit":
        """What an orbit model wraps; any other model under the grid's part of its group."""
        model, group = subject.model, subject.group.exact_subgroup()
        if isinstance(model, OrbitModel):
            return cls(model.model, model, model.group)
        return cls(model, orbit(model, group), group)

    def views(self) -> list[int]:
        """h⁻¹ for every h."""
        return self.group.inverse().tolist()


def view_answers(asked: Orbit, images: Images) -> Float[Tensor, "batch group class"]:
    """The probabilities that the model inside gives to each view h⁻¹f."""
    moved = [warp_image(asked.group, view, images) for view in asked.views()]
    return torch.stack([answers_to(asked.inner, views) for views in moved], dim=1)


def trusted(answers: Float[Tensor, "batch group class"]) -> Int64[Tensor, " batch"]:
    """The view with the surest answer."""
    return answers.amax(dim=-1).argmax(dim=-1)


def orbit_figure(subject: LoadedModel, *, picture: int = 0, pictures: int = 200) -> Figure:
    """Above: each view, the answer to it, and the mean.  Below: how often each view was surest,
    for upright pictures and for the same ones moved by the group's first element: it moves along.
    """
    model, one = Orbit.of(subject), chosen_example(subject, picture)
    image, label = one.images.float() / 255, int(one.labels)
    answers, group = view_answers(model, image)[0], model.group
    combined = answers_to(model.whole, image)[0]
    shown = classes_to_show({"": torch.cat([answers, combined[None]])}, label)
    names = [subject.classes[c] for c in shown]
    best, views = int(trusted(answers[None])), model.views()
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        columns = group.order + 1
        figure = Figure(figsize=(1.0 + 1.75 * columns, 7.6), layout="constrained")
        grid = figure.add_gridspec(3, columns, height_ratios=(1, 1.7, 1.5))
        for h in range(columns):
            bars = figure.add_subplot(grid[1, h])
            whole = h == group.order
            said = combined if whole else answers[h]
            _bars(bars, said[shown], names, shown.index(label), h == 0)
            if not whole:
                axes = figure.add_subplot(grid[0, h])
                draw_image(axes, warp_image(group, views[h], image)[0])
                words = describe_element(group, views[h]).replace(", ", ",\n")
                axes.set_title(words, fontsize=11)
            words = "all together" if whole else f"sure: {100 * float(said.max()):.0f} %"
            mark = "▲ " if h == best and not whole else ""
            bars.set_xlabel(mark + words, color=COLOURS[1] if mark else "black")
        _counts(figure.add_subplot(grid[2, :]), model, subject, pictures)
        return laid_out(figure)


def _counts(axes: Axes, model: Orbit, subject: LoadedModel, pictures: int) -> None:
    group, sample = model.group, spaced_examples(subject, pictures)
    images = sample.images.float() / 255
    turned = {
        "upright": images,
        f"after {describe_element(group, 1)}": warp_image(group, 1, images),
    }
    for i, (name, moved) in enumerate(turned.items()):
        counts = torch.bincount(trusted(view_answers(model, moved)), minlength=group.order)
        place = torch.arange(group.order) + (i - 0.5) * 0.4
        share = (counts / len(sample)).tolist()
        axes.bar(place.tolist(), share, 0.38, label=name, color=COLOURS[i], hatch="/" * i)
    axes.set_xticks(range(group.order), [describe_element(group, view) for view in model.views()])
    axes.set(ylabel="share of pictures", title=f"surest view of {len(sample)} pictures")
    axes.tick_params(labelsize=11)
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
    axes.legend(ncols=2, loc="upper center")


def _bars(axes: Axes, said: Tensor, names: list[str], label: int, named: bool) -> None:
    colours = [RIGHT if i == label else OTHER for i in range(len(names))]
    axes.barh(names, said.tolist(), color=colours)
    axes.set(xlim=(0, 1.02), xticks=[])
    axes.invert_yaxis()
    if not named:
        axes.set_yticks([])
