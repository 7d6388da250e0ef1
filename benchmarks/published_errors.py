"""How far GSA-Nets and GE-ViT, as published and as here, are from equivariance.

    python benchmarks/published_errors.py

Random weights as each network starts with, float64, CPU, seed 0; under four minutes on one core.
The record goes to benchmarks/published_errors.jsonl; docs/papers/gsa.md shows its tables.

Errors are max|Φ(g f) − g Φ(f)| / max|Φ(f)| for a quarter turn and, where the group has mirrors, a
mirror: they generate all that the pixel grid has of the group.
"""

import math
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gsa_tables
import torch
import torch.nn.functional as F
from records import append_record
from torch import Tensor, nn

from turnwise.evaluation.certificate.targets import noisy_digits
from turnwise.geometry.layouts import regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, equivariance_errors
from turnwise.layers.gsa.attention import GroupSelfAttention, LiftingSelfAttention
from turnwise.layers.gsa.blocks import FieldPool, GSABlock
from turnwise.layers.gsa.encodings import AxisMLP
from turnwise.layers.gsa.published import (
    EXACT,
    EXACT_GE_VIT,
    GEVIT_2023,
    GSA_2021,
    Convention,
    table_of_2021,
    table_of_2023,
)
from turnwise.models import create_model
from turnwise.models.gsa import GroupAttentionNetwork, GSADesign
from turnwise.models.registry import Task, config_of

GROUPS = ("p4", "p8", "p12", "p16", "mz2", "p4m", "p8m")
PROGRAMS = {
    "gsa-2021": ("gsa_net", "gsa-2021", GSA_2021),
    "gevit-2023": ("ge_vit", "gevit-2023", GEVIT_2023),
    "exact gsa_net": ("gsa_net", "exact", EXACT),
    "exact ge_vit": ("ge_vit", "exact", EXACT_GE_VIT),
}
SIGN_ONLY = {
    "coordinates": GSA_2021.coordinates,
    "encoder_eps": GSA_2021.encoder_eps,
    "random_biases": False,
}
FAULTS = {
    "none": EXACT,
    "the table of 2021": replace(EXACT, table=table_of_2021),
    "the table of 2023": replace(EXACT, table=table_of_2023),
    "only the sign of an offset": replace(EXACT, **SIGN_ONLY),
    "scores divided by √C_in": replace(EXACT, scale_by_input=True),
    "sums over queries and pixels": replace(EXACT, sums=True),
    "one norm for the whole picture": replace(EXACT, norm_over_image=True, norm_eps=1e-12),
    "all of 2021": GSA_2021,
    "all of 2023": GEVIT_2023,
}
HEADS = 3  # published: 9; errors are alike and the time is a third

Outputs = Callable[[Tensor], dict[str, Tensor]]


def network(program: str, group: str, seed: int = 0, **options: object) -> GroupAttentionNetwork:
    """A published network with random weights, all queries where a CPU can hold them."""
    torch.manual_seed(seed)
    name, variant, _ = PROGRAMS[program]
    given = {"queries": "all" if PlanarGroup.named(group).order <= 4 else "own", "heads": HEADS}
    model = create_model(name, group=group, variant=variant, **given | options)
    assert isinstance(model, GroupAttentionNetwork)
    return model.double().eval()


