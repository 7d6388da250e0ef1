"""From pictures to tokens: a cut into square patches and one linear map for all of them."""

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.geometry.sizes import Stage


class PatchEmbedding(nn.Module):
    """One token per patch: a convolution whose stride is its kernel.

    Paper:    Dosovitskiy et al. 2021, "An Image Is Worth 16x16 Words".
    """

    def __init__(self, in_chans: int, width: int, patch: int) -> None:
        super().__init__()
        self.stages = (Stage(patch, patch),)
        self.project = nn.Conv2d(in_chans, width, kernel_size=patch, stride=patch)

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch token width"]:
        return self.project(images).flatten(2).transpose(1, 2)
