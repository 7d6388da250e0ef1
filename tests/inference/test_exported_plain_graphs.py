"""A torch.export file that could run something is refused before anything in it is read."""

import json
import os
import zipfile

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.inference.exported import open_exported, require_plain_graph, weights_only


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    dynamic = {0: torch.export.Dim("images", min=1)}
    program = torch.export.export(model, (torch.rand(2, 1, 8, 8),), dynamic_shapes=(dynamic,))
    torch.export.save(program, path)
    return path


@pytest.fixture
def changed(exported, tmp_path):
    """Writes the same archive with one entry replaced or added."""

    def write(name, content):
        path = tmp_path / "changed.pt2"
        with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
            entries = {entry: old.read(entry) for entry in old.namelist()}
            path_inside = f"{next(iter(entries)).split('/')[0]}/{name}"
            before = entries.get(path_inside, b"")
            entries[path_inside] = content(before) if callable(content) else content
            for entry, value in entries.items():
                new.writestr(entry, value)
        return path

    return write


def edited(change):
    def edit(content):
        graph = json.loads(content)
        change(graph)
        return json.dumps(graph).encode()

    return edit


def set_target(graph):
    graph["graph_module"]["graph"]["nodes"][0]["target"] = "torch.serialization.os.system"


def set_size(graph):
    text = json.dumps(graph).replace("Symbol('s", "__import__('os').system('s", 1)
    graph.clear()
    graph.update(json.loads(text))


def test_control_an_archive_that_torch_wrote_is_accepted(exported):
    require_plain_graph(exported)


@pytest.mark.parametrize(
    "entry",
    ["data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/aotinductor/model/a.so"],
)
def test_objects_and_libraries_are_refused(changed, entry):
    with pytest.raises(InputError, match="neither weights nor a graph"):
        require_plain_graph(changed(entry, b"anything"))


@pytest.mark.parametrize("change", [set_target, set_size])
def test_code_in_the_graph_is_refused(changed, change):
    with pytest.raises(InputError, match="it was not evaluated"):
        require_plain_graph(changed("models/model.json", edited(change)))


def test_code_in_a_guard_is_refused(changed):
    guard = edited(lambda graph: graph.update(guards_code=["print(1)"]))
    with pytest.raises(InputError, match="'print"):
        require_plain_graph(changed("models/model.json", guard))


def test_a_pickle_in_the_sample_inputs_is_not_opened(changed, tmp_path):
    """torch.export.load would fall back to unsafe unpickling."""
    import pickle

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = changed("data/sample_inputs/model.pt", pickle.dumps(Hostile()))
    with pytest.raises(InputError, match="cannot be read by torch"):
        open_exported(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "a.pt2"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a file of torch\.export"):
        require_plain_graph(path)


def test_an_archive_without_a_graph_is_refused(tmp_path):
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/version", "3")
    with pytest.raises(InputError, match="holds no graph"):
        require_plain_graph(path)


@pytest.mark.parametrize("before", [None, "0"])
def test_weights_only_restores_the_environment_variable(monkeypatch, before):
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(switch, raising=False)
    if before is not None:
        monkeypatch.setenv(switch, before)
    with weights_only():
        assert os.environ[switch] == "1"
    assert os.environ.get(switch) == before
