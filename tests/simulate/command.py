"""The command line of the simulation."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulate import disk, mpi, stdlib
from tests.simulate.cases import Case, make_case

_now = time.perf_counter
_write = sys.stdout.write
SHARED_MEMORY = Path("/dev/shm")
_MOST_SEEDS = 10**9


def install() -> None:
    """Replace what the simulation replaces, then import FLEET."""
    import numpy  # noqa: F401 - before clocks are replaced

    stdlib.install()
    mpi.install()
    disk.install()
    from tests.simulate import product

    product.install()


def say(text: str) -> None:
    _write(f"{text}\n")
    sys.__stdout__.flush()


def seeds_of(text: str) -> range:
    """Return the seeds of an option.

    >>> seeds_of("3"), seeds_of("3:5"), seeds_of("3:9:2")
    (range(3, 4), range(3, 5), range(3, 9, 2))
    """
    first, colon, end = text.partition(":")
    last, _, step = end.partition(":")
    until = sys.maxsize if colon else int(first) + 1
    return range(int(first), int(last) if last else until, int(step or 1))


def main() -> int:
    """Run the command; returns 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument(
        "--seeds",
        default=range(100),
        metavar="A:B",
        type=seeds_of,
        help="seeds A to B - 1; A alone; or A: for all from A on, with --seconds",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then begin no other seed")
    parser.add_argument(
        "--at",
        type=float,
        metavar="T",
        help="stop at the first event after T virtual seconds, and show who waits for what",
    )
    parser.add_argument("--trace", action="store_true", help="print each event")
    parser.add_argument("--shrink", action="store_true", help="find a smaller case that fails")
    parser.add_argument("--first", action="store_true", help="end with the first failure")
    parser.add_argument(
        "--case",
        type=Path,
        action="append",
        help="a case that --shrink printed; the seeds are added to its own",
    )
    parser.add_argument("--found", type=Path, metavar="DIR", help="write shrunk cases there")
    parser.add_argument("--mutant", metavar="FILE:NUMBER", help="simulate this mutant")
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if len(arguments.seeds) > _MOST_SEEDS and math.isinf(arguments.seconds):
        parser.error("--seeds has no end: give --seconds, too")
    if arguments.jobs > 1:
        return _in_parallel(arguments)
    return _in_turn(arguments)


def _in_parallel(arguments: argparse.Namespace) -> int:
    seeds = arguments.seeds
    options = sys.argv[1:]
    children = []
    for job in range(arguments.jobs):
        # The last value of an option counts.
        part = f"{seeds.start + job}:{seeds.stop}:{arguments.jobs}"
        command = [sys.executable, "-m", "tests.simulate", *options]
        command += ["--jobs", "1", "--job", str(arguments.job + job), "--seeds", part]
        children.append(subprocess.Popen(command))
    return max(child.wait() for child in children)


def _in_turn(arguments: argparse.Namespace) -> int:
    install()
    if arguments.mutant:
        from tests.simulate import mutants

        mutants.apply(arguments.mutant)
    from tests.simulate.run import simulate

    root = SHARED_MEMORY / f"simulated-fleet-{arguments.job:03d}"
    trace = say if arguments.trace else None
    began = _now()
    failed = 0
    begun = 0
    launches = 0
    counts: Counter[str] = Counter()
    for case in _cases(arguments):
        if _now() - began > arguments.seconds:
            break
        begun += 1
        outcome = simulate(case, root, trace, arguments.at)
        launches += outcome.launches
        counts.update(outcome.counts)
        if arguments.at is not None:
            say(outcome.describe(20))
        if outcome.failure:
            failed += 1
            say(f"seed {case.seed}, commit {_commit()}: {outcome.failure[:2500]}")
            if arguments.shrink:
                _shrink(case, root, outcome.failure, arguments.found)
            elif len(arguments.seeds) == 1:
                say(case.to_text())
                say(outcome.output[-60000:])
                say(outcome.describe(80))
            if arguments.first:
                break
    seconds = _now() - began
    say(
        f"{begun} seeds, {launches} launches, {failed} failed, {seconds:.1f} s, "
        f"{launches / seconds:.2f} launches/s; {json.dumps(dict(counts.most_common()))}"
    )
    return int(failed > 0)


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    if not arguments.case:
        yield from map(make_case, arguments.seeds)
    for file in arguments.case or ():
        case = Case.from_text(file.read_text())
        for seed in arguments.seeds:
            yield replace(case, seed=case.seed + seed)


def _shrink(case: Case, root: Path, failure: str, folder: Path | None) -> None:
    from tests.simulate.shrink import shrink

    small = shrink(case, root, failure, say)
    text = small.to_text(f"{failure.partition(chr(10))[0][:200]} (commit {_commit()})")
    say(text)
    if folder is not None:
        (folder / f"{small.seed}.json").write_text(text)


def _commit() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
