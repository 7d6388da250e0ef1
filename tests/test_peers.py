"""The benchmark of peers, with a peer of one block in the place of those that are not installed."""

import json
import sys
import types

import peers
import pytest
import torch
from torch import nn

SMALL = ["--widths", "16", "--image-size", "32", "--depth", "1", "--batch", "1", "--repeats", "1"]


class TinyViT(nn.Module):
    def __init__(self, patch_size, embed_dim, depth, num_heads, img_size, num_classes):
        super().__init__()
        self.embed = nn.Conv2d(3, embed_dim, patch_size, patch_size)
        self.blocks = nn.Sequential(*(nn.Linear(embed_dim, embed_dim) for _ in range(depth)))
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images):
        return self.head(self.blocks(self.embed(images).flatten(2).mT).mean(dim=1))


def test_ratios_are_to_the_first_peer_and_both_models_are_recorded(monkeypatch, tmp_path, capsys):
    timm = types.SimpleNamespace(VisionTransformer=TinyViT)
    monkeypatch.setitem(sys.modules, "timm.models.vision_transformer", timm)
    monkeypatch.setitem(sys.modules, "timm", types.ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.models", types.ModuleType("timm.models"))
    records = tmp_path / "peers.jsonl"
    peers.main([*SMALL, "--timm", "--records", str(records)])
    lines = capsys.readouterr().out.splitlines()
    assert "timm" in lines[2]
    assert lines[2].count("1.00") == 2
    figures = json.loads(records.read_text())["figures"]["results"][0]["figures"]
    assert list(figures) == ["timm", "turnwise D4"]
    assert all(seconds > 0 for kinds in figures.values() for seconds in kinds.values())


def test_a_missing_library_is_named_with_advice(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm.models.vision_transformer", None)
    with pytest.raises(SystemExit, match="pip install timm"):
        peers.main([*SMALL, "--timm"])
    with pytest.raises(SystemExit, match="must be a checkout of octic-vits"):
        peers.main([*SMALL, "--octic", str(tmp_path)])
    with pytest.raises(SystemExit, match="--flex needs --device cuda"):
        peers.main([*SMALL, "--flex"])


def test_blocks_are_the_longest_list_of_one_kind():
    model = nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Linear(1, 1), nn.ReLU())
    assert peers.blocks_of(model) == list(model[0])
    assert len(peers.blocks_of(TinyViT(16, 8, 3, 1, 32, 2))) == 3
    assert torch.is_tensor(TinyViT(16, 8, 3, 1, 32, 2)(torch.rand(1, 3, 32, 32)))
