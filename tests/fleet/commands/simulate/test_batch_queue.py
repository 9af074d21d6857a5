"""Tests of ``fleet simulate batch-queue``."""

import errno
import os

import pytest

from scheduler.simulation.swf import read_swf

LAW = "--distribution truncnorm --mu 8 --sigma 2 --low 6 --high 16"
KEYS = {
    "requests",
    "convention",
    "speculative",
    "processors",
    "jobs",
    "runs",
    "utilisation",
    "lost",
    "mean_response_h",
    "small_mean_response_h",
    "makespan_h",
    "submissions_per_job",
}


@pytest.fixture
def simulate(fleet):
    def run(words, *more):
        return fleet("simulate", "batch-queue", *words.split(), *more)

    return run


@pytest.fixture
def trace(tmp_path):
    """Write a trace of ten jobs, an hour apart, of 1 to 10 min on 4 of 8 processors."""
    lines = [
        f"{k} {3600 * k} 0 {60 * k} 4 -1 -1 4 1200 -1 1 1 1 1 -1 -1 -1 -1" for k in range(1, 11)
    ]
    path = tmp_path / "trace.swf"
    path.write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    return path


def test_json_has_the_agreed_keys(simulate):
    status, result, err = simulate(
        f"{LAW} --jobs 10 --runs 3 --requests classical --sizes full --json"
    )
    assert (status, err, set(result)) == (0, "", KEYS)
    assert (result["requests"], result["convention"]) == ("classical", "planned")
    assert (result["jobs"], result["runs"]) == (10, 3)
    assert result["submissions_per_job"] == 1.0
    assert result["small_mean_response_h"] is None
    # nine jobs hold the machine for 16 hours each, the last one for its run time
    assert 9 * 16 + 6 <= result["makespan_h"] <= 10 * 16


def test_best_rule_depends_on_the_convention(simulate):
    def utilisation(rule, convention):
        return simulate(
            f"{LAW} --runs 3 --sizes full --requests {rule} --convention {convention} --json"
        )[1]["utilisation"]

    assert utilisation("toptimal", "planned") > utilisation("classical", "planned")
    assert utilisation("toptimal", "work-conserving") < utilisation("classical", "work-conserving")


def test_results_depend_on_the_seed(simulate):
    first, again, second = (
        simulate(f"{LAW} --jobs 9 --runs 1 --json --seed {seed}")[1] for seed in (1, 1, 2)
    )
    assert first == again != second


def test_stream_of_small_jobs_fills_gaps(simulate):
    words = f"{LAW} --jobs 4 --runs 1 --requests atoptimal --processors 10 --json"
    without, with_stream = simulate(words)[1], simulate(f"{words} --stream 0.2")[1]
    assert with_stream["utilisation"] > without["utilisation"]
    assert with_stream["small_mean_response_h"] > 0


def test_speculative_backfilling(simulate):
    words = f"{LAW} --runs 2 --requests classical --sizes full --convention planned-backfill --json"
    assert simulate(f"{words} --speculative")[1]["utilisation"] > simulate(words)[1]["utilisation"]


def test_trace_is_simulated_on_the_machine_in_its_header(simulate, trace):
    status, result, _ = simulate("--requests user --json", trace)
    assert (status, result["processors"], result["jobs"], result["runs"]) == (0, 8, 10, 1)
    assert result["mean_response_h"] == pytest.approx(5.5 / 60)  # no job waits
    assert result["makespan_h"] == pytest.approx(9 + 10 / 60)


def test_write_trace_writes_the_schedule(simulate, trace, tmp_path):
    assert simulate("--requests classical --write-trace", tmp_path / "out.swf.gz", trace)[0] == 0
    written = read_swf(tmp_path / "out.swf.gz")
    # from the sixth job on, each is longer than all before it: its first request fails
    assert [job.status for job in written.jobs].count(0) == 5
    assert sum(job.run_s for job in written.jobs if job.status == 1) == sum(
        60 * k for k in range(1, 11)
    )


def test_fit_fits_laws_in_hours(simulate, trace):
    _, result, _ = simulate("--fit --json", trace)
    assert result["jobs"] == 10
    assert {law["distribution"] for law in result["laws"]} == {
        "truncnorm",
        "beta",
        "exponential",
        "pareto",
        "lognormal",
        "uniform",
    }
    best = result["laws"][0]
    assert best["low"] < 1 / 60 < 10 / 60 < best["high"] < 0.2
    assert best["ks_distance"] < 0.2


def test_text_output_has_tables(simulate, trace):
    assert "utilization" in simulate(f"{LAW} --jobs 5 --runs 1 --stream 0.1 --processors 5")[1]
    assert "KS distance" in simulate("--fit", trace)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give either a trace or a --distribution"),
        (f"{LAW} trace.swf", "give either a trace or a --distribution"),
        (f"{LAW} --fit", "--fit needs a trace"),
        (f"{LAW} --runs 0", "--runs: '0' should be a whole number from 1 to 10000"),
        (f"{LAW} --jobs 0", "--jobs: '0' should be a whole number from 1"),
        (f"{LAW} --processors -3", "--processors: '-3' should be a whole number from 1"),
        (f"{LAW} --stream 1", "work rate of the stream"),
        (f"{LAW} --requests user", "only a trace knows what users asked for"),
        (f"{LAW} --requests atoptimal --backfill-rate 1", "at least 0 and below 1"),
        ("nowhere.swf", f"nowhere.swf: {os.strerror(errno.ENOENT)}"),
    ],
)
def test_invalid_arguments_are_one_line_and_status_2(refused, words, message):
    assert message in refused("simulate", "batch-queue", *words.split())


def test_options_that_a_trace_excludes_are_refused(simulate, trace):
    assert "--stream needs --distribution" in simulate("--stream 0.2", trace)[2]
    assert "job 0 needs 4 processors, but the machine has 2" in simulate("--processors 2", trace)[2]
    trace.write_text(trace.read_text().replace("; MaxProcs: 8\n", ""))
    assert "has no MaxProcs" in simulate("", trace)[2]
    trace.write_text("1 2 3\n")
    assert "trace.swf:1: 3 columns, but a job has 18" in simulate("", trace)[2]
