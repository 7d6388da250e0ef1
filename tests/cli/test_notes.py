"""What is said beside the answer is heard where somebody listens, and stops nothing elsewhere."""

import io
import sys
from unittest.mock import Mock

from turnwise.cli.notes import tell


def test_it_is_said_on_stderr(capsys):
    tell("testing a")
    assert capsys.readouterr() == ("", "testing a\n")


def test_nobody_listens(monkeypatch):
    gone = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stderr", gone)
    tell("testing a")
    assert gone.write.called
