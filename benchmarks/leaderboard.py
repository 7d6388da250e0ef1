"""Published figures beside ours, and how each was selected: docs/results/leaderboard.md.

`python benchmarks/tables.py` writes them.  How a figure was selected was read from the program that
made it, in the file that is named.  A row of ours is the last record of a recipe.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from records import Record

from turnwise.reports.tables import UNDEFINED, markdown_table

TEST = "test split: the best epoch"
VALIDATION = "validation split"
FIXED = "epochs fixed beforehand, all 12,000 images"
BY_TEST_LOADER = f"{TEST} (`dataset.py`: the validation loader is the test loader)"
BY_CHECKPOINT = f"{VALIDATION} (`train.py`: the best checkpoint, tested once)"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Published:
    """A published figure in percent, how its program selected it, and our recipe for it."""

    model: str
    figure: str
    selected: str
    recipe: str = ""


def gsa(model: str, figure: str, recipe: str) -> Published:
    return Published(model, figure, BY_TEST_LOADER, recipe)


def performer(model: str, figure: str, data: str) -> Published:
    name = model.lower().replace(" ", "_").removeprefix("no-position_")
    ending = f"nopos_{name}" if model.startswith("No-position") else name
    return Published(model, figure, BY_CHECKPOINT, f"{data}_{ending}")


def performers(data: str, *figures: str) -> tuple[Published, ...]:
    models = ("Performer", "Relative Performer", "Clipped relative Performer")
    found = tuple(
        performer(model, figure, data) for model, figure in zip(models, figures[:3], strict=True)
    )
    return (*found, performer("No-position Performer", figures[3], data))


BOARDS: dict[str, tuple[Published, ...]] = {
    "rotmnist": (
        Published("Separable Sim(2)-CNN", "99.41", f"{TEST} (`train_model.py` logs it)"),
        Published("E2SFCNN, D16|5 C16", "99.318 ± 0.022", f"{FIXED} (`mnist_final_single.sh`)"),
        Published("REViT", "98.28", f"{TEST} (`train_revit.py`)"),
        Published(
            "ViT in an orbit of 16, tuned whole, max", "98.31",
            f"epoch by {VALIDATION}, combination by test (`post_hoc_experiments.py`)",
            "rotmnist_orbit_vit_c16_whole",
        ),
        Published(
            "ViT in an orbit of 16, tuned whole, mean", "98.24",
            f"{VALIDATION} (`post_hoc_experiments.py`)", "rotmnist_orbit_resnet_c16_whole",
        ),
        Published("ViT", "97.23", f"{VALIDATION} (`train_vit.py`)", "rotmnist_vit"),
        gsa("GE-ViT p12", "98.01", "rotmnist_ge_vit_p12"),
        gsa("GE-ViT p4", "97.58", "rotmnist_ge_vit_p4"),
        gsa("GSA-Net p16", "97.66", "rotmnist_gsa_net_p16"),
        gsa("GSA-Net p12", "97.97", "rotmnist_gsa_net_p12"),
        gsa("GSA-Net p8", "97.90", "rotmnist_gsa_net_p8"),
        gsa("GSA-Net p4", "97.46", "rotmnist_gsa_net_p4"),
        gsa("GSA-Net z2", "96.37", "rotmnist_gsa_net_z2"),
        Published("–", UNDEFINED, UNDEFINED, "rotmnist_hybrid_c4"),
        Published("–", UNDEFINED, UNDEFINED, "rotmnist_turnwise_vit_nano_c16"),
        Published("–", UNDEFINED, UNDEFINED, "rotmnist_turnwise_vit_small_c16"),
    ),
    "rotmnist_tenth": (
        Published(
            "ViT in an orbit of 16, tuned whole, mean", "89.73",
            f"{VALIDATION} (`post_hoc_experiments.py`)", "rotmnist_tenth_orbit_vit_c16_whole",
        ),
        Published("ViT", "86.21", f"{VALIDATION} (`train_vit.py`)", "rotmnist_tenth_vit"),
        Published("–", UNDEFINED, UNDEFINED, "rotmnist_tenth_resnet"),
    ),
    "cifar10": (
        gsa("GSA-Net mz2", "83.72", "cifar10_gsa_net_mz2"),
        gsa("GSA-Net z2", "82.3", "cifar10_gsa_net_z2"),
        gsa("GE-ViT mz2", "70.48", "cifar10_ge_vit_mz2"),
        *performers("cifar10", "69.36", "66.45", "58.28", "52.74"),
        Published("–", UNDEFINED, UNDEFINED, "cifar10_group_performer_d1"),
        Published("–", UNDEFINED, UNDEFINED, "cifar10_turnwise_vit_small_d1"),
    ),
    "mnist": (
        *performers("mnist", "98.85", "98.77", "94.70", "44.98"),
        Published("–", UNDEFINED, UNDEFINED, "mnist_group_performer_c1"),
    ),
    "fashionmnist": (
        *performers("fashionmnist", "90.59", "90.42", "84.28", "67.25"),
        Published("–", UNDEFINED, UNDEFINED, "fashionmnist_group_performer_d1"),
        Published("–", UNDEFINED, UNDEFINED, "fashionmnist_turnwise_vit_small_d1"),
    ),
    "pcam": (
        Published("GSA-Net p4m", "84.76", f"{VALIDATION} (`dataset.py`)", "pcam_gsa_net_p4m"),
        Published("GSA-Net p8", "83.58", f"{VALIDATION} (`dataset.py`)", "pcam_gsa_net_p8"),
        Published("GSA-Net p4", "83.44", f"{VALIDATION} (`dataset.py`)", "pcam_gsa_net_p4"),
        Published("GSA-Net z2", "83.04", f"{VALIDATION} (`dataset.py`)", "pcam_gsa_net_z2"),
        Published("GE-ViT p8", "83.82", f"{VALIDATION} (`dataset.py`)", "pcam_ge_vit_p8"),
        Published(
            "ResNet-50 in an orbit of D4, head tuned", "87.52", f"{VALIDATION} (`resnet.py`)",
            "pcam_orbit_resnet50_d4_head",
        ),
    ),
}  # fmt: skip

Cell = Callable[[Record], str]
HEADERS = ("published", "figure", "selected on", "ours", "test accuracy", "parameters",
           "same prediction over the group", "minutes", "seeds")  # fmt: skip


def board(name: str, latest: Mapping[str, Record], link: Cell, cells: Iterable[Cell]) -> str:
    """Return the table of one data set; `cells` are those of our record, from the third on."""
    rows, count = [], len(HEADERS) - 4
    for row in BOARDS[name]:
        record = latest.get(row.recipe)
        figure = row.figure if row.figure == UNDEFINED else f"{row.figure} %"
        if record is not None:
            ours = [link(record), *(cell(record) for cell in cells)]
        elif row.recipe:
            path = f"[{row.recipe}](../../recipes/{row.recipe}.yaml)"
            ours = [path, NOT_RUN, *[UNDEFINED] * (count - 1)]
        else:
            ours = [UNDEFINED] * (count + 1)
        rows.append([row.model, figure, row.selected, *ours])
    return markdown_table(list(HEADERS), rows)
