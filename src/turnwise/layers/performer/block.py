"""The block of a Performer: attention by features in the place of the softmax, and a perceptron.

x <- x + drop(attention(norm(x), context))
x <- x + mlp(norm(x))

An attention is a part that takes tokens (batch, token, width), a context, which is what it is told
about positions and may ignore, and whether the first token asks alone: of the last block nothing
else is read.  A kernel is a part that makes positive features.

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; Horn et al. 2021,
          "Translational Equivariance in Kernelizable Attention" (sizes, options).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from turnwise.attention.dense import attend
from turnwise.attention.favor import (
    attend_by_features,
    favor_features,
    feature_count,
    orthogonal_projection,
)
from turnwise.attention.favor_streaming import attend_by_favor
from turnwise.attention.lean import is_transformed
from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible, require_known
from turnwise.layers.performer.dropout import Dropout
from turnwise.layers.performer.mlp import MLP
from turnwise.layers.performer.token_linear import TokenLinear

Tokens = Float[Tensor, "batch token width"]
Answers = Float[Tensor, "batch asking width"]
Heads = Float[Tensor, "batch head token dim"]
Linear = Callable[[int, int], nn.Module]
VARIANTS = ("exact", "tep-2021")


def linear_of(variant: str) -> Linear:
    """The linear maps of a variant: the published ones are torch's own."""
    return nn.Linear if variant == "tep-2021" else TokenLinear


class RandomProjection(nn.Module):
    """The random rows of FAVOR+, drawn again on request.

    Draw number n is a function of (seed, n) alone, and both are kept with the weights: a run that
    is resumed draws what it would have drawn.
    """

    rows: Tensor
    seed: Tensor
    draws: Tensor
    never_averaged = ("rows",)  # rows of two draws on average are neither orthogonal nor as long

    def __init__(self, dim: int, *, fix_signs: bool = True, redrawn: bool = True) -> None:
        super().__init__()
        self.fix_signs, self.redrawn = fix_signs, redrawn
        self.register_buffer("rows", torch.empty(feature_count(dim), dim))
        self.register_buffer("seed", torch.randint(2**40, ()))  # follows torch.manual_seed
        self.register_buffer("draws", torch.tensor(0))
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """The next rows, in place; none where the layer was made without memory."""
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
    """A feature map without randomness, channel by channel: see `attention.linear.KERNELS`."""

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
    """ "favor", or one of `attention.linear.KERNELS`."""
    require_known(name, ("favor", *KERNELS), "kernel")
    require_known(variant, VARIANTS, "variant")
    return FavorKernel(dim, variant, redrawn=redrawn) if name == "favor" else FixedKernel(name, dim)


class Redraw(nn.Module):
    """Counts training steps, and has every projection drawn again after `interval` of them.

    0 is never.  As published, a redraw comes one step late, so `interval` 1 is every other step.
    It stands before the model and not in it (`before`): a compiled model stays one graph, and new
    rows are written where a recorded graph reads the old ones.  So a backward pass must come before
    the next call: a loss of two calls may have new rows in one of them.
    """

    calls: Tensor

    def __init__(self, interval: int, variant: str = "exact") -> None:
        super().__init__()
        require(interval >= 0, f"redraw_interval = {interval} must be positive, or 0 for never.")
        self.interval = interval
        self.late = variant == "tep-2021"
        self.known: int | None = 0  # `calls`, which would make the host wait for the device
        self.register_buffer("calls", torch.tensor(0))
        self.register_load_state_dict_post_hook(_forget)

    def before(self, model: nn.Module) -> RemovableHandle | None:
        """From now on redraw before each call in training, if the model has anything to draw."""
        drawn = any(isinstance(m, RandomProjection) and m.redrawn for m in model.modules())
        hook = _redraw_before if drawn and self.interval else None
        return model.register_forward_pre_hook(hook) if hook else None

    def forward(self, trunk: nn.Module) -> None:
        """One more step; at the end of the interval all of `trunk` is drawn again."""
        if not self.interval:
            return
        self.known = int(self.calls) if self.known is None else self.known
        if self.known >= self.interval:
            for module in trunk.modules():
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
    """Goes by the flag, which trainers set without a word to the model.

    torch.func and forward differentiation, which let nothing be counted, see the same rows always.
    """
    if model.training and not is_transformed():
        model.redraw(model)  # type: ignore[operator]


