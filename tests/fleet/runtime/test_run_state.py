"""The state of a run in a launch equals the state replayed from its log, after each decision."""

from dataclasses import astuple

import pytest

from fleet.control.effects import LogEvent
from fleet.domain.timeline import replay_log
from fleet.runtime.coordinator import Coordinator
from fleet.spec import load
from fleet.storage.event_log import read_run
from tests.examples import long_but_first
from tests.fleet.runtime.test_searching import ENTRY, Run

pytestmark = pytest.mark.usefixtures("quick")

MODELS = [{"family": "softmax", "name": name} for name in "abc"]
SEARCH = [{**ENTRY, "search": {"sampler": "random", "max_trials": 6, "max_concurrent": 3}}]


class ComparingCoordinator(Coordinator):
    """A coordinator that compares its state with the replayed log after each decision."""

    comparisons = 0

    def _carry_out_all(self, effects):
        logs_event = any(isinstance(effect, LogEvent) for effect in effects)
        super()._carry_out_all(effects)
        run, paths = self._run, self.results.paths
        # Checkpoints are restored before the first events are logged.
        if not logs_event or not run.launch.has_begun:
            return
        ComparingCoordinator.comparisons += 1
        log = replay_log(read_run(paths), load(str(paths.spec)))
        # repr, because NaN is written as null and read as another NaN
        assert repr(statuses(log)) == repr(statuses(run)), effects
        assert len(log.epochs) == len(run.epochs)
        assert [record[1:] for record in log.records] == [record[1:] for record in run.records]
        launch, logged = run.launch, log.launch
        assert (launch.rates, launch.rounds, launch.plans, launch.removed_devices) == (
            logged.rates,
            logged.rounds,
            logged.plans,
            logged.removed_devices,
        )
        assert launch.checkpointing_s == pytest.approx(logged.checkpointing_s, abs=1e-4)


def statuses(run):
    return {
        name: (
            astuple(network.status),
            network.max_epochs,
            network.number,
            None if network.group is None else network.group.devices,
        )
        for name, network in sorted(run.networks.items())
    }


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("models", "parts"),
    long_but_first(
        (SEARCH, {"prune": {"rule": "asha", "factor": 2}}),
        (
            MODELS,
            {
                "data": {
                    "source": "tests.sources:numbered",
                    "path": "24",
                    "test": "8",
                    "transforms": ["decode", {"scale": {"mean": 0.5, "std": 0.5}}],
                }
            },
        ),
        (MODELS, {"schedule": {"policy": "baseline"}}),
        (MODELS, {"schedule": {"policy": "global"}}),
        (SEARCH, {"schedule": {"policy": "global"}}),
    ),
)
@pytest.mark.parametrize("turns", [60, 150])
def test_log_state_equals_launch_state_after_every_decision(
    models, parts, turns, tmp_path, monkeypatch
):
    monkeypatch.setattr("fleet.runtime.rank_zero.Coordinator", ComparingCoordinator)
    monkeypatch.setattr(ComparingCoordinator, "comparisons", 0)
    run = Run(tmp_path, {}, models=models, **parts)
    while run.launch(turns=turns * (1 + run.seed)) is None:
        assert run.seed < 20
    assert ComparingCoordinator.comparisons > 10
