"""Record what every registered model computes, so that a rewrite can be held against it.

    python tests/regression/recorded_models.py          compare with the record
    python tests/regression/recorded_models.py --write  make the record anew

For each case: the logits and the gradient norm of every parameter in float64, and the keys and
shapes of the state dict.  Weights are drawn from a fixed seed; a second draw, by the name of each
parameter, is added, so that nothing that starts at zero hides a term.
"""

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import turnwise
from turnwise.models.registry import stored_options
from turnwise.models.weights import list_pretrained

RECORD = Path(__file__).with_name("models.json.gz")
TOLERANCE = 1e-12
Figures = dict[str, Any]
GROUPS = ("C1", "C4", "D4")
SIZE, CHANNELS, CLASSES = 28, 3, 4

SMALL_METAFORMER = {"depths": [1, 1, 1, 1], "widths": [8, 16, 24, 32], "head_width": 8}
SMALL_RESNET = {"widths": [8, 16, 16, 24]}
SMALL_UNET = {"widths": [16, 32], "image_size": 8}
SMALL_GSA = {"heads": 3, "width": 6, "widths": [[6], [6, 6]], "crops": [[2], [1, 0]]}
SMALLER: dict[str, dict[str, Any]] = {
    "turnwise_vit_base": {"width": 64, "depths": [2], "patch": 4},
    "turnwise_vit_small": {"width": 64, "depths": [2], "heads": 1},
    "turnwise_vit_tiny": {"width": 64, "depths": [2]},
    "group_performer": {"width": 32, "depth": 2, "heads": 1, "patch": 2},
    "vit": {"width": 32, "depth": 2},
    "gsa_net": SMALL_GSA,
    "ge_vit": SMALL_GSA,
    "modern_eq_vit": {"heads": 3, "width": 6, "embedding": 12},
}
"""Options that make a large network quick; the keys of the whole one are recorded, too."""

VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("turnwise_vit_nano", "D4", {"frame": "cross", "width": 128}),
    ("turnwise_vit_nano", "D4", {"kernel": "elu"}),
    ("turnwise_vit_nano", "D4", {"window": 3}),
    ("turnwise_vit_nano", "D4", {"basis": "irreps", "qk_norm": True, "layer_scale": 0.1}),
    ("turnwise_vit_nano", "C4", {"depths": [1, 1], "patch": 2, "halve": "average", "pool": "max"}),
    ("turnwise_vit_nano", "D4", {"overview": 6}),
    ("turnwise_vit_nano", "D4", {"readout": "dense"}),
    ("turnwise_vit_nano", "D4", {"readout": "orientation"}),
    ("turnwise_vit_nano", "C8", {"width": 64}),
    ("gsa_net", "C4", {"variant": "gsa-2021"}),
    ("gsa_net", "C4", {}),
    ("gsa_net", "D4", {**SMALL_GSA, "variant": "gevit-2023"}),
    ("ge_vit", "C4", {"variant": "gevit-2023"}),
    ("ge_vit", "D4", {**SMALL_GSA, "queries": "own"}),
    ("gsa_net", "D4", {**SMALL_GSA, "encoding": "table"}),
    ("gsa_net", "C4", {"shape": "disc", "window": 7}),
    ("gsa_net", "C4", {**SMALL_GSA, "backend": "plain"}),
    ("gsa_net", "C4", {"data": "cifar10", "width": 18, "widths": [[18], [18]], "window": 3}),
    ("performer", "C1", {"variant": "tep-2021"}),
    ("relative_performer", "C1", {"variant": "tep-2021"}),
    ("clipped_relative_performer", "C1", {"variant": "tep-2021"}),
    ("nopos_performer", "C1", {"variant": "tep-2021"}),
    ("relative_performer", "C1", {"variant": "tep-2021", "kernel": "softmax"}),
    ("roto_metaformer_s12_pppa", "D4", {**SMALL_METAFORMER, "geometry": "even", "image_size": 32}),
    (
        "roto_metaformer_s12_pppa",
        "D4",
        {**SMALL_METAFORMER, "geometry": "patch", "oriented": 1, "image_size": 32},
    ),
    ("roto_resnet18", "D4", {**SMALL_RESNET, "oriented": 3}),
    ("roto_resnet18", "C4", {**SMALL_RESNET, "reduce": "mean"}),
    ("orbit_vit", "D4", {"width": 32, "depth": 2, "combine": "max"}),
    ("orbit_vit", "C8", {"width": 32, "depth": 2, "combine": "learned_attention"}),
)


