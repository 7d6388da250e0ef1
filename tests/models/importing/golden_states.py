"""State dicts as the original programs write them, and what the programs computed from them.

`importers.json.gz` lists the state dicts, key by key; `importers.npz` holds inputs and logits, for
weights by the formula below.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import torch

from turnwise.groups import PlanarGroup
from turnwise.models.importing.gsa import ORIGINS

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = json.loads(gzip.decompress((GOLDEN / "importers.json.gz").read_bytes()))
ARRAYS = np.load(GOLDEN / "importers.npz")
UNDIVIDED = ("cls_token", "pos_embedding", "group_embedding.weight", "rpe", "projection_matrix")
TABLES = ("_elements", "_identity", "_relative_positions", "_indices", "grid", "identity")


def made_up(number, key, shape):
    """Return entry `number` of a state dict, by the formula behind the golden outputs."""
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    u = np.sin(1.7 * (i + 1) + 0.61 * (number + 1) + 0.05 * i * np.sin(0.3 * i)).reshape(shape)
    if len(shape) >= 2 and not key.endswith(UNDIVIDED):
        u = u / np.sqrt(np.prod(shape[1:]))
    elif key.endswith("running_var") or ("norm" in key and key.endswith("weight")):
        u = 1 + 0.3 * u
    elif key.endswith("inv_freq"):
        u = 0.3 + 0.2 * u
    elif key.endswith("projection_matrix"):
        u = 1.5 * u
    elif len(shape) < 2:
        u = 0.3 * u
    return torch.from_numpy(u)


def state_of(case):
    """Return a state dict as the program writes it, buffers and all, in float64."""
    origin = "gsa-nets" if case.startswith("gsa") else "ge-vit"
    group = PlanarGroup.named("p4")
    state = {}
    for number, (key, shape) in enumerate(CASES[case]["state"]):
        if key.endswith("g_indices"):
            state[key] = ORIGINS[origin].stored_table(group)
        elif "transformed_grid" in key:
            kernel = "lifting_conv" if "lifting" in key else "gconvs.0"
            name = key.rpartition(".")[2]
            state[key] = torch.from_numpy(ARRAYS[f"{case}.gcnn.{kernel}.kernel.{name}"]).double()
        elif any(table in key for table in TABLES):
            state[key] = torch.zeros(shape)
        elif key.endswith(("calls_since_last_redraw", "num_batches_tracked")):
            state[key] = torch.tensor(0)
        else:
            state[key] = made_up(number, key, tuple(shape))
    return state


def in_float64(build, state):
    """Build in float64, so that nothing is rounded."""
    torch.set_default_dtype(torch.float64)
    try:
        return build(state).double()
    finally:
        torch.set_default_dtype(torch.float32)


def images_of(case):
    """Return the input of a case as the program took it: in [0, 1], not normalised."""
    return torch.from_numpy(ARRAYS[f"{case}.input"]).double() / 255


def distance(found, case):
    wanted = torch.from_numpy(ARRAYS[f"{case}.logits"])
    return float((found.detach() - wanted).abs().max() / wanted.abs().max())
