"""Build a small equivariant CNN and a small equivariant ViT from layers, and certify both.

    python examples/own_networks.py

Both take images of 24 × 24 pixels with three channels.  Their features have a group axis; the
invariant pooling removes it, so the logits do not change when the image is rotated or flipped.
"""

import torch
from torch import nn

import turnwise
from turnwise.layers import (
    GroupBatchNorm2d,
    GroupConv2d,
    GroupPool2d,
    GroupRotaryAttention,
    GroupTransformerBlock,
    InvariantPool,
    LiftingConv2d,
    PatchLift,
)


def equivariant_cnn(group: str, classes: int) -> nn.Sequential:
    return nn.Sequential(
        LiftingConv2d(group, 3, 8, kernel_size=3), GroupBatchNorm2d(group, 8), nn.ReLU(),
        GroupPool2d(group),
        GroupConv2d(group, 8, 16, kernel_size=3), GroupBatchNorm2d(group, 16), nn.ReLU(),
        GroupPool2d(group),
        GroupConv2d(group, 16, 16, kernel_size=3), nn.ReLU(),
        InvariantPool(group), nn.Linear(16, classes),
    )  # fmt: skip


def equivariant_vit(group: str, classes: int, width: int = 16, depth: int = 3) -> nn.Sequential:
    blocks = [
        GroupTransformerBlock(group, width, GroupRotaryAttention(group, width, num_heads=2))
        for _ in range(depth)
    ]
    return nn.Sequential(
        PatchLift(group, 3, width, patch=4), *blocks,
        InvariantPool(group, over_group="max"), nn.Linear(width, classes),
    )  # fmt: skip


def main() -> None:
    images = torch.rand(8, 3, 24, 24)
    for build in (equivariant_cnn, equivariant_vit):
        torch.manual_seed(0)
        network = build("D4", 10).eval()
        certificate = turnwise.certify(network, "D4", images, target=build.__name__)
        print(f"{build.__name__}: {certificate.claim}: {certificate.holds}")


if __name__ == "__main__":
    main()
