"""Every set of the catalogue from little files in each of its formats, the preferred first."""

import gzip
import hashlib
import http.server
import shutil
import sys
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from turnwise.data.catalogue import CATALOGUE, entry
from turnwise.data.readers import amat
from turnwise.data.readers import rotated_mnist as rotated_digits
from turnwise.data.readers.sources import READERS, sizes_to_try
from turnwise.data.storage import Shelves
from turnwise.errors import InputError


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def read(tmp_path):
    shelf = Shelves((tmp_path, tmp_path / "cache"), tmp_path / "cache", download=False)
    return lambda name, image_size=None: READERS[name](entry(name), shelf, image_size)


@pytest.mark.parametrize("name", ["mnist", "fashionmnist"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path, write_idx, read, name, packed):
    arrays = write_idx(tmp_path / name, packed=packed)
    source = read(name)
    assert set(source.splits) == {"train", "test"}
    train = source.splits["train"]
    assert np.array_equal(train.images[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert train.labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    assert "idx" in source.provenance


def test_a_single_npz_is_preferred(tmp_path, write_idx, write_npz, read):
    write_idx(tmp_path / "mnist")
    stored = write_npz(tmp_path / "mnist" / "mnist.npz", classes=10)
    assert np.array_equal(read("mnist").splits["test"].images[:, 0].numpy(), stored["test_images"])
    assert "mnist.npz" in read("mnist").provenance


def test_images_and_labels_of_different_length(tmp_path, write_idx, idx_bytes, read):
    write_idx(tmp_path / "mnist")
    labels = gzip.compress(idx_bytes(np.zeros(3, np.uint8)))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(labels)
    with pytest.raises(InputError, match=r"t10k-images.* cannot be used: it has 10 pictures but 3"):
        read("mnist")


def test_missing_files_are_named(read, tmp_path):
    message = (
        r"mnist is not in .* downloads are off; put train-images-idx3-ubyte\.gz, .* into .*mnist/"
    )
    with pytest.raises(InputError, match=message):
        read("mnist")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eurosat", r"put eurosat-4000\.npz into .*eurosat/.*the full EuroSAT.*folder:PATH"),
        ("first_radio_galaxies", r"put first-radio-galaxies\.npz into .*first-radio-galaxies/"),
        ("dermamnist_c", r"put dermamnist-reconstructed\.npz into .*dermamnist-reconstructed/"),
    ],
)
def test_sets_without_download_say_which_file_goes_where(read, name, words):
    with pytest.raises(InputError, match=rf"{name} is not in .* cannot be downloaded; {words}"):
        read(name)


def cifar_parts(folder, rng, encode):
    folder.mkdir()
    first, second, test = (rng.integers(0, 256, (64, 32, 3), np.uint8) for _ in range(3))
    runs = [encode([strip], "WEBP", lossless=True) for strip in (first, second, test)]
    labels = np.array([1, 2], np.uint8)
    np.savez(
        folder / "cifar10_part1.npz",
        train_webp=runs[0][0],
        train_webp_offsets=runs[0][1],
        train_labels=labels,
    )
    np.savez(
        folder / "cifar10_part2.npz",
        train_webp=runs[1][0],
        train_webp_offsets=runs[1][1],
        train_labels=labels + 2,
        test_webp=runs[2][0],
        test_webp_offsets=runs[2][1],
        test_labels=labels + 4,
    )
    return np.concatenate([first, second]).reshape(4, 32, 32, 3)


def test_cifar_from_packed_parts(tmp_path, rng, encode, read):
    pictures = cifar_parts(tmp_path / "cifar10", rng, encode)
    splits = read("cifar10").splits
    assert np.array_equal(splits["train"].images.permute(0, 2, 3, 1).numpy(), pictures)
    assert splits["train"].labels.tolist() == [1, 2, 3, 4]
    assert splits["test"].labels.tolist() == [5, 6]


def test_cifar_from_binary_batches(tmp_path, rng, read):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(rng.integers(0, 10, (2, 3073), np.uint8).tobytes())
    source = read("cifar10")
    assert source.splits["train"].images.shape == (10, 3, 32, 32)
    assert "binary" in source.provenance
    (folder / "data_batch_3.bin").write_bytes(np.full(3073, 10, np.uint8).tobytes())
    with pytest.raises(InputError, match=r"labels must be 0 to 9, got .* to 10"):
        read("cifar10")


def test_original_rotmnist_is_preferred(tmp_path, rng, write_npz, read, monkeypatch):
    monkeypatch.setattr(amat, "ROWS", {amat.TRAIN_VALID: 12, amat.TEST: 5})
    write_npz(tmp_path / "rotmnist-generated" / "rotmnist-generated.npz", classes=10)
    assert "not mnist_rotation_new" in read("rotmnist").provenance
    (tmp_path / "rotmnist").mkdir()
    tables = {}
    for name, rows in amat.ROWS.items():
        tables[name] = np.hstack([rng.random((rows, 784)), rng.integers(0, 10, (rows, 1))])
        np.savetxt(tmp_path / "rotmnist" / name, tables[name])
    source = read("rotmnist")
    assert source.provenance.startswith("mnist_rotation_new")
    assert {split: len(part) for split, part in source.splits.items()} == {
        "train": 10,
        "val": 2,
        "test": 5,
    }
    assert source.splits["val"].labels.tolist() == tables[amat.TRAIN_VALID][10:, -1].tolist()


def test_rotmnist_is_generated_from_mnist_and_cached(tmp_path, write_idx, read, monkeypatch):
    monkeypatch.setattr(rotated_digits, "COUNTS", {"train": 20, "val": 5, "test": 20})
    write_idx(tmp_path / "mnist")
    first = read("rotmnist")
    assert [len(first.splits[s]) for s in ("train", "val", "test")] == [20, 5, 20]
    assert "not mnist_rotation_new" in first.provenance
    cached = tmp_path / "cache" / "rotmnist-generated" / "rotmnist-generated.npz"
    assert cached.is_file()
    shutil.rmtree(tmp_path / "mnist")
    again = read("rotmnist")
    assert torch.equal(again.splits["test"].images, first.splits["test"].images)
    assert torch.equal(again.splits["val"].labels, first.splits["val"].labels)


def test_rotmnist_works_without_a_cache(tmp_path, write_idx, read, monkeypatch):
    monkeypatch.setattr(rotated_digits, "COUNTS", {"train": 20, "val": 5, "test": 20})
    write_idx(tmp_path / "mnist")
    (tmp_path / "cache").touch()
    assert len(read("rotmnist").splits["train"]) == 20


def test_medmnist_sizes_have_their_own_files(tmp_path, write_npz, read):
    write_npz(tmp_path / "breastmnist" / "breastmnist.npz")
    write_npz(tmp_path / "breastmnist_64.npz", shape=(64, 64))
    assert read("breastmnist").splits["val"].images.shape == (4, 1, 28, 28)
    assert read("breastmnist", 64).splits["val"].images.shape == (4, 1, 64, 64)
    assert read("breastmnist", 50).splits["val"].images.shape == (4, 1, 64, 64)
    assert read("breastmnist", 100).splits["val"].images.shape == (4, 1, 64, 64)
    with pytest.raises(InputError, match=r"put breastmnist_128\.npz into .*breastmnist/"):
        read("breastmnist", 128)


def reconstructed(tmp_path, write_npz, **changes):
    path = tmp_path / "dermamnist-reconstructed" / "dermamnist-reconstructed.npz"
    splits = {
        "train_dermamnist_c_split": np.array([0, 0, 0, 1, 2, 0], np.uint8),
        "val_dermamnist_c_split": np.array([0, 1, 2, 2], np.uint8),
        "test_dermamnist_c_split": np.array([0, 0, 2, 2], np.uint8),
    }
    return write_npz(path, classes=7, shape=(28, 28, 3), **(splits | changes))


def test_official_dermamnist_is_preferred_to_the_reconstructed(tmp_path, write_npz, read):
    reconstructed(tmp_path, write_npz)
    assert "reconstructed" in read("dermamnist").provenance
    write_npz(tmp_path / "dermamnist" / "dermamnist.npz", classes=7, shape=(28, 28, 3))
    assert "official" in read("dermamnist").provenance


def test_other_sets_do_not_take_the_reconstructed_file(tmp_path, write_npz, read):
    reconstructed(tmp_path, write_npz)
    with pytest.raises(InputError, match=r"put pathmnist\.npz into"):
        read("pathmnist")


def test_dermamnist_c_takes_its_splits_from_the_file(tmp_path, write_npz, read):
    stored = reconstructed(tmp_path, write_npz)
    splits = read("dermamnist_c").splits
    assert [len(splits[s]) for s in ("train", "val", "test")] == [7, 2, 5]
    expected = [stored["train_labels"][3, 0], stored["val_labels"][1, 0]]
    assert splits["val"].labels.tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_dermamnist_c_split": None}, "'val_dermamnist_c_split' is missing"),
        ({"val_dermamnist_c_split": np.zeros(3, int)}, "must name split 0, 1 or 2 for every"),
        ({"val_dermamnist_c_split": np.full(4, 3)}, "must name split 0, 1 or 2 for every"),
    ],
)
def test_dermamnist_c_split_is_checked(tmp_path, write_npz, read, change, message):
    reconstructed(tmp_path, write_npz, **change)
    with pytest.raises(InputError, match=message):
        read("dermamnist_c")


