"""Measure which mistakes the simulation detects: ``python -m tests.simulate.mutants``.

A mutant is the program with one small change in one of the packages, such as ``<`` for ``<=`` or no
call of a function. It is detected if a seed fails, or does not end in time (R. DeMillo, R. Lipton
and F. Sayward, "Hints on Test Data Selection", 1978).

A mutant can only be detected by a seed that reaches its statement, so the seeds are measured once
(:mod:`tests.simulate.coverage`). Each mutant is a fork of one process that has imported everything.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.simulate import coverage, rewriting
from tests.simulate.cases import make_case
from tests.simulate.command import SHARED_MEMORY, say, seeds_of

_SLOWER = 5.0  # a seed that takes so many times the time that it took does not end
_SLOWER_S = 5.0  # ... and so many seconds more
_LONGER = 2.0  # the same for the virtual time of a seed without faults
_LONGER_S = 5.0
_SHORTEST = 3  # number of the shortest seeds that are tried first
_MOST_MEMORY = 4 << 30
_LONGEST_FILE = 256 << 20
# What is not changed, because the simulation cannot notice it:
# calls that only write messages,
_MESSAGES = ("log.", "print", "logging.", "warnings.", "self._say", "say", "progress")
# functions that only make text: their names begin so,
_TEXTS = ("__repr__", "__str__", "_repr_html_", "describe", "explain", "advise", "name_", "list_")
# and the refusal of wrong input, or of a mistake of the program: simulated users make none.
_REFUSALS = tuple(
    "UserError SpecError InputError InvalidTransition AssertionError ValueError TypeError".split()
)

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
        line: the first line of the changed statement.
        function: the changed function or method.
        source: the changed expression.
        change: what is changed.
        occurrence: number of equal changes before, in the same function.
    """

    path: str
    index: int
    line: int
    function: str
    source: str
    change: str
    occurrence: int

    @property
    def name(self) -> str:
        """How a command line names it."""
        return f"{self.path}:{self.index}"

    def to_json(self) -> dict[str, Any]:
        """Return what a reader needs."""
        keys = ("line", "function", "source", "change")
        return {"mutant": self.name, **{key: getattr(self, key) for key in keys}}

    def order(self, seed: int) -> bytes:
        """Return a random key, which no change elsewhere in the file alters."""
        key = (seed, self.path, self.function, self.source, self.change, self.occurrence)
        return hashlib.sha256(repr(key).encode()).digest()


class _Mutator(ast.NodeTransformer):
    """Applies one of the changes of a file, or lists them all."""

    def __init__(self, path: str, index: int | None = None) -> None:
        self._path = path
        self._index = index
        self._line = 0
        self._function = ""
        self._occurrences = Counter[tuple[str, str, str]]()
        self.mutants: list[Mutant] = []

    def change(self, tree: ast.Module) -> None:
        """Change or list the functions of a file."""
        for self._function, node in rewriting.functions(tree):
            is_text = node.name.startswith(_TEXTS) or node.name.strip("_").startswith(_TEXTS)
            if not is_text and f"{self._path} {self._function}" not in rewriting.REPLACED:
                self.visit(node)
        ast.fix_missing_locations(tree)

    def visit(self, node: ast.AST) -> Any:
        """Visit a node, and remember in which statement it is."""
        before = self._line
        if isinstance(node, ast.stmt):
            self._line = node.lineno
        try:
            return super().visit(node)
        finally:
            self._line = before

    def _is_chosen(self, node: ast.AST, change: str) -> bool:
        source = ast.unparse(node).partition("\n")[0][:80]
        key = (self._function, source, change)
        index = len(self.mutants)
        self.mutants.append(
            Mutant(
                self._path,
                index,
                self._line,
                self._function,
                source,
                change,
                self._occurrences[key],
            )
        )
        self._occurrences[key] += 1
        return index == self._index

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # a message

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if node.exc is not None and ast.unparse(node.exc).startswith(_REFUSALS):
            return node
        return _never(node) if self._is_chosen(node, "no raise") else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node
        called = ast.unparse(node.value.func)
        if called.startswith(_MESSAGES):
            return node
        if self._is_chosen(node, f"no call of {called}"):
            return _never(node)
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


