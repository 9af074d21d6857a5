"""Networks that one rank trains as one program, in uninterrupted launches."""

import numpy as np
import pytest

from fleet.domain.events import (
    GroupStarted,
    LaunchStarted,
    NetworkFailed,
    NetworkFinished,
    NetworkWarned,
)
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import read_state
from tests.mpi.conftest import spec
from tests.slots import max_networks_per_gpu

pytestmark = [pytest.mark.torch, pytest.mark.long]

RATES = (0.01, 0.02, 0.03, 0.04)


def entries(rates=RATES, epochs=3, model=None, optimizer="adam", **train):
    return [
        {
            **(model or {"family": "mlp", "args": {"hidden": [6], "dropout": 0.2}}),
            "name": f"n{number}",
            "train": {
                "optimizer": {"name": optimizer, "learning_rate": rate},
                "stopping": {"max_epochs": epochs},
                **train,
            },
        }
        for number, rate in enumerate(rates)
    ]


def content(folder, models, fuse, **parts):
    resources = {"engine": "torch", "fuse": fuse}
    return spec(
        folder,
        models,
        **{"samples": 50, "data": {"validation": 0.2, "cache": "memory"}, **parts},
        resources=resources,
    )


def assert_equal(launch, reference, names=("n0", "n1", "n2", "n3")):
    for name in names:
        assert largest_difference(launch.history(name), reference.history(name)) < 1e-5
        states = [read_state(run.paths.last(name)).arrays for run in (launch, reference)]
        for key, array in states[0].items():
            np.testing.assert_allclose(states[1][key], array, rtol=1e-4, atol=1e-5)
        exports = [run.paths.model(name) / "best.safetensors" for run in (launch, reference)]
        assert all(path.exists() for path in exports)


def test_fused_launch_equals_launch_of_networks_alone(launch, tmp_path):
    models = entries()
    fused = launch(2, content(tmp_path / "fused", models, fuse=4))
    alone = launch(2, content(tmp_path / "alone", models, fuse="off"))
    assert (fused.status, alone.status) == (0, 0), fused.output
    assert max_networks_per_gpu(fused.paths.events) == 4
    assert fused.events(LaunchStarted)[0].cluster.fused == 4
    assert_equal(fused, alone)


def test_networks_take_turns_in_a_rank(launch, tmp_path):
    models = [
        {**model, "train": {**model["train"], "stopping": {"max_epochs": 1 + number}}}
        for number, model in enumerate(entries())
    ]
    run = launch(2, content(tmp_path, models, fuse=2))
    assert run.status == 0, run.output
    assert max_networks_per_gpu(run.paths.events) == 2
    assert {event.network for event in run.events(NetworkFinished)} == {"n0", "n1", "n2", "n3"}
    assert [len(run.history(f"n{number}")) for number in range(4)] == [1, 2, 3, 4]


def test_network_that_diverges_harms_no_other(launch, tmp_path):
    models = entries((0.01, 1e30, 0.03), optimizer="sgd")
    run = launch(2, content(tmp_path / "fused", models, fuse=3))
    alone = launch(2, content(tmp_path / "alone", models, fuse="off"))
    assert [event.network for event in run.events(NetworkFailed)] == ["n1"]
    assert_equal(run, alone, ("n0", "n2"))


def test_network_that_cannot_be_fused_is_reported_once(launch, tmp_path):
    model = {"build": "tests.fusing_modules:branching"}
    run = launch(2, content(tmp_path, entries(model=model), fuse=4))
    assert run.status == 0, run.output
    warnings = [event.warning for event in run.events(NetworkWarned)]
    assert len([text for text in warnings if "depends on values" in text]) == 1
    assert len(run.events(NetworkFinished)) == 4


def test_different_networks_are_fused_by_kind(launch, tmp_path):
    wide = {"family": "mlp", "args": {"hidden": [9]}}
    models = entries((0.01, 0.02))
    models += [
        {**model, "name": f"w{model['name']}"} for model in entries((0.01, 0.02), model=wide)
    ]
    run = launch(3, content(tmp_path, models, fuse=2))
    assert run.status == 0, run.output
    cluster = run.events(LaunchStarted)[0].cluster
    gpus = {}  # of the first group of each network
    for event in run.events(GroupStarted):
        gpus.setdefault(event.network, cluster.gpu(event.devices[0]))
    assert gpus["n0"] == gpus["n1"] != gpus["wn0"] == gpus["wn1"]


def test_fused_networks_resume_fused_or_alone(launch, tmp_path):
    uninterrupted = launch(2, content(tmp_path / "alone", entries(epochs=6), fuse="off"))
    for fuse in (4, "off"):
        folder = tmp_path / str(fuse)
        first = launch(2, content(folder, entries(epochs=3), fuse=4))
        second = launch(2, content(folder, entries(epochs=6), fuse=fuse))
        assert (first.status, second.status) == (0, 0), second.output
        assert_equal(second, uninterrupted)


def test_pruned_network_leaves_its_slot_to_another(launch, tmp_path):
    search = {
        "family": "mlp",
        "name": "s",
        "args": {"hidden": [6]},
        "space": {"train.optimizer.learning_rate": {"low": 0.001, "high": 0.1, "log": True}},
        "search": {"sampler": "random", "max_trials": 6},
        "train": {"stopping": {"max_epochs": 4}},
    }
    prune = {"rule": "asha", "min_epochs": 1, "factor": 2}
    run = launch(2, content(tmp_path, [search], fuse=3, prune=prune))
    assert run.status == 0, run.output
    assert [row.status for row in run.results().values()].count("pruned") > 0
    assert {row.status for row in run.results().values()} <= {"finished", "pruned", "paused"}


def test_streamed_samples_are_read_once_for_all(launch, tmp_path):
    data = {"validation": 0.2, "cache": "none", "shared_memory": "64KB"}
    models = entries()
    fused = launch(2, content(tmp_path / "fused", models, fuse=4, data=data))
    alone = launch(2, content(tmp_path / "alone", models, fuse="off", data=data))
    assert (fused.status, alone.status) == (0, 0), fused.output
    assert len(fused.history("n0")) == len(alone.history("n0"))


def test_one_rank_coordinates_and_fuses(launch, tmp_path):
    run = launch(1, content(tmp_path, entries(), fuse=4))
    assert run.status == 0, run.output
    assert max_networks_per_gpu(run.paths.events) == 4
