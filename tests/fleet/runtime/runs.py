"""Whole runs with all ranks in one process, which tests can interrupt."""

import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest
import yaml

from fleet.domain.network import TrainingState
from fleet.errors import ExitStatus, UserError
from fleet.runtime.session import Session
from fleet.runtime.startup.launch import Ranks
from fleet.runtime.startup.prepare import prepare as prepare_launch
from fleet.runtime.startup.request import Request
from fleet.storage.checkpoint import write_history, write_state
from fleet.storage.identity import training_identity
from fleet.storage.paths import RunPaths
from tests.fleet.histories import history
from tests.fleet.one_process import Launch


def prepare(
    path,
    node_of,
    gpus=None,
    *,
    lease=None,
    announce=lambda import_plan: None,
    name="",
    ranks=None,
    **options,
):
    """Prepare a launch as rank 0 does.

    Args:
        ranks: attributes of :class:`fleet.runtime.startup.launch.Ranks`.
        options: attributes of :class:`fleet.runtime.startup.request.Request`.
    """
    return prepare_launch(
        Request(str(path), **options), Ranks(node_of, gpus, **(ranks or {})), lease, announce, name
    )


class Interruption:
    """An interruption after a number of checks by the coordinator."""

    patience_s = 30.0
    is_watched = False

    def __init__(self, after=None):
        self._remaining_checks = after

    def reason(self):
        if self._remaining_checks is None:
            return ""
        self._remaining_checks -= 1
        return "received SIGTERM" if self._remaining_checks < 0 else ""

    def seconds_left(self):
        return None


class Signal(Interruption):
    """An interruption that a test triggers by ``has_come``."""

    def __init__(self):
        super().__init__()
        self.has_come = False

    def reason(self):
        return "received SIGTERM" if self.has_come else ""


def write(folder, models=(), **parts):
    """Write a spec for the numpy engine, of one network by default; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(
        yaml.safe_dump(
            {
                "seed": 5,
                "output": str(folder / "run"),
                "models": list(models) or [{"family": "softmax", "name": "one"}],
                "resources": {"engine": "numpy", "preprocessors": 1},
                **parts,
            }
        )
    )
    return folder / "spec.yaml"


def launch(path, ranks, after=None, interruption=None, seed=0, turns=None, **more):
    """Run a launch; return rank 0's exit status and the prepared launch.

    The status is None if all ranks were killed after ``turns`` turns.

    Args:
        after: interrupt the launch after this number of checks by the coordinator.
        interruption: another interruption.
        seed: seed of the order in which ranks run.
    """
    prepared, statuses = prepare(str(path), [0] * ranks, None, plain=True, **more), {}

    def rank_main(world):
        statuses[world.rank] = Session(world, prepared, interruption or Interruption(after)).run()

    if Launch(ranks, seed).run(rank_main, turns):
        return ExitStatus(statuses[0]), prepared
    # The killed ranks have left files open, which a later test would report.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return None, prepared


def launch_in_parts(path, ranks, checks):
    """Interrupt a run repeatedly, each time later; return the prepared last launch.

    Args:
        checks: number of the coordinator's checks before the first interruption.
    """
    status, launches = ExitStatus.RESUMABLE, 0
    while status is ExitStatus.RESUMABLE:
        launches += 1
        assert launches < 60
        status, prepared = launch(path, ranks, after=checks * launches)
    assert launches > 1
    return prepared


class Trained:
    """A run's folder and its spec, which tests can change before it is prepared."""

    def __init__(self, folder, models, data, **parts):
        self.folder, self.paths = folder, RunPaths(folder / "run")
        self.content = {"models": models, "data": data, **parts}

    def prepare(self, **options):
        return prepare(write(self.folder, **self.content), (0, 0, 0), None, **options)

    def leave_checkpoints(self, epochs=history(0.5, 0.6), **more):
        """Write checkpoints like those of an earlier launch."""
        prepared = self.prepare()
        for network in prepared.spec.networks:
            state = TrainingState(
                {"weights": np.ones(3)},
                training_identity(network, prepared.spec, prepared.sample),
                epochs,
                architecture=network.architecture.key,
                code=prepared.codes[network.architecture.target],
            )
            for path in (self.paths.last, self.paths.previous, self.paths.best):
                write_state(path(network.name), replace(state, **more))
            write_history(self.paths.history(network.name), epochs)
        return prepared

    def refused(self, **options):
        """Check that preparation is refused without changes; return the message, one line."""
        before = self.files()
        with pytest.raises(UserError) as caught:
            self.prepare(**options)
        assert self.files() == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def files(self):
        return {path: path.read_bytes() for path in self.paths.root.rglob("*") if path.is_file()}
