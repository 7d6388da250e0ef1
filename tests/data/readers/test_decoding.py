"""Decoding in threads: unusable files are named, skipped or refused, and nothing else changes."""

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data.dataset import Target
from turnwise.data.readers import decoding
from turnwise.data.readers.decoding import decode_table, in_threads
from turnwise.data.readers.table import Table
from turnwise.data.reading import Reading
from turnwise.errors import InputError

SKIP = Reading(on_error="skip")


@pytest.fixture
def table(tmp_path):
    """Thirty images of 8×8, image i grey i, as a table with groups and splits."""
    files = []
    for i in range(30):
        files.append(tmp_path / f"{i:02}.png")
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(files[-1])
    values = torch.arange(30) % 2
    groups, splits = tuple(f"g{i}" for i in range(30)), ("train", "val", "test") * 10
    return Table(tuple(files), values, Target("class", ("a", "b")), splits, groups, "here")


def decode(table, size=None, channels=None, reading=SKIP):
    return decode_table(table, size, channels, reading)


def test_order_and_columns_stay_together(table):
    rows = decode(table)
    assert rows.examples.images[:, 0, 0, 0].tolist() == list(range(30))
    assert rows.examples.names[7].endswith("07.png") and rows.examples.groups[7] == "g7"
    assert rows.examples.labels.tolist() == (torch.arange(30) % 2).tolist()
    assert rows.splits == table.splits and not rows.skipped


def cut_off(file):
    """Keep the header of a PNG, 33 bytes, and the beginning of its pixels."""
    file.write_bytes(file.read_bytes()[:45])


@pytest.fixture
def faulty(table):
    table.files[3].write_bytes(b"")
    cut_off(table.files[5])
    Image.new("L", (9, 1)).save(table.files[8])
    return table


def test_unusable_files_are_skipped_and_listed(faulty):
    rows = decode(faulty)
    kept = [i for i in range(30) if i not in (3, 5, 8)]
    assert rows.examples.images[:, 0, 0, 0].tolist() == kept
    assert rows.examples.groups == tuple(f"g{i}" for i in kept)
    assert rows.examples.labels.tolist() == [i % 2 for i in kept]
    assert [s.file for s in rows.skipped] == [str(faulty.files[i]) for i in (3, 5, 8)]
    reasons = ["cannot be read", "cannot be read", "has 1×9 pixels and must have at least 4"]
    assert all(
        r in s.reason and s.file in s.reason for r, s in zip(reasons, rows.skipped, strict=True)
    )


def test_or_refused_by_name(faulty):
    message = (
        r"03\.png cannot be read .* 1 more cannot be used, .* on_error=skip leaves them out\.$"
    )
    with pytest.raises(InputError, match=message):
        decode(faulty, reading=Reading())


def test_an_odd_size_among_many(table):
    Image.new("L", (8, 12)).save(table.files[4])
    message = r"04\.png has 12×8 pixels, and 29 others have 8×8; remove it, or set image_size=8"
    with pytest.raises(InputError, match=message):
        decode(table, reading=Reading())
    assert [s.file for s in decode(table).skipped] == [str(table.files[4])]
    assert len(decode(table, size=6, reading=Reading()).examples) == 30, "all are resampled"


def test_a_smaller_least_side(table):
    Image.new("L", (2, 2)).save(table.files[4])
    assert len(decode(table, size=8).examples) == 29
    assert len(decode(table, size=8, reading=Reading(min_side=2)).examples) == 30


def test_nothing_is_left(table):
    for file in table.files:
        file.write_bytes(b"x")
    with pytest.raises(InputError, match="none of the images can be used"):
        decode(table)


def test_a_broken_body_in_all_files(table):
    for file in table.files:
        cut_off(file)
    with pytest.raises(InputError, match=r"none of the 30 images can be used: the image .*00\.png"):
        decode(table)


def test_progress_is_shown_for_many_files_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    list(in_threads(lambda i: i, range(500), "reading"))
    assert "reading" not in capsys.readouterr().err
    list(in_threads(lambda i: i, range(501), "reading"))
    assert "reading" in capsys.readouterr().err


def test_blocks_keep_the_order(monkeypatch):
    monkeypatch.setattr(decoding, "_BLOCK", 7)
    assert list(in_threads(lambda i: i * i, range(50), "x")) == [i * i for i in range(50)]
