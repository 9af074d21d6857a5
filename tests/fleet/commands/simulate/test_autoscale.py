"""Tests of ``fleet simulate autoscale``."""

import errno
import json
import os
from functools import partial

import pytest

JOB = {"arrival_min": 0, "length_min": 30, "scaling": [1, 1.5]}
JOBS = {"gpus": 2, "jobs": [JOB, {**JOB, "arrival_min": 10}, {**JOB, "arrival_min": 12}]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(JOBS))
    return path


@pytest.fixture
def simulate(fleet):
    return partial(fleet, "simulate", "autoscale")


def test_json_has_the_agreed_keys_and_values(simulate, file):
    status, result, _ = simulate("--jobs", file, "--interval", 0, "--drop", "--json")
    assert status == 0
    assert result == {
        "sjs_efficiency": pytest.approx(60 / 70),
        "drop_ratio": pytest.approx(1 / 3),
        "mean_completion_min": pytest.approx(25.0),
        "completed": 2,
        "rescales": 2,
        "decisions": {"greedy": 5},
        "end_min": pytest.approx(35.0),
        "completion_min": pytest.approx([25.0, 25.0, None]),
    }


def test_default_interval_is_ten_minutes(simulate, file):
    _, result, _ = simulate("--jobs", file, "--json")
    assert result["completion_min"] == pytest.approx([40.0, 30.0, 40.0 + 30.0 / 1.5 - 12.0])


def test_gpus_on_the_command_line_override_the_file(simulate, file):
    _, result, _ = simulate("--jobs", file, "--gpus", 1, "--interval", 0, "--json")
    assert result["completion_min"] == pytest.approx([30.0, 50.0, 78.0])


def test_minutes_limit_the_simulation_of_a_file(simulate, file):
    _, result, _ = simulate("--jobs", file, "--minutes", 26, "--interval", 0, "--json")
    assert result["completed"] == 1


def test_rescale_cost_delays_jobs(simulate, file):
    _, result, _ = simulate(
        "--jobs",
        file,
        "--interval",
        0,
        "--rescale-cost-min",
        2,
        "--hold-min",
        0,
        "--drop",
        "--json",
    )
    assert result["completion_min"][:2] == pytest.approx([27.0, 19.0 + 13.0 / 1.5])


def test_mean_completion_is_null_without_completed_jobs(simulate, file):
    _, result, _ = simulate("--jobs", file, "--minutes", 5, "--json")
    assert result == {
        "sjs_efficiency": None,
        "drop_ratio": 0.0,
        "mean_completion_min": None,
        "completed": 0,
        "rescales": 0,
        "decisions": {},
        "end_min": 5.0,
        "completion_min": [None] * 3,
    }


def test_text_output_has_tables_and_the_method(simulate, file):
    status, out, _ = simulate("--jobs", file)
    assert status == 0
    assert "completed (of 3)" in out
    assert "Jobs completed over time" in out
    assert "by greedy" in out


def test_elastic_jobs_beat_the_baseline_on_the_same_arrivals(simulate):
    options = (
        "--jobs",
        "generate",
        "--gpus",
        40,
        "--minutes",
        240,
        "--interval",
        0,
        "--drop",
        "--json",
    )
    elastic, fixed = (simulate(*options, "--policy", policy)[1] for policy in ("elastic", "fixed"))
    assert len(elastic["completion_min"]) == len(fixed["completion_min"])
    assert elastic["drop_ratio"] < 0.5 * fixed["drop_ratio"]
    assert elastic["sjs_efficiency"] > 1.3 * fixed["sjs_efficiency"]


def test_save_jobs_writes_a_readable_file(simulate, tmp_path):
    saved = tmp_path / "saved.json"
    _, first, _ = simulate(
        "--jobs", "generate", "--gpus", 20, "--minutes", 60, "--save-jobs", saved, "--json"
    )
    assert simulate("--jobs", saved, "--json")[1] == first


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(simulate, file, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    assert simulate("--jobs", file, "--plot", tmp_path / f"run.{suffix}")[0] == 0
    assert (tmp_path / f"run.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--gpus", "0"], "--gpus: '0' should be a whole number from 1"),
        (["--minutes", "-5"], "--minutes: '-5' should be a number above 0"),
        (["--interval", "nan"], "--interval: 'nan' should be a number"),
        (["--rescale-cost-min", "-1"], "--rescale-cost-min: '-1' should be a number from 0"),
        (["--jobs", "generate", "--load", "0"], "--load: '0' should be a number above 0"),
        (["--jobs", "generate", "--seed", "-1"], "--seed: '-1' should be a whole number from 0"),
        (
            ["--save-jobs", "none/jobs.json"],
            f"--save-jobs: none/jobs.json: {os.strerror(errno.ENOENT)}",
        ),
        (["--plot", "none/run.png"], "--plot: none/run.png: "),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(refused, file, options, complaint):
    assert complaint in refused("simulate", "autoscale", "--jobs", file, *options)


def test_invalid_file_is_refused_with_its_location(refused, file):
    file.write_text(json.dumps({"gpus": 2, "jobs": [{**JOB, "scaling": [1, -1]}]}))
    assert "jobs.json: jobs[0].scaling: scaling factor -1" in refused(
        "simulate", "autoscale", "--jobs", file
    )
