"""What a run is checked for, and what is repaired, before its training continues.

A run may have been killed at any moment, copied in part, or edited by hand.  Whatever cannot be
continued to the weights of an uninterrupted run is refused in one line.
"""

import io
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from turnwise.errors import InputError, require, shown
from turnwise.files import remove_leftovers, write_atomic
from turnwise.geometry.warps import AUTO
from turnwise.options import to_plain
from turnwise.runs.run import RESUMABLE, Run
from turnwise.training.recipe import Recipe

FREE = ("trainer.", "data.name")  # may change: the images are compared by their hashes


def require_same_recipe(run: Run, recipe: Recipe) -> None:
    """Raise if the stored recipe is not the one that the training started with.

    Runs of version 0.1 do not say what they started with.  What is "auto" is inferred again, from
    the same data.
    """
    started = run.environment.get("recipe")
    if not isinstance(started, dict):
        return
    before, now = dict(_flat(started)), dict(_flat(to_plain(recipe.plain())))
    for key, value in before.items():
        if not key.startswith(FREE):
            require(
                key in now and now[key] in (value, AUTO),
                f"{run.recipe_file} was changed after the training had started: {key} was "
                f"{shown(value)} and is {shown(now.get(key))}. A resumed run keeps its recipe, "
                "except trainer.*; restore it, or train in another folder.",
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def start_again(run: Run) -> None:
    """Remove what a run has written that was killed before its first checkpoint."""
    files = run.training_files()
    for path in (files.metrics, files.best, files.last):
        remove_leftovers(path)
        path.unlink(missing_ok=True)
    shutil.rmtree(files.logs, ignore_errors=True)
    print(f"{run.path} has no checkpoint yet; its training starts again.", file=sys.stderr)


def newest_checkpoint(run: Run) -> str:
    """Return which checkpoint is the furthest, "last" or "partial"; it is whole.

    A damaged partial one costs less than an epoch, and is passed over.
    """
    steps = dict[str, int]()
    for which in RESUMABLE:
        if run.checkpoint(which).is_file():
            try:
                step = run.read_checkpoint(which).get("global_step")
                steps[which] = step if isinstance(step, int) else 0
            except InputError:
                if which == "last" or not steps:
                    raise
    return max(steps, key=lambda which: steps[which])


def require_fitting(run: Run, model: nn.Module, which: str) -> None:
    """Raise unless a checkpoint is one of this model, and whole."""
    path, checkpoint = run.checkpoint(which), run.read_checkpoint(which)
    expected = {f"model.{key}": tuple(v.shape) for key, v in model.state_dict().items()}
    state = checkpoint["state_dict"]
    stored = {k: tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor)}
    other = next((k for k, shape in expected.items() if stored.get(k) != shape), None)
    require(
        other is None,
        f"{path} is the checkpoint of another model ({other} differs); restore the right one, or "
        "train in another folder.",
    )
    needed = {"epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"}
    missing = sorted(needed - checkpoint.keys())
    require(
        not missing,
        f"{path} holds weights but not the state of a training ({', '.join(missing)}); restore "
        "the whole checkpoint, or train in another folder.",
    )


def recover_best(run: Run) -> None:
    """Let the last checkpoint take the place of a best checkpoint that is damaged or missing.

    Every checkpoint names the best epoch.  Before the end of the first epoch there is none.
    """
    last, best = run.checkpoint("last"), run.checkpoint("best")
    if not last.is_file():
        return
    try:
        run.read_checkpoint("best")
        return
    except InputError:
        write_atomic(best, last.read_bytes())
    for which in RESUMABLE:
        if run.checkpoint(which).is_file():
            checkpoint = run.read_checkpoint(which)
            for state in checkpoint["callbacks"].values():
                if isinstance(state, dict) and state.get("monitor") is not None:
                    score = state.get("current_score")
                    state |= {
                        "best_model_score": score, "kth_value": score,
                        "best_model_path": str(best), "kth_best_model_path": str(best),
                        "best_k_models": {str(best): score},
                    }  # fmt: skip
            content = io.BytesIO()
            torch.save(checkpoint, content)
            write_atomic(run.checkpoint(which), content.getvalue())
    print(
        f"{best} was damaged or missing; the weights of the last epoch take its place.",
        file=sys.stderr,
    )


def remove_temporary_files(run: Run) -> None:
    """Remove the unfinished files of processes that were killed while they wrote."""
    files = run.training_files()
    for path in (files.best, files.last, files.partial, files.metrics, run.recipe_file):
        remove_leftovers(path)
