"""Hooks of MkDocs: the generated pages of the site, links to files outside docs/, and formulas.

Nothing is fetched from a network, neither here nor by the pages.
"""

import argparse
import ast
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from html import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jupytext
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\\w$])\$([^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])", re.DOTALL
)
# a list right after a paragraph, which GitHub shows as a list and Python-Markdown as text
LIST = re.compile(r"^((?![ \t]|[-*] |\d+\. |\|).+\n)((?:[-*]|\d+\.) )", re.MULTILINE)
EXTERNAL = ("http://", "https://", "mailto:")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages of the reference."""
    pages = {
        "reference/command-line.md": command_line(),
        "reference/python.md": python_names("turnwise"),
        "reference/layers.md": python_names("turnwise.layers"),
        "reference/certificate.md": certificate(),
    }
    for source in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        pages[f"tutorials/{source.stem}.md"] = executed(source)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Copy files outside docs/ that the page links to, and take formulas out of Markdown's way."""
    formulas: list[str] = []
    source = page.file.abs_src_path

    def follow(found: re.Match[str]) -> str:
        path = found[1]
        if source is None or path.startswith(EXTERNAL):
            return found[0]
        target = Path(os.path.normpath(Path(source).parent / path))
        inside = ROOT / "docs"
        if target.is_relative_to(inside) and target.suffix == ".py":
            return found[0].replace(".py", ".md")  # the executed tutorial
        if not target.is_file() or target.is_relative_to(inside):
            return found[0]
        copy = Path("files") / target.relative_to(ROOT)
        copy = copy.with_name(f"{copy.name}.txt")  # shown by every browser, whatever it is
        if files.get_file_from_path(copy.as_posix()) is None:
            files.append(File.generated(config, copy.as_posix(), content=target.read_bytes()))
        return f"]({os.path.relpath(copy, Path(page.file.src_uri).parent)})"

    def hold(found: re.Match[str]) -> str:
        display = "block" if found[1] else "inline"
        formulas.append(convert(found[1] or found[2], display=display))
        return f"FORMULA{len(formulas) - 1}X"

    parts = CODE.split(markdown)
    parts[::2] = [FORMULA.sub(hold, LINK.sub(follow, part)) for part in parts[::2]]
    parts[::2] = [LIST.sub(r"\1\n\2", part) for part in parts[::2]]
    page.meta["formulas"] = formulas
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the formulas in as MathML, which needs no script."""
    formulas = page.meta.get("formulas", [])
    return re.sub(r"FORMULA(\d+)X", lambda found: formulas[int(found[1])], html)


def command_line() -> str:
    """Return a page with every command, made from the parsers."""
    from turnwise.cli.main import COMMANDS, command_parser, help_text

    about = "Made from the parsers: `turnwise COMMAND --help` prints the same."
    lines = ["# Command line", "", about, ""]
    lines += [
        f"- [`turnwise {name}`](#{name}): {help_text(name).split('. ')[0]}" for name in COMMANDS
    ]
    for name in COMMANDS:
        parser = command_parser(name)
        lines += ["", f"## turnwise {name} {{#{name}}}", "", help_text(name), ""]
        lines += ["```text", parser.format_usage().removeprefix("usage: ").rstrip(), "```", ""]
        rows = [row for action in parser._actions for row in argument_rows(action, parser)]
        lines += ["| argument | meaning |", "|:--|:--|", *rows]
    return "\n".join(lines) + "\n"


def argument_rows(action: argparse.Action, parser: argparse.ArgumentParser) -> list[str]:
    """Return the table row of one argument; suppressed ones have none."""
    if action.help == argparse.SUPPRESS or "-h" in action.option_strings:
        return []
    formatter = parser._get_formatter()
    shown = formatter._format_action_invocation(action)
    text = formatter._expand_help(action) if action.help else ""
    return [f"| <code>{cell(shown)}</code> | {cell(text)} |"]


def python_names(module: str) -> str:
    """Return a page with every public name of a module, by the path where each is defined."""
    package = import_module(module)
    found = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    public = {
        name: value for name, value in found.items()
        if getattr(value, "__module__", "").startswith("turnwise.")
    }  # fmt: skip
    title = "Python" if module == "turnwise" else "Layers"
    about = (package.__doc__ or "").split(">>>")[0].strip()
    entries = [f"::: {value.__module__}.{value.__qualname__}" for value in public.values()]
    return "\n\n".join([f"# {title}: `{module}`", about, *entries]) + "\n"


def certificate() -> str:
    """Return a page that explains the JSON schema of certificates."""
    folder = Path(str(import_module("turnwise.evaluation.certificate").__file__)).parent
    schema = json.loads((folder / "certificate.schema.json").read_text(encoding="utf-8"))
    rows = ["| key | type | meaning |", "|:--|:--|:--|", *schema_rows(schema, schema["$defs"])]
    whole = ['??? note "The whole schema"', "    ```json"]
    whole += [f"    {line}" for line in json.dumps(schema, indent=2).splitlines()] + ["    ```"]
    about = "A certificate is one JSON file. `turnwise verify` measures its figures again."
    return "\n".join(["# Certificates: JSON schema", "", about, "", *rows, "", *whole]) + "\n"


def schema_rows(part: dict[str, Any], parts: dict[str, Any], prefix: str = "") -> list[str]:
    """Return one table row for each key, with those of its parts below it."""
    rows = []
    for name, entry in part.get("properties", {}).items():
        kind = entry.get("type", "")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        rows.append(f"| `{prefix}{name}` | {kind} | {cell(entry.get('description', ''))} |")
        for inner, mark in ((entry, "."), (entry.get("items", {}), "[].")):
            named = parts.get(inner.get("$ref", "").rpartition("/")[2], inner)
            rows += schema_rows(named, parts, prefix + name + mark)
    return rows


def executed(source: Path) -> str:
    """Run a tutorial cell by cell; return Markdown with the outputs.  An error ends the build."""
    parts, names = [], {"__name__": "tutorial"}
    with working_folder():
        for each in jupytext.read(source).cells:
            if each.cell_type == "markdown":
                parts.append(each.source)
                continue
            parts.append(f"```python\n{each.source}\n```")
            parts += run_cell(each.source, names)
    about = f"This page is {source.name}; `jupytext --to ipynb` makes a notebook of it."
    return "\n\n".join([*parts, about]) + "\n"


def run_cell(code: str, names: dict[str, Any]) -> list[str]:
    """Run one cell; return what it prints and what its last expression displays."""
    tree, printed, shown = ast.parse(code), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "tutorial", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "tutorial", "eval"), names)
    if shown is not None and not hasattr(shown, "_repr_html_"):
        print(repr(shown), file=printed)
    text = printed.getvalue().rstrip()
    parts = [f"```text\n{text}\n```"] if text else []
    return [*parts, shown._repr_html_()] if hasattr(shown, "_repr_html_") else parts


@contextmanager
def working_folder() -> Iterator[None]:
    """Run what follows in a temporary folder."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def cell(text: str) -> str:
    return escape(" ".join(text.split())).replace("|", "&#124;")
