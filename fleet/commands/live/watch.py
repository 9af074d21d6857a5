"""Watch a run that is going on: a line for every epoch's end, and for every network that comes, ends or is dropped.

  fleet watch runs/digits
  fleet watch runs/digits --json    one JSON object a line, for the ends of epochs alone

It shows what comes from now on, and ends with the launch.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from fleet.errors import ExitStatus, UserError
from fleet.monitor.view import describe
from fleet.running import follow, reporter_of
from fleet.storage.event_log import log_mark, read_events
from fleet.storage.files import as_json
from fleet.storage.lease import is_held
from fleet.storage.paths import RunPaths


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print reports as JSON, one a line")


def run(args: argparse.Namespace) -> int:
    """Print what happens until the launch has ended."""
    paths = RunPaths(args.run)
    reporter = reporter_of(paths)
    if not is_held(paths.lease):
        raise UserError(f"{args.run}: no launch is at work there; fleet report shows how far it is")
    _, start = log_mark(paths.events)
    for logged in read_events(paths.events) if start else ():
        reporter.hear(logged.event)
    for event in follow(paths, start, lambda: not is_held(paths.lease)):
        report = reporter.hear(event)
        if args.json and report is not None:
            print(json.dumps(as_json(asdict(report))), flush=True)
        elif not args.json and (text := describe(event, reporter.max_epochs)):
            print(text, flush=True)
    return ExitStatus.OK
