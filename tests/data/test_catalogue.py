"""The catalogue is complete, checked, cheap to import, and part of the wheel."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from turnwise.data.catalogue import CATALOGUE, PATH, Download, entry, read_catalogue
from turnwise.data.readers import all_readers, find_reader
from turnwise.data.storage import checksum
from turnwise.errors import InputError

NAMED = {"digits", "mnist", "fashionmnist", "rotmnist", "cifar10", "dermamnist_c", "eurosat"}
MEDMNIST = [e for e in CATALOGUE.values() if e.reader == "medmnist"]
SIZES = (28, 64, 128, 224)
MD5 = "0" * 32


def test_the_documented_sets_are_there():
    assert set(CATALOGUE) >= NAMED | {"first_radio_galaxies", "pcam", "dermamnist", "tiles"}


def test_every_entry_has_a_reader_and_every_reader_is_used():
    assert set(all_readers()) == {e.reader for e in CATALOGUE.values()}
    with pytest.raises(InputError, match=r"unknown reader 'nzp'\. Did you mean 'npz'"):
        find_reader("nzp")


@pytest.mark.parametrize("name", CATALOGUE)
def test_entry_is_complete(name):
    found = entry(name)
    assert found.name == name and found.title and found.licence and found.citation and found.splits
    assert len(set(found.classes)) == len(found.classes) >= 2
    assert found.channels in (1, 3)
    assert found.files or name in ("digits", "tiles"), "those ship with turnwise"
    assert all(isinstance(file, str) for form in found.files for file in form)
    assert not found.image_sizes or found.image_size in found.image_sizes
    assert all(len(d.md5) == 32 and d.url.startswith("http") for d in found.downloads)


def test_the_error_for_an_unknown_name_suggests_the_nearest_and_folders():
    message = r"unknown data set 'mnits'\. Did you mean 'mnist'\? .* write folder:PATH\."
    with pytest.raises(InputError, match=message):
        entry("mnits")


def test_listing_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from turnwise.data.catalogue import CATALOGUE; "
        "from turnwise.data import entry; assert 'digits' in CATALOGUE and entry('mnist'); "
        "print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_exports_its_public_names_and_nothing_else():
    import turnwise.data as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'datasets'"):
        _ = package.datasets


def test_eleven_medmnist_sets_and_not_the_multi_label_one():
    assert len(MEDMNIST) == 11
    assert "chestmnist" not in CATALOGUE


@pytest.mark.parametrize("found", MEDMNIST, ids=lambda e: e.name)
def test_every_medmnist_size_has_a_download(found):
    assert [d.image_size for d in found.downloads] == list(SIZES) == list(found.image_sizes)
    assert len({d.md5 for d in found.downloads}) == 4
    for download in found.downloads:
        assert download.url.startswith("https://zenodo.org/records/10519652/files/")
        assert download.file.split("/")[1] in download.url
        suffix = "" if download.image_size == 28 else f"_{download.image_size}"
        assert download.file == f"{found.name}/{found.name}{suffix}.npz"


def test_no_checksum_is_used_twice():
    checksums = [d.md5 for e in CATALOGUE.values() for d in e.downloads]
    assert len(set(checksums)) == len(checksums) == 59


def test_the_checksum_is_that_of_the_real_file(real_data):
    download = entry("breastmnist").downloads[0]
    assert checksum(real_data / download.file, "md5") == download.md5


def with_downloads(*downloads):
    return replace(entry("eurosat"), downloads=downloads)


def test_only_the_files_of_the_requested_size_are_downloaded():
    small, large = (Download("https://u", name, MD5, size) for name, size in (("a", 28), ("b", 64)))
    assert with_downloads(small, large).downloads_of(64) == (large,)
    assert with_downloads(small, large).downloads_of(32) == ()


def test_files_without_a_size_belong_to_every_size():
    images, labels = (Download("https://u", name, MD5) for name in "ab")
    assert with_downloads(images, labels).downloads_of(64) == (images, labels)
    assert with_downloads(images, labels).downloads_of() == (images, labels)


ENTRY = """
datasets:
  toy:
    {title: Toy, reader: npz, classes: [a, b], channels: 1, image_size: 28, splits: 1 / 1 / 1,
     licence: none, citation: none, files: [toy/toy.npz, [toy/a.npz, toy/b.npz]],
     url: "https://example.org/{file}?x=1", downloads: [{file: toy/toy.npz, md5: MD5}]}
"""


def read(tmp_path, *change):
    (tmp_path / "c.yaml").write_text(ENTRY.replace("MD5", f"'{MD5}'").replace(*change))
    return read_catalogue(tmp_path / "c.yaml")["toy"]


def test_an_entry_is_read_from_yaml(tmp_path):
    found = read(tmp_path, "", "")
    assert (found.name, found.classes) == ("toy", ("a", "b"))
    assert found.files == (("toy/toy.npz",), ("toy/a.npz", "toy/b.npz"))
    assert found.downloads == (Download("https://example.org/toy.npz?x=1", "toy/toy.npz", MD5),)
    assert read(tmp_path, "files: [toy/toy.npz, [toy/a.npz, toy/b.npz]],", "").files == (
        ("toy/toy.npz",),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[a, b]", "[a, a]", "toy must have two or more different class names"),
        ("[a, b]", "[1, 2]", "toy must have class names that are texts"),
        ("channels: 1", "channels: 2", "toy must have 1 or 3 channels"),
        ("image_size: 28", "image_size: 28, image_sizes: [64]", "no file for its image_size = 28"),
        ("https://", "http://", "is not a web address that begins with https"),
        (f"'{MD5}'", "123", "'123' is not an md5 checksum"),
    ],
)
def test_mistakes_in_the_catalogue_are_reported(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, old, new)


def test_the_catalogue_is_inside_the_package():
    """The wheel holds every file below src/turnwise, so a file beside the module is shipped."""
    import turnwise.data

    assert PATH.parent == Path(turnwise.data.__file__).parent and PATH.is_file()
