"""Code, commands, links and tables in README and docs are right."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from turnwise.cli.main import parse
from turnwise.models.registry import list_models, unregister
from turnwise.training.recipe import make_recipe, read_recipe

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
TUTORIALS = sorted((REPOSITORY / "docs" / "tutorials").glob("*.py"))


def blocks(path, language):
    """Return the fenced blocks of one language."""
    parts = re.split(r"^```(\w*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    fenced = zip(parts[1::4], parts[2::4], strict=True)
    return [code for name, code in fenced if name == language]


PYTHON = [(page.name, code) for page in PAGES for code in blocks(page, "python")]
COMMANDS = [
    line.split("  #")[0]
    for page in PAGES
    for block in blocks(page, "")
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("turnwise ")
]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page for page, _ in PYTHON])
def test_python_runs(page, code):
    known = set(list_models())
    exec(compile(code, page, "exec"), {})
    for name in set(list_models()) - known:
        unregister(name)


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_run(tutorial, tmp_path, monkeypatch):
    """`make docs` runs them, too, and shows their outputs."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tutorial))


def test_python_is_found():
    assert len(PYTHON) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_command_can_be_parsed(command, monkeypatch):
    """A recipe that it names can be read with its settings."""
    monkeypatch.chdir(REPOSITORY)
    args = parse(shlex.split(command)[1:])
    if args.command != "train" or args.resume:
        return
    if args.values is not None:
        assert make_recipe(args.values)
    elif Path(args.settings[0]).is_file():
        assert read_recipe(args.settings[0], args.settings[1:])


def test_commands_are_found():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("page", [*PAGES, REPOSITORY / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_navigation():
    """`make docs` refuses a page that is not, but `make test` does not build the site."""
    configuration = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))

    def paths(entry):
        if isinstance(entry, str):
            return {entry}
        inner = entry.values() if isinstance(entry, dict) else entry
        return set().union(*map(paths, inner))

    pages = {p.relative_to(REPOSITORY / "docs").as_posix() for p in PAGES[1:]}
    assert pages <= paths(configuration["nav"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_generated_parts_have_both_markers(page):
    text = page.read_text(encoding="utf-8")
    begun = re.findall(r"<!-- (\w+): made by benchmarks/tables.py -->\n", text)
    assert begun == re.findall(r"<!-- end of (\w+) -->", text)


def test_tables_are_made_from_the_records():
    check = [sys.executable, str(REPOSITORY / "benchmarks" / "tables.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python benchmarks/tables.py"


def test_every_key_of_a_recipe_is_explained_with_its_default():
    """The table of docs/reference/recipes.md has one row per key."""
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}}).plain()
    keys = {}

    def walk(part, path):
        for key, value in part.items():
            name = f"{path}{key}"
            walk(value, f"{name}.") if isinstance(value, dict) else keys.update({name: value})

    recipe["model"] = {
        key: recipe["model"][key] for key in ("name", "group")
    }  # its options: models.md
    walk(recipe, "")
    page = (REPOSITORY / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+?) \|", page, re.MULTILINE))
    assert set(documented) == set(keys)
    for name, default in documented.items():
        if default != "needed":
            assert yaml.safe_load(default) == keys[name], name
