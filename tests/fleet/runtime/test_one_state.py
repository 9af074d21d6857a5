"""What a launch knows of its run after each event, beside what the log says: one state, however it comes about."""

import json
from dataclasses import astuple

import pytest

from fleet.domain.events import CheckpointStatus, NetworkFinished
from fleet.monitor.timeline import replay_log
from fleet.runtime.resume import resume
from fleet.spec import load
from fleet.storage.event_log import read_run
from fleet.storage.paths import RunPaths
from tests.examples import long_but_first
from tests.fleet.runtime.runs import prepare
from tests.fleet.runtime.test_searching import ENTRY, Run

pytestmark = pytest.mark.usefixtures("quick")

MODELS = [{"family": "softmax", "name": name} for name in "abc"]
SEARCH = [{**ENTRY, "search": {"sampler": "random", "max_trials": 6, "max_concurrent": 3}}]


class Beside:
    """A view that compares the state of a launch with what the log says, after each event."""

    def __init__(self, run, paths):
        self.run, self.paths, self.seen = run, paths, 0

    def on_event(self, event):
        self.seen += 1
        log = replay_log(read_run(self.paths), load(str(self.paths.spec)))
        if not self.run.launch.has_begun:  # what is logged late is known before
            return
        # NaN is written as null, and read as another one.
        assert repr(known(log)) == repr(known(self.run)), event
        assert len(log.epochs) == len(self.run.epochs)
        assert [record[1:] for record in log.records] == [record[1:] for record in self.run.records]
        own_rows, expected = self.run.launch, log.launch
        assert (own_rows.rates, own_rows.rounds, own_rows.plans, own_rows.removed_devices) == (
            expected.rates,
            expected.rounds,
            expected.plans,
            expected.removed_devices,
        )
        assert own_rows.checkpointing_s == pytest.approx(expected.checkpointing_s, abs=1e-4)

    def on_pace(self, *pace):
        """Nothing is logged of that."""

    def close(self):
        """Nothing is held."""


def known(run):
    return {
        name: (
            astuple(network.status),
            network.max_epochs,
            network.number,
            None if network.group is None else network.group.devices,
        )
        for name, network in sorted(run.networks.items())
    }


@pytest.mark.parametrize(
    ("models", "rest"),
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
def test_log_state_equals_launch_state_after_every_event(
    models, rest, turns, tmp_path, monkeypatch
):
    views = []

    def make_view(run, plain):
        views.append(Beside(run, RunPaths(tmp_path / "run")))
        return views[-1]

    monkeypatch.setattr("fleet.runtime.rank_zero.make_view", make_view)
    run = Run(tmp_path, {}, models=models, **rest)
    while run.launch(turns=turns * (1 + run.seed)) is None:
        assert run.seed < 20
    assert sum(view.seen for view in views) > 30


def test_log_finish_reason_of_killed_launch_is_added(
    tmp_path,
):
    run = Run(tmp_path, {}, models=MODELS, epochs=2)
    assert run.launch() == 0
    results = [resume(prepare(run.path, (0, 0, 0), shares_run=True)).statuses]
    lines = run.paths.events.read_text().splitlines(keepends=True)
    ends = [
        line
        for line in lines
        if json.loads(line)["event"] == NetworkFinished.word and '"b"' in line
    ]
    run.paths.events.write_text("".join(line for line in lines if line not in ends))
    results.append(resume(prepare(run.path, (0, 0, 0), shares_run=True)).statuses)
    assert results == [{}, {"b": CheckpointStatus(2, json.loads(ends[0])["reason"])}]
