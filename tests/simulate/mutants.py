"""Measure which mistakes the simulation detects: ``python -m tests.simulate.mutants``.

A mutant is the program with one small change in one of the rooms, such as ``<`` for ``<=`` or no
call of a function. The change is made when the module is imported. A mutant is detected if a seed
fails, or does not end in time (R. DeMillo, R. Lipton and F. Sayward, "Hints on Test Data
Selection", 1978).
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
ROOMS = ("fleet/comm", "fleet/control", "fleet/runtime", "fleet/storage", "fleet/stream")
VARIABLE = "FLEET_SIMULATE_MUTANT"  # the mutant that a simulation is to import, as JSON

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}


@dataclass(frozen=True)
class Mutant:
    """A change of the program.

    Attributes:
        path: the file, from the root.
        index: the number of the change among those of the file.
        line: its line.
        change: what is changed.
    """

    path: str
    index: int
    line: int
    change: str

    @property
    def module(self) -> str:
        """The name of the changed module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class _Mutator(ast.NodeTransformer):
    """Applies one of the changes of a file, or lists them all."""

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._count = 0
        self.changes: list[tuple[int, str]] = []

    def _is_chosen(self, node: ast.AST, change: str) -> bool:
        self.changes.append((getattr(node, "lineno", 0), change))
        self._count += 1
        return self._count - 1 == self._index

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in ("__repr__", "__str__"):
            return node
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # a message

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if self._is_chosen(node, "no raise"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node
        called = ast.unparse(node.value.func)
        if called.startswith(("log.", "print", "logging.", "warnings.")):
            return node
        if self._is_chosen(node, f"no call of {called}"):
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        kind = type(node.ops[0])
        swap = _SWAPS.get(kind)
        if swap and self._is_chosen(node, f"{kind.__name__} -> {swap.__name__}"):
            node.ops[0] = swap()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        swap = _SWAPS[type(node.op)]
        if self._is_chosen(node, f"{type(node.op).__name__} -> {swap.__name__}"):
            node.op = swap()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swap = _SWAPS.get(type(node.op))
        if swap and self._is_chosen(node, f"{type(node.op).__name__} -> {swap.__name__}"):
            node.op = swap()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_chosen(node, "no not"):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            if self._is_chosen(node, f"{value} -> {not value}"):
                return ast.copy_location(ast.Constant(not value), node)
        elif isinstance(value, int) and self._is_chosen(node, f"{value} -> {value + 1}"):
            return ast.copy_location(ast.Constant(value + 1), node)
        return node


def all_mutants(path: str) -> Iterator[Mutant]:
    """List the changes of a file's functions."""
    mutator = _Mutator(None)
    tree = ast.parse((ROOT / path).read_text())
    for node in _functions(tree):
        mutator.visit(node)
    for index, (line, change) in enumerate(mutator.changes):
        yield Mutant(path, index, line, change)


def mutated(mutant: Mutant) -> ast.Module:
    """Return the syntax tree of a file with one change."""
    mutator = _Mutator(mutant.index)
    tree = ast.parse((ROOT / mutant.path).read_text())
    for node in _functions(tree):
        mutator.visit(node)
    return ast.fix_missing_locations(tree)


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Iterate over the outermost functions and methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (member for member in node.body if isinstance(member, ast.FunctionDef))


# ---- in the simulation -------------------------------------------------------------------------


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the changed module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        """Return the spec of the changed module."""
        if name != self._mutant.module:
            return None
        file = ROOT / self._mutant.path
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=self,
            submodule_search_locations=[str(file.parent)] if file.stem == "__init__" else None,
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed module."""
        code = compile(mutated(self._mutant), str(ROOT / self._mutant.path), "exec")
        exec(code, vars(module))


def install() -> None:
    """Import the mutant that the environment names, if it names one."""
    text = os.environ.get(VARIABLE)
    if text:
        sys.meta_path.insert(0, _Finder(Mutant(**json.loads(text))))


# ---- the command -------------------------------------------------------------------------------


def _is_detected(mutant: Mutant, seeds: str, timeout_s: float, job: int) -> tuple[str, float]:
    """Simulate a mutant; returns how it was detected, or "", and the seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.simulate", "--seeds", seeds, "--first"]
    try:
        completed = subprocess.run(
            [*command, "--job", str(job)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: json.dumps(asdict(mutant))},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it did not end", time.monotonic() - began
    if completed.returncode == 0:
        return "", time.monotonic() - began
    lines = (completed.stdout + completed.stderr).splitlines()
    how = next((line for line in lines if line.startswith("seed ")), lines[-1] if lines else "?")
    return how[:200], time.monotonic() - began


def main() -> int:
    """Draw mutants and report which ones the simulation detects, one JSON object per line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.mutants")
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of their choice")
    parser.add_argument("--seeds", default="0:60", metavar="A:B", help="seeds of the simulations")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for each mutant")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    arguments = parser.parse_args()
    files = sorted(
        str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")
    )
    mutants = [mutant for path in files for mutant in all_mutants(path)]
    random.Random(arguments.seed).shuffle(mutants)
    mutants = mutants[: arguments.count]

    def run(number: int) -> str:
        how, seconds = _is_detected(
            mutants[number], arguments.seeds, arguments.timeout, 500 + number
        )
        print(json.dumps({**asdict(mutants[number]), "how": how, "seconds": round(seconds, 1)}))
        sys.stdout.flush()
        return how

    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(run, range(len(mutants))))
    detected = sum(map(bool, outcomes))
    print(f"{detected} of {len(mutants)} mutants were detected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
