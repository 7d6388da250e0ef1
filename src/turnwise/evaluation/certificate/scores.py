"""What a model answers, in one precision and a chunk at a time, and how far two answers differ."""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError
from turnwise.evaluation.rotations import device_of
from turnwise.groups.equivariance import ratio
from turnwise.inference.exported import FileModel
from turnwise.inference.precision import full_precision

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

Images = Float[Tensor, "picture channel row col"]
Scores = Float[Tensor, "picture num_classes"]
Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Answerer:
    """Pictures in [0, 1] to scores: `chunk` pictures at a time are moved, answered and forgotten.

    A file that was exported for a fixed number of pictures gets that many, the last one repeated.
    """

    model: nn.Module
    precision: torch.dtype
    chunk: int

    @torch.no_grad()
    @full_precision()
    def __call__(self, images: Images, move: Move | None = None) -> Scores:
        """The scores in float64, on the CPU, of the pictures after `move`; none is written on."""
        batch = self.model.batch if isinstance(self.model, FileModel) else None
        answers = []
        for part in images.split(batch or self.chunk):
            # moved in float32 or finer: places of pixels cannot be told apart in bfloat16
            fine = torch.promote_types(self.precision, torch.float32)
            seen = part.to(device_of(self.model), fine)
            seen = (seen if move is None else move(seen)).to(self.precision, copy=True)
            filled = seen if batch is None else _filled(seen, batch)
            answers.append(_scores(self.model(self.prepare(filled)), len(filled))[: len(part)])
        return torch.cat(answers).double().cpu()

    def prepare(self, images: Tensor) -> Tensor:
        """What the model expects, or the pictures as they are if it does not say."""
        prepare = getattr(self.model, "preprocess", None)
        return images if prepare is None else prepare(images)


def answerer(model: nn.Module, precision: str, chunk: int) -> Answerer:
    """A copy of the model in this precision, with dropout off; a file's model is used as it is."""
    kind = PRECISIONS[precision]
    if isinstance(model, FileModel):
        assert model.precision == precision, "a file is asked in its own precision"
        return Answerer(model, kind, chunk)
    return Answerer(copy.deepcopy(model).to(kind).eval(), kind, chunk)


def own_precisions(model: nn.Module, asked: tuple[str, ...]) -> tuple[str, ...]:
    """What is asked for, finest first; a file has one precision, whatever is asked."""
    if isinstance(model, FileModel):
        return (model.precision,)
    return tuple(precision for precision in PRECISIONS if precision in asked)


def _filled(images: Tensor, count: int) -> Tensor:
    return torch.cat([images, images[-1:].expand(count - len(images), *images.shape[1:])])


def _scores(answer: object, pictures: int) -> Tensor:
    if isinstance(answer, Tensor) and answer.ndim == 2 and len(answer) == pictures:
        return answer
    shape = f"shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
    raise InputError(
        f"the model answers {pictures} pictures with {shape}; a classifier that can be certified "
        "gives one row of scores for each picture, (picture, class)."
    )


def relative_change(before: Tensor, after: Tensor) -> float:
    """max |after − before| / max |before|; infinite where something is not a number."""
    return ratio(float((after - before).abs().max()), float(before.abs().max()))


def score_change(before: Scores, after: Scores) -> float:
    """max |after − before| over the spread of the scores, max |before − its picture's mean|.

    What all classes have in common the softmax does not see, so it must not hide what they do not.
    """
    common = before.mean(dim=1, keepdim=True) if before.shape[1] > 1 else torch.zeros(())
    return ratio(float((after - before).abs().max()), float((before - common).abs().max()))


def probabilities(scores: Scores) -> Float[Tensor, "picture atleast2"]:
    """Softmax; one score alone is the log odds of yes against no."""
    if scores.shape[1] > 1:
        return scores.softmax(dim=-1)
    yes = scores.sigmoid()
    return torch.cat([1 - yes, yes], dim=-1)


@dataclass(frozen=True)
class Decisions:
    """What a move does to decisions, p and p′ being the probabilities before and after it.

    agreement    the share of pictures whose decision stays
    probability  max |p′ − p| over pictures and classes
    margin       the smallest lead of the old decision over every other class after the move:
                 min p′(decision) − p′(other), below 0 where a decision changed
    worst        the picture whose probabilities moved most
    """

    agreement: float
    probability: float
    margin: float
    worst: int


def compare_decisions(before: Scores, after: Scores) -> Decisions:
    p, moved = probabilities(before), probabilities(after)
    by_picture = (moved - p).abs().amax(dim=-1)
    return Decisions(
        agreement=float((moved.argmax(-1) == p.argmax(-1)).double().mean()),
        probability=float(by_picture.max()),
        margin=float(leads(p, moved).min()),
        worst=int(by_picture.argmax()),
    )


def leads(
    p: Float[Tensor, "picture class"], moved: Float[Tensor, "picture class"]
) -> Float[Tensor, " picture"]:
    """How far each old decision is ahead of every other class, after the move."""
    decision = p.argmax(dim=-1, keepdim=True)
    others = moved.scatter(-1, decision, -math.inf).amax(dim=-1)
    return moved.gather(-1, decision).squeeze(-1) - others


def with_noise(images: Images) -> Images:
    """Four fifths of the pictures, and a fifth of noise, so that nothing is blank."""
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    return 0.8 * images + 0.2 * noise.to(images)


def hash_weights(model: nn.Module) -> str:
    """One hash over the names and bytes of all weights and buffers; of a file, over its bytes."""
    if isinstance(model, FileModel):
        return model.sha256
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def hash_images(images: Images) -> str:
    """One hash over the shape and the values in float32."""
    digest = hashlib.sha256(str(tuple(images.shape)).encode())
    digest.update(images.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
