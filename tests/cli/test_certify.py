"""Exit status 0 if the claim holds, 1 if it does not, 2 if the request is wrong."""

import json
import textwrap
import warnings

import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.evaluation import certify as measure
from turnwise.models import create_model, load, save

SMALL = ("width=16", "depth=1", "heads=2", "patch=7")
OPTIONS = {"width": 16, "depth": 1, "heads": 2, "patch": 7}
QUICK = ("--images", 4, "--angles", 2)


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_an_orbit_model_is_invariant(turnwise, empty_folder, group):
    status, output, _ = turnwise("certify", "orbit_vit", *SMALL, "--group", group, *QUICK)
    assert status == 0
    assert f"\nINVARIANT under {group}" in output
    assert "FAILS" not in output
    assert "rotate by 90°" in output
    assert list(empty_folder.iterdir()) == [], "a model without a folder leaves no file"


def test_a_plain_model_is_not_invariant(turnwise):
    status, output, _ = turnwise("certify", "vit", *SMALL, *QUICK)
    assert status == 1
    assert "\nNOT INVARIANT under C4" in output
    assert output.count("FAILS") == 6, "three elements, and three conditions"


def test_the_certificate_is_written_to_the_given_file(turnwise, empty_folder):
    status, output, _ = turnwise(
        "certify", "orbit_vit", *SMALL, *QUICK, "--output", "new/c.json", "in_chans=3"
    )
    stored = json.loads((empty_folder / "new" / "c.json").read_text())
    assert status == 0
    assert output.endswith("written to new/c.json\n")
    assert stored["holds"] is True
    assert (stored["target"], stored["group"]) == ("orbit_vit", "C4")
    assert stored["images"].endswith("4 of shape (3, 28, 28)")
    assert [angle["degrees"] for angle in stored["angles"]] == [0.0, 180.0]
    assert len(stored["elements"]) == 4


def test_a_certificate_that_does_not_hold_is_written_too(turnwise, empty_folder):
    assert turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")[0] == 1
    assert json.loads((empty_folder / "c.json").read_text())["holds"] is False


def test_a_run_stores_its_certificate(turnwise, run):
    """It is certified on validation images of its own data, under its own group."""
    status, output, _ = turnwise("certify", run, *QUICK)
    stored = json.loads((run / "certificate.json").read_text())
    assert status == 0
    assert output.endswith(f"written to {run / 'certificate.json'}\n")
    assert stored["group"] == "C4"
    assert stored["images"].startswith("validation images of digits, 4 of shape")


def test_the_test_split_is_not_used(turnwise, run, monkeypatch):
    measured = []

    def spy(model, group, images, **words):
        measured.append(images)
        return measure(model, group, images, **words)

    monkeypatch.setattr("turnwise.evaluation.certificate.targets.certify", spy)
    assert turnwise("certify", run, *QUICK)[0] == 0
    assert torch.equal(measured[0], to_unit(load_dataset("digits").val.images[:4]))


def test_a_model_folder_is_certified_under_its_own_group(turnwise, empty_folder):
    save(create_model("orbit_vit", group="D2", **OPTIONS), "folder")
    status, output, _ = turnwise("certify", "folder", *QUICK)
    assert status == 0
    assert "INVARIANT under D2" in output
    assert (empty_folder / "folder" / "certificate.json").is_file()
    assert turnwise("certify", "folder", "--group", "D4", *QUICK)[0] == 1


