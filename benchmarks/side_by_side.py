"""Run the jobs of a benchmark side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")


def run_side_by_side(
    run: Callable[[Job], bool | None], jobs: Sequence[Job], at_once: int, minutes: float
) -> int:
    """Run the jobs in threads; return how many failed.

    Args:
        run: returns whether the job succeeded, or None for one that it did not start in time.
        jobs: what `run` takes.
        at_once: how many run at the same time.
        minutes: the time in which jobs are started, for the message.
    """
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run, jobs))
    if late := outcomes.count(None):
        print(f"{late} runs were not started in {minutes:g} minutes; give the command again")
    return outcomes.count(False)
