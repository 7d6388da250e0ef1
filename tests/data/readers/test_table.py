"""Groups from folder levels and from file names."""

from pathlib import PurePath

import pytest

from turnwise.data.readers.table import groups_of
from turnwise.errors import InputError

PATHS = [PurePath("a/p1/s7/x_3.png"), PurePath("b/p2/s8/y_4.png")]


@pytest.mark.parametrize(
    ("group_by", "groups"),
    [
        ("level:1", ("a", "b")),
        ("level:2", ("p1", "p2")),
        ("level:-1", ("s7", "s8")),
        ("level:-3", ("a", "b")),
        ("^[xy]", ("x", "y")),
        (r"_(\d)", ("3", "4")),
        (r"\.png$", (".png", ".png")),
    ],
)
def test_groups(group_by, groups):
    assert groups_of(PATHS, group_by) == groups


@pytest.mark.parametrize(
    ("group_by", "message"),
    [
        ("level:4", r"level:4 does not apply to a/p1/s7/x_3\.png, which lies in 3 folders"),
        ("level:0", "must name a level, 1 for the first folder or -1 for the last; try level:1"),
        ("level:one", "must name a level"),
        ("(", r"group_by = '\(' is no regular expression \(.*\); write one such as"),
        ("^x", r"group_by = '\^x' finds nothing in the file name y_4\.png; it must match"),
        ("p1", "finds nothing in the file name x_3"),
        ("(q)?x", "finds nothing in the file name x_3"),
    ],
)
def test_wrong_groups(group_by, message):
    with pytest.raises(InputError, match=message):
        groups_of(PATHS, group_by)