def test_the_seed_draws_the_weights(turnwise, empty_folder):
    hashes = []
    for seed in (0, 0, 1):
        turnwise("certify", "vit", *SMALL, *QUICK, "--seed", seed, "--output", "c.json")
        hashes.append(json.loads((empty_folder / "c.json").read_text())["weights_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["orbit_vti"], "unknown model 'orbit_vti'. Did you mean 'orbit_vit'?"),
        (["nowhere/run"], "nowhere/run is neither a folder nor a model; `turnwise models` lists"),
        (["vit", "--group", "Q4"], "unknown group 'Q4'; write C or D and a number"),
        (["vit", "--group", "C4,Q4"], "unknown group 'Q4'"),
        (["vit", "group=Q4"], "unknown group 'Q4'"),
        (["vit", "widht=8"], "unknown option of vit 'widht'. Did you mean 'width'?"),
        (["vit", "width"], "an option is written key=value, e.g. width=64, got 'width'"),
        (["vit", "width=["], "the value of 'width=[' cannot be read"),
        (["vit", "name=vit"], "name=vit is no option; the model's name comes first"),
        (["vit", "image_size=30"], "patches of 4 pixels"),
        (["vit", "width=10"], "width = 10 must be a multiple of 4 (it is split over 4 heads)"),
        (["vit", "num_classes=-1"], "num_classes = -1 must be at least 0"),
        (["vit", "--images", "1"], "images = 1 must be at least 2"),
        (["vit", "--angles", "0"], "angles = 0 must be at least 1"),
        (["vit", "--sizes", "big"], "--sizes big must be whole numbers, such as 28,56"),
        (["vit", "--precisions", "float8"], "unknown precision 'float8'"),
        (["vit", "--channels", "2"], "channels = 2 must be 1 or 3"),
        (["vit", *SMALL, *QUICK, "--output", "c.html"], "is the JSON; end it in .json"),
        (["net.onnx"], "net.onnx does not exist; give a .pt2 or .onnx file"),
        (["no_such_code:net"], "No module named 'no_such_code'"),
        (["vit", "--data", "digist"], "Did you mean 'digits'?"),
    ],
)
def test_a_wrong_request_is_refused(refused, words, message):
    assert message in refused("certify", *words)


def test_an_empty_folder_is_refused(refused, empty_folder):
    (empty_folder / "empty").mkdir()
    assert "is not a model or run folder: it has no config.json" in refused("certify", "empty")


def test_a_folder_takes_no_options(refused, run):
    assert "is a folder and takes no options; leave them out" in refused("certify", run, "width=16")


def test_the_images_of_a_run_have_their_own_size(refused, run):
    error = refused("certify", run, "--size", "56")
    assert "28 pixels a side; leave channels and size out, or name another data set" in error


def test_an_output_that_cannot_be_written_is_refused(refused, empty_folder):
    (empty_folder / "file").touch()
    error = refused("certify", "vit", *SMALL, *QUICK, "--output", "file/c.json")
    assert "cannot write file/c.json" in error
    assert "choose another --output" in error


def test_a_group_without_exact_elements_is_refused(refused):
    error = refused("certify", "vit", "--group", "C3")
    assert "C3 has no element but the identity that maps pixels to pixels" in error


def test_a_page_is_written_beside_the_certificate(turnwise, empty_folder):
    _, output, _ = turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")
    assert "as a page: open c.html in a browser\n" in output
    page = (empty_folder / "c.html").read_text()
    assert "NOT INVARIANT under C4" in page
    assert "patches.project" in page


def test_the_layer_at_which_the_error_enters_is_reported(turnwise):
    output = turnwise("certify", "vit", *SMALL, *QUICK)[1]
    assert "The error enters at patches.project (Conv2d)" in output
    assert "enters at" not in turnwise("certify", "vit", *SMALL, *QUICK, "--no-layers")[1]


def test_several_groups_have_a_certificate_each(turnwise, empty_folder):
    """An orbit over C4 is invariant under C4, and not under D4."""
    words = ("certify", "orbit_vit", "group=C4", *SMALL, *QUICK, "--output", "c.json")
    assert turnwise(*words, "--group", "C4,D4")[0] == 1
    stored = {g: json.loads((empty_folder / f"c-{g}.json").read_text()) for g in ("C4", "D4")}
    assert [stored[g]["holds"] for g in ("C4", "D4")] == [True, False]
    assert not (empty_folder / "c.json").exists()


