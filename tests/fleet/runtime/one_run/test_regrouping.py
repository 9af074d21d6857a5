"""Whole runs whose groups change their devices while they train."""

from functools import partial

import pytest
from hypothesis import given

from fleet.domain import events as ev
from fleet.engines.softmax import NumpyEngine
from fleet.errors import ExitStatus
from fleet.storage.results import Status
from scheduler.base import Member, Round
from scheduler.ensemble.policies import POLICIES, Policy
from tests.examples import long_but_first
from tests.fleet.control.test_random_launches import restless
from tests.fleet.runtime.one_run.runner import Case, Runner, cases, few


@pytest.fixture(params=long_but_first("adaptive", "restless"))
def regrouping(request):
    """Whole runs of a case under a policy that changes running groups."""

    def runner(case, folder):
        if request.param == "restless":
            patch.setitem(
                POLICIES, "adaptive", Policy("adaptive", partial(restless, seed=case.seed))
            )
        return Runner(case, folder)

    with pytest.MonkeyPatch.context() as patch:
        yield runner


@few
@given(cases(regroups=True, failing=True))
def test_networks_that_fail_while_groups_change_are_rows(regrouping, folders, case):
    runner = regrouping(case, folders())
    failing = {model["name"] for model in case.content["models"] if "build" in model}
    assert runner.launch() is (ExitStatus.NETWORK_FAILED if failing else ExitStatus.OK)
    assert {
        name for name, row in runner.results().items() if row.status is Status.FAILED
    } == failing
    runner.check_epochs()
    for regroup in runner.events(ev.GroupChanged):
        assert set(regroup.before) != set(regroup.devices)
        assert regroup.devices[0] in regroup.before


def test_joining_rank_build_failure_fails_all_ranks(folders, monkeypatch):
    build = NumpyEngine.build

    def small(engine, network, group):
        # a group smaller than the minimum is that of a rank that will join
        if network.name == "grows" and group.size < network.min_gpus:
            raise MemoryError("wanted 3 GB")
        return build(engine, network, group)

    monkeypatch.setattr(NumpyEngine, "build", small)
    models = [
        {"family": "softmax", "name": "ends", "gpus": 2, "train": {"stopping": {"max_epochs": 1}}},
        {
            "family": "softmax",
            "name": "grows",
            "gpus": [2, 4],
            "train": {"stopping": {"max_epochs": 200}},
        },
        {"family": "softmax", "name": "waits", "gpus": 3, "train": {"stopping": {"max_epochs": 1}}},
    ]
    rates = [
        {"name": "ends", "rates": [1.0, 2.0]},
        {"name": "grows", "rates": [1.0, 2.0, 3.0, 4.0]},
        {"name": "waits", "rates": [0.1, 0.2, 0.3]},
    ]

    def next_round(rates, progress, cluster, options):
        if "grows" in progress.finished:
            return Round((Member("waits", (0, 1, 2)),))
        if "ends" in progress.finished:
            return Round((Member("grows", (2, 3, 0, 1)),))
        return Round((Member("ends", (0, 1)), Member("grows", (2, 3))))

    monkeypatch.setitem(POLICIES, "adaptive", Policy("adaptive", next_round))
    content = {
        "models": models,
        "resources": {"engine": "numpy"},
        "train": {"batch": {"size": 4}},
        "data": {
            "source": "tests.sources:numbered",
            "path": "40",
            "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "schedule": {
            "policy": "adaptive",
            "rates": {"samples_per_epoch": 40, "gpus_per_node": 4, "models": rates},
        },
    }
    runner = Runner(Case(content, (0,) * 5, 8, 3, 1), folders())
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    rows = runner.results()
    assert {name: row.status for name, row in rows.items()} == {
        "ends": Status.FINISHED,
        "grows": Status.FAILED,
        "waits": Status.FINISHED,
    }
    assert "out of memory: MemoryError: wanted 3 GB" in rows["grows"].reason
    assert rows["grows"].epochs < 200