def generators(group: PlanarGroup) -> list[int]:
    """A quarter turn and a mirror, as far as the group has them."""
    turn = [group.rotations // 4] if group.rotations % 4 == 0 else []
    return turn + ([group.rotations] if group.reflections else [])


def violated(convention: Convention, group: PlanarGroup) -> float:
    """The share of entries with T(Rh, Rg, Rm) ≠ T(h, g, m), for the worst R; no weights needed."""
    table, product = convention.table(group), group.product()
    moved = (table[row][:, row][:, :, row] for row in product[1:])
    return max(float((other != table).double().mean()) for other in moved)


def relative_change(after: Tensor, before: Tensor) -> float:
    change = float((after - before).abs().max() / before.abs().max())
    assert math.isfinite(change)  # max(0.0, nan) is 0, and would pass for exactness
    return change


@torch.no_grad()
def errors_by_stage(outputs: Outputs, group: PlanarGroup, images: Tensor) -> dict[str, float]:
    """The worst error of each output, be it a field on the group or something invariant."""
    before = outputs(images)
    worst = dict.fromkeys(before, 0.0)
    for g in generators(group):
        for stage, after in outputs(act_on_image(group, g, images)).items():
            moves = after.ndim == 5
            expected = act_on_field(group, g, before[stage]) if moves else before[stage]
            worst[stage] = max(worst[stage], relative_change(after, expected))
    return worst


def layers(program: str, group: str, window: int, size: int) -> Outputs:
    """Lift 3 -> 8, group 8 -> 8, SiLU, group 8 -> 8; 6 channels in each of 3 heads, all queries."""
    sizes = {"in_chans": 3, "image_size": size, "window": window, "width": 8, "widths": [[8, 8]]}
    model = network(program, group, queries="all", **sizes)
    plan = model.lift.project.plan
    options = {"head_dim": 6, **plan.options}
    model.lift = LiftingSelfAttention(plan.group, 3, 8, **options)
    for block in model.stages[0]:
        block.attention = GroupSelfAttention(plan.group, 8, 8, **options)
    model.reset_parameters()
    first, second = (block.attention for block in model.double().eval().stages[0])

    def outputs(images: Tensor) -> dict[str, Tensor]:
        lift = model.lift(images)
        one = first(lift)
        two = second(F.silu(one))
        fields = [regular_to_field(x) for x in (lift, one, two)]
        pooled = fields[2].sum((2, 3)).amax(1)
        return dict(zip(("lift", "group", "two groups"), fields, strict=True)) | {"pooled": pooled}

    return outputs


def layer_errors(program: str, group: str) -> dict[str, dict[str, float]]:
    """A local window of 5 on 9 × 9 pixels, and the whole of 7 × 7 pixels."""
    found = {}
    for kind, window, size in (("local", 5, 9), ("global", 0, 7)):
        noise = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
        outputs = layers(program, group, window, size)
        found[kind] = errors_by_stage(outputs, PlanarGroup.named(group), noise.double())
    return found


def digit_for(model: nn.Module) -> Tensor:
    """Return an embedded digit in the model's size and channels, with noise, in float64."""
    options = config_of(model).options
    return noisy_digits(1, options["in_chans"], options["image_size"]).double()


def network_errors(program: str, group: str) -> dict[str, float]:
    """Of the logits of the rotMNIST network on a digit, for two sizes of picture."""
    found, element = {}, generators(PlanarGroup.named(group))
    for size in (28, 32):
        model = network(program, group, image_size=size)
        images = model.preprocess(digit_for(model))
        found[str(size)] = max(equivariance_errors(model, group, images, elements=element))
    return found


def pcam_errors(program: str) -> dict[str, float]:
    """Along the PCam network, p4, 96 × 96: after every block and pool, and of the logits."""
    model = network(program, "p4", data="pcam", in_chans=3, num_classes=2, image_size=96)
    kept: dict[str, Tensor] = {}

    def keep(module: nn.Module, _: object, field: Tensor) -> None:
        words = {LiftingSelfAttention: "lift", GSABlock: "block", FieldPool: "pool"}
        if isinstance(module, LiftingSelfAttention):
            field = regular_to_field(field)
        kept[f"{len(kept)}: {words[type(module)]} to {field.shape[2]}×{field.shape[3]}"] = field

    for module in model.modules():
        if isinstance(module, LiftingSelfAttention | GSABlock | FieldPool):
            module.register_forward_hook(keep)

    def outputs(images: Tensor) -> dict[str, Tensor]:
        kept.clear()
        logits = model(images)
        return {**kept, "logits": logits}

    images = model.preprocess(digit_for(model))
    return errors_by_stage(outputs, PlanarGroup.named("p4"), images)


def with_fault(convention: Convention, group: str, seed: int = 0) -> GroupAttentionNetwork:
    """The exact rotMNIST network of `gsa_net`, but for its convention."""
    group_ = PlanarGroup.named(group)
    design = GSADesign(heads=HEADS, queries="all" if group_.order <= 4 else "own")
    torch.manual_seed(seed)
    task = Task(group_, num_classes=10, in_chans=1, image_size=28)
    return GroupAttentionNetwork(task, design, convention).double().eval()


@torch.no_grad()
def fault_costs(convention: Convention) -> dict[str, float]:
    """What one fault alone does to the logits under the group, to the first loss, and far away."""
    plain = network("exact gsa_net", "p4")
    images = plain.preprocess(digit_for(plain))
    turning, mirrored = with_fault(convention, "p4"), with_fault(convention, "p4m")
    starts = [with_fault(convention, "p4", seed)(images) for seed in range(5)]
    losses = torch.cat([start.logsumexp(dim=-1) - start.mean(dim=-1) for start in starts])
    return {
        "p4": max(equivariance_errors(turning, "p4", images, elements=[1])),
        "p4m": max(equivariance_errors(mirrored, "p4m", images, elements=[1, 4])),
        "first loss": float(losses.mean()),  # over all ten labels and five starts
        "far away": change_far_away(turning, images),
    }


def change_far_away(model: GroupAttentionNetwork, images: Tensor) -> float:
    """In the lower right quarter of the first features, for a pixel in the upper left corner."""

    def features(pictures: Tensor) -> Tensor:
        lifted = F.silu(model.norm(regular_to_field(model.lift(pictures))))
        return lifted[:, :, 14:, 14:]

    touched = images.clone()
    touched[..., 0, 0] += 1
    return relative_change(features(touched), features(images))


@torch.no_grad()
def encoding_of_offsets(convention: Convention) -> dict[str, float]:
    """Of the nine steps of a 9 × 9 window: how many encodings differ, how much near and far do."""
    model = with_fault(convention, "z2")
    plane = convention.coordinates(PlanarGroup.named("z2"), Neighbourhood(9), 9, 9)
    steps = plane[0, :, 0].unique().double()  # nine, in order
    codes = [m(steps) for m in model.modules() if isinstance(m, AxisMLP)]
    distinct = [len(code.div(code.abs().max()).mul(1e6).round().unique(dim=0)) for code in codes]
    near_and_far = [(c[8] - c[6]).norm() / (c[8] - c[0]).norm() for c in codes]
    return {
        "distinct": sum(distinct) / len(codes),
        "near and far": float(torch.stack(near_and_far).mean()),
    }


def main() -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    groups = {name: PlanarGroup.named(name) for name in GROUPS}
    figures = {
        "tables": {
            program: {name: violated(convention, group) for name, group in groups.items()}
            for program, (_, _, convention) in PROGRAMS.items()
        },
        "layers": {p: {name: layer_errors(p, name) for name in GROUPS} for p in PROGRAMS},
        "networks": {p: {name: network_errors(p, name) for name in GROUPS} for p in PROGRAMS},
        "pcam": {program: pcam_errors(program) for program in PROGRAMS},
        "faults": {fault: fault_costs(convention) for fault, convention in FAULTS.items()},
        "encodings": {p: encoding_of_offsets(c) for p, (_, _, c) in PROGRAMS.items()},
    }
    figures["seconds"] = round(time.perf_counter() - start)
    command = shlex.join(["python", "benchmarks/published_errors.py", *sys.argv[1:]])
    append_record(Path(__file__).parent / "published_errors.jsonl", command, figures)
    for title, table in gsa_tables.ERRORS.items():
        print(f"\n{title}\n\n{table(figures)}")


if __name__ == "__main__":
    main()
