"""The decisions of the autoscaler, without any simulator."""

import math
from dataclasses import dataclass

import pytest

from scheduler.base import InputError
from scheduler.elastic.allocate import ScalingCurve
from scheduler.elastic.autoscaler import Autoscaling, decide, next_decision

RISING = ScalingCurve((1.0, 1.5, 1.8, 2.0))


@dataclass
class Job:
    curve: ScalingCurve = RISING
    gpus: int = 0
    steady_min: float = 0.0


def test_running_jobs_spread_over_the_gpus_that_are_free():
    decision = decide([Job(gpus=1), Job(gpus=1)], [], 50.0, Autoscaling(gpus=6))
    assert (decision.running, decision.started) == ((3, 3), ())


def test_running_jobs_shrink_to_admit_one_that_waits():
    decision = decide([Job(gpus=2)], [Job()], 50.0, Autoscaling(gpus=2))
    assert (decision.running, decision.started) == ((1,), (1,))
    assert decision.throughput == 2.0


def test_a_running_job_is_never_sent_back_to_wait():
    decision = decide([Job(gpus=1), Job(gpus=1)], [Job(ScalingCurve((9.0,)))], 50.0, Autoscaling(gpus=2))
    assert (decision.running, decision.started) == ((1, 1), (0,))


def test_jobs_are_admitted_in_order_and_one_that_does_not_fit_is_passed_over():
    two, three, one = ScalingCurve((0.0, 1.0)), ScalingCurve((0.0, 0.0, 1.0)), ScalingCurve((1.0,))
    decision = decide([], [Job(two), Job(three), Job(one), Job(one)], 0.0, Autoscaling(gpus=3))
    assert decision.started == (2, 0, 1, 0)


def test_a_decision_states_the_method_of_the_optimizer():
    assert decide([], [Job(ScalingCurve((1.0, 1.1, 3.0))), Job()], 0.0, Autoscaling(gpus=3)).method == (
        "greedy + dynamic programme")


@pytest.mark.parametrize(("now", "expected"), [(27.9, 2), (28.0, 3)])
def test_a_job_keeps_its_size_for_nine_times_what_a_resize_costs(now, expected):
    settings = Autoscaling(gpus=6, rescale_cost_min=2.0)
    held, free = Job(gpus=2, steady_min=10.0), Job(gpus=1, steady_min=-100.0)
    assert decide([held, free], [], now, settings).running[0] == expected


def test_a_job_that_keeps_its_size_shrinks_if_one_that_waits_could_not_start():
    settings = Autoscaling(gpus=6, rescale_cost_min=2.0)
    decision = decide([Job(gpus=2), Job(gpus=4)], [Job(ScalingCurve((0.0, 1.0)))], 5.0, settings)
    assert (decision.running, decision.started) == ((2, 2), (2,))


def test_as_few_as_can_be_shrink():
    settings = Autoscaling(gpus=8, rescale_cost_min=2.0)
    decision = decide([Job(gpus=2), Job(gpus=4), Job(gpus=2)], [Job(ScalingCurve((0.0, 0.0, 1.0)))], 5.0, settings)
    assert (decision.running, decision.started) == ((2, 1, 2), (3,))


def test_none_shrinks_for_a_job_that_does_not_fit_even_then():
    settings = Autoscaling(gpus=6, rescale_cost_min=2.0)
    decision = decide([Job(gpus=2), Job(gpus=4)], [Job(ScalingCurve((*(0.0,) * 4, 9.0)))], 5.0, settings)
    assert (decision.running, decision.started) == ((2, 4), (0,))


def test_what_shrinking_jobs_give_is_given_once():
    settings = Autoscaling(gpus=6, rescale_cost_min=2.0)
    waiting = [Job(ScalingCurve((0.0, 0.0, 1.0))), Job(ScalingCurve((0.0, 1.0))), Job(ScalingCurve((1.0,)))]
    decision = decide([Job(gpus=2), Job(gpus=4)], waiting, 5.0, settings)
    assert (decision.running, decision.started) == ((1, 1), (3, 0, 1))


def test_a_job_that_shrinks_before_its_time_does_not_grow():
    settings = Autoscaling(gpus=6, rescale_cost_min=2.0)
    held = Job(ScalingCurve((1.0, 2.0, 9.0)), gpus=2)
    decision = decide([held, Job(gpus=4)], [Job(ScalingCurve((1.0, 1.1)))], 5.0, settings)
    assert decision.running == (2, 3)


def test_without_a_cost_nothing_is_kept():
    assert decide([Job(gpus=1, steady_min=10.0)], [], 10.0, Autoscaling(gpus=4)).running == (4,)


def test_how_long_a_size_is_kept_can_be_said():
    assert Autoscaling(gpus=1, rescale_cost_min=2.0, hold_min=5.0).keeps_for_min == 5.0


@pytest.mark.parametrize(("now", "interval", "expected"), [
    (0.0, 10.0, 10.0), (10.0, 10.0, 10.0), (10.1, 10.0, 20.0), (3.7, 0.0, 3.7), (0.3, 0.1, 0.3)])
def test_decisions_fall_on_multiples_of_the_interval(now, interval, expected):
    assert next_decision(now, interval) == pytest.approx(expected)


def test_a_decision_is_never_in_the_past():
    assert next_decision(0.1 + 0.2, 0.1) >= 0.1 + 0.2


@pytest.mark.parametrize(("wrong", "message"), [
    ({"gpus": 0}, "gpus is 0"),
    ({"interval_min": -1.0}, "interval_min is -1"),
    ({"interval_min": 1e-300}, "interval_min is 1e-300; it must be 0 \\(decide at every event\\)"),
    ({"rescale_cost_min": math.nan}, "rescale_cost_min is nan"),
    ({"hold_min": math.inf}, "hold_min is inf"),
])
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Autoscaling(**{"gpus": 4, **wrong})