def test_eurosat_from_packed_jpegs(tmp_path, rng, encode, read):
    (tmp_path / "eurosat").mkdir()
    arrays = {}
    for split in ("train", "val", "test"):
        run, offsets = encode(rng.integers(0, 256, (2, 64, 64, 3), np.uint8))
        arrays |= {f"{split}_jpeg": run, f"{split}_jpeg_offsets": offsets}
        arrays[f"{split}_labels"] = np.array([0, 9], np.uint8)
    np.savez(tmp_path / "eurosat" / "eurosat-4000.npz", **arrays)
    assert read("eurosat").splits["test"].images.shape == (2, 3, 64, 64)


@pytest.mark.parametrize("packed", [False, True])
def test_pcam(tmp_path, rng, read, packed):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "pcam").mkdir()
    labels = {}
    for number, split in enumerate(("train", "valid", "test")):
        stem = tmp_path / "pcam" / f"camelyonpatch_level_2_split_{split}"
        labels[split] = rng.integers(0, 2, (3 + number, 1, 1, 1))
        pictures = rng.integers(0, 256, (3 + number, 96, 96, 3), np.uint8)
        for part, array in (("x", pictures), ("y", labels[split])):
            path = stem.with_name(f"{stem.name}_{part}.h5")
            with h5py.File(path, "w") as file:
                file[part] = array
            if packed:
                gz = path.with_name(path.name + ".gz")
                gz.write_bytes(gzip.compress(path.read_bytes(), 1))
                path.unlink()
    # packed files are found one by one, so nothing is downloaded although some could be missing
    shelf = Shelves((tmp_path,), tmp_path / "cache", download=packed)
    splits = READERS["pcam"](entry("pcam"), shelf, None).splits
    assert {split: part.images.shape for split, part in splits.items()} == {
        "train": (3, 3, 96, 96),
        "val": (4, 3, 96, 96),
        "test": (5, 3, 96, 96),
    }
    assert splits["val"].labels.tolist() == labels["valid"].flatten().tolist()


