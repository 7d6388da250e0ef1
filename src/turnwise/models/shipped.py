"""Weights that come with the package: which there are, and what their cards say.

    weights/MODEL.DATA/   a model folder (models/storage.py), such as turnwise_vit_nano.rotmnist
        card.json         where the weights come from, what was measured, their hash
        card.md           the same for people

`benchmarks/ship_weights.py` writes these folders; whoever loads one holds it against its card.
"""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from turnwise.errors import InputError, require

ROOT = Path(__file__).parents[1] / "weights"
CARD, PAGE, FORMAT = "card.json", "card.md", 1
# what a card tells of a model, and config.json beside it must tell alike
DESCRIBED = ("name", "options", "classes", "sha256")
PARTS = {
    "format", "name", "model", "weights", "bytes", "stored", "data", "licence", "recipe", "seed",
    "equivariance", "record", "shipped",
}  # fmt: skip
CURE = "install turnwise again"


def list_pretrained(pattern: str = "*") -> list[str]:
    """The names of all shipped weights, MODEL.DATA, that match `pattern`."""
    places = ROOT.iterdir() if ROOT.is_dir() else ()
    found = (place.name for place in places if place.is_dir() and not place.name.startswith("."))
    return sorted(name for name in found if "." in name and fnmatchcase(name, pattern))


def weights_folder(name: str) -> Path:
    """Where the shipped weights called `name` are."""
    return ROOT / name


def shipped_folder(place: str | Path) -> Path | None:
    """The folder of shipped weights, if that is what `place` names; what exists here goes first."""
    named = not Path(place).exists() and str(place) in list_pretrained()
    return weights_folder(str(place)) if named else None


def read_card(folder: Path) -> dict[str, Any]:
    """The card of shipped weights, with the parts that it must have."""
    path = folder / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason.lower()}; {CURE}.") from error
    missing = PARTS - (card.keys() if isinstance(card, dict) else set())
    require(not missing, f"{path} lacks {', '.join(sorted(missing))}; {CURE}.")
    require(
        card["format"] == FORMAT,
        f"{path} has format {card['format']!r}, this version reads {FORMAT}; update turnwise.",
    )
    return dict(card)


def require_as_shipped(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise unless the configuration in a shipped folder is the one its card describes.

    The configuration's hash is the weights': so a card vouches for both.
    """
    if folder.parent != ROOT:
        return
    described = read_card(folder)["model"]
    require(isinstance(described, dict), f"{folder / CARD} describes no model; {CURE}.")
    wrong = [key for key in DESCRIBED if described.get(key) != config[key]]
    require(
        not wrong,
        f"{folder} is not what its {CARD} describes ({', '.join(wrong)} differ); {CURE}.",
    )
