"""Commands that add, pause, resume and stop networks of a running launch."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from threading import Thread

import pytest

from fleet.__main__ import main
from fleet.api import launch, mpirun
from fleet.domain.events import (
    EpochEnded,
    FirstStep,
    GroupStarted,
    NetworkVerdict,
    NodesReleased,
    RankDied,
)
from fleet.errors import ExitStatus, UserError
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import find_newest, read_state
from fleet.storage.event_log import events_of, read_run
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from launch.errors import pluralize
from launch.processes import launch_members
from tests.mpi.conftest import Launcher, kill, rank_process, spec
from tests.places import ROOT
from tests.waiting import wait_until

OPEN = {"keep_open": "4s", "train": {"stopping": {"max_epochs": 3}}}


def waiting_spec(tmp_path, models=(), **parts):
    """Write a spec with few networks or none, whose launch waits for more."""
    launcher = Launcher(tmp_path)
    return launcher, launcher.write(spec(tmp_path, list(models), **{**OPEN, **parts}))


def test_commands_add_pause_resume_and_stop_networks(tmp_path, capsys):
    launcher, path = waiting_spec(tmp_path)
    (tmp_path / "entry.yaml").write_text("{family: softmax, grid: {train.batch.size: [4, 6]}}")
    (tmp_path / "wrong.yaml").write_text("{family: softmaxx}")
    run, printed = tmp_path / "run", io.StringIO()
    with launch(path, 3, "--plain", environment=launcher.environment({})) as running:
        name = running.add(
            {"family": "softmax", "name": "long", "train": {"stopping": {"max_epochs": 10_000}}}
        )
        assert name == "long"
        with redirect_stdout(printed):
            assert main(["add", str(run), str(tmp_path / "entry.yaml")]) == 0
        assert printed.getvalue().split() == ["softmax-0", "softmax-1"]
        assert main(["add", str(run), str(tmp_path / "wrong.yaml")]) == 2
        assert "did you mean softmax" in capsys.readouterr().err
        (tmp_path / "wrong.yaml").write_text("[{family: softmax}]")
        assert main(["add", str(run), str(tmp_path / "wrong.yaml")]) == 2
        assert "the keys of one entry of `models:`" in capsys.readouterr().err
        assert main(["pause", str(run), "unknown"]) == 2
        peers = set()
        for report in running.reports():
            if report.is_last:
                peers.add(report.network)
            if peers == {"softmax-0", "softmax-1"}:
                break
        assert main(["pause", str(run), "long"]) == 0
        assert main(["resume", str(run), "long"]) == 0
        assert running.stop("long")
        assert not running.stop("softmax-0")
    rows = {row.name: row for row in running.results()}
    assert {name: row.status for name, row in rows.items()} == {
        "long": Status.PRUNED,
        "softmax-0": Status.FINISHED,
        "softmax-1": Status.FINISHED,
    }
    assert rows["long"].reason == f"pruned after {pluralize(rows['long'].epochs, 'epoch')}"
    assert events_of(RunPaths(run).events, NetworkVerdict)[-1].by == ("user",)
    with pytest.raises(UserError, match="the run has ended"):
        running.add({"family": "softmax"})
    assert main(["add", str(run), str(tmp_path / "entry.yaml")]) == 2


@pytest.mark.long
def test_interrupted_launch_may_finish_its_step(tmp_path):
    """mpirun would end ranks that do not react to a SIGTERM within a second."""
    (tmp_path / "rates.json").write_text(
        '{"samples_per_epoch": 60, "gpus_per_node": 2, "models": [{"name": "net", "rates": [8.0]}]}'
    )
    launcher, path = waiting_spec(
        tmp_path,
        models=[{"family": "softmax", "name": "net"}],
        schedule={"rates": str(tmp_path / "rates.json")},
        resources={"engine": "emulated", "time_scale": 1, "preprocessors": 1},
    )
    with launch(path, 2, "--plain", environment=launcher.environment({})) as running:
        events = RunPaths(running.run).events
        wait_until(lambda: events_of(events, FirstStep))
        running.interrupt()
        assert running.wait() is ExitStatus.RESUMABLE
    assert read_state(RunPaths(running.run).last("net"), with_arrays=False).position > 0


@pytest.mark.long
def test_refused_launch_says_so_despite_earlier_logs(tmp_path):
    launcher = Launcher(tmp_path)
    path = launcher.write(spec(tmp_path, [{"family": "softmax"}]))
    with launch(path, 2, "--plain", "--fresh", environment=launcher.environment({})) as running:
        assert [report.epoch for report in running.reports()] == [1, 2, 3]
    (tmp_path / "run" / "notes").touch()
    with (
        pytest.raises(UserError, match="cannot be run"),
        launch(path, 2, "--plain", "--fresh", environment=launcher.environment({})) as running,
    ):
        assert list(running.reports()) == []


@pytest.mark.long
def test_optuna_loop_example_runs(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    _, path = waiting_spec(tmp_path)
    import optuna_loop

    optuna_loop.main(path, 3, 6)
    assert "6 trials; the best: " in capsys.readouterr().out
    sys.modules.pop("optuna_loop")


@pytest.mark.long
def test_watch_follows_a_running_launch(tmp_path, capsys):
    launcher, path = waiting_spec(tmp_path)
    with launch(path, 3, "--plain", environment=launcher.environment({})) as running:
        name = running.add({"family": "softmax", "train": {"stopping": {"max_epochs": 10_000}}})
        next(running.reports())
        watching, seen = Thread(target=main, args=(["watch", str(running.run), "--json"],)), ""
        watching.start()
        while watching.is_alive() and not seen:  # the view shows events from its start on
            seen = capsys.readouterr().out
            time.sleep(0.05)
        running.stop(name)
    watching.join(60)
    assert not watching.is_alive()
    lines = [json.loads(line) for line in (seen + capsys.readouterr().out).splitlines()]
    assert {line["network"] for line in lines} == {name}
    assert all(set(line) >= {"network", "number", "epoch", "value", "metrics"} for line in lines)
    assert main(["watch", str(running.run)]) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "survive", [False, pytest.param(True, marks=pytest.mark.open_mpi)], ids=["mpi", "ulfm"]
)
def test_released_node_leaves_the_other_networks_training(tmp_path, capsys, survive):
    pytest.importorskip("fleet.companions.node_release")
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": name} for name in "abcd"],
        samples=100,
        source="slow",
        train={"stopping": {"max_epochs": 10_000}},
        schedule={"policy": "adaptive"},
    )
    launcher, paths, listing = Launcher(tmp_path), RunPaths(tmp_path / "run"), tmp_path / "shown"
    with open(listing, "wb") as file:
        process = subprocess.Popen(
            [*mpirun(6, survive), "-m", "fleet.run", str(launcher.write(content)), "--plain"],
            cwd=ROOT,
            env=launcher.environment({"FLEET_RANKS_PER_NODE": "3"}),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: {event.network for event in events_of(paths.events, EpochEnded)} == set("abcd")
        )
        assert main(["release-nodes", str(paths.root), "--nodes", "2", "--within", "1min"]) == 2
        assert "this launch can release 1" in capsys.readouterr().err
        assert (
            main(["release-nodes", str(paths.root), "--nodes", "1", "--within", "5min", "--json"])
            == 0
        )
        answer = json.loads(capsys.readouterr().out)
        (remaining,) = events_of(paths.events, NodesReleased)
        assert (remaining.nodes, remaining.devices, remaining.has_ended) == ((1,), (2, 3), survive)
        assert (answer["dropped"], answer["has_ended"]) == ([], survive)
        assert len(answer["saved"]) == 2
        wait_until(lambda: ranks_of(process) == set(range(3 if survive else 6)))
        trained = len(events_of(paths.events, EpochEnded))
        wait_until(lambda: len(events_of(paths.events, EpochEnded)) > trained + 4)
        os.kill(rank_process(process.pid, 0), signal.SIGTERM)
        assert process.wait(240) == 75, listing.read_text()
    finally:
        kill(process)
    logged = [event for _, event in read_run(paths)]
    later = logged[logged.index(remaining) :]
    assert {
        device for event in later if isinstance(event, GroupStarted) for device in event.devices
    } <= {0, 1}
    assert not any(isinstance(event, RankDied) for event in logged)
    epochs = [
        (event.network, event.record.epoch) for event in logged if isinstance(event, EpochEnded)
    ]
    assert len(set(epochs)) == len(epochs)  # no epoch was trained again


def ranks_of(process):
    """Return the living ranks of a launch."""
    matches = set()
    for pid in launch_members(process.pid):
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            matches |= {
                int(single.partition(b"=")[2])
                for single in variables
                if single.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))
            }
    return matches


@pytest.mark.long
@pytest.mark.tensorflow
def test_late_networks_train_as_if_alone(tmp_path):
    """Networks join a stream in progress (Keras); a replay trains each one alone."""
    first = {
        "family": "cnn",
        "name": "first",
        "args": {"filters": [4]},
        "train": {"stopping": {"max_epochs": 10_000}},
    }
    content = spec(
        tmp_path,
        [first],
        source="numbered",
        train={"stopping": {"max_epochs": 6}},
        resources={"engine": "keras"},
        schedule={"policy": "adaptive"},
    )
    launcher = Launcher(tmp_path)
    entry = {
        "family": "cnn",
        "name": "late",
        "args": {"filters": [6]},
        "grid": {"train.optimizer.learning_rate": [0.01, 0.05]},
    }
    with launch(
        launcher.write(content), 3, "--plain", environment=launcher.environment({})
    ) as running:
        reports = running.reports()
        next(reports)
        late = running.add_all(entry)
        assert late == ["late-0", "late-1"]
        ended = {
            report.network for report in islice((report for report in reports if report.is_last), 2)
        }
        assert ended == set(late)
        running.stop("first")
    rows = {row.name: row.status for row in running.results()}
    assert rows == {"first": Status.PRUNED} | dict.fromkeys(late, Status.FINISHED)
    again = launcher(
        1,
        content,
        str(running.run),
        *late,
        program=(str(ROOT / "tests/mpi/replay_networks.py"),),
        timeout=240,
    )
    assert again.status == 0, again.output
    for name in late:
        paths = RunPaths(running.run)
        histories = [
            find_newest(single, name, with_arrays=False).history
            for single in (paths, RunPaths(paths.replay(name)))
        ]
        assert len(histories[0]) == 6
        assert largest_difference(*histories) < 1e-4
