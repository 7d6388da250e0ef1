"""What to train on images of your own: the candidates of `--minutes`, and the shipped recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.errors import require
from turnwise.parsing import parse_yaml, read_text
from turnwise.training.recipe import Recipe, make_recipe

TABLES = tuple(Path(__file__).with_name(name) for name in ("choices.yaml", "choices_masks.yaml"))
PARTS = ("model", "data", "optimisation", "trainer")
UNEQUAL = 2.0  # images of the largest class over those of the smallest


@dataclass(frozen=True)
class Advice:
    """A shipped recipe for images of your own, the settings that suit them, and the reason."""

    recipe: str
    settings: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Choice:
    """A row of the table.

    Attributes:
        name: the model in words.
        side: the largest side of its images in pixels.
        epochs: how many it should train for; with fewer, a cheaper row is better.
        images: how many training images it should have.
        parts: its recipe, with what all rows of the table share.
    """

    name: str
    side: int
    epochs: int
    images: int
    parts: Mapping[str, Mapping[str, Any]]

    def recipe(
        self, source: str, overrides: Sequence[str], *, side: int | None = None, batch: int = 2**20
    ) -> Recipe:
        """Return the recipe for the images called `source`; `overrides` win."""
        values = {part: dict(self.parts[part]) for part in PARTS}
        values["data"] |= {"name": source, **({} if side is None else {"image_size": side})}
        values["optimisation"]["batch_size"] = min(values["optimisation"]["batch_size"], batch)
        return make_recipe(values, overrides)


def largest_side(device: str, kind: str = "class") -> int:
    """Return the largest side, in pixels, of the images that a row for a device trains on."""
    return max(choice.side for choice in read_choices("", device, kind=kind))


def advise(
    device: str, group: str, *, kind: str = "class", unequal: bool = False, path: Path = TABLES[0]
) -> Advice | None:
    """Return the shipped recipe for a device; None for a kind of target that it cannot predict.

    Args:
        device: "cpu" or "cuda".
        group: the symmetry group of the model.
        kind: the kind of target.
        unequal: whether the classes have very different numbers of images.
    """
    table = parse_yaml(read_text(path))
    if kind not in table["kinds"]:
        return None
    changes = [{"model": {"group": group}}, *([table["unequal"]] if unequal else [])]
    changes += [] if kind == "class" else [table["other_kinds"]]
    settings = tuple(
        f"{part}.{key}={value}"
        for layer in changes for part, keys in layer.items() for key, value in keys.items()
    )  # fmt: skip
    place = "a GPU is available" if device == "cuda" else "no GPU is available"
    model = f"a ResNet-18 with group convolutions, exactly invariant under {group}"
    return Advice(table["recipes"][device], settings, f"{place}: {model}")


def read_choices(
    source: str,
    device: str,
    *,
    kind: str = "class",
    unequal: bool = False,
    paths: Sequence[Path] = TABLES,
) -> list[Choice]:
    """Return the rows for a device ("cpu" or "cuda"), from the cheapest to the dearest.

    Args:
        source: the name of the data set; some in the catalogue have a group of their own.
        kind: the kind of target, which decides the table.
        unequal: whether the classes have very different numbers of images.
        paths: the tables.
    """
    tables = [parse_yaml(read_text(path)) for path in paths]
    known = {name: table for table in tables for name in table["kinds"]}
    require(
        kind in known,
        f"no model can be chosen for the {kind} targets of {source}, only for "
        f"{', '.join(known)}; name a model to train.",
    )
    table = known[kind]
    own = {"model": {"group": table["groups"][source]}} if source in table["groups"] else {}
    gpu = {"trainer": {"precision": "bf16-mixed"}} if device == "cuda" else {}
    found = []
    for row in table["rows"]:
        layers = [table["shared"], gpu, own, table["kinds"][kind]]
        layers += [table["unequal"] if unequal else {}, row]
        parts = {
            part: {k: v for layer in layers for k, v in layer.get(part, {}).items()}
            for part in PARTS
        }
        if row["device"] == device:
            counts = (int(row["side"]), int(row["epochs"]), int(row.get("images", 0)))
            found.append(Choice(row["name"], *counts, parts))
    return found
