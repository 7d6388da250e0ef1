"""Shells complete commands, flags and choices."""

import shutil
import subprocess

import pytest

from turnwise.cli.completion import SHELLS
from turnwise.cli.main import COMMANDS, main

pytest.importorskip("shtab")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    from contextlib import redirect_stdout
    from io import StringIO

    found = {}
    for shell in SHELLS:
        with redirect_stdout(StringIO()) as printed:
            assert main(["completion", shell]) == 0
        found[shell] = printed.getvalue()
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_the_script(scripts, shell):
    assert all(name in scripts[shell] for name in COMMANDS)
    assert "film" in scripts[shell]  # a choice of `turnwise show`


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["certi"], "certify"),
        (["demo", "--outp"], "--output"),
        (["demo", "--data", "ti"], "tiles"),
    ],
)
def test_bash_completes(scripts, tmp_path, words, expected):
    line = ["turnwise", *words]
    listed = " ".join(line)
    program = (
        f"{scripts['bash']}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words)}; COMP_LINE='{listed}'; "
        f"COMP_POINT={len(listed)}; _shtab_turnwise; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    (tmp_path / "complete.sh").write_text(program)
    run = subprocess.run(
        ["bash", str(tmp_path / "complete.sh")], capture_output=True, text=True, check=False
    )
    assert expected in run.stdout.split(), run.stderr
