"""Exit statuses, one line for the user's errors, settings in any order, and a quick --help."""

import io
import resource
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from turnwise import __version__
from turnwise.cli.main import COMMANDS, help_text, main, parse
from turnwise.errors import InputError


def run_python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)


def seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_instant_and_imports_no_library():
    """Measured in seconds of CPU time, best of three, because the machine may be busy."""
    times = []
    for _ in range(3):
        start = seconds_of_children()
        output = run_python("-m", "turnwise", "--help").stdout
        times.append(seconds_of_children() - start)
    assert 0 < min(times) < 0.5
    assert all(f"\n    {name}" in output for name in COMMANDS)
    imports = run_python("-X", "importtime", "-m", "turnwise", "--help").stderr
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports.splitlines()}
    assert "turnwise" in modules
    assert not modules & {"torch", "numpy", "lightning", "PIL", "yaml", "matplotlib"}


def test_python_m_turnwise_is_the_command():
    assert run_python("-m", "turnwise", "--version").stdout == f"turnwise {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"]])
def test_help_and_version_have_exit_status_0(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert help_text(name)[:60] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_of_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["groups", "seed=1"], "unrecognized arguments: seed=1"),
        (["groups", "--seed", "1"], "unrecognized arguments: --seed"),
        (["test", "run", "--agian"], "unrecognized arguments: --agian"),
        (["test", "run", "seed=1"], "unrecognized arguments: seed=1"),
        (["train", "a.yaml", "--seed=1"], "unrecognized arguments: --seed=1"),
        (["demo", "--share", "many"], "argument --share: invalid float value: 'many'"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "Did you mean train?"),
        (["show", "flim", "run"], "Did you mean film?"),
        (["test", "run", "--agian"], "Did you mean --again?"),
        (["test", "run", "--data_dri=x"], "Did you mean --data-dir?"),
        (["xyzzy"], "`turnwise --help` lists what there is."),
        (["groups", "seed=1"], "`turnwise groups --help` lists what there is."),
    ],
)
def test_the_nearest_spelling_is_suggested(words, hint, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.endswith(f"{hint}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "a.yaml", "seed=1", "trainer.max_epochs=2", "--output", "b"],
        ["train", "a.yaml", "seed=1", "--output", "b", "trainer.max_epochs=2"],
        ["train", "a.yaml", "--output", "b", "seed=1", "trainer.max_epochs=2"],
        ["train", "--output", "b", "a.yaml", "seed=1", "trainer.max_epochs=2"],
    ],
)
def test_settings_may_come_before_and_after_flags(words):
    args = parse(words)
    assert args.output == "b"
    assert args.settings == ["a.yaml", "seed=1", "trainer.max_epochs=2"]


@pytest.mark.parametrize("flag", ["--min_shift", "--min-shift", "--min_shift="])
def test_names_of_flags_may_have_underscores(flag):
    """As in the published program; what follows = is not changed."""
    shift = ["--min_shift=3"] if flag.endswith("=") else [flag, "3"]
    args = parse(["test-shifted", "a_b", *shift, "--output=c_d.csv", "--data_dir", "e_f"])
    assert (args.runs, args.min_shift) == (["a_b"], 3)
    assert (args.output, args.data_dir) == ("c_d.csv", "e_f")


def test_flags_of_version_0_1_still_work():
    assert parse(["certify", "vit", "--pictures", "4"]).images == 4
    assert parse(["report", "run", "--pictures=4"]).images == 4
    assert parse(["show", "angles", "vit", "--picture", "3"]).image == 3


def test_an_unknown_flag_is_reported_as_it_was_typed(capsys):
    with pytest.raises(SystemExit):
        parse(["test", "run", "--data_dri", "x"])
    assert "unrecognized arguments: --data_dri x" in capsys.readouterr().err


@pytest.fixture
def groups_raises(monkeypatch):
    """Make `turnwise groups` raise an exception."""

    def plant(error):
        def fail(name):
            raise error

        monkeypatch.setattr("turnwise.groups.PlanarGroup.named", fail)

    return plant


def test_an_input_error_is_one_line(groups_raises, refused):
    groups_raises(InputError("width = 10 must be a multiple of 4; try 8 or 12."))
    assert refused("groups") == (
        "turnwise groups: width = 10 must be a multiple of 4; try 8 or 12.\n"
    )


def test_a_bug_shows_its_traceback(groups_raises, turnwise):
    """Its exit status is not 1, which means that a model is not invariant."""
    groups_raises(ZeroDivisionError())
    status, output, error = turnwise("groups")
    assert (status, output) == (70, "")
    assert "Traceback" in error and "ZeroDivisionError" in error
    assert error.endswith("turnwise groups: this is a bug in turnwise; please report it.\n")


def test_interrupted_while_parsing(monkeypatch, turnwise):
    monkeypatch.setattr("turnwise.cli.main.parse", Mock(side_effect=KeyboardInterrupt))
    assert turnwise("train", "vit", "digits")[0] == 130


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_streams_are_no_error(monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    assert main(["groups"]) == 0
    getattr(sys, stream).close()


def test_a_broken_stderr_does_not_change_the_exit_status(groups_raises, monkeypatch):
    groups_raises(KeyboardInterrupt())
    closed = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stderr", closed)
    assert main(["groups"]) == 130


def test_interrupted(groups_raises, turnwise):
    groups_raises(KeyboardInterrupt())
    assert turnwise("groups") == (130, "", "turnwise groups: interrupted\n")


def test_nothing_is_printed_after_the_reader_has_gone(groups_raises, monkeypatch, tmp_path):
    """As in `turnwise groups | head -1`."""
    groups_raises(BrokenPipeError())
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["groups"]) == 141  # like a program that SIGPIPE ends
        print("later", file=out, flush=True)
    assert (tmp_path / "out").read_text() == ""


def test_out_of_memory_is_one_line(monkeypatch, capsys):
    def allocate(args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    args = SimpleNamespace(command="x", perform=allocate)
    monkeypatch.setattr("turnwise.cli.main.parse", lambda argv: args)
    assert main(["x"]) == 2
    assert capsys.readouterr().err == (
        "turnwise x: out of memory; use fewer or smaller images or batches.\n"
    )
