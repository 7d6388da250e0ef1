"""How a gaze turns with the picture, and what a network has learned about positions."""

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from turnwise.attention.rotary import own_frame_phases
from turnwise.errors import InputError, require
from turnwise.evaluation.certificate.moves import describe_element
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.gsa.attention import GroupSelfAttention, LiftingSelfAttention
from turnwise.layers.transformer.rotary import GroupRotaryAttention
from turnwise.models.orbits import Orbit
from turnwise.models.vit import VisionTransformer
from turnwise.reports.figures.angles import draw_image
from turnwise.reports.figures.attention_maps import Gaze, attention_of, grid_of
from turnwise.reports.figures.plots import COLOURS, LOOK, laid_out
from turnwise.reports.loaded_models import LoadedModel, chosen_example
from turnwise.reports.tables import format_error

ROWS_OF_MAPS = 6


def moved_place(group: PlanarGroup, g: int, row: int, col: int, side: int) -> tuple[int, int]:
    """Where the pixel (row, col) of a square grid is after g."""
    one = torch.zeros(side, side)
    one[row, col] = 1
    return divmod(int(act_on_image(group, g, one).argmax()), side)


def moved_gaze(group: PlanarGroup, g: int, gaze: Gaze, poses: int, side: int) -> Gaze:
    """The same token of the picture moved by g: its pixel moves, and its pose becomes g·h."""
    row, col = moved_place(group, g, gaze.row, gaze.col, side)
    pose = group.compose(g, gaze.pose) if poses == group.order else gaze.pose
    return gaze._replace(pose=pose, row=row, col=col)


