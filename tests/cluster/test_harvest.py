"""A harvest on a real Slurm: preemptible jobs share the networks of a run beside other jobs."""

import json
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from fleet.domain.events import EpochEnded, NetworkLeased
from fleet.storage.event_log import read_events, read_run
from fleet.storage.json_lines import read_lines
from fleet.storage.results import read_results
from tests.cluster.harvest_trial import HarvestTrial, OtherJobs, leaderboard, losses
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
SAMPLES = 100  # of an epoch, which takes about a second
SEEDS = (1, 2, 3)  # of the full trial


def emulated(folder, networks, epochs, time_scale=1.0):
    """Return a spec of emulated networks with different rates."""
    folder.mkdir(exist_ok=True)
    rate = epochs if isinstance(epochs, list) else [epochs] * networks
    models = [
        {"name": f"net{number}", "rates": [90.0 + 2 * number], "epochs": rate[number]}
        for number in range(networks)
    ]
    rates = folder / "rates.json"
    rates.write_text(
        json.dumps({"samples_per_epoch": SAMPLES, "gpus_per_node": 1, "models": models})
    )
    return spec(
        folder,
        [{"family": "softmax", "name": model["name"]} for model in models],
        data={
            "source": "builtin:noise",
            "path": None,
            "options": {"samples": SAMPLES, "validation": 20},
            "transforms": [],
            "cache": "memory",
        },
        train={"batch": {"size": 10}, "optimizer": {"name": "adam"}},
        schedule={"policy": "adaptive", "rates": str(rates)},
        resources={"engine": "emulated", "time_scale": time_scale},
    )


def check(trial, outcome, networks, epochs):
    """Check that all epochs are trained, with at most one repeated epoch per preempted launch."""
    assert outcome.preempted, "no launch was preempted"
    assert {(row.name, str(row.status), row.epochs) for row in outcome.rows} == {
        (f"net{number}", "finished", epochs) for number in range(networks)
    }
    assert set(outcome.epochs) == {
        (f"net{number}", epoch + 1) for number in range(networks) for epoch in range(epochs)
    }
    assert outcome.again <= outcome.preempted, trial.report()
    assert (
        len(
            {
                event.generation
                for _, event in read_run(trial.paths)
                if isinstance(event, NetworkLeased)
            }
        )
        > 1
    )
    assert trial.paths.foreign_files() == []


def test_harvest_loses_no_network_to_preemption(slurm, tmp_path):
    networks, epochs = 6, 30
    trial = HarvestTrial(slurm, tmp_path, emulated(tmp_path, networks, epochs), first=1)
    outcome = trial.run(OtherJobs(5, 60, (1, 3), (3, 9), (3, 9)))
    check(trial, outcome, networks, epochs)


def begin(trial, *options, more_specs=()):
    """Submit the first jobs of one harvest of a trial and more specs, without other users."""
    trial.slurm.clean()
    specs = [str(Launcher(entry.folder).write(entry.content)) for entry in (trial, *more_specs)]
    trial.slurm.call(
        sys.executable,
        "-m",
        "fleet",
        "harvest",
        *specs,
        "--system=slurm",
        "--ranks-per-node=2",
        "--walltime=1h",
        *options,
        "--",
        "--partition=low",
        PYTHONPATH=str(ROOT),
        XDG_CACHE_HOME=str(trial.folder / "cache"),
        **trial.variables,
    )


def end(trial, epochs):
    """Wait for the end, check all networks, and return the lines of the harvest's log."""
    trial.slurm.wait_until("no job is left", trial.is_over, trial.report)
    assert {row.name: (str(row.status), row.epochs) for row in read_results(trial.paths.root)} == {
        f"net{number}": ("finished", count) for number, count in enumerate(epochs)
    }, trial.report()
    lines = list(read_lines(trial.paths.harvest_log))
    assert [(entry["why"], entry["again"]) for entry in lines if entry["event"] == "over"] == [
        ("all networks have ended", "")
    ]
    return lines


