"""The same rows in every format, complete or absent."""

import csv
import io
import json
import sys

import numpy as np
import pytest

from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.inference.writers import Table, print_csv, require_writer, write_output

TABLE = Table(("cat", "dog"), {"weights_sha256": "w", "certificate_sha256": ""}, {"patch_size": 8})
PROBABILITIES = np.asarray([[0.75, 0.25], [0.1, 0.9], [0.5, 0.5]], np.float32)
EMBEDDING = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def images():
    """Three rows in two chunks, the second wider in its text."""
    whole = {"image": np.asarray(["a", "b", "a longer name"]), "probabilities": PROBABILITIES,
             "embedding": EMBEDDING}  # fmt: skip
    return [{k: v[:2] for k, v in whole.items()}, {k: v[2:] for k, v in whole.items()}]


def tiles(slides=("x/one.svs", "x/one.svs", "y/two.svs")):
    whole = {
        "slide": np.asarray(slides), "x": np.asarray([0, 8, 0]), "y": np.asarray([0, 0, 16]),
        "level": np.asarray([1, 1, 1]), "mpp": np.asarray([0.5, 0.5, 0.5]),
        "tile": np.asarray([0, 1, 0]), "probabilities": PROBABILITIES, "embedding": EMBEDDING,
    }  # fmt: skip
    return [{k: v[:1] for k, v in whole.items()}, {k: v[1:] for k, v in whole.items()}]


def test_csv_has_probabilities_labels_and_embeddings(tmp_path):
    write_output(tmp_path / "t.csv", images(), TABLE)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert list(rows[0]) == ["image", "label", "cat", "dog", "e0", "e1", "e2", "e3"]
    assert [row["label"] for row in rows] == ["cat", "dog", "cat"]
    assert rows[1]["dog"] == "0.9000"
    found = [[np.float32(row[f"e{i}"]) for i in range(4)] for row in rows]
    assert np.array_equal(np.asarray(found), EMBEDDING), "nine digits are exact in float32"


def test_csv_can_be_printed():
    text = io.StringIO()
    print_csv(text, tiles(), Table(("cat", "dog")))
    assert text.getvalue().splitlines()[1].startswith("x/one.svs,0,0,1,0.5,cat,0.7500,0.2500,0")


def test_parquet_holds_vectors_and_hashes(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_output(tmp_path / "t.parquet", tiles(), TABLE)
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table.column_names == ["slide", "x", "y", "level", "mpp", "label", "probabilities",
                                  "embedding", "weights_sha256", "certificate_sha256"]  # fmt: skip
    assert np.array_equal(np.asarray(table["embedding"].to_pylist(), np.float32), EMBEDDING)
    assert table["label"].to_pylist() == ["cat", "dog", "cat"]
    assert set(table["weights_sha256"].to_pylist()) == {"w"}
    facts = json.loads(table.schema.metadata[b"turnwise"])
    assert facts == {"classes": ["cat", "dog"], "patch_size": 8}


def test_hdf5_has_the_layout_of_clam(tmp_path):
    h5py = pytest.importorskip("h5py")
    one = tiles(("x/one.svs",) * 3)
    write_output(tmp_path / "one.h5", one, TABLE)
    with h5py.File(tmp_path / "one.h5") as file:
        assert np.array_equal(file["features"], EMBEDDING)
        assert file["coords"][:].tolist() == [[0, 0], [8, 0], [0, 16]]
        about = dict(file["coords"].attrs)
        assert about == {"name": "one", "patch_size": 8, "patch_level": 1, "mpp": 0.5}


def test_a_folder_has_one_file_for_each_slide(tmp_path):
    h5py = pytest.importorskip("h5py")
    write_output(tmp_path / "out", tiles(), TABLE)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["one.h5", "two.h5"]
    with h5py.File(tmp_path / "out" / "two.h5") as file:
        assert np.array_equal(file["features"], EMBEDDING[2:])


def test_hdf5_of_images_holds_their_names(tmp_path):
    h5py = pytest.importorskip("h5py")
    write_output(tmp_path / "t.h5", images(), TABLE)
    with h5py.File(tmp_path / "t.h5") as file:
        assert [name.decode() for name in file["image"]] == ["a", "b", "a longer name"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.h5"])
def test_a_failure_leaves_no_file(name, tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("h5py")

    def chunks():
        yield images()[0]
        raise InputError("part 1 is gone")

    with pytest.raises(InputError, match="part 1 is gone"):
        write_output(tmp_path / name, chunks(), TABLE)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_write_is_an_error(tmp_path):
    with pytest.raises(InputError, match="nothing is left to write"):
        write_output(tmp_path / "t.csv", [{}], TABLE)


@pytest.mark.parametrize(
    ("name", "slides", "message"),
    [
        ("t.xlsx", [], "unknown kind of output 'xlsx'"),
        ("folder", [], "folder is a folder, which takes the tiles of slides"),
        ("t.h5", ["a.svs", "b.svs"], "an HDF5 file holds one slide, but there are 2"),
        ("folder", ["x/a.svs", "y/a.svs"], "several slides are called 'a'"),
    ],
)
def test_an_impossible_output_is_refused_before_any_work(name, slides, message, tmp_path):
    pytest.importorskip("h5py")
    with pytest.raises(InputError, match=message):
        require_writer(tmp_path / name, slides)


@pytest.mark.parametrize(("name", "package"), [("t.parquet", "pyarrow"), ("t.h5", "h5py")])
def test_a_missing_package_is_named(name, package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}; install it with"):
        require_writer(tmp_path / name, ["a.svs"])


def test_decisions_and_values_follow_the_kind_of_target():
    several = make_kind("multilabel", ("cat", "dog"))
    text = io.StringIO()
    chunk = {"image": np.asarray(["a"]), "probabilities": np.asarray([[0.75, 0.625]], np.float32)}
    print_csv(text, [chunk], Table(("cat", "dog"), kind=several))
    assert text.getvalue().splitlines() == ["image,label,cat,dog", "a,cat|dog,0.7500,0.6250"]
    text = io.StringIO()
    chunk = {"image": np.asarray(["a"]), "predictions": np.asarray([[1234.5, -2]], np.float32)}
    print_csv(text, [chunk], Table(("size", "angle"), kind=make_kind("number")))
    assert text.getvalue().splitlines() == ["image,size,angle", "a,1234.5,-2"]
