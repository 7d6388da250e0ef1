"""The page holds the verdict and every table, needs nothing from outside, and escapes words."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.evaluation import certify
from turnwise.evaluation.certificate.moves import unclaimed_moves
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.models import create_model
from turnwise.reports.pages.certificate import _moved, certificate_page

IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def certificate():
    torch.manual_seed(0)
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8)
    return certify(model, "C4", IMAGES, angles=4, target="<my> net")


@pytest.fixture(scope="module")
def html(certificate):
    return certificate_page(certificate, IMAGES)


def test_the_verdict_and_the_fault_stand_first(html):
    assert "NOT INVARIANT under C4; broken by: turn by 90°, turn by 180°, turn by 270°." in html
    assert html.index("The error enters at patches.project (Conv2d)") < html.index(
        "What is claimed"
    )


def test_every_table_is_there(html, certificate):
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html)
    assert headings == [
        "Verdict", "What is claimed", "Controls: what must move the answer", "Turned by any angle",
        "Mirrors and shifts", "Worst pictures", "Layer by layer", "Identity", "The same as JSON",
    ]  # fmt: skip
    for layer in certificate.layers:
        assert layer.layer in html
    assert certificate.weights_sha256 in html
    assert certificate.data_sha256 in html


def test_names_from_outside_are_escaped(html):
    assert "Certificate: &lt;my&gt; net" in html
    assert "<my>" not in html


def test_it_needs_nothing_from_outside(html):
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "http://" not in html
    assert "<script" not in html


def decoded(address):
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return torch.from_numpy(np.array(Image.open(io.BytesIO(content))))


def test_the_worst_pictures_are_shown_before_and_after(certificate, html):
    addresses = re.findall(r'src="(data:image/png[^"]*)"', html)
    assert len(addresses) == 2 * len(certificate.worst)
    worst = certificate.worst[0]
    shown = decoded(addresses[0]).double() / 255
    assert (shown - IMAGES[worst.picture, 0].double()).abs().max() < 0.01
    moved = decoded(addresses[1]).double() / 255
    expected = _moved("C4", worst.move, IMAGES[worst.picture][None])[0, 0]
    assert (moved - expected).abs().max() < 0.01
    assert not torch.equal(decoded(addresses[0]), decoded(addresses[1]))


@pytest.mark.parametrize("g", range(8))
def test_words_lead_back_to_the_move(g):
    from turnwise.evaluation.certificate.moves import describe_element

    d4 = PlanarGroup.named("D4")
    assert torch.equal(_moved("D4", describe_element(d4, g), IMAGES), act_on_image(d4, g, IMAGES))


def test_words_lead_back_to_shifts_and_mirrors():
    for move in unclaimed_moves(PlanarGroup.named("C4"), 3):
        assert torch.equal(_moved("C4", move.meaning, IMAGES), move.apply(IMAGES))


def test_a_certificate_that_holds_says_so(certificate):
    fine = tuple(replace(e, float64=0.0, float32=0.0) for e in certificate.elements)
    page = certificate_page(replace(certificate, elements=fine, entry=""), IMAGES)
    assert "INVARIANT under C4: every element holds, and every control speaks." in page
    assert "NOT INVARIANT" not in page


def test_pictures_of_two_channels_are_shown(certificate):
    assert "data:image/png" in certificate_page(certificate, IMAGES.repeat(1, 2, 1, 1))
