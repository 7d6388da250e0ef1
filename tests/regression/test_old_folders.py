"""Folders that version 0.1.0 wrote are read, tested, continued and verified by this version.

`version_0_1_0` holds a plain run with its checkpoints and test, the flagship with a certificate,
and an orbit around the plain model, as the command line of 0.1.0 left them, and its digits.
"""

import shutil
from pathlib import Path

import pytest
import torch

import turnwise
from turnwise.cli.main import main
from turnwise.evaluation.certificate.certificate import read_certificate
from turnwise.evaluation.certificate.targets import read_request
from turnwise.evaluation.evaluate import fill_of
from turnwise.runs import Run

OLD = Path(__file__).parent / "version_0_1_0"
LOGITS = {
    "plain": (
        0.08250013827962131,
        -0.15286468310033607,
        0.009178276341069637,
        0.07458837005280401,
        -0.08096915064804351,
        0.08246447761233107,
        -0.03336532238157376,
        -0.15671972809613455,
        0.055140331971431915,
        -0.10481378195541377,
    ),
    "flagship": (
        -0.054230233825268086,
        -0.05341472197699635,
        0.022193994246155316,
        0.09413282862620169,
        -0.009492282066827376,
        0.0038873682491231236,
        0.04782774756644558,
        -0.048013538612852666,
        -0.025942085309323452,
        -0.011086378971748335,
    ),
    "invariant": (
        0.08174748408447968,
        -0.15167004000951045,
        0.00036580354504447965,
        0.06392933910559614,
        -0.07618168714702893,
        0.08909284614515137,
        -0.04275275751240135,
        -0.14573437172569745,
        0.060567738688422745,
        -0.10302851137443068,
    ),
}


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def logits(folder):
    model = turnwise.load(folder).double()
    images = torch.rand(
        1, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    with torch.no_grad():
        return model(model.preprocess(images))[0]


@pytest.mark.parametrize("name", LOGITS)
def test_an_old_model_gives_the_same_logits(name):
    wanted = torch.tensor(LOGITS[name], dtype=torch.float64)
    torch.testing.assert_close(logits(OLD / name), wanted, rtol=0, atol=1e-12)


def test_the_test_of_an_old_run_is_shown_and_not_repeated(old, capsys):
    before = (old / "plain" / "test.json").read_bytes()
    assert main(["test", str(old / "plain")]) == 0
    assert "already tested" in capsys.readouterr().out
    assert (old / "plain" / "test.json").read_bytes() == before


@pytest.mark.usefixtures("digits_0_1_0")
def test_an_old_orbit_is_tested(old):
    assert main(["test", str(old / "invariant")]) == 0
    assert (old / "invariant" / "test.json").is_file()


def test_a_run_on_the_old_digits_is_not_continued_on_the_new(old, capsys):
    assert main(["train", "--resume", str(old / "plain"), "trainer.max_epochs=3"]) == 2
    assert "the images or classes of digits are not those" in capsys.readouterr().err


@pytest.mark.usefixtures("digits_0_1_0")
def test_an_old_run_is_continued(old):
    assert main(["train", "--resume", str(old / "plain"), "trainer.max_epochs=3"]) == 0
    rows = (old / "plain" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


@pytest.mark.usefixtures("digits_0_1_0")
def test_an_old_certificate_is_verified(old, monkeypatch):
    monkeypatch.chdir(old)  # the certificate names its target as it was typed
    assert main(["verify", str(old / "flagship" / "certificate.json")]) == 0


def test_old_folders_keep_their_fill_mode(old):
    """Version 0.1.0 filled the corners of rotated images with zeros, whatever the images were."""
    run = Run(old / "plain")
    assert "fill" not in run.recipe_file.read_text()
    assert run.recipe.data.fill == "zeros"
    assert fill_of(run.evaluation()) == "zeros"
    certificate, _ = read_certificate(Run(old / "flagship").certificate_file)
    assert certificate.fill == "zeros"
    assert read_request(certificate.request).fill == "zeros"
