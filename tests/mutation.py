"""Seed faults over all folders of the package, and count how many the default tests catch.

    python tests/mutation.py --count 60 --table mutation.tsv

Each fault changes one expression. One run with coverage tells which tests enter a line: these run first, then
the tests of the fault's folder. An interrupted table is continued. It needs the package pytest-cov.
"""

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def fault(node):
    """Return (kind, the part that is replaced, what replaces it) for a node, or None."""
    match node:
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATORS:
            return "operator", node, ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            return "operator", node, ast.BoolOp(OPERATORS[type(op)](), values)
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            return "bound", node, ast.Compare(node.left, [OPERATORS[type(op)]()], node.comparators)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return "sign", node, operand
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return "off by one", node, ast.Constant(number + 1)
        case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
            return "swapped", node, ast.Call(node.func, [second, first, *rest], node.keywords)
        case ast.If(test=test, body=[ast.Raise()], orelse=[]):
            return "dropped check", test, ast.Constant(False)
        case ast.Expr(value=ast.Call() as call):
            return "dropped call", call, ast.Constant(None)


def candidates(path):
    """Yield (kind, first and last line, source with the fault) for each fault, except in annotations."""
    source = path.read_bytes()
    starts = list(itertools.accumulate(map(len, source.splitlines(keepends=True)), initial=0))
    tree = ast.parse(source)
    types = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    left_out = {id(inner) for part in types if part for inner in ast.walk(part)}
    for kind, old, new in filter(None, (fault(node) for node in ast.walk(tree) if id(node) not in left_out)):
        begin = starts[old.lineno - 1] + old.col_offset
        end = starts[old.end_lineno - 1] + old.end_col_offset
        text = f"({ast.unparse(ast.fix_missing_locations(new))})".encode()
        yield kind, (old.lineno, old.end_lineno), source[:begin] + text + source[end:]


def draw(count):
    """Draw `count` faults, spread evenly over the folders and, within one, over the kinds."""
    rng, package = random.Random(0), ROOT / "dynskip_jax"
    inner = sorted(path for path in package.iterdir() if any(path.glob("*.py")))
    for folder in itertools.islice(itertools.cycle([package, *inner]), count):
        files = sorted(folder.glob("*.py") if folder == package else folder.rglob("*.py"))
        found = [(path, *one) for path in files for one in candidates(path)]
        kind = rng.choice(sorted({one[1] for one in found}))
        yield rng.choice([one for one in found if one[1] == kind])


def caught(copy, entered, path, lines, source):
    """Tell whether a test fails in the copy of the project that has the fault."""
    inside = path.relative_to(ROOT)
    by_line = entered.contexts_by_lineno(str(path))
    tests = {name.split("|")[0] for line in range(lines[0], lines[1] + 1) for name in by_line.get(line, ())}
    folder = f"tests/{inside.parts[1]}"
    (copy / inside).write_bytes(source)
    how = dict(cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True)
    pytest = ["timeout", "900", sys.executable, "-m", "pytest", "-q", "-x", "-n0"]
    try:
        for chosen in filter(None, (sorted(tests - {""}), [folder] * (ROOT / folder).is_dir())):
            done = subprocess.run([*pytest, *chosen], **how)
            if done.returncode == 124 or re.search(r"\d (failed|error)", done.stdout):
                return True  # a test fails, or never ends
        return False
    finally:
        shutil.copy(path, copy / inside)


def main():
    parser = argparse.ArgumentParser(description="Seed faults, and count how many the default tests catch.")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--table", type=Path, default=Path("mutation.tsv"))
    arguments = parser.parse_args()
    data = arguments.table.with_suffix(".coverage").resolve()
    if not data.exists():
        command = ["pytest", "-q", "--cov=dynskip_jax", "--cov-context=test", "--cov-report="]
        environment = os.environ | {"COVERAGE_FILE": str(data), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment)
    entered = coverage.CoverageData(data)
    entered.read()
    arguments.table.touch()
    done = len(arguments.table.read_text().splitlines())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "*.egg-info"))
        for path, kind, lines, source in itertools.islice(draw(arguments.count), done, None):
            outcome = "caught" if caught(copy, entered, path, lines, source) else "missed"
            with arguments.table.open("a") as table:
                table.write(f"{path.relative_to(ROOT)}:{lines[0]}\t{kind}\t{outcome}\n")


if __name__ == "__main__":
    main()