def attention_figure(
    subject: LoadedModel, *, picture: int = 0, layer: int = 0, head: int = 0, element: int = 0,
    pixel: tuple[int, int] | None = None,
) -> tuple[Figure, list[float]]:  # fmt: skip
    """A column for each element g that maps pixels: the picture moved by g with the token marked,
    its weights on all sources (poses added up), and the difference to the first ones, moved.

    Also returns that difference for each g, relative to the largest weight.
    """
    require(
        not isinstance(subject.model, Orbit),
        f"{subject.name} asks a plain model for every view; show the attention of that model.",
    )
    image = chosen_example(subject, picture).images.float() / 255
    poses, side, _, _ = grid_of(subject.model, image, layer)
    group = _acting_group(subject, poses)
    row, col = pixel or (side // 3, side // 2)
    gaze = Gaze(layer, head, element, row, col)
    first = attention_of(subject.model, image, gaze).sum(dim=0)
    elements, gaps = group.grid_elements(), []
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        figure = Figure(figsize=(1.6 + 1.9 * len(elements), 6.3), layout="constrained")
        cells = figure.subplots(3, len(elements), squeeze=False)
        for column, g in enumerate(elements):
            turned = moved_gaze(group, g, gaze, poses, side)
            moved = act_on_image(group, g, image)
            weights = attention_of(subject.model, moved, turned).sum(dim=0)
            gap = weights - act_on_image(group, g, first)
            gaps.append(float(gap.abs().max() / first.max()))
            draw_image(cells[0, column], moved[0])
            cells[0, column].set_title(describe_element(group, g).replace(", ", ",\n"), fontsize=12)
            _mark(cells[0, column], turned, side, image.shape[-1])
            bound = float(first.max())
            _heat(cells[1, column], weights, 0.0, bound, "cividis")
            _heat(cells[2, column], gap, -bound, bound, "RdBu_r")
            cells[2, column].set_xlabel(format_error(gaps[-1]), fontsize=12)
        cells[1, 0].set_ylabel("attention")
        cells[2, 0].set_ylabel("difference")
        figure.suptitle(
            f"{subject.name}: layer {layer}, head {head}, pose {element} at ({row}, {col})",
            fontsize=13,
        )
        return laid_out(figure), gaps


def position_maps(model: nn.Module) -> dict[str, Float[Tensor, "pose row col"]]:
    """What is learned of positions, as maps over the offset from a token, one for each pose.

    Group attention: channels of P(h⁻¹δ).  Rotary: the mean of cos(hω·δ) over the frequencies ω of a
    head, which is how much of a query equal to its key is left at offset δ.  Plain transformers:
    channels of the absolute positions, which have no pose.
    """
    for module in model.modules():
        if isinstance(module, LiftingSelfAttention | GroupSelfAttention):
            return _place_maps(module)
        if isinstance(module, GroupRotaryAttention):
            return _rotary_maps(module)
        if isinstance(module, VisionTransformer):
            side = round(len(module.position) ** 0.5)
            maps = module.position.detach().cpu().T.unflatten(1, (side, side))
            return {f"channel {c}": maps[c][None] for c in range(min(ROWS_OF_MAPS, len(maps)))}
    raise InputError(f"{type(model).__name__} has no positions that can be shown.")


def positions_figure(subject: LoadedModel) -> Figure:
    """The maps of `position_maps`: a row for each channel or head, a column for each pose.

    Blue is below zero and red above; the number beside a row is its largest value.
    """
    maps = position_maps(subject.model)
    poses = max(len(each) for each in maps.values())
    group: PlanarGroup = subject.model.group  # type: ignore[assignment]
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        size = (1.8 + 1.6 * poses, 1.0 + 1.6 * len(maps))
        figure = Figure(figsize=(max(4.0, size[0]), size[1]), layout="constrained")
        cells = figure.subplots(len(maps), poses, squeeze=False)
        for row, (name, each) in zip(cells, maps.items(), strict=True):
            bound = float(each.abs().max())
            for pose, axes in enumerate(row):
                _heat(axes, each[pose], -bound, bound, "RdBu_r")
            row[0].set_ylabel(f"{name}\n±{bound:.2g}")
        for pose, axes in enumerate(cells[0]):
            words = describe_element(group, pose) if poses > 1 else "no pose"
            axes.set_title(f"pose {pose}:\n{words}" if poses > 1 else words, fontsize=11)
        return laid_out(figure)


def _place_maps(layer: nn.Module) -> dict[str, Float[Tensor, "pose row col"]]:
    plan = layer.project.plan  # type: ignore[union-attr]
    side = plan.neighbourhood.window or plan.size  # type: ignore[union-attr]
    device = next(layer.parameters()).device
    observe, place = layer.project.observe, layer.place  # type: ignore[union-attr]
    coordinates, sources = observe(side, side, 0, device)  # type: ignore[operator]
    with torch.no_grad():
        encoded = place(coordinates).cpu()  # type: ignore[operator]
    steps = sources.steps.cpu().long()
    reach = int(steps.abs().max())
    maps = encoded.new_full((encoded.shape[-1], len(encoded), 2 * reach + 1, 2 * reach + 1), 0.0)
    maps[:, :, steps[:, 0] + reach, steps[:, 1] + reach] = encoded.permute(2, 0, 1)
    chosen = torch.linspace(0, len(maps) - 1, min(ROWS_OF_MAPS, len(maps))).round().long().tolist()
    return {f"channel {c}": maps[c] for c in chosen}


def _rotary_maps(
    layer: GroupRotaryAttention, side: int = 15
) -> dict[str, Float[Tensor, "pose row col"]]:
    offsets = pixel_centres(side, side).flatten(0, 1).to(layer.frequency.device)
    with torch.no_grad():
        phases = own_frame_phases(layer.frequency, layer.matrices, offsets.float())
    left = phases.cos().mean(dim=-1).cpu().unflatten(2, (side, side))  # (pose, head, row, col)
    return {f"head {n}": left[:, n] for n in range(min(ROWS_OF_MAPS, left.shape[1]))}


def _acting_group(subject: LoadedModel, poses: int) -> PlanarGroup:
    """The model's own group, or where it has none, the one that it is held against."""
    own: PlanarGroup = subject.model.group  # type: ignore[assignment]
    return own if own.order == poses and poses > 1 else subject.group.exact_subgroup()


def _mark(axes: matplotlib.axes.Axes, gaze: Gaze, side: int, size: int) -> None:
    """A ring around the token, at its place in the picture."""
    scale = size / side
    x, y = (gaze.col + 0.5) * scale - 0.5, (gaze.row + 0.5) * scale - 0.5
    axes.plot([x], [y], marker="o", markersize=11, mfc="none", mec=COLOURS[4], mew=2.5)


def _heat(
    axes: matplotlib.axes.Axes, values: Tensor, low: float, high: float, colours: str
) -> None:
    axes.imshow(values.numpy(), cmap=colours, vmin=low, vmax=high)
    axes.set_xticks([])
    axes.set_yticks([])
