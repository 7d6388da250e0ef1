"""Change one operator or constant of the source at a time, and see whether a test notices.

    python benchmarks/mutation.py --count 300                 # about an hour on one core; resumes
    python benchmarks/mutation.py groups/finite.py --count 5  # a minute
    python benchmarks/mutation.py --survivors                 # those of the record, once more

A mutant is killed if a test fails or takes too long.  The tests of a module are those in the file
of the same name, then those that import from it, then those that import from its importers, short
files first, and up to --budget CPU seconds together.  Files that fail without a mutant, because
they count on a fresh process, are left out.

One process imports the libraries, and each mutant runs in a fork of it, on a copy of the
repository.  The record, benchmarks/mutants.ndjson, gets one line for each mutant.  The last line
printed is killed / tried.
"""

import argparse
import ast
import copy
import itertools
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import beartype  # noqa: F401 - imported once, here, for all mutants
import hypothesis  # noqa: F401
import lightning  # noqa: F401
import pytest
import torchmetrics  # noqa: F401

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "turnwise"
RECORD = Path(__file__).with_name("mutants.ndjson")
SCOPE = ("groups", "geometry", "attention", "layers", "training", "data/splits.py")
FILES = 10  # test files for a mutant: collecting them takes time, too
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, str, object]]:
    """Yield a node, the name of one of its fields, and another value for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, "op", SWAPS[type(node.op)]()
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, "ops", [SWAPS[type(node.ops[0])](), *node.ops[1:]]
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, "value", not node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, "value", node.value + 1
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "op", ast.UAdd()


def mutants(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what each mutant of a file changes, and its source."""
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    seen: dict[str, int] = {}
    for node, field, value in list(mutations(tree)):
        before = getattr(node, field)
        old = ast.unparse(node) if field != "value" else str(before)
        setattr(node, field, value)
        new = ast.unparse(node) if field != "value" else str(value)
        mutant = ast.unparse(copy.deepcopy(tree))
        setattr(node, field, before)
        line = lines[getattr(node, "lineno", 1) - 1].strip()[:90]
        name = f"{path.relative_to(SOURCE)}: {old[:60]} -> {new[:60]} in {line}"
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), mutant


@cache
def imports(path: Path) -> frozenset[Path]:
    """Return the modules of turnwise that a file takes names from, through packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnwise"):
            found |= {defining(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import) and any(a.name == "turnwise" for a in node.names):
            found |= imports(SOURCE / "__init__.py")
    return frozenset(found)


def defining(module: str, name: str) -> Path:
    """Return the file that defines a name that is imported from a module or a package."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    if path.with_suffix(".py").is_file() and path != SOURCE:
        return path.with_suffix(".py")
    if (path / f"{name}.py").is_file():
        return path / f"{name}.py"
    if (path / name).is_dir():
        return path / name / "__init__.py"
    for node in ast.walk(ast.parse((path / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name
                                                    for a in node.names):  # fmt: skip
            return defining(node.module or "", name)
    return path / "__init__.py"


@cache
def candidates(path: Path) -> list[Path]:
    """Return the test files of a module, the closest first, short files before long ones."""
    every = sorted(ROOT.joinpath("tests").rglob("test_*.py"), key=lambda test: test.stat().st_size)
    own = ROOT / "tests" / path.relative_to(SOURCE).parent / f"test_{path.stem}.py"
    users = {other for other in SOURCE.rglob("*.py") if path in imports(other)}
    near = [test for test in every if path in imports(test)]
    beside = [test for test in every if test.parent == own.parent]
    far = [test for test in every if users & imports(test)]
    return list(dict.fromkeys([*([own] if own.is_file() else []), *near, *beside, *far]))


class FirstFailure:
    """A pytest plugin that notes the first failure, and stops when the budget is used up."""

    def __init__(self, budget: float) -> None:
        self.budget, self.failed, self.is_over = budget, "", False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if time.process_time() > self.budget:
            item.session.shouldstop = self.is_over = True


class Copy:
    """A copy of the repository in which tests run, in forks of this process."""

    def __init__(self, folder: Path, budget: float) -> None:
        self.folder, self.budget = folder, budget
        self.stamps, self.healthy = itertools.count(10**9), dict[str, bool]()
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "*.pyc"))

    def write(self, path: Path, source: str) -> None:
        """Replace a file; a time of its own keeps Python from using older bytecode."""
        target, stamp = self.folder / path.relative_to(ROOT), next(self.stamps)
        target.write_text(source, encoding="utf-8")
        os.utime(target, (stamp, stamp))

    def first_failure(self, tests: list[Path]) -> str:
        """Run test files in turn; return the first test that fails or takes too long, or ""."""
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                found = self._run([str(test.relative_to(ROOT)) for test in tests])
                os.write(writer, found.encode())
            finally:  # never back into the parent's code, whatever happened
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            failed = pipe.read()
        _, status = os.waitpid(process, 0)
        return failed or ("" if status == 0 else "too long")

    def _run(self, tests: list[str]) -> str:
        limit = int(60 + 2 * self.budget)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder / "src"))
        os.environ |= {"PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        # without jaxtyping's hook, which compiles the whole package again in every process
        options += ["-o", "addopts=", "--import-mode=importlib"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported above
        found = FirstFailure(self.budget)
        status = pytest.main([*options, *tests], plugins=[found])
        assert found.failed or found.is_over or status == 0, "pytest itself failed"
        return found.failed

    def killer(self, path: Path, source: str) -> str:
        """Return the test that notices a mutant, or ""; it must pass without the mutant."""
        original = path.read_text(encoding="utf-8")
        while True:
            tests = [t for t in candidates(path) if self.healthy.get(str(t), True)][:FILES]
            self.write(path, source)
            failed = self.first_failure(tests[:1]) or self.first_failure(tests[1:])
            self.write(path, original)
            test = ROOT / failed.partition("::")[0]
            if test not in tests:
                return failed
            if str(test) not in self.healthy:
                self.healthy[str(test)] = not self.first_failure([test])
            if self.healthy[str(test)]:
                return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=SCOPE, help="below src/turnwise")
    parser.add_argument("--count", type=int, default=300, help="mutants in all (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="draws the mutants (default: 0)")
    parser.add_argument("--survivors", action="store_true", help="only those of the record, again")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests (default: 20)")
    args = parser.parse_args()
    roots = [SOURCE / name for name in args.modules]
    files = [p for r in roots for p in ([r] if r.is_file() else sorted(r.rglob("*.py")))]
    every = {name: (path, source) for path in files for name, source in mutants(path)}
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    known = {record["mutant"]: record for record in map(json.loads, lines)}
    chosen = random.Random(args.seed).sample(sorted(every), min(args.count, len(every)))
    if args.survivors:
        chosen = [name for name in known if name in every and not known[name]["killed"]]
    with tempfile.TemporaryDirectory() as name:
        copied = Copy(Path(name) / "copy", args.budget)
        for number, mutant in enumerate(chosen):
            if mutant not in known or args.survivors:
                test = copied.killer(*every[mutant])
                known[mutant] = {"mutant": mutant, "killed": bool(test), "by": test}
                text = "".join(f"{json.dumps(record)}\n" for record in known.values())
                RECORD.write_text(text, encoding="utf-8")
            word = "killed  " if known[mutant]["killed"] else "SURVIVED"
            print(f"{number + 1}/{len(chosen)} {word} {mutant}", flush=True)
    print(f"killed / tried: {sum(r['killed'] for r in known.values())} / {len(known)}")


if __name__ == "__main__":
    main()
