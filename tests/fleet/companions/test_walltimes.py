"""Tests of ``fleet submit --walltime auto``."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.__main__ import main
from fleet.companions.batch_jobs.options import JobRequest
from fleet.companions.chains.chain import ChainTimes, chain_times
from fleet.companions.walltimes import requests as walltimes
from fleet.companions.walltimes.requests import _simulated, draw_epochs
from fleet.spec import load
from fleet.spec.train import Stopping
from fleet.storage.paths import RunPaths
from launch.sites import SITES
from launch.systems import SYSTEMS
from tests.launch.conftest import made_up

__all__ = ["made_up"]
SPEC = """\
name: photos
output: run
data: {{source: "builtin:noise", options: {{samples: 1000, classes: 3, size: 8}}, transforms: []}}
models: {models}
train: {{stopping: {{max_epochs: 60, patience: 5}}}}
resources: {{engine: numpy{resources}}}
{more}"""
MODELS = "[{family: softmax, name: one}, {family: softmax, name: two}]"
RATES = {
    "samples_per_epoch": 1000,
    "gpus_per_node": 1,
    "models": [{"name": "one", "rates": [2.0]}, {"name": "two", "rates": [3.0]}],
}
OFF = {"sacct": "Slurm accounting storage is disabled"}


def launch(start, seconds, status):
    """Return the two lines of a launch, given the minutes and seconds of its start and end."""
    at = [
        f"2026-11-22T{moment // 3600:02d}:{moment // 60 % 60:02d}:{moment % 60:02d}+00:00"
        for moment in (start, start + seconds)
    ]
    stopped = {
        "event": "stopped",
        "job": "17",
        "status": status,
        "warned": False,
        "why": "",
        "next": None,
    }
    return [{"time": at[0], "event": "begun", "job": "17"}, {"time": at[1], **stopped}]


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys, made_up):
    """Return a function that submits: status, output, errors without the command's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made_up.set(says=OFF)

    def call(*words, more="", models=MODELS, resources="", launches=(), system="slurm"):
        Path("spec.yaml").write_text(SPEC.format(more=more, models=models, resources=resources))
        if launches:
            Path("run/jobs").mkdir(parents=True)
            RunPaths(Path("run")).marker.touch()
            Path("run/jobs/stops.jsonl").write_text(
                "".join(f"{json.dumps(line)}\n" for line in launches)
            )
        status = main(["submit", "spec.yaml", "--system", system, "--walltime", "auto", *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.replace("fleet submit: ", "")

    return call


FIVE = [
    line
    for number, seconds in enumerate((600, 620, 640, 660, 7200))
    for line in launch(8000 * number, seconds, 0)
]


def test_requests_follow_from_finished_chains(submit):
    status, script, message = submit("--chain", "--dry-run", launches=FIVE)
    assert status == 0
    assert message == (
        "requests 14 min 0 s, then 1 h 52 min if that is not enough\n"
        "based on 5 finished chains in run (10 min 0 s to 2 h 0 min)\n"
        "expected: 0.607 node-hours requested, 0.567 used, 1.20 jobs; with one request of 2 h 3 "
        "min: 2.05 requested, 0.557 used\nif the queue starts any job that fits when nodes are "
        "idle (work-conserving), only the used time matters, and shorter requests can be slower; "
        "then use --walltime 123min\n"
    )
    assert "#SBATCH --time=00:14:00" in script
    assert "--request=840 --request=6720" in script


@pytest.mark.parametrize(
    ("system", "directive"), [("lsf", "#BSUB -W 00:14"), ("pbs", "#PBS -l walltime=00:14:00")]
)
def test_requests_in_scripts_of_other_systems(submit, system, directive):
    status, script, message = submit("--dry-run", launches=FIVE, system=system)
    assert status == 0
    assert message.startswith(
        "requests 14 min 0 s, then 1 h 52 min if that is not enough (repeat the command"
    )
    assert directive in script.splitlines()


def test_repeated_command_makes_the_next_request(submit, made_up):
    status, out, message = submit(launches=FIVE + launch(50_000, 720, 75))
    assert (status, out) == (0, "4711\n")
    assert "12 min 0 s are done" in message
    assert message.startswith(
        "requests 1 h 51 min\n"
    )  # two hours, minus the completed work, plus the overhead of a job
    assert made_up.acts == ["sbatch --parsable " + str(Path("run/jobs/job.sh").absolute())]


@pytest.mark.parametrize(("warn", "minutes"), [("1s", 13), ("1min", 13), ("3min", 15)])
def test_requests_reserve_a_minute_for_saving(submit, warn, minutes):
    five = [line for number in range(5) for line in launch(8000 * number, 605, 0)]
    _, _, message = submit("--dry-run", f"--warn={warn}", launches=five)
    assert message.startswith(
        f"requests {minutes} min 0 s\n"
    )  # a minute to start, 605 s, and the reserve


def test_requests_follow_from_accounting(submit, made_up):
    made_up.set(past=[f"{job}|COMPLETED|{600 + job}" for job in range(5)])
    status, out, message = submit("--dry-run", "--json")
    assert status == 0
    assert (
        "based on 5 completed jobs named photos in the records of sacct (10 min 0 s to 10 min 4 s)"
        in message
    )
    assert json.loads(out)["walltime"]["requests_s"] == [840.0]


def test_first_run_is_simulated_with_known_rates(submit, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    status, _, message = submit(
        "--chain", "--dry-run", "--ranks-per-node", "2", more="schedule: {rates: rates.json}"
    )
    assert status == 0
    assert "based on 60 simulations on 1 device, rates: " in message
    assert "with a random last improvement of each network" in message


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("resources", "site", "devices"),
    [
        ("", "perlmutter", "4 devices"),
        (", gpus_per_node: 2", "perlmutter", "2 devices"),
        (", preprocessors: 3", "generic", "1 device"),
        (
            ", gpus_per_node: 1, networks_per_gpu: 2",
            "generic",
            "1 device with up to 2 networks on each",
        ),
    ],
)
def test_simulation_uses_the_gpus_of_the_job(submit, tmp_path, resources, site, devices):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    status, _, message = submit(
        "--dry-run", "--site", site, more="schedule: {rates: rates.json}", resources=resources
    )
    assert status == 0
    assert f" simulations on {devices}, rates: " in message


def test_unknown_duration_lists_what_was_tried(submit):
    status, out, message = submit("--dry-run")
    assert (status, out) == (2, "")
    assert message == (
        "--walltime auto: the duration of photos is unknown: no chain in run has finished, sacct "
        "failed: Slurm accounting storage is disabled, and no rates are known (from "
        "schedule.rates, or an earlier run on this machine); give a walltime for the first job, "
        "such as 2h\n"
    )


def test_search_is_not_simulated(submit, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    models = (
        "[{family: softmax, name: one, space: {train.batch.size: [8, 16]}, "
        "search: {sampler: random, max_trials: 4}}]"
    )
    status, _, message = submit("--dry-run", more="schedule: {rates: rates.json}", models=models)
    assert status == 2
    assert (
        "and its networks are proposed during the run, so it cannot be simulated; give a walltime"
        in message
    )


def test_few_past_runs_are_doubled(submit):
    status, _, message = submit("--dry-run", launches=launch(0, 600, 3))
    assert status == 0
    assert "based on 1 past run, too few to learn from: twice the longest (10 min 0 s)\n" in message
    assert message.startswith("requests 23 min 0 s\n")


def test_run_beyond_all_known_times_requests_as_much_again(submit):
    _, _, message = submit("--dry-run", launches=FIVE + launch(50_000, 8000, 75))
    assert (
        "2 h 13 min are done, which is longer than all of these: requesting as much again"
        in message
    )


@pytest.mark.parametrize(
    ("words", "system", "message"),
    [
        (["--chain"], "pbs", "--walltime auto and --chain do not work together on pbs"),
        ([], "local", "--walltime auto: local has no queue"),
    ],
)
def test_walltime_auto_is_refused_where_it_cannot_work(submit, words, system, message):
    status, _, refusal = submit(*words, "--dry-run", system=system)
    assert status == 2
    assert message in refusal


# ---- known times ----


def test_chain_times_add_up_without_launches_of_unknown_end(tmp_path):
    launches = ((0, 100, 75), (200, 50, 0), (500, 70, 1), (600, 999, None), (700, 5, 75))
    lines = [line for finished in launches for line in launch(*finished)]
    path = tmp_path / "stops.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "half a li")
    assert chain_times(path) == ChainTimes((150.0,), 75.0)
    assert chain_times(tmp_path / "no") == ChainTimes((), 0.0)


@pytest.mark.parametrize(
    ("rule", "minimum", "maximum"),
    [
        (Stopping(max_epochs=30), 30, 30),
        (Stopping(max_epochs=30, patience=4), 5, 30),
        (Stopping(max_epochs=30, stop_at=0.9), 1, 30),
        (Stopping(max_epochs=1, patience=4), 1, 1),
        (Stopping(max_epochs=30, max_time=5.0), 5, 5),
    ],
)
def test_draw_epochs_stays_within_the_stopping_rule(rule, minimum, maximum):
    rng = np.random.default_rng(0)
    drawn = [draw_epochs(rule, rng, epoch_s=1.0) for _ in range(300)]
    assert (min(drawn), max(drawn)) == (minimum, maximum)


# ---- the input ---------------------------------------------------------------------------------

JUDGED = 20
EPOCHS = 10


@pytest.fixture
def simulated(submit, tmp_path, monkeypatch):
    """Return the simulated seconds of a first run, given the seconds to decode and rotate."""

    def call(fixed_s, varying_s, data, ranks=2, policy="homogeneous"):
        rates = {
            "samples_per_epoch": 100,
            "gpus_per_node": 1,
            "models": [{"name": "one", "rates": [1000.0]}],
        }
        (tmp_path / "rates.json").write_text(json.dumps(rates))
        looked = walltimes.open_inputs

        def look(spec):
            opened = looked(spec)
            return replace(
                opened,
                probes={
                    part: replace(entry, fixed_s=fixed_s, varying_s=varying_s)
                    for part, entry in opened.probes.items()
                },
            )

        monkeypatch.setattr(walltimes, "open_inputs", look)
        Path("spec.yaml").write_text(
            "name: photos\noutput: run\n"
            "data: {source: 'builtin:noise', "
            f"options: {{samples: 100, validation: {JUDGED}, size: 8}}, {data}}}\n"
            "models: [{family: softmax, name: one}]\n"
            f"train: {{stopping: {{max_epochs: {EPOCHS}}}}}\n"
            f"schedule: {{policy: {policy}, rates: rates.json}}\nresources: {{engine: numpy}}\n"
        )
        request = JobRequest(
            Namespace(ranks_per_node=ranks),
            "spec.yaml",
            load("spec.yaml"),
            SYSTEMS["slurm"],
            SITES["generic"],
            nodes=1,
        )
        expected = _simulated(request)
        return expected.law.longest

    return call


TRAINING_S = EPOCHS * (100 + JUDGED / 3) / 1000  # nothing slows it down


@pytest.mark.parametrize(
    ("data", "policy", "ranks", "seconds"),
    [
        # A preprocessor decodes and rotates the samples of each epoch, and validation samples once.
        ("cache: none", "homogeneous", 2, EPOCHS * (100 * 0.05 + JUDGED / 3000) + JUDGED * 0.04),
        # Every trainer prepares the samples of its own network.
        ("cache: none", "baseline", 3, EPOCHS * (100 * 0.05 + JUDGED / 3000) + JUDGED * 0.04 / 2),
        # Samples are decoded once, during the first epoch, and rotated in every epoch.
        (
            "cache: memory",
            "homogeneous",
            2,
            EPOCHS * (100 * 0.01 + JUDGED / 3000) + 120 * 0.04 - 100 / 1000,
        ),
        ("cache: file", "homogeneous", 2, EPOCHS * (100 * 0.01 + JUDGED / 3000) + 120 * 0.04),
    ],
)
def test_first_run_is_limited_by_a_slow_input(simulated, data, policy, ranks, seconds):
    assert simulated(0.04, 0.01, data, ranks, policy) == pytest.approx(seconds, rel=0.02)


def test_first_run_with_a_fast_input_is_limited_by_training(simulated):
    assert simulated(1e-6, 1e-6, "cache: none") == pytest.approx(TRAINING_S, rel=0.02)
