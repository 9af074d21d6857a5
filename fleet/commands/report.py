"""Show the results of a run, or how far it has come: networks, GPU time, makespan measured and simulated.

  fleet report runs/digits
  fleet report runs/digits --json
  fleet report runs/digits --at 350s    as it stood then
  fleet report runs/digits --every 30s    write the page anew while the run goes on

It also writes RUN/report.html if it may: one file that needs no server and no internet. It has the
leaderboard, learning curves, what searches found and pruned, which network had which GPU when,
where the time went, and the same run simulated.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fleet.arguments import duration, moment, new_file
from fleet.commands.output import add_json, show
from fleet.errors import StorageError, UserError
from fleet.jobs.harvest_log import HarvestEnded, find_end
from fleet.monitor.html import write_report
from fleet.monitor.report import MISSED_CHUNKS, RunReport, best_rows, read_report, report_at
from fleet.monitor.search_summary import front_table, improvements_table, rungs_table
from fleet.prediction.ensembles import TABLE_NOTE, make_table
from fleet.runtime.compatibility import find_data_changes
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from fleet.units import format_duration, pluralize

_LOOK_S = 1.0  # between two looks whether a launch is still at work


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument(
        "--at",
        type=moment,
        metavar="350s",
        help=(
            "show the run as it stood then, from its log and its spec: seconds of the run, launch after launch (of a "
            "harvest by date); nothing is written into its folder"
        ),
    )
    parser.add_argument(
        "--html", type=new_file, metavar="FILE", help="write the page to this file, and not to RUN"
    )
    parser.add_argument(
        "--every",
        type=duration,
        metavar="30s",
        help=(
            "write the page again and again, until the launch has ended; a page that is open loads itself anew"
        ),
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print the numbers of a report, and write it where that is allowed."""
    paths = RunPaths(args.run)
    if args.every is not None:
        if args.json or args.at is not None:
            raise UserError(
                "--every: it rewrites the page while the run goes on; use it without --json and --at"
            )
        _keep_writing(paths, args.html or paths.report, args.every)
    if args.at is None:
        report = replace(read_report(paths), data_now=tuple(find_data_changes(paths)))
    else:
        report = report_at(paths, args.at)
    over = find_end(paths) if args.at is None else None
    if over is None:
        harvest = {}
    else:
        harvest = {"harvest": {"why": over.why, "again": over.again}}
    show(args, lambda: report.as_dict() | harvest, lambda: _print(report, over))
    page = args.html or (paths.report if args.at is None else None)
    if page is None:
        return
    try:
        write_report(page, report)
    except StorageError as error:
        if args.html is not None:
            raise
        print(f"fleet report: {error}", file=sys.stderr)  # the run may belong to another user
        return
    if not args.json:
        print(f"{page} shows it.")


def _keep_writing(paths: RunPaths, page: Path, every_s: float) -> None:
    """Write the page until no launch is at work, or Ctrl-C; whoever calls writes the last, which stands still."""
    is_announced = False
    with suppress(KeyboardInterrupt):
        while find_held_lease(paths) is not None:
            try:
                with suppress(UserError):  # a launch that has just begun has nothing to report yet
                    write_report(page, read_report(paths), every_s)
                    if not is_announced:
                        print(
                            f"{page} shows it, and is written anew every {format_duration(every_s)}, until the "
                            "launch ends or Ctrl-C.",
                            flush=True,
                        )
                    is_announced = True
            except StorageError as error:
                if not error.may_pass:
                    raise
                print(f"fleet report: {error}", file=sys.stderr)
            until = time.monotonic() + every_s
            while time.monotonic() < until and find_held_lease(paths) is not None:
                time.sleep(min(_LOOK_S, every_s))


def _print(report: RunReport, over: HarvestEnded | None) -> None:
    account = report.account
    headers, rows, left_out = best_rows(report.rows)
    print_table(headers, rows, title=f"{report.name}: the best network first")
    if left_out:
        print(left_out)
    if report.data_changes:
        print(report.data_changes)
    if report.ensembles:
        print_table(*make_table(report.ensembles), title="Ensembles of the best networks")
        print(TABLE_NOTE)
    for search in report.searches:
        if search.trials:
            print_table(*improvements_table(search), title=f"{search.title}: the best so far")
        print(search.summary)
        if search.objectives:
            print_table(*front_table(search), title=f"{search.title}: the Pareto front")
    if report.rungs:
        print_table(*rungs_table(report.rungs), title="What was pruned when")
    print(
        f"{format_duration(account.seconds)} on {pluralize(account.gpus, account.device)}: "
        + ", ".join(f"{name} {share:.1%}" for name, share in account.spent.shares.items())
    )
    if report.cache_summary:
        print(report.cache_summary)
    if report.input_summary:
        print(report.input_summary)
    if account.startup:
        print(
            f"{sum(seconds for _, seconds in account.startup):.1f} s from the command to the first step: "
            + ", ".join(f"{part} {seconds:.1f}" for part, seconds in account.startup)
        )
    if account.first_signal_s is not None:
        print(f"every network had ended an epoch after {format_duration(account.first_signal_s)}")
    if report.run.missed:
        print(MISSED_CHUNKS.format(chunks=pluralize(report.run.missed, "chunk")))
    if account.ratio is not None:
        print(
            f"makespan {account.measured_s:.1f} s, simulated {account.simulated_s:.1f} s: {account.ratio:.3f}"
        )
    if over is not None:
        print(f"{str(over)[0].upper()}{str(over)[1:]}.")
