"""Sets in .npz files: plain and encoded images, sizes, reconstructed and missing files."""

import hashlib
import http.server
import re
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.catalogue import CATALOGUE, entry
from turnwise.data.readers import find_reader, to_examples
from turnwise.data.readers.npz import (
    SHIPPED,
    decode_images,
    read_arrays,
    read_splits,
    sizes_to_try,
)
from turnwise.data.storage import DataFolders
from turnwise.errors import InputError

GREY = replace(entry("breastmnist"), classes=("a", "b"), channels=1)
COLOUR = replace(GREY, channels=3)
TILES = SHIPPED / "tiles.npz"


def test_grey_images_get_a_channel_axis(tmp_path, write_npz):
    stored = write_npz(tmp_path / "s.npz")
    parts = read_splits(tmp_path / "s.npz", GREY)
    assert parts["val"].images.shape == (4, 1, 28, 28)
    assert np.array_equal(parts["train"].images[:, 0].numpy(), stored["train_images"])
    assert parts["test"].labels.tolist() == stored["test_labels"][:, 0].tolist()


def test_the_channel_axis_of_colour_comes_first(tmp_path, write_npz):
    stored = write_npz(tmp_path / "s.npz", shape=(5, 6, 3))
    images = read_splits(tmp_path / "s.npz", COLOUR)["train"].images
    assert images.is_contiguous()
    assert np.array_equal(images[2, :, 4, 1].numpy(), stored["train_images"][2, 4, 1])


def test_encoded_images_are_decoded(tmp_path, rng, encode):
    images = rng.integers(0, 256, (3, 8, 8, 3), np.uint8)
    run, offsets = encode(images, "WEBP", lossless=True)
    np.savez(tmp_path / "s.npz", train_webp=run, train_webp_offsets=offsets, train_labels=[0, 1, 1])
    part = read_splits(tmp_path / "s.npz", COLOUR, ("train",))["train"]
    assert torch.equal(part.images.permute(0, 2, 3, 1), torch.from_numpy(images))
    run = run.copy()
    run[:12] = 0
    np.savez(tmp_path / "s.npz", train_webp=run, train_webp_offsets=offsets, train_labels=[0, 1, 1])
    with pytest.raises(InputError, match=r"s\.npz cannot be used: train_webp: encoded image 0"):
        read_splits(tmp_path / "s.npz", COLOUR, ("train",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_images": None}, r"the array 'val_images' is missing \(found: test_images"),
        ({"test_labels": None}, "the array 'test_labels' is missing"),
        ({"val_images": np.zeros((4, 28, 28))}, "must be uint8 of shape .*, got float64"),
        ({"val_images": np.zeros((4, 28), np.uint8)}, r"got uint8 of \(4, 28\)"),
        ({"val_images": np.zeros((4, 28, 28, 3), np.uint8)}, r"got uint8 of \(4, 28, 28, 3\)"),
        ({"val_images": np.zeros((0, 28, 28), np.uint8)}, r"got uint8 of \(0, 28, 28\)"),
        ({"val_labels": np.zeros(4)}, "labels must be one integer each, got float64"),
        ({"val_labels": np.zeros((4, 2), int)}, r"one integer each, got int64 of \(4, 2\)"),
        ({"val_labels": np.array(1)}, r"one integer each, got int64 of \(\)"),
        ({"val_labels": np.zeros(5, int)}, "it has 4 images but 5 labels"),
        ({"val_labels": np.array([0, 1, 2, 0])}, "labels must be 0 to 1, got 0 to 2"),
        ({"val_labels": np.array([0, -1, 1, 0])}, "labels must be 0 to 1, got -1 to 1"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, write_npz, changes, message):
    write_npz(tmp_path / "s.npz", **changes)
    with pytest.raises(InputError, match=rf"s\.npz cannot be used: .*{message}.*good copy"):
        read_splits(tmp_path / "s.npz", GREY)


def test_pickled_objects_are_refused(tmp_path, write_npz):
    write_npz(tmp_path / "s.npz", val_labels=np.array([{}, 1, 2, 3], dtype=object))
    with pytest.raises(
        InputError, match=r"s\.npz cannot be used: .*Object arrays cannot be loaded"
    ):
        read_splits(tmp_path / "s.npz", GREY)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_npz_file_is_refused(tmp_path, write_npz, share):
    write_npz(path := tmp_path / "s.npz")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"s\.npz cannot be used: it is damaged"):
        read_splits(path, GREY)


def test_changed_bytes_are_noticed(tmp_path, write_npz):
    write_npz(path := tmp_path / "s.npz")
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"s\.npz cannot be used: it is damaged .*CRC"):
        read_splits(path, GREY)


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "s.npz").write_text("<html>404</html>")
    with pytest.raises(InputError, match="damaged or no plain"):
        read_arrays(tmp_path / "s.npz")
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="single array"):
        read_arrays(tmp_path / "t.npz")


