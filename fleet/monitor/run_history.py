"""Read the state of a run from its log: its networks with their rows, and each of their epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import LaunchEnded
from fleet.domain.network import SCORES, EpochRecord
from fleet.domain.run import RunState
from fleet.domain.timeline import LoggedEvent, log_until, replay_log
from fleet.errors import UserError
from fleet.prediction.sample_file import read_sample
from fleet.spec import Spec
from fleet.spec.criteria import with_data_defaults
from fleet.storage.event_log import read_run
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
    """A run, from its log and its spec.

    Attributes:
        spec: the spec, with networks that were added while the run went on.
        run: its state.
        rows: the rows of its table, best network first.
        samples: the sample of each input pipeline; empty if none was stored.
        is_going_on: True if its log does not end with the end of a launch.
    """

    spec: Spec
    run: RunState
    rows: tuple[NetworkResult, ...]
    is_going_on: bool
    samples: Mapping[str, SampleSpec] = field(default_factory=dict)


def read_log(paths: RunPaths) -> list[LoggedEvent]:
    """Return the events of a run.

    Raises:
        UserError: it has no log.
    """
    if not paths.event_logs():
        raise UserError(f"{paths.root} has no {paths.events.name}, so there is nothing to report")
    return list(read_run(paths))


def read_past_run(paths: RunPaths, t_s: float = math.inf) -> PastRun:
    """Return a run, from its log, its spec, and its sample.

    Args:
        paths: the paths of the run.
        t_s: time of the state to return, in seconds of the run.

    Raises:
        UserError: there is no run, or its spec cannot be read.
    """
    spec = load_run_spec(paths)
    log = log_until(read_log(paths), t_s)
    run = replay_log(log, spec)
    spec, samples = resolve_spec(paths, spec, run)
    refused = run.refused
    for network in spec.networks if samples else ():
        if network.name not in refused:
            parameters = known_parameters(network, samples[network.pipeline])
            if parameters is not None:
                run.set_parameters(network.name, parameters)
    has_ended = bool(log) and isinstance(log[-1].event, LaunchEnded)
    return PastRun(spec, run, tuple(Results(spec, paths, run).rows()), not has_ended, samples)


def resolve_spec(paths: RunPaths, spec: Spec, run: RunState) -> tuple[Spec, dict[str, SampleSpec]]:
    """Return the spec with added networks and the defaults that follow from the data.

    Args:
        paths: paths of the run.
        spec: the spec as it was written.
        run: the state of the run.

    Returns:
        The spec, and the sample of each input pipeline; empty if none was stored.
    """
    spec = with_added_networks(spec, run)
    samples = _samples(paths, spec)
    if samples:
        spec = with_data_defaults(
            spec, {pipeline: (sample.target, {}) for pipeline, sample in samples.items()}
        )
    return spec, samples


def _samples(paths: RunPaths, spec: Spec) -> dict[str, SampleSpec]:
    """Return the sample of each input pipeline; empty if none was stored."""
    if paths.sample.exists():
        return {pipeline: read_sample(paths, pipeline) for pipeline in spec.data_by_pipeline}
    return {}


@dataclass(frozen=True)
class NetworkEpoch(EpochRecord):
    """A finished epoch of a network of a run."""

    network: str = ""

    def cells(self) -> dict[str, Any]:
        """Return the row of a table, with a column per metric."""
        columns = {
            name: self.value(name) if name in SCORES else getattr(self, name) for name in _HEAD
        }
        metrics = {name: self.value(name) for name in self.metrics if name not in SCORES}
        return columns | prefix_conflicts(metrics, list(columns), "metric")


def read_history(run: str | Path) -> Table[NetworkEpoch]:
    """Return all epochs of a run's networks; ``to_pandas()`` makes a data frame of them.

    Epochs that a network repeated from an earlier checkpoint are not included twice.

    Args:
        run: the run's folder; the run may go on.

    Raises:
        UserError: there is no run.
    """
    return Table(
        (
            NetworkEpoch(**vars(record), network=network)
            for network, run_network in replay_log(read_log(RunPaths(Path(run)))).networks.items()
            for record in run_network.status.history
        ),
        _HEAD,
    )
