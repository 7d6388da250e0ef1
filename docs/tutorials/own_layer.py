# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Build and certify your own equivariant layer
#
# We write a *squeeze-and-excitation* layer for features on a group, first wrongly and then rightly, test it for every group element,
# use it in a network, and certify the network.
#
# Features inside a network have the shape (batch, channel, group, row, col): one map for each element of the group. If the image
# is transformed by $g$, the maps are transformed by $g$ and exchange their positions on the group axis.

# %%
import torch
from torch import Tensor, nn

import turnwise
from turnwise.geometry.layouts import action_on
from turnwise.layers import GroupConv2d, InvariantPool, LiftingConv2d

torch.manual_seed(0)
act = action_on("regular")
features = torch.randn(2, 6, 8, 9, 9, dtype=torch.float64)


# %% [markdown]
# ## A first try
# One gate for each channel *and each group element*, by one matrix over both. It looks natural.


# %%
class WrongGate(nn.Module):
    def __init__(self, channels: int, order: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels * order, channels * order)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.linear(x.mean((3, 4)).flatten(1)).sigmoid().view(*x.shape[:3], 1, 1)
        return x * gates


try:
    turnwise.assert_equivariant(WrongGate(6, 8).double(), "D4", features, act_in=act, act_out=act)
except AssertionError as error:
    print(str(error)[:400])

# %% [markdown]
# The matrix has different weights for different elements, so exchanging them changes the gates.
#
# ## Two ways that work
# **Average over the group first.** The gates are then invariant, one for each channel:


# %%
class ChannelGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.linear(x.mean((2, 3, 4))).sigmoid()[:, :, None, None, None]
        return x * gates


turnwise.assert_equivariant(ChannelGate(6).double(), "D4", features, act_in=act, act_out=act)

# %% [markdown]
# **Or use weights that depend on the relative element only.** A 1 × 1 group convolution is such a map. Gates may then differ
# between orientations.


# %%
class OrientedGate(nn.Module):
    def __init__(self, group: str, channels: int) -> None:
        super().__init__()
        self.mix = GroupConv2d(group, channels, channels, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mix(x.mean((3, 4), keepdim=True)).sigmoid()


turnwise.assert_equivariant(OrientedGate("D4", 6).double(), "D4", features, act_in=act, act_out=act)

# %% [markdown]
# `assert_equivariant` also fails if the output does not depend on the input, so a constant layer does not pass.
#
# ## In a network
# The gate stands between group convolutions; `InvariantPool` makes an invariant vector at the end.


# %%
def network(group: str, gate: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        LiftingConv2d(group, 3, 6, kernel_size=3), nn.ReLU(), gate,
        GroupConv2d(group, 6, 6, kernel_size=3), nn.ReLU(),
        InvariantPool(group), nn.Linear(6, 10),
    ).eval()  # fmt: skip


images = turnwise.load_dataset("tiles").val.images[:4].float() / 255
certificate = turnwise.certify(
    network("D4", OrientedGate("D4", 6)), "D4", images, target="my network", angles=4
)
certificate

# %%
assert certificate.holds

# %% [markdown]
# With the wrong gate the certificate does not hold, and it names the layer where the error enters.

# %%
broken = turnwise.certify(network("D4", WrongGate(6, 8)), "D4", images, target="broken", angles=4)
print(broken.holds, "-", broken.error_source)
assert not broken.holds

# %% [markdown]
# A layer that you want to contribute needs four tests: equivariance, witness, control, and the formula as loops
# ([contributing](../contributing/tour.md)).
