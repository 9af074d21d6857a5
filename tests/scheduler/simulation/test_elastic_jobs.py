"""Jobs for the autoscaler's simulation: files and random draws."""

import json

import numpy as np
import pytest

from launch.errors import InputError
from scheduler.elastic.allocate import scaling_curve
from scheduler.simulation.elastic_jobs import generate, job_record, read_jobs, workload

JOB = {"arrival_min": 0, "length_min": 30, "scaling": [1, 1.5]}


@pytest.fixture
def file(write):
    return lambda content: write(
        "jobs.json", content if isinstance(content, str) else json.dumps(content)
    )


def test_elastic_jobs_file_of_jobs_is_read(file):
    jobs_ = read_jobs(
        file({"gpus": 2, "jobs": [JOB, {**JOB, "arrival_min": 2.5, "scaling": [0, 1]}]})
    )
    assert jobs_.gpus == 2
    assert [(job.arrival_min, job.length_min, job.curve.factors) for job in jobs_.jobs] == [
        (0.0, 30.0, (1.0, 1.5)),
        (2.5, 30.0, (0.0, 1.0)),
    ]


def test_files_are_read_back_as_written(file):
    jobs = generate(10, 60, "high", "fixed", seed=1)
    jobs_ = read_jobs(file(job_record(10, jobs)))
    assert job_record(jobs_.gpus, jobs_.jobs) == job_record(10, jobs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"jobs.json:1: not JSON"),
        ("[]", "must be an object with gpus, jobs"),
        ({"gpus": 2}, "jobs is missing"),
        ({"gpus": 0, "jobs": [JOB]}, "gpus is 0"),
        ({"gpus": True, "jobs": [JOB]}, "gpus is True"),
        ({"gpus": 2, "jobs": []}, "must be a list of at least one job"),
        ({"gpus": 2, "jobs": [JOB], "nodes": 1}, "nodes is an unknown key"),
        ({"gpus": 2, "jobs": [JOB, {**JOB, "length": 3}]}, r"jobs\[1\]: length is an unknown key"),
        ({"gpus": 2, "jobs": [{**JOB, "arrival_min": -1}]}, r"jobs\[0\].arrival_min is -1"),
        ({"gpus": 2, "jobs": [{**JOB, "arrival_min": "soon"}]}, r"jobs\[0\].arrival_min is 'soon'"),
        ({"gpus": 2, "jobs": [{**JOB, "length_min": 0}]}, r"jobs\[0\].length_min is 0"),
        (
            {"gpus": 2, "jobs": [{**JOB, "scaling": 1.5}]},
            r"jobs\[0\].scaling is 1.5; it must be a list",
        ),
        (
            {"gpus": 2, "jobs": [{**JOB, "scaling": [1, -1]}]},
            r"jobs\[0\].scaling: scaling factor -1",
        ),
        (
            {"gpus": 2, "jobs": [{**JOB, "scaling": [float("nan")]}]},
            r"jobs\[0\].scaling\[0\] is nan",
        ),
        ({"gpus": 2, "jobs": [{**JOB, "arrival_min": 1e300}]}, r"jobs\[0\].arrival_min is 1e\+300"),
        (
            {"gpus": 2, "jobs": [{**JOB, "length_min": 10**400}]},
            r"jobs\[0\].length_min is 1000.*; it must be a number",
        ),
        (
            {"gpus": 2, "jobs": [{**JOB, "scaling": [1e-300]}]},
            r"jobs\[0\]: 30 min on a scaling factor of 1e-300",
        ),
        ({"gpus": 2, "jobs": [{**JOB, "scaling": []}]}, r"jobs\[0\].scaling: .* 0 everywhere"),
    ],
)
def test_bad_files_are_refused_in_one_line_that_names_the_place(file, content, message):
    with pytest.raises(InputError, match=message) as raised:
        read_jobs(file(content))
    assert "\n" not in str(raised.value)


def test_elastic_jobs_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="none.json: No such file"):
        read_jobs(tmp_path / "none.json")


# --- random draws ---


