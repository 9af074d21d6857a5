"""With stored samples, results do not depend on the schedule: equal bits under every policy."""

from itertools import product

import pytest

from fleet.domain.events import CacheChosen, GroupStarted, NetworkRetried, RatesEstimated
from fleet.engines.softmax import NumpyEngine
from fleet.errors import ExitStatus
from fleet.storage.event_log import events_of
from fleet.storage.results import read_results
from scheduler.ensemble.policies import POLICIES
from tests.fleet.runtime.runs import launch, write
from tests.slots import max_networks_per_gpu, networks_beside

DIGITS = {
    "source": "builtin:digits",
    "transforms": [
        {"decode": {"mode": "L"}},
        {"resize": {"size": [8, 8]}},
        {"random_crop": {"size": [8, 8], "padding": 1}},
        {"scale": {"mean": 0.5, "std": 0.5}},
    ],
}
# Nine networks whose groups have one size each: groups of another size sum in another order.
MODELS = [
    {
        "family": "softmax",
        "name": f"n{number}",
        "gpus": 2 if number % 4 == 3 else 1,
        "train": {
            "batch": {"size": (32, 64, 128)[number % 3]},
            "optimizer": {"learning_rate": (0.02, 0.05, 0.1)[number // 3]},
            "stopping": {"max_epochs": 1 + number % 3},
        },
    }
    for number in range(9)
]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Train the ensemble; return the run's paths and its results without durations."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def train(name, seed=1, ranks=5, **parts):
        status, prepared = launch(
            write(
                tmp_path / name,
                MODELS,
                resources={"engine": "numpy", **parts.pop("resources", {})},
                data={**DIGITS, "path": str(tmp_path / "digits"), **parts.pop("data", {})},
                train={"optimizer": {"momentum": 0.9}},
                **parts,
            ),
            ranks,
            seed=seed,
        )
        assert status is ExitStatus.OK
        rows = {
            row.name: (
                row.epochs,
                row.best_epoch,
                row.loss,
                row.accuracy,
                row.val_loss,
                row.val_accuracy,
            )
            for row in read_results(prepared.paths.root)
        }
        return prepared.paths, rows

    return train


ALL = tuple(product(POLICIES, (1, 2)))


@pytest.mark.parametrize(
    "launches",
    [(("global", 1), ("adaptive", 2)), pytest.param(ALL, marks=pytest.mark.long)],
    ids=len,
)
def test_schedules_do_not_change_results_of_stored_samples(table, launches):
    """Each policy, with a GPU for each trainer, and with GPUs that two trainers share.

    The first run learns rates from training; the others begin with what it has learned.
    """
    tables, orders = {}, set()
    for seed, (policy, slots) in enumerate(launches):
        paths, tables[policy, slots] = table(
            f"{policy}-{slots}",
            seed,
            schedule={"policy": policy},
            resources={"gpus_per_node": 4 // slots, "networks_per_gpu": slots},
        )
        (stored,) = events_of(paths.events, CacheChosen)
        assert stored.shuffle == "network"
        assert bool(events_of(paths.events, RatesEstimated)) == POLICIES[policy].needs_rates
        assert max_networks_per_gpu(paths.events) == slots
        orders.add(tuple(event.network for event in events_of(paths.events, GroupStarted)))
    assert len(orders) > len(launches) // 2  # networks were trained in different orders
    assert tables == dict.fromkeys(launches, tables["global", 1])


@pytest.mark.long
def test_out_of_memory_network_is_trained_alone_next_time(table, monkeypatch):
    build, fails = NumpyEngine.build, ["once"]

    def short_of_memory(engine, network, group):
        if network.name == "n0" and fails:
            raise MemoryError(fails.pop())
        return build(engine, network, group)

    monkeypatch.setattr(NumpyEngine, "build", short_of_memory)
    for name in ("first", "second"):
        paths, _ = table(name, resources={"gpus_per_node": 2, "networks_per_gpu": 2})
        assert [event.alone for event in events_of(paths.events, NetworkRetried)] == [True][
            name == "second" :
        ]
        assert max_networks_per_gpu(paths.events) == 2
        assert networks_beside(paths.events, "n0")[-1] == set()


@pytest.mark.long
def test_schedules_with_any_cache_have_equal_results(table):
    """Trainers prepare their samples, decoded once or repeatedly, alone or with preprocessors."""
    first = table("memory", schedule={"policy": "adaptive"})[1]
    for name, ranks, cache in (
        ("none", 5, "none"),
        ("file", 5, "file"),
        ("own", 5, "memory"),
        ("ranks", 4, "auto"),
    ):
        policy = "adaptive" if name == "ranks" else "baseline"
        assert (
            table(name, ranks=ranks, data={"cache": cache}, schedule={"policy": policy})[1] == first
        )
