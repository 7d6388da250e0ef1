"""Maps of a row are the first one, moved; what is left of the law is drawn under them."""

import numpy as np
import pytest

from turnwise.errors import InputError
from turnwise.reports.figures.features import element_names, features_figure


def maps_of(figure, columns):
    """The images of the cells, row by row."""
    cells = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    return [cells[i : i + columns] for i in range(0, len(cells), columns)]


@pytest.mark.parametrize("name", ["gsa_net", "orbit_vit", "turnwise_vit_nano"])
def test_every_map_of_a_row_is_the_first_one_turned(make_subject, name):
    figure, rows = features_figure(make_subject(name), picture=3)
    for shown, difference in zip(*[iter(maps_of(figure, 4)[1:])] * 2, strict=True):
        for k in range(4):
            np.testing.assert_allclose(shown[k], np.rot90(shown[0], k), atol=1e-4)
            assert np.abs(difference[k]).max() < 1e-4
    assert all(float(cell) < 1e-4 for _, *cells in rows for cell in cells)


def test_witness_the_maps_show_something(make_subject):
    figure, _ = features_figure(make_subject("gsa_net"), picture=3)
    assert all(np.ptp(row[0]) > 1e-3 for row in maps_of(figure, 4)[1::2])


def test_control_a_plain_network_leaves_a_difference(make_subject):
    figure, rows = features_figure(make_subject("vit"), picture=3)
    assert all(np.abs(row[1]).max() > 0.01 for row in maps_of(figure, 4)[2::2])
    assert all(float(cells[1]) > 0.1 for _, *cells in rows)


def test_rows_and_columns_are_named(make_subject):
    subject = make_subject("turnwise_vit_nano", "D4")
    figure, rows = features_figure(subject, picture=3, channel=1)
    assert [row[0] for row in rows] == ["stem 1", "block 1", "block 2"]
    assert len(element_names(subject)) == len(rows[0]) - 1 == 8
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels == ["stem 1", "difference", "block 1", "difference", "block 2", "difference"]


def test_a_channel_that_no_layer_has_is_refused(make_subject):
    for channel in (-1, 9999):
        with pytest.raises(
            InputError, match=rf"--channel {channel} must be from 0 to \d+; narrower"
        ):
            features_figure(make_subject("gsa_net"), channel=channel)


def test_a_finer_group_shows_its_exact_part(make_subject):
    _, rows = features_figure(make_subject("turnwise_vit_nano", "C8"), picture=3)
    assert all(len(row) == 5 for row in rows)
    assert all(float(cell) < 1e-4 for _, *cells in rows for cell in cells)
