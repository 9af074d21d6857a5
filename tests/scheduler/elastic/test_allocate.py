"""The job scalability analyzer and the optimizer of elastic jobs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import CommTime, Network, StepTime
from scheduler.elastic import allocate as elastic
from scheduler.elastic.allocate import ScalingCurve, allocate
from scheduler.ensemble.rates_file import parse_rates
from tests.examples import examples
from tests.oracles.elastic import dynamic_program, integer_program
from tests.scheduler.contracts import AllocatorContract, Table

STEPS = (StepTime(32, 1.8), StepTime(8, 0.6), StepTime(16, 1.0))
EXCHANGES = [CommTime(100.0, 2, 0.5), CommTime(100.0, 4, 0.9)]


def network(steps=STEPS, params_mb=100.0):
    return Network("net", (), params_mb=params_mb, step_s=steps)


# --- curves drawn at random ---

factor = st.one_of(st.just(0.0), st.integers(1, 6).map(float), st.floats(0.01, 10.0))
any_curve = (
    st.lists(factor, min_size=1, max_size=5)
    .filter(any)
    .map(lambda factors: ScalingCurve(tuple(factors)))
)


@st.composite
def concave_curve(draw, max_gpus=5):
    """Return decreasing gains in sixteenths: sums are exact, and concave curves exactly so."""
    gains = sorted(draw(st.lists(st.integers(-2, 40), min_size=1, max_size=max_gpus)), reverse=True)
    factors = 41 / 16 + np.cumsum([0, *gains[1:]]) / 16
    return ScalingCurve((*(0.0,) * draw(st.integers(0, 2)), *np.maximum(factors, 1 / 16).tolist()))


def problems(curve, jobs, gpus):
    return st.tuples(st.lists(curve, max_size=jobs), st.integers(0, gpus))


# --- the optimizer ---


class ElasticContract(AllocatorContract):
    curves = any_curve | concave_curve()

    def problems(self):
        return problems(self.curves, jobs=4, gpus=9)

    def table(self, problem):
        curves, gpus = problem
        return Table(
            gpus, tuple((-math.inf, *(f or -math.inf for f in curve.factors)) for curve in curves)
        )

    def counts(self, problem):
        allocation = self.allocate(*problem)
        return None if allocation is None else allocation.gpus


class TestAllocate(ElasticContract):
    allocate = staticmethod(allocate)


class TestDynamicProgramme(ElasticContract):
    allocate = staticmethod(dynamic_program)


@settings(max_examples=examples(200), deadline=None)
@given(st.tuples(st.lists(any_curve, max_size=6), st.integers(0, 16)))
def test_dynamic_program_equals_integer_program(problem):
    exact, solved = dynamic_program(*problem), integer_program(*problem)
    assert (exact is None) == (solved is None)
    if exact is not None:
        assert exact.throughput == pytest.approx(solved.throughput, rel=1e-9)
        assert sum(solved.gpus) <= problem[1]


longer_curve = (
    st.lists(factor, min_size=1, max_size=12)
    .filter(any)
    .map(lambda factors: ScalingCurve(tuple(factors)))
)


@settings(max_examples=examples(400), deadline=None)
@given(problems(st.one_of(longer_curve, concave_curve(max_gpus=12)), jobs=20, gpus=120))
def test_allocate_equals_dynamic_program_on_all_curves(problem):
    exact, fast = dynamic_program(*problem), allocate(*problem)
    assert (fast is None) == (exact is None)
    if exact is not None:
        assert fast.throughput == pytest.approx(exact.throughput, rel=1e-9)
        assert sum(fast.gpus) <= problem[1]


def test_allocations_by_hand():
    line, knee, threshold = (
        ScalingCurve((1.0, 2.0, 3.0)),
        ScalingCurve((1.0, 1.5, 1.6)),
        ScalingCurve((0.0, 0.0, 4.0)),
    )
    assert allocate([line, knee], 4).gpus == (3, 1)
    assert allocate([threshold, line, knee], 6).gpus == (3, 2, 1)
    assert allocate([threshold, line, knee], 4) is None


@pytest.mark.parametrize(
    ("curves", "gpus", "method"),
    [
        ([(1.0, 1.9, 2.0), (1.0, 1.5)], 3, "greedy"),
        (
            [(1.0, 1.1, 3.0), (1.0, 1.5)],
            4,
            "greedy",
        ),  # the hull's step from 1 to 3 GPUs fits exactly
        ([(1.0, 1.1, 3.0), (1.0, 1.5)], 3, "greedy + dynamic program"),
    ],
)
def test_allocate_method_chosen_is_stated(curves, gpus, method):
    assert allocate([ScalingCurve(allocation) for allocation in curves], gpus).method == method


@pytest.mark.parametrize("factors", [(1.0, -0.5), (1.0, math.nan), (math.inf,)])
def test_allocate_factor_is_refused_if_impossible(factors):
    with pytest.raises(InputError, match="scaling factor"):
        ScalingCurve(factors)


@pytest.mark.parametrize("factors", [(), (0.0, 0.0)])
def test_allocate_job_that_can_run_nowhere_is_refused(factors):
    with pytest.raises(InputError, match="0 everywhere"):
        ScalingCurve(factors)


# --- the job scalability analyzer ---


@pytest.mark.parametrize(
    ("steps", "batch", "seconds"),
    [
        *(
            (STEPS, batch, seconds)
            for batch, seconds in ((8, 0.6), (12, 0.8), (16, 1.0), (24, 1.4), (32, 1.8))
        ),
        (STEPS, 33, math.inf),  # where the memory ends
        (STEPS, 4, 0.4),  # below the smallest measured batch, the line is extrapolated
        (
            (StepTime(8, 1.0), StepTime(16, 0.5)),
            4,
            1.0,
        ),  # without noise, a smaller batch would be slower
        ((StepTime(8, 0.2), StepTime(16, 1.0)), 4, 0.1),
    ],
)  # or of a line that would reach 0
def test_step_times_are_interpolated(steps, batch, seconds):
    assert elastic.step_seconds(steps, np.array([batch])).tolist() == pytest.approx([seconds])


@pytest.mark.parametrize("steps", [(), (StepTime(8, 1.0),), (StepTime(8, 1.0), StepTime(8, 1.1))])
def test_allocate_needs_more_than_one_batch_size(steps):
    with pytest.raises(InputError, match="two different ones"):
        elastic.step_seconds(steps, np.array([8]))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_allocate_step_time_is_refused_if_impossible(seconds):
    with pytest.raises(InputError, match="seconds must be positive"):
        elastic.step_seconds([StepTime(8, 1.0), StepTime(16, seconds)], np.array([8]))


WIDE = [CommTime(50, 2, 1.0), CommTime(100, 2, 1.5), CommTime(50, 6, 3.0), CommTime(100, 6, 5.5)]
FEW = [CommTime(50, 2, 1.0), CommTime(100, 2, 1.5), CommTime(50, 3, 2.0)]


@pytest.mark.parametrize(
    ("rows", "megabytes", "seconds"),
    [
        (WIDE, 75, [0.0, 1.25, 2.0, 2.75, 3.5, 4.25]),
        (FEW, 25, [0.0, 0.5, 1.0, 1.5]),
        (FEW, 200, [0.0, 2.5]),
        # Beyond the last measured count, no job becomes faster.
        ([CommTime(100, 2, 1.0), CommTime(100, 4, 0.8)], 100, [0.0, 1.0, 0.9, *[0.8] * 5]),
    ],
)
def test_exchange_times_are_interpolated_by_size_and_gpus(rows, megabytes, seconds):
    assert elastic.exchange_seconds(rows, megabytes, len(seconds)).tolist() == pytest.approx(
        seconds
    )


def test_allocate_asks_for_an_unmeasured_exchange():
    with pytest.raises(InputError, match="2 or more GPUs"):
        elastic.exchange_seconds([CommTime(100, 1, 0.0)], 100, 2)
    assert elastic.exchange_seconds([], 100, 1).tolist() == [0.0]


def all_rates(gpus, batches):
    """Return T(b, k) of every global batch in the range, by the formula of section III-B3."""
    exchange = elastic.exchange_seconds(EXCHANGES, 100.0, gpus)
    for k in range(1, gpus + 1):
        samples = np.arange(batches.smallest, batches.largest + 1)
        yield samples, samples / (elastic.step_seconds(STEPS, -(-samples // k)) + exchange[k - 1])


@pytest.mark.parametrize("ends", [(8, 64), (20, 20), (1, 300), (40, 50)])
def test_allocate_best_batch_is_the_best_of_all(ends):
    batches = elastic.BatchRange(*ends)
    curve = elastic.scaling_curve(network(), EXCHANGES, batches, gpus=6)
    reference = min(32, batches.largest)
    reference /= elastic.step_seconds(STEPS, np.array([reference]))[0]
    for k, (samples, rates) in enumerate(all_rates(6, batches)):
        assert curve.factors[k] == pytest.approx(rates.max() / reference)
        if rates.max() > 0:
            assert rates[samples.tolist().index(curve.batches[k])] == pytest.approx(rates.max())


def test_allocate_fixed_batch_is_measured_against_same_reference():
    curve = elastic.scaling_curve(
        network(), EXCHANGES, elastic.BatchRange(16, 64), gpus=4, fixed=48
    )
    reference = 32 / 1.8
    assert curve.factors[0] == 0
    assert curve.factors[1] == pytest.approx(48 / (1.4 + 0.5) / reference)
    assert curve.batches == (0, 48, 48, 48)


def test_allocate_starts_at_the_gpus_of_the_smallest_batch():
    curve = elastic.scaling_curve(network(), EXCHANGES, elastic.BatchRange(65, 100), gpus=4)
    assert curve.min_gpus == 3


def test_allocate_batch_that_fits_nowhere_is_refused():
    with pytest.raises(
        InputError, match="'net': a batch of 200 does not fit on 4 GPUs of 32 samples each"
    ):
        elastic.scaling_curve(network(), EXCHANGES, elastic.BatchRange(200, 300), gpus=4)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (network(steps=()), "'net': step_s"),
        (network(params_mb=None), "'net': params_mb"),
    ],
)
def test_missing_measurements_are_named(measured, message):
    with pytest.raises(InputError, match=message):
        elastic.scaling_curve(measured, EXCHANGES, elastic.BatchRange(8, 64), gpus=2)


@pytest.mark.parametrize("ends", [(0, 8), (9, 8)])
def test_allocate_batch_range_is_refused_if_impossible(ends):
    with pytest.raises(InputError, match="smallest <= largest"):
        elastic.BatchRange(*ends)


def test_allocate_profile_feeds_the_analyzer():
    profile = parse_rates(
        {
            "samples_per_epoch": 1000,
            "gpus_per_node": 2,
            "models": [
                {
                    "name": "a",
                    "rates": [17.0],
                    "params_mb": 100.0,
                    "step_s": [{"batch": 8, "seconds": 0.6}, {"batch": 32, "seconds": 1.8}],
                }
            ],
            "comm_s": [{"params_mb": 100.0, "gpus": 2, "seconds": 0.5}],
        }
    )
    curve = elastic.scaling_curve(
        profile.models[0], profile.comm_s, elastic.BatchRange(8, 64), gpus=2
    )
    assert curve.factors == pytest.approx((1.0, (64 / 2.3) / (32 / 1.8)))
    assert curve.batches == (32, 64)


# --- many jobs ---


@st.composite
def many_jobs(draw):
    """Draw many jobs, some equal, with ties, dips and steps of several GPUs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    jobs, max_gpus = draw(st.integers(1, 60)), draw(st.integers(1, 12))
    step = draw(st.sampled_from([1.0, 0.25, 1e-3]))
    kinds = [
        tuple(
            (
                step
                * np.round(rng.gamma(2, 1, max_gpus).cumsum() / step)
                * (rng.random(max_gpus) > 0.1)
                + step
            ).tolist()
        )
        for _ in range(draw(st.integers(1, jobs)))
    ]
    return [kinds[kind] for kind in rng.integers(0, len(kinds), jobs)], draw(
        st.integers(0, jobs * max_gpus)
    )


