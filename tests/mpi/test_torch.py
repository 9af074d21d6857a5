"""PyTorch in every rank: exchanges, splits, changing groups, deaths, replays."""

import json

import numpy as np
import pytest

from fleet.domain.events import GroupChanged, GroupFailed, NetworkRetried
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import read_state
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import ROOT, Launcher, spec
from tests.mpi.test_survival import DYING, EPOCHS, STEP, check
from tests.slots import max_networks_per_gpu, networks_beside

pytestmark = [pytest.mark.torch, pytest.mark.long]

# Without batch normalization and dropout, a split changes only the order of
# sums.
PLAIN = {"family": "cnn", "args": {"filters": [4], "dense": [8], "norm": "none"}}
NAMES = ("full", "pair", "three", "mixed")


def networks(pinned):
    sgd = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.001}
    cosine = {"name": "CosineDecay", "initial_learning_rate": 0.01, "decay_steps": 40}
    return [
        {
            **PLAIN,
            "name": "full",
            "gpus": 3 if pinned else 1,
            "train": {"optimizer": sgd, "batch": {"size": 50}},
        },
        {
            "build": "tests.torch_modules:viewing",
            "name": "pair",
            "gpus": 2 if pinned else 1,
            "train": {"optimizer": {"name": "adam", "learning_rate": cosine}, "batch": {"size": 7}},
        },
        {
            "family": "resnet",
            "name": "three",
            "args": {"blocks": [1, 1], "width": 4, "norm": "none"},
            "gpus": 3 if pinned else 1,
            "train": {"optimizer": {**sgd, "global_clipnorm": 1.0}},
        },
        {
            **PLAIN,
            "name": "mixed",
            "gpus": 3 if pinned else 1,
            "train": {"batch": {"size": 7}, "batch_transforms": ["mixup", "cutmix"]},
        },
    ]


def torch_spec(tmp_path, models, ranks=3, **parts):
    rates = tmp_path / "rates.json"
    rates.write_text(
        json.dumps(
            {
                "samples_per_epoch": 50,
                "gpus_per_node": ranks,
                "models": [
                    {"name": model["name"], "rates": [100.0 + 10 * rank for rank in range(ranks)]}
                    for model in models
                ],
            }
        )
    )
    parts = {
        "samples": 50,
        "train": {"batch": {"size": 16}, "stopping": {"max_epochs": 2}},
        **parts,
        "resources": {"engine": "torch", **parts.get("resources", {})},
        "schedule": {"policy": "baseline", **parts.get("schedule", {}), "rates": str(rates)},
    }
    return spec(tmp_path, models, **parts)


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Train the same networks alone, and in groups of two and three ranks with either exchange."""
    results = {}
    for case in ("alone", "mpi", "library"):
        tmp_path = tmp_path_factory.mktemp(case)
        content = torch_spec(
            tmp_path,
            networks(pinned=case != "alone"),
            resources={} if case == "alone" else {"exchange": case},
        )
        run = Launcher(tmp_path)(1 if case == "alone" else 4, content, timeout=240)
        assert run.status == 0, run.output
        if case != "alone":
            messages = f"training on ranks (1, 2, 3) from stream epoch 0; gradient exchange: {case}"
            assert messages in run.paths.log(1).read_text()
        assert not list(run.paths.root.glob(".exchange-*"))
        results[case] = {name: run.history(name) for name in NAMES}
    return results


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exchange", ["mpi", "library"])
def test_torch_groups_match_the_losses_of_one_rank(histories, exchange, name):
    assert largest_difference(histories["alone"][name], histories[exchange][name]) < 1e-5


@pytest.mark.parametrize("exchange", ["mpi", "library"])
def test_torch_groups_that_change_train_as_if_alone(tmp_path, exchange):
    models = [{**PLAIN, "name": name, "train": {"stopping": {"max_epochs": 7}}} for name in "ab"]
    content = torch_spec(
        tmp_path,
        models,
        4,
        samples=200,
        source="slow",
        train={"batch": {"size": 7}},
        schedule={"policy": "adaptive"},
        resources={"exchange": exchange},
    )
    rounds = [
        ("a", 0, {"a": [0, 1, 2], "b": [3]}),
        ("a", 1, {"a": [2, 1], "b": [3, 0]}),
        ("a", 3, {"a": [1], "b": [0, 2, 3]}),
        ("a", 5, {"a": [1, 3, 0], "b": [2]}),
    ]
    launch = Launcher(tmp_path)
    run = launch(
        5,
        content,
        program=(str(ROOT / "tests/mpi/scripted_policy.py"),),
        timeout=240,
        environment={"FLEET_TEST_ROUNDS": json.dumps(rounds)},
    )
    assert run.status == 0, run.output
    assert len(run.events(GroupChanged)) >= 3
    again = launch(
        1,
        content,
        str(run.paths.root),
        "a",
        "b",
        timeout=240,
        program=(str(ROOT / "tests/mpi/replay_networks.py"),),
    )
    assert again.status == 0, again.output
    for name in "ab":
        assert run.differs(name) < 1e-4


@pytest.mark.parametrize("exchange", ["mpi", "library"])
def test_torch_survival_of_a_death_in_a_group(tmp_path, exchange):
    content = torch_spec(
        tmp_path,
        [{**PLAIN, "name": "pair", "gpus": 2}, {**PLAIN, "name": "one", "gpus": 1}],
        samples=100,
        source="slow",
        train={"batch": {"size": 8}, "stopping": {"max_epochs": EPOCHS}},
        resources={"exchange": exchange},
        schedule={"policy": "adaptive"},
    )
    launch = Launcher(tmp_path)
    run = launch(
        4,
        content,
        program=DYING,
        survive=True,
        timeout=300,
        environment={"FLEET_TEST_DEATHS": json.dumps({"2": (STEP, 30)})},
    )
    assert run.status == 0, run.output
    assert [event.network for event in run.events(GroupFailed)] == ["pair"]
    check(launch, run, content, names=())


def test_torch_out_of_memory_on_shared_gpu_trains_alone(tmp_path):
    models = [
        {
            "build": "tests.torch_modules:short_of_memory",
            "name": "short",
            "gpus": 2,
            "args": {"flag": str(tmp_path / "flag")},
        },
        *({**PLAIN, "name": name} for name in "abc"),
    ]
    content = torch_spec(
        tmp_path,
        models,
        samples=100,
        source="slow",
        schedule={"policy": "global"},
        resources={"gpus_per_node": 2, "networks_per_gpu": 2, "preprocessors": 1},
    )
    run = Launcher(tmp_path)(5, content, timeout=240)
    assert run.status == 0, run.output
    assert [(event.network, event.alone) for event in run.events(NetworkRetried)] == [
        ("short", True)
    ]
    assert "short failed: out of memory: OutOfMemoryError" in run.output
    assert max_networks_per_gpu(run.paths.events) == 2
    assert networks_beside(run.paths.events, "short")[-1] == set()
    assert len(run.history("short")) == 2


CHILDREN = """
from tests.torch_modules import dense

