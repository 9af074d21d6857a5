"""A harvest on a real Slurm: jobs that come and go share the networks of a run, while others' jobs take their nodes."""

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
from tests.cluster.harvesting import Script, Show, losses, placed
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
SAMPLES = 100  # of an epoch, which takes about a second
SEEDS = (1, 2, 3)  # of the full show


def emulated(folder, networks, epochs, time_scale=1.0):
    """Networks that sleep, each at a pace of its own."""
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


def check(show, came, networks, epochs):
    """No network is lost, at most an epoch is trained again for each launch that others ended, and others did."""
    assert came.cut, "nobody was preempted"
    assert {(row.name, str(row.status), row.epochs) for row in came.rows} == {
        (f"net{number}", "finished", epochs) for number in range(networks)
    }
    assert set(came.epochs) == {
        (f"net{number}", epoch + 1) for number in range(networks) for epoch in range(epochs)
    }
    assert came.again <= came.cut, show.report()
    assert (
        len(
            {
                event.generation
                for _, event in read_run(show.paths)
                if isinstance(event, NetworkLeased)
            }
        )
        > 1
    )
    assert show.paths.foreign_files() == []


def undisturbed(folder, content):
    """The results of the same networks, trained by one launch that nobody disturbs."""
    launch = Launcher(folder)(4, content, timeout=1800)
    assert launch.status == 0, launch.output
    return list(launch.results().values())


def check_equal(came, alone, within):
    """The leaderboard is that of a run that nobody disturbed."""
    assert placed(came.rows) == placed(alone)
    assert losses(came.rows) == pytest.approx(losses(alone), rel=within)


def test_harvest_loses_no_network_to_preemption(slurm, tmp_path):
    networks, epochs = 6, 30
    show = Show(slurm, tmp_path, emulated(tmp_path, networks, epochs), first=1)
    came = show.run(Script(5, 60, (1, 3), (3, 9), (3, 9)))
    check(show, came, networks, epochs)
    alone = tmp_path / "alone"
    check_equal(came, undisturbed(alone, emulated(alone, networks, epochs, 0.01)), 1e-9)


def begin(show, *options, more_specs=()):
    """Hand in the first jobs of a show without others, and of shows beside it."""
    show.slurm.clean()
    specs = [str(Launcher(entry.folder).write(entry.content)) for entry in (show, *more_specs)]
    show.slurm.call(
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
        XDG_CACHE_HOME=str(show.folder / "cache"),
        **show.variables,
    )


def end(show, epochs):
    """Wait for the end; all networks are done, and the last launch has said that the harvest is over."""
    show.slurm.wait_until("no job is left", show._is_over, show.report)
    assert {row.name: (str(row.status), row.epochs) for row in read_results(show.paths.root)} == {
        f"net{number}": ("finished", count) for number, count in enumerate(epochs)
    }, show.report()
    noted = list(read_lines(show.paths.harvest_log))
    assert [(entry["why"], entry["again"]) for entry in noted if entry["event"] == "over"] == [
        ("all networks have ended", "")
    ]
    return noted


def test_harvest_submits_jobs_only_for_waiting_networks(slurm, tmp_path):
    epochs = [60, 4, 4, 4]
    show = Show(slurm, tmp_path, emulated(tmp_path, 4, epochs))
    begin(show, "--idle-timeout=15s")
    noted = end(show, epochs)
    trained = [
        log
        for log in show.paths.event_logs()
        if any(isinstance(event, EpochEnded) for _, event in read_events(log))
    ]
    assert len(show.paths.event_logs()) <= len(epochs) + 3, show.report()
    assert len(show.paths.event_logs()) - len(trained) <= 1, show.report()
    assert sum(entry["event"] == "submitted" for entry in noted) <= len(epochs) + 3


def test_harvest_of_two_runs_finishes_both(slurm, tmp_path):
    costly = Show(slurm, tmp_path / "costly", emulated(tmp_path / "costly", 3, [30] * 3))
    cheap = Show(
        slurm, tmp_path / "cheap", emulated(tmp_path / "cheap", 3, [150] * 3, time_scale=0.2)
    )
    begin(costly, "--idle-timeout=15s", more_specs=[cheap])
    for show in (costly, cheap):
        slurm.wait_until("it trains", lambda show=show: show.training(), show.report, seconds=60)
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
        pytest.skip("a file system of its own cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("full_s", [15, pytest.param(45, marks=pytest.mark.long)])
def test_a_harvest_outlives_a_disk_that_is_full_for_a_while(slurm, tmp_path, disk, full_s):
    epochs = [40] * 6
    show = Show(slurm, tmp_path, {**emulated(tmp_path, 6, epochs), "output": str(disk / "run")})
    begin(show, "--idle-timeout=15s")
    slurm.wait_until("3 launches train", lambda: len(show.training()) >= 3, show.report)
    ballast = disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    time.sleep(full_s)
    ballast.unlink()
    noted = end(show, epochs)
    ended = [entry for entry in noted if entry["event"] == "ended"]
    assert all(entry["why"] for entry in ended), ended
    assert sum(entry["event"] == "begun" for entry in noted) == sum(
        "status" in entry for entry in ended
    )
    print([(entry["status"], entry["why"]) for entry in ended])


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_harvest_trains_for_most_of_the_idle_time(slurm, tmp_path, seed):
    networks, epochs = 12, 100
    show = Show(slurm, tmp_path, emulated(tmp_path, networks, epochs))
    came = show.run(Script(seed, 600))
    print(came.line(f"seed {seed}"))
    check(show, came, networks, epochs)
    alone = tmp_path / "alone"
    check_equal(came, undisturbed(alone, emulated(alone, networks, epochs, 0.002)), 1e-9)
    assert came.time.share_once_begun >= 0.85
    assert came.predicted == pytest.approx(came.samples, rel=0.1)


@pytest.mark.long
@pytest.mark.tensorflow
def test_ten_minutes_of_others_lose_no_network_of_tensorflow(slurm, tmp_path):
    networks, epochs = 6, 600
    small = {"filters": [4], "dense": [8], "norm": "none"}
    content = spec(
        tmp_path,
        [{"family": "cnn", "name": f"net{number}", "args": small} for number in range(networks)],
        samples=600,
        source="slow",
        data={"cache": "memory"},  # shuffles are each network's own
        train={"batch": {"size": 10}, "deterministic": True, "stopping": {"max_epochs": epochs}},
        resources={"engine": "keras"},
    )
    show = Show(slurm, tmp_path, content, max_jobs=2, first=1)
    came = show.run(Script(1, 600, (2, 4), (15, 45), (40, 80)), patience_s=1800)
    print(came.line("TensorFlow"))
    check(show, came, networks, epochs)
    check_equal(came, undisturbed(tmp_path, {**content, "output": str(tmp_path / "alone")}), 1e-4)
