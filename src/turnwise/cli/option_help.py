"""What the options of a model mean, in the words of its design's docstring."""

import inspect
import re
from fnmatch import fnmatchcase
from typing import Any

PLAIN = {  # what no design need explain
    "width": "channels",
    "depth": "blocks",
    "heads": "heads of the attention",
    "patch": "pixels across a token",
    "mlp_ratio": "channels inside the perceptron, in widths of the block",
    "attention_dropout": "dropout of the attention",
    "ff_dropout": "dropout of the perceptron",
    "drop_path": "share of the branches that a step of training leaves out",
    "base_group": "the group that the model inside is made for, if another",
    "weights": "the folder of a trained model to start from",
}


def option_texts(model: str) -> dict[str, str]:
    """A line for each option that something is known of; a design knows more than `PLAIN`.

    Of an orbit, those of the model inside and of the orbit itself.
    """
    from turnwise.models.orbits import OrbitPlan

    inner = model.removeprefix("orbit_")
    design = design_of(inner)
    texts = PLAIN | _choices(inner) | (described_names(design) if design is not None else {})
    return texts if inner == model else texts | described_names(OrbitPlan)


def described_names(kind: type) -> dict[str, str]:
    """The lines `name: text` of a docstring, each with those that are indented below it."""
    lines = re.sub(r"\n +", " ", inspect.getdoc(kind) or "").splitlines()
    found = (re.fullmatch(r"(\w+): +(.+)", line) for line in lines)
    return {match[1]: " ".join(match[2].split()) for match in found if match}


def design_of(model: str) -> Any:
    """The class of all options of a model, where there is one."""
    from turnwise.models import group_performer, metaformer, performer, resnet, turnwise_vit

    designs = {
        "group_performer": group_performer.Design,
        "*performer": performer.Design,
        "turnwise_vit_*": turnwise_vit.Design,
        "*former_*": metaformer.MetaFormerDesign,
        "*resnet*": resnet.ResNetDesign,
    }
    return next((kind for name, kind in designs.items() if fnmatchcase(model, name)), None)


def _choices(model: str) -> dict[str, str]:
    """What the design of the published Performers leaves to its checks."""
    from turnwise.layers.performer.block import VARIANTS
    from turnwise.models.performer import EMBEDDINGS, Design

    if design_of(model) is not Design:
        return {}
    return {
        "variant": f"{' or '.join(VARIANTS)} (as published)",
        "embedding": f"of a pixel: {', '.join(EMBEDDINGS)}",
    }
