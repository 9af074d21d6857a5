"""Tests of trackers that are written while a run goes on, and cannot disturb it."""

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import yaml

from fleet.domain.events import TrackerFailed
from fleet.errors import ExitStatus, UserError
from fleet.export import follow
from fleet.export.follow import Follower, write_requests
from fleet.export.trackers import TRACKERS, target_paths
from fleet.runtime import rank_zero
from fleet.runtime.external import tracking
from fleet.runtime.external.tracking import Tracking
from fleet.spec import dump, json_schema, parse
from fleet.storage.paths import RunPaths
from tests.fleet.runtime.test_searching import ENTRY, Run

SOFTMAX = [{"family": "softmax", "name": name} for name in "ab"]

pytestmark = pytest.mark.usefixtures("quick")


def test_trackers_with_and_without_a_path(tmp_path):
    spec = parse({"models": SOFTMAX, "trackers": ["mlflow", {"wandb": "/w"}, {"optuna": None}]})
    assert target_paths(spec.document.trackers, tmp_path) == [
        ("mlflow", tmp_path / "track/mlflow"),
        ("wandb", Path("/w")),
        ("optuna", tmp_path / "track/optuna.log"),
    ]
    assert parse(yaml.safe_load(dump(spec.document))) == spec
    choices, _ = json_schema()["properties"]["trackers"]["items"]["anyOf"]
    assert choices["enum"] == ["mlflow", "wandb", "optuna"] == list(TRACKERS)


@pytest.mark.parametrize("track", ["mlflow", ["comet"], [{"comet": "x"}], [{}], [{"mlflow": 3}]])
def test_unknown_tracker_is_a_mistake(track):
    with pytest.raises(UserError, match="track"):
        parse({"models": SOFTMAX, "trackers": track})


def test_write_requests_are_merged_and_end_is_last(monkeypatch):
    monkeypatch.setattr(follow, "_MIN_PAUSE_S", 0.05)
    source, sink = os.pipe()
    calls = []
    thread = threading.Thread(target=lambda: calls.extend(write_requests(source)))
    thread.start()
    os.write(sink, b"...")
    while not calls:
        pass
    os.write(sink, b".")
    os.close(sink)
    thread.join(10)
    os.close(source)
    assert calls == [False, True]


def test_failing_tracker_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "read_tracked_run", lambda paths: "the run")
    attempts, out = [], io.StringIO()

    def write(name, run, path):
        attempts.append(name)
        if name == "mlflow":
            sys.exit("no room")

    monkeypatch.setattr(follow, "write", write)
    follower = Follower(RunPaths(tmp_path), [("mlflow", tmp_path), ("wandb", tmp_path)], out)
    for is_last in (False, False, True):
        follower.write(is_last)
    assert attempts == ["mlflow", "wandb", "wandb", "mlflow", "wandb"]
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"tracker": "mlflow", "path": str(tmp_path), "reason": "SystemExit: no room"}
    ]


def test_follower_writes_during_a_run_and_at_its_end(tmp_path):
    optuna = pytest.importorskip("optuna")
    run = Run(
        tmp_path,
        {},
        track=["optuna"],
        models=[{**ENTRY, "search": {"sampler": "random", "max_trials": 4, "max_concurrent": 2}}],
        prune={"rule": "asha", "factor": 2},
    )
    assert run.launch() is ExitStatus.OK
    path = run.folder / "run/track/optuna.log"
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="ensemble-net", storage=storage)
    states = {"finished": "COMPLETE", "pruned": "PRUNED"}
    assert {trial.user_attrs["network"]: trial.state.name for trial in study.trials} == {
        name: states[row.status] for name, row in run.rows().items()
    }
    assert run.of(TrackerFailed) == run.paths.foreign_files() == []


def test_unwritable_tracker_is_a_warning(tmp_path, capsys):
    pytest.importorskip("optuna")
    (tmp_path / "file").touch()
    run = Run(
        tmp_path, {}, models=SOFTMAX, epochs=2, track=[{"optuna": str(tmp_path / "file/x.log")}]
    )
    assert run.launch() is ExitStatus.OK
    assert {row.status for row in run.rows().values()} == {"finished"}
    assert capsys.readouterr().out.count("WARNING: trackers: cannot write optuna") == 1


def test_hanging_tracker_does_not_delay_the_end(tmp_path, capsys, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/optuna.py").write_text("import time\ntime.sleep(30)\nraise SystemExit")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(rank_zero, "_TRACKING_S", 0.5)
    run = Run(tmp_path, {}, models=SOFTMAX, epochs=2, track=["optuna"])
    assert run.launch() is ExitStatus.OK
    assert (
        "trackers: cannot write track, continuing without it: not ended within 0 s"
        in capsys.readouterr().out
    )


def test_unstartable_process_is_reported_by_the_end(tmp_path, monkeypatch):
    def start(*arguments, **more):
        raise OSError("no processes left")

    monkeypatch.setattr(tracking.subprocess, "Popen", start)
    tracking_process = Tracking([("wandb", tmp_path / "w")], RunPaths(tmp_path), "spec.yaml")
    assert tracking_process.close(0.1) == [
        TrackerFailed("wandb", str(tmp_path / "w"), "no processes left")
    ]
