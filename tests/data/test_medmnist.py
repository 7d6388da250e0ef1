"""The MedMNIST table: complete, without the multi-label set, with well-formed checksums."""

import re

import pytest

from turnwise.data.downloads import md5_of
from turnwise.data.medmnist import MEDMNIST, SIZES


def test_eleven_sets_and_not_the_multi_label_one():
    names = {entry.name for entry in MEDMNIST}
    assert len(names) == len(MEDMNIST) == 11
    assert "chestmnist" not in names


@pytest.mark.parametrize("entry", MEDMNIST, ids=lambda e: e.name)
def test_every_size_has_a_download_with_a_checksum(entry):
    assert [d.image_size for d in entry.downloads] == list(SIZES)
    assert all(re.fullmatch("[0-9a-f]{32}", d.md5) for d in entry.downloads)
    assert len({d.md5 for d in entry.downloads}) == 4
    for download in entry.downloads:
        assert download.url.startswith("https://zenodo.org/records/10519652/files/")
        assert download.file.split("/")[1] in download.url


def test_no_checksum_is_used_twice():
    checksums = [d.md5 for entry in MEDMNIST for d in entry.downloads]
    assert len(set(checksums)) == len(checksums) == 44


def test_the_checksum_is_that_of_the_real_file(real_data):
    [entry] = [e for e in MEDMNIST if e.name == "breastmnist"]
    assert md5_of(real_data / entry.downloads[0].file) == entry.downloads[0].md5
