"""Tests of the W&B export: ``wandb sync`` lists the runs, and W&B reads their records."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.__main__ import main
from fleet.api import read_history, read_results
from fleet.export.trackers import write
from tests.fleet.export.conftest import CHANGED, EARLY, LATE, RATE

pytest.importorskip("wandb", reason="W&B is not installed: make test-track has it")
pytestmark = pytest.mark.filterwarnings("ignore")  # of W&B itself
BLOCK, HEAD = 32768, 7  # of a log of LevelDB


def records(path):
    """Return the records of a W&B file: a LevelDB log with a custom header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, offset, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while offset + HEAD <= len(data):
        if BLOCK - offset % BLOCK < HEAD:
            offset += BLOCK - offset % BLOCK
            continue
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        parts.append(data[offset + HEAD : offset + HEAD + length])
        offset += HEAD + length
        if kind in (1, 4):
            yield Record.FromString(b"".join(parts))
            parts = []


class UploadData:
    """The data that W&B would upload from a folder."""

    def __init__(self, folder):
        self.steps, self.summary = {}, {}
        for record in records(next(folder.glob("*.wandb"))):
            match record.WhichOneof("record_type"):
                case "run":
                    self.run = record.run
                    self.config = {
                        item.key: json.loads(item.value_json) for item in record.run.config.update
                    }
                case "history":
                    values = {
                        item.key or ".".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                    assert record.history.step.num not in self.steps
                    self.steps[record.history.step.num] = values
                case "summary":
                    self.summary |= {
                        item.key or ".".join(item.nested_key): json.loads(item.value_json)
                        for item in record.summary.update
                    }
                case "exit":
                    self.status = record.exit.exit_code
                    self.run_time_s = record.exit.runtime


def runs_at(path):
    runs = [UploadData(folder) for folder in sorted((path / "wandb").glob("offline-run-*"))]
    names = {tracked.run.display_name: tracked for tracked in runs}
    assert len(names) == len(runs) == len({tracked.run.run_id for tracked in runs})
    return names


def listed(path):
    """Return the folders that ``wandb sync`` would upload."""
    process = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run"],
        cwd=path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return process.stdout + process.stderr


@pytest.mark.parametrize("before", [[], [EARLY, CHANGED]])
def test_wandb_writes_an_offline_run_per_network(tmp_path, before):
    for run in [*before, LATE]:
        write("wandb", run, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.wandb")}
    write("wandb", LATE, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.wandb")} == times
    runs = runs_at(tmp_path)
    assert {name: (tracked.status, sorted(tracked.steps)) for name, tracked in runs.items()} == {
        "net-0": (0, [1, 2, 3, 4]),
        "net-1": (0, [1, 2]),
        "net-2": (1, []),
        "net-3": (0, [1, 2, 3]),
        "plain": (0, [1, 2]),
    }
    first = runs["net-0"]
    assert (first.config["model"], first.config[RATE], first.run.run_group, first.run.project) == (
        "cnn",
        0.01,
        "digits-012345",
        "digits",
    )
    assert [
        (values["val_accuracy"], values["_timestamp"]) for _, values in sorted(first.steps.items())
    ] == [(epoch / 10, 1000 + 60 * epoch) for epoch in (1, 2, 3, 4)]
    began = {name: tracked.run.start_time.ToSeconds() for name, tracked in runs.items()}
    assert began == {network.name: round(network.began) for network in LATE.networks}
    assert (first.summary["status"], first.summary["reason"]) == ("finished", "finished")
    listing = listed(tmp_path)
    assert all(Path(path).parent.name in listing for path in times), listing


def test_wandb_run_times_are_those_of_the_training(tmp_path):
    write("wandb", LATE, tmp_path)
    runs = runs_at(tmp_path)
    for network in LATE.networks:
        tracked = runs[network.name]
        assert {step: values["_runtime"] for step, values in tracked.steps.items()} == {
            epoch.epoch: epoch.date - network.began for epoch in network.epochs
        }
        summary = tracked.summary
        trained_s = network.ended - network.began
        assert (summary["_runtime"], summary["_wandb.runtime"]) == (trained_s, trained_s)
        assert tracked.run_time_s == trained_s


def test_wandb_replaces_run_whose_start_changed(tmp_path):
    for began in (1000.0, 90000.0):
        write(
            "wandb",
            replace(
                LATE, networks=tuple(replace(network, began=began) for network in LATE.networks)
            ),
            tmp_path,
        )
    assert len(runs_at(tmp_path)) == len(LATE.networks)


def test_wandb_runs_equal_tables_after_resume(searched, tmp_path, capsys):
    run = searched.folder / "run"
    command = ["export", str(run), "--wandb", str(tmp_path / "w")]
    assert main(command) == 0
    assert searched.launch() == 0
    assert main(command) == 0
    assert f"wandb sync {tmp_path / 'w'}/wandb/offline-run-*" in capsys.readouterr().out
    runs = runs_at(tmp_path / "w")
    assert sorted(runs) == sorted(row.name for row in read_results(run))
    assert {
        (name, step): values["val_loss"]
        for name, tracked in runs.items()
        for step, values in tracked.steps.items()
    } == {(row.network, row.epoch): row.val_loss for row in read_history(run)}
