"""The block of a Performer: attention by features instead of the softmax, and an MLP.

    x ← x + drop(attention(norm(x), context))
    x ← x + mlp(norm(x))

An attention layer takes tokens (batch, token, width), a context (what it needs to know about
positions, which it may ignore), and `first_only`: whether only the first token's output is needed,
as in the last block.  A kernel is a module that computes positive features.

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; Horn et al. 2021,
          "Translational Equivariance in Kernelizable Attention" (sizes, options).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from turnwise.attention.dense import attend
from turnwise.attention.favor import (
    attend_by_favor,
    attend_by_features,
    favor_features,
    feature_count,
    orthogonal_projection,
)
from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible, require_known
from turnwise.kernels.device import is_eager_on_cpu, is_transformed
from turnwise.kernels.hashed_dropout import keep_scale, random_keep_mask

Tokens = Float[Tensor, "batch token width"]
Outputs = Float[Tensor, "batch query width"]
Heads = Float[Tensor, "batch head token dim"]
VARIANTS = ("exact", "tep-2021")


class RandomProjection(nn.Module):
    """The random rows of FAVOR+, drawn again on request.

    Draw number n is a function of (seed, n) alone, and both are stored with the weights, so a
    resumed run draws the same rows as an uninterrupted one.
    """

    rows: Tensor
    seed: Tensor
    draws: Tensor
    never_averaged = ("rows",)  # the mean of two draws is neither orthogonal nor of the same length

    def __init__(self, dim: int, *, fix_signs: bool = True, redrawn: bool = True) -> None:
        super().__init__()
        self.fix_signs, self.redrawn = fix_signs, redrawn
        self.register_buffer("rows", torch.empty(feature_count(dim), dim))
        self.register_buffer("seed", torch.randint(2**40, ()))  # follows torch.manual_seed
        self.register_buffer("draws", torch.tensor(0))
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Draw the next rows in place; a layer on the meta device has none."""
        if self.seed.is_meta:
            return
        generator = torch.Generator().manual_seed(int(self.seed) + int(self.draws))
        features, dim = self.rows.shape
        rows = orthogonal_projection(features, dim, generator, fix_signs=self.fix_signs)
        self.rows.copy_(rows)
        self.draws += 1


class FavorKernel(nn.Module):
    """Random features of queries and keys whose products estimate exp(q·k / √dim)."""

    def __init__(self, dim: int, variant: str = "exact", *, redrawn: bool = True) -> None:
        super().__init__()
        published = variant == "tep-2021"
        self.projection = RandomProjection(dim, fix_signs=not published, redrawn=redrawn)
        self.features = len(self.projection.rows)
        self.stabiliser = "published" if published else "sample"

    def forward(
        self, x: Float[Tensor, "*many dim"], of_keys: bool
    ) -> Float[Tensor, "*many feature"]:
        return favor_features(x, self.projection.rows, of_keys=of_keys, stabiliser=self.stabiliser)


class FixedKernel(nn.Module):
    """A deterministic feature map, channel by channel: see `attention.linear.KERNELS`."""

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name, self.features = name, dim

    def forward(self, x: Float[Tensor, "*many dim"], of_keys: bool) -> Float[Tensor, "*many dim"]:
        return KERNELS[self.name](x.to(torch.promote_types(x.dtype, torch.float32)))

    def extra_repr(self) -> str:
        return self.name


def make_kernel(
    name: str, dim: int, variant: str = "exact", *, redrawn: bool = True
) -> FavorKernel | FixedKernel:
    """Make a kernel by name: "favor", or one of `attention.linear.KERNELS`."""
    require_known(name, ("favor", *KERNELS), "kernel")
    require_known(variant, VARIANTS, "variant")
    return FavorKernel(dim, variant, redrawn=redrawn) if name == "favor" else FixedKernel(name, dim)


