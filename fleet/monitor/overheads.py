"""What a launch spent on anything but training ([FLEET] Table 4), as it says at its end."""

from __future__ import annotations

from fleet.domain.events import Ended
from fleet.domain.run import Launch
from fleet.units import counted, format_duration


def ended(launch: Launch, status: int, seconds: float) -> Ended:
    """The event that ends a launch.

    Args:
        status: how it ended (:class:`fleet.errors.ExitStatus`).
        seconds: since it began.
    """
    return Ended(status, seconds, launch.rounds, launch.profiling_s, launch.scheduling_s, launch.checkpointing_s,
                 launch.regrouping_s)


def summary(launch: Launch, seconds: float) -> str:
    """How long a launch took, and the shares of what is not training.

    Args:
        seconds: since it began.
    """
    total = max(seconds, 1e-9)
    gpu_seconds = total * max(launch.start.cluster.whole_gpus, 1)
    return (f"{format_duration(total)} in {counted(launch.rounds, 'round')}; "
            f"profiling {launch.profiling_s / total:.1%}, scheduling {launch.scheduling_s / total:.3%}, "
            f"checkpointing {launch.checkpointing_s / gpu_seconds:.2%}, "
            f"regrouping {launch.regrouping_s / gpu_seconds:.2%} of it")
