"""A torch.export file that could run something is refused before anything in it is read."""

import json
import os
import zipfile

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.inference.exported import only_weights, open_exported, require_plain_graph


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    some = {0: torch.export.Dim("pictures", min=1)}
    program = torch.export.export(model, (torch.rand(2, 1, 8, 8),), dynamic_shapes=(some,))
    torch.export.save(program, path)
    return path


@pytest.fixture
def changed(exported, tmp_path):
    """The same archive with one part replaced or added."""

    def write(name, content):
        path = tmp_path / "changed.pt2"
        with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
            parts = {part: old.read(part) for part in old.namelist()}
            prefix = next(iter(parts)).split("/")[0]
            before = parts.get(f"{prefix}/{name}", b"")
            parts[f"{prefix}/{name}"] = content(before) if callable(content) else content
            for part, value in parts.items():
                new.writestr(part, value)
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


def test_control_what_torch_wrote_is_read(exported):
    require_plain_graph(exported)


@pytest.mark.parametrize(
    "part",
    ["data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/aotinductor/model/a.so"],
)
def test_objects_and_libraries_are_refused(changed, part):
    with pytest.raises(InputError, match="neither weights nor a graph"):
        require_plain_graph(changed(part, b"anything"))


@pytest.mark.parametrize("change", [set_target, set_size])
def test_code_in_the_graph_is_refused(changed, change):
    with pytest.raises(InputError, match="it was not evaluated"):
        require_plain_graph(changed("models/model.json", edited(change)))


def test_code_in_a_guard_is_refused(changed):
    guard = edited(lambda graph: graph.update(guards_code=["print(1)"]))
    with pytest.raises(InputError, match="'print"):
        require_plain_graph(changed("models/model.json", guard))


def test_a_pickle_in_the_sample_inputs_is_not_opened(changed, tmp_path):
    """The reader falls back to an unsafe way to open them; here it cannot."""
    import pickle

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = changed("data/sample_inputs/model.pt", pickle.dumps(Hostile()))
    with pytest.raises(InputError, match="cannot be read by torch"):
        open_exported(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "a.pt2"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"no file of torch\.export"):
        require_plain_graph(path)


def test_an_archive_without_a_graph_is_refused(tmp_path):
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/version", "3")
    with pytest.raises(InputError, match="holds no graph"):
        require_plain_graph(path)


@pytest.mark.parametrize("before", [None, "0"])
def test_the_switch_is_put_back(monkeypatch, before):
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(switch, raising=False)
    if before is not None:
        monkeypatch.setenv(switch, before)
    with only_weights():
        assert os.environ[switch] == "1"
    assert os.environ.get(switch) == before
