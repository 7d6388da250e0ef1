"""Is a compiled model the model?  One record in benchmarks/compiled_models.jsonl.

    python benchmarks/compiled_models.py [FAMILY...] [--device cuda]

Each family is made small, in double precision, and trained for one step plainly and compiled
(`torch.compile`, as `compile: true` in a recipe); logits and the gradients of all weights and of
the pictures are compared, relative to the largest of each.  A compiler may be wrong where a model
is right: it was, see geometry/windows.py.  Every family has a process of its own, for such a
compiler may end it.  Exit status 1: some are farther apart than rounding.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from records import append_record
from torch import Tensor

import turnwise

HERE = Path(__file__).parent
LIMIT = 1e-9  # float64, relative: sums in another order
SMALL_VIT = {"image_size": 8, "width": 16, "depth": 2, "heads": 2}
METAFORMER = {
    "image_size": 16, "in_chans": 3, "widths": (8, 16), "depths": (1, 1), "mixers": "pa",
    "head_width": 4,
}  # fmt: skip
RESNET = {"image_size": 17, "widths": (8, 8, 8, 8)}
PERFORMER = SMALL_VIT | {"attention_dropout": 0.0, "ff_dropout": 0.0}
NO_DROPOUT = {"attention_dropout": 0.0, "value_dropout": 0.0}
GSA = {"image_size": 14, "widths": [[6]], "width": 6, "heads": 1, "window": 3, **NO_DROPOUT}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("vit", "C1", SMALL_VIT),
    "orbit_vit": ("orbit_vit", "C4", SMALL_VIT),
    "metaformer": ("metaformer_s12_pppa", "C1", METAFORMER),
    "roto_metaformer": ("roto_metaformer_s12_pppa", "D4", METAFORMER),
    "roto_metaformer, even": ("roto_metaformer_s12_pppa", "D4", METAFORMER | {"geometry": "even"}),
    "roto_metaformer, oriented": ("roto_metaformer_s12_pppa", "D4", METAFORMER | {"oriented": 1}),
    "resnet18": ("resnet18", "C1", RESNET),
    "roto_resnet18": ("roto_resnet18", "D4", RESNET),
    "g_cnn": ("g_cnn", "C4", {"image_size": 28, "width": 4, "dropout": 0.0}),
    "gsa_net": ("gsa_net", "C4", GSA),
    "ge_vit": ("ge_vit", "D4", GSA),
    "hybrid_ge_vit": ("hybrid_ge_vit", "C4", {"image_size": 28, "stem_width": 4, **NO_DROPOUT}),
    "performer": ("performer", "C1", PERFORMER),
    "nopos_performer": ("nopos_performer", "C1", PERFORMER),
    "relative_performer": ("relative_performer", "C1", PERFORMER),
    "clipped_relative_performer": (
        "clipped_relative_performer", "C1", PERFORMER | {"clipping_distance": 3},
    ),
    "group_performer": ("group_performer", "D4", {"image_size": 8, "width": 32, "depth": 2}),
    "turnwise_vit": ("turnwise_vit_nano", "D4", {"image_size": 28}),
    "turnwise_vit, irreps": ("turnwise_vit_nano", "D4", {"image_size": 28, "basis": "irreps"}),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], metavar="FAMILY")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", action="store_true", help="in this process, without a record")
    parser.add_argument("--records", type=Path, default=HERE / "compiled_models.jsonl")
    return parser.parse_args()


def one_step(model: torch.nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Logits, and the gradients of the pictures and of all weights."""
    logits = model(images)
    wanted = [images, *(p for p in model.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), wanted, allow_unused=True)
    return [logits.detach(), *(g for g in gradients if g is not None)]


def gap(family: str, device: str) -> float:
    """The largest difference, relative to the largest of each tensor."""
    name, group, options = FAMILIES[family]
    torch.manual_seed(0)
    size, channels = options["image_size"], options.get("in_chans", 1)
    model = turnwise.create_model(name, group=group, num_classes=4, **options).to(device).double()
    images = torch.rand(3, channels, size, size, device=device, dtype=torch.float64)
    labels = torch.tensor([0, 1, 3], device=device)
    plain = one_step(model, images.requires_grad_(), labels)
    compiled = one_step(torch.compile(model), images, labels)
    floor = 1e-5 * max(float(x.abs().max()) for x in plain)  # some are 0 but for rounding
    pairs = zip(plain, compiled, strict=True)
    gaps = [(a - b).abs().max() / a.abs().max().clamp(min=floor) for a, b in pairs]
    return float(torch.stack(gaps).max())  # NaN if any is


def gap_elsewhere(family: str, device: str) -> float | str:
    """The same in a process of its own, or how that ended."""
    words = [sys.executable, __file__, family, "--device", device, "--alone"]
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["nothing was said"]
        return f"exit status {ended.returncode}: {lines[-1]}"
    return float(json.loads(ended.stdout.splitlines()[-1]))


def main() -> int:
    args = arguments()
    if args.alone:
        print(json.dumps(gap(args.families[0], args.device)))
        return 0
    gaps: dict[str, float | str] = {}
    for family in args.families or FAMILIES:
        gaps[family] = gap_elsewhere(family, args.device)
        print(f"{family:28} {gaps[family]}", flush=True)
    command = shlex.join(["python", "benchmarks/compiled_models.py", *sys.argv[1:]])
    append_record(args.records, command, {"limit": LIMIT, "gaps": gaps})
    return int(any(isinstance(found, str) or not found <= LIMIT for found in gaps.values()))


if __name__ == "__main__":
    sys.exit(main())