def test_only_the_requested_arrays_are_read(tmp_path, write_npz):
    write_npz(tmp_path / "s.npz", extra=np.array([{}], dtype=object))
    assert set(read_arrays(tmp_path / "s.npz", ["val_labels", "nothing"])) == {"val_labels"}


def test_a_last_axis_of_one_is_grey(tmp_path):
    images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1)
    part = to_examples(images, np.array([0, 1]), tmp_path, classes=2, channels=1)
    assert part.images.flatten().tolist() == list(range(8))


def test_a_lossless_strip_comes_back_exactly(rng, encode):
    strips = rng.integers(0, 256, (3, 5 * 8, 8, 3), np.uint8)
    run, offsets = encode(strips, "WEBP", lossless=True)
    assert np.array_equal(decode_images(run, offsets), strips.reshape(15, 8, 8, 3))


def test_single_jpegs_come_back_nearly(encode):
    flat = np.full((4, 16, 16, 3), 90, np.uint8)
    flat[1] = 200
    images = decode_images(*encode(flat, quality=95))
    assert images.shape == flat.shape
    assert np.abs(images.astype(int) - flat).max() <= 2


def test_a_damaged_image_is_numbered(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (3, 16, 16, 3), np.uint8))
    broken = run.copy()
    broken[offsets[1] : offsets[1] + 10] = 0
    with pytest.raises(ValueError, match="encoded image 1 is damaged"):
        decode_images(broken, offsets)


def test_a_truncated_image_is_noticed(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (2, 16, 16, 3), np.uint8))
    with pytest.raises(ValueError, match="encoded image 1 is damaged"):
        decode_images(run[:-100], np.array([*offsets[:-1], offsets[-1] - 100]))


@pytest.mark.parametrize("change", [lambda o: o[1:], lambda o: o[:-1], lambda o: o[[0, 2, 1, 3]]])
def test_offsets_must_cover_all_bytes(rng, encode, change):
    run, offsets = encode(rng.integers(0, 256, (3, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="must ascend from 0 to the number of bytes"):
        decode_images(run, change(offsets))


def test_encoded_images_and_offsets_have_the_right_types(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (2, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="encoded images must be a row of uint8, got float64"):
        decode_images(run.astype(float), offsets)
    with pytest.raises(ValueError, match="offsets must be a row of integers, got float64"):
        decode_images(run, offsets.astype(float))


def test_an_image_that_is_no_strip_is_refused(rng, encode):
    with pytest.raises(ValueError, match="image 0 of 12×8 pixels is no strip of squares"):
        decode_images(*encode(rng.integers(0, 256, (1, 12, 8, 3), np.uint8)))


def test_encoded_images_must_have_one_size(encode):
    with pytest.raises(ValueError, match="must have one size, got 8 to 16 pixels"):
        decode_images(*encode([np.zeros((8, 8, 3), np.uint8), np.zeros((16, 16, 3), np.uint8)]))


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eurosat", r"put eurosat-4000\.npz into .*eurosat/.*the full EuroSAT.*folder:PATH"),
        ("first_radio_galaxies", r"put first-radio-galaxies\.npz into .*first-radio-galaxies/"),
        ("dermamnist_c", r"put dermamnist-reconstructed\.npz into .*dermamnist-reconstructed/"),
    ],
)
def test_the_error_for_sets_without_download_names_file_and_folder(read, name, words):
    with pytest.raises(InputError, match=rf"{name} is not in .* cannot be downloaded; {words}"):
        read(name)


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
        ({"val_dermamnist_c_split": np.zeros(3, int)}, "must hold 0, 1 or 2 for every image"),
        ({"val_dermamnist_c_split": np.full(4, 3)}, "must hold 0, 1 or 2 for every image"),
    ],
)
def test_dermamnist_c_split_is_checked(tmp_path, write_npz, read, change, message):
    reconstructed(tmp_path, write_npz, **change)
    with pytest.raises(InputError, match=message):
        read("dermamnist_c")


