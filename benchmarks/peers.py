"""The flagship beside transformers of other libraries, and neighbourhood attention beside torch's.

    python benchmarks/peers.py                                    ours alone, small, on this machine
    python benchmarks/peers.py --device cuda --widths 384 768 --batch 128 --timm --octic PATH --flex

For each width, at the image size and 12 blocks: milliseconds of a training step and of inference of
the exact D4 model, of timm's ViT of the same width (--timm: pip install timm) and of the octic ViT
in a checkout of github.com/davnords/octic-vits (--octic PATH, which needs timm, too), and their
ratio to the first peer.  All are compiled block by block, in bfloat16 on a GPU, where a step is
recorded as a CUDA graph; models take turns, so that a slow moment of the machine hits all.
With --flex: our neighbourhood attention for C1 with relative positions beside FlexAttention with
the same mask and a table of relative positions (CUDA only).
Records go to benchmarks/peers.jsonl.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from meters import medians_in_turns, seconds_per_call, step_and_inference
from records import append_record
from torch import Tensor, nn

from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.models import create_model
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
CLASSES = 1000
SIDE, HEADS, HEAD_DIM = 56, 8, 32  # of neighbourhood attention: tokens along a side


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--widths", nargs="+", type=int, default=[64])
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--head", type=int, default=64, help="channels of a head of the peers")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--timm", action="store_true", help="measure timm's ViT")
    parser.add_argument("--octic", type=Path, metavar="PATH", help="a checkout of octic-vits")
    parser.add_argument("--flex", action="store_true", help="measure neighbourhood attention")
    parser.add_argument("--windows", nargs="+", type=int, default=[5, 9], help="with --flex")
    parser.add_argument("--records", type=Path, default=HERE / "peers.jsonl")
    return parser.parse_args(given)


def peers(args: argparse.Namespace, width: int) -> dict[str, Callable[[], nn.Module]]:
    """Name -> how to build it; what the library is not there for is an error."""
    makers: dict[str, Callable[[], nn.Module]] = {}
    shape = {"patch_size": args.patch, "embed_dim": width, "depth": args.depth,
             "num_heads": max(1, width // args.head), "img_size": args.image_size,
             "num_classes": CLASSES}  # fmt: skip
    if args.timm:
        timm_vit = imported("timm.models.vision_transformer", "pip install timm")
        makers["timm"] = lambda: timm_vit.VisionTransformer(**shape)
    if args.octic:
        sys.path.insert(0, str(args.octic))
        advice = f"{args.octic} must be a checkout of octic-vits; pip install timm"
        octic, layers = (imported(f"octic_vits.{name}", advice) for name in ("model", "d8_layers"))
        plain = imported("deit.vit", advice)
        makers["octic"] = lambda: octic.OcticVisionTransformer(
            **shape, mlp_ratio=4, qkv_bias=True,
            standard_block_layers=plain.Layer_scale_init_Block,
            octic_block_layers=layers.Layer_scale_init_BlockD8,
        )  # fmt: skip
    makers["turnwise D4"] = lambda: create_model(
        "turnwise_vit_base", group="D4", width=width, depths=[args.depth], patch=args.patch,
        num_classes=CLASSES, in_chans=3, image_size=args.image_size, layer_scale=0.0,
    )  # fmt: skip
    return makers


def imported(name: str, advice: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"{name} cannot be imported ({error}): {advice}")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the longest list of modules of one kind: the blocks of a transformer."""
    lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    return max((list(m) for m in lists if len({type(x) for x in m}) == 1), key=len)


def compare(args: argparse.Namespace, width: int) -> dict[str, dict[str, float]]:
    """Return model -> work -> the median of its seconds."""
    device = torch.device(args.device)
    images = torch.rand(args.batch, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(0, CLASSES, (args.batch,), device=device)
    rivals = {}
    for name, make in peers(args, width).items():
        model = make()
        blocks = blocks_of(model) if device.type == "cuda" else []
        rivals[name] = step_and_inference(model, blocks, images, labels)
    return medians_in_turns(rivals, device, args.repeats)


def neighbourhood_attention(args: argparse.Namespace, window: int) -> dict[str, float]:
    """Return seconds of both passes: our kernels, and FlexAttention with the same scores."""
    device, kind = torch.device(args.device), torch.bfloat16
    sources = find_sources(Neighbourhood(window), SIDE, SIDE, 0).to(args.device)
    offsets = window**2

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=kind, requires_grad=True)

    ours = [leaf(args.batch, 1, SIDE**2, HEADS, HEAD_DIM) for _ in range(3)]
    encodings = Encodings(
        leaf(1, offsets, HEAD_DIM), leaf(1, 0), torch.zeros(1, 1, 1, dtype=torch.long)
    )

    def both_passes(output: Tensor) -> None:
        output.sum().backward()

    figures = {
        "turnwise": seconds_per_call(
            lambda: both_passes(attend_from_frames(*ours, encodings, sources)), device
        )
    }
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    theirs = [leaf(args.batch, HEADS, SIDE**2, HEAD_DIM) for _ in range(3)]
    table, reach = leaf(HEADS, window, window), window // 2

    def apart(q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        return kv // SIDE - q // SIDE, kv % SIDE - q % SIDE

    def is_near(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        rows, cols = apart(q, kv)
        return (rows.abs() <= reach) & (cols.abs() <= reach)

    def add_position(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        rows, cols = apart(q, kv)
        return score + table[head, (rows + reach) % window, (cols + reach) % window]

    mask = flex.create_block_mask(is_near, None, None, SIDE**2, SIDE**2, device=args.device)
    attend = torch.compile(flex.flex_attention, dynamic=False)
    figures["flex"] = seconds_per_call(
        lambda: both_passes(attend(*theirs, score_mod=add_position, block_mask=mask)), device
    )
    return figures


def main(given: list[str] | None = None) -> None:
    args = arguments(given)
    if args.flex and torch.device(args.device).type != "cuda":
        sys.exit("--flex needs --device cuda: FlexAttention has no backward pass on a CPU")
    results: list[dict[str, Any]] = []
    rows = []
    for width in args.widths:
        figures = compare(args, width)
        results.append({"width": width, "figures": figures})
        first = next(iter(figures.values()))
        for name, kinds in figures.items():
            cells = [
                cell
                for kind in ("step", "inference")
                for cell in (f"{1000 * kinds[kind]:.2f}", f"{kinds[kind] / first[kind]:.2f}")
            ]
            rows.append([str(width), name, *cells])
    headers = ["width", "model", "step ms", "of the first", "inference ms", "of the first"]
    print(text_table(headers, rows))
    for window in args.windows if args.flex else ():
        figures = neighbourhood_attention(args, window)
        results.append({"window": window, "tokens": SIDE**2, "figures": figures})
        words = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in figures.items())
        print(f"{window} x {window} neighbours of {SIDE} x {SIDE} tokens, both passes: {words}")
    names = ("image_size", "patch", "depth", "head", "batch")
    command = shlex.join(["python", "benchmarks/peers.py", *(given or sys.argv[1:])])
    settings = {name: getattr(args, name) for name in names}
    append_record(args.records, command, settings | {"results": results})


if __name__ == "__main__":
    main()
