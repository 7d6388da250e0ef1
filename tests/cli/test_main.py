"""Exit codes, one line for what the user got wrong, settings in any place, and a quick --help."""

import io
import resource
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from turnwise import __version__
from turnwise.cli.main import ARGUMENTS, COMMANDS, main, parse, parser
from turnwise.errors import InputError


def run_python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)


def seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_instant_and_imports_no_library():
    """In seconds of a core, best of three: the machine may be busy with other things."""
    times = []
    for _ in range(3):
        start = seconds_of_children()
        said = run_python("-m", "turnwise", "--help").stdout
        times.append(seconds_of_children() - start)
    assert 0 < min(times) < 0.5
    assert all(run.__name__ in said for run in COMMANDS)
    imports = run_python("-X", "importtime", "-m", "turnwise", "--help").stderr
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports.splitlines()}
    assert "turnwise" in modules
    assert not modules & {"torch", "numpy", "lightning", "PIL", "yaml", "matplotlib"}


def test_python_m_turnwise_is_the_command():
    assert run_python("-m", "turnwise", "--version").stdout == f"turnwise {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"]])
def test_help_and_version_are_no_error(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("run", COMMANDS, ids=lambda run: run.__name__)
def test_every_command_says_what_it_does(run, capsys):
    """The docstring is the help, in one piece."""
    with pytest.raises(SystemExit):
        main([run.__name__, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(run.__doc__.split())[:60] in told


@pytest.mark.parametrize("run", COMMANDS, ids=lambda run: run.__name__)
def test_help_fits_a_terminal_of_80_columns(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([run.__name__, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_arguments_belong_to_commands():
    assert set(ARGUMENTS) <= {run.__name__ for run in COMMANDS}
    assert len({run.__name__ for run in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["groups", "seed=1"], "unrecognized arguments: seed=1"),
        (["groups", "--seed", "1"], "unrecognized arguments: --seed"),
        (["test", "run", "--agian"], "unrecognized arguments: --agian"),
        (["test", "run", "seed=1"], "unrecognized arguments: seed=1"),
        (["train", "a.yaml", "--output", "b", "word"], "unrecognized arguments: word"),
        (["train", "a.yaml", "--seed=1"], "unrecognized arguments: --seed=1"),
        (["demo", "--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
    ],
)
def test_a_command_line_that_cannot_be_parsed(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "a.yaml", "seed=1", "trainer.max_epochs=2", "--output", "b"],
        ["train", "a.yaml", "seed=1", "--output", "b", "trainer.max_epochs=2"],
        ["train", "a.yaml", "--output", "b", "seed=1", "trainer.max_epochs=2"],
        ["train", "--output", "b", "a.yaml", "seed=1", "trainer.max_epochs=2"],
    ],
)
def test_settings_stand_before_and_after_flags(words):
    args = parse(words)
    assert (args.recipe, args.output) == ("a.yaml", "b")
    assert args.settings == ["seed=1", "trainer.max_epochs=2"]


@pytest.mark.parametrize("said", ["--min_shift", "--min-shift", "--min_shift="])
def test_names_of_flags_may_have_underscores(said):
    """As those of the published program have; what stands behind = is left alone."""
    shift = ["--min_shift=3"] if said.endswith("=") else [said, "3"]
    args = parse(["test-shifted", "a_b", *shift, "--output=c_d.csv", "--data_dir", "e_f"])
    assert (args.runs, args.min_shift) == (["a_b"], 3)
    assert (args.output, args.data_dir) == ("c_d.csv", "e_f")


def test_what_is_not_known_is_said_as_it_was_written(capsys):
    with pytest.raises(SystemExit):
        parse(["test", "run", "--data_dri", "x"])
    assert "unrecognized arguments: --data_dri x" in capsys.readouterr().err


def test_the_parser_can_be_made_twice():
    assert parser().format_help() == parser().format_help()


@pytest.fixture
def groups_raises(monkeypatch):
    """`turnwise groups` meets this exception."""

    def plant(error):
        def fail(name):
            raise error

        monkeypatch.setattr("turnwise.groups.PlanarGroup.named", fail)

    return plant


def test_what_the_user_got_wrong_is_one_line(groups_raises, refused):
    groups_raises(InputError("width = 10 must be a multiple of 4; try 8 or 12."))
    assert refused("groups") == (
        "turnwise groups: width = 10 must be a multiple of 4; try 8 or 12.\n"
    )


def test_what_we_got_wrong_is_not_hidden(groups_raises, turnwise):
    """And its status is not 1, which says that a model does not hold."""
    groups_raises(ZeroDivisionError())
    status, said, complained = turnwise("groups")
    assert (status, said) == (70, "")
    assert "Traceback" in complained and "ZeroDivisionError" in complained
    assert complained.endswith("turnwise groups: this is a fault of turnwise; please report it.\n")


def test_interrupted_before_the_words_are_understood(monkeypatch, turnwise):
    monkeypatch.setattr("turnwise.cli.main.parse", Mock(side_effect=KeyboardInterrupt))
    assert turnwise("train", "vit", "digits")[0] == 130


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_streams_are_as_good_as_others(monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    assert main(["groups"]) == 0
    getattr(sys, stream).close()


def test_nobody_listens_to_an_error(groups_raises, monkeypatch):
    groups_raises(KeyboardInterrupt())
    gone = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stderr", gone)
    assert main(["groups"]) == 130


def test_interrupted(groups_raises, turnwise):
    groups_raises(KeyboardInterrupt())
    assert turnwise("groups") == (130, "", "turnwise groups: interrupted\n")


def test_a_reader_that_has_left_is_not_told_more(groups_raises, monkeypatch, tmp_path):
    """As in `turnwise groups | head -1`; what is printed later goes nowhere."""
    groups_raises(BrokenPipeError())
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["groups"]) == 141  # as of a program that SIGPIPE ends; 0 would be an answer
        print("later", file=out, flush=True)
    assert (tmp_path / "out").read_text() == ""


def test_out_of_memory_is_one_line(monkeypatch, capsys):
    def too_much(args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    args = SimpleNamespace(command="x", perform=too_much)
    monkeypatch.setattr("turnwise.cli.main.parse", lambda argv: args)
    assert main([]) == 2
    assert capsys.readouterr().err == "turnwise x: out of memory; take fewer or smaller.\n"
