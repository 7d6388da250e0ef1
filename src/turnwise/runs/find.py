"""Find the runs in a folder."""

import os
from pathlib import Path

from turnwise.errors import require
from turnwise.runs.run import Run


def find_runs(folder: str | Path) -> list[Run]:
    """Return every run in `folder`, at any depth, by name; there must be at least one.

    Links are followed; a run that several links lead to is returned once.
    """
    require(Path(folder).is_dir(), f"{folder} is not a folder; give one that holds runs.")
    runs, seen = list[Run](), set[Path]()
    for path, subfolders, _ in os.walk(folder, followlinks=True):
        run, real = Run(path), Path(path).resolve()
        if real in seen:
            subfolders.clear()  # another link to it, or a cycle
            continue
        seen.add(real)
        if run.exists:
            runs.append(run)
        subfolders.sort(key=lambda name: ((run.path / name).is_symlink(), name))
    runs.sort(key=lambda run: run.path)
    require(bool(runs), f"there is no run in {folder}: no folder in it has a recipe.")
    return runs