def _forget(redraw: nn.Module, keys: object) -> None:
    """The counter was loaded."""
    redraw.known = None  # type: ignore[assignment]


def made_again(layer: nn.Module, mix: Callable[..., Heads], *inputs: Float[Tensor, "..."]) -> Heads:
    """mix(*inputs); in training nothing of it is kept, and the backward pass makes it again.

    For what is cheap to make and large to keep, such as features.  Nothing in it may be random:
    redraws come between steps.
    """
    if not layer.training or not torch.is_grad_enabled() or is_transformed():  # which cannot
        return mix(*inputs)
    if torch.compiler.is_compiling():
        return checkpoint(mix, *inputs, use_reentrant=False, preserve_rng_state=False)
    before = [buffer._version for buffer in layer.buffers()]

    def as_before(*inputs: Tensor) -> Heads:
        if before != [buffer._version for buffer in layer.buffers()]:
            raise RuntimeError(
                "random features were drawn anew between a call and its backward pass; go back "
                "before the model is called again, or set redraw_interval=0."
            )
        return mix(*inputs)

    return checkpoint(as_before, *inputs, use_reentrant=False, preserve_rng_state=False)


def those_who_ask(tokens: Tokens, first_alone: bool) -> Answers:
    return tokens[:, :1] if first_alone else tokens


def kept_in_graph(x: Heads, *unused: Float[Tensor, "..."]) -> Heads:
    """x, with a gradient of 0 for weights that it does not use: several processes wait for all."""
    return x + 0 * sum(weight.sum() for weight in unused)


def split_heads(x: Tokens, heads: int) -> Heads:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Heads) -> Tokens:
    return x.transpose(1, 2).flatten(2)


class ContentAttention(nn.Module):
    """Attention that looks at contents alone; kernel=None is the softmax itself."""

    def __init__(
        self,
        width: int,
        heads: int,
        kernel: FavorKernel | FixedKernel | None,
        backend: str = "auto",
        linear: Linear = TokenLinear,
    ) -> None:
        super().__init__()
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.heads, self.kernel, self.backend = heads, kernel, backend
        self.to_query, self.to_key = linear(width, width), linear(width, width)
        self.to_value, self.to_output = linear(width, width), linear(width, width)

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_alone: bool = False
    ) -> Answers:
        query = split_heads(self.to_query(those_who_ask(tokens, first_alone)), self.heads)
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
    """Attention by the kernel's features, or by the softmax where there is none."""
    if kernel is None:
        return attend(query, key, value, backend=backend)
    if isinstance(kernel, FavorKernel) and kernel.stabiliser == "sample" and backend == "auto":
        return attend_by_favor(query, key, value, kernel.projection.rows)
    features = kernel(query, of_keys=False), kernel(key, of_keys=True)
    return attend_by_features(*features, value, backend=backend)


class PerformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each normed before and added to what it changes."""

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
        self.dropout: nn.Module = Dropout(attention_dropout, "attention_dropout")
        drop: nn.Module = Dropout(ff_dropout, "ff_dropout")
        if published := variant == "tep-2021":  # in torch's own layers
            self.dropout, drop = nn.Dropout(attention_dropout), nn.Dropout(ff_dropout)
        backend = "plain" if published else "auto"
        self.mlp = MLP(width, 4 * width, drop, backend=backend)

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_alone: bool = False
    ) -> Answers:
        """The tokens, or the first alone, after they have heard from all."""
        heard = self.attention(self.norm_attention(tokens), context, first_alone)
        asking = those_who_ask(tokens, first_alone) + self.dropout(heard)
        return asking + self.mlp(self.norm_mlp(asking))
