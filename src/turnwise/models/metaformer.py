"""PoolFormers and MetaFormers, and their equivariant variants (Roto-MetaFormers).

Convolutions reduce the image four times; after each come blocks of a token mixer without positions
and an MLP.  Only the convolutions have a direction: in the roto_ variants they are RotoConvs, or,
in the first `oriented` stages, group convolutions, whose features keep the group axis.

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision"; Roto-MetaFormer
          (M. Heinrich, BVM 2025).
Departs:  no positions before attention, as in Roto-MetaFormer; its RotoConv does not rotate the
          responses back, which is reduce="legacy" here (layers/roto/conv.py).
"""

from dataclasses import dataclass
from itertools import count

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size, size_after
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.layers.roto.metaformer import (
    NORMS,
    AttentionMixer,
    MetaFormerBlock,
    MetaFormerNorm,
    PoolMixer,
    initialise_small,
)
from turnwise.models.contract import ImageModel
from turnwise.models.convolutions import (
    ConvMaker,
    RotoDesign,
    register_both,
    require_large_enough,
)
from turnwise.models.registry import Task
from turnwise.options import option

# the first convolution, and those between stages
GEOMETRIES = {
    "published": (Stage(7, 4, 2), Stage(3, 2, 1)),
    "even": (Stage(8, 4, 2), Stage(4, 2, 1)),
    "patch": (Stage(4, 4, 0), Stage(2, 2, 0)),
}
MIXERS = {"p": "pooling", "a": "attention", "w": "attention in a window", "i": "none"}

Images = Float[Tensor, "batch channel row col"]
Maps = Float[Tensor, "batch width newrow newcol"]


@dataclass(frozen=True)
class MetaFormerDesign(RotoDesign):
    """The options of the MetaFormers."""

    depths: tuple[int, ...] = option((2, 2, 6, 2), "blocks of each stage", at_least=1, at_most=256)
    widths: tuple[int, ...] = option(
        (64, 128, 320, 512), "channels of each stage", at_least=1, at_most=16384
    )
    mixers: str = option(
        "pppp", "a letter per stage: p pooling, a attention, w attention in a window, i none"
    )
    norm: str = option(
        "channel", "picture: over the whole image (PoolFormer); channel: per pixel (MetaFormer)",
        choices=NORMS,
    )  # fmt: skip
    geometry: str = option(
        "published", "kernel/stride/padding of the convolutions: published 7/4/2 and 3/2/1, "
        "exact at every size; even 8/4/2 and 4/2/1; patch 4/4/0 and 2/2/0", choices=GEOMETRIES,
    )  # fmt: skip
    layer_scale: float = option(1e-5, "initial layer scale", at_least=0, at_most=1e6)
    drop_path: float = option(
        0.0, "highest drop-path rate, reached in the last block", at_least=0, below=1,
        changes_output=False,
    )  # fmt: skip
    head_width: int = option(32, "channels of an attention head", at_least=1, at_most=16384)
    window: int = option(5, "side of the window of mixer w", at_least=1, at_most=1023)
    qk_norm: bool = option(
        True, "normalise queries and keys of mixers a and w (RMSNorm), which keeps training in "
        "bfloat16 stable; published weights have no such norm", absent=False,
    )  # fmt: skip

    def validate(self) -> None:
        for letter in self.mixers:
            require_known(letter, MIXERS, "mixer")
        counts = {len(self.depths), len(self.widths), len(self.mixers)}
        require(
            len(counts) == 1 and counts != {0},
            f"depths = {self.depths}, widths = {self.widths} and mixers = {self.mixers!r} must "
            "have one entry per stage.",
        )
        self.require_oriented(self.depths)
        require(
            set(self.mixers[: self.oriented]) <= set("pi"),
            f"oriented = {self.oriented} keeps the group axis in stages with mixers "
            f"{self.mixers[: self.oriented]!r}, but attention would mix it; use p or i there, or "
            "fewer oriented stages.",
        )


