"""Folders of many images, nested by patient, with broken and odd files: every command copes."""

import contextlib
import csv
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from turnwise.cli.main import main
from turnwise.data.dataset import SPLITS
from turnwise.runs.run import Run

SIDE = 8
SMALL = [
    "model.name=orbit_vit", "model.group=C4", "model.patch=4", "model.width=8", "model.depth=1",
    "model.heads=1", "optimisation.batch_size=32", "trainer.max_epochs=1",
    "trainer.accelerator=cpu", "evaluation.angles=2",
]  # fmt: skip


def half_of(content: bytes) -> bytes:
    return content[: len(content) // 2]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"not an image at all",
    "truncated": half_of,
    "header alone": lambda content: content[:33],
    "other bytes": lambda content: content[:40] + bytes(len(content) - 40),
}
ODD = {"flat": (1, SIDE), "wide": (SIDE, 12), "small": (6, 6), "large": (40, 30)}  # rows, cols


@dataclass(frozen=True)
class Plan:
    """A folder: how many images of both classes each patient has, and which files are bad."""

    patients: int
    images: int  # of each class of a patient
    by_class: bool  # class/patient, else patient/class
    broken: dict[int, str]
    odd: dict[int, str]

    def path(self, number: int) -> Path:
        patient, label = f"p{number // (2 * self.images):03}", ("ill", "well")[number % 2]
        folders = (label, patient) if self.by_class else (patient, label)
        return Path(*folders, f"{number:05}.png")

    def __len__(self) -> int:
        return 2 * self.patients * self.images

    def write(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        for number in range(len(self)):
            path = folder / self.path(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = ODD[self.odd[number]] if number in self.odd else (SIDE, SIDE)
            pixels = random.integers(0, 256, shape, np.uint8)
            Image.fromarray(pixels).save(path)
            if number in self.broken:
                path.write_bytes(BROKEN[self.broken[number]](path.read_bytes()))
        (folder / "notes.txt").write_text("no image")
        (folder / self.path(0)).with_name("._00000.png").write_bytes(b"of the operating system")

    @property
    def bad(self) -> set[str]:
        return {str(self.path(number)) for number in (*self.broken, *self.odd)}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to 9 of about 100 files are bad: more odd sizes would be usual ones."""
    patients = draw(st.integers(12, 16))
    numbers = draw(st.permutations(range(96)))
    broken, odd = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    return Plan(
        patients, 4, draw(st.booleans()),
        {n: draw(st.sampled_from(sorted(BROKEN))) for n in numbers[:broken]},
        {n: draw(st.sampled_from(sorted(ODD))) for n in numbers[broken : broken + odd]},
    )  # fmt: skip


def turnwise(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()


def column(table: Path, name: str) -> list[str]:
    with table.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def check(plan: Plan, work: Path) -> None:
    """Inspect, train, test and predict; every bad file is named, and no patient leaks."""
    folder, run = work / "own", Run(work / "run")
    plan.write(folder)
    bad = {str(folder / path) for path in plan.bad}
    check_inspection(folder, bad)
    check_training(folder, run, bad)
    patients = check_splits(plan, run, bad)
    assert turnwise("test", run.path)[0] == 0
    assert run.evaluation()["group_counts"] == {
        split: len(found) for split, found in patients.items()
    }
    check_predictions(plan, folder, run)


def check_inspection(folder: Path, bad: set[str]) -> None:
    status, output, _ = turnwise("inspect", f"folder:{folder}", "--json")
    found = json.loads(output)
    assert (status == 1) == found["must_fix"] == bool(bad)
    named = found["findings"][0]["details"] if bad else []
    assert len(named) == len(bad) and all(any(path in line for line in named) for path in bad)


def check_training(folder: Path, run: Run, bad: set[str]) -> None:
    """By default a bad file is an error of one line, and nothing is half-written."""
    words = ["train", f"data.name=folder:{folder}", *SMALL, "--output", run.path]
    if bad:
        status, _, error = turnwise(*words)
        assert status == 2 and len(error.splitlines()) == 1 and not run.path.exists()
        assert any(path in error for path in bad)
    status, _, error = turnwise(*words, "data.on_error=skip")
    assert status == 0, error
    assert sorted(column(run.skipped_file, "file") if bad else []) == sorted(bad)


def check_splits(plan: Plan, run: Run, bad: set[str]) -> dict[str, set[str]]:
    """Return the patients of each split."""
    dataset, patients, usable = run.dataset(), dict[str, set[str]](), set[str]()
    for split in SPLITS:
        part = getattr(dataset, split)
        folders = [Path(name).parts[-2 if plan.by_class else -3] for name in part.names]
        assert folders == list(part.groups) and folders
        patients[split] = set(folders)
        usable |= set(part.names)
    assert len(usable) == len(plan) - len(bad) and not bad & usable
    assert sum(map(len, patients.values())) == len(set.union(*patients.values()))
    return patients


def check_predictions(plan: Plan, folder: Path, run: Run) -> None:
    """Files of odd sizes are predicted; those that cannot be read are listed."""
    table = folder.with_name("predictions.csv")
    status, _, error = turnwise("predict", run.path, folder, "--output", table, "--device", "cpu")
    assert status == 0, error
    unreadable = {str(folder / plan.path(number)) for number in plan.broken}
    predicted = column(table, "image")
    assert len(predicted) == len(plan) - len(unreadable) and not unreadable & set(predicted)
    listed = table.with_name("predictions.broken.csv")
    assert set(column(listed, "input") if unreadable else []) == unreadable


ALL_KINDS = Plan(
    12, 4, False, dict(zip((0, 17, 40, 41, 95), BROKEN, strict=True)),
    dict(zip((3, 18, 52, 77), ODD, strict=True)),
)  # fmt: skip


@settings(max_examples=2)
@example(plan=ALL_KINDS)
@given(plan=plans())
def test_a_hundred_files(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as work:
        check(plan, Path(work))


@pytest.mark.slow
@pytest.mark.parametrize("by_class", [False, True])
def test_ten_thousand_files(tmp_path: Path, by_class: bool) -> None:
    """20 broken files and 30 of odd sizes, of 100 patients."""
    numbers = np.random.default_rng(1).permutation(10_000)[:50].tolist()
    broken = {n: list(BROKEN)[i % len(BROKEN)] for i, n in enumerate(numbers[:20])}
    odd = {n: list(ODD)[i % len(ODD)] for i, n in enumerate(numbers[20:])}
    plan = Plan(100, 50, by_class, broken, odd)
    assert len(plan) == 10_000
    check(plan, tmp_path)
