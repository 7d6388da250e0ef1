"""What PoolFormer and Roto-MetaFormer call the parameters of our MetaFormers: both the same.

Their list `network` holds stages and, between them, the convolutions that shrink: stage n is
number 2n, the convolution before it number 2n − 1; the first convolution is `patch_embed`.
"""

from turnwise.models.importing.checkpoints import Counterpart
from turnwise.models.metaformer import MetaFormer

Counterparts = dict[str, Counterpart]

MIXER = {
    "mixer.attention.to_query_key_value": ("token_mixer.qkv", ("weight",)),
    "mixer.attention.to_output": ("token_mixer.proj", ("weight", "bias")),
}
BLOCK = {
    "norm_mixer": ("norm1", ("weight", "bias")),
    "norm_mlp": ("norm2", ("weight", "bias")),
    "mlp.0": ("mlp.fc1", ("weight", "bias")),
    "mlp.2": ("mlp.fc2", ("weight", "bias")),
}
SCALES = {"scale_mixer": "layer_scale_1", "scale_mlp": "layer_scale_2"}


def is_buffer(key: str) -> bool:
    """Whether the key holds no weights: their files keep nothing else."""
    return False


def convolution(stage: int) -> str:
    """Their name of the convolution before a stage."""
    return "patch_embed.proj" if stage == 0 else f"network.{2 * stage - 1}.proj"


def block(stage: int, number: int) -> str:
    """Their name of a block of a stage."""
    return f"network.{2 * stage}.{number}"


def _both(ours: str, theirs: str, parts: tuple[str, ...] = ("weight", "bias")) -> Counterparts:
    return {f"{ours}.{part}": Counterpart(f"{theirs}.{part}") for part in parts}


def _block(ours: str, theirs: str, attends: bool) -> Counterparts:
    pairs = {f"{ours}.{a}": Counterpart(f"{theirs}.{b}") for a, b in SCALES.items()}
    for name, (other, parts) in (BLOCK | (MIXER if attends else {})).items():
        pairs |= _both(f"{ours}.{name}", f"{theirs}.{other}", parts)
    return pairs


def counterparts_of(model: MetaFormer) -> Counterparts:
    """For each of our parameters theirs."""
    design = model.design
    pairs = _both("norm", "norm") | _both("head", "head")
    for stage, (depth, letter) in enumerate(zip(design.depths, design.mixers, strict=True)):
        pairs |= _both(f"embeddings.{stage}", convolution(stage))
        for number in range(depth):
            ours = f"stages.{stage}.{number}"
            pairs |= _block(ours, block(stage, number), attends=letter in "aw")
    return pairs
