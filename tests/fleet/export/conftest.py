"""Fixtures with runs to export: artificial ones, and a resumed search."""

import math
from dataclasses import replace

import pytest

from fleet.export.tracked_run import TrackedEpoch, TrackedNetwork, TrackedObjective, TrackedRun
from fleet.spec.dimensions import Range
from fleet.storage.results import Status
from tests.fleet.runtime.test_searching import ENTRY, Run

RATE = "train.optimizer.learning_rate"
SPACE = {RATE: Range(0.001, 0.1, log=True), "filters": ([8], [8, 16])}


def network(name, epochs, status, entry="net", **drawn):
    """Return a network whose validation accuracy grows by 0.1 per epoch."""
    drawn = {RATE: 0.01, "filters": [8, 16], **drawn} if entry else {}
    ended = tuple(
        TrackedEpoch(
            number,
            1000.0 + 60 * number,
            {"loss": 1 / number, "val_accuracy": number / 10},
            60.0 * number,
        )
        for number in range(1, epochs + 1)
    )
    return TrackedNetwork(
        name,
        f"key-{name}",
        {"model": "cnn", RATE: 0.01},
        drawn,
        entry,
        (TrackedObjective("val_accuracy", epochs / 10 if epochs else math.nan, True),),
        status,
        ended,
        1000.0,
        {"reason": str(status)},
        {},
    )


def made_up(*networks, **more):
    """Return a run with these networks."""
    facts = {
        "name": "digits",
        "key": "0123456789abcdef",
        "began": 1000.0,
        "ended": 2000.0,
        "is_going_on": False,
        "params": {"policy": "adaptive"},
        "spaces": {"net": SPACE},
        "earlier_spaces": {},
        "files": {},
        "user": "me",
        "facts": {"host": "node1", "command": "mpirun -n 3 python -m fleet.run digits.yaml"},
        "best": networks[0].name,
        "model": None,
        **more,
    }
    return TrackedRun(networks=networks, **facts)


EARLY = made_up(
    network("net-0", 2, Status.TRAINING),
    network("net-1", 2, Status.PRUNED),
    network("net-2", 0, Status.FAILED),
    network("net-3", 0, Status.WAITING),
    network("plain", 1, Status.TRAINING, entry=""),
)
LATE = made_up(
    network("net-0", 4, Status.FINISHED),
    network("net-1", 2, Status.PRUNED),
    network("net-2", 0, Status.FAILED),
    network("net-3", 3, Status.FINISHED),
    network("plain", 2, Status.FINISHED, entry=""),
)
# One finished network was resumed, and another one was restored from an earlier checkpoint.
CHANGED = replace(
    LATE,
    networks=(
        *LATE.networks[:1],
        network("net-1", 5, Status.FINISHED),
        *LATE.networks[2:4],
        network("plain", 1, Status.FAILED, entry=""),
    ),
)


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Make a run of a search whose launch was killed; it continues when it is launched again."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(
        tmp_path,
        {},
        epochs=4,
        models=[
            {**ENTRY, "search": {"sampler": "random", "max_trials": 5, "max_concurrent": 3}},
            {"family": "softmax", "name": "plain"},
        ],
        prune={"rule": "asha", "factor": 2},
    )
    assert run.launch(turns=80) is None
    return run