def test_harvest_submits_jobs_only_for_waiting_networks(slurm, tmp_path):
    epochs = [60, 4, 4, 4]
    trial = HarvestTrial(slurm, tmp_path, emulated(tmp_path, 4, epochs))
    begin(trial, "--idle-timeout=15s")
    lines = end(trial, epochs)
    trained = [
        log
        for log in trial.paths.event_logs()
        if any(isinstance(event, EpochEnded) for _, event in read_events(log))
    ]
    assert len(trial.paths.event_logs()) <= len(epochs) + 3, trial.report()
    assert len(trial.paths.event_logs()) - len(trained) <= 1, trial.report()
    assert sum(entry["event"] == "submitted" for entry in lines) <= len(epochs) + 3


def test_harvest_of_two_runs_finishes_both(slurm, tmp_path):
    costly = HarvestTrial(slurm, tmp_path / "costly", emulated(tmp_path / "costly", 3, [30] * 3))
    cheap = HarvestTrial(
        slurm, tmp_path / "cheap", emulated(tmp_path / "cheap", 3, [150] * 3, time_scale=0.2)
    )
    begin(costly, "--idle-timeout=15s", more_specs=[cheap])
    for trial in (costly, cheap):
        slurm.wait_until(
            "it trains", lambda trial=trial: trial.training(), trial.report, seconds=60
        )
    end(costly, [30] * 3)
    end(cheap, [150] * 3)


@pytest.fixture
def disk(tmp_path):
    """A file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("full_s", [15, pytest.param(45, marks=pytest.mark.long)])
def test_harvest_survives_a_disk_that_is_full_for_a_while(slurm, tmp_path, disk, full_s):
    epochs = [40] * 6
    trial = HarvestTrial(
        slurm, tmp_path, {**emulated(tmp_path, 6, epochs), "output": str(disk / "run")}
    )
    begin(trial, "--idle-timeout=15s")
    slurm.wait_until("3 launches train", lambda: len(trial.training()) >= 3, trial.report)
    ballast = disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    time.sleep(full_s)
    ballast.unlink()
    lines = end(trial, epochs)
    ended = [entry for entry in lines if entry["event"] == "ended"]
    assert all(entry["why"] for entry in ended), ended
    assert sum(entry["event"] == "begun" for entry in lines) == sum(
        "status" in entry for entry in ended
    )
    print([(entry["status"], entry["why"]) for entry in ended])


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_harvest_trains_for_most_of_the_idle_time(slurm, tmp_path, seed):
    networks, epochs = 12, 100
    trial = HarvestTrial(slurm, tmp_path, emulated(tmp_path, networks, epochs))
    outcome = trial.run(OtherJobs(seed, 600))
    print(outcome.line(f"seed {seed}"))
    check(trial, outcome, networks, epochs)
    assert outcome.time.share_once_started >= 0.85
    assert outcome.predicted == pytest.approx(outcome.samples, rel=0.1)


@pytest.mark.long
@pytest.mark.tensorflow
def test_harvest_with_tensorflow_loses_no_network(slurm, tmp_path):
    networks, epochs = 6, 600
    small = {"filters": [4], "dense": [8], "norm": "none"}
    content = spec(
        tmp_path,
        [{"family": "cnn", "name": f"net{number}", "args": small} for number in range(networks)],
        samples=600,
        source="slow",
        data={"cache": "memory"},  # each network shuffles separately
        train={"batch": {"size": 10}, "deterministic": True, "stopping": {"max_epochs": epochs}},
        resources={"engine": "keras"},
    )
    trial = HarvestTrial(slurm, tmp_path, content, max_jobs=2, first=1)
    outcome = trial.run(OtherJobs(1, 600, (2, 4), (15, 45), (40, 80)), patience_s=1800)
    print(outcome.line("TensorFlow"))
    check(trial, outcome, networks, epochs)
    alone = Launcher(tmp_path)(4, {**content, "output": str(tmp_path / "alone")}, timeout=1800)
    assert alone.status == 0, alone.output
    rows = list(alone.results().values())
    assert leaderboard(outcome.rows) == leaderboard(rows)
    assert losses(outcome.rows) == pytest.approx(losses(rows), rel=1e-4)
