"""0 where the claim holds, 1 where it does not, 2 where the question was wrong."""

import json
import warnings

import pytest
import torch

from turnwise.cli.certify import sample_pictures
from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.evaluation import certify as measure
from turnwise.models import create_model, save

SMALL = ("width=16", "depth=1", "heads=2", "patch=7")
OPTIONS = {"width": 16, "depth": 1, "heads": 2, "patch": 7}
QUICK = ("--pictures", 4, "--angles", 2)


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_an_orbit_model_holds(turnwise, empty_place, group):
    status, said, _ = turnwise("certify", "orbit_vit", *SMALL, "--group", group, *QUICK)
    assert status == 0
    assert f"\nINVARIANT under {group}" in said
    assert "FAILS" not in said
    assert "SILENT" not in said
    assert "turn by 90°" in said
    assert list(empty_place.iterdir()) == [], "a model without a folder leaves no file"


def test_a_plain_model_does_not(turnwise):
    status, said, _ = turnwise("certify", "vit", *SMALL, *QUICK)
    assert status == 1
    assert "\nNOT INVARIANT under C4" in said
    assert said.count("FAILS") == 3
    assert "SILENT" not in said


def test_the_certificate_is_written_where_asked(turnwise, empty_place):
    status, said, _ = turnwise(
        "certify", "orbit_vit", *SMALL, *QUICK, "--output", "new/c.json", "in_chans=3"
    )
    kept = json.loads((empty_place / "new" / "c.json").read_text())
    assert status == 0
    assert said.endswith("written to new/c.json\n")
    assert kept["holds"] is True
    assert (kept["target"], kept["group"]) == ("orbit_vit", "C4")
    assert kept["pictures"].endswith("4 of shape (3, 28, 28)")
    assert [angle["degrees"] for angle in kept["angles"]] == [0.0, 180.0]
    assert len(kept["elements"]) == 4


def test_a_refusal_is_written_too(turnwise, empty_place):
    assert turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")[0] == 1
    assert json.loads((empty_place / "c.json").read_text())["holds"] is False


def test_a_run_keeps_its_certificate(turnwise, run):
    """Certified on validation pictures of its own data, under its own group."""
    status, said, _ = turnwise("certify", run, *QUICK)
    kept = json.loads((run / "certificate.json").read_text())
    assert status == 0
    assert said.endswith(f"written to {run / 'certificate.json'}\n")
    assert kept["group"] == "C4"
    assert kept["pictures"].startswith("validation pictures of digits, 4 of shape")


def test_the_test_split_is_not_looked_at(turnwise, run, monkeypatch):
    seen = []

    def spy(model, group, images, **words):
        seen.append(images)
        return measure(model, group, images, **words)

    monkeypatch.setattr("turnwise.evaluation.certificate.targets.certify", spy)
    assert turnwise("certify", run, *QUICK)[0] == 0
    assert torch.equal(seen[0], to_unit(load_dataset("digits").val.images[:4]))


def test_a_model_folder_is_certified_under_its_own_group(turnwise, empty_place):
    save(create_model("orbit_vit", group="D2", **OPTIONS), "folder")
    status, said, _ = turnwise("certify", "folder", *QUICK)
    assert status == 0
    assert "INVARIANT under D2" in said
    assert (empty_place / "folder" / "certificate.json").is_file()
    assert turnwise("certify", "folder", "--group", "D4", *QUICK)[0] == 1


def test_the_seed_chooses_the_weights(turnwise, empty_place):
    hashes = []
    for seed in (0, 0, 1):
        turnwise("certify", "vit", *SMALL, *QUICK, "--seed", seed, "--output", "c.json")
        hashes.append(json.loads((empty_place / "c.json").read_text())["weights_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_pictures_fit_the_model_and_none_is_blank():
    images = sample_pictures(create_model("vit", in_chans=3, image_size=14, **OPTIONS), 5)
    assert images.shape == (5, 3, 14, 14)
    assert 0 <= images.min() < images.max() <= 1
    assert (images.flatten(1).std(1) > 0.01).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["orbit_vti"], "unknown model 'orbit_vti'. Did you mean 'orbit_vit'?"),
        (["nowhere/run"], "nowhere/run is neither a folder nor a model; see turnwise models."),
        (["vit", "--group", "Q4"], "unknown group 'Q4'; write C or D and a number"),
        (["vit", "group=Q4"], "unknown group 'Q4'"),
        (["vit", "widht=8"], "unknown option of vit 'widht'. Did you mean 'width'?"),
        (["vit", "width"], "an option is written key=value, e.g. width=64, got 'width'"),
        (["vit", "width=["], "the value of 'width=[' cannot be read"),
        (["vit", "name=vit"], "name=vit is no option; the model's name stands first"),
        (["vit", "image_size=30"], "patches of 4 pixels"),
        (["vit", "width=10"], "width = 10 must be a multiple of 4 (it is split over 4 heads)"),
        (["vit", "num_classes=0"], "num_classes = 0 must be at least 1"),
        (["vit", "--pictures", "1"], "--pictures must be at least 2 and --angles at least 1"),
        (["vit", "--angles", "0"], "--pictures must be at least 2 and --angles at least 1"),
    ],
)
def test_nonsense(refused, words, said):
    assert said in refused("certify", *words)


