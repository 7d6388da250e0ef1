"""Change one operator or constant of the source at a time, and see whether a test notices.

    python benchmarks/mutation.py --count 300                 # hours on one core; resumes
    python benchmarks/mutation.py groups/finite.py --count 5  # a few minutes

A mutant is killed if a test of its module fails or takes too long.  The tests of a module are
those in the file of the same name, and with --package all tests of its package; they must pass
without a mutant.  Each mutant runs in a copy of the repository; the record,
benchmarks/mutation.jsonl, gets one line for each, and mutants that it already holds are not run
again.  The last line printed is killed / tried.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "turnwise"
RECORD = Path(__file__).with_suffix(".jsonl")
SCOPE = ("groups", "geometry", "attention", "layers", "training", "data/splits.py")
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
    """Yield where each mutant of a file differs, and its source."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    for number, (node, field, value) in enumerate(list(mutations(tree))):
        before = getattr(node, field)
        line = getattr(node, "lineno", 0)
        old = ast.unparse(node) if field != "value" else str(before)
        setattr(node, field, value)
        new = ast.unparse(node) if field != "value" else str(value)
        mutant = ast.unparse(copy.deepcopy(tree))
        setattr(node, field, before)
        yield f"{path.relative_to(SOURCE)}:{line} #{number} {old[:60]} -> {new[:60]}", mutant


def tests_of(path: Path, package: bool) -> list[str]:
    """Return the test files of a module."""
    folder = ROOT / "tests" / path.relative_to(SOURCE).parent
    own = folder / f"test_{path.stem}.py"
    found = sorted(folder.glob("test_*.py")) if package or not own.is_file() else [own]
    return [str(test.relative_to(ROOT)) for test in found]


def is_killed(copied: Path, path: Path, source: str, tests: list[str], seconds: float) -> bool:
    """Run the tests on the mutant; too long counts as killed."""
    target = copied / path.relative_to(ROOT)
    original = target.read_bytes()
    target.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copied / "src"), "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    try:
        return subprocess.run(command, cwd=copied, env=environment, capture_output=True,
                              timeout=seconds).returncode != 0  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_bytes(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=SCOPE, help="below src/turnwise")
    parser.add_argument("--count", type=int, default=300, help="mutants in all (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="draws the mutants (default: 0)")
    parser.add_argument("--package", action="store_true", help="run all tests of the package")
    parser.add_argument("--timeout", type=float, default=900, help="seconds (default: 900)")
    args = parser.parse_args()
    roots = [SOURCE / name for name in args.modules]
    files = [p for r in roots for p in ([r] if r.is_file() else sorted(r.rglob("*.py")))]
    every = [(path, *mutant) for path in files for mutant in mutants(path)]
    chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    known = {record["mutant"]: record["killed"] for record in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        copied, healthy = Path(folder) / "copy", set[str]()
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", ".venv", "runs"))
        for number, (path, name, source) in enumerate(chosen):
            if name not in known:
                tests = tests_of(path, args.package)
                if not healthy.issuperset(tests):
                    unchanged = path.read_text(encoding="utf-8")
                    failed = is_killed(copied, path, unchanged, tests, args.timeout)
                    assert not failed, f"without a mutant, {', '.join(tests)} must pass"
                    healthy |= set(tests)
                known[name] = is_killed(copied, path, source, tests, args.timeout)
                with RECORD.open("a") as file:
                    file.write(json.dumps({"mutant": name, "killed": known[name]}) + "\n")
            word = "killed  " if known[name] else "SURVIVED"
            print(f"{number + 1}/{len(chosen)} {word} {name}", flush=True)
    killed = sum(known[name] for _, name, _ in chosen)
    print(f"killed / tried: {killed} / {len(chosen)}")


if __name__ == "__main__":
    main()
