"""Whole runs, all ranks in one process: orders of samples, and policies."""

import dataclasses
import sys

import pytest

from fleet.domain import events as ev
from fleet.errors import ExitStatus, UserError
from fleet.storage.event_log import read_events
from fleet.stream.filler import WindowFiller
from tests.fleet.runtime.one_run.runner import Case, Runner


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "data",
    [{"source": "tests.sources:numbered"}, {"source": "tests.sources:unvalidated", "folds": 2}],
    ids=["whole", "folds"],
)
def test_ring_resumed_network_waits_for_no_earlier_chunk(folders, monkeypatch, data):
    """It chooses a chunk before the preprocessors have begun; any shard would be useful."""
    content = {
        "models": [{"family": "softmax", "name": "old"}],
        "data": {
            **data,
            "path": "24",
            "order": "ring",
            "shards": 4,
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 2}},
        "schedule": {"policy": "global"},
        "resources": {"engine": "numpy", "preprocessors": 1},
    }
    runner = Runner(Case(content, (0, 0), 1, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    trained = max(
        record.stream_epoch for name in runner.results() for record in runner.history(name)
    )
    step, chosen = WindowFiller.step, []

    def late(filler):
        chunk = filler._window.fastest_reader()
        if not chosen and chunk is not None:
            chosen.append(chunk)
        return step(filler) if chosen else False

    monkeypatch.setattr(WindowFiller, "step", late)
    more = {**content, "models": [*content["models"], {"family": "softmax", "name": "new"}]}
    resumed = Runner(dataclasses.replace(runner.case, content=more), runner.folder)
    assert resumed.launch() is ExitStatus.OK
    assert chosen == [resumed.prepared.layout.sequence(trained + 1, 0)]


OWN_POLICY = """
from scheduler.base import Member, Round

def policy(rates, progress, cluster, options):
    if progress.epochs_done and FAILS:
        raise LookupError("no plan")
    names = [network.name for network in rates.models if network.name not in progress.finished]
    return Round(tuple(Member(name, (device,)) for name, device in zip(names, cluster.devices)))
"""


def test_policy_custom_failure_ends_run_and_run_resumes(folders, monkeypatch):
    folder = folders()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "live_policy", raising=False)
    (folder / "live_policy.py").write_text(f"FAILS = True\n{OWN_POLICY}")
    models = [
        {"family": "softmax", "name": name, "train": {"stopping": {"max_epochs": 2}}}
        for name in "ab"
    ]
    content = {
        "models": models,
        "resources": {"engine": "numpy"},
        "train": {"batch": {"size": 4}},
        "data": {
            "source": "tests.sources:numbered",
            "path": "40",
            "cache": "none",
            "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "schedule": {
            "policy": "live_policy:policy",
            "rates": {
                "samples_per_epoch": 40,
                "gpus_per_node": 2,
                "models": [{"name": name, "rates": [1.0]} for name in "ab"],
            },
        },
    }
    runner = Runner(Case(content, (0,) * 3, 8, 3, 1), folder)
    with pytest.raises(
        UserError, match="the policy live_policy:policy failed: LookupError: no plan"
    ):
        runner.launch()
    monkeypatch.setattr(sys.modules["live_policy"], "FAILS", False)
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.long_but_first
@pytest.mark.parametrize("seed", range(4))
def test_lockstep_groups_of_a_round_share_stream_epochs(folders, seed):
    epochs = {"n0": 1, "n1": 4, "n2": 2, "n3": 3, "n4": 2}
    content = {
        "models": [
            {"family": "softmax", "name": name, "train": {"stopping": {"max_epochs": count}}}
            for name, count in epochs.items()
        ],
        "schedule": {
            "policy": "global",
            "rates": {
                "samples_per_epoch": 24,
                "gpus_per_node": 4,
                "models": [{"name": name, "rates": [10.0, 19.0]} for name in epochs],
            },
        },
        "resources": {"engine": "numpy"},
        "train": {"batch": {"size": 4}},
        "data": {
            "source": "tests.sources:numbered",
            "path": "24",
            "cache": "none",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
    }
    runner = Runner(Case(content, (0,) * 5, 4, 1, seed), folders())
    assert runner.launch() is ExitStatus.OK
    began, last, final = {}, {}, set()  # network -> epochs of the stream
    for _, event in read_events(runner.prepared.paths.events):
        if isinstance(event, ev.GroupStarted):
            began[event.network] = event.stream_epoch
            final.discard(event.network)
        elif isinstance(event, ev.EpochEnded):
            last[event.network] = event.record.stream_epoch
        elif isinstance(event, ev.NetworkFinished):
            final.add(event.network)
        elif isinstance(event, ev.RoundStarted | ev.LaunchEnded):
            assert len(set(began.values())) <= 1
            assert len({last[name] for name in began.keys() - final}) <= 1
            began.clear()
