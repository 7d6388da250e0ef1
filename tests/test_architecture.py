"""The layout of src/turnwise: packages import only from packages above them, and stay readable."""

import ast
import re
from pathlib import Path

import pytest

PACKAGES = [
    "errors", "parsing", "options", "files", "signals", "notebook", "groups", "geometry", "kernels",
    "attention", "layers",
    "models", "data", "training", "runs", "inference", "evaluation", "reports", "deploy", "cli",
    "__main__",
]  # fmt: skip
TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "turnwise"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")
TESTED = [m for m in MODULES if m.parent != SOURCE and m.name != "__init__.py"]
RUN, PREDICTOR = "runs/run.py", "inference/predictor.py"
RUN_FILES = {"recipe.yaml", "environment.json", "metrics.csv", "best.ckpt", "last.ckpt",
             "test.json", "certificate.json"}  # fmt: skip
PREDICTING = PACKAGES[PACKAGES.index("runs") :]  # packages that run trained models
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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


def code_strings(tree):
    """Return the strings in the code, without docstrings."""
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
    }


def file_names(tree):
    """Return the file names that the code can open: strings without spaces, a path or its end."""
    pattern = r"(?:\S*/)?([\w{}]*\.(?:yaml|json|csv|ckpt|safetensors))"
    matches = (re.fullmatch(pattern, text) for text in code_strings(tree))
    return {match[1] for match in matches if match}


def called_name(call):
    """Return the last name of what is called, and of `model.eval()(x)` the model's."""
    function = call.func
    if isinstance(function, ast.Call) and isinstance(function.func, ast.Attribute):
        function = function.func.value
    return getattr(function, "attr", getattr(function, "id", ""))


def is_model_call(node):
    """Return whether a model computes something: model(x), self.model(x), model.eval()(x), …"""
    names = {"model", "net", "network", "inner", "forward", "forward_features", "forward_head"}
    return isinstance(node, ast.Call) and bool(node.args) and called_name(node) in names


def has_model_loop(tree):
    """Return whether a loop calls a model."""
    loops = (node for node in ast.walk(tree) if isinstance(node, LOOPS))
    return any(is_model_call(node) for loop in loops for node in ast.walk(loop))


def switches_gradients_off(tree):
    names = {"no_grad", "inference_mode"}
    return any(getattr(n, "attr", getattr(n, "id", "")) in names for n in ast.walk(tree))


def assigns_signature(tree):
    """Return whether `f.__signature__` is set: it would hide what a function really takes."""
    targets = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute | ast.Name))
    stored = (getattr(n, "attr", getattr(n, "id", "")) for n in targets
              if isinstance(n.ctx, ast.Store))  # fmt: skip
    return "__signature__" in {*stored, *code_strings(tree)}


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
    """Except in kernels, which are read as one program."""
    long = [n.name for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and lines_of_code(n) >= 60]
    assert package(path) == "kernels" or not long


def test_module_has_a_docstring(tree):
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("module", TESTED, ids=name_of)
def test_module_has_a_test(module):
    folder = TESTS / module.relative_to(SOURCE).parent
    found = [*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")]
    if package(module) == "kernels":  # one test for all modules of an operation
        found += [p for p in folder.glob("test_*.py") if module.stem.startswith(f"{p.stem[5:]}_")]
    assert found, f"{name_of(module)} has no {folder.relative_to(TESTS.parent)}/test_{module.name}"


@pytest.mark.parametrize("name", ["errors", "parsing", "options", "files", "signals"])
def test_single_module_has_a_test(name):
    assert (TESTS / f"test_{name}.py").is_file()


def test_only_one_module_names_the_files_of_a_run():
    """So that the layout of a run folder can change in one module."""
    named = {name_of(m): file_names(ast.parse(m.read_text())) for m in MODULES}
    checkpoints = {name.format(which) for name in named[RUN] for which in ("best", "last")}
    owned = named[RUN] | checkpoints | {".ckpt"}
    assert owned >= RUN_FILES
    others = {name: found & owned for name, found in named.items() if name != RUN and found & owned}
    assert not others


def test_a_file_name_is_owned_by_one_module():
    """Also of model folders, pretrained weights and the catalogue."""
    owners = {}
    for module in MODULES:
        for name in file_names(ast.parse(module.read_text())):
            owners.setdefault(name, []).append(name_of(module))
    assert not {name: found for name, found in owners.items() if len(found) > 1}


def test_only_the_predictor_loops_over_batches():
    """Other modules predict through it, so that precision, memory and devices are handled once."""
    trees = {name_of(m): ast.parse(m.read_text()) for m in MODULES if package(m) in PREDICTING}
    assert [name for name, tree in trees.items() if switches_gradients_off(tree)] == [PREDICTOR]
    assert [name for name, tree in trees.items() if has_model_loop(tree)] in ([], [PREDICTOR])


def test_only_the_command_line_mentions_flags(path, tree):
    """Errors of the library state facts, because its users may have no command line."""
    flags = {text for text in code_strings(tree) if re.search(r"(?<![-\w!<])--[a-z]", text)}
    assert package(path) == "cli" or not flags


def test_no_signature_is_assigned(tree):
    assert not assigns_signature(tree)


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


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('path = folder / "recipe.yaml"', {"recipe.yaml"}),
        ('path = f"{folder}/model/config.json"', {"config.json"}),
        ('NAME = "{}.ckpt"', {"{}.ckpt"}),
        ('def f():\n    """recipe.yaml"""', set()),
        ('raise ValueError("give a certificate.json")', set()),
    ],
)
def test_control_file_names_are_found_in_code_only(code, found):
    assert file_names(ast.parse(code)) == found


@pytest.mark.parametrize(
    "code",
    [
        "for batch in images.split(64):\n    found.append(model(batch).cpu())",
        "found = torch.cat([self.model(batch) for batch in batches])",
        "found = [model.eval()(batch) for batch in batches]",
        "while rows:\n    features = model.forward_features(rows.pop())",
    ],
)
def test_control_a_loop_over_batches_is_found(code):
    assert has_model_loop(ast.parse(code))


def test_control_loading_models_in_a_loop_is_allowed():
    assert not has_model_loop(ast.parse("models = [run.model() for run in runs]"))
    assert switches_gradients_off(ast.parse("@torch.no_grad()\ndef f(): ..."))
    assert switches_gradients_off(ast.parse("from torch import no_grad\nwith no_grad(): ..."))


@pytest.mark.parametrize(
    "code", ["f.__signature__ = signature", 'setattr(f, "__signature__", signature)']
)
def test_control_an_assigned_signature_is_found(code):
    assert assigns_signature(ast.parse(code))
    assert not assigns_signature(ast.parse("print(f.__signature__)"))
