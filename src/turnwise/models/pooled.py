"""One vector per image from what a backbone returns, a tensor or an output of Hugging Face."""

from typing import Any

from torch import Tensor

from turnwise.errors import InputError, require, require_known

POOLS = ("auto", "cls", "mean", "pooler")


def pool_output(output: Any, pool: str = "auto", prefix: int | None = None) -> Tensor:
    """Return (batch, width) from vectors, tokens (batch, token, width) or maps (…, row, col).

    Args:
        output: a tensor; or an object with `last_hidden_state` and perhaps `pooler_output`.
        pool: "cls" is the first token, "mean" the mean of the others, "pooler" `pooler_output`;
            "auto" is "cls" for tokens.  Maps are averaged.
        prefix: how many tokens stand before those of the patches, 1 if not known.
    """
    require_known(pool, POOLS, "pooling")
    if pool == "pooler":
        found = getattr(output, "pooler_output", None)
        if not isinstance(found, Tensor):
            raise InputError(
                f"a {type(output).__name__} has no pooler_output; use cls or mean instead."
            )
        return found.flatten(1)
    tokens = output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)
    if not isinstance(tokens, Tensor):
        raise InputError(
            f"the model must return a tensor or last_hidden_state, got a {type(output).__name__}."
        )
    if tokens.ndim == 4:
        return tokens.mean(dim=(-2, -1))
    if tokens.ndim == 3:
        return (
            tokens[:, 0] if pool != "mean" else tokens[:, 1 if prefix is None else prefix :].mean(1)
        )
    require(
        pool == "auto",
        f"the model returns {tuple(tokens.shape)}, vectors, which need no pooling {pool!r}.",
    )
    return tokens