def test_an_empty_folder(refused, empty_place):
    (empty_place / "empty").mkdir()
    assert "is not a model or run folder: it has no config.json" in refused("certify", "empty")


def test_a_folder_takes_no_options(refused, run):
    assert "is a folder and takes no options; leave them out" in refused("certify", run, "width=16")


def test_a_run_has_pictures_of_its_own_size(refused, run):
    said = refused("certify", run, "--size", "56")
    assert "28 pixels a side; leave --channels and --size out, or name other pictures" in said


def test_an_output_that_cannot_be_written(refused, empty_place):
    (empty_place / "file").touch()
    said = refused("certify", "vit", *SMALL, *QUICK, "--output", "file/c.json")
    assert "cannot write file/c.json" in said
    assert "choose another place with --output" in said


def test_a_plain_model_cannot_pass_where_nothing_is_tested(refused):
    said = refused("certify", "vit", "--group", "C3")
    assert "C3 has no element but the identity that maps pixels to pixels" in said


def test_a_page_is_written_beside_the_certificate(turnwise, empty_place):
    _, said, _ = turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")
    assert "a page for people: open c.html in a browser\n" in said
    page = (empty_place / "c.html").read_text()
    assert "NOT INVARIANT under C4" in page
    assert "patches.project" in page


def test_where_the_error_enters_is_said(turnwise):
    said = turnwise("certify", "vit", *SMALL, *QUICK)[1]
    assert "The error enters at patches.project (Conv2d): what it is given holds" in said
    assert "enters at" not in turnwise("certify", "vit", *SMALL, *QUICK, "--no-layers")[1]


def test_several_groups_have_a_certificate_each(turnwise, empty_place):
    """An orbit under C4 holds under C4, and not under D4."""
    words = ("certify", "orbit_vit", "group=C4", *SMALL, *QUICK, "--output", "c.json")
    assert turnwise(*words, "--group", "C4,D4")[0] == 1
    verdicts = {g: json.loads((empty_place / f"c-{g}.json").read_text()) for g in ("C4", "D4")}
    assert [verdicts[g]["holds"] for g in ("C4", "D4")] == [True, False]
    assert not (empty_place / "c.json").exists()


def test_sizes_precisions_shifts_and_data_are_chosen(turnwise, empty_place):
    status, said, _ = turnwise(
        "certify", "orbit_vit", *SMALL, *QUICK, "--output", "c.json", "--data", "digits",
        "--sizes", "28,30", "--precisions", "float32", "--shifts", 2, "--chunk", 3,
    )  # fmt: skip
    kept = json.loads((empty_place / "c.json").read_text())
    assert status == 0
    assert kept["pictures"].startswith("validation pictures of digits")
    assert [size["size"] for size in kept["sizes"]] == [28, 30]
    assert kept["sizes"][0]["float32"] < 1e-4
    assert "refused: the model takes pictures of shape (1, 28, 28)" in said
    assert kept["elements"][1]["float64"] is None
    assert sum(move["kind"] == "shift" for move in kept["moves"]) == 8
    assert kept["request"]["chunk"] == 3


def test_a_file_is_compared_with_its_original(turnwise, empty_place):
    model = create_model("orbit_vit", group="C4", **OPTIONS).eval()
    save(model, "net")
    example = (torch.rand(2, 1, 28, 28),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, example), "net.pt2")
    status, said, _ = turnwise("certify", "net.pt2", *QUICK, "--against", "net")
    assert status == 0, "pictures are prepared as the model prepares them"
    assert "Answers like net" in said
    torch.nn.init.ones_(model.model.head.weight)
    save(model, "net")
    status, said, _ = turnwise("certify", "net.pt2", *QUICK, "--against", "net")
    assert status == 1
    assert "DOES NOT ANSWER like net" in said
    assert "FAILS" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vit", "--group", "C4,Q4"], "unknown group 'Q4'"),
        (["vit", "--sizes", "big"], "--sizes big must be whole numbers, such as 28,56"),
        (["vit", "--precisions", "float8"], "unknown precision 'float8'"),
        (["vit", "--channels", "2"], "--channels 2 must be 1 or 3"),
        (["vit", *SMALL, *QUICK, "--output", "c.html"], "is the JSON; end it in .json"),
        (["net.onnx"], "net.onnx does not exist; give a .pt2 or .onnx file"),
        (["no_such_code:net"], "No module named 'no_such_code'"),
        (["vit", "--data", "digist"], "Did you mean 'digits'?"),
    ],
)
def test_more_nonsense(refused, words, said):
    assert said in refused("certify", *words)
