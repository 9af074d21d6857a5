"""How long a survey of rates would take, at rates that are known or estimated already (pure)."""

from __future__ import annotations

from typing import NamedTuple

from fleet.ensemble.survey import Survey, Task
from scheduler.base import RateTable
from scheduler.ensemble.rates import rate


class SurveyEstimate(NamedTuple):
    """What is to be measured, and how long the devices are taken by it."""

    measurements: int
    seconds: float


def estimate(survey: Survey, rates: RateTable, build_s: float) -> SurveyEstimate:
    """Go through a survey on a clock of its own, as the runtime does: measurements side by side, on idle devices.

    Args:
        survey: which is used up.
        rates: of its networks.
        build_s: seconds that it takes to build a network and to trace its steps, before they are measured.
    """
    networks = {network.name: network for network in rates.models}
    specs = {network.name: network for network in survey.networks}

    def takes_s(task: Task) -> float:
        samples = survey.profile.batches * specs[task.network].global_batch(task.gpus)
        return build_s + samples / rate(networks[task.network], task.gpus)

    now_s, idle, running = 0.0, survey.devices, list[tuple[float, int, Task]]()
    started = 0
    while True:
        while (task := survey.next(idle)) is not None:
            started += 1
            idle -= task.gpus
            running.append((now_s + takes_s(task), started, task))
        if not running:  # nothing is left, or only what wants more devices than there are
            return SurveyEstimate(started, now_s)
        running.remove(first := min(running))
        now_s, _, task = first
        idle += task.gpus
        survey.add(task, rate(networks[task.network], task.gpus), "")