def test_equal_seeds_give_equal_jobs_and_others_differ():
    def draw(seed):
        return job_record(40, generate(40, 240, "bursty", "fixed", seed))

    assert draw(3) == draw(3) != draw(4)


def test_both_policies_get_the_same_arrivals():
    elastic, fixed = (
        generate(40, 240, "bursty", policy, seed=1) for policy in ("elastic", "fixed")
    )
    assert [(a.arrival_min, a.length_min) for a in elastic] == [
        (b.arrival_min, b.length_min) for b in fixed
    ]


def test_busy_times_bring_full_load_and_quiet_ones_a_quarter():
    """The counts are Poisson and so large that five standard deviations are 5 %."""

    def work(pattern):
        arrived = generate(2000, 480, pattern, "elastic", seed=0)
        return [
            sum(job.length_min for job in arrived if start <= job.arrival_min < start + 120)
            / 120
            / 2000
            for start in range(0, 480, 120)
        ]

    assert work("high") == pytest.approx([1.0] * 4, rel=0.05)
    assert work("low") == pytest.approx([0.25] * 4, rel=0.1)
    assert work("bursty") == pytest.approx([1.0, 0.25] * 2, rel=0.1)


def test_jobs_arrive_in_order_and_within_the_minutes():
    arrivals = [job.arrival_min for job in generate(40, 200, "bursty", "elastic", seed=2)]
    assert arrivals == sorted(arrivals)
    assert 0 <= arrivals[0] < arrivals[-1] < 200


def test_elastic_jobs_fixed_batch_needs_enough_gpus():
    minimums = {job.curve.min_gpus for job in generate(400, 60, "high", "fixed", seed=0)}
    assert minimums == set(range(1, 9))
    assert {job.curve.min_gpus for job in generate(400, 60, "high", "elastic", seed=0)} == {1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"minutes": -1.0}, "minutes is -1"),
        ({"load": float("nan")}, "load is nan"),
        ({"load": 1e9}, "make about 9e.09 jobs"),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        generate(
            **{
                "gpus": 4,
                "minutes": 60.0,
                "pattern": "low",
                "policy": "elastic",
                "seed": 0,
                **wrong,
            }
        )


# --- what is assumed ---


def test_elastic_jobs_first_category_scales_as_paper_measured():
    """Scaling factors of category 1 on two GPUs, by batch per GPU ([ELASTIC] Table II)."""
    kind, *_ = workload().categories
    for per_gpu, measured in [(8, 0.86), (11, 1.06), (16, 1.3), (22, 1.45), (32, 1.66)]:
        curve = scaling_curve(kind.network, workload().comm_s, kind.batches, 2, fixed=2 * per_gpu)
        assert curve.factors[1] == pytest.approx(measured, abs=0.005)


def test_communication_bound_jobs_scale_worst():
    compute, communication, balanced, rigid = (
        np.array(scaling_curve(kind.network, workload().comm_s, kind.batches, 10).factors)
        for kind in workload().categories
    )
    assert (compute >= balanced).all()
    assert (balanced >= communication).all()
    assert communication.max() == rigid.max() == 1.0


@pytest.mark.parametrize("category", [1, 2, 3, 4])
def test_elastic_jobs_one_category_can_be_drawn_alone(category):
    jobs = generate(400, 60, "high", "elastic", seed=0, category=category)
    assert {job.length_min for job in jobs} == {workload().categories[category - 1].length_min}
    assert sum(job.length_min for job in jobs) == pytest.approx(400 * 60, rel=0.2)


def test_elastic_jobs_have_smallest_and_largest_baselines():
    ends = {
        policy: generate(40, 60, "high", policy, seed=0, category=1)[0].curve
        for policy in ("smallest", "largest")
    }
    assert {batch for batch in ends["smallest"].batches if batch} == {32}
    assert {batch for batch in ends["largest"].batches if batch} == {256}
    assert ends["largest"].min_gpus > ends["smallest"].min_gpus == 1


def test_elastic_jobs_there_are_four_categories():
    with pytest.raises(InputError, match="category is 5; it must be a whole number from 1 to 4"):
        generate(40, 60, "high", "elastic", seed=0, category=5)
