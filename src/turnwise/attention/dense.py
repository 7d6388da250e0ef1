"""Dense softmax attention: every token attends to every token.

backend="plain" is the formula and the reference for tests.  "sdpa" computes the same with torch's
fused kernels; "auto" means "sdpa".

Letters:  t a token (query), s a source (key and value), d a channel of a head.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require_known

BACKENDS = ("auto", "plain", "sdpa")


def attend(
    query: Float[Tensor, "batch head token dim"],
    key: Float[Tensor, "batch head source dim"],
    value: Float[Tensor, "batch head source dim_out"],
    bias: Float[Tensor, "#batch #head token source"] | None = None,
    *,
    backend: str = "auto",
) -> Float[Tensor, "batch head token dim_out"]:
    """softmax(q·k / √dim + bias) · v, over the sources.

    Paper:    Vaswani et al. 2017, "Attention Is All You Need".
    """
    require_known(backend, BACKENDS, "backend")
    if backend != "plain":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    score = torch.einsum("bhtd,bhsd->bhts", query, key) / math.sqrt(query.shape[-1])
    weight = torch.softmax(score if bias is None else score + bias, dim=-1)
    return torch.einsum("bhts,bhsd->bhtd", weight, value)
