"""What a run has come to, read from its log: its networks with their rows, and each of their epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.domain.added_networks import with_added_networks
from fleet.domain.network import SCORES, EpochRecord
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.monitor.timeline import log_until, replay_log
from fleet.prediction.sample_file import read_sample
from fleet.spec import Spec
from fleet.spec.criteria import with_data_defaults
from fleet.storage.event_log import LoggedEvent, read_run
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Results, Table, known_parameters, prefix_conflicts
from fleet.storage.run_spec import load_run_spec
from preprocess.sample import SampleSpec

_HEAD = (
    "network",
    "epoch",
    *SCORES,
    "learning_rate",
    "batch",
    "samples",
    "gpus",
    "seconds",
    "waited_s",
    "stream_epoch",
)


@dataclass(frozen=True)
class PastRun:
    """A run by its log and its spec.

    Attributes:
        spec: with the networks that came while the run went on.
        rows: of its table, the best network first.
    """

    spec: Spec
    run: RunState
    rows: tuple[NetworkResult, ...]


def read_log(paths: RunPaths) -> list[LoggedEvent]:
    """The events of a run.

    Raises:
        UserError: it has no log.
    """
    if not paths.event_logs():
        raise UserError(f"{paths.root} has no {paths.events.name}: there is nothing to report")
    return list(read_run(paths))


def read_past_run(paths: RunPaths, t_s: float = math.inf) -> PastRun:
    """A run by its log, by its spec, and by what a sample of it is.

    Args:
        t_s: as it stood then, in seconds of the run.

    Raises:
        UserError: there is no run there, or its spec cannot be read.
    """
    spec = load_run_spec(paths)
    log = log_until(read_log(paths), t_s)
    run = replay_log(log, spec)
    spec, samples = with_added_networks(spec, run), _samples(paths, spec)
    if samples:
        spec = with_data_defaults(
            spec, {feed: (sample.target, ()) for feed, sample in samples.items()}
        )
    refused = run.refused
    known = {
        network.name: known_parameters(network, samples[network.pipeline])
        for network in spec.networks
        if samples and network.name not in refused
    }
    built = {name: network.parameters for name, network in run.networks.items()}
    results = Results(
        spec,
        paths,
        run,
        {name: number for name, number in {**built, **known}.items() if number is not None},
    )
    return PastRun(spec, run, tuple(results.rows()))


def _samples(paths: RunPaths, spec: Spec) -> dict[str, SampleSpec]:
    """What a sample of each feed is; nothing where that was not kept."""
    if paths.sample.exists():
        return {feed: read_sample(paths, feed) for feed in spec.data_by_pipeline}
    return {}


@dataclass(frozen=True)
class NetworkEpoch(EpochRecord):
    """A finished epoch of a network of a run."""

    network: str = ""

    def cells(self) -> dict[str, Any]:
        """The row of a table, with a column for each metric."""
        said = {name: self.value(name) if name in SCORES else getattr(self, name) for name in _HEAD}
        metrics = {name: self.value(name) for name in self.metrics if name not in SCORES}
        return said | prefix_conflicts(metrics, list(said), "metric")


def read_history(run: str | Path) -> Table[NetworkEpoch]:
    """All epochs of a run's networks, network by network; ``to_pandas()`` gives them as a data frame.

    Epochs that were lost, because a network went back to an earlier checkpoint, are not among them.

    Args:
        run: the run's folder; the run may go on.

    Raises:
        UserError: there is no run there.
    """
    return Table(
        (
            NetworkEpoch(**vars(record), network=network)
            for network, found in replay_log(read_log(RunPaths(Path(run)))).networks.items()
            for record in found.status.history
        ),
        _HEAD,
    )
