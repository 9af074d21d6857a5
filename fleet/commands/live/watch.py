"""Follow a running run, or replay a finished one, with a line for each event.

  fleet watch runs/digits
  fleet watch runs/digits --json                  one JSON object per line, only for ends of epochs
  fleet watch runs/digits --from 0s --speed 60    replay the run, one minute per second

It prints events such as ends of epochs, new networks and finished networks from now on, and ends
with the launch. If several launches share the networks of a run, it shows the events of all of
them, until none is running. With --from it replays the run; if the run goes on, it then follows it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fleet.arguments import add_run, moment, positive
from fleet.commands.output import print_json
from fleet.domain.events import Event
from fleet.domain.run import LaunchKilled, RunState
from fleet.domain.timeline import LoggedEvent, dated_events, merge_logs
from fleet.errors import UserError
from fleet.live_run import follow, new_run_state, replay_networks, report_of
from fleet.monitor.view import format_event
from fleet.storage.event_log import RunTail
from fleet.storage.lease import is_held
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths

HAS_JSON = False  # it declares its own, which prints many objects


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print reports as JSON, one per line")
    parser.add_argument(
        "--from",
        dest="from_s",
        type=moment,
        metavar="0s",
        help="replay the run from this time on, counted as in its report",
    )
    parser.add_argument(
        "--speed",
        type=positive,
        metavar="60",
        help="with --from: seconds of the run per second (1)",
    )


def run(args: argparse.Namespace) -> None:
    """Print events until the launch has ended."""
    paths = RunPaths(args.run)
    if args.from_s is None and args.speed is not None:
        raise UserError("--speed needs --from, which replays a run")
    state = new_run_state(paths)
    lease = find_held_lease(paths)
    if lease is None and args.from_s is None:
        raise UserError(
            f"{args.run}: no launch is running; fleet report shows its state, and --from 0s "
            "replays it"
        )
    if lease is None and not paths.event_logs():
        raise UserError(f"{args.run} has no {paths.events.name}, so it cannot be replayed")

    def is_over() -> bool:
        nonlocal lease
        # The lease may be that of a finished network; another one may be held.
        if lease is not None and not is_held(lease):
            lease = find_held_lease(paths)
        return lease is None

    if args.from_s is None:
        tail = RunTail(paths, from_end=True)
        replay_networks(state, paths.event_logs())
    else:
        tail = RunTail(paths)
        for event in _replay(state, tail, args.from_s, args.speed or 1.0):
            _print(event, state, args.json)
    for dated in follow(tail, is_over):
        state.apply(dated.at, dated.event, dated.log)
        _print(dated.event, state, args.json)


def _replay(state: RunState, tail: RunTail, from_s: float, speed: float) -> Iterator[Event]:
    """Replay the events so far from some time on, at the given speed."""
    logs: defaultdict[Path, list[LoggedEvent]] = defaultdict(list)
    for dated in tail.poll():
        logs[dated.log].append(LoggedEvent(dated.t_s, dated.event))
    began = time.monotonic()
    for t_s, event, launch in dated_events(merge_logs(logs.values())):
        if t_s >= from_s:
            time.sleep(max(0.0, began + (t_s - from_s) / speed - time.monotonic()))
        state.apply(t_s, event, launch)
        if t_s >= from_s and not isinstance(event, LaunchKilled):
            yield event


def _print(event: Event, state: RunState, as_json: bool) -> None:
    if not as_json:
        text = format_event(event, state)
        if text:
            print(text, flush=True)
    elif (report := report_of(event, state)) is not None:
        print_json(asdict(report), indent=None)
