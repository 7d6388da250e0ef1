"""Small networks that are exactly invariant under C4, and layers that each break it in one way."""

import torch
import torch.nn.functional as F
from torch import nn

from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv, LiftingConv

SIDE, POSES, WIDTH = 8, 4, 3


class PoseMean(nn.Module):
    """Maps on the group to a vector: the mean over pixels, the maximum over poses."""

    def forward(self, maps):
        return maps.unflatten(1, (POSES, WIDTH)).mean((-2, -1)).amax(1)


class SymmetricConv(nn.Module):
    """A convolution of one channel whose kernel no quarter turn and no mirror changes."""

    def __init__(self, stride=1):
        super().__init__()
        self.weight, self.stride = nn.Parameter(torch.tensor([0.4, -0.3, 0.2])), stride

    def forward(self, maps):
        a, b, c = self.weight
        kernel = torch.stack([c, b, c, b, a, b, c, b, c]).view(1, 1, 3, 3)
        return F.conv2d(maps, kernel, stride=self.stride, padding=1)


class Position(nn.Module):
    """Adds a learned number to each pixel."""

    def __init__(self, side=SIDE):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(side, side))

    def forward(self, maps):
        return maps + self.table


class WrongInverse(nn.Module):
    """y^g = Σ_m W[gm] x^m, where W[g⁻¹m] would be right."""

    def __init__(self, right=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(POSES, WIDTH, WIDTH) / 3)
        c4 = PlanarGroup.named("C4")
        self.table = c4.relative() if right else c4.product()

    def forward(self, maps):
        x = maps.unflatten(1, (POSES, WIDTH))
        return torch.einsum("gmoi,bmirs->bgors", self.weight[self.table], x).flatten(1, 2)


class SwappedChannels(nn.Module):
    """One channel of one pose changes places with the same channel of the next."""

    def forward(self, maps):
        order = list(range(maps.shape[1]))
        order[0], order[WIDTH] = order[WIDTH], order[0]
        return maps[:, order]


class EternalDropout(nn.Module):
    """Dropout that no eval() turns off."""

    def forward(self, maps):
        return F.dropout(maps, 0.1, training=True)


def group_net(*between):
    """Lifting, whatever stands between, a group convolution, an invariant read-out."""
    lift = LiftingConv("C4", 1, WIDTH, 3)
    mix = GroupConv("C4", WIDTH, WIDTH, 3)
    return nn.Sequential(lift, nn.Tanh(), *between, mix, nn.Tanh(), PoseMean(), nn.Linear(WIDTH, 4))


def plain_net(*between):
    """Symmetric convolutions without poses, and the mean of powers over the pixels."""
    return nn.Sequential(SymmetricConv(), nn.Tanh(), *between, nn.Tanh(), Powers(), nn.Linear(3, 4))


class Powers(nn.Module):
    def forward(self, maps):
        return torch.stack([maps.pow(k).mean((1, 2, 3)) for k in (1, 2, 3)], dim=-1)
