"""RotoConv: a convolution that looks at every turn of the picture, and turns its answers back.

    y_g = g⁻¹·K(g·x),    R(x) = max_g y_g        (or their mean, or root mean square)

Turning x by h only renames the g: R(h·x) = h·R(x), exactly, for every element and whatever K is.
Weights are those of the plain convolution, by the same names, so either can use the other's.

Letters:  g the element;  K the convolution, w its filters;  k, s, p its kernel, stride and padding.
Where (n + 2p − k) leaves a remainder r by s, K never sees r pixels on one side.  The y_g are then
those of the filter w set in the corner of (k + r)² zeros, which leaves none: `remainder` says so.

Three algorithms, one result:
    copies   |G| convolutions of turned pictures: the formula, and the oracle
    bank     one convolution with |G| turned filters:  K_w(g·x) = g·K_{g⁻¹w}(x)
    fourier  the bank in the basis of irreps: 1.5 instead of 8 times the multiplications (D4)
On CUDA the last two are matrix products between kernels of our own (triton_roto_launch.py).

Paper:    Roto-MetaFormer (M. Heinrich, BVM 2025), the module called RotoConv.
Departs:  the published module does not turn back: max_g K(g·x), here reduce="legacy".  It folds
          the picture onto itself, so that it is invariant and cannot see how parts are arranged.
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
from turnwise.geometry.window_basis import mix, multiply_block, window_basis
from turnwise.geometry.windows import windows_of
from turnwise.groups import PlanarGroup, act_on_image, require_grid_group
from turnwise.layers.tables import remakes_tables
from turnwise.layers.transformer.irreps import BACKENDS, by_kernel, rounded_by_autocast

REDUCTIONS = ("max", "mean", "rms", "legacy")
ALGORITHMS = ("auto", "copies", "bank", "fourier")
NARROW = 16  # input channels below which products are too short to gain on a GPU
LARGEST = 4  # sides of windows whose taps a kernel holds in registers

Maps = Float[Tensor, "batch in_width row col"]
NewMaps = Float[Tensor, "batch width newrow newcol"]
Answers = Float[Tensor, "group batch width newrow newcol"]


@remakes_tables
class RotoConv(nn.Module):
    """max_g g⁻¹·K(g·x) around a square convolution K; see the head of this file.

    `remainder` is fixed when it is made, from the size of the pictures (`remainder_of`); pictures
    that leave another are refused with the nearest sizes that do not.  `backend` "plain" leaves the
    kernels on CUDA out, which have no gradient of a gradient.  Of equal answers the first takes the
    whole gradient.
    """

    to_window: Tensor
    to_filter: Tensor
    to_answers: Tensor

    def __init__(  # noqa: PLR0913 - all but four are named and have a default
        self,
        group: PlanarGroup | str,
        in_width: int,
        width: int,
        stage: Stage,
        *,
        remainder: int = 0,
        bias: bool = True,
        reduce: str = "max",
        algorithm: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.group = PlanarGroup.named(group)
        require_grid_group(self.group)
        require_positive(in_width=in_width, width=width, kernel=stage.kernel, stride=stage.stride)
        require(stage.padding >= 0, f"padding = {stage.padding} must be 0 or more pixels.")
        require(
            0 <= remainder < stage.stride,
            f"remainder = {remainder} must be from 0 to below the stride, {stage.stride}.",
        )
        require_known(reduce, REDUCTIONS, "reduction")
        require_known(algorithm, ALGORITHMS, "algorithm")
        require_known(backend, BACKENDS, "backend")
        self.stage, self.remainder = stage, remainder
        self.stages = (extended(stage, remainder),)
        self.reduce, self.algorithm, self.backend = reduce, algorithm, backend
        with torch.device("cpu"):  # numbers, also where weights are made on another device
            self.back = tuple(self.group.inverse().tolist())  # here: a graph would break on it
        like = nn.Conv2d(in_width, width, stage.kernel, bias=bias)  # starts as torch starts it
        self.weight, self.bias = like.weight, like.bias
        self._register_tables()

    def _register_tables(self) -> None:
        basis = window_basis(self.group, self.stages[0].kernel)
        self.blocks = basis.blocks
        tables = {"window": basis.for_window, "filter": basis.for_filter, "answers": basis.answers}
        for name, table in tables.items():
            self.register_buffer(f"to_{name}", table.to(self.weight), persistent=False)

    @classmethod
    def around(cls, conv: nn.Module, group: PlanarGroup | str, size: int) -> "RotoConv":
        """The same convolution, weights shared, made equivariant for pictures of `size` pixels."""
        if not isinstance(conv, nn.Conv2d):
            raise InputError(f"a RotoConv is made around an nn.Conv2d, got {type(conv).__name__}.")
        square = [_square(v) for v in (conv.kernel_size, conv.stride, conv.padding)]
        stage = Stage(*square)
        require(
            conv.groups == 1 and _square(conv.dilation) == 1 and conv.padding_mode == "zeros",
            f"{conv} cannot be turned; use groups=1, dilation=1 and padding_mode='zeros'.",
        )
        rest, bias = remainder_of(size, stage), conv.bias is not None
        with conv.weight.device:
            made = cls(group, conv.in_channels, conv.out_channels, stage, remainder=rest, bias=bias)
        made.to(conv.weight.dtype)  # the tables: 0, ±1 and powers of two, exact in every type
        made.weight, made.bias = conv.weight, conv.bias
        return made

    def forward(self, maps: Maps) -> NewMaps:
        for side in maps.shape[2:]:
            require_exact_size(side, self.stages, "this RotoConv")
        algorithm = self.chosen(maps)
        if self.reduce == "legacy":
            return self._laid_on_each_other(maps, algorithm)
        if self.reduce == "mean" and algorithm != "copies":  # K is linear: so is the mean
            filters = self._filters().mean(dim=0)
            return F.conv2d(maps, filters, self.bias, self.stage.stride, self.stage.padding)
        if self._has_kernel(maps, algorithm):
            return self._greatest(maps, algorithm)
        if algorithm == "fourier":
            answers, places = self._fourier(maps)
            # reduced as they lie in memory: many times faster
            return _to_maps(self._reduced(answers, self.bias), places)
        bias = None if self.bias is None else self.bias[:, None, None]
        return self._reduced(self.answers(maps, algorithm), bias)

    def _laid_on_each_other(self, maps: Maps, algorithm: str) -> NewMaps:
        """max_g K(g·x); by copies as published, one convolution of all of them."""
        rows, cols = maps.shape[2:]
        require(
            rows == cols or self.group.rotations < 4,
            f"the legacy form lays turned maps on each other, which {rows} x {cols} pixels do not "
            "allow; give square pictures.",
        )
        if algorithm == "copies":
            every = torch.cat([act_on_image(self.group, g, maps) for g in range(self.group.order)])
            answers = F.conv2d(every, self.weight, None, self.stage.stride, self.stage.padding)
            answers = answers.unflatten(0, (self.group.order, -1))
        else:
            aligned = enumerate(self.answers(maps, algorithm))
            answers = torch.stack([act_on_image(self.group, g, y) for g, y in aligned])
        return self._reduced(answers, None if self.bias is None else self.bias[:, None, None])

    def chosen(self, maps: Tensor) -> str:
        """The algorithm that runs: what was asked for, or by "auto" the fastest measured."""
        if self.algorithm != "auto":
            return self.algorithm
        narrow = maps.is_cuda and maps.shape[1] < NARROW
        return "bank" if narrow or self.group.order == 1 else "fourier"

    def answers(self, maps: Maps, algorithm: str) -> Answers:
        """y_g for every g, without the bias."""
        if algorithm == "copies":
            return self._copies(maps)
        if algorithm == "bank":
            return self._bank(maps)
        answers, places = self._fourier(maps)
        return torch.stack([_to_maps(answer, places) for answer in answers])

    def _copies(self, maps: Maps) -> Answers:
        stride, padding = self.stage.stride, self.stage.padding
        answers = [
            F.conv2d(act_on_image(self.group, g, maps), self.weight, None, stride, padding)
            for g in range(self.group.order)
        ]
        turned = zip(self.back, answers, strict=True)
        return torch.stack([act_on_image(self.group, g, y) for g, y in turned])

    def _bank(self, maps: Maps) -> Answers:
        filters = self._filters().flatten(0, 1)
        answers = F.conv2d(maps, filters, None, self.stage.stride, self.stage.padding)
        return answers.unflatten(1, (self.group.order, -1)).transpose(0, 1)

    def _filters(self) -> Float[Tensor, "group width in_width kernel kernel"]:
        """g⁻¹w for every g, w in the corner of zeros."""
        weight = self._extended_weight()
        return torch.stack([act_on_image(self.group, g, weight) for g in self.back])

    def _extended_weight(self) -> Float[Tensor, "width in_width kernel kernel"]:
        return F.pad(self.weight, (0, self.remainder, 0, self.remainder))

    def _fourier(
        self, maps: Maps
    ) -> tuple[Float[Tensor, "group window width"], tuple[int, int, int]]:
        """y_g at every window, and the windows' (batch, newrow, newcol)."""
        windows, places = self._windows(maps)
        weight = self._extended_weight().permute(2, 3, 1, 0).flatten(0, 1)  # (tap, i, o)
        windows, weight = mix(self.to_window, windows), mix(self.to_filter, weight)
        sizes = [dim * copies for dim, copies in self.blocks]
        parts = zip(self.blocks, windows.split(sizes), weight.split(sizes), strict=True)
        products = [P for block, x, w in parts for P in multiply_block(x, w, *block)]
        return mix(self.to_answers, torch.cat(products)), places

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

    def _greatest(self, maps: Maps, algorithm: str) -> NewMaps:
        """max_g y_g: products as the two algorithms have them, and kernels before and after."""
        from turnwise.kernels.roto_launch import BANK, greatest_answer, windows_to_rows

        maps = rounded_by_autocast(maps)
        if algorithm == "bank":
            windows, places = self._windows(maps)
            filters = self._filters().permute(3, 4, 2, 0, 1).flatten(0, 2).flatten(1)
            products, kernel = [windows.transpose(0, 1).flatten(1) @ filters], BANK
        else:
            kernel, stride, padding = self.stages[0]
            tokens = maps.permute(0, 2, 3, 1).contiguous()
            rows = windows_to_rows(tokens, self.group.name, kernel, stride, padding)
            products = [x @ w for x, w in zip(rows, self._block_filters(), strict=True)]
            newrows, newcols = (size_after(n, self.stages[0]) for n in maps.shape[2:])
            places = (len(maps), newrows, newcols)
        best, _ = greatest_answer(products, self.group.name, kernel, len(self.weight))
        return _to_maps(best if self.bias is None else best + self.bias.to(best), places)

    def _block_filters(self) -> list[Float[Tensor, "_ _"]]:
        """ŵ of each block, (j · i, a · o)."""
        weight = mix(self.to_filter, self._extended_weight().permute(2, 3, 1, 0).flatten(0, 1))
        parts = zip(self.blocks, weight.split([dim * n for dim, n in self.blocks]), strict=True)
        return [
            w.unflatten(0, block).flatten(1, 2).transpose(0, 1).flatten(1) for block, w in parts
        ]

    def _reduced(
        self, answers: Float[Tensor, "group *rest"], bias: Tensor | None
    ) -> Float[Tensor, "*rest"]:
        """A bias is the same for every g: the greatest and the mean may take it afterwards."""
        if self.reduce == "rms":
            whole = answers if bias is None else answers + bias
            wide = whole.to(torch.promote_types(whole.dtype, torch.float32))  # or squares overflow
            square = wide.square().mean(dim=0) + torch.finfo(wide.dtype).tiny  # 0 has no slope
            return square.sqrt().to(answers.dtype)
        # not amax: its gradient compares with the maximum, which a compiled graph may compute again
        # in another precision, and 0 / 0 is not a number
        reduced = answers.mean(dim=0) if self.reduce == "mean" else answers.max(dim=0).values
        return reduced if bias is None else reduced + bias.to(reduced)  # rounded by autocast, too

    def extra_repr(self) -> str:
        width, in_width = self.weight.shape[:2]
        kernel, stride, padding = self.stage
        return (
            f"{in_width}, {width}, {kernel}/{stride}/{padding} + {self.remainder}, "
            f"{self.group.name}, reduce={self.reduce!r}, algorithm={self.algorithm!r}"
        )


def _to_maps(values: Float[Tensor, "window width"], places: tuple[int, int, int]) -> NewMaps:
    """Windows back in their places, as maps in torch.channels_last."""
    return values.unflatten(0, places).permute(0, 3, 1, 2)


def _square(values: object) -> int:
    """The one number of a pair of equal ones."""
    pair = (values, values) if isinstance(values, int) else values
    ok = isinstance(pair, tuple) and len(pair) == 2 and pair[0] == pair[1]
    require(ok, f"a RotoConv takes square convolutions with padding in pixels, got {values}.")
    assert isinstance(pair, tuple)
    return int(pair[0])
