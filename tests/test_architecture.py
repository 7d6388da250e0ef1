"""The plan of the house: rooms import only from rooms before them, and stay small."""

import ast
from pathlib import Path

import pytest

ROOMS = [
    "checks", "files", "signals", "groups", "geometry", "attention", "layers", "models",
    "data", "training", "evaluation", "reports", "cli", "__main__",
]  # fmt: skip
TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "turnwise"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")
MODULES_OF_ROOMS = [m for m in MODULES if m.parent != SOURCE and m.name != "__init__.py"]
VAGUE = {"utils", "common", "helpers", "base", "misc", "core"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path):
    return str(path.relative_to(SOURCE))


def room(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_modules(tree):
    """Every module named in an import, wherever the import stands; `from turnwise import x` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            whole = node.module == "turnwise"
            yield from (f"turnwise.{a.name}" if whole else node.module for a in node.names)


def imported_rooms(tree):
    """The rooms behind the imports; the version number is no room, and anyone may look at it."""
    ours = {name for name in imported_modules(tree) if name.startswith("turnwise.")}
    return {name.split(".")[1] for name in ours} - {"__version__"}


def through_the_front_door(tree):
    """What is used as `turnwise.something` after `import turnwise`, past every door of the plan."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "turnwise"
    }


def lines_of_code(function):
    """The lines of a function without its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    return lines - (function.body[0].end_lineno - function.body[0].lineno + 1)


def our_names(tree):
    """The names in a module that stand for something of ours: imported, or a class made here."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnwise"):
            names |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {"turnwise" for alias in node.names if alias.name.startswith("turnwise")}
    return names


def inherited_from_us(tree):
    """The bases, of any class in the module, that are classes of ours."""
    ours = our_names(tree)
    bases = [
        base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases
    ]
    return {ast.unparse(base) for base in bases if ast.unparse(base).split(".")[0] in ours}


@pytest.fixture(params=MODULES, ids=name_of)
def path(request):
    return request.param


@pytest.fixture
def tree(path):
    return ast.parse(path.read_text())


def test_rooms_import_only_from_rooms_above(path, tree):
    later = {r for r in imported_rooms(tree) if ROOMS.index(r) > ROOMS.index(room(path))}
    assert not later, f"{name_of(path)} imports {later}, which come later in the plan"


def test_nothing_is_fetched_through_the_front_door(tree):
    assert through_the_front_door(tree) <= {"__version__"}


def test_a_module_is_at_most_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300, "split this module"


def test_a_function_is_shorter_than_50_lines(tree):
    long = [n.name for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and lines_of_code(n) >= 50]
    assert not long


def test_a_module_says_what_it_is(tree):
    assert ast.get_docstring(tree)


def test_nothing_inherits_from_us(tree):
    assert not inherited_from_us(tree), "to vary a layer, pass it a part"


@pytest.mark.parametrize("module", MODULES_OF_ROOMS, ids=name_of)
def test_a_module_has_its_test(module):
    mirrored = TESTS / module.relative_to(SOURCE).parent / f"test_{module.name}"
    assert mirrored.is_file(), f"{name_of(module)} has no {mirrored.relative_to(TESTS.parent)}"


@pytest.mark.parametrize("name", ["checks", "files", "signals"])
def test_a_room_of_one_module_has_its_test(name):
    assert (TESTS / f"test_{name}.py").is_file()


def test_no_name_is_vague():
    parts = {part for m in MODULES for part in m.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & VAGUE


def test_every_room_is_in_the_plan():
    assert {room(m) for m in MODULES} == set(ROOMS)


# The measures above must condemn what is wrong.

BAD_IMPORTS = {
    "import turnwise.cli.main": "cli",
    "from turnwise.models import load": "models",
    "from turnwise import data": "data",
    "def f():\n    from turnwise.training.run import train": "training",
}


@pytest.mark.parametrize("text", BAD_IMPORTS)
def test_control_every_kind_of_import_is_seen(text):
    assert imported_rooms(ast.parse(text)) == {BAD_IMPORTS[text]}


def test_control_a_name_of_the_front_door_is_no_room():
    """`from turnwise import certify` in a lower room would go round the plan: it is not known."""
    (name,) = imported_rooms(ast.parse("from turnwise import certify"))
    assert name not in ROOMS
    assert through_the_front_door(ast.parse("turnwise.certify(model)")) == {"certify"}
    assert imported_rooms(ast.parse("import turnwise\nfrom turnwise import __version__")) == set()


@pytest.mark.parametrize(
    "text",
    [
        "from turnwise.models.vit import VisionTransformer\nclass A(VisionTransformer): ...",
        "import turnwise.models.vit\nclass A(turnwise.models.vit.VisionTransformer): ...",
        "from turnwise.models import vit as plain\nclass A(plain.VisionTransformer): ...",
        "class A: ...\nclass B(A): ...",
    ],
)
def test_control_inheritance_is_seen(text):
    assert len(inherited_from_us(ast.parse(text))) == 1
    assert inherited_from_us(ast.parse("from torch import nn\nclass A(nn.Module): ...")) == set()


def test_control_docstrings_do_not_count_as_code():
    code = "def f():\n" + "    x = 1\n" * 49
    told = "def f():\n" + '    """' + "a\n" * 30 + '    """\n' + "    x = 1\n" * 5
    assert lines_of_code(ast.parse(code).body[0]) == 50
    assert lines_of_code(ast.parse(told).body[0]) == 6
