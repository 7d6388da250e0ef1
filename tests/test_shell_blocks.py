"""The commands of the how-to pages run as pasted, in order, in a folder with the files they name.

Trainings take one epoch, or a few seconds where the page gives minutes.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_documents import REPOSITORY, blocks

from turnwise.cli.main import main
from turnwise.data import load_dataset

pytestmark = pytest.mark.slow
NOT_RUN = {
    "cluster.md": "needs a cluster",
    "embeddings.md": "downloads backbones; tests/cli/test_embed.py runs the commands on small ones",
    "figures.md": "benchmarks/gallery.py runs it",
    "hub.md": "needs an account",
    "reproduce.md": "needs rotated MNIST",
    "segmentation.md": "needs the nuclei",
    "serve.md": "a server does not end; tests/deploy/test_server.py",
    "slides.md": "needs a slide; tests/cli/test_predict.py",
}
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "index.md",
    *(p for p in sorted((REPOSITORY / "docs" / "how-to").glob("*.md")) if p.name not in NOT_RUN),
]
EPOCHS = re.compile(r"--epochs \d+|trainer.max_epochs=\d+")


def commands(page):
    """Return the command lines of a page."""
    lines = [line for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("turnwise ")]


def shortened(command):
    """Return the words of the command, with a short training."""
    if command.startswith("turnwise train "):
        command = command.replace("SOURCE", "folder:photos")
        if "--minutes" in command:
            command = re.sub(r"--minutes \d+", "--minutes 0.3", command)
        else:
            command = f"{EPOCHS.sub('', command)} trainer.max_epochs=1"
    return shlex.split(command.replace("SOURCE", "folder:photos"))[1:]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """The run that pages call runs/first."""
    folder = tmp_path_factory.mktemp("first") / "first"
    words = "train orbit_vit digits --group C4 --patch 7 --width 16 --depth 1 --heads 2 --epochs 1"
    assert main([*words.split(), "--output", str(folder)]) == 0
    assert main(["certify", str(folder), "--images", "4", "--angles", "2"]) == 0
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, first_run):
    """A folder with photos, tables, an image and a trained run, as the pages assume."""
    tiles = load_dataset("tiles").train
    rows, findings = ["path,label,patient"], ["path,cyst,stone"]
    for name, label in (("Forest", 1), ("River", 8), ("Highway", 3)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number, index in enumerate((tiles.labels == label).nonzero()[:40, 0].tolist()):
            path = f"photos/{name}/{number}.png"
            array = tiles.images[index].permute(1, 2, 0).contiguous().numpy()
            Image.fromarray(array).save(tmp_path / path)
            rows.append(f"{path},{'malignant' if name == 'River' else 'benign'},p{number // 2}")
            findings.append(f"{path},{number % 2},{int(name == 'River')}")
    (tmp_path / "images.csv").write_text("\n".join(rows))
    (tmp_path / "findings.csv").write_text("\n".join(findings))
    digit = (255 * torch.rand(28, 28)).to(torch.uint8).numpy()
    (tmp_path / "images").mkdir()
    for path in ("image.png", "images/0.png", "images/1.png"):
        Image.fromarray(digit).save(tmp_path / path)
    shutil.copytree(first_run, tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_run_as_pasted(page, folder):
    found = commands(page)
    if any("--output runs/first" in command for command in found):
        shutil.rmtree(folder / "runs")
    for command in found:
        if " certify " in command and page.name != "certificate.md":
            command += " --images 4 --angles 2" if "--images" not in command else ""
        assert main(shortened(command)) == 0, command


def test_pages_that_are_not_run_exist():
    assert all((Path(REPOSITORY) / "docs" / "how-to" / name).is_file() for name in NOT_RUN)
