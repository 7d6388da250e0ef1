"""Small networks that are exactly invariant under C4, and layers that each break it in one way."""

import torch
import torch.nn.functional as F
from torch import nn

from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, LiftingConv2d

SIDE, WIDTH = 8, 3


class GroupMax(nn.Module):
    """Regular features to a vector: the mean over pixels, the maximum over group elements."""

    def forward(self, x):
        return x.mean((-2, -1)).amax(2)


class SymmetricConv(nn.Module):
    """A convolution of one channel whose kernel no rotation by 90° and no flip changes."""

    def __init__(self, stride=1):
        super().__init__()
        self.weight, self.stride = nn.Parameter(torch.tensor([0.4, -0.3, 0.2])), stride

    def forward(self, images):
        a, b, c = self.weight
        kernel = torch.stack([c, b, c, b, a, b, c, b, c]).view(1, 1, 3, 3)
        return F.conv2d(images, kernel, stride=self.stride, padding=1)


class Position(nn.Module):
    """Adds a learned number to each pixel."""

    def __init__(self, side=SIDE):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(side, side))

    def forward(self, x):
        return x + self.table


class WrongInverse(nn.Module):
    """y^g = Σ_m W[gm] x^m, where W[g⁻¹m] would be right."""

    def __init__(self, right=False):
        super().__init__()
        c4 = PlanarGroup.named("C4")
        self.weight = nn.Parameter(torch.randn(c4.order, WIDTH, WIDTH) / 3)
        self.table = c4.relative() if right else c4.product()

    def forward(self, x):
        return torch.einsum("gmoi,bimrs->bogrs", self.weight[self.table], x)


class SwappedChannels(nn.Module):
    """Swaps one channel between the first two group elements."""

    def forward(self, x):
        swapped = x.clone()
        swapped[:, 0, 0], swapped[:, 0, 1] = x[:, 0, 1], x[:, 0, 0]
        return swapped


class EternalDropout(nn.Module):
    """Dropout that eval() does not switch off."""

    def forward(self, x):
        return F.dropout(x, 0.1, training=True)


class Powers(nn.Module):
    """Mean of the powers of an image over its pixels."""

    def forward(self, images):
        return torch.stack([images.pow(k).mean((1, 2, 3)) for k in (1, 2, 3)], dim=-1)


def group_net(*between):
    """Return a lifting, the layers `between`, a group convolution and an invariant head."""
    lift = LiftingConv2d("C4", 1, WIDTH, 3)
    mix = GroupConv2d("C4", WIDTH, WIDTH, 3)
    head = (GroupMax(), nn.Linear(WIDTH, 4))
    return nn.Sequential(lift, nn.Tanh(), *between, mix, nn.Tanh(), *head)


def plain_net(*between):
    """Return symmetric convolutions without a group axis, and the mean of powers over pixels."""
    return nn.Sequential(SymmetricConv(), nn.Tanh(), *between, nn.Tanh(), Powers(), nn.Linear(3, 4))
