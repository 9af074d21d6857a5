"""Whole runs with all ranks in one process, which tests may interrupt."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from fleet.domain.network import TrainingState
from fleet.errors import ExitStatus, UserError
from fleet.runtime.launch import Ranks
from fleet.runtime.prepare import prepare as prepare_launch
from fleet.runtime.session import Session
from fleet.runtime.startup import Request
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
    announce=lambda ahead: None,
    name="",
    ranks=None,
    **asked,
):
    """What rank 0 prepares for all.

    Args:
        ranks: what they have, by the names of :class:`fleet.runtime.launch.Ranks`.
        asked: by the names of :class:`fleet.runtime.startup.Request`.
    """
    return prepare_launch(
        Request(str(path), **asked), Ranks(node_of, gpus, **(ranks or {})), lease, announce, name
    )


class Interruption:
    """Comes after the coordinator has asked so many times."""

    patience_s = 30.0
    is_watched = False

    def __init__(self, after=None):
        self._left = after

    def reason(self):
        if self._left is None:
            return ""
        self._left -= 1
        return "SIGTERM came" if self._left < 0 else ""

    def seconds_left(self):
        return None


class Signal(Interruption):
    """Comes when a test says so."""

    def __init__(self):
        super().__init__()
        self.has_come = False

    def reason(self):
        return "SIGTERM came" if self.has_come else ""


def write(folder, models=(), **parts):
    """A spec of some networks, or of one, for the numpy engine, whose run comes to lie beside it; returns its path."""
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
    """What rank 0 ended with, None where all were killed after so many turns; and what was prepared.

    Args:
        after: so many looks of the coordinator the launch is interrupted, where no other interruption is given.
        seed: of the order in which ranks run.
    """
    prepared, statuses = prepare(str(path), [0] * ranks, None, plain=True, **more), {}

    def rank_main(world):
        statuses[world.rank] = Session(world, prepared, interruption or Interruption(after)).run()

    ended = Launch(ranks, seed).run(rank_main, turns)
    return ExitStatus(statuses[0]) if ended else None, prepared


def launch_in_parts(path, ranks, looks):
    """A run that is interrupted again and again, each time later; returns what its last launch prepared.

    Args:
        looks: of the coordinator, before the first interruption.
    """
    status, launches = ExitStatus.RESUMABLE, 0
    while status is ExitStatus.RESUMABLE:
        launches += 1
        assert launches < 60
        status, prepared = launch(path, ranks, after=looks * launches)
    assert launches > 1
    return prepared


class Trained:
    """A run's folder, and its spec, which may be changed before it is prepared for three ranks."""

    def __init__(self, folder, models, data, **parts):
        self.folder, self.paths = folder, RunPaths(folder / "run")
        self.content = {"models": models, "data": data, **parts}

    def prepare(self, **options):
        return prepare(write(self.folder, **self.content), (0, 0, 0), None, **options)

    def leave_checkpoints(self, epochs=history(0.5, 0.6), **more):
        """As an earlier launch has left them."""
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
        """The one line with which it is refused, and nothing is changed."""
        before = self.files()
        with pytest.raises(UserError) as caught:
            self.prepare(**options)
        assert self.files() == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def files(self):
        return {path: path.read_bytes() for path in self.paths.root.rglob("*") if path.is_file()}