class Redraw(nn.Module):
    """Counts training steps and redraws every projection after `interval` of them; 0 is never.

    In the published variant a redraw comes one step late: `interval` 1 is every other step.  The
    redraw runs in a hook before the model (`before`), not inside it: a compiled model stays one
    graph, and new rows are written where a recorded graph reads them.  So run the backward pass
    before the next forward pass; a loss of two forward passes may mix two draws.
    """

    calls: Tensor

    def __init__(self, interval: int, variant: str = "exact") -> None:
        super().__init__()
        require(interval >= 0, f"redraw_interval = {interval} must be positive, or 0 for never.")
        self.interval = interval
        self.late = variant == "tep-2021"
        self.known: int | None = 0  # a copy of `calls`, which would synchronise with the device
        self.register_buffer("calls", torch.tensor(0))
        self.register_load_state_dict_post_hook(_forget_known)

    def before(self, model: nn.Module) -> RemovableHandle | None:
        """Redraw before each training step of the model, if it has anything to draw."""
        drawn = any(isinstance(m, RandomProjection) and m.redrawn for m in model.modules())
        hook = _redraw_before if drawn and self.interval else None
        return model.register_forward_pre_hook(hook) if hook else None

    def forward(self, model: nn.Module) -> None:
        """Count one step; at the end of the interval redraw all projections of the model."""
        if not self.interval:
            return
        self.known = int(self.calls) if self.known is None else self.known
        if self.known >= self.interval:
            for module in model.modules():
                if isinstance(module, RandomProjection) and module.redrawn:
                    module.draw()
            self.calls.zero_()
            self.known = 0
            if self.late:
                return
        self.calls += 1
        self.known += 1

    def extra_repr(self) -> str:
        return f"interval={self.interval}"


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _redraw_before(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Redraw in training mode; torch.func and forward-mode differentiation see fixed rows."""
    if model.training and not is_transformed():
        model.redraw(model)  # type: ignore[operator]


def _forget_known(redraw: nn.Module, keys: object) -> None:
    """Read the counter again after it was loaded."""
    redraw.known = None  # type: ignore[assignment]


def query_tokens(tokens: Tokens, first_only: bool) -> Outputs:
    """Return the tokens whose outputs are needed."""
    return tokens[:, :1] if first_only else tokens


def with_zero_gradient(x: Heads, *unused: Float[Tensor, "..."]) -> Heads:
    """Return x with a zero gradient for unused parameters, which distributed training waits for."""
    return x + 0 * sum(weight.sum() for weight in unused)


def split_heads(x: Tokens, heads: int) -> Heads:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Heads) -> Tokens:
    return x.transpose(1, 2).flatten(2)


class ContentAttention(nn.Module):
    """Attention without positions; kernel=None is the softmax."""

    def __init__(
        self,
        width: int,
        heads: int,
        kernel: FavorKernel | FixedKernel | None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.heads, self.kernel, self.backend = heads, kernel, backend
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        self.to_value, self.to_output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_only: bool = False
    ) -> Outputs:
        query = split_heads(self.to_query(query_tokens(tokens, first_only)), self.heads)
        key, value = (split_heads(to(tokens), self.heads) for to in (self.to_key, self.to_value))
        mixed = mix_by_kernel(self.kernel, query, key, value, self.backend)
        return self.to_output(merge_heads(mixed))


def mix_by_kernel(
    kernel: nn.Module | None,
    query: Heads,
    key: Float[Tensor, "batch head source dim"],
    value: Float[Tensor, "batch head source dim_out"],
    backend: str,
) -> Float[Tensor, "batch head token dim_out"]:
    """Attend by the kernel's features, or by the softmax if there is no kernel."""
    if kernel is None:
        return attend(query, key, value, backend=backend)
    if isinstance(kernel, FavorKernel) and kernel.stabiliser == "sample" and backend == "auto":
        return attend_by_favor(query, key, value, kernel.projection.rows)
    features = kernel(query, of_keys=False), kernel(key, of_keys=True)
    return attend_by_features(*features, value, backend=backend)


class HashedDropout(nn.Module):
    """`nn.Dropout` with cheaper random numbers on a CPU: 16 bits of a hash for each entry.

    torch draws a double for each entry, one after the other, which made a training step of the
    Performers 1.19 to 1.24 times as long (benchmarks/performer_tricks).  The rate is rounded to
    1/65536 and the scale follows the rounded rate, so the mean is exact.

    Paper:    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
              Overfitting".
    """

    def __init__(self, rate: float, name: str = "dropout") -> None:
        super().__init__()
        require(0 <= rate < 1, f"{name} = {rate} must be from 0 to below 1.")
        self.rate = rate

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.rate == 0:
            return x
        if not is_eager_on_cpu(x):
            return F.dropout(x, self.rate)
        mask = random_keep_mask(x.shape, self.rate, x.dtype)
        return x * mask.mul_(keep_scale(self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class MLP(nn.Module):
    """Two linear layers with GELU and dropout between them: W₂ drop(gelu(W₁ x + b₁)) + b₂."""

    def __init__(self, width: int, hidden: int, dropout: nn.Module) -> None:
        super().__init__()
        self.spread, self.gather = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "*many width"]) -> Float[Tensor, "*many width"]:
        return self.gather(self.dropout(F.gelu(self.spread(x))))


class PerformerBlock(nn.Module):
    """Attention and an MLP, each with a norm before it and a residual connection."""

    def __init__(
        self,
        width: int,
        attention: nn.Module,
        *,
        attention_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        variant: str = "exact",
    ) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.dropout: nn.Module = HashedDropout(attention_dropout, "attention_dropout")
        drop: nn.Module = HashedDropout(ff_dropout, "ff_dropout")
        if variant == "tep-2021":
            self.dropout, drop = nn.Dropout(attention_dropout), nn.Dropout(ff_dropout)
        self.mlp = MLP(width, 4 * width, drop)

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_only: bool = False
    ) -> Outputs:
        """Return the new tokens, or with `first_only` the first one alone."""
        mixed = self.attention(self.norm_attention(tokens), context, first_only)
        tokens = query_tokens(tokens, first_only) + self.dropout(mixed)
        return tokens + self.mlp(self.norm_mlp(tokens))