@settings(max_examples=400, deadline=None)
@given(many_jobs())
def test_allocate_many_jobs_equals_dynamic_program(problem):
    factors, gpus = problem
    allocation = allocate(list(map(ScalingCurve, factors)), gpus)
    exact = dynamic_program(list(map(ScalingCurve, factors)), gpus)
    if exact is None:
        assert allocation is None
    else:
        assert allocation.throughput == pytest.approx(exact.throughput, rel=1e-12)
        assert sum(allocation.gpus) <= gpus
        assert allocation.throughput == math.fsum(
            allocation[k - 1] for allocation, k in zip(factors, allocation.gpus, strict=True)
        )


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_curves_that_are_known_get_what_new_ones_get(seed):
    """Jobs arrive, leave, return, and share curves."""
    rng = np.random.default_rng(seed)
    cached, jobs = [], []
    for _ in range(12):
        cached += [
            ScalingCurve(tuple(rng.integers(1, 9, rng.integers(1, 6)).tolist()))
            for _ in range(rng.integers(3))
        ]
        jobs = [job for job in jobs if rng.random() < 0.8]
        jobs[len(jobs) // 2 : len(jobs) // 2] = (
            [cached[i] for i in rng.integers(len(cached), size=3)] if cached else []
        )
        gpus = int(rng.integers(0, 4 * len(jobs) + 2))
        assert allocate(jobs, gpus) == allocate([ScalingCurve(job.factors) for job in jobs], gpus)
