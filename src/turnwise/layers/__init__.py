"""Equivariant layers, with names and signatures like torch's; every layer takes a group by name.

Convolutions, norms, pools and attention take *regular features*, (batch, channel, group, row, col):
one feature map for each element of the group.  `LiftingConv2d` and `LiftingSelfAttention` make them
from an image, `InvariantPool` and `MaxOverGroup` turn them into a vector or an image again.

>>> import torch
>>> from torch import nn
>>> from turnwise.layers import GroupBatchNorm2d, GroupConv2d, InvariantPool, LiftingConv2d
>>> model = nn.Sequential(
...     LiftingConv2d("D4", 3, 8, kernel_size=3), GroupBatchNorm2d("D4", 8), nn.ReLU(),
...     GroupConv2d("D4", 8, 8, kernel_size=3), nn.ReLU(), InvariantPool("D4"), nn.Linear(8, 10),
... ).eval()
>>> image = torch.randn(1, 3, 16, 16)
>>> torch.allclose(model(image), model(image.rot90(1, (2, 3))), atol=1e-5)
True
"""

from turnwise.layers.conv.conv import CircularConv2d as CircularConv2d
from turnwise.layers.conv.conv import GroupConv2d as GroupConv2d
from turnwise.layers.conv.conv import GroupDepthwiseConv2d as GroupDepthwiseConv2d
from turnwise.layers.conv.conv import LiftingConv2d as LiftingConv2d
from turnwise.layers.conv.conv import MaxOverGroup as MaxOverGroup
from turnwise.layers.conv.residual import GroupResidualBlock as GroupResidualBlock
from turnwise.layers.conv.stem import GroupBatchNorm2d as GroupBatchNorm2d
from turnwise.layers.conv.stem import GroupLayerNorm as GroupLayerNorm
from turnwise.layers.conv.stem import GroupPool2d as GroupPool2d
from turnwise.layers.conv.stem import PatchLift as PatchLift
from turnwise.layers.conv.upsample import GroupUpsample2d as GroupUpsample2d
from turnwise.layers.gsa.attention import GroupSelfAttention as GroupSelfAttention
from turnwise.layers.gsa.attention import LiftingSelfAttention as LiftingSelfAttention
from turnwise.layers.heads.fields import FieldHead as FieldHead
from turnwise.layers.heads.pooling import InvariantPool as InvariantPool
from turnwise.layers.roto.conv import RotoConv2d as RotoConv2d
from turnwise.layers.transformer.block import GroupTransformerBlock as GroupTransformerBlock
from turnwise.layers.transformer.linear import GroupLinear as GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention as GroupRotaryAttention
