"""What a release is made of: pins with hashes, of the tested versions, and the documents."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PIN = re.compile(
    r"^([\w.-]+)==([\w.]+)(?:\+cpu)? \\((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", re.M
)


def name_of(requirement):
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def read_pins():
    text = (REPOSITORY / "requirements-release.txt").read_text()
    return {name_of(name): version for name, version, _ in PIN.findall(text)}, text


def test_every_line_is_a_pin_with_hashes():
    pins, text = read_pins()
    rest = PIN.sub("", text)
    assert all(line.startswith("#") for line in rest.splitlines() if line)
    assert len(pins) == text.count("==")


def test_the_pins_are_the_tested_versions():
    pins, _ = read_pins()
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    tested = {
        name_of(line): line.split("==")[1] for line in lines if "==" in line and line[0] != "#"
    }
    assert {name: pins[name] for name in pins if name in tested} == {
        name: tested[name] for name in pins if name in tested
    }


def test_no_dependency_is_left_out():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {name_of(line) for line in [*project["dependencies"], *extras["onnx"], *extras["hub"]]}
    assert needed <= set(read_pins()[0])


def test_the_source_distribution_holds_the_documents():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"LICENSE", "CHANGELOG.md", "SECURITY.md", "requirements-release.txt"} <= set(included)
    assert all((REPOSITORY / path).exists() for path in included)
