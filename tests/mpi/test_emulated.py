"""The whole runtime with emulated training: real ranks, groups, stream, rounds and checkpoints."""

import json

import pytest

from fleet.domain.events import (
    EpochEnded,
    GroupChanged,
    GroupStarted,
    LaunchStarted,
    SharingLearned,
)
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import read_events
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates import rate
from scheduler.ensemble.rates_file import parse_rates
from tests.mpi.conftest import spec
from tests.slots import max_networks_per_gpu

SCALE = 0.05
RATES = {
    "samples_per_epoch": 200,
    "gpus_per_node": 4,
    "models": [
        {"name": f"n{i}", "rates": [single, 1.9 * single, 2.6 * single], "epochs": epochs}
        for i, (single, epochs) in enumerate(
            [(80.0, 4), (50.0, 2), (45.0, 3), (25.0, 1), (20.0, 2), (75.0, 3)]
        )
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_emulated_networks_train_all_epochs_at_their_rate(launch, tmp_path, policy):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": network["name"]} for network in RATES["models"]],
        data={
            "source": "builtin:noise",
            "path": None,
            "options": {"samples": 200, "validation": 20},
            "transforms": [],
        },
        train={"batch": {"size": 20}, "optimizer": {"name": "adam"}},
        schedule={"policy": policy, "rates": str(tmp_path / "rates.json")},
        resources={"engine": "emulated", "time_scale": SCALE, "preprocessors": "auto"},
    )
    run = launch(5, content)
    assert run.status == 0, run.output
    networks = {network.name: network for network in parse_rates(RATES).models}
    for name, network in networks.items():
        state = read_state(run.paths.last(name))
        assert state.epoch == network.epochs
        # Each sample once per epoch.
        assert state.arrays["weights"][:11].tolist() == [20 * network.epochs] * 10 + [0]
        losses = [record.loss for record in state.history]
        assert losses == sorted(losses, reverse=True)
    log = list(read_events(run.paths.events))
    started = {
        event.network: t_s for t_s, event in reversed(log) if isinstance(event, GroupStarted)
    }
    for name, network in networks.items():
        epochs = [
            (t_s, event.record)
            for t_s, event in log
            if isinstance(event, EpochEnded) and event.network == name
        ]
        fastest = sum(SCALE * 200 / rate(network, epoch.gpus) for _, epoch in epochs)
        # Possibly within an epoch.
        if not any(change.network == name for change in run.events(GroupChanged)):
            assert epochs[-1][0] - started[name] >= fastest


@pytest.mark.long
@pytest.mark.parametrize("slots", [2, "auto"])
def test_emulated_networks_share_gpus_and_learn_sharing(launch, tmp_path, slots):
    rates = {
        "samples_per_epoch": 200,
        "gpus_per_node": 2,
        **({"sharing": [1, 1.6]} if slots == 2 else {}),
        "models": [{"name": f"n{i}", "rates": [100.0, 190.0], "epochs": 4} for i in range(6)],
    }
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": network["name"]} for network in rates["models"]],
        data={
            "source": "builtin:noise",
            "path": None,
            "options": {"samples": 200, "validation": 20},
            "transforms": [],
            "cache": "memory",
        },
        train={"batch": {"size": 10}},
        schedule={"policy": "adaptive", "rates": str(tmp_path / "rates.json")},
        resources={
            "engine": "emulated",
            "time_scale": 0.5,
            "preprocessors": 1,
            "gpus_per_node": 2,
            "networks_per_gpu": slots,
        },
    )
    run = launch(5, content)
    assert run.status == 0, run.output
    (start,) = run.events(LaunchStarted)
    assert (start.slots, start.cluster.whole_gpus, len(start.devices)) == (2, 2, 4)
    assert max_networks_per_gpu(run.paths.events) == 2
    # As the file says; without an entry, two are assumed to train 1.6 times as much, and the
    # emulated networks do.
    assert run.events(SharingLearned)[-1].speedups == pytest.approx((1.0, 1.6), abs=0.3)
    tables = [read_state(run.paths.last(f"n{i}")).arrays["weights"][:10].tolist() for i in range(6)]
    assert tables == [[20 * 4] * 10] * 6  # each sample once per epoch
