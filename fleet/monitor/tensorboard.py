"""Write TensorBoard files of each network without TensorFlow, which rank 0 never imports.

An event file is a sequence of records, each framed by its length and two checksums; the
``tensorboard`` package provides the messages and the framing. A thread writes the files, because a
file server may be slow and rank 0 must keep serving the other ranks.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fleet.domain.events import EpochEnded, Event
from fleet.domain.network import SCORES
from fleet.spec import NetworkSpec
from fleet.spec.hyperparameters import hyperparameters_of
from fleet.storage.files import storage_errors, with_retries
from fleet.storage.paths import RunPaths


class TensorBoardObserver:
    """Writes the metrics of every epoch; does nothing if ``tensorboard`` is not installed.

    A network's file begins with its hyperparameters, for the HParams plugin.

    Args:
        paths: the paths of the run.
        networks: networks by name; grows.
    """

    def __init__(self, paths: RunPaths, networks: Mapping[str, NetworkSpec]) -> None:
        self._paths = paths
        self._networks = networks
        self._thread = ThreadPoolExecutor(1, "tensorboard")
        self._unwritten = deque[Future[None]]()
        # TensorBoard looks for files of this name.
        self._name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # .api imports TensorFlow
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            self._make_event: Any = None
            return
        self._hparams = hparams_pb
        self._make_event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._record_writer = RecordWriter

    def on_event(self, event: Event) -> None:
        """Schedule the writing of an epoch's metrics.

        Raises:
            StorageError: earlier metrics could not be written.
        """
        if not isinstance(event, EpochEnded) or self._make_event is None:
            return
        record = event.record
        numbers = {name: record.value(name) for name in (*SCORES, *record.metrics)}
        if math.isnan(record.accuracy):  # targets without classes
            numbers = {
                name: value for name, value in numbers.items() if not name.endswith("accuracy")
            }
        numbers["learning_rate"] = record.learning_rate
        values = [
            self._summary.Value(
                tag=f"{'validation' if name.startswith('val_') else 'train'}/"
                f"{name.removeprefix('val_')}",
                simple_value=value,
            )
            for name, value in numbers.items()
        ]
        summary_event = self._make_event(
            wall_time=time.time(), step=record.epoch, summary=self._summary(value=values)
        )
        self._unwritten.append(
            self._thread.submit(with_retries, lambda: self._write(event.network, summary_event))
        )
        while self._unwritten and self._unwritten[0].done():
            self._unwritten.popleft().result()

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            StorageError: a file could not be written.
        """
        self._thread.shutdown()
        for written in self._unwritten:
            written.result()

    def _write(self, network: str, event: Any) -> None:
        # Close each file: a run may have more networks than a process may have open files.
        folder = self._paths.tensorboard(network)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / self._name, "ab", buffering=0) as file:
                events = [event]
                now = time.time()
                if not file.tell():
                    hparams = self._hparams(hyperparameters_of(self._networks[network]), network)
                    events = [
                        self._make_event(wall_time=now, file_version="brain.Event:2"),
                        self._make_event(wall_time=now, summary=hparams),
                        event,
                    ]
                writer = self._record_writer(file)
                for record in events:
                    writer.write(record.SerializeToString())
