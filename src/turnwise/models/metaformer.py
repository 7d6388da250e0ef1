"""PoolFormers and MetaFormers, and their twins that turn with the picture (Roto-MetaFormers).

Convolutions shrink the picture four times; after each, blocks of a mixer without positions and a
perceptron.  Only the convolutions know a direction: in the twins they are RotoConvs, or, for the
first `oriented` stages, convolutions on the group, whose maps keep a channel for each pose.

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision"; the twins Roto-
          MetaFormer (M. Heinrich, BVM 2025).
Departs:  no positions before attention, as in Roto-MetaFormer; its RotoConv does not turn back,
          which is here reduce="legacy" (layers/roto_conv.py).
"""

from dataclasses import dataclass
from itertools import count

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size, size_after
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.layers.roto.conv import ALGORITHMS, REDUCTIONS
from turnwise.layers.roto.metaformer import (
    NORMS,
    AttentionMixer,
    MetaFormerBlock,
    PoolMixer,
    PoseNorm,
    start_small,
)
from turnwise.models.convolutions import (
    ConvMaker,
    register_twins,
    require_oriented,
    require_room,
)
from turnwise.models.registry import Task

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
class MetaFormerDesign:
    """What a user may choose; the published models are eight of these.

    depths:      blocks of each stage, and `widths` their channels
    mixers:      a letter for each stage: p pooling, a attention, w attention in a window, i none
    norm:        "picture" (PoolFormer) or "channel" (MetaFormer)
    geometry:    kernel/stride/padding of the convolutions: "published" 7/4/2 and 3/2/1, where
                 RotoConv is extended to be exact at every size; "even" 8/4/2 and 4/2/1; "patch"
                 4/4/0 and 2/2/0
    roto:        equivariant convolutions; `reduce` and `algorithm` are theirs (layers/roto_conv.py)
    oriented:    how many of the first stages keep a channel for each pose (layers/oriented.py),
                 within the same width and with |G| times fewer weights; they cannot attend
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    mixers: str
    norm: str = "channel"
    geometry: str = "published"
    roto: bool = False
    reduce: str = "max"
    algorithm: str = "auto"
    oriented: int = 0
    layer_scale: float = 1e-5
    drop_path: float = 0.0
    head_width: int = 32
    window: int = 5

    def __post_init__(self) -> None:
        require_known(self.geometry, GEOMETRIES, "geometry")
        require_known(self.norm, NORMS, "norm")
        require_known(self.reduce, REDUCTIONS, "reduction")
        require_known(self.algorithm, ALGORITHMS, "algorithm")
        for letter in self.mixers:
            require_known(letter, MIXERS, "mixer")
        counts = {len(self.depths), len(self.widths), len(self.mixers)}
        require(
            len(counts) == 1 and all(n > 0 for n in (*counts, *self.depths, *self.widths)),
            f"depths = {self.depths}, widths = {self.widths} and mixers = {self.mixers!r} must "
            "have one entry for each stage, and be positive.",
        )
        require_oriented(self.oriented, self.depths, self.roto, self.reduce)
        require(
            set(self.mixers[: self.oriented]) <= set("pi"),
            f"oriented = {self.oriented} keeps poses in stages with mixers "
            f"{self.mixers[: self.oriented]!r}, but attention mixes them; use p or i there, or "
            "fewer oriented stages.",
        )
        require(0 <= self.drop_path < 1, f"drop_path = {self.drop_path} must be 0 to below 1.")


class MetaFormer(nn.Module):
    """Stages of a convolution and blocks, norm, mean over the pixels, a linear read-out."""

    def __init__(self, task: Task, design: MetaFormerDesign) -> None:
        super().__init__()
        maker = ConvMaker(
            task.group, design.roto, design.reduce, design.algorithm,
            extend=design.geometry == "published",
        )  # fmt: skip
        self.group, self.design = maker.promise, design
        first, later = GEOMETRIES[design.geometry]
        steps = (first, *[later] * (len(design.widths) - 1))
        self.what = f"the geometry {design.geometry!r} of this network"
        if design.roto and not maker.extend:
            require_exact_size(task.image_size, steps, self.what)
        require_room(task.image_size, steps, self.what)
        self.preprocess = Normalise(task.in_chans)
        last = max(1, sum(design.depths) - 1)
        rates = (design.drop_path * number / last for number in count())
        size, old, made = task.image_size, task.in_chans, list[Stage]()
        self.embeddings, self.stages = nn.ModuleList(), nn.ModuleList()
        shapes = zip(steps, design.widths, design.depths, design.mixers, strict=True)
        for number, (step, width, depth, letter) in enumerate(shapes):
            kept = (0 < number <= design.oriented, number < design.oriented)
            self.embeddings.append(maker.conv(old, width, step, size, oriented=kept))
            group = self.group if kept[1] else None
            blocks = [_block(design, width, letter, next(rates), group) for _ in range(depth)]
            self.stages.append(nn.Sequential(*blocks))
            made.append(maker.sampling(step, size))
            size, old = size_after(size, step), width
        self.sampling = tuple(made) if design.roto else ()  # without a promise every size is right
        self.norm = PoseNorm(design.norm, old)
        self.head = nn.Linear(old, task.num_classes)
        start_small(self.head)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""
        return exact_sizes(size, self.sampling)

    def forward_features(self, images: Images) -> Maps:
        """A map that turns with the picture, if the network is equivariant; "legacy" stays."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, self.what)
        maps = images
        for embed, blocks in zip(self.embeddings, self.stages, strict=True):
            maps = blocks(embed(maps))
        return self.norm(maps)

    def forward_head(self, maps: Maps) -> Float[Tensor, "batch num_classes"]:
        return self.head(maps.mean(dim=(2, 3)))

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _block(
    design: MetaFormerDesign, width: int, letter: str, rate: float, oriented: PlanarGroup | None
) -> MetaFormerBlock:
    mixer: nn.Module
    if letter == "p":
        mixer = PoolMixer()
    elif letter == "i":
        mixer = nn.Identity()
    else:
        mixer = AttentionMixer(width, design.head_width, design.window if letter == "w" else 0)
    return MetaFormerBlock(
        width, mixer, norm=design.norm, layer_scale=design.layer_scale, drop_path=rate,
        oriented=oriented,
    )  # fmt: skip