def _never(node: ast.stmt) -> ast.stmt:
    """Return a statement that does nothing, but refers to the same variables."""
    return ast.copy_location(ast.If(ast.Constant(False), [node], []), node)


def all_mutants() -> Iterator[Mutant]:
    """List the changes in all packages."""
    for path in rewriting.files():
        mutator = _Mutator(path)
        mutator.change(rewriting.parse(path))
        yield from mutator.mutants


def change(tree: ast.Module, mutant: Mutant) -> None:
    """Change the syntax tree of a mutant's file."""
    _Mutator(mutant.path, mutant.index).change(tree)


def apply(name: str) -> None:
    """Change the program in this process, which has installed the simulation.

    Args:
        name: the file and the number of a mutant.
    """
    rewriting.import_all()
    [mutant] = [mutant for mutant in all_mutants() if mutant.name == name]
    tree = rewriting.parse(mutant.path)
    change(tree, mutant)
    rewriting.LiveFunctions().replace(mutant.path, tree, {})


# ---- the command -------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What came of a mutant.

    Attributes:
        runs: number of simulated seeds.
        differed: how many of them went otherwise than without the change.
        seed: the seed that detected it; None if it survived.
        how: how the seed failed.
        seconds: time of the processor.
    """

    runs: int = 0
    differed: int = 0
    seed: int | None = None
    how: str = ""
    seconds: float = 0.0


def _chosen_seeds(
    mutant: Mutant,
    seeds: Sequence[coverage.SeedCoverage],
    number: int,
    count: int,
    longest_s: float,
    before: int | None,
) -> list[coverage.SeedCoverage]:
    """Choose seeds that reach a mutant's statement: some of the shortest, then others at random.

    The first one is the seed that detected the mutant before, if there is one.
    """
    reaching = [seed for seed in seeds if number in seed.reached and not seed.failure]
    reaching.sort(key=lambda seed: (seed.seed != before, seed.seconds))
    longer = reaching[_SHORTEST:]
    random.Random(mutant.order(0)).shuffle(longer)
    chosen = []
    for seed in (*reaching[:_SHORTEST], *longer):
        longest_s -= seed.seconds
        if (longest_s < 0 and chosen) or len(chosen) == count:
            break
        chosen.append(seed)
    return chosen


def _try(mutant: Mutant, seeds: Sequence[coverage.SeedCoverage], root: Path, note: Path) -> None:
    """Simulate a mutant in this process, and write the verdict into a file after each seed."""
    from tests.simulate.run import simulate

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LONGEST_FILE, _LONGEST_FILE))
    verdict = Verdict()
    tree = rewriting.parse(mutant.path)
    change(tree, mutant)
    rewriting.LiveFunctions().replace(mutant.path, tree, {})
    for seed in seeds:
        # Until the seed has ended, it has not.
        verdict.seed, verdict.how = seed.seed, "it did not end"
        verdict.runs += 1
        verdict.seconds = round(time.process_time(), 1)
        note.write_text(json.dumps(asdict(verdict)))
        signal.setitimer(signal.ITIMER_PROF, _SLOWER * seed.seconds + _SLOWER_S)
        outcome = simulate(make_case(seed.seed), root)
        verdict.seconds = round(time.process_time(), 1)
        verdict.differed += outcome.digest != seed.digest
        verdict.seed, verdict.how = None, ""
        how = outcome.failure.partition("\n")[0][:160]
        # Without faults, a seed takes nearly the same time whatever the order of events.
        is_slow = outcome.virtual_s > _LONGER * seed.virtual_s + _LONGER_S
        if is_slow and not make_case(seed.seed).kinds:
            how = how or f"it takes {outcome.virtual_s:.0f} s, not {seed.virtual_s:.0f} s"
        if how:
            verdict.seed, verdict.how = seed.seed, how
            break
    note.write_text(json.dumps(asdict(verdict)))


class _Workers:
    """Forks of this process that try mutants."""

    def __init__(self, jobs: int, job: int) -> None:
        self._free = list(range(job, job + jobs))
        self._running: dict[int, tuple[int, int]] = {}  # pid -> job, number of the mutant

    def run(
        self, mutants: Sequence[Mutant], seeds: Sequence[Sequence[coverage.SeedCoverage]]
    ) -> Iterator[tuple[int, Verdict]]:
        """Try mutants; yields numbers and verdicts as they come."""
        for number, mutant in enumerate(mutants):
            if not seeds[number]:
                yield number, Verdict()
                continue
            if not self._free:
                yield self._wait()
            job = self._free.pop()
            pid = os.fork()
            if not pid:
                try:
                    _try(mutant, seeds[number], _root(job), _note(job))
                finally:
                    os._exit(0)
            self._running[pid] = (job, number)
        while self._running:
            yield self._wait()

    def _wait(self) -> tuple[int, Verdict]:
        pid, _ = os.wait()
        job, number = self._running.pop(pid)
        self._free.append(job)
        verdict = Verdict(**json.loads(_note(job).read_text()))
        _note(job).unlink()
        shutil.rmtree(_root(job), ignore_errors=True)
        return number, verdict


def _root(job: int) -> Path:
    return SHARED_MEMORY / f"simulated-fleet-{job:03d}"


def _note(job: int) -> Path:
    return SHARED_MEMORY / f"fleet-mutant-{job:03d}.json"


def _measure(seeds: Iterable[int], job: int) -> coverage.Coverage:
    """Measure seeds in a fork, since probes remain in the functions."""
    file = SHARED_MEMORY / f"fleet-coverage-{job:03d}.json"
    pid = os.fork()
    if not pid:
        *_, measured = coverage.measure(seeds, _root(job))
        file.write_text(json.dumps(measured.to_json()))
        os._exit(0)
    os.waitpid(pid, 0)
    measured = coverage.Coverage.read([file])
    file.unlink()
    return measured


def _seeds_before(files: Iterable[Path]) -> dict[str, int | None]:
    """Return the names of mutants, and the seeds that detected them, by earlier outputs."""
    lines = [line for file in files for line in file.read_text().splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["mutant"]: row.get("seed") for row in rows}


def main() -> int:
    """Choose mutants and report which ones the simulation detects, one JSON object per line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.mutants")
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="seed of their choice")
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="seeds of the simulations")
    parser.add_argument(
        "--coverage",
        type=Path,
        action="append",
        metavar="FILE",
        help="a file of tests.simulate.coverage --json, so that seeds are not measured again",
    )
    parser.add_argument("--only", metavar="FILE:NUMBER", action="append", help="try this mutant")
    parser.add_argument(
        "--before",
        type=Path,
        action="append",
        metavar="FILE",
        help="an earlier output: its mutants are tried, and first the seeds that detected them",
    )
    parser.add_argument("--tries", type=int, default=40, help="seeds for each mutant")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for each mutant")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    arguments = rewriting.begin(parser)

    before = _seeds_before(arguments.before or ())
    names = arguments.only or list(before)
    if arguments.coverage:
        measured = coverage.Coverage.read(arguments.coverage)
    else:
        earlier = {seed for name in names if (seed := before.get(name)) is not None}
        measured = _measure(sorted(earlier.union(seeds_of(arguments.seeds))), arguments.job)
    from tests.simulate.run import simulate

    shortest = min(measured.seeds, key=lambda seed: seed.seconds).seed
    rewriting.import_what_is_imported_by(
        lambda: simulate(make_case(shortest), _root(arguments.job))
    )
    mutants = sorted(all_mutants(), key=lambda mutant: mutant.order(arguments.seed))
    if names:
        mutants = [mutant for mutant in mutants if mutant.name in names]
    mutants = mutants[arguments.first : arguments.count]
    numbers = {point: number for number, point in enumerate(measured.points)}
    statements = [coverage.Point(mutant.path, mutant.line) for mutant in mutants]
    seeds = [
        _chosen_seeds(
            mutant,
            measured.seeds,
            numbers[statement],
            arguments.tries,
            arguments.seconds,
            before.get(mutant.name),
        )
        for mutant, statement in zip(mutants, statements, strict=True)
    ]
    detected = 0
    for number, verdict in _Workers(arguments.jobs, arguments.job).run(mutants, seeds):
        mutant = mutants[number]
        detected += verdict.seed is not None
        say(json.dumps({**mutant.to_json(), **asdict(verdict)}))
    say(f"{detected} of {len(mutants)} mutants were detected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
