"""Plant faults in an invariant network, certify it, and write which faults are found.

    python benchmarks/planted_faults.py            # a few minutes; writes its page in docs/results
    python benchmarks/planted_faults.py --compile  # with torch.compile, which takes longer

The network is invariant under C4 without a fault, which is checked first.  Each fault adds a corner
pixel to the output, or breaks a layer, under a condition.  "default" is `turnwise certify`,
"thorough" is `turnwise certify --thorough`.  All random images are of seed 1.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnwise.evaluation import Scope, certify
from turnwise.models import orbit

PAGE = Path(__file__).parents[1] / "docs" / "results" / "planted_faults.md"
SIDE, COUNT, WEIGHT = 12, 32, 1.0
Condition = Callable[["Planted", Tensor], Any]


class Planted(nn.Module):
    """An invariant network, plus a corner pixel of the images for which the condition is true."""

    def __init__(self, condition: Condition, weight: float = WEIGHT) -> None:
        super().__init__()
        features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1))
        self.inner = orbit(nn.Sequential(features, nn.Flatten(), nn.Linear(4, 3)), "C4")
        self.condition, self.weight, self.calls = condition, weight, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        broken = torch.as_tensor(self.condition(self, images)).to(images).view(-1, 1)
        return self.inner(images) + self.weight * broken * images[:, :, 0, 0].expand(-1, 3)


class Layer(nn.Module):
    """A network of one function between the images and an invariant network."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], before: bool = True) -> None:
        super().__init__()
        self.network, self.function, self.before = Planted(lambda *_: False), function, before
        self.noise = nn.Parameter(torch.randn(1, 1, SIDE, SIDE), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.before:
            return self.network(self.function(images, self.noise))
        return self.function(self.network(images), self.noise)


class HiddenByCopy(Planted):
    """A network whose copies have no fault."""

    def __init__(self, is_copy: bool = False) -> None:
        super().__init__(lambda *_: not is_copy)

    def __deepcopy__(self, memo: object) -> "HiddenByCopy":
        copied = HiddenByCopy(is_copy=True)
        copied.load_state_dict(self.state_dict())
        return copied


class Orbit(nn.Module):
    """The mean over some rotations by 90°; an orbit if they are 0, 1, 2 and 3."""

    def __init__(self, rotations: tuple[int, ...]) -> None:
        super().__init__()
        self.inner, self.rotations = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 3)), rotations

    def forward(self, images: Tensor) -> Tensor:
        views = [self.inner(torch.rot90(images, k, (2, 3))) for k in self.rotations]
        return torch.stack(views).mean(0)


def level(images: Tensor) -> Tensor:
    return images.mean((1, 2, 3))


def first(images: Tensor) -> Tensor:
    return torch.arange(len(images)) == 0


def certifying(*_: object) -> bool:
    """Return whether a certificate is being made, by looking at the calling functions."""
    frame = sys._getframe()
    while frame is not None:
        if "certificate" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def shifted(images: Tensor, _: Tensor) -> Tensor:
    return F.pad(images, (1, 0, 1, 0))[..., :-1, :-1]


def edges(images: Tensor, _: Tensor) -> Tensor:
    kernel = torch.tensor([[0.0, 0, 0], [-1, 0, 1], [0, 0, 0]]).to(images)
    return images + F.conv2d(images, kernel[None, None], padding=1)


def halved(images: Tensor, _: Tensor) -> Tensor:
    return F.pad(F.max_pool2d(images[..., :-1, :-1], 2), (3, 4, 3, 4))


def one_nan(logits: Tensor, _: Tensor) -> Tensor:
    return torch.where(first(logits)[:, None] & (torch.arange(3) == 0), torch.nan, logits)


@dataclass(frozen=True)
class Fault:
    """A fault in words, what makes the network that has it, and why it may not be found."""

    name: str
    make: Callable[[], nn.Module]
    reason: str = ""


def planted(name: str, condition: Condition, reason: str = "", weight: float = WEIGHT) -> Fault:
    return Fault(name, lambda: Planted(condition, weight), reason)


def layer(name: str, function: Any, before: bool = True, reason: str = "") -> Fault:
    return Fault(name, lambda: Layer(function, before), reason)