def test_pcam_asks_for_h5py_before_it_downloads(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"run pip install 'turnwise\[pcam\]'"):
        read("pcam")


def test_a_download_is_read_like_a_file_at_hand(tmp_path, write_npz, monkeypatch):
    """The catalogue's address is replaced by one on this machine, so that all is walked through."""
    write_npz(served := tmp_path / "served.npz")
    handler = partial(QuietHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/served.npz"
    known = entry("breastmnist")
    md5 = hashlib.md5(served.read_bytes()).hexdigest()
    near = replace(known.downloads[0], url=url, md5=md5)
    monkeypatch.setitem(CATALOGUE, "breastmnist", replace(known, downloads=(near,)))
    shelf = Shelves((tmp_path / "cache",), tmp_path / "cache")
    source = READERS["breastmnist"](entry("breastmnist"), shelf, None)
    server.shutdown()
    server.server_close()
    assert len(source.splits["train"]) == 6
    assert (tmp_path / "cache" / "breastmnist" / "breastmnist.npz").is_file()


def test_sizes_that_can_serve():
    published = (28, 64, 128, 224)
    assert sizes_to_try(None, published) == (28,)
    assert sizes_to_try(128, published) == (128,)
    assert sizes_to_try(100, published) == (128, 224, 64, 28)
    assert sizes_to_try(300, published) == (224, 128, 64, 28)
