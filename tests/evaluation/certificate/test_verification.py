"""A certificate that still holds is confirmed; anything that has changed is objected to."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation.certificate.certificate import from_plain, read_certificate
from turnwise.evaluation.certificate.targets import Request, certify_request, open_target
from turnwise.evaluation.certificate.verification import find_objections, verify
from turnwise.files import write_json
from turnwise.models import create_model, load, save

SMALL = {"width": 16, "depth": 1, "heads": 2, "patch": 7}
OLD = Path(__file__).parents[2] / "regression" / "version_0_1_0" / "flagship"


def certify_to(path, target, **fields):
    request = Request(str(target), **{"group": "C4", "images": 3, "angles": 2, **fields})
    certificate, _ = certify_request(request, open_target(request))
    write_json(path, certificate.plain())


@pytest.fixture
def folder(tmp_path):
    """A model folder with its certificate inside."""
    save(create_model("orbit_vit", group="C4", **SMALL), tmp_path / "net")
    certify_to(tmp_path / "net" / "certificate.json", tmp_path / "net")
    return tmp_path / "net"


def edit(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def change_weights(folder):
    """Change a bias, which leaves the model invariant."""
    model = load(folder)
    with torch.no_grad():
        model.model.head.bias += 0.5
    save(model, folder)


def test_an_unchanged_model_is_confirmed(folder):
    found = verify(folder / "certificate.json")
    assert found.holds
    assert found.objections == ()
    assert found.now.weights_sha256 == found.before.weights_sha256


@pytest.mark.usefixtures("digits_0_1_0")
def test_a_certificate_of_version_0_1_0_is_confirmed(tmp_path):
    copied = shutil.copytree(OLD, tmp_path / "flagship")
    assert verify(copied / "certificate.json").objections == ()


def test_a_folder_may_move_with_its_certificate(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere" / "certificate.json").holds


def test_a_copy_is_measured_instead_of_its_original(folder, tmp_path):
    """Even if the original is still there and unchanged."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert verify(copy / "certificate.json").holds
    change_weights(copy)
    assert not verify(copy / "certificate.json").holds
    assert verify(folder / "certificate.json").holds


def test_a_registered_name_is_no_folder_wherever_its_certificate_lies(folder):
    settings = tuple(f"{key}={value}" for key, value in SMALL.items())
    certify_to(folder / "other.json", "orbit_vit", settings=settings, layers=False)
    assert verify(folder / "other.json").holds


def test_other_weights_are_objected_to(folder):
    """They are as invariant as the old ones, but not those that were certified."""
    change_weights(folder)
    found = verify(folder / "certificate.json")
    assert "the weights are not those that were certified" in found.objections
    assert found.now.holds


def test_a_model_that_is_no_longer_invariant_is_objected_to(folder):
    save(create_model("vit", **SMALL), folder)
    found = verify(folder / "certificate.json").objections
    assert "the weights are not those that were certified" in found
    assert found[-1].startswith("measured again, under C4: “rotate by 90°” fails")
    assert "; the error enters at patches.project" in found[-1]


def test_other_images_are_objected_to(folder):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain["request"].update(images=4))
    assert "the images are not those that it was measured on" in verify(path).objections


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"group": "D4", "exact_subgroup": "D4"}, "group"),
        ({"elements": []}, "elements"),
        ({"controls": []}, "controls"),
        ({"target": "another"}, "target"),
        ({"images": "others"}, "images"),
    ],
)
def test_the_contents_must_fit_the_request(folder, change, name):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain.update(change) or plain.pop("untested"))
    wanted = f"“{name}” "
    assert any(objection.startswith(wanted) for objection in verify(path).objections)


def test_the_requested_precisions_cannot_be_changed(folder):
    path = folder / "certificate.json"
    edit(path, lambda plain: plain["request"].update(precisions=["bfloat16"]))
    assert any("elements" in objection for objection in verify(path).objections)


def test_a_forged_verdict_is_objected_to(tmp_path):
    """The verdict was changed to true, the figures were not."""
    save(create_model("vit", **SMALL), tmp_path / "net")
    certify_to(tmp_path / "c.json", tmp_path / "net")
    edit(tmp_path / "c.json", lambda plain: plain.update(holds=True))
    found = verify(tmp_path / "c.json").objections
    assert "the verdict in the file does not follow from its own figures" in found
    assert "its figures do not show invariance under C4" in found


def test_an_untrained_model_is_built_again_from_its_seed(tmp_path):
    settings = tuple(f"{key}={value}" for key, value in SMALL.items())
    certify_to(tmp_path / "c.json", "orbit_vit", settings=settings, seed=3)
    assert verify(tmp_path / "c.json").holds
    edit(tmp_path / "c.json", lambda plain: plain["request"].update(seed=4))
    assert not verify(tmp_path / "c.json").holds


@pytest.mark.parametrize("key", ["target", "against"])
def test_a_file_does_not_choose_code_to_run(folder, tmp_path, key):
    path = folder / "certificate.json"
    hostile = {key: "os:mkdir", "settings": [f"path={tmp_path / 'ran'}"]}
    edit(path, lambda plain: plain["request"].update(hostile))
    with pytest.raises(InputError, match=f"the code os:mkdir, .* give it yourself as `{key}`"):
        verify(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.pop("format"), "no certificate of format 3"),
        (lambda plain: plain.pop("elements"), r"damaged, at \$: 'elements' is a required property"),
        (lambda plain: plain.update(request={}), "does not say how to repeat the measurement"),
        (lambda plain: plain["request"].pop("target"), "its request lacks"),
        (lambda plain: plain["request"].update(images="many"), "must be a whole number"),
    ],
)
def test_a_damaged_certificate_is_refused(folder, change, message):
    edit(folder / "certificate.json", change)
    with pytest.raises(InputError, match=message):
        verify(folder / "certificate.json")


