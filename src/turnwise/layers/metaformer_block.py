"""The MetaFormer block: a mixer tells pixels of each other, then each thinks for itself.

x <- x + drop(s₁ ⊙ mixer(norm(x)))
x <- x + drop(s₂ ⊙ mlp(norm(x)))

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
Symbols:  s₁, s₂ one number for each channel (layer scale), `scale_mixer` and `scale_mlp`.

On maps that keep their poses (layers/oriented.py) all poses share scales, norms' affine maps and,
seen from their own frames, the perceptron, which has |G| times fewer weights; `width` counts all.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.group_conv import GroupConv
from turnwise.layers.mixers import start_small
from turnwise.layers.oriented import width_of_pose
from turnwise.layers.transformer import DropPath

Maps = Float[Tensor, "batch width row col"]
NORMS = ("picture", "channel")


def for_poses(numbers: Float[Tensor, " pose_width"], poses: int) -> Float[Tensor, " width"]:
    """The numbers of one pose's channels, the same for every pose."""
    return numbers if poses == 1 else numbers.repeat(poses)


class PoseNorm(nn.Module):
    """Mean 0 and spread 1, then an affine map that is the same for every pose.

    `over` "picture": over all channels, poses and pixels of a picture; "channel": over the channels
    and poses of each pixel.
    """

    def __init__(self, over: str, width: int, poses: int = 1) -> None:
        super().__init__()
        require_known(over, NORMS, "norm")
        self.over, self.poses = over, poses
        self.weight = nn.Parameter(torch.ones(width // poses))
        self.bias = nn.Parameter(torch.zeros(width // poses))

    def forward(self, maps: Maps) -> Maps:
        weight, bias = for_poses(self.weight, self.poses), for_poses(self.bias, self.poses)
        if self.over == "picture":
            return F.group_norm(maps, 1, weight, bias)
        pixels = maps.permute(0, 2, 3, 1)
        return F.layer_norm(pixels, weight.shape, weight, bias).permute(0, 3, 1, 2)


class MetaFormerBlock(nn.Module):
    """One mixer and one two-layer perceptron, each normed before and scaled before it is added.

    With an `oriented` group, maps keep its poses; the mixer must treat all maps alike, as pools do.
    """

    def __init__(
        self,
        width: int,
        mixer: nn.Module,
        *,
        norm: str = "picture",
        mlp_ratio: float = 4.0,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
        oriented: PlanarGroup | str | None = None,
    ) -> None:
        super().__init__()
        require_known(norm, NORMS, "norm")
        hidden = int(width * mlp_ratio)
        require_positive(width=width, hidden=hidden)
        self.poses = 1 if oriented is None else PlanarGroup.named(oriented).order
        self.norm_mixer, self.norm_mlp = (PoseNorm(norm, width, self.poses) for _ in range(2))
        self.mixer = mixer
        widen, narrow = _linear(oriented, width, hidden), _linear(oriented, hidden, width)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)
        self.scale_mixer = nn.Parameter(torch.full((width // self.poses,), layer_scale))
        self.scale_mlp = nn.Parameter(torch.full((width // self.poses,), layer_scale))
        self.drop_path = DropPath(drop_path)
        for part in (widen, narrow):
            start_small(part)

    def forward(self, maps: Maps) -> Maps:
        mixed = self.mixer(self.norm_mixer(maps))
        maps = maps + self.drop_path(self._scaled(self.scale_mixer, mixed))
        thought = self.mlp(self.norm_mlp(maps))
        return maps + self.drop_path(self._scaled(self.scale_mlp, thought))

    def _scaled(self, scale: Float[Tensor, " pose_width"], branch: Maps) -> Maps:
        return for_poses(scale, self.poses)[:, None, None] * branch


def _linear(oriented: PlanarGroup | str | None, old: int, new: int) -> nn.Conv2d | GroupConv:
    """A linear map of each pixel; of oriented maps one that mixes poses from their own frames."""
    if oriented is None:
        return nn.Conv2d(old, new, 1)
    return GroupConv(oriented, width_of_pose(oriented, old), width_of_pose(oriented, new), 1)
