"""Tests of ``fleet evict``: plans from a job file, or from squeue and a site file."""

import errno
import json
import os
from pathlib import Path

import pytest

from fleet.__main__ import main
from fleet.companions.eviction.slurm_running import SiteCheckpoints, read_site, running_jobs
from fleet.errors import UserError
from launch.errors import InputError
from launch.slurm_jobs import SlurmJob
from scheduler.eviction.running_jobs import FileSystem
from tests.launch.conftest import made_up

__all__ = ["made_up"]
DIRECT = """id,nodes,loss,app_time,sys_time
a,4,900,9,
b,4,200,,3
c,4,500,2,
"""
STORAGE = FileSystem(aggregate_gbps=1, node_gbps=1)
NOW = 1_795_174_000


@pytest.fixture
def jobs(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(DIRECT)
    return str(path)


def evict_json(capsys, *words):
    assert main(["evict", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words):
    """Return the line with which it refuses."""
    assert main(["evict", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("fleet evict: ").strip()


def test_json_has_a_plan_for_each_deadline(jobs, capsys):
    assert evict_json(capsys, "--jobs", jobs, "--nodes", "8", "--deadline", "5") == {
        "deadlines": [
            {
                "deadline": 0,
                "loss": 700,
                "checkpoint_time": 0,
                "nodes": 8,
                "actions": {"b": "kill", "c": "kill"},
            },
            {
                "deadline": 1,
                "loss": 700,
                "checkpoint_time": 0,
                "nodes": 8,
                "actions": {"b": "kill", "c": "kill"},
            },
            {
                "deadline": 2,
                "loss": 200,
                "checkpoint_time": 2,
                "nodes": 8,
                "actions": {"b": "kill", "c": "app"},
            },
            {
                "deadline": 3,
                "loss": 200,
                "checkpoint_time": 2,
                "nodes": 8,
                "actions": {"b": "kill", "c": "app"},
            },
            {
                "deadline": 4,
                "loss": 200,
                "checkpoint_time": 2,
                "nodes": 8,
                "actions": {"b": "kill", "c": "app"},
            },
            {
                "deadline": 5,
                "loss": 0,
                "checkpoint_time": 5,
                "nodes": 8,
                "actions": {"b": "sys", "c": "app"},
            },
        ]
    }


def test_step_sets_the_interval_of_deadlines(jobs, capsys):
    def deadlines(step):
        plans = evict_json(
            capsys, "--jobs", jobs, "--nodes", "8", "--deadline", "2", "--step", step
        )["deadlines"]
        return [(plan["deadline"], plan["loss"]) for plan in plans]

    assert deadlines("2") == [(0, 700), (2, 200)]
    assert deadlines("0.5") == [(0, 700), (0.5, 700), (1, 700), (1.5, 700), (2, 200)]


def test_resolution_rounds_checkpoint_times_up(jobs, capsys):
    plans = evict_json(
        capsys, "--jobs", jobs, "--nodes", "8", "--deadline", "10", "--resolution", "5"
    )["deadlines"]
    assert [(plan["loss"], plan["checkpoint_time"]) for plan in plans][4:6] == [(700, 0), (200, 5)]


def test_file_with_sizes_needs_bandwidths(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_text('[{"id": 7, "nodes": 2, "memory_gb": 30, "since_checkpoint_min": 10}]')
    bandwidths = ("--aggregate-bandwidth", "1", "--node-bandwidth", "1")
    plans = evict_json(capsys, "--jobs", str(path), "--nodes", "1", "--deadline", "1", *bandwidths)[
        "deadlines"
    ]
    assert [plan["actions"] for plan in plans] == [{"7": "kill"}, {"7": "sys"}]
    assert [plan["loss"] for plan in plans] == [1200, 0]


def test_spectrum_has_losses_for_all_numbers_of_nodes(jobs, capsys):
    answer = evict_json(capsys, "--jobs", jobs, "--spectrum", "--deadline", "3", "--step", "3")
    assert answer == {
        "deadlines": [0, 3],
        "spectrum": [
            {"nodes": 0, "losses": [0, 0]},
            {"nodes": 4, "losses": [200, 0]},
            {"nodes": 8, "losses": [700, 200]},
            {"nodes": 12, "losses": [1600, 1100]},
        ],
    }


def test_text_output_has_trade_off_and_actions(jobs, capsys):
    assert main(["evict", "--jobs", jobs, "--nodes", "8", "--deadline", "5"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "3 running jobs on 12 nodes; nodes to free: at least 8".split()
    assert ["2", "0.1", "0.1", "2", "8", "1", "1", "█████████"] in lines
    assert ["b", "4", "K", "K", "K", "K", "K", "s"] in lines
    assert ["c", "4", "K", "K", "a", "a", "a", "a"] in lines
    assert "1 job not listed, since no plan stops them" in " ".join(lines[-1])


def test_text_output_of_many_deadlines_shows_changes(jobs, capsys):
    assert main(["evict", "--jobs", jobs, "--nodes", "8", "--deadline", "5", "--step", "0.01"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["job", "nodes", "0", "2", "5"] in lines


def test_spectrum_is_printed_as_a_table(jobs, capsys):
    assert main(["evict", "--jobs", jobs, "--spectrum", "--deadline", "3"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["12", "0.4", "0.4", "0.3", "0.3"] in lines


def test_plot_draws_the_trade_off(jobs, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    png = tmp_path / "trade.png"
    evict_json(capsys, "--jobs", jobs, "--nodes", "8", "--deadline", "5", "--plot", str(png))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert os.strerror(errno.ENOENT) in refused(
        capsys,
        "--jobs",
        jobs,
        "--nodes",
        "8",
        "--deadline",
        "5",
        "--plot",
        str(tmp_path / "none/trade.png"),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nodes 13 --deadline 1", "jobs.csv: 13 nodes cannot be freed: 3 jobs in all, on 12"),
        ("--nodes 2.5 --deadline 1", "--nodes: '2.5' should be a whole number from 0"),
        ("--nodes 1 --deadline inf", "--deadline: 'inf' should be a number"),
        ("--nodes 1 --deadline 1 --step 0", "the step between deadlines is 0"),
        (
            "--nodes 1 --deadline 1 --node-bandwidth 1",
            "--aggregate-bandwidth and --node-bandwidth go together",
        ),
        ("--nodes 1 --deadline 1 --site site.json", "--site and --partition need --slurm"),
        ("--spectrum --deadline 1 --plot x.png", "--plot draws the trade-off for --nodes"),
    ],
)
def test_evict_names_invalid_options_in_one_line(jobs, capsys, words, message):
    assert message in refused(capsys, "--jobs", jobs, *words.split())


def test_mistake_in_the_job_file_names_its_line(jobs, capsys):
    Path(jobs).write_text(DIRECT + "a,1,1,,\n")
    assert "jobs.csv:5: job a appears twice" in refused(
        capsys, "--jobs", jobs, "--nodes", "1", "--deadline", "1"
    )


# ---------------------------------------------------------------- Slurm


def test_slurm_jobs_use_their_comments_and_the_site_file(made_up, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.time", lambda: NOW)
    made_up.set(
        {
            "1": {"elapsed": "0:10", "comment": "fleet:interval_min=60,critical_gb=12.5"},
            "3_0": {"elapsed": "0:10"},
            "9": {"state": "PENDING"},
            "2": {
                "elapsed": "0:10",
                "nodes": 2,
                "comment": f"fleet:last_checkpoint={NOW - 2},memory_gb=0.5 asked by me",
            },
        }
    )
    site = tmp_path / "site.json"
    site.write_text(json.dumps({"default": {"memory_gb": 6}, "jobs": {"3": {"app_time": 0.5}}}))
    plans = evict_json(
        capsys,
        "--slurm",
        "--site",
        str(site),
        "--nodes",
        "3",
        "--deadline",
        "1",
        "--aggregate-bandwidth",
        "1",
        "--node-bandwidth",
        "1",
    )["deadlines"]
    assert [(plan["loss"], plan["checkpoint_time"], plan["actions"]) for plan in plans] == [
        (14, 0, {"1": "kill", "2": "kill"}),
        (0, 0.2, {"1": "sys", "2": "sys"}),
    ]


def test_evict_without_slurm_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(capsys, "--slurm", "--nodes", "1", "--deadline", "1").startswith(
        "squeue is not on the PATH"
    )


def slurm(checkpoint=(), elapsed_s=5400, **fields):
    return SlurmJob(
        **{
            "id": "7",
            "nodes": 2,
            "elapsed_s": elapsed_s,
            "partition": "long",
            "name": "md",
            "checkpoint": dict(checkpoint),
            **fields,
        }
    )


def join(job, site=None, storage=STORAGE, **options):
    return running_jobs([job], site or SiteCheckpoints(), storage, NOW, **options)[0]


@pytest.mark.parametrize(
    ("message", "more", "expected"),
    [
        (
            {},
            {"storage": None},
            {"loss": 2 * 5400, "app_time": None, "sys_time": None},
        ),  # it can only be killed
        (
            {"interval_min": 60, "critical_gb": 3},
            {},
            {"loss": 2 * 1800, "app_time": 30.1},
        ),  # counted from the start
        ({"last_checkpoint": NOW - 600}, {}, {"loss": 2 * 600}),
        ({"last_checkpoint": NOW + 30}, {}, {"loss": 0}),  # clocks may differ a little
        # Given times override times that follow from sizes.
        ({"memory_gb": 60, "sys_time": 0.25}, {"resolution": 0.5}, {"sys_time": 0.5}),
    ],
)
def test_running_jobs_costs_follow_from_settings(message, more, expected):
    result = join(slurm(message), **more)
    assert {name: getattr(result, name) for name in expected} == expected
    assert (result.id, result.nodes) == ("7", 2)


def test_checkpoint_before_a_requeue_counts_from_the_new_start():
    assert join(slurm({"last_checkpoint": NOW - 99_999}, elapsed_s=60)).loss == 2 * 60


def test_running_jobs_refuses_checkpoints_in_the_future():
    with pytest.raises(UserError, match="job 7: its last_checkpoint lies 90 s in the future"):
        join(slurm(), SiteCheckpoints({"last_checkpoint": NOW + 90}))


def test_comment_of_a_job_overrides_the_site_file():
    site = SiteCheckpoints(
        {"app_time": 1}, {"long": {"app_time": 2}}, {"md": {"app_time": 3}}, {"7": {"app_time": 4}}
    )
    assert join(slurm({"app_time": 5}), site).app_time == 5
    assert join(slurm(), site).app_time == 4
    assert join(slurm(id="8"), site).app_time == 3
    assert join(slurm(id="8", name="x"), site).app_time == 2
    assert join(slurm(id="8", name="x", partition="x"), site).app_time == 1
    assert join(slurm(id="7_3"), site).app_time == 4


@pytest.mark.parametrize(
    ("job", "storage", "message"),
    [
        (slurm({"memry_gb": 3}), STORAGE, "job 7: 'memry_gb' is unknown; choose from memory_gb,"),
        (
            slurm({"memory_gb": 3}),
            None,
            "job 7: its checkpoints have sizes, so set --aggregate-bandwidth",
        ),
        (slurm({"interval_min": -3}), STORAGE, "job 7: interval_min is -3"),
        (
            slurm({"sys_time": float("nan")}),
            STORAGE,
            "job 7: sys_time is nan; it must be a finite number",
        ),
        (
            slurm({"sys_time": float("inf")}),
            STORAGE,
            "job 7: sys_time is inf; it must be a finite number",
        ),
        (slurm({"sys_time": -1}), STORAGE, "job 7: sys_time is -1"),
    ],
)
def test_invalid_comment_is_ignored_with_a_warning(job, storage, message):
    warned = []
    assert join(job, storage=storage, warn=warned.append) == join(slurm(), storage=storage)
    assert [message in text and text.endswith("; its comment is ignored") for text in warned] == [
        True
    ]
    with pytest.raises((UserError, InputError), match=message):  # but the operator gets an error
        join(slurm(), SiteCheckpoints(jobs={"7": job.checkpoint}), storage=storage)


def test_other_users_comments_do_not_stop_the_plan(made_up, capsys):
    made_up.set({"1": {"nodes": 2}, "2": {"nodes": 2, "elapsed": "INVALID", "name": "a\tb\tc\nd"}})
    assert main(["evict", "--slurm", "--nodes", "1", "--deadline", "0", "--json"]) == 0
    printed = capsys.readouterr()
    assert [plan["actions"] for plan in json.loads(printed.out)["deadlines"]] == [{"1": "kill"}]
    assert printed.err == (
        "fleet evict: job 2: squeue does not report its elapsed time; it is left out of the plan\n"
    )


def test_any_comment_leaves_operators_a_plan(made_up, capsys):
    made_up.set(
        {
            "7": {"nodes": 2, "comment": "fleet: night run"},
            "8": {"nodes": 2, "elapsed": "30:00", "comment": "fleet:last_checkpoint=9e9"},
            "9": {"nodes": 2, "elapsed": "10:00", "comment": "fleet:app_time=1"},
        }
    )
    status = main(["evict", "--slurm", "--nodes", "4", "--deadline", "1", "--json"])
    out, error = capsys.readouterr()
    assert (status, json.loads(out)["deadlines"][1]["actions"]) == (0, {"8": "kill", "9": "app"})
    assert [line.split(":")[0] for line in error.splitlines()] == ["fleet evict"] * 2
    assert "the comment of job 7 says 'fleet:'" in error
    assert "job 8: its last_checkpoint lies" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "site.json: it must be an object"),
        (
            '{"users": {}}',
            "site.json: 'users' is unknown; choose from default, partitions, names, jobs",
        ),
        (
            '{"default": {"memory_gb": "much"}}',
            "site.json: default: memory_gb is 'much'; it must be a finite number",
        ),
        ('{"names": {"md": {"memry": 1}}}', "site.json: names: md: 'memry' is unknown"),
        ('{"jobs": {"1": 3}}', "site.json: jobs: 1: it must be an object"),
        ("{,}", "site.json:1: not JSON"),
    ],
)
def test_mistake_in_the_site_file_names_its_location(tmp_path, text, message):
    path = tmp_path / "site.json"
    path.write_text(text)
    with pytest.raises((UserError, InputError), match=message):
        read_site(path)


# ---------------------------------------------------------------- the simulation


def test_simulated_on_demand_job_starts_when_planned(capsys):
    words = [
        "--running",
        "6",
        "--machine",
        "60",
        "--nodes",
        "30",
        "--deadline",
        "10",
        "--step",
        "5",
        "--draws",
        "3",
    ]
    assert main(["simulate", "eviction", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["policy"], [row["deadline"] for row in answer["deadlines"]]) == (
        "optimal",
        [0, 5, 10],
    )
    for row in answer["deadlines"]:
        assert row["start_min"] <= row["planned_min"] + 1e-9 <= row["deadline"] + 1e-9
    assert main(["simulate", "eviction", *words, "--policy", "greedy", "--json"]) == 0
    greedy = json.loads(capsys.readouterr().out)["deadlines"]
    assert sum(row["lost_node_s"] for row in greedy) > sum(
        row["lost_node_s"] for row in answer["deadlines"]
    )
    assert main(["simulate", "eviction", *words]) == 0
    assert capsys.readouterr().out.startswith("6 jobs on 60 nodes; an on-demand job needs 30")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--running 61", "60 nodes cannot be shared by 61 jobs"),
        ("--draws 0", "--draws: '0' should be a whole number from 1 to 10000"),
        ("--length nan", "--length: 'nan' should be a number"),
        ("--seed -1", "--seed: '-1' should be a whole number from 0"),
        ("--nodes 61", "61 nodes cannot be freed"),
        ("--step 0", "--step: '0' should be a whole number from 1"),
    ],
)
def test_impossible_machine_is_refused_in_one_line(capsys, words, message):
    ask = [
        "simulate",
        "eviction",
        "--machine",
        "60",
        "--running",
        "6",
        "--nodes",
        "30",
        "--deadline",
        "5",
    ]
    assert main([*ask, *words.split()]) == 2
    assert message in capsys.readouterr().err