def test_a_model_that_was_removed(folder):
    path = folder / "certificate.json"
    shutil.copy(path, folder.parent / "c.json")
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="neither a folder nor a model"):
        verify(folder.parent / "c.json")


def first(name, **changes):
    return lambda plain: plain[name][0].update(changes)


FORGERIES = {
    "agreement at an angle": lambda plain: plain["angles"][1].update(agreement=0.5),
    "margin at an angle": first("angles", margin=0.9),
    "probability of a shift": first("transformations", probability=0.0),
    "change of a shift": first("transformations", change=0.0),
    "a shift less": lambda plain: plain["transformations"].pop(),
    "an invented angle": lambda plain: plain["angles"].append(plain["angles"][0]),
    "an invented size": lambda plain: plain["sizes"].append(
        {
            "size": 56,
            "float64": 0.0,
            "float32": 0.0,
            "bfloat16": None,
            "float16": None,
            "refusal": "",
        }
    ),
    "a control": first("controls", change=9.0),
    "the threshold of a control": first("controls", threshold=1e-3),
    "a condition": first("conditions", condition="all images of the world"),
    "an invented condition": lambda plain: plain["conditions"].append(plain["conditions"][0]),
    "the worst image": first("worst_images", probability=0.0),
    "the class of the worst image": first("worst_images", after=77),
    "an error of a layer": first("layers", output_error=0.5),
    "a layer": first("layers", layer="another"),
    "an exact original": lambda plain: plain.update(
        original={"target": "x", "weights_sha256": "0" * 64, "change": 0.0, "agreement": 1.0}
    ),
    "the source of an error": lambda plain: plain.update(error_source="nowhere"),
    "other programs": lambda plain: plain["versions"].update(endorsed_by="everyone"),
    "the name": lambda plain: plain.update(target="another"),
    "no meaning": lambda plain: plain.pop("model"),
    "the classes": lambda plain: plain["model"].update(classes=["yes", "no"]),
    "an option": lambda plain: plain["model"]["options"].update(combine="max"),
}


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified") / "net"
    torch.manual_seed(0)
    save(create_model("orbit_vit", group="C4", **SMALL), folder)
    certify_to(folder / "certificate.json", folder, angles=8)
    return folder / "certificate.json", verify(folder / "certificate.json").now


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_an_edited_figure_is_objected_to(certified, tmp_path, change):
    """Thirteen such edits were once accepted."""
    path, now = certified
    plain = json.loads(path.read_text())
    change(plain)
    plain["untested"] = list(from_plain(plain).untested)
    (tmp_path / "c.json").write_text(json.dumps(plain))
    before, stated = read_certificate(tmp_path / "c.json")
    assert find_objections(before, now, stated)


def test_a_certificate_cannot_pass_for_an_older_one(certified, tmp_path):
    """Without its conditions it was compared by its claims alone: other figures could be edited."""
    path, now = certified
    plain = json.loads(path.read_text())
    plain["request"].update(conditions=False, fresh=0)
    plain["conditions"] = []
    plain["angles"][1].update(agreement=0.5)
    plain["untested"] = list(from_plain(plain).untested)
    (tmp_path / "c.json").write_text(json.dumps(plain))
    before, stated = read_certificate(tmp_path / "c.json")
    assert "angles" in find_objections(before, replace(now, conditions=()), stated)[0]
    del plain["request"]["conditions"]
    (tmp_path / "c.json").write_text(json.dumps(plain))
    with pytest.raises(InputError, match="its request does not state “conditions”; certify again"):
        read_certificate(tmp_path / "c.json")


def test_what_the_certificate_does_not_cover_cannot_be_edited(certified, tmp_path):
    plain = json.loads(certified[0].read_text())
    plain["untested"] = []
    (tmp_path / "c.json").write_text(json.dumps(plain))
    with pytest.raises(InputError, match="“untested” does not follow from its figures"):
        read_certificate(tmp_path / "c.json")


def test_rounding_on_another_machine_is_no_forgery(certified, tmp_path):
    path, now = certified
    plain = json.loads(path.read_text())
    plain["elements"][1].update(float64=3e-16, float32=2e-7)
    plain["angles"][1]["change"] *= 1 + 1e-5
    (tmp_path / "c.json").write_text(json.dumps(plain))
    before, stated = read_certificate(tmp_path / "c.json")
    assert find_objections(before, now, stated) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["classes"].reverse(), r"classes\[0\] was '0' and is '9'"),
        (lambda c: c["options"].update(combine="max"), "combine was 'mean' and is 'max'"),
    ],
)
def test_the_weights_must_mean_the_same(tmp_path, change, words):
    """The weights are unchanged; what their outputs mean is not."""
    model = create_model("orbit_vit", group="C4", **SMALL)
    save(model, tmp_path / "net", classes=[str(i) for i in range(10)])
    certify_to(tmp_path / "net" / "certificate.json", tmp_path / "net", angles=1, layers=False)
    edit(tmp_path / "net" / "config.json", change)
    objections = verify(tmp_path / "net" / "certificate.json").objections
    assert any(re.search(f"do not mean what they meant: .*{words}", o) for o in objections)
