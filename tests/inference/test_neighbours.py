"""The nearest vectors are found exactly, in tables that name their backbone."""

import sys

import numpy as np
import pytest

from turnwise.errors import InputError
from turnwise.inference.backbones import BackboneName
from turnwise.inference.neighbours import Index, normalised, read_index
from turnwise.inference.writers import Table, write_output

VECTORS = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
FACTS = {"backbone": "hf:vit", "group": "D4", "combine": "mean", "pool": "auto", "size": 0}


def write(path, **changes):
    pytest.importorskip("pyarrow")
    names = np.asarray([f"{i}.png" for i in range(50)])
    chunks = [{"image": names[:30], "embedding": VECTORS[:30]},
              {"image": names[30:], "embedding": VECTORS[30:]}]  # fmt: skip
    write_output(path, chunks, Table((), {"weights_sha256": "w"}, {**FACTS, **changes}))
    return path


def test_neighbours_are_those_of_all_cosines():
    pytest.importorskip("faiss")
    index = Index(VECTORS, tuple(map(str, range(50))), BackboneName("x"), "")
    queries = VECTORS[:5] + 0.1
    cosines, rows = index.nearest(queries, 7)
    every = normalised(queries) @ normalised(VECTORS).T
    expected = np.argsort(-every, axis=1)[:, :7]
    assert np.array_equal(rows, expected)
    np.testing.assert_allclose(cosines, np.take_along_axis(every, expected, 1), rtol=1e-5)
    assert index.nearest(queries, 99)[1].shape == (5, 50)


def test_a_table_is_read_with_its_backbone(tmp_path):
    index = read_index(write(tmp_path / "e.parquet"))
    assert np.array_equal(index.vectors, VECTORS)
    assert index.names[31] == "31.png" and index.weights_sha256 == "w"
    assert index.backbone == BackboneName("hf:vit", "D4")


def test_code_that_a_file_names_is_not_imported(tmp_path):
    path = write(tmp_path / "e.parquet", backbone="os:getcwd")
    with pytest.raises(InputError, match="made by the code os:getcwd, which is not imported"):
        read_index(path)
    assert read_index(path, "mine:make").backbone == BackboneName("mine:make", "D4")


def test_other_files_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="holds no embeddings of turnwise embed"):
        read_index(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="there is no table"):
        read_index(tmp_path / "nowhere.parquet")


def test_queries_of_another_width_and_a_missing_package_are_refused(monkeypatch):
    pytest.importorskip("faiss")
    index = Index(VECTORS, (), BackboneName("x"), "")
    with pytest.raises(InputError, match="the queries have 4 numbers and the index 6"):
        index.nearest(VECTORS[:, :4], 3)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="a search needs the package faiss; install it with"):
        index.nearest(VECTORS, 3)
