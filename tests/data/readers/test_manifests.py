"""Tables of images in CSV and Parquet: columns, mapped names, splits, groups, and every fault."""

import pytest

from turnwise.data.dataset import Target
from turnwise.data.readers.manifests import read_csv, read_parquet, read_table
from turnwise.data.reading import Columns, Reading
from turnwise.errors import InputError

PLAIN = "path,label,split,patient\na/1.png,x,train,p1\na/2.png,y,training,p2\nb/3.png,x,test,p3\n"


@pytest.fixture
def table(tmp_path):
    def write(text, **settings):
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        return read_table(path, Reading(**settings))

    return write


def test_every_column(table, tmp_path):
    found = table(PLAIN)
    assert found.files == tuple(tmp_path / name for name in ("a/1.png", "a/2.png", "b/3.png"))
    assert (found.target, found.values.tolist()) == (Target("class", ("x", "y")), [0, 1, 0])
    assert found.splits == ("train", "train", "test")
    assert found.groups == ("p1", "p2", "p3")
    assert found.origin == f"listed in {tmp_path / 't.csv'}"


def test_mapped_names(table):
    text = "Slide image;Grade;Fold;Case\n1.png;low;train;7\n2.png;high;test;8\n"
    columns = Columns(path="Slide image", label=("Grade",), split="Fold")
    found = table(text, columns=columns, group_by="Case", target="ordinal", classes=("low", "high"))
    assert found.target == Target("ordinal", ("low", "high"))
    assert (found.values.tolist(), found.groups) == ([0, 1], ("7", "8"))


def test_without_splits_and_groups(table):
    found = table("file\tclass\n1.png\tx\n2.png\ty\n")
    assert (found.splits, found.groups) == ((), ())


def test_groups_from_paths(table):
    text = "path,label\na/1_x.png,0\nb/2_x.png,1\n"
    assert table(text, group_by="level:1").groups == ("a", "b")
    assert table(text, group_by="^[0-9]").groups == ("1", "2")


def test_absolute_paths_and_a_byte_order_mark(table, tmp_path):
    found = table(f"\ufeffpath,label\n{tmp_path / 'z.png'},0\n1.png,1\n")
    assert found.files == (tmp_path / "z.png", tmp_path / "1.png")


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "is empty; its first line must name the columns"),
        ("path,label\n", {}, "has no rows; write one for each image"),
        ("path,label\n1.png\n", {}, "row 1: it has 1 cells, and the header has 2; quote"),
        ("path,path\n1,2\n", {}, "has the column 'path' twice"),
        ("name,label\n1.png,x\n", {}, r"no column 'path', only 'name', 'label'; set columns\.path"),
        ("path,grade\n1.png,x\n", {}, r"no column 'label', only .*; set columns\.label to one"),
        ("path,file,label\n1,1,x\n", {}, r"path and file, and one .* chosen; set columns\.path"),
        ("path,label\n1.png,\n", {}, "row 1: the column 'label' is empty; fill it, or remove"),
        ("path,label\n1.png,x\n1.png,y\n", {}, r"names 1\.png in row 1 and in row 2; keep one"),
        (PLAIN.replace("test", "later"), {}, "row 3: split = 'later' must be train, val or test"),
        (PLAIN.replace("test", "val"), {}, "column 'split' of .* has no 'test'; add some, or le"),
        (PLAIN, {"group_by": "case"}, r"group_by = case is no column of .*'path', 'label', 'spl"),
        (PLAIN.replace("split", "slide"), {}, "has the columns slide and patient; set group_by"),
        (
            PLAIN,
            {"columns": Columns(label=("grade",))},
            "has no column 'grade'; it has 'path', 'label'",
        ),
    ],
)
def test_refused(table, text, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        table(text, **settings)
    assert "\n" not in str(caught.value)


def test_what_is_no_table(tmp_path):
    path = tmp_path / "t.csv"
    with pytest.raises(InputError, match=r"there is no table .*t\.csv; give a CSV or Parquet"):
        read_table(path, Reading())
    path.write_bytes(b"path,label\n\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"cannot read the table .* \(it is no text in UTF-8\)"):
        read_csv(path)
    path.write_text('path,label\n"' + "x" * 200_000 + '",y\n')
    with pytest.raises(InputError, match=r"cannot read the table .*field larger than field limit"):
        read_csv(path)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow; run pip install 'turnwise\[parquet\]'"):
        read_parquet(tmp_path / "t.parquet")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    columns = {"path": ["1.png", "2.png"], "label": [["a", "b"], []], "patient": [7, 8]}
    parquet.write_table(pyarrow.table(columns), path)
    found = read_table(path, Reading(target="multilabel"))
    assert found.target == Target("multilabel", ("a", "b"))
    assert (found.values.tolist(), found.groups) == ([[1, 1], [0, 0]], ("7", "8"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"cannot read the table .*t\.parquet \(.*write it again"):
        read_parquet(path)
