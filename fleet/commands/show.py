"""How commands print: JSON for programs, text and tables for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from fleet.domain.record import as_json
from fleet.terminal import bar, print_table
from scheduler.ensemble.policies import REFERENCE
from scheduler.simulation.ensemble import Simulated


def print_json(value: Any) -> None:
    """Print a dataclass, dict or list as JSON; what JSON cannot say (NaN, infinity) becomes null."""
    print(json.dumps(as_json(value), indent=1, allow_nan=False))


def show(args: argparse.Namespace, record: Callable[[], Any], text: Callable[[], object]) -> None:
    """Print what a command has found.

    Args:
        record: makes what ``--json`` prints of it.
        text: prints it for people, without ``--json``.
    """
    if args.json:
        print_json(record())
    else:
        text()


def print_policies(outcomes: Sequence[Simulated]) -> None:
    """Print how policies do side by side, the reference among them."""
    reference = next(outcome for outcome in outcomes if outcome.policy == REFERENCE.name).makespan_s
    print_table(["policy", "makespan, s", "x bound", "speed-up", "waiting/GPU, s", "checkpoints, s", "rounds", ""],
                [[outcome.policy, round(outcome.makespan_s), outcome.makespan_s / outcome.lower_bound_s,
                  reference / outcome.makespan_s, round(outcome.waiting_s_per_gpu), round(outcome.checkpoint_s),
                  len(outcome.rounds), bar(reference / outcome.makespan_s, 4.0, 20)] for outcome in outcomes])
    print(f"No schedule can be faster than {outcomes[0].lower_bound_s:.0f} s; speed-up is over {REFERENCE.name}.")
