"""The command line of the simulation."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
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

    >>> seeds_of("3"), seeds_of("3:5")
    (range(3, 4), range(3, 5))
    """
    first, colon, last = text.partition(":")
    until = sys.maxsize if colon else int(first) + 1
    return range(int(first), int(last) if last else until)


def main() -> int:
    """Run the command; returns 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument(
        "--seeds", default="0:100", metavar="A:B", help="seeds A to B - 1, from A on (A:), or one"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="then begin no other seed")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--at", type=float, metavar="T", help="stop at T s and show who waits")
    parser.add_argument("--trace", action="store_true", help="print each event")
    parser.add_argument("--shrink", action="store_true", help="find a smaller case that fails")
    parser.add_argument("--first", action="store_true", help="end with the first failure")
    parser.add_argument(
        "--case", type=Path, action="append", help="a case that --shrink printed, instead of seeds"
    )
    parser.add_argument("--found", type=Path, metavar="DIR", help="write shrunk cases there")
    parser.add_argument("--mutant", metavar="FILE:NUMBER", help="simulate this mutant")
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seeds = seeds_of(arguments.seeds)
    if len(seeds) > _MOST_SEEDS and math.isinf(arguments.seconds):
        parser.error(f"--seeds {arguments.seeds} has no end: give --seconds, too")
    if arguments.jobs > 1:
        return _in_parallel(arguments, seeds)
    return _in_turn(arguments, seeds)


def _in_parallel(arguments: argparse.Namespace, seeds: range) -> int:
    size = -(-len(seeds) // arguments.jobs)
    children = []
    for job in range(arguments.jobs):
        part = seeds[job * size : (job + 1) * size]
        if part:
            command = [sys.executable, "-m", "tests.simulate", "--job", str(job)]
            command += ["--seeds", f"{part.start}:{part.stop}"]
            command += ["--seconds", str(arguments.seconds)]
            children.append(subprocess.Popen(command))
    return max([child.wait() for child in children], default=0)


def _in_turn(arguments: argparse.Namespace, seeds: range) -> int:
    install()
    if arguments.mutant:
        from tests.simulate import mutants

        mutants.apply(arguments.mutant)
    from tests.simulate.run import simulate

    root = SHARED_MEMORY / f"fleet-simulate-{arguments.job:03d}"
    began = _now()
    failed = 0
    launches = 0
    counts: Counter[str] = Counter()
    if arguments.case:
        read = [Case.from_json(json.loads(file.read_text())) for file in arguments.case]
        cases = (replace(case, seed=case.seed + seed) for case in read for seed in seeds)
        count = len(read) * len(seeds)
    else:
        cases = map(make_case, seeds)
        count = len(seeds)
    begun = 0
    for case in cases:
        if _now() - began > arguments.seconds:
            break
        begun += 1
        outcome = simulate(case, root, say if arguments.trace else None, arguments.at)
        launches += outcome.launches
        counts.update(outcome.counts)
        if arguments.at is not None:
            say(outcome.output)
            say(outcome.waiting)
        if outcome.failure:
            failed += 1
            say(f"seed {case.seed}, commit {_commit()}: {outcome.failure[:2500]}")
            if count == 1 and not arguments.shrink:
                say(case.describe())
                say(outcome.waiting)
                say(outcome.output[-60000:])
                say("\n".join(outcome.history[-80:]))
            if arguments.first:
                break
            if arguments.shrink:
                _shrink(case, root, outcome.failure, arguments.found)
    seconds = _now() - began
    say(
        f"{begun} seeds, {launches} launches, {failed} failed, {seconds:.1f} s, "
        f"{launches / seconds:.2f} launches/s; {json.dumps(dict(counts.most_common()))}"
    )
    return int(failed > 0)


def _shrink(case: Case, root: Path, failure: str, folder: Path | None) -> None:
    from tests.simulate.shrink import shrink

    small = shrink(case, root, failure, say)
    text = json.dumps(small.to_json(), indent=1)
    say(text)
    if folder is not None:
        (folder / f"{small.seed}.json").write_text(text + "\n")


def _commit() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
