"""The catalogue is complete, cheap, and answers a wrong name with a right one."""

import subprocess
import sys

import pytest

from turnwise.data.catalogue import CATALOGUE, entry
from turnwise.data.readers.sources import READERS
from turnwise.errors import InputError

NAMED = {"digits", "mnist", "fashionmnist", "rotmnist", "cifar10", "dermamnist_c", "eurosat"}


def test_the_promised_sets_are_there():
    assert set(CATALOGUE) >= NAMED | {"first_radio_galaxies", "pcam", "dermamnist"}
    assert len(CATALOGUE) == 22


def test_every_entry_has_a_reader_and_no_reader_is_alone():
    assert set(READERS) == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_entry_is_complete(name):
    found = entry(name)
    assert found.name == name and found.title and found.licence and found.citation and found.splits
    assert len(set(found.classes)) == len(found.classes) >= 2
    assert found.channels in (1, 3)
    assert found.files or name == "digits"
    assert not found.image_sizes or found.image_size in found.image_sizes
    assert all(len(d.md5) == 32 and d.url.startswith("http") for d in found.downloads)


def test_unknown_name_is_answered_with_the_nearest_and_with_folders():
    message = r"unknown data set 'mnits'\. Did you mean 'mnist'\? .* write folder:PATH\."
    with pytest.raises(InputError, match=message):
        entry("mnits")


def test_listing_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from turnwise.data.catalogue import CATALOGUE; "
        "from turnwise.data import entry; assert len(CATALOGUE) == 22 and entry('mnist'); "
        "print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_room_exports_what_it_says_and_nothing_else():
    import turnwise.data as room

    assert all(getattr(room, name) is not None for name in room.__all__)
    with pytest.raises(AttributeError, match="no attribute 'datasets'"):
        _ = room.datasets