_SMALL, _MEDIUM = (64, 128, 320, 512), (96, 192, 384, 768)
_S12, _S24, _S36, _M48 = (2, 2, 6, 2), (4, 4, 12, 4), (6, 6, 18, 6), (8, 8, 24, 8)

DESIGNS = {
    "poolformer_s12": MetaFormerDesign(_S12, _SMALL, "pppp", "picture"),
    "poolformer_s24": MetaFormerDesign(_S24, _SMALL, "pppp", "picture"),
    "poolformer_s36": MetaFormerDesign(_S36, _SMALL, "pppp", "picture", layer_scale=1e-6),
    "poolformer_m36": MetaFormerDesign(_S36, _MEDIUM, "pppp", "picture", layer_scale=1e-6),
    "poolformer_m48": MetaFormerDesign(_M48, _MEDIUM, "pppp", "picture", layer_scale=1e-6),
    "metaformer_s12_pppa": MetaFormerDesign(_S12, _SMALL, "pppa"),
    "metaformer_s12_ppaa": MetaFormerDesign(_S12, _SMALL, "ppaa"),
    "metaformer_s12_224": MetaFormerDesign(_S12, _SMALL, "aaaa"),
}

for _name, _design in DESIGNS.items():
    _family, _, _size = _name.partition("_")
    _words = ", ".join(dict.fromkeys(MIXERS[letter] for letter in _design.mixers))
    _title = {"poolformer": "PoolFormer", "metaformer": "MetaFormer"}[_family]
    _stages = " then ".join(_words.split(", "))
    register_twins(
        _name, _design, MetaFormer, f"{_title}, {sum(_design.depths)} blocks of {_stages}."
    )
