"""Faults at random moments, and what became of them: ``python -m tests.chaos --document docs/reliability.md``.

Every case is repeatable by its seed, alone or with others: ``python -m tests.chaos --seeds 17``, of launches over one
folder ``--beside-seeds 3 4``, of searches ``--search-seeds 5``, with TensorFlow ``--tensorflow-seeds 2``.
"""

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.monitor.accounting import account
from fleet.spec import load
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from tests.chaos import searches
from tests.chaos.beside import EPOCHS, LEASE_S, carry_out
from tests.chaos.faults import FAULTS, MOST_LAUNCHES, TENSORFLOW_FAULTS, TRAINED, Case, Trial


class Seeds(NamedTuple):
    """Of the cases to carry out: with the numpy engine, with TensorFlow, of launches over one folder, of searches."""

    numpy: Sequence[int]
    keras: Sequence[int]
    concurrent: Sequence[int]
    searches: Sequence[int]


def parse(argv=None):
    """What the command line asks for, and the seeds of the cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="with the numpy engine")
    parser.add_argument("--tensorflow", type=int, default=10, help="cases with TensorFlow")
    parser.add_argument(
        "--beside",
        type=int,
        help="cases of launches over one folder (30 for 100 of the numpy engine)",
    )
    parser.add_argument(
        "--searches", type=int, help="cases of searches, each killed some five times (13 for 100)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="only these cases of the numpy engine")
    parser.add_argument(
        "--tensorflow-seeds", type=int, nargs="+", help="only these cases with TensorFlow"
    )
    parser.add_argument(
        "--beside-seeds", type=int, nargs="+", help="only these cases of launches over one folder"
    )
    parser.add_argument("--search-seeds", type=int, nargs="+", help="only these cases of searches")
    parser.add_argument("--minutes", type=float, help="begin no case after so long")
    parser.add_argument("--document", type=Path, help="where to write what came out")
    parser.add_argument(
        "--run",
        type=Path,
        help="a run, such as the demo's, of which to say what checkpoints cost it",
    )
    arguments = parser.parse_args(argv)
    numbers = (
        arguments.seeds,
        arguments.tensorflow_seeds,
        arguments.beside_seeds,
        arguments.search_seeds,
    )
    if any(numbers):
        return arguments, Seeds(*(seeds or () for seeds in numbers))
    concurrent = round(0.3 * arguments.cases) if arguments.beside is None else arguments.beside
    searched = math.ceil(arguments.cases / 8) if arguments.searches is None else arguments.searches
    return arguments, Seeds(
        *map(range, (arguments.cases, arguments.tensorflow, concurrent, searched))
    )


def main():
    """Returns 0 when every case came to a good end."""
    arguments, seeds = parse()
    cases = [*map(Case.draw, seeds.numpy), *(Case.draw(seed, "keras") for seed in seeds.keras)]
    began, outcomes = time.monotonic(), []
    if os.geteuid() != 0:
        print("cases of a full disk are left out: only root may mount one")
        cases = [case for case in cases if case.fault != "disk full"]
    for case in cases:
        if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
            print(f"{len(cases) - len(outcomes)} cases are left out: the time is over")
            break
        outcomes.append(_carry_out(case))
    concurrent = [_carry_out_beside(seed) for seed in seeds.concurrent]
    searched = [_carry_out_search(seed) for seed in seeds.searches]
    if arguments.document:
        arguments.document.write_text(document(outcomes, arguments.run, concurrent, searched))
    return 1 if any(outcome.broken for outcome in [*outcomes, *concurrent, *searched]) else 0


def _carry_out_beside(seed):
    case = carry_out(seed)
    print(
        f"beside {seed}: {', '.join(case.faults)}: {case.again} epochs again, {case.seconds:.0f} s"
        f"{f'; BROKEN: {case.broken}' if case.broken else ''}",
        flush=True,
    )
    return case


def _carry_out_search(seed):
    case = searches.carry_out(seed)
    print(
        f"search {seed}: {case.search}, killed {len(case.kills)} times ({', '.join(case.kills)}): {case.decisions} "
        f"decisions, {case.again} epochs again, {case.seconds:.0f} s"
        f"{f'; BROKEN: {case.broken}' if case.broken else ''}",
        flush=True,
    )
    return case


def _carry_out(case):
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{case.engine}-{case.seed}-"))
    outcome = Trial(case, folder).run()
    under = ", under ULFM" if case.outlives else ""
    print(
        f"{case.engine} {case.seed}: {case.fault}{under} after {case.after_epochs} epochs, "
        f"{case.ranks} ranks, {case.policy}: statuses {outcome.statuses}, {outcome.twice} samples twice, "
        f"{outcome.seconds:.0f} s{f', pause {outcome.pause_s:.3f} s' if outcome.pause_s is not None else ''}"
        f"{f'; BROKEN: {outcome.broken}; see {folder}' if outcome.broken else ''}",
        flush=True,
    )
    if not outcome.broken:
        shutil.rmtree(folder)
    return outcome


def document(outcomes, run=None, concurrent=(), searched=()):
    """The page, made of what was measured."""
    lines = [
        "# Reliability: what happens to runs under random faults",
        "",
        "`make chaos` (`python -m tests.chaos --document docs/reliability.md`) writes this page; do not edit it.",
        "",
        "Does a run survive the death of a rank, a full disk, or a damaged checkpoint? Each case is a small ensemble",
        "(three networks, 3 to 5 ranks, 108 training samples) with one fault at a random moment. The same command is",
        "repeated until all networks are done. A case passes if every network finished each epoch once, with all",
        "samples; if one of them, trained again alone, has the same losses (to 1e-9, with TensorFlow 1e-4); and if",
        "every checkpoint and table was intact after every launch. A case without output for 60 s (TensorFlow 180 s)",
        "fails.",
        "",
    ]
    for engine, title, faults in (
        ("numpy", "The numpy engine", FAULTS),
        ("keras", "TensorFlow", TENSORFLOW_FAULTS),
    ):
        rows = [outcome for outcome in outcomes if outcome.case.engine == engine]
        if rows:
            good = sum(not outcome.broken for outcome in rows)
            lines += [
                f"## {title}: {len(rows)} cases, {good} passed",
                "",
                *_table(rows, faults),
                "",
            ]
    lines += _pauses(outcomes) + _concurrent_table(concurrent) + _searched(searched)
    if run is not None:
        lines += _blocked(run)
    lines += [
        f"- launches over one folder, seed {case.seed}: {case.broken}"
        for case in concurrent
        if case.broken
    ]
    lines += [
        f"- search, seed {case.seed}, {case.search}: {case.broken}"
        for case in searched
        if case.broken
    ]
    if broken := [outcome for outcome in outcomes if outcome.broken]:
        lines += ["## What broke", ""]
        lines += [
            f"- {outcome.case.engine}, seed {outcome.case.seed}, {outcome.case.fault}: {outcome.broken}"
            for outcome in broken
        ] + [""]
    return "\n".join(lines)


def _table(outcomes, faults):
    rows = [
        "| fault | cases | passed | in the same launch | max launches | samples trained twice, median | max |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault in faults:
        case_rows = [outcome for outcome in outcomes if outcome.case.fault == fault]
        if not case_rows:
            continue
        twice = [outcome.twice for outcome in case_rows]
        rows.append(
            f"| {fault} | {len(case_rows)} | {sum(not outcome.broken for outcome in case_rows)} "
            f"| {sum(outcome.outlived for outcome in case_rows)} "
            f"| {max(len(outcome.statuses) for outcome in case_rows)} of {MOST_LAUNCHES} "
            f"| {statistics.median(twice):.0f} | {max(twice)} |"
        )
    statuses = Counter(status for outcome in outcomes for status in outcome.statuses[:-1])
    ended = ", ".join(f"{status} ({count})" for status, count in sorted(statuses.items()))
    summary = (
        f"An epoch has {TRAINED} samples, and at most three networks train at a time. All launches except "
        f"the last one of each case ended with one of these statuses (count): {ended}."
    )
    return [*rows, "", summary if ended else ""]


def _pauses(outcomes):
    lines = []
    for engine, name in (("numpy", "the numpy engine"), ("keras", "TensorFlow")):
        pauses = [
            outcome.pause_s
            for outcome in outcomes
            if outcome.pause_s is not None and outcome.case.engine == engine
        ]
        if pauses:
            lines.append(
                f"- {name}: median {statistics.median(pauses):.3f} s, max {max(pauses):.3f} s "
                f"({len(pauses)} {'death' if len(pauses) == 1 else 'deaths'})"
            )
    return (
        [
            "## Time from a rank's death to the next step of the survivors",
            "",
            "With `mpirun --with-ft ulfm`, for the ranks in the group of the dead rank:",
            "",
            *lines,
            "",
        ]
        if lines
        else []
    )


def _concurrent_table(cases):
    """What came of launches over one folder."""
    if not cases:
        return []
    good, faults = (
        sum(not case.broken for case in cases),
        [fault for case in cases for fault in case.faults],
    )
    again = [case.again for case in cases]
    return [
        f"## Launches over one folder: {len(cases)} cases, {good} passed",
        "",
        f"Two launches share four networks of {EPOCHS} epochs. One of them was killed {faults.count('kill')} "
        f"times, and stopped {faults.count('stop')} times for {LEASE_S / 2:g} to {3 * LEASE_S:g} s, with leases "
        f"of {LEASE_S:g} s; then another one was started. Epochs trained again: median "
        f"{statistics.median(again):g}, max {max(again)}.",
        "",
    ]


def _searched(cases):
    """What came of searches that were killed again and again."""
    if not cases:
        return []
    good = sum(not case.broken for case in cases)
    lines = [
        f"## Searches: {len(cases)} cases, {good} passed",
        "",
        f"Four ranks search among networks of up to {searches.EPOCHS} epochs. Launches are killed at random "
        "moments: all ranks, the coordinator, or one other rank. A case passes if a searcher that gets all "
        "calls of the log again gives the same answers, and a pruner that gets all epochs again gives the same "
        "verdicts; if no call was made twice, and every proposed network is finished or pruned; and if no "
        "network repeated more than one epoch per kill.",
        "",
        "| search | cases | passed | kills | calls and verdicts | epochs trained again |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for search in searches.SEARCHES:
        rows = [case for case in cases if case.search == search]
        if rows:
            lines.append(
                f"| {search} | {len(rows)} | {sum(not case.broken for case in rows)} "
                f"| {sum(len(case.kills) for case in rows)} | {sum(case.decisions for case in rows)} "
                f"| {sum(case.again for case in rows)} |"
            )
    return [*lines, ""]


def _blocked(run):
    """What checkpoints cost a run without faults."""
    spent = account(read_events(RunPaths(run).events)).spent
    with_data = spent.checkpointing / (spent.training + spent.data)
    return [
        "## Cost of checkpoints",
        "",
        f"In a run of `{load(RunPaths(run).spec).document.name}` without a fault, training was blocked for "
        f"{spent.checkpointing:.2f} GPU-seconds while weights were copied or the writer lagged behind. This is "
        f"{spent.checkpointing / spent.training:.2%} of the time in which networks were trained, or "
        f"{with_data:.2%} if waiting for "
        "samples is included (the paper: 2.7 to 6.3 %).",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
