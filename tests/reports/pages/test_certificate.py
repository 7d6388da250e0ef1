"""Every measurement of a certificate is shown, on a page that needs nothing from outside."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.evaluation import Scope, certify
from turnwise.evaluation.transformations import describe_element, unclaimed_transformations
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.models import create_model
from turnwise.reports.pages.certificate import (
    angle_table,
    certificate_page,
    certificate_text,
    control_table,
    element_table,
    findings,
    layer_table,
    size_table,
    transform_by_name,
    transformation_table,
    verdict,
    worst_table,
)

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def certificate_of(name, target):
    torch.manual_seed(0)
    model = create_model(name, group="C4", **SMALL)
    scope, original = Scope(sizes=(8, 10)), ("twin", model)
    return certify(model, "C4", IMAGES, angles=4, scope=scope, original=original, target=target)


@pytest.fixture(scope="module")
def plain():
    return certificate_of("vit", "<my> net")


@pytest.fixture(scope="module")
def exact():
    return certificate_of("orbit_vit", "orbit")


@pytest.fixture(scope="module")
def html(plain):
    return certificate_page(plain, IMAGES)


def test_the_text_ends_with_the_verdict(plain, exact):
    assert certificate_text(exact).endswith("\n\nINVARIANT under C4")
    assert certificate_text(plain).endswith("\n\nNOT INVARIANT under C4")
    assert verdict(replace(exact, group="C8")) == "INVARIANT under C4, the exact subgroup of C8"


def test_elements_hold_or_fail(plain, exact):
    column = element_table(plain).headers.index("≤ 1e-10, ≤ 1e-4")
    assert [row[column] for row in element_table(plain).rows] == ["holds"] + 3 * ["FAILS"]
    assert {row[column] for row in element_table(exact).rows} == {"holds"}
    assert certificate_text(plain).count("FAILS") == 7, "elements, a size, conditions"


def test_only_precisions_that_were_measured_are_shown(plain):
    single = replace(plain, elements=tuple(replace(e, float64=None) for e in plain.elements))
    assert element_table(plain).headers[2:5] == ["float64", "float32", "≤ 1e-10, ≤ 1e-4"]
    assert element_table(single).headers[2:4] == ["float32", "≤ 1e-4"]


def test_sizes_hold_fail_or_are_refused(plain, exact):
    assert size_table(plain).rows[0][-1] == "FAILS"
    found = [row[-1] for row in size_table(exact).rows]
    assert found[0] == "holds"
    assert found[1].startswith("refused: the model takes images of shape")


@pytest.mark.parametrize(
    "make",
    [element_table, control_table, size_table, angle_table, transformation_table, worst_table,
     layer_table],
)  # fmt: skip
def test_every_row_has_a_cell_for_each_header(plain, make):
    table = make(plain)
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.headers)}


def test_the_text_shows_only_the_layers_near_the_source_of_the_error(plain, exact):
    shown = layer_table(plain, nearby=True).rows
    assert [row[0] for row in shown if row[-1] == "enters here"] == ["patches.project"]
    assert len(shown) < len(layer_table(plain).rows)
    assert layer_table(exact, nearby=True).rows == []


def test_findings_are_sentences(plain, exact):
    assert findings(plain)[0].startswith("The error enters at patches.project (Conv2d)")
    assert findings(exact) == ["Agrees with twin: change 0, same prediction 100.0 %."]
    unlike = replace(exact, original=replace(exact.original, change=0.5, agreement=0.0))
    assert findings(unlike)[0].startswith("DOES NOT AGREE with twin")


def test_failed_controls_are_reported(exact):
    failed = replace(exact, controls=tuple(replace(c, change=0.0) for c in exact.controls))
    assert [row[-1] for row in control_table(failed).rows] == ["FAILED"] * 3
    assert {row[-1] for row in control_table(exact).rows} == {"passed"}
    page = certificate_page(failed, IMAGES)
    assert f"failed negative controls: {exact.controls[0].name}, " in page


def test_worst_images_have_their_transformation_and_both_classes(plain):
    row, worst = worst_table(plain).rows[0], plain.worst_images[0]
    assert row[0] == str(worst.image)
    assert row[1] == worst.transformation
    assert row[4] == f"{worst.before} → {worst.after}"


def test_the_page_begins_with_the_verdict_and_the_source_of_the_error(html):
    broken = "broken by: rotate by 90°, rotate by 180°, rotate by 270°"
    assert f"NOT INVARIANT under C4; {broken}" in html
    source = html.index("The error enters at patches.project (Conv2d)")
    assert source < html.index("Claimed: the symmetries of the pixel grid")


def test_the_page_has_every_table(html, plain):
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html)
    assert headings == [
        "Verdict", "Claimed: the symmetries of the pixel grid",
        "Claimed: under other conditions", "Claimed: other sizes",
        "Negative controls: the output must change", "Measured: any angle",
        "Measured: reflections, shifts and filled corners", "Worst images", "Layer by layer",
        "Not tested", "Identity", "As JSON",
    ]  # fmt: skip
    assert all(check.layer in html for check in plain.layers)
    assert plain.weights_sha256 in html
    assert plain.data_sha256 in html


def test_a_section_without_rows_is_left_out(plain):
    assert "other sizes" not in certificate_page(replace(plain, sizes=()), IMAGES)


def test_names_from_outside_are_escaped(html):
    assert "Certificate: &lt;my&gt; net" in html
    assert "<my>" not in html


def test_the_page_needs_nothing_from_outside(html):
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "http://" not in html
    assert "<script" not in html


def decoded(address):
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return torch.from_numpy(np.array(Image.open(io.BytesIO(content))))


def test_the_worst_images_are_shown_before_and_after(plain, html):
    addresses = re.findall(r'src="(data:image/png[^"]*)"', html)
    assert len(addresses) == 2 * len(plain.worst_images)
    worst = plain.worst_images[0]
    before, after = (decoded(address).double() / 255 for address in addresses[:2])
    assert (before - IMAGES[worst.image, 0].double()).abs().max() < 0.01
    expected = transform_by_name(worst.transformation, IMAGES[worst.image][None])[0, 0]
    assert (after - expected).abs().max() < 0.01
    assert not torch.equal(before, after)


@pytest.mark.parametrize("g", range(8))
def test_a_description_leads_back_to_its_element(g):
    d4 = PlanarGroup.named("D4")
    assert torch.equal(
        transform_by_name(describe_element(d4, g), IMAGES), act_on_image(d4, g, IMAGES)
    )


def test_a_description_leads_back_to_its_shift_or_reflection():
    for transformation in unclaimed_transformations(PlanarGroup.named("C4"), 3):
        found = transform_by_name(transformation.meaning, IMAGES)
        assert torch.equal(found, transformation.apply(IMAGES))


def test_a_certificate_that_holds_says_so(exact):
    page = certificate_page(exact, IMAGES)
    assert "INVARIANT under C4: every element holds, and every negative control passed." in page
    assert "NOT INVARIANT" not in page


def test_images_of_two_channels_are_shown(plain):
    assert "data:image/png" in certificate_page(plain, IMAGES.repeat(1, 2, 1, 1))
