"""Learn the direction of textures: the mean angular error of a U-Net at every angle.

    python benchmarks/orientation_field.py                          C16, minutes on a CPU
    python benchmarks/orientation_field.py --group C16 C1 --steps 2000 --device cuda

Textures with a known direction (`turnwise.data.textures`) are drawn anew for every step, at uniform
angles.  The error is measured on other textures at 0°, 5°, …, 175°, and the equivariance under the
rotations by 90°.  Records go to benchmarks/orientation_field.jsonl.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch
from records import append_record
from torch import nn

from turnwise.data.textures import axis_error, axis_field, oriented_textures
from turnwise.groups import act_on_image
from turnwise.layers.heads.fields import act_on_field_of
from turnwise.models import create_model

HERE = Path(__file__).parent
STEP = 5  # degrees between the angles that are tested
EACH = 8  # textures per angle
SEED_OF_TEST = 10**6


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--group", nargs="+", default=["C16"])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--records", type=Path, default=HERE / "orientation_field.jsonl")
    return parser.parse_args()


def train(args: argparse.Namespace, group: str, seed: int) -> nn.Module:
    """Train on textures at uniform angles, with the squared error of both components."""
    torch.manual_seed(seed)
    model = create_model(
        "turnwise_unet_nano", group=group, num_classes=2, image_size=args.size, readout="axis",
        widths=args.widths, blocks=args.blocks,
    ).to(args.device)  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, args.steps)
    generator = torch.Generator().manual_seed(seed)
    for step in range(args.steps):
        angles = 180 * torch.rand(args.batch, generator=generator)
        images = oriented_textures(angles, args.size, generator).to(args.device)
        truth = axis_field(angles, args.size).to(args.device)
        loss = (model(model.preprocess(images)) - truth).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"{group}, seed {seed}, step {step}: loss {loss.item():.4f}", file=sys.stderr)
    return model.eval()


@torch.no_grad()
def measure(args: argparse.Namespace, model: nn.Module) -> dict[str, Any]:
    """Return the mean error in degrees at every angle, and the equivariance under 90°."""
    generator, errors = torch.Generator().manual_seed(SEED_OF_TEST), list[float]()
    for degrees in range(0, 180, STEP):
        angles = torch.full((EACH,), float(degrees))
        images = oriented_textures(angles, args.size, generator).to(args.device)
        truth = axis_field(angles, args.size).to(args.device)
        errors.append(axis_error(model(model.preprocess(images)), truth).mean().item())
    exact = model.double()
    x, quarter = exact.preprocess(images.double()), model.group.rotations // 4
    found, changes = exact(x), [0.0]
    for g in range(quarter, model.group.rotations, quarter) if quarter else ():
        expected = act_on_field_of("axis", model.group, g, found)
        changes.append((exact(act_on_image(model.group, g, x)) - expected).abs().max().item())
    return {
        "mean_error": sum(errors) / len(errors),
        "worst_error": max(errors),
        "errors": [round(error, 4) for error in errors],
        "quarter_rotations_float64": max(changes) / found.abs().max().item(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main() -> None:
    args = arguments()
    figures: dict[str, dict[str, Any]] = {}
    for group in args.group:
        for seed in args.seeds:
            start = time.perf_counter()
            model = train(args, group, seed)
            seconds = time.perf_counter() - start
            found = measure(args, model) | {"training_seconds": round(seconds, 1)}
            figures.setdefault(group, {})[str(seed)] = found
            print(
                f"{group}, seed {seed}: {found['mean_error']:.2f}° on average, "
                f"{found['worst_error']:.2f}° at the worst angle; rotations by 90° exact to "
                f"{found['quarter_rotations_float64']:.0e}"
            )
    settings = {k: getattr(args, k) for k in ("widths", "blocks", "size", "batch", "steps", "rate")}
    command = shlex.join(["python", "benchmarks/orientation_field.py", *sys.argv[1:]])
    append_record(args.records, command, settings | {"angle_step": STEP, "figures": figures})


if __name__ == "__main__":
    main()
