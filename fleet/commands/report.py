"""Show the results of a run, finished or not: networks, GPU time, measured and simulated makespan.

  fleet report runs/digits
  fleet report runs/digits --json
  fleet report runs/digits --at 350s      the state at that time
  fleet report runs/digits --every 30s    update the HTML report while the run goes on

It also writes RUN/report.html if possible: one file that needs no server and no internet. The HTML
report has the best network, a leaderboard, learning curves, a page for each network, the results of
searches, pruning by epoch, the use of the GPUs over time, and a simulation of the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fleet.arguments import add_run, duration, moment, new_file
from fleet.commands.output import show
from fleet.errors import StorageError, UserError
from fleet.hooks import find_hook
from fleet.monitor.accounting import ACTIVITIES
from fleet.monitor.html import write_report
from fleet.monitor.report import RunReport, best_rows, read_report, report_at
from fleet.monitor.search_summary import (
    FRONT_TITLE,
    RUNGS_TITLE,
    front_table,
    improvements_table,
    rungs_table,
)
from fleet.prediction.ensembles import TABLE_NOTE, TABLE_TITLE, make_table
from fleet.runtime.startup.fingerprint import find_data_changes
from fleet.storage.leaderboard import least_columns
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from fleet.units import format_duration
from launch.errors import pluralize

_POLL_S = 1.0  # between two checks whether a launch is still running


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument(
        "--at",
        type=moment,
        metavar="350s",
        help="show the state of the run at this time, counted over all launches (for a harvest "
        "since its start), from the run's log; nothing is written to the run's folder",
    )
    parser.add_argument(
        "--html", type=new_file, metavar="FILE", help="write the HTML report to this file instead"
    )
    parser.add_argument(
        "--every",
        type=duration,
        metavar="30s",
        help="update the HTML report at this interval until the launch ends; an open page reloads "
        "itself",
    )


def run(args: argparse.Namespace) -> None:
    """Print a report, and write it as HTML if possible."""
    paths = RunPaths(args.run)
    if args.every is not None:
        if args.json or args.at is not None:
            raise UserError(
                "--every updates the HTML report while the run goes on; use it without --json and "
                "--at"
            )
        _keep_writing(paths, args.html or paths.report, args.every)
    if args.at is None:
        report = replace(read_report(paths), data_now=tuple(find_data_changes(paths)))
    else:
        report = report_at(paths, args.at)
    find_harvest_end = find_hook("harvest end")
    harvest_end = None
    harvest = {}
    if find_harvest_end is not None and args.at is None:
        harvest_end = find_harvest_end(paths)
    if harvest_end is not None:
        harvest = {"harvest": {"why": harvest_end.why, "again": harvest_end.again}}
    show(args, lambda: report.as_dict() | harvest, lambda: _print(report, harvest_end))
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
        print(f"HTML report: {page}")


def _keep_writing(paths: RunPaths, page: Path, every_s: float) -> None:
    """Update the page until no launch runs, or Ctrl-C; the caller writes the final page."""
    is_announced = False
    with suppress(KeyboardInterrupt):
        while find_held_lease(paths) is not None:
            try:
                with suppress(UserError):  # a launch that has just started has no results yet
                    write_report(page, read_report(paths), every_s)
                    if not is_announced:
                        print(
                            f"HTML report: {page}, updated every {format_duration(every_s)} until "
                            "the launch ends or Ctrl-C",
                            flush=True,
                        )
                    is_announced = True
            except StorageError as error:
                if not error.may_pass:
                    raise
                print(f"fleet report: {error}", file=sys.stderr)
            until = time.monotonic() + every_s
            while time.monotonic() < until and find_held_lease(paths) is not None:
                time.sleep(min(_POLL_S, every_s))


def _print(report: RunReport, harvest_end: object | None) -> None:
    account = report.account
    headers, rows, left_out = best_rows(report.rows)
    print_table(
        headers, rows, title=f"{report.name}: leaderboard", optional=least_columns(report.rows)
    )
    for text in filter(None, (left_out, report.data_changes)):
        print(text)
    if report.ensembles:
        print_table(*make_table(report.ensembles), title=TABLE_TITLE)
        print(TABLE_NOTE)
    for search in report.searches:
        if search.trials:
            print_table(*improvements_table(search), title=f"{search.title}: best so far")
        print(search.summary)
        if search.objectives:
            print_table(*front_table(search), title=f"{search.title}: {FRONT_TITLE}")
    if report.rungs:
        print_table(*rungs_table(report.rungs), title=RUNGS_TITLE)
    print(
        f"{format_duration(account.seconds)} on {pluralize(account.gpus, account.device)}: "
        + ", ".join(
            f"{ACTIVITIES[name]} {share:.1%}" for name, share in account.spent.shares.items()
        )
    )
    for text in filter(None, (report.cache_summary, report.input_summary)):
        print(text)
    if account.startup:
        print(
            "from the command to the first step: "
            f"{sum(seconds for _, seconds in account.startup):.1f} s: "
            + ", ".join(f"{part} {seconds:.1f}" for part, seconds in account.startup)
        )
    if account.first_signal_s is not None:
        print(
            f"every network had finished an epoch after {format_duration(account.first_signal_s)}"
        )
    if report.missed_summary:
        print(report.missed_summary)
    if account.ratio is not None:
        print(
            f"makespan: {account.measured_s:.1f} s measured, {account.simulated_s:.1f} s simulated "
            f"(ratio {account.ratio:.3f})"
        )
    if harvest_end is not None:
        print(f"{str(harvest_end)[0].upper()}{str(harvest_end)[1:]}.")
