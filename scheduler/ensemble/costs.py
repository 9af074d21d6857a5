"""Define what it costs to move networks between devices."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.base import InputError


@dataclass(frozen=True)
class Costs:
    """The costs of moves, in seconds.

    Args:
        checkpoint_s: a group that stops unfinished holds its devices that much longer.
        regroup_s: a group that starts, grows or shrinks trains only after that time.
        scheduling_s: a decision that changes anything takes effect after that time.
        profile_s: before the first decision.
        epoch_s: what an epoch takes beyond its samples: saving it, and asking what comes next.

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


PAPER_COSTS = Costs(
    checkpoint_s=34.0, scheduling_s=0.46
)  # [FLEET] Table 4, divided by its flotillas
REGROUPING_COSTS = Costs(regroup_s=5.0)  # weights by broadcast, generously
