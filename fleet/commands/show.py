"""What several commands print."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.terminal import bar, print_table
from scheduler.ensemble.policies import REFERENCE
from scheduler.simulation.ensemble import Simulated


def print_policies(outcomes: Sequence[Simulated]) -> None:
    """Print how policies do side by side, the reference among them."""
    reference = next(outcome for outcome in outcomes if outcome.policy == REFERENCE.name).makespan_s
    print_table(["policy", "makespan, s", "x bound", "speed-up", "waiting/GPU, s", "checkpoints, s", "rounds", ""],
                [[outcome.policy, round(outcome.makespan_s), outcome.makespan_s / outcome.lower_bound_s,
                  reference / outcome.makespan_s, round(outcome.waiting_s_per_gpu), round(outcome.checkpoint_s),
                  len(outcome.rounds), bar(reference / outcome.makespan_s, 4.0, 20)] for outcome in outcomes])
    print(f"No schedule can be faster than {outcomes[0].lower_bound_s:.0f} s; speed-up is over {REFERENCE.name}.")