class MetaFormer(ImageModel):
    """Stages of a convolution and blocks, norm, mean over the pixels, a linear classifier."""

    def __init__(self, task: Task, design: MetaFormerDesign) -> None:
        super().__init__()
        maker = ConvMaker.of(task.group, design, extend=design.geometry == "published")
        self.group, self.design, self.num_classes = maker.exact_group, design, task.num_classes
        self.num_features = design.widths[-1]
        first, later = GEOMETRIES[design.geometry]
        steps = (first, *[later] * (len(design.widths) - 1))
        self.what = f"the geometry {design.geometry!r} of this network"
        if design.roto and not maker.extend:
            require_exact_size(task.image_size, steps, self.what)
        require_large_enough(task.image_size, steps, self.what)
        self.preprocess = Normalise(task.in_chans)
        last = max(1, sum(design.depths) - 1)
        rates = (design.drop_path * number / last for number in count())
        size, old, made = task.image_size, task.in_chans, list[Stage]()
        self.embeddings, self.stages = nn.ModuleList(), nn.ModuleList()
        shapes = zip(steps, design.widths, design.depths, design.mixers, strict=True)
        for number, (step, width, depth, letter) in enumerate(shapes):
            oriented = (0 < number <= design.oriented, number < design.oriented)
            self.embeddings.append(maker.conv(old, width, step, size, oriented=oriented))
            group = self.group if oriented[1] else None
            blocks = [_block(design, width, letter, next(rates), group) for _ in range(depth)]
            self.stages.append(nn.Sequential(*blocks))
            made.append(maker.sampling(step, size))
            size, old = size_after(size, step), width
        self.sampling = tuple(made) if design.roto else ()  # without symmetry every size is exact
        self.norm = MetaFormerNorm(design.norm, old)
        self.head = self.make_head(task.num_classes)

    def make_head(self, num_classes: int) -> nn.Module:
        if num_classes == 0:
            return nn.Identity()
        head = nn.Linear(self.num_features, num_classes)
        initialise_small(head)
        return head

    def exact_size(self, size: int) -> tuple[int, ...]:
        return exact_sizes(size, self.sampling)

    def forward_features(self, images: Images) -> Maps:
        """Return maps that rotate with the image if the network is equivariant."""
        self.require_images(images, self.what)
        maps = images
        for embed, blocks in zip(self.embeddings, self.stages, strict=True):
            maps = blocks(embed(maps))
        return self.norm(maps)

    def pool(self, features: Maps) -> Float[Tensor, "batch width"]:
        return features.mean(dim=(2, 3))


def _block(
    design: MetaFormerDesign, width: int, letter: str, rate: float, oriented: PlanarGroup | None
) -> MetaFormerBlock:
    mixer: nn.Module
    if letter == "p":
        mixer = PoolMixer()
    elif letter == "i":
        mixer = nn.Identity()
    else:
        window = design.window if letter == "w" else 0
        mixer = AttentionMixer(width, design.head_width, window, qk_norm=design.qk_norm)
    return MetaFormerBlock(
        width, mixer, norm=design.norm, layer_scale=design.layer_scale, drop_path=rate,
        oriented=oriented,
    )  # fmt: skip


_SMALL, _MEDIUM = (64, 128, 320, 512), (96, 192, 384, 768)
_S12, _S24, _S36, _M48 = (2, 2, 6, 2), (4, 4, 12, 4), (6, 6, 18, 6), (8, 8, 24, 8)


def _poolformer(depths: tuple[int, ...], widths: tuple[int, ...], scale: float) -> MetaFormerDesign:
    return MetaFormerDesign(depths=depths, widths=widths, norm="picture", layer_scale=scale)


DESIGNS = {
    "poolformer_s12": _poolformer(_S12, _SMALL, 1e-5),
    "poolformer_s24": _poolformer(_S24, _SMALL, 1e-5),
    "poolformer_s36": _poolformer(_S36, _SMALL, 1e-6),
    "poolformer_m36": _poolformer(_S36, _MEDIUM, 1e-6),
    "poolformer_m48": _poolformer(_M48, _MEDIUM, 1e-6),
    "metaformer_s12_pppa": MetaFormerDesign(mixers="pppa"),
    "metaformer_s12_ppaa": MetaFormerDesign(mixers="ppaa"),
    "metaformer_s12_224": MetaFormerDesign(mixers="aaaa"),
}

for _name, _design in DESIGNS.items():
    _title = "PoolFormer" if _name.startswith("pool") else "MetaFormer"
    _mixers = " then ".join(dict.fromkeys(MIXERS[letter] for letter in _design.mixers))
    _words = f"{_title}, {sum(_design.depths)} blocks of {_mixers}."
    register_both(_name, _design, MetaFormer, _words)
