"""The layout of src/turnwise: packages import only from packages above them, and stay readable."""

import ast
from pathlib import Path

import pytest

PACKAGES = [
    "errors", "files", "signals", "groups", "geometry", "kernels", "attention", "layers", "models",
    "data", "training", "runs", "inference", "evaluation", "reports", "deploy", "cli", "__main__",
]  # fmt: skip
TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "turnwise"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")
TESTED = [m for m in MODULES if m.parent != SOURCE and m.name != "__init__.py"]
VAGUE = {"utils", "common", "helpers", "base", "misc", "core"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MAX_LINES, MAX_KERNEL_LINES = 350, 700


def name_of(path):
    return str(path.relative_to(SOURCE))


def package(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_modules(tree):
    """Yield every module named in an import, anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            whole = node.module == "turnwise"
            yield from (f"turnwise.{a.name}" if whole else node.module for a in node.names)


def imported_packages(tree):
    """Return the packages behind the imports; any module may read the version number."""
    ours = {name for name in imported_modules(tree) if name.startswith("turnwise.")}
    return {name.split(".")[1] for name in ours} - {"__version__"}


def top_level_attributes(tree):
    """Return the names used as `turnwise.NAME`, which bypass the order of packages."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "turnwise"
    }


def lines_of_code(function):
    """Count the lines of a function without its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    return lines - (function.body[0].end_lineno - function.body[0].lineno + 1)


@pytest.fixture(params=MODULES, ids=name_of)
def path(request):
    return request.param


@pytest.fixture
def tree(path):
    return ast.parse(path.read_text())


def test_packages_import_only_from_packages_above(path, tree):
    allowed = PACKAGES[: PACKAGES.index(package(path)) + 1]
    later = imported_packages(tree) - set(allowed)
    assert not later, f"{name_of(path)} imports {later}, which come later"


def test_nothing_is_imported_through_the_top_level(tree):
    assert top_level_attributes(tree) <= {"__version__"}


def test_module_length(path):
    limit = MAX_KERNEL_LINES if package(path) == "kernels" else MAX_LINES
    assert len(path.read_text().splitlines()) <= limit, "split this module by idea"


def test_function_length(path, tree):
    if package(path) == "kernels":
        pytest.skip("a kernel is read as one program")
    long = [n.name for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and lines_of_code(n) >= 60]
    assert not long


def test_module_has_a_docstring(tree):
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("module", TESTED, ids=name_of)
def test_module_has_a_test(module):
    folder = TESTS / module.relative_to(SOURCE).parent
    found = [*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")]
    assert found, f"{name_of(module)} has no {folder.relative_to(TESTS.parent)}/test_{module.name}"


@pytest.mark.parametrize("name", ["errors", "files", "signals"])
def test_single_module_has_a_test(name):
    assert (TESTS / f"test_{name}.py").is_file()


def test_no_name_is_vague():
    parts = {part for m in MODULES for part in m.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & VAGUE


def test_every_package_is_listed():
    assert {package(m) for m in MODULES} == set(PACKAGES)


# Negative controls: each measurement above must reject something wrong.

BAD_IMPORTS = {
    "import turnwise.cli.main": "cli",
    "from turnwise.models import load": "models",
    "from turnwise import data": "data",
    "def f():\n    from turnwise.runs.train import train": "runs",
}


@pytest.mark.parametrize("text", BAD_IMPORTS)
def test_control_every_kind_of_import_is_found(text):
    assert imported_packages(ast.parse(text)) == {BAD_IMPORTS[text]}


def test_control_a_top_level_name_is_no_package():
    """`from turnwise import certify` in a lower package would bypass the order."""
    (name,) = imported_packages(ast.parse("from turnwise import certify"))
    assert name not in PACKAGES
    assert top_level_attributes(ast.parse("turnwise.certify(model)")) == {"certify"}
    assert (
        imported_packages(ast.parse("import turnwise\nfrom turnwise import __version__")) == set()
    )


def test_control_docstrings_do_not_count_as_code():
    code = "def f():\n" + "    x = 1\n" * 49
    documented = "def f():\n" + '    """' + "a\n" * 30 + '    """\n' + "    x = 1\n" * 5
    assert lines_of_code(ast.parse(code).body[0]) == 50
    assert lines_of_code(ast.parse(documented).body[0]) == 6