RARE = "too rare: with n images all right, the share of wrong ones is below 3 / n (95 %)"
FAULTS = [
    planted("a corner pixel", lambda m, x: True),
    planted("a corner pixel, weight 1e-3", lambda m, x: True, weight=1e-3),
    planted("a corner pixel, weight 1e-7: below rounding in float32", lambda m, x: True,
            weight=1e-7),
    planted("a corner pixel, weight 1e-14", lambda m, x: True, weight=1e-14,
            reason="below rounding in float64: no output changes visibly"),
    layer("a learned position", lambda x, p: x + 0.1 * p),
    layer("a shift by one pixel", shifted),
    layer("an edge filter of one direction", edges),
    layer("pooling off the centre", halved),
    layer("a gradient of brightness", lambda x, p: x * torch.linspace(0.9, 1, x.shape[-1]).to(x)),
    layer("an inverted row", lambda x, p: torch.cat([1 - x[..., :1, :], x[..., 1:, :]], 2)),
    layer("dropout in eval mode", lambda x, p: F.dropout(x, 0.1, training=True)),
    layer("random noise on the output", lambda y, p: y + 0.01 * torch.randn_like(y), before=False),
    layer("outputs that depend on the other images of the batch",
          lambda y, p: y - y.mean(0) * (1 + y[:1]), before=False),
    layer("outputs of the first image twice as large",
          lambda y, p: y * (1 + first(y)[:, None].to(y)), before=False,
          reason="invariant; found because an image alone differs from the same image in a batch"),
    layer("one output that is not a number", one_nan, before=False),
    layer("a constant output", lambda y, p: 0 * y + 1, before=False),
    layer("outputs that ignore positions",
          lambda x, p: x.flatten(2).sort(-1).values.view_as(x)),
    layer("rounding to bfloat16 inside",
          lambda x, p: edges(x.bfloat16(), p).to(x)),
    Fault("an orbit without one rotation", lambda: Orbit((0, 1, 2))),
    Fault("an orbit with one rotation twice", lambda: Orbit((0, 1, 2, 2))),
    Fault("only the identity in the orbit", lambda: Orbit((0,))),
    planted("only for one image alone", lambda m, x: len(x) == 1),
    planted("only for the first image of a batch", lambda m, x: first(x)),
    planted("only in batches of more than 100 images", lambda m, x: len(x) > 100,
            "batches have 64 images (`--chunk`); give the batch size that is used"),
    planted("only for bright images", lambda m, x: level(x) > 0.85),
    planted("only for dark images", lambda m, x: level(x) < 0.08),
    planted("only for images without contrast", lambda m, x: x.amax((1, 2, 3)) < 0.12),
    planted("only for images with a white pixel", lambda m, x: x.amax((1, 2, 3)) >= 0.999),
    planted("1 of 100 images", lambda m, x: (level(x) * 1e5).floor() % 100 == 45, RARE),
    planted("1 of 100,000 images",
            lambda m, x: (level(x).double() * 1e9).floor() % 1e5 == 777, RARE),
    planted("only at other sizes", lambda m, x: x.shape[-1] != SIDE),
    planted("only above 500 pixels a side", lambda m, x: x.shape[-1] > 500,
            "a few sizes are measured; `--sizes` adds others"),
    planted("only in float32", lambda m, x: x.dtype == torch.float32),
    planted("only in bfloat16", lambda m, x: x.dtype == torch.bfloat16),
    planted("only in float16", lambda m, x: x.dtype == torch.float16,
            "`--precisions float64,float32,float16` measures it"),
    planted("only in training mode", lambda m, x: m.training),
    planted("only while gradients are recorded", lambda m, x: torch.is_grad_enabled(),
            "certificates are about predictions, which record no gradients"),
    planted("only when compiled", lambda m, x: torch.compiler.is_compiling(),
            "`--thorough` measures it, but the run of this table did not use torch.compile"),
    Fault("only in the model itself, not in its copy", HiddenByCopy),
    planted("only on a GPU", lambda m, x: x.is_cuda,
            "certify on the device that is used (`--device cuda`)"),
    planted("only after a million calls", lambda m, x: m.calls > 10**6,
            "a model with a memory cannot be certified by calling it"),
    planted("only if no certificate is being made", lambda m, x: not certifying(),
            "hostile code can recognise the measurement; nothing can exclude that"),
]  # fmt: skip


def holds(fault: Fault, images: Tensor, thorough: bool) -> bool:
    """Return whether the certificate of a network with this fault holds."""
    torch.manual_seed(0)
    scope = Scope(layers=False, fresh_seed=1, thorough=thorough)
    return certify(fault.make().eval(), "C4", images, angles=1, scope=scope).holds


def table(images: Tensor, faults: list[Fault]) -> list[tuple[str, str, str]]:
    """Return the name of each fault, how it is found, and the reason."""
    rows = []
    for fault in faults:
        found = "default" if not holds(fault, images, False) else ""
        found = found or ("thorough" if not holds(fault, images, True) else "not found")
        print(f"{found:10} {fault.name}", file=sys.stderr)
        rows.append((fault.name, found, fault.reason))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="use torch.compile, too")
    args = parser.parse_args()
    if not args.compile:
        torch.compile = refuse  # type: ignore[assignment]
    draw = torch.Generator().manual_seed(0)
    images = 0.3 + 0.4 * torch.rand(COUNT, 1, SIDE, SIDE, generator=draw)
    assert holds(planted("none", lambda m, x: False), images, True), "without a fault it must hold"
    rows = table(images, FAULTS)
    counts = {kind: sum(row[1] == kind for row in rows) for kind in ("default", "thorough")}
    note = "" if args.compile else " torch.compile was not used in this run."
    PAGE.write_text(
        "# Planted faults\n\n"
        f"{len(rows)} faults, each planted alone in a network that is invariant under C4: "
        f"{counts['default']} are found by `turnwise certify`, {counts['thorough']} more by "
        f"`--thorough`, and {len(rows) - sum(counts.values())} by neither.{note}\n\n"
        "Written by `python benchmarks/planted_faults.py"
        f"{' --compile' if args.compile else ''}`, which holds the code of every fault.\n\n"
        "| fault | found by | remark |\n|:--|:--|:--|\n"
        + "".join(f"| {name} | {found} | {reason or '–'} |\n" for name, found, reason in rows),
        encoding="utf-8",
    )


def refuse(model: nn.Module) -> nn.Module:
    raise RuntimeError("torch.compile was not requested")


if __name__ == "__main__":
    main()
