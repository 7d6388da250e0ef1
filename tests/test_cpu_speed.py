"""The benchmark of the CPU: its bound counts the multiplications, its record has every case."""

import json

import cpu_speed
import torch


def test_multiplications_of_both_passes_are_counted():
    layer, x = torch.nn.Linear(5, 7, bias=False), torch.rand(3, 5)
    assert cpu_speed.multiply_adds(lambda: layer(x)) == 3 * 5 * 7
    assert cpu_speed.multiply_adds(lambda: layer(x).sum().backward()) == 2 * 3 * 5 * 7


def test_every_case_is_printed_and_recorded(tmp_path, capsys):
    case, records = "resnet18, 32 px", tmp_path / "speed.jsonl"
    cpu_speed.main(["--cases", case, "--batch", "2", "--repeats", "1", "--records", str(records)])
    found = json.loads(records.read_text())["figures"]["results"][case]
    assert 0 < found["bounds"]["inference"] < found["bounds"]["step"]
    assert "aten::mkldnn_convolution" in found["operations"]["inference"]
    assert f"{2 / found['inference']:.0f}" in capsys.readouterr().out
