"""RotoConv2d: the maximum of a convolution over all rotations of the image, rotated back.

    y_g = g⁻¹·K(g·x),    R(x) = max_g y_g        (or their mean, or root mean square)

A rotation of x by h permutes the g: R(h·x) = h·R(x), exactly, for every element and any K.  The
parameters are those of the plain convolution, with the same names, so weights are interchangeable.

Letters:  g the element;  K the convolution, w its filters;  k, s, p its kernel, stride and padding.
If (n + 2p − k) leaves a remainder r modulo s, K never sees r pixels on one side.  The y_g are then
those of the filter w in the corner of (k + r)² zeros, which leaves none: that is `remainder`.

Three algorithms, one result:
    copies   |G| convolutions of rotated images: the formula, and the oracle
    bank     one convolution with |G| rotated filters:  K_w(g·x) = g·K_{g⁻¹w}(x)
    fourier  the bank in the basis of irreps: 1.5 instead of 8 times the multiplications (D4)
On CUDA the last two are matrix products between Triton kernels (kernels/roto_launch.py).

Paper:    Roto-MetaFormer (M. Heinrich, BVM 2025), the module called RotoConv.
Departs:  the published module does not rotate back: max_g K(g·x), here reduce="legacy".  That
          output is invariant, not equivariant: rotating or reflecting one part of the image about
          the image's centre changes nothing, wherever the other parts are.  Distances from the
          centre remain: swapping two parts at different distances changes the output.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require, require_known, require_positive
from turnwise.geometry.sizes import (
    Stage,
    extended,
    remainder_of,
    require_exact_size,
    size_after,
)
from turnwise.geometry.windows import mix, multiply_block, window_basis, windows_of
from turnwise.groups import PlanarGroup, act_on_image, require_grid_group
from turnwise.layers.conv.conv import require_image, stage_of
from turnwise.layers.expansion import CachedExpansion
from turnwise.layers.tables import remakes_tables
from turnwise.layers.transformer.irreps import BACKENDS, by_kernel, rounded_by_autocast

REDUCTIONS = ("max", "mean", "rms", "legacy")
ALGORITHMS = ("auto", "copies", "bank", "fourier")
NARROW = 16  # input channels below which products are too short to gain on a GPU
LARGEST = 4  # side of windows whose taps a kernel holds in registers

Maps = Float[Tensor, "batch in_width row col"]
NewMaps = Float[Tensor, "batch width newrow newcol"]
Responses = Float[Tensor, "group batch width newrow newcol"]


@remakes_tables
class RotoConv2d(nn.Module):
    """Equivariant convolution without a group axis: R(x) = max_g g⁻¹·K(g·x).

    K is a square convolution with the parameters of `torch.nn.Conv2d`. If several responses are
    equal, the first takes the whole gradient.

    Args:
        group: a group of the pixel grid ("C2", "C4", "D1", "D2", "D4"), by name or as a
            `PlanarGroup`.
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: side of the square filters, in pixels.
        stride: distance between windows, in pixels.
        padding: zeros around the image; by default (kernel_size − 1) // 2.
        bias: whether to add a learned bias.
        remainder: pixels of a side that the last window leaves unseen, (size + 2 · padding −
            kernel_size) modulo stride. The layer takes only sizes with this remainder; for others
            it raises an error that names the nearest sizes.
        reduce: how to reduce the responses over the group: "max", "mean", "rms", or "legacy" for
            the published form, which does not rotate back.
        algorithm: "copies", "bank", "fourier", or "auto" for the fastest.
        backend: "auto", or "plain" without the CUDA kernels, which have no second derivatives.

    Shape:
        - Input: (batch, in_channels, row, col), an image.
        - Output: (batch, out_channels, new_row, new_col), an image that rotates with the input.

    >>> conv = RotoConv2d("D4", 3, 16, kernel_size=4, stride=2)
    >>> conv(torch.randn(2, 3, 28, 28)).shape
    torch.Size([2, 16, 14, 14])
    """

    to_window: Tensor
    to_filter: Tensor
    to_responses: Tensor

    def __init__(  # noqa: PLR0913 - all but four have a default
        self,
        group: PlanarGroup | str,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = True,
        *,
        remainder: int = 0,
        reduce: str = "max",
        algorithm: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.group = PlanarGroup.named(group)
        require_grid_group(self.group)
        require_positive(in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        stage = stage_of(kernel_size, stride, padding)
        require(
            0 <= remainder < stride,
            f"remainder = {remainder} must be from 0 to below the stride, {stride}.",
        )
        require_known(reduce, REDUCTIONS, "reduction")
        require_known(algorithm, ALGORITHMS, "algorithm")
        require_known(backend, BACKENDS, "backend")
        self.kernel_size, self.stride, self.padding = stage
        self.remainder, self.stages = remainder, (extended(stage, remainder),)
        self.reduce, self.algorithm, self.backend = reduce, algorithm, backend
        with torch.device("cpu"):  # a table of integers, whatever device is in use
            self.back = tuple(self.group.inverse().tolist())  # here: a graph would break on it
        like = nn.Conv2d(
            in_channels, out_channels, kernel_size, bias=bias
        )  # torch's initial weights
        self.weight, self.bias = like.weight, like.bias
        self._rotated, self._mixed = CachedExpansion[Tensor](), CachedExpansion[Tensor]()
        self._register_tables()

    def _register_tables(self) -> None:
        basis = window_basis(self.group, self.stages[0].kernel)
        self.blocks = basis.blocks
        tables = {
            "window": basis.for_window,
            "filter": basis.for_filter,
            "responses": basis.responses,
        }
        for name, table in tables.items():
            self.register_buffer(f"to_{name}", table.to(self.weight), persistent=False)

    @classmethod
    def around(cls, conv: nn.Module, group: PlanarGroup | str, size: int) -> "RotoConv2d":
        """Make an existing convolution equivariant for images of `size` pixels; weights are shared.

        >>> conv = torch.nn.Conv2d(3, 16, 7, stride=4, padding=2)
        >>> RotoConv2d.around(conv, "D4", size=32).remainder
        1
        """
        if not isinstance(conv, nn.Conv2d):
            raise InputError(f"expected an nn.Conv2d, got {type(conv).__name__}.")
        stage = Stage(*(_square(value) for value in (conv.kernel_size, conv.stride, conv.padding)))
        require(
            conv.groups == 1 and _square(conv.dilation) == 1 and conv.padding_mode == "zeros",
            f"{conv} cannot be made equivariant; use groups=1, dilation=1, padding_mode='zeros'.",
        )
        rest, bias = remainder_of(size, stage), conv.bias is not None
        with conv.weight.device:
            made = cls(group, conv.in_channels, conv.out_channels, *stage, bias, remainder=rest)
        made.to(conv.weight.dtype)  # the tables: 0, ±1 and powers of two, exact in every type
        made.weight, made.bias = conv.weight, conv.bias
        return made

    def forward(self, maps: Maps) -> NewMaps:
        require_image(maps, self.in_channels)
        for side in maps.shape[2:]:
            require_exact_size(side, self.stages, "this RotoConv2d")
        algorithm = self.chosen(maps)
        if self.reduce == "legacy":
            return self._legacy(maps, algorithm)
        if self.reduce == "mean" and algorithm != "copies":  # K is linear, and so is the mean
            filters = self._filters().mean(dim=0)
            return F.conv2d(maps, filters, self.bias, self.stride, self.padding)
        if self._has_kernel(maps, algorithm):
            return self._max_by_kernel(maps, algorithm)
        if algorithm == "fourier":
            responses, shape = self._fourier(maps)
            # reduced in their order in memory: many times faster
            return _to_maps(self._reduced(responses, self.bias), shape)
        bias = None if self.bias is None else self.bias[:, None, None]
        return self._reduced(self.responses(maps, algorithm), bias)

    def _legacy(self, maps: Maps, algorithm: str) -> NewMaps:
        """Return max_g K(g·x); the algorithm "copies" is as published, one convolution of all."""
        rows, cols = maps.shape[2:]
        require(
            rows == cols or self.group.rotations < 4,
            f"the legacy form adds rotated features, which {rows} x {cols} pixels do not allow; "
            "give square images.",
        )
        if algorithm == "copies":
            every = torch.cat([act_on_image(self.group, g, maps) for g in range(self.group.order)])
            responses = F.conv2d(every, self.weight, None, self.stride, self.padding)
            responses = responses.unflatten(0, (self.group.order, -1))
        else:
            aligned = enumerate(self.responses(maps, algorithm))
            responses = torch.stack([act_on_image(self.group, g, y) for g, y in aligned])
        return self._reduced(responses, None if self.bias is None else self.bias[:, None, None])

    def chosen(self, maps: Tensor) -> str:
        """Return the algorithm that runs: the given one, or for "auto" the fastest measured."""
        if self.algorithm != "auto":
            return self.algorithm
        narrow = maps.is_cuda and maps.shape[1] < NARROW
        return "bank" if narrow or self.group.order == 1 else "fourier"

    def responses(self, maps: Maps, algorithm: str) -> Responses:
        """Return y_g for every g, without the bias."""
        if algorithm == "copies":
            return self._copies(maps)
        if algorithm == "bank":
            return self._bank(maps)
        responses, shape = self._fourier(maps)
        return torch.stack([_to_maps(response, shape) for response in responses])

    def _copies(self, maps: Maps) -> Responses:
        responses = [
            F.conv2d(
                act_on_image(self.group, g, maps), self.weight, None, self.stride, self.padding
            )
            for g in range(self.group.order)
        ]
        rotated = zip(self.back, responses, strict=True)
        return torch.stack([act_on_image(self.group, g, y) for g, y in rotated])

    def _bank(self, maps: Maps) -> Responses:
        filters = self._filters().flatten(0, 1)
        responses = F.conv2d(maps, filters, None, self.stride, self.padding)
        return responses.unflatten(1, (self.group.order, -1)).transpose(0, 1)

    def _filters(self) -> Float[Tensor, "group width in_width kernel kernel"]:
        """Return g⁻¹w for every g, with w in the corner of the zeros."""
        return self._rotated(self.weight, self._rotate)

    def _rotate(self, weight: Tensor) -> Float[Tensor, "group width in_width kernel kernel"]:
        weight = self._extended(weight)
        return torch.stack([act_on_image(self.group, g, weight) for g in self.back])

    def _extended(self, weight: Tensor) -> Float[Tensor, "width in_width kernel kernel"]:
        return F.pad(weight, (0, self.remainder, 0, self.remainder))

    def _filters_in_irreps(self) -> Float[Tensor, "tap in_width width"]:
        """Return ŵ, the filters in the basis of irreps."""
        return self._mixed(
            self.weight,
            lambda weight: mix(
                self.to_filter, self._extended(weight).permute(2, 3, 1, 0).flatten(0, 1)
            ),
        )

    def _fourier(
        self, maps: Maps
    ) -> tuple[Float[Tensor, "group window width"], tuple[int, int, int]]:
        """Return y_g at every window, and the shape of the windows, (batch, newrow, newcol)."""
        windows, shape = self._windows(maps)
        windows, weight = mix(self.to_window, windows), self._filters_in_irreps()
        sizes = [dim * copies for dim, copies in self.blocks]
        parts = zip(self.blocks, windows.split(sizes), weight.split(sizes), strict=True)
        products = [P for block, x, w in parts for P in multiply_block(x, w, *block)]
        return mix(self.to_responses, torch.cat(products)), shape

    def _windows(
        self, maps: Maps
    ) -> tuple[Float[Tensor, "tap window in_width"], tuple[int, int, int]]:
        kernel, stride, padding = self.stages[0]
        padded = F.pad(maps, (padding,) * 4) if padding else maps
        windows = windows_of(padded, kernel, stride)
        batch, _, rows, cols, *_ = windows.shape
        taps = windows.permute(4, 5, 0, 2, 3, 1)  # (row, col, batch, newrow, newcol, i)
        return taps.flatten(2, 4).flatten(0, 1), (batch, rows, cols)

    def _has_kernel(self, maps: Maps, algorithm: str) -> bool:
        small = self.stages[0].kernel <= LARGEST and algorithm == "fourier"
        known = self.reduce == "max" and (small or algorithm == "bank")
        return known and by_kernel(maps, self.backend)

    def _max_by_kernel(self, maps: Maps, algorithm: str) -> NewMaps:
        """Return max_g y_g: the products of either algorithm, with kernels before and after."""
        from turnwise.kernels.roto_launch import BANK, max_response, windows_to_rows

        maps = rounded_by_autocast(maps)
        if algorithm == "bank":
            windows, shape = self._windows(maps)
            filters = self._filters().permute(3, 4, 2, 0, 1).flatten(0, 2).flatten(1)
            products, kernel = [windows.transpose(0, 1).flatten(1) @ filters], BANK
        else:
            kernel, stride, padding = self.stages[0]
            tokens = maps.permute(0, 2, 3, 1).contiguous()
            rows = windows_to_rows(tokens, self.group.name, kernel, stride, padding)
            products = [x @ w for x, w in zip(rows, self._block_filters(), strict=True)]
            newrows, newcols = (size_after(n, self.stages[0]) for n in maps.shape[2:])
            shape = (len(maps), newrows, newcols)
        best, _ = max_response(products, self.group.name, kernel, len(self.weight))
        return _to_maps(best if self.bias is None else best + self.bias.to(best), shape)

    def _block_filters(self) -> list[Float[Tensor, "_ _"]]:
        """Return ŵ of each block, (j · i, a · o)."""
        weight = self._filters_in_irreps()
        parts = zip(self.blocks, weight.split([dim * n for dim, n in self.blocks]), strict=True)
        return [
            w.unflatten(0, block).flatten(1, 2).transpose(0, 1).flatten(1) for block, w in parts
        ]

    def _reduced(
        self, responses: Float[Tensor, "group *rest"], bias: Tensor | None
    ) -> Float[Tensor, "*rest"]:
        """Reduce over the group; the bias is the same for every g, so max and mean add it last."""
        if self.reduce == "rms":
            whole = responses if bias is None else responses + bias
            wide = whole.to(torch.promote_types(whole.dtype, torch.float32))  # or squares overflow
            square = wide.square().mean(dim=0) + torch.finfo(wide.dtype).tiny  # 0 has no slope
            return square.sqrt().to(responses.dtype)
        # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
        # another precision, and 0 / 0 is not a number
        reduced = responses.mean(dim=0) if self.reduce == "mean" else responses.max(dim=0).values
        return reduced if bias is None else reduced + bias.to(reduced)  # rounded by autocast, too

    def extra_repr(self) -> str:
        padding = f", padding={self.padding}" if self.padding else ""
        remainder = f", remainder={self.remainder}" if self.remainder else ""
        return (
            f"{self.group}, {self.in_channels}, {self.out_channels}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}{padding}{remainder}"
            f"{', bias=False' if self.bias is None else ''}, reduce={self.reduce}"
        )


def _to_maps(values: Float[Tensor, "window width"], shape: tuple[int, int, int]) -> NewMaps:
    """Return the values of windows as an image in torch.channels_last."""
    return values.unflatten(0, shape).permute(0, 3, 1, 2)


def _square(values: object) -> int:
    """Return the number of a pair of equal ones."""
    pair = (values, values) if isinstance(values, int) else values
    ok = isinstance(pair, tuple) and len(pair) == 2 and pair[0] == pair[1]
    require(ok, f"a RotoConv2d takes square convolutions with padding in pixels, got {values}.")
    assert isinstance(pair, tuple)
    return int(pair[0])
