"""Progress is reported with the rate and the time left, also without a terminal."""

import pytest

from turnwise.cli import jobs


def test_a_line_of_progress_has_the_rate_and_the_time_left():
    line = jobs.progress_line(250_000, 10_000_000, 1000.0)
    assert line == "250,000 of 10,000,000 images (2 %), 250.0 per second, 10 h 50 min left"
    assert jobs.progress_line(0, 10, 1.0).endswith("0.0 per second, 0 min 00 s left")


def test_a_line_is_printed_every_thirty_seconds_without_a_terminal(monkeypatch, capsys):
    clock = iter(10.0 * i for i in range(100))
    monkeypatch.setattr(jobs.time, "monotonic", lambda: next(clock))
    assert list(jobs._shown(iter([100] * 7), 700)) == [100] * 7
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("300 of 700 images (43 %), 10.0 per second")


@pytest.mark.parametrize(("name", "found"), [("cpu", ["cpu"]), ("cpu,cpu", ["cpu", "cpu"])])
def test_several_devices_are_separated_by_commas(name, found):
    assert jobs._devices(name) == found
