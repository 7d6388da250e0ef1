"""The slider over the angles: the frames, the share of pixels that keep their class, the page."""

from turnwise.reports.pages.report import choose_examples, report_page
from turnwise.reports.pages.rotated_masks import ANGLES, masks_data


def test_the_report_has_a_slider_over_the_angles(mask_models):
    shown = choose_examples(mask_models, 2)
    data = masks_data(mask_models, shown)
    exact, plain = data["models"]
    assert len(exact["frames"]) == len(data["angles"]) == ANGLES
    quarter = data["angles"].index(90)
    assert exact["kept"][quarter] == "100.0 %" != plain["kept"][quarter]
    html = report_page("T", mask_models, shown, note="", commands="x")
    assert 'id="masks-angle"' in html and exact["frames"][3] in html
    assert "explorer-angle" not in html
