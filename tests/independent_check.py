"""Check invariance with nothing but torch.rot90 and torch.flip: no measure of turnwise is used.

    python tests/independent_check.py               all combinations of models, groups and sizes
    python tests/independent_check.py --sample 60   some of them, as the test does

A model under a group is asked for the quarter rotations and mirrors that the group's name promises,
in float64, with random weights none of which is zero.  Logits must not change; the maps of dense
models must move with the image.  The worst relative error and any failure are printed; the exit
status is 1 if an error is above 1e-10 or an output does not depend on the image.
"""

import argparse
import random
import re
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import turnwise
from turnwise.errors import InputError

LIMIT, DEPENDS = 1e-10, 1e-6
GROUPS = ("C2", "C4", "C8", "C12", "D1", "D2", "D4", "D8")
SIZES = (12, 14, 15, 16, 20, 24)
SMALL = (  # options that make a family quick; the first pattern that matches
    ("roto_resnet50", {"widths": [8, 16], "depths": [1, 1]}),
    ("roto_resnet18", {"widths": [8, 8, 12], "depths": [1, 1, 1]}),
    (
        "roto_(pool|meta)former_.*",
        {"depths": [1, 1, 1, 1], "widths": [8, 8, 16, 16], "head_width": 8},
    ),
    ("unet|turnwise_unet_.*", {"widths": [16, 32]}),
    ("gsa_net|ge_vit", {"heads": 2, "width": 6, "widths": [[6], [6]], "crops": [[2], [1]]}),
    ("patch_ge_vit|hybrid_ge_vit", {"heads": 2, "width": 6, "blocks": [1, 1]}),
    ("modern_eq_vit", {"heads": 2, "width": 6, "embedding": 8}),
    ("group_performer", {"width": 32, "depth": 1, "heads": 1, "patch": 2}),
    ("turnwise_vit_base", {"width": 64, "depths": [1], "patch": 4}),
    ("turnwise_vit_.*", {"width": 64, "depths": [1], "heads": 1}),
    ("g_cnn", {"width": 4}),
    ("orbit_vit", {"width": 16, "depth": 1, "heads": 2, "patch": 2}),
    ("orbit_small_cnn|orbit_resnet18", {}),
)
Move = Callable[[Tensor], Tensor]


def moves(group: str) -> list[Move]:
    """The elements that a square image has of C<n> or D<n>, beside the identity."""
    kind, n = group[0], int(group[1:])
    quarters = [k for k in range(4) if k * n % 4 == 0]
    turned: list[Move] = [lambda x, k=k: torch.rot90(x, k, (-2, -1)) for k in quarters if k]
    flipped: list[Move] = [
        lambda x, k=k: torch.rot90(torch.flip(x, (-1,)), k, (-2, -1)) for k in quarters
    ]
    return turned + (flipped if kind == "D" else [])


def combinations() -> Iterator[tuple[str, str, int]]:
    """Every model that claims a symmetry, under every group, at every size; some are refused."""
    for name in turnwise.list_models():
        if any(re.fullmatch(pattern, name) for pattern, _ in SMALL):
            for group in GROUPS:
                for size in SIZES:
                    yield name, group, size


def build(name: str, group: str, size: int) -> torch.nn.Module:
    """The model in float64 with random weights; none is zero, as some are at the start."""
    options = next((o for pattern, o in SMALL if re.fullmatch(pattern, name)), {})
    torch.manual_seed(0)
    model = turnwise.create_model(
        name, group=group, num_classes=3, in_chans=2, image_size=size, **options
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape)
    return model.double().eval()


@torch.no_grad()
def measure(model: torch.nn.Module, group: str, size: int) -> tuple[float, float]:
    """The worst |Φ(g f) − g Φ(f)| / |Φ(f)|, and how much another image changes the output."""
    images = torch.rand(2, 2, size, size, generator=torch.Generator().manual_seed(1)).double()
    output = model(images)
    dense = output.ndim == 4
    errors = [
        (model(move(images)) - (move(output) if dense else output)).abs().max()
        for move in moves(group)
    ]
    scale = output.abs().max()
    change = (output[0] - output[1]).abs().max() / scale
    return float(torch.stack(errors).max() / scale), float(change)


def check(wanted: int | None, seed: int = 0) -> tuple[int, float, list[str]]:
    """Measure `wanted` combinations, drawn at random, or all; refused sizes do not count."""
    every = list(combinations())
    if wanted is not None:
        random.Random(seed).shuffle(every)
    done, worst, failures = 0, 0.0, list[str]()
    for name, group, size in every:
        try:
            model = build(name, group, size)
        except InputError:
            continue  # the model says that it would not be exact there
        promised = str(model.group)
        if promised == "C1":
            continue
        error, change = measure(model, promised, size)
        done, worst = done + 1, max(worst, error)
        if not (error <= LIMIT and change >= DEPENDS):
            failures.append(f"{name} {group} {size}: error {error:.1e}, change {change:.1e}")
        if done == wanted:
            break
        if wanted is None and done % 50 == 0:
            print(f"{done} combinations, worst error {worst:.1e}", file=sys.stderr)
    return done, worst, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many combinations, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    args = parser.parse_args()
    torch.set_num_threads(1)
    done, worst, failures = check(args.sample, args.seed)
    print(f"{done} combinations, worst error {worst:.1e}, {len(failures)} failures")
    print(*failures, sep="\n", end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
