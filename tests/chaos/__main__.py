"""Inject faults at random moments: ``python -m tests.chaos --document docs/measured/faults.md``.

Repeat cases by their seeds: ``python -m tests.chaos --seeds 17``, ``--search-seeds 5`` for
searches, ``--tensorflow-seeds 2`` for TensorFlow.
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
from tests.chaos.faults import FAULTS, MOST_LAUNCHES, TENSORFLOW_FAULTS, TRAINED, Case, Trial


class Seeds(NamedTuple):
    """Seeds of the cases: numpy engine, TensorFlow, searches."""

    numpy: Sequence[int]
    keras: Sequence[int]
    searches: Sequence[int]


def parse(argv=None):
    """Return the arguments of the command line and the seeds of the cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=100, help="number of cases with the numpy engine"
    )
    parser.add_argument(
        "--tensorflow", type=int, default=10, help="number of cases with TensorFlow"
    )
    parser.add_argument(
        "--searches",
        type=int,
        help="number of searches, each killed about five times (default: 1/8 of --cases)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="run only these numpy cases")
    parser.add_argument(
        "--tensorflow-seeds", type=int, nargs="+", help="run only these TensorFlow cases"
    )
    parser.add_argument("--search-seeds", type=int, nargs="+", help="run only these searches")
    parser.add_argument("--minutes", type=float, help="start no case after this time")
    parser.add_argument("--document", type=Path, help="write the results to this Markdown file")
    parser.add_argument(
        "--run", type=Path, help="a run without faults; reports the cost of its checkpoints"
    )
    arguments = parser.parse_args(argv)
    numbers = (
        arguments.seeds,
        arguments.tensorflow_seeds,
        arguments.search_seeds,
    )
    if any(numbers):
        return arguments, Seeds(*(seeds or () for seeds in numbers))
    searched = arguments.searches
    if searched is None:
        searched = math.ceil(arguments.cases / 8)
    return arguments, Seeds(*map(range, (arguments.cases, arguments.tensorflow, searched)))


def main():
    """Run the cases and return 0 if all pass."""
    arguments, seeds = parse()
    cases = [*map(Case.draw, seeds.numpy), *(Case.draw(seed, "keras") for seed in seeds.keras)]
    began, outcomes = time.monotonic(), []
    if os.geteuid() != 0:
        print("cases with a full disk are skipped: only root can mount a small file system")
        cases = [case for case in cases if case.fault != "disk full"]
    for case in cases:
        if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
            print(f"{len(cases) - len(outcomes)} cases are skipped: the time (--minutes) is over")
            break
        outcomes.append(_carry_out(case))
    searched = [_run_search(seed) for seed in seeds.searches]
    if arguments.document:
        arguments.document.write_text(document(outcomes, arguments.run, searched))
    return int(any(outcome.violation for outcome in [*outcomes, *searched]))


def _run_search(seed):
    case = searches.carry_out(seed)
    print(
        f"search {seed}: {case.search}, killed {len(case.kills)} times ({', '.join(case.kills)}): "
        f"{case.decisions} decisions, {case.again} epochs again, {case.seconds:.0f} "
        f"s{f'; FAILED: {case.violation}' if case.violation else ''}",
        flush=True,
    )
    return case


def _carry_out(case):
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{case.engine}-{case.seed}-"))
    outcome = Trial(case, folder).run()
    under = ", under ULFM" if case.outlives else ""
    pause = f", pause {outcome.pause_s:.3f} s" if outcome.pause_s is not None else ""
    print(
        f"{case.engine} {case.seed}: {case.fault}{under} after {case.after_epochs} epochs, "
        f"{case.ranks} ranks, {case.policy}: statuses {outcome.statuses}, {outcome.twice} samples "
        f"twice, {outcome.seconds:.0f} "
        f"s{pause}{f'; FAILED: {outcome.violation}; see {folder}' if outcome.violation else ''}",
        flush=True,
    )
    if not outcome.violation:
        shutil.rmtree(folder)
    return outcome


def document(outcomes, run=None, searched=()):
    """Return the page of the results."""
    lines = [
        "# Real launches under random faults",
        "",
        "`make chaos` (`python -m tests.chaos --document docs/measured/faults.md`) writes this "
        "page; do not edit it.",
        "",
        "Does a run survive the death of a rank, a full disk, or a damaged checkpoint? Each case "
        "is a small ensemble",
        "(three networks, 3 to 5 ranks, 108 training samples) with one fault at a random moment. "
        "The same command is",
        "repeated until all networks are done. A case passes if every network finished each epoch "
        "once, with all",
        "samples; if one of them, trained again alone, has the same losses (to 1e-9, with "
        "TensorFlow 1e-4); and if",
        "every checkpoint and table was intact after every launch. A case without output for 60 s "
        "(TensorFlow 180 s)",
        "fails.",
        "",
    ]
    for engine, title, faults in (
        ("numpy", "The numpy engine", FAULTS),
        ("keras", "TensorFlow", TENSORFLOW_FAULTS),
    ):
        rows = [outcome for outcome in outcomes if outcome.case.engine == engine]
        if rows:
            good = sum(not outcome.violation for outcome in rows)
            lines += [
                f"## {title}: {len(rows)} cases, {good} passed",
                "",
                *_table(rows, faults),
                "",
            ]
    lines += _pauses(outcomes) + _search_table(searched)
    if run is not None:
        lines += _checkpoint_cost(run)
    lines += [
        f"- search, seed {case.seed}, {case.search}: {case.violation}"
        for case in searched
        if case.violation
    ]
    failed = [outcome for outcome in outcomes if outcome.violation]
    if failed:
        lines += ["## Failed cases", ""]
        lines += [
            f"- {outcome.case.engine}, seed {outcome.case.seed}, {outcome.case.fault}: "
            f"{outcome.violation}"
            for outcome in failed
        ]
        lines += [""]
    return "\n".join(lines)


def _table(outcomes, faults):
    rows = [
        "| fault | cases | passed | in the same launch | max launches | samples trained twice, "
        "median | max |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault in faults:
        case_rows = [outcome for outcome in outcomes if outcome.case.fault == fault]
        if not case_rows:
            continue
        twice = [outcome.twice for outcome in case_rows]
        rows.append(
            f"| {fault} | {len(case_rows)} | {sum(not outcome.violation for outcome in case_rows)} "
            f"| {sum(outcome.outlived for outcome in case_rows)} | "
            f"{max(len(outcome.statuses) for outcome in case_rows)} of {MOST_LAUNCHES} | "
            f"{statistics.median(twice):.0f} | {max(twice)} |"
        )
    statuses = Counter(status for outcome in outcomes for status in outcome.statuses[:-1])
    ended = ", ".join(f"{status} ({count})" for status, count in sorted(statuses.items()))
    summary = (
        f"An epoch has {TRAINED} samples, and at most three networks train at a time. All launches "
        f"except the last one of each case ended with one of these statuses (count): {ended}."
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
    if not lines:
        return []
    return [
        "## Time from a rank's death to the next step of the survivors",
        "",
        "With `mpirun --with-ft ulfm`, for the ranks in the group of the dead rank:",
        "",
        *lines,
        "",
    ]


def _search_table(cases):
    """Return the section on searches that were killed repeatedly."""
    if not cases:
        return []
    good = sum(not case.violation for case in cases)
    lines = [
        f"## Searches: {len(cases)} cases, {good} passed",
        "",
        f"Four ranks search among networks of up to {searches.EPOCHS} epochs. Launches are killed "
        "at random moments: all ranks, the coordinator, or one other rank. A case passes if a "
        "searcher that gets all calls of the log again gives the same answers, and a pruner that "
        "gets all epochs again gives the same verdicts; if no call was made twice, and every "
        "proposed network is finished or pruned; and if no network repeated more than one epoch "
        "per kill.",
        "",
        "| search | cases | passed | kills | calls and verdicts | epochs trained again |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for search in searches.SEARCHES:
        rows = [case for case in cases if case.search == search]
        if rows:
            lines.append(
                f"| {search} | {len(rows)} | {sum(not case.violation for case in rows)} | "
                f"{sum(len(case.kills) for case in rows)} | {sum(case.decisions for case in rows)} "
                f"| {sum(case.again for case in rows)} |"
            )
    return [*lines, ""]


def _checkpoint_cost(run):
    """Return the section on the cost of checkpoints in a run without faults."""
    spent = account(read_events(RunPaths(run).events)).spent
    with_data = spent.checkpointing / (spent.training + spent.data)
    return [
        "## Cost of checkpoints",
        "",
        f"In a run of `{load(RunPaths(run).spec).document.name}` without a fault, training was "
        f"blocked for {spent.checkpointing:.2f} GPU-seconds while weights were copied or the "
        f"writer lagged behind. This is {spent.checkpointing / spent.training:.2%} of the time in "
        f"which networks were trained, or {with_data:.2%} if waiting for samples is included (the "
        "paper: 2.7 to 6.3 %).",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
