"""Decisions of the autoscaler, without a simulator."""

import math
from dataclasses import dataclass

import pytest

from launch.errors import InputError
from scheduler.elastic.allocate import ScalingCurve
from scheduler.elastic.autoscaler import Autoscaling, decide, next_decision

RISING = ScalingCurve((1.0, 1.5, 1.8, 2.0))


@dataclass
class Job:
    curve: ScalingCurve = RISING
    gpus: int = 0
    steady_min: float = 0.0


def needs(*factors):
    """A waiting job with its scaling factors."""
    return Job(ScalingCurve(factors))


NEEDS_TWO, NEEDS_THREE = needs(0.0, 1.0), needs(0.0, 0.0, 1.0)
HOLDS = Autoscaling(gpus=6, rescale_cost_min=2.0)  # a size is kept for 18 min
TWO, FOUR = Job(gpus=2), Job(gpus=4)

# Running jobs, waiting jobs, the minute, the settings; and the GPUs of all jobs.
DECISIONS = {
    "running jobs spread over the GPUs that are free": (
        [Job(gpus=1)] * 2,
        [],
        50.0,
        Autoscaling(gpus=6),
        (3, 3),
        (),
    ),
    "running jobs shrink to admit one that waits": (
        [TWO],
        [Job()],
        50.0,
        Autoscaling(gpus=2),
        (1,),
        (1,),
    ),
    "a running job is never sent back to wait": (
        [Job(gpus=1)] * 2,
        [needs(9.0)],
        50.0,
        Autoscaling(gpus=2),
        (1, 1),
        (0,),
    ),
    "jobs are admitted in order, and one that does not fit is passed over": (
        [],
        [NEEDS_TWO, NEEDS_THREE, needs(1.0), needs(1.0)],
        0.0,
        Autoscaling(gpus=3),
        (),
        (2, 0, 1, 0),
    ),
    "a job keeps its size for nine times what a resize costs": (
        [Job(gpus=2, steady_min=10.0), Job(gpus=1, steady_min=-100.0)],
        [],
        27.9,
        HOLDS,
        (2, 4),
        (),
    ),
    "and no longer": (
        [Job(gpus=2, steady_min=10.0), Job(gpus=1, steady_min=-100.0)],
        [],
        28.0,
        HOLDS,
        (3, 3),
        (),
    ),
    "without a cost nothing is kept": (
        [Job(gpus=1, steady_min=10.0)],
        [],
        10.0,
        Autoscaling(gpus=4),
        (4,),
        (),
    ),
    "it shrinks if one that waits could not start": (
        [TWO, FOUR],
        [NEEDS_TWO],
        5.0,
        HOLDS,
        (2, 2),
        (2,),
    ),
    "as few as can be shrink": (
        [TWO, FOUR, TWO],
        [NEEDS_THREE],
        5.0,
        Autoscaling(gpus=8, rescale_cost_min=2.0),
        (2, 1, 2),
        (3,),
    ),
    "none shrinks for a job that does not fit even then": (
        [TWO, FOUR],
        [needs(*(0.0,) * 4, 9.0)],
        5.0,
        HOLDS,
        (2, 4),
        (0,),
    ),
    "what shrinking jobs give is given once": (
        [TWO, FOUR],
        [NEEDS_THREE, NEEDS_TWO, needs(1.0)],
        5.0,
        HOLDS,
        (1, 1),
        (3, 0, 1),
    ),
    "a job that shrinks before its time does not grow": (
        [Job(ScalingCurve((1.0, 2.0, 9.0)), gpus=2), FOUR],
        [needs(1.0, 1.1)],
        5.0,
        HOLDS,
        (2, 3),
        (1,),
    ),
}


@pytest.mark.parametrize(
    ("running", "waiting", "now", "how", "size", "started"), DECISIONS.values(), ids=DECISIONS
)
def test_autoscaler_decision_says_how_many_gpus_each_job_has(
    running, waiting, now, how, size, started
):
    decision = decide(running, waiting, now, how)
    assert (decision.running, decision.started) == (size, started)


def test_decision_states_method_and_throughput():
    assert (
        decide([], [needs(1.0, 1.1, 3.0), Job()], 0.0, Autoscaling(gpus=3)).method
        == "greedy + dynamic program"
    )
    assert decide([TWO], [Job()], 50.0, Autoscaling(gpus=2)).throughput == 2.0


def test_how_long_a_size_is_kept_can_be_said():
    assert Autoscaling(gpus=1, rescale_cost_min=2.0, hold_min=5.0).effective_hold_min == 5.0


@pytest.mark.parametrize(
    ("now", "interval", "expected"),
    [(0.0, 10.0, 10.0), (10.0, 10.0, 10.0), (10.1, 10.0, 20.0), (3.7, 0.0, 3.7), (0.3, 0.1, 0.3)],
)
def test_decisions_fall_on_multiples_of_the_interval(now, interval, expected):
    assert next_decision(now, interval) == pytest.approx(expected)


def test_autoscaler_decision_is_never_in_the_past():
    assert next_decision(0.1 + 0.2, 0.1) >= 0.1 + 0.2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"interval_min": -1.0}, "interval_min is -1"),
        (
            {"interval_min": 1e-300},
            "interval_min is 1e-300; it must be 0 \\(decide at every event\\)",
        ),
        ({"rescale_cost_min": math.nan}, "rescale_cost_min is nan"),
        ({"hold_min": math.inf}, "hold_min is inf"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Autoscaling(**{"gpus": 4, **wrong})