def test_eurosat_is_read_from_encoded_jpegs(tmp_path, rng, encode, read):
    (tmp_path / "eurosat").mkdir()
    arrays = {}
    for split in ("train", "val", "test"):
        run, offsets = encode(rng.integers(0, 256, (2, 64, 64, 3), np.uint8))
        arrays |= {f"{split}_jpeg": run, f"{split}_jpeg_offsets": offsets}
        arrays[f"{split}_labels"] = np.array([0, 9], np.uint8)
    np.savez(tmp_path / "eurosat" / "eurosat-4000.npz", **arrays)
    assert read("eurosat").splits["test"].images.shape == (2, 3, 64, 64)


def test_a_downloaded_file_is_read_like_a_local_one(tmp_path, write_npz, monkeypatch):
    """The address in the catalogue is replaced by that of a local server."""
    write_npz(served := tmp_path / "served.npz")
    handler = partial(QuietHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/served.npz"
    known = entry("breastmnist")
    md5 = hashlib.md5(served.read_bytes()).hexdigest()
    near = replace(known.downloads[0], url=url, md5=md5, sha256="")
    monkeypatch.setitem(CATALOGUE, "breastmnist", replace(known, downloads=(near,)))
    folders = DataFolders((tmp_path / "cache",), tmp_path / "cache")
    source = find_reader("medmnist")(entry("breastmnist"), folders, None)
    server.shutdown()
    server.server_close()
    assert len(source.splits["train"]) == 6
    assert (tmp_path / "cache" / "breastmnist" / "breastmnist.npz").is_file()


def test_the_published_sizes_to_try():
    published = (28, 64, 128, 224)
    assert sizes_to_try(None, published) == (28,)
    assert sizes_to_try(128, published) == (128,)
    assert sizes_to_try(100, published) == (128, 224, 64, 28)
    assert sizes_to_try(300, published) == (224, 128, 64, 28)


def test_the_shipped_tiles_have_as_many_images_of_every_class():
    tiles = load_dataset("tiles")
    assert tiles.train.images.shape == (1200, 3, 32, 32)
    splits = (tiles.train, tiles.val, tiles.test)
    counts = [split.labels.bincount().tolist() for split in splits]
    assert counts == [[120] * 10, [20] * 10, [60] * 10]


def test_tiles_md_states_the_hash_of_the_shipped_file():
    noted = re.search(r"`([0-9a-f]{64})`", TILES.with_suffix(".md").read_text())[1]
    assert noted == hashlib.sha256(TILES.read_bytes()).hexdigest()


def test_the_shipped_tiles_are_those_of_eurosat(real_data):
    """Each is the mean of 2 × 2 pixels of a tile of the same split, up to its compression."""
    whole = read_arrays(real_data / "eurosat" / "eurosat-4000.npz")
    ours, tiles = read_arrays(TILES), load_dataset("tiles")
    for split in ("train", "val", "test"):
        columns = (f"{split}_labels", f"{split}_file_number")
        known, wanted = (list(zip(*(a[c] for c in columns), strict=True)) for a in (whole, ours))
        row = [known.index(name) for name in wanted]
        blob, cuts = whole[f"{split}_jpeg"], whole[f"{split}_jpeg_offsets"]
        for i in range(0, len(row), 50):
            one = np.array([0, cuts[row[i] + 1] - cuts[row[i]]])
            large = decode_images(blob[cuts[row[i]] : cuts[row[i] + 1]], one)[0].astype(float)
            small = large.reshape(32, 2, 32, 2, 3).mean(axis=(1, 3))
            shipped = getattr(tiles, split).images[i].permute(1, 2, 0).numpy()
            assert np.abs(small - shipped).mean() < 8
