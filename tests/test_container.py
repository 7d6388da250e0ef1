"""The Dockerfile and the workflow fit the repository: files, commands, flags.  Neither is run."""

import json
import re
import shlex
from pathlib import Path

import yaml

from turnwise.cli.main import parse

ROOT = Path(__file__).parents[1]
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK",
                "ENTRYPOINT", "CMD"}  # fmt: skip


def instructions():
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_the_image_starts_the_service_under_names_that_the_host_check_accepts():
    given = dict(instructions())
    words = [*json.loads(given["ENTRYPOINT"]), *json.loads(given["CMD"])]
    args = parse(words[1:])
    assert words[0] == "turnwise" and args.command == "serve"
    assert str(args.port) == given["EXPOSE"]
    asked = re.search(r"http://([\w.]+):(\d+)/health", given["HEALTHCHECK"])
    assert asked[1] in args.allow_host and int(asked[2]) == args.port


def test_the_image_copies_what_exists_and_does_not_run_as_root():
    steps = instructions()
    assert {name for name, _ in steps} == INSTRUCTIONS
    sources = [word for name, rest in steps if name == "COPY" for word in rest.split()[:-1]]
    assert sources and all((ROOT / source).exists() for source in sources)
    names = [name for name, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_workflow_runs_the_whole_check():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    assert commands[-1][:2] == ["make", "test"]
    assert "\ntest: check\n" in (ROOT / "Makefile").read_text()
    extras = commands[-1][2].removeprefix("EXTRAS=").split(",")
    text = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", text, re.MULTILINE) for extra in extras)
