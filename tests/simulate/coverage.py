"""Measure what the simulation reaches: ``python -m tests.simulate.coverage --seeds A:B``.

Each statement of the simulated packages, and each outcome of their ``if``, ``for`` and ``while``,
gets a probe: one assignment, which is much cheaper than a tracing function, and which greenlets
cannot confuse.
Only statements inside of functions count.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulate import rewriting
from tests.simulate.cases import make_case
from tests.simulate.command import SHARED_MEMORY, say, seeds_of
from tests.simulate.scenarios import seeds_of_each

_NAME = "_REACHED"  # a global name of each changed module
_NOT_COUNTED = (ast.Global, ast.Nonlocal, ast.Pass)


@dataclass(frozen=True)
class Point:
    """A statement, or an outcome of one.

    Attributes:
        outcome: empty for the statement itself.
    """

    path: str
    line: int
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.outcome}".rstrip()


class _Prober:
    """Inserts probes into the functions of a file."""

    def __init__(self, path: str, points: dict[Point, int]) -> None:
        self._path = path
        self._points = points

    def insert(self, node: ast.AST) -> None:
        """Insert probes below a node."""
        for child in ast.iter_child_nodes(node):
            self.insert(child)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, list(self._probed(statements)))
        if isinstance(node, ast.If):
            self._insert_outcome(node, node.body, "true")
            self._insert_outcome(node, node.orelse, "false")
        elif isinstance(node, ast.For | ast.While):
            self._insert_outcome(node, node.body, "begins")
            if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
                self._insert_outcome(node, node.orelse, "ends")

    def _probed(self, statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in statements:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text and not isinstance(statement, _NOT_COUNTED):
                yield self._probe(statement, Point(self._path, statement.lineno))
            yield statement

    def _insert_outcome(self, node: ast.stmt, block: list[ast.stmt], outcome: str) -> None:
        block.insert(0, self._probe(node, Point(self._path, node.lineno, outcome)))

    def _probe(self, node: ast.stmt, point: Point) -> ast.stmt:
        number = self._points.setdefault(point, len(self._points))
        [probe] = ast.parse(f"{_NAME}[{number}] = 1").body
        for part in ast.walk(probe):
            ast.copy_location(part, node)
        return probe


def insert_probes(path: str, tree: ast.Module, numbers: dict[Point, int]) -> None:
    """Insert probes into the functions of a file.

    Args:
        path: the file.
        tree: its syntax tree, which is changed.
        numbers: numbers of the points, to which those of this file are added.
    """
    for _, function in rewriting.functions(tree):
        _Prober(path, numbers).insert(function)


@dataclass
class SeedCoverage:
    """What a seed reaches.

    Attributes:
        seconds: time of the processor.
        failure: what went wrong; empty if all was well.
        digest: differs if the seed went otherwise.
        reached: numbers of points.
    """

    seed: int
    launches: int
    seconds: float
    failure: str
    digest: str
    reached: frozenset[int] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        bits = sum(1 << number for number in self.reached)
        return {**vars(self), "reached": f"{bits:x}"}

    @property
    def virtual_s(self) -> float:
        """The virtual seconds that it took."""
        return float(self.digest.split()[-1])

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SeedCoverage:
        """Return the coverage of :meth:`to_json`."""
        bits = bin(int(values["reached"], 16))[:1:-1]
        reached = frozenset(number for number, bit in enumerate(bits) if bit == "1")
        return cls(**{**values, "reached": reached})


class Probes:
    """The probes in all packages of this process.

    Attributes:
        points: all statements and outcomes, by their numbers.
        edges: edges of the phase table that were taken, and how often.
    """

    def __init__(self) -> None:
        numbers: dict[Point, int] = {}
        trees = {path: rewriting.parse(path) for path in rewriting.files()}
        for path, tree in trees.items():
            insert_probes(path, tree, numbers)
        self.points = list(numbers)
        self._reached = bytearray(len(numbers))
        self.edges = Counter[str]()
        live = rewriting.LiveFunctions()
        for path, tree in trees.items():
            live.replace(path, tree, {_NAME: self._reached})
        count_edges(self.edges)

    def measure(self, seed: int, root: Path) -> SeedCoverage:
        """Run a seed."""
        from tests.simulate.run import simulate

        self._reached[:] = bytes(len(self._reached))
        began = time.process_time()
        outcome = simulate(make_case(seed), root)
        return SeedCoverage(
            seed,
            outcome.launches,
            round(time.process_time() - began, 3),
            outcome.failure.partition("\n")[0][:200],
            outcome.digest,
            frozenset(number for number, bit in enumerate(self._reached) if bit),
        )


def count_edges(edges: Counter[str]) -> None:
    """Count the edges of the phase table that groups take from now on."""
    from fleet.control.group import TrainingGroup

    advance = TrainingGroup.advance

    def counted(group: TrainingGroup, step: Any) -> None:
        before = group.phase
        advance(group, step)
        edges[edge(before, type(step), group.phase)] += 1

    TrainingGroup.advance = counted


def edge(before: Any, step: type, after: Any) -> str:
    """Return the name of an edge of the phase table."""
    return f"{before.name} -{step.__name__}-> {after.name}"


def all_edges() -> list[str]:
    """Return the edges of the phase table."""
    from fleet.control.group import TRANSITIONS

    return [
        edge(before, step, after)
        for before, steps in TRANSITIONS.items()
        for step, after in steps.items()
    ]


@dataclass
class Coverage:
    """What several seeds reach.

    Attributes:
        points: all statements and outcomes.
        seeds: what each seed reaches.
        edges: edges of the phase table that were taken, and how often.
    """

    points: list[Point]
    seeds: list[SeedCoverage] = field(default_factory=list)
    edges: Counter[str] = field(default_factory=Counter)

    @property
    def reached(self) -> set[Point]:
        """The points that any seed reaches."""
        numbers = set().union(*(seed.reached for seed in self.seeds))
        return {self.points[number] for number in numbers}

    def table(self) -> Iterator[str]:
        """Write lines and branches of each package, and the edges of the phase table."""
        reached = self.reached
        for package in (*rewriting.PACKAGES, ""):
            points = [
                point for point in self.points if package in ("", rewriting.package_of(point.path))
            ]
            parts = []
            for name, is_branch in (("lines", False), ("branches", True)):
                all_points = {point for point in points if bool(point.outcome) == is_branch}
                count = len(all_points & reached)
                share = count / max(1, len(all_points))
                parts.append(f"{count} of {len(all_points)} {name} ({share:.1%})")
            yield f"{package or 'all':8} {', '.join(parts)}"
        edges = all_edges()
        missing = [name for name in edges if not self.edges[name]]
        yield f"{len(edges) - len(missing)} of {len(edges)} edges of the phase table"
        yield from (f"  not reached: {name}" for name in missing)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "points": [[point.path, point.line, point.outcome] for point in self.points],
            "seeds": [seed.to_json() for seed in self.seeds],
            "edges": dict(self.edges),
        }

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Coverage:
        """Read files of :meth:`to_json` that were written from the same tree, and join them."""
        joined: Coverage | None = None
        for path in paths:
            values = json.loads(path.read_text())
            points = [Point(*part) for part in values["points"]]
            joined = joined or cls(points)
            if joined.points != points:
                raise ValueError(f"{path} was measured with other files")
            joined.seeds += map(SeedCoverage.from_json, values["seeds"])
            joined.edges.update(values["edges"])
        assert joined is not None
        return joined


def measure(seeds: Iterable[int], root: Path) -> Iterator[Coverage]:
    """Run seeds in this process, whose functions get probes; yields the coverage so far."""
    probes = Probes()
    coverage = Coverage(probes.points, edges=probes.edges)
    for seed in seeds:
        coverage.seeds.append(probes.measure(seed, root))
        yield coverage


def main() -> int:
    """Run seeds and print what they reach."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.coverage")
    parser.add_argument("--seeds", default="0:100", metavar="A:B", help="seeds A to B - 1, or one")
    parser.add_argument(
        "--scenarios", type=int, metavar="N", help="instead, the first N seeds of each scenario"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what each seed reaches")
    parser.add_argument(
        "--read", type=Path, action="append", metavar="FILE", help="such a file, instead of seeds"
    )
    parser.add_argument("--missing", action="store_true", help="list lines that are not reached")
    arguments = rewriting.begin(parser)
    if arguments.read:
        coverage = Coverage.read(arguments.read)
    else:
        root = SHARED_MEMORY / f"simulated-fleet-{arguments.job:03d}"
        seeds: Iterable[int] = seeds_of(arguments.seeds)
        if arguments.scenarios is not None:
            seeds = seeds_of_each(arguments.scenarios)
        for coverage in measure(seeds, root):
            if arguments.json:
                arguments.json.write_text(json.dumps(coverage.to_json()))
    if arguments.missing:
        reached = coverage.reached
        for point in sorted(
            set(coverage.points) - reached, key=lambda point: (point.path, point.line)
        ):
            say(str(point))
    launches = sum(seed.launches for seed in coverage.seeds)
    for seed in coverage.seeds:
        if seed.failure:
            say(f"seed {seed.seed} failed: {seed.failure}")
    say(f"{len(coverage.seeds)} seeds, {launches} launches")
    for line in coverage.table():
        say(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
