"""TensorBoard's files."""

import os
from pathlib import Path

import pytest

from fleet.domain.events import EpochEnded
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")


@pytest.mark.long
def test_a_run_may_have_more_networks_than_a_process_may_have_open_files(tmp_path):
    observer = TensorBoardObserver(RunPaths(tmp_path))
    for number in (1, 2):
        for name in ("a", "b"):
            observer.on_event(EpochEnded(name, record(number)))
            assert not [link for link in Path("/proc/self/fd").iterdir()
                        if os.path.realpath(link).startswith(str(tmp_path))]
    file, = RunPaths(tmp_path).tensorboard("a").iterdir()
    events = list(loader.EventFileLoader(str(file)).Load())
    assert [(event.step, event.file_version) for event in events] == [(0, "brain.Event:2"), (1, ""), (2, "")]