def test_sizes_precisions_shifts_and_data_can_be_chosen(turnwise, empty_folder):
    status, output, _ = turnwise(
        "certify", "orbit_vit", *SMALL, *QUICK, "--output", "c.json", "--data", "digits",
        "--sizes", "28,30", "--precisions", "float32", "--shifts", 2, "--chunk", 3,
    )  # fmt: skip
    stored = json.loads((empty_folder / "c.json").read_text())
    assert status == 0
    assert stored["images"].startswith("validation images of digits")
    assert [size["size"] for size in stored["sizes"]] == [28, 30]
    assert stored["sizes"][0]["float32"] < 1e-4
    assert "refused: the model takes images of shape (1, 28, 28)" in output
    assert stored["elements"][1]["float64"] is None
    assert sum(entry["kind"] == "shift" for entry in stored["transformations"]) == 8
    assert stored["request"]["chunk"] == 3


def test_an_exported_file_is_compared_with_its_original(turnwise, empty_folder):
    model = create_model("orbit_vit", group="C4", **OPTIONS).eval()
    save(model, "net")
    example = (torch.rand(2, 1, 28, 28),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, example), "net.pt2")
    status, output, _ = turnwise("certify", "net.pt2", *QUICK, "--against", "net")
    assert status == 0, "images are preprocessed as the model preprocesses them"
    assert "Agrees with net" in output
    torch.nn.init.ones_(model.model.head.weight)
    save(model, "net")
    status, output, _ = turnwise("certify", "net.pt2", *QUICK, "--against", "net")
    assert status == 1
    assert "DOES NOT AGREE with net" in output
    assert "FAILS" not in output


def test_a_certificate_that_still_holds_is_verified(turnwise, run):
    assert turnwise("certify", run, *QUICK)[0] == 0
    status, output, _ = turnwise("verify", run / "certificate.json")
    assert status == 0
    assert output.startswith(f"{run} under C4, on validation images")
    assert f"the file says that {run} was certified 20" in output
    assert output.endswith("\nSTILL HOLDS\n")


def test_verify_finds_changed_weights(turnwise, run):
    turnwise("certify", run, *QUICK)
    model = load(run)
    with torch.no_grad():
        model.model.head.bias += 1
    save(model, run / "model")
    status, output, _ = turnwise("verify", run / "certificate.json")
    assert status == 1
    assert "- the weights are not those that were certified\n" in output
    assert output.endswith("\nDOES NOT HOLD\n")


def test_verify_rejects_a_certificate_that_never_held(turnwise):
    turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")
    status, output, _ = turnwise("verify", "c.json")
    assert status == 1
    assert "its figures do not show invariance under C4" in output


def test_the_model_to_verify_may_be_elsewhere(turnwise, empty_folder):
    save(create_model("orbit_vit", group="C4", **OPTIONS), "net")
    turnwise("certify", "net", *QUICK, "--output", "c.json")
    (empty_folder / "net").rename(empty_folder / "renamed")
    assert turnwise("verify", "c.json", "--target", "renamed")[0] == 0


def test_verify_runs_code_only_if_the_command_names_it(turnwise, refused, empty_folder):
    (empty_folder / "own_code_to_verify.py").write_text(
        textwrap.dedent("""
            import turnwise
            from torch import nn

            def net():
                return turnwise.orbit(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "C4")
        """)
    )
    named = ("own_code_to_verify:net", "--size", 8)
    assert turnwise("certify", *named, *QUICK, "--output", "c.json")[0] == 0
    assert json.loads((empty_folder / "c.json").read_text())["holds"] is True
    error = refused("verify", "c.json")
    assert "is about the code own_code_to_verify:net, which a file must not run" in error
    assert turnwise("verify", "c.json", "--target", "own_code_to_verify:net")[0] == 0


@pytest.mark.parametrize("content", [None, "no JSON", "{}"])
def test_verify_refuses_what_is_no_certificate(refused, empty_folder, content):
    if content is not None:
        (empty_folder / "c.json").write_text(content)
    assert "c.json" in refused("verify", "c.json")
