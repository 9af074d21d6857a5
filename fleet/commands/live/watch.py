"""Watch a run that is going on: a line for every epoch's end, and for every network that comes, ends or is dropped.

  fleet watch runs/digits
  fleet watch runs/digits --json    one JSON object a line, for the ends of epochs alone

It shows what comes from now on, and ends with the launch. Of several launches that share the networks of a run it shows
what all of them do, until none is at work.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from fleet.domain.record import as_json
from fleet.errors import ExitStatus, UserError
from fleet.monitor.view import Narrator
from fleet.running import follow_logs, meet_all, reporter_of
from fleet.storage.event_log import log_mark
from fleet.storage.lease import is_held
from fleet.storage.network_leases import held_lease
from fleet.storage.paths import RunPaths


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print reports as JSON, one a line")


def run(args: argparse.Namespace) -> int:
    """Print what happens until the launch has ended."""
    paths = RunPaths(args.run)
    reporter, narrator = reporter_of(paths), Narrator()
    held = held_lease(paths)
    if held is None:
        raise UserError(f"{args.run}: no launch is at work there; fleet report shows how far it is")

    def is_over() -> bool:
        nonlocal held
        if held is not None and not is_held(held):  # a network may have been finished: there may be others
            held = held_lease(paths)
        return held is None

    starts = {log: log_mark(log)[1] for log in paths.event_logs()}
    meet_all([reporter.hear, narrator.hear], starts)
    for event in follow_logs(paths.event_logs, starts, is_over):
        report = reporter.hear(event)
        if args.json and report is not None:
            print(json.dumps(as_json(asdict(report))), flush=True)
        elif not args.json and (text := narrator.tell(event, reporter.max_epochs)):
            print(text, flush=True)
    return ExitStatus.OK
