"""The simulation of the autoscaler, checked by hand and by its audit."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.elastic.allocate import ScalingCurve
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.simulation.autoscale import ElasticJob, JobHolding
from tests.examples import examples
from tests.scheduler.simulation.audits import BrokenRuleError, audit_autoscaled
from tests.scheduler.simulation.audits import autoscaled as simulate

RISING = ScalingCurve((1.0, 1.5))
EVENTS = Autoscaling(gpus=2, interval_min=0)


def jobs(*arrivals, length=30.0, curve=RISING):
    return [ElasticJob(arrival, length, curve) for arrival in arrivals]


def test_two_jobs_share_two_gpus():
    """The first does 15 of 30 min alone; both share; the second does its last 15 alone."""
    outcome = simulate(jobs(0, 10), EVENTS)
    assert outcome.completion_min == pytest.approx((25.0, 25.0))
    assert outcome.mean_completion_min == pytest.approx(25.0)
    assert outcome.sjs_efficiency == pytest.approx(60 / 70)
    assert (outcome.completed, outcome.drop_ratio, outcome.rescales) == (2, 0.0, 2)


def test_with_an_interval_everything_waits_for_its_multiples():
    outcome = simulate(jobs(0, 10), Autoscaling(gpus=2, interval_min=10))
    assert outcome.completion_min == pytest.approx((40.0, 30.0))
    assert outcome.sjs_efficiency == pytest.approx(1.0)


def test_gpus_freed_between_two_decisions_stay_idle():
    outcome = simulate(jobs(0, 0, length=14.0), Autoscaling(gpus=1, interval_min=10))
    assert outcome.completion_min == pytest.approx((24.0, 44.0))


def test_decision_includes_events_of_its_moment():
    outcome = simulate(jobs(0, 20, length=10.0), Autoscaling(gpus=1, interval_min=10))
    assert outcome.completion_min == pytest.approx((20.0, 10.0))


def test_rounding_does_not_delay_a_job_past_its_decision():
    """The first runs from 0.3 to 1.8, and 6 x 0.3 is slightly less: it ends in time."""
    jobs_ = [ElasticJob(0.0, 1.5, ScalingCurve((1.0,))), ElasticJob(1.6, 1.0, ScalingCurve((1.0,)))]
    outcome = simulate(jobs_, Autoscaling(gpus=1, interval_min=0.3, drop=True))
    assert outcome.completion_min == pytest.approx((1.8, 1.2))


@pytest.mark.parametrize(
    ("drop", "expected", "ratio"),
    [(False, (25.0, 30.0, 38.0), 0.0), (True, (25.0, 25.0, None), 1 / 3)],
)
def test_autoscale_job_that_does_not_fit_waits_or_is_dropped(drop, expected, ratio):
    outcome = simulate(jobs(0, 10, 12), replace(EVENTS, drop=drop))
    assert outcome.completion_min == pytest.approx(expected)
    assert outcome.drop_ratio == pytest.approx(ratio)


def test_job_that_never_fits_is_dropped():
    outcome = simulate([ElasticJob(0, 5.0, ScalingCurve((0.0, 0.0, 1.0))), *jobs(0)], EVENTS)
    assert outcome.dropped == (0,)
    assert outcome.completed == 1


def test_autoscale_resize_costs_time_in_which_the_gpus_are_held():
    """The first halts from 10 to 12 and ends at 27; the second halts to 29 (13 min left)."""
    outcome = simulate(jobs(0, 10), replace(EVENTS, rescale_cost_min=2.0, hold_min=0.0))
    assert outcome.completion_min == pytest.approx((27.0, 27.0 + 2.0 + 13.0 / 1.5 - 10.0))
    assert outcome.sjs_efficiency == pytest.approx(60 / (2 * (29.0 + 13.0 / 1.5)))


def test_costly_resize_shrinks_for_a_start_and_holds():
    """The second was never resized and is still held at one GPU when the first ends at 27."""
    outcome = simulate(jobs(0, 10), replace(EVENTS, rescale_cost_min=2.0))
    assert [(h.job, h.gpus, h.start_min) for h in outcome.holdings] == [
        (0, 2, 0.0),
        (0, 1, 10.0),
        (1, 1, 10.0),
    ]
    assert outcome.completion_min == pytest.approx((27.0, 30.0))


def test_held_size_is_reconsidered_without_events():
    """Both start at 10 on one GPU; when the short one frees its GPU at 20, the long one is held."""
    two = [ElasticJob(0, 5.0, RISING), ElasticJob(0, 60.0, RISING)]
    outcome = simulate(two, Autoscaling(gpus=2, interval_min=10, rescale_cost_min=2.0))
    assert [h.start_min for h in outcome.holdings if h.job == 1] == [10.0, 30.0]


def test_minutes_end_the_simulation():
    outcome = simulate(jobs(0, 10), EVENTS, minutes=25)
    assert outcome.completion_min == pytest.approx((25.0, None))
    assert outcome.sjs_efficiency == pytest.approx(30 / 50)
    assert outcome.end_min == 25.0


def test_autoscale_job_that_arrives_after_the_end_is_not_counted():
    assert simulate(jobs(0, 10, 99), replace(EVENTS, drop=True), minutes=50).drop_ratio == 0.0


def test_autoscale_nothing_to_do_has_no_efficiency():
    outcome = simulate(jobs(99), EVENTS, minutes=50)
    assert math.isnan(outcome.sjs_efficiency)
    assert math.isnan(outcome.mean_completion_min)
    assert outcome.completed == 0


def test_decisions_are_counted_by_method():
    assert sum(simulate(jobs(0, 10), EVENTS).decisions.values()) == 4


# --- under the audit, which every simulation here runs ---

curves = (
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.7, 2.3, 3.1]), min_size=1, max_size=4)
    .filter(any)
    .map(lambda factors: ScalingCurve(tuple(factors)))
)
some_jobs = st.lists(
    st.builds(ElasticJob, st.floats(0, 60), st.floats(0.5, 40), curves), max_size=12
)
some_settings = st.builds(
    Autoscaling,
    gpus=st.integers(1, 6),
    interval_min=st.sampled_from([0.0, 0.3, 7.0, 10.0]),
    drop=st.booleans(),
    rescale_cost_min=st.sampled_from([0.0, 0.5, 3.0]),
)


@settings(max_examples=examples(200), deadline=None)
@given(some_jobs, some_settings, st.sampled_from([math.inf, 45.0]))
def test_simulation_passes_its_audit_and_bounds_resizes(jobs_, how, minutes):
    """Return the resizes after a hold by time, and the others by the need of started jobs."""
    outcome = simulate(jobs_, how, minutes)
    if how.rescale_cost_min:
        gpus_ = math.fsum(h.end_min - h.start_min for h in outcome.holdings)
        needed = sum(jobs_[number].curve.min_gpus for number in {h.job for h in outcome.holdings})
        assert outcome.rescales <= gpus_ / how.effective_hold_min + needed


@settings(max_examples=examples(100), deadline=None)
@given(some_jobs, some_settings)
def test_autoscale_completes_or_drops_every_job(jobs_, how):
    outcome = simulate(jobs_, how)
    assert outcome.completed + len(outcome.dropped) == len(jobs_)
    if not how.drop:
        assert set(outcome.dropped) == {
            n for n, job in enumerate(jobs_) if job.curve.min_gpus > how.gpus
        }


def tampered(outcome, index, **changes):
    holdings = list(outcome.holdings)
    holdings[index] = replace(holdings[index], **changes)
    return replace(outcome, holdings=tuple(holdings))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: tampered(o, 0, gpus=3), "of 2 GPUs are held"),
        (lambda o: tampered(o, 0, end_min=9.0), "gap"),
        (lambda o: tampered(o, 0, start_min=-1.0, steady_min=-1.0), "before it arrives"),
        (lambda o: tampered(o, 0, steady_min=1.0), "pays for its start"),
        (lambda o: tampered(o, 1, steady_min=11.0), "does not pay its resize"),
        (lambda o: tampered(o, -1, end_min=34.0), "did"),
        (lambda o: replace(o, completion_min=(25.0, 24.0)), "another moment"),
        (lambda o: replace(o, completion_min=(25.0, None)), "does not count as completed"),
        (lambda o: replace(o, dropped=(0,)), "dropped job held GPUs"),
    ],
)
def test_autoscale_audit_finds_errors(change, message):
    jobs_ = jobs(0, 10)
    outcome = simulate(jobs_, EVENTS)
    with pytest.raises(BrokenRuleError, match=message):
        audit_autoscaled(change(outcome), jobs_, EVENTS)


def test_audit_knows_due_decisions_and_held_sizes():
    jobs_ = jobs(0, 10)
    outcome = simulate(jobs_, EVENTS)
    with pytest.raises(BrokenRuleError, match="between two decisions"):
        audit_autoscaled(outcome, jobs_, replace(EVENTS, interval_min=7.0))
    with pytest.raises(BrokenRuleError, match="grows too soon"):
        audit_autoscaled(outcome, jobs_, replace(EVENTS, hold_min=20.0))
    with pytest.raises(BrokenRuleError, match="cannot run"):
        audit_autoscaled(outcome, jobs(0, 10, curve=ScalingCurve((1.0, 0.0))), EVENTS)


def test_audit_finds_a_needless_shrink():
    jobs_ = jobs(0, curve=ScalingCurve((1.0, 0.5)))
    shrunk = replace(
        simulate(jobs_, EVENTS),
        completion_min=(35.0,),
        holdings=(JobHolding(0, 2, 0.0, 0.0, 10.0), JobHolding(0, 1, 10.0, 10.0, 35.0)),
    )
    audit_autoscaled(shrunk, jobs_, EVENTS)
    with pytest.raises(BrokenRuleError, match=r"resized too soon, at \[10.0\] min"):
        audit_autoscaled(shrunk, jobs_, replace(EVENTS, hold_min=20.0))
