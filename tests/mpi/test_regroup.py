"""Groups change their ranks while they train, without a checkpoint, with equal results (numpy)."""

import json

import pytest

from fleet.domain.events import GroupChanged, GroupStarted
from tests.mpi.conftest import ROOT, spec
from tests.mpi.test_training import replayed


def adaptive(tmp_path, models, rates, **parts):
    """Return a spec under `adaptive` with rates that say what more GPUs are worth."""
    table = [{"name": model["name"], "rates": rates} for model in models]
    (tmp_path / "rates.json").write_text(
        json.dumps({"samples_per_epoch": 200, "gpus_per_node": len(rates), "models": table})
    )
    return spec(
        tmp_path,
        models,
        samples=200,
        source="slow",
        **parts,
        schedule={"policy": "adaptive", "rates": str(tmp_path / "rates.json")},
    )


def test_regroup_adds_freed_devices_within_an_epoch(launch, tmp_path):
    models = [
        {
            "family": "softmax",
            "name": f"n{index}",
            "train": {"stopping": {"max_epochs": 1 + 3 * index}},
        }
        for index in range(2)
    ]
    content = adaptive(tmp_path, models, [100.0, 200.0])
    run = launch(3, content)
    assert run.status == 0, run.output
    longest = models[-1]["name"]
    grown = [event for event in run.events(GroupChanged) if event.network == longest]
    assert [event.position > 0 for event in grown].count(True) >= 1
    assert len(grown[-1].devices) == 2
    # Never restarted.
    assert len([event for event in run.events(GroupStarted) if event.network == longest]) == 1
    for model in models:
        assert replayed(launch, content, run, model["name"]) < 1e-9


@pytest.mark.long
def test_regroup_shrinks_swaps_devices_and_changes_master(launch, tmp_path):
    models = [
        {"family": "softmax", "name": name, "train": {"stopping": {"max_epochs": 7}}}
        for name in "ab"
    ]
    content = adaptive(tmp_path, models, [100.0, 200.0, 300.0, 400.0], train={"batch": {"size": 7}})
    rounds = [
        ("a", 0, {"a": [0, 1, 2], "b": [3]}),
        ("a", 1, {"a": [2, 1], "b": [3, 0]}),  # the master moves to the other group
        ("a", 3, {"a": [1], "b": [0, 2, 3]}),  # and back
        ("a", 5, {"a": [1, 3, 0], "b": [2]}),
    ]
    run = launch(
        5,
        content,
        program=(str(ROOT / "tests/mpi/scripted_policy.py"),),
        environment={"FLEET_TEST_ROUNDS": json.dumps(rounds)},
    )
    assert run.status == 0, run.output
    changes = [
        (event.before, event.devices) for event in run.events(GroupChanged) if event.network == "a"
    ]
    assert changes[:2] == [((0, 1, 2), (1, 2)), ((1, 2), (1,))]
    assert len(run.events(GroupStarted)) == 2
    for name in "ab":
        assert replayed(launch, content, run, name) < 1e-9