def options_of(name: str) -> dict[str, Any]:
    """What makes the model quick enough for a test; most need nothing."""
    plain = name.removeprefix("orbit_")
    if "former_" in plain:
        return SMALL_METAFORMER
    if "resnet" in plain:
        return SMALL_RESNET
    if "unet" in plain:
        return SMALL_UNET
    if plain.endswith("performer") and plain != "group_performer":
        return {"width": 32, "depth": 2, "heads": 2}
    return SMALLER.get(plain, {})


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every model under every group; an orbit, which repeats the model inside, under C4 alone."""
    for name in turnwise.list_models():
        for group in GROUPS if not name.startswith("orbit_") else ("C4",):
            yield name, group, options_of(name)
    yield from VARIANTS


FORMER_FLAGSHIP: dict[str, dict[str, Any]] = {
    name: {"stem": "conv", "patch": 4, "depths": [4], "layer_scale": 0.0}
    for name in ("turnwise_vit_tiny", "turnwise_vit_small")
}


def old_defaults(name: str) -> dict[str, Any]:
    """Options whose defaults have changed since the record, with their former values."""
    return stored_options(name, {}) | FORMER_FLAGSHIP.get(name.removeprefix("orbit_"), {})


def title(name: str, group: str, options: Mapping[str, Any]) -> str:
    return f"{name} {group} {json.dumps(options, sort_keys=True)}"


def build(name: str, group: str, options: Mapping[str, Any]) -> torch.nn.Module:
    """The model in float64, in eval mode, no weight of it zero."""
    torch.manual_seed(0)
    given = {"num_classes": CLASSES, "in_chans": CHANNELS, "image_size": SIZE}
    given |= {**old_defaults(name), **options}
    model = turnwise.create_model(name, group=group, **given).double().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")
            weight += 0.1 * torch.randn(
                weight.shape, generator=torch.Generator().manual_seed(seed), dtype=weight.dtype
            )
    return model


def fixed_images(count: int, channels: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, channels, size, size, generator=generator, dtype=torch.float64)


def state_keys(model: torch.nn.Module) -> list[str]:
    return sorted(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items())


def hash_of_default(name: str, group: str) -> str:
    """The keys and shapes of the model with its default options, hashed; no memory is taken."""
    size = 32 if name.endswith("vit_base") else SIZE
    with torch.device("meta"):
        model = turnwise.create_model(
            name, group=group, in_chans=CHANNELS, image_size=size, **old_defaults(name)
        )
    return hashlib.sha256("\n".join(state_keys(model)).encode()).hexdigest()


def measure(name: str, group: str, options: Mapping[str, Any]) -> Figures:
    """Logits, the norm of each gradient, and the state dict's keys with their shapes."""
    model = build(name, group, options)
    images = fixed_images(2, CHANNELS, options.get("image_size", SIZE))
    logits = model(model.preprocess(images))
    (logits.square().sum() + logits.sum()).backward()
    norms = [0.0 if p.grad is None else float(p.grad.norm()) for p in model.parameters()]
    return {
        "logits": logits.detach().tolist(),
        "norms": norms,
        "names": [key for key, _ in model.named_parameters()],
        "keys": state_keys(model),
        "whole": hash_of_default(name, group),
    }


def measure_pretrained(name: str) -> Figures:
    """The logits of pretrained weights, in float64."""
    model = turnwise.load(name).double()
    options = model.config.options
    images = fixed_images(4, options["in_chans"], options["image_size"])
    with torch.no_grad():
        return {"logits": model(model.preprocess(images)).tolist()}


def pretrained_names() -> list[str]:
    return list_pretrained()


def difference(recorded: Figures, measured: Figures) -> str:
    """What differs, in words; empty where nothing does."""
    for what in ("keys", "names", "whole"):
        if recorded.get(what) != measured.get(what):
            old, new = set(recorded[what]), set(measured[what])
            return f"{what}: gone {sorted(old - new)[:5]}, new {sorted(new - old)[:5]}"
    for what in ("logits", "norms"):
        if what in recorded:
            a, b = (torch.tensor(x[what], dtype=torch.float64) for x in (recorded, measured))
            if a.shape != b.shape:
                return f"{what}: shape {tuple(b.shape)}, was {tuple(a.shape)}"
            error = float((a - b).abs().max() / a.abs().max())
            if not error <= TOLERANCE:
                return f"{what}: relative error {error:.1e}"
    return ""


def read_record() -> dict[str, Figures]:
    """The record by case."""
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def measure_all() -> Iterator[tuple[str, Figures]]:
    for case in cases():
        yield title(*case), measure(*case)
    for name in pretrained_names():
        yield f"pretrained {name}", measure_pretrained(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the record anew")
    if parser.parse_args().write:
        text = json.dumps(dict(measure_all()))
        RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{RECORD}: {RECORD.stat().st_size} bytes")
        return 0
    recorded, wrong = read_record(), 0
    for case, measured in measure_all():
        problem = difference(recorded.pop(case), measured) if case in recorded else "is new"
        if problem:
            wrong += 1
            print(f"{case}: {problem}")
    for case in recorded:
        wrong += 1
        print(f"{case}: is gone")
    print("no difference" if not wrong else f"{wrong} cases differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
