"""Define what it costs to move networks between devices."""

from __future__ import annotations

from dataclasses import dataclass

from launch.errors import InputError


@dataclass(frozen=True)
class Costs:
    """The costs of moves, in seconds.

    Args:
        checkpoint_s: extra time for which a group that stops unfinished holds its devices.
        regroup_s: time before a group that starts, grows or shrinks trains again.
        scheduling_s: time before a decision that changes anything takes effect.
        profile_s: time before the first decision.
        epoch_s: overhead of an epoch: saving it and asking for the next decision.

    Raises:
        InputError: a cost is negative, or more than 1e9 s.
    """

    checkpoint_s: float = 0.0
    regroup_s: float = 0.0
    scheduling_s: float = 0.0
    profile_s: float = 0.0
    epoch_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1e9:
                raise InputError(f"{name} is {value}; it must be 0 to 1e9 seconds")


# [FLEET] Table 4, divided by its flotillas.
PAPER_COSTS = Costs(checkpoint_s=34.0, scheduling_s=0.46)
REGROUPING_COSTS = Costs(regroup_s=5.0)  # weights by broadcast, generously
