"""Where a classifier of anybody's ends: its head, and the vector just before it."""

import threading

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require

USUAL = ("head", "fc", "classifier")
CURE = 'name the part that turns vectors into logits, as in orbit(model, "C4", head="fc")'


def find_head(model: nn.Module, path: str = "") -> str:
    """The path of the head inside the model: as given, by its usual names, else the last linear."""
    if path:
        known = {name for name, _ in model.named_modules()}
        require(path in known, f"a {type(model).__name__} has no part {path!r}; {CURE}.")
        return path
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    require(bool(linear), f"no linear layer was found in a {type(model).__name__}; {CURE}.")
    return next((name for name in USUAL if name in linear), linear[-1])


def head_width(head: nn.Module) -> int:
    """How many numbers the head takes: its first linear map or norm tells."""
    for part in head.modules():
        if isinstance(part, nn.Linear):
            return part.in_features
        if isinstance(part, nn.LayerNorm):
            return int(part.normalized_shape[0])
    raise InputError(f"a {type(head).__name__} does not tell how many numbers it takes; {CURE}.")


class HeadListener:
    """Hears what a head is given while its model looks at pictures: the vector before the logits.

    A hook that stays on the head, and is deaf but for `features`: hooks that come and go cannot be
    compiled.  Threads that ask at the same time hear each what their own pictures gave.
    """

    def __init__(self, head: nn.Module) -> None:
        self.head = head
        self.given: dict[int, list[Tensor]] = {}
        head.register_forward_pre_hook(self)

    def __call__(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        heard = self.given.get(_caller())
        if heard is not None:
            heard.append(inputs[0])

    def features(
        self, model: nn.Module, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch width"]:
        """What the head is given when the model looks at the pictures: one vector for each."""
        self.given[_caller()] = []
        try:
            model(images)
        finally:
            given = self.given.pop(_caller())
        shapes, count = [tuple(features.shape) for features in given], images.shape[0]
        require(
            len(shapes) == 1 and len(shapes[0]) == 2 and bool(shapes[0][0] == count),
            f"the head must be given one vector for each of {count} pictures, got {shapes}; "
            f"{CURE}, or combine logits.",
        )
        return given[0]


def _caller() -> int:
    """Which thread asks; a compiler traces for all."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def logits_of(answer: object) -> Tensor:
    """A tensor of logits, or the logits inside the answer of a Hugging Face model."""
    logits = answer if isinstance(answer, Tensor) else getattr(answer, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model inside an orbit must answer with a tensor, got a {type(answer).__name__}."
        )
    return logits