class Searcher:
    def __init__(self, space, seed, mode):
        pass

    def ask(self, number):
        rate = {"train.optimizer.learning_rate": 0.02 / (1 + number)}
        return [rate, {**rate, "parent": 0}, None][number]

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        pass

def net(input_shape, classes):
    return dense(input_shape, classes, units=8)
"""


def test_torch_child_resumes_and_changed_module_is_refused(tmp_path):
    (tmp_path / "own_modules.py").write_text(CHILDREN)
    model = {
        "build": "own_modules:net",
        "name": "net",
        "train": {"optimizer": {"name": "adam", "use_ema": True}},
        "space": {"train.optimizer.learning_rate": {"low": 0.001, "high": 0.1}},
        "search": {"sampler": "own_modules:Searcher", "max_trials": 2, "max_concurrent": 1},
    }
    content = torch_spec(tmp_path, [model])
    del content["schedule"]["rates"]
    run = Launcher(tmp_path)(2, content, timeout=120)
    assert run.status == 0, run.output
    parent, child = (read_state(run.paths.last(f"net-{number}")) for number in range(2))
    started = read_state(run.paths.first("net-1")).arrays
    assert all(np.array_equal(array, parent.arrays[name]) for name, array in started.items())
    steps = "optimizer/iterations"
    assert child.arrays[steps] == 2 * parent.arrays[steps]
    assert [record.learning_rate for record in child.history] == [pytest.approx(0.01)] * 2
    (tmp_path / "own_modules.py").write_text(CHILDREN.replace("units=8", "units=9"))
    refused = Launcher(tmp_path)(2, content, timeout=120)
    assert refused.status == 2
    assert "net-0 (own_modules.py)" in refused.output


DETERMINISTIC = {
    "family": "cnn",
    "name": "one",
    "args": {"filters": [8, 8], "dense": [8], "dropout": 0.2},
    "gpus": 2,
    "train": {"deterministic": True, "optimizer": {"name": "nadam", "learning_rate": 0.01}},
}


def test_torch_deterministic_network_replays_exactly(tmp_path):
    """Launch four epochs; two epochs resumed for two more; and a replay."""
    states = []
    for name, pieces in (("whole", (4,)), ("resumed", (2, 4))):
        launch = Launcher(tmp_path)
        for epochs in pieces:
            content = torch_spec(
                tmp_path,
                [DETERMINISTIC],
                output=str(tmp_path / name),
                train={"batch": {"size": 16}, "stopping": {"max_epochs": epochs}},
            )
            run = launch(3, content, "--plain", timeout=240)
            assert run.status == 0, run.output
        states.append(read_state(run.paths.last("one")))
    complete, resumed = states
    assert largest_difference(complete.history, resumed.history) == 0.0
    assert all(
        np.array_equal(array, resumed.arrays[name]) for name, array in complete.arrays.items()
    )
    again = launch(3, content, "--replay", str(run.paths.root), "--only", "one", timeout=120)
    assert again.status == 0, again.output
    assert "val_accuracy: bitwise equal in all of 4 epochs" in again.output
    replay = read_state(RunPaths(run.paths.replay("one")).last("one"))
    assert all(
        np.array_equal(array, replay.arrays[name]) for name, array in complete.arrays.items()
    )
