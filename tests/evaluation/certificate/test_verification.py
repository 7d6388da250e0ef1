"""A certificate that still holds is confirmed; whatever has changed is objected to."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation.certificate.certificate import from_plain
from turnwise.evaluation.certificate.targets import Request, certify_request, open_target
from turnwise.evaluation.certificate.verification import read_certificate, verify
from turnwise.files import write_json
from turnwise.models import create_model, load, save

SMALL = {"width": 16, "depth": 1, "heads": 2, "patch": 7}
ASKED = {"group": "C4", "pictures": 3, "angles": 2}


def certified(target, path, **words):
    request = Request(str(target), **{**ASKED, **words})
    certificate, _ = certify_request(request, open_target(request))
    write_json(path, certificate.plain())
    return certificate


@pytest.fixture
def folder(tmp_path):
    """A model folder with its certificate inside."""
    save(create_model("orbit_vit", group="C4", **SMALL), tmp_path / "net")
    certified(tmp_path / "net", tmp_path / "net" / "certificate.json")
    return tmp_path / "net"


def edit(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def test_a_certificate_comes_back_as_it_was(folder):
    again, claimed = read_certificate(folder / "certificate.json")
    assert claimed is again.holds is True
    assert again.plain() == from_plain(json.loads(json.dumps(again.plain()))).plain()
    assert [e.meaning for e in again.elements][1] == "turn by 90°"


def test_infinite_figures_come_back(tmp_path, folder):
    certificate, _ = read_certificate(folder / "certificate.json")
    broken = replace(certificate.elements[1], float64=float("inf"))
    write_json(tmp_path / "c.json", replace(certificate, elements=(broken,)).plain())
    again, claimed = read_certificate(tmp_path / "c.json")
    assert again.elements[0].float64 == float("inf")
    assert claimed is again.holds is False


def test_nothing_changed(folder):
    found = verify(folder / "certificate.json")
    assert found.holds
    assert found.objections == ()
    assert found.now.weights_sha256 == found.before.weights_sha256


def test_a_folder_may_move_with_its_certificate(folder, tmp_path):
    moved = shutil.move(folder, tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere" / "certificate.json").holds
    assert moved


def test_a_copy_is_measured_itself(folder, tmp_path):
    """Though what it was copied from is still there, and as it was."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert verify(copy / "certificate.json").holds
    model = load(copy)
    with torch.no_grad():
        model.model.head.bias += 0.5
    save(model, copy)
    assert not verify(copy / "certificate.json").holds
    assert verify(folder / "certificate.json").holds


def test_a_name_is_no_folder_wherever_its_certificate_lies(folder):
    settings = tuple(f"{key}={value}" for key, value in SMALL.items())
    request = Request("orbit_vit", group="C4", settings=settings, angles=1, layers=False)
    certificate, _ = certify_request(request, open_target(request))
    write_json(folder / "other.json", certificate.plain())
    assert verify(folder / "other.json").holds


def test_other_weights_are_objected_to(folder):
    """They are as invariant as the old ones, and not those that were certified."""
    model = load(folder)
    with torch.no_grad():
        model.model.head.bias += 0.5
    save(model, folder)
    assert verify(folder / "certificate.json").objections == (
        "the weights are not those that were certified",
    )


def test_a_model_that_broke_is_objected_to(folder):
    save(create_model("vit", **SMALL), folder)
    found = verify(folder / "certificate.json").objections
    assert len(found) == 2
    assert found[1].startswith("measured again, under C4: “turn by 90°” fails")
    assert "; the error enters at patches.project" in found[1]


def test_other_pictures_are_objected_to(folder):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain["request"].update(pictures=4))
    assert "the pictures are not those that it was measured on" in verify(path).objections


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": "D4", "exact_part": "D4"}, "group"),
        ({"elements": []}, "elements"),
        ({"controls": []}, "controls"),
        ({"target": "another"}, "target"),
        ({"pictures": "others"}, "pictures"),
    ],
)
def test_what_it_is_about_cannot_be_changed(folder, change, said):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain.update(change))
    assert f"under “{said}” it has not what it says was asked for" in verify(path).objections


def test_other_precisions_cannot_be_asked_for_afterwards(folder):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain["request"].update(precisions=["bfloat16"]))
    assert any("elements" in objection for objection in verify(path).objections)


def test_a_forged_verdict_is_objected_to(tmp_path):
    """The verdict was changed to yes, the figures were not."""
    save(create_model("vit", **SMALL), tmp_path / "net")
    certified(tmp_path / "net", tmp_path / "c.json")
    edit(tmp_path / "c.json", lambda plain: plain.update(holds=True))
    found = verify(tmp_path / "c.json").objections
    assert "the verdict in the file is not the one that its own figures give" in found
    assert "its figures do not show invariance under C4" in found


def test_a_named_model_is_made_again_from_its_seed(tmp_path):
    settings = ("width=16", "depth=1", "heads=2", "patch=7")
    certified("orbit_vit", tmp_path / "c.json", settings=settings, seed=3)
    assert verify(tmp_path / "c.json").holds
    edit(tmp_path / "c.json", lambda plain: plain["request"].update(seed=4))
    assert not verify(tmp_path / "c.json").holds


@pytest.mark.parametrize("word", ["target", "against"])
def test_a_file_does_not_choose_code_to_run(folder, tmp_path, word):
    path = folder / "certificate.json"
    hostile = {word: "os:mkdir", "settings": [f"path={tmp_path / 'ran'}"]}
    edit(path, lambda plain: plain["request"].update(hostile))
    with pytest.raises(InputError, match=f"a file must not run; if you trust .* --{word} os:mkdir"):
        verify(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.pop("format"), "no certificate of format 2"),
        (lambda plain: plain.pop("elements"), "damaged, at : lacks elements"),
        (lambda plain: plain.update(request={}), "does not say how it was made"),
        (lambda plain: plain["request"].pop("target"), "its request lacks"),
        (lambda plain: plain["request"].update(pictures="many"), "must be a whole number"),
    ],
)
def test_a_damaged_certificate_is_refused(folder, change, said):
    edit(folder / "certificate.json", change)
    with pytest.raises(InputError, match=said):
        verify(folder / "certificate.json")


@pytest.mark.parametrize("content", ["", "[1, 2]", "not JSON"])
def test_what_is_no_certificate_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(InputError):
        read_certificate(tmp_path / "c.json")


def test_a_model_that_is_gone(folder):
    path = folder / "certificate.json"
    shutil.copy(path, folder.parent / "c.json")
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="neither a folder nor a model"):
        verify(folder.parent / "c.json")
