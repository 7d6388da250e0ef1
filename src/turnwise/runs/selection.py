"""What training selected: the kind of target with its decisions, and the best epoch."""

from turnwise.data.targets import TargetKind, make_kind, read_kind
from turnwise.errors import InputError
from turnwise.geometry.warps import AUTO
from turnwise.models.storage import read_config
from turnwise.runs.run import Run


def target_kind(run: Run) -> TargetKind:
    """Return what the model of a run predicts; classes if it is not stored, or not yet trained."""
    try:
        target = read_config(run.model_folder).get("target")
    except InputError:
        target = None
    return read_kind(target) if target else make_kind("class")


def selecting_score(run: Run) -> str:
    """Return the validation score that selects the best epoch."""
    select = run.recipe.trainer.select if run.exists else AUTO
    return target_kind(run).selection if select == AUTO else select


def selected_epoch(run: Run) -> tuple[str, dict[str, float]]:
    """Return the column of the selecting score, and the row of the best epoch.

    Raises ValueError if the table does not have it.
    """
    score = selecting_score(run)
    better = min if target_kind(run).is_better_lower(score) else max
    column = f"val_{score}"
    measured = [epoch for epoch in run.metrics if column in epoch]
    return column, better(measured, key=lambda epoch: epoch[column])
