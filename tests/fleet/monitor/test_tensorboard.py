"""Tests of the TensorBoard files."""

import itertools
import os
from pathlib import Path

import pytest

from fleet.domain.events import EpochEnded
from fleet.errors import StorageError
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record, spec
from tests.refusals import refused

plugin_event_multiplexer = pytest.importorskip(
    "tensorboard.backend.event_processing.plugin_event_multiplexer"
)
plugin_data_pb2 = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")


@pytest.mark.long
def test_tensorboard_keeps_no_files_open(tmp_path):
    networks = spec(*({"family": "softmax", "name": name} for name in "ab")).by_name
    observer = TensorBoardObserver(RunPaths(tmp_path), networks)
    for number in (1, 2):
        for name in ("a", "b"):
            observer.on_event(EpochEnded(name, record(number)))
    observer.close()
    assert not [
        link
        for link in Path("/proc/self/fd").iterdir()
        if os.path.realpath(link).startswith(str(tmp_path))
    ]
    (file,) = RunPaths(tmp_path).tensorboard("a").iterdir()
    events = list(loader.EventFileLoader(str(file)).Load())
    assert [(event.step, event.file_version) for event in events] == [
        (0, "brain.Event:2"),
        (0, ""),
        (1, ""),
        (2, ""),
    ]


def test_hparams_plugin_reads_each_network(tmp_path):
    networks = spec(
        {
            "family": "cnn",
            "name": "net",
            "grid": {"filters": [[8], [8, 16]], "dropout": [0.5]},
            "train": {"optimizer": {"name": "adam"}, "batch": {"size": 8}},
        },
        resources={"engine": "keras"},
    ).by_name
    for _ in range(2):  # launches
        observer = TensorBoardObserver(RunPaths(tmp_path), networks)
        for name in networks:
            observer.on_event(EpochEnded(name, record(1)))
        observer.close()
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(
        str(tmp_path / "tensorboard")
    )
    multiplexer.Reload()
    sessions = {}
    for name, tags in multiplexer.PluginRunToTagToContent("hparams").items():
        info = plugin_data_pb2.HParamsPluginData.FromString(
            tags["_hparams_/session_start_info"]
        ).session_start_info
        assert info.group_name == name
        sessions[name] = {
            key: getattr(value, value.WhichOneof("kind")) for key, value in info.hparams.items()
        }
    assert sorted(sessions) == ["net-0", "net-1"]
    assert (
        sessions["net-1"].items()
        >= {
            "model": "cnn",
            "filters": "[8, 16]",
            "dropout": 0.5,
            "train.optimizer.name": "adam",
            "train.batch.size": 8.0,
            "train.optimizer.learning_rate": 0.001,
        }.items()
    )


@pytest.mark.parametrize(
    "epochs", [[1], itertools.count(1)], ids=["in the end", "with a later epoch"]
)
def test_tensorboard_reports_write_errors(tmp_path, epochs):
    RunPaths(tmp_path).tensorboard("a").parent.write_text("no folder")
    observer = TensorBoardObserver(
        RunPaths(tmp_path), spec({"family": "softmax", "name": "a"}).by_name
    )

    def tell():
        for number in epochs:
            observer.on_event(EpochEnded("a", record(number)))
        observer.close()

    with refused(StorageError, "Not a directory"):
        tell()
