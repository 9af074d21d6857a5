"""Whole runs in which networks fail, permanently or temporarily."""

import dataclasses
import time

import pytest
from hypothesis import given

from fleet.control import retries
from fleet.domain import events as ev
from fleet.engines.softmax import SoftmaxRegression
from fleet.errors import ExitStatus
from fleet.storage.checkpoint import read_state, write_state
from fleet.storage.results import Status
from tests.fleet.runtime.one_run.runner import (
    FAILING,
    Runner,
    Writer,
    cases,
    failing_once,
    few,
    first_chunk_of,
    shaky,
)


@few
@given(cases(failing=True))
def test_failed_networks_are_rows_and_others_finish(folders, case):
    runner = Runner(case, folders())
    failing = {
        model["name"]: FAILING[model["build"]]
        for model in case.content["models"]
        if "build" in model
    }
    assert runner.launch() is (ExitStatus.NETWORK_FAILED if failing else ExitStatus.OK)
    for name, row in runner.results().items():
        assert row.status is (Status.FAILED if name in failing else Status.FINISHED)
        assert failing.get(name, "") in row.reason
    runner.check_epochs()


@pytest.mark.long_but_first
@pytest.mark.parametrize("policy", ["global", "baseline"])  # baseline measures no rates before
def test_retry_count_follows_spec_in_each_launch(folders, monkeypatch, policy):
    monkeypatch.setattr(retries, "_BACKOFF_S", 0.01)
    runner = shaky(folders(), failures=4, retries=2, policy=policy)
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    assert runner.results()["n0"].reason == "OSError: [Errno 116] Stale file handle"
    assert runner.launch() is ExitStatus.OK
    assert runner.results()["n0"].status is Status.FINISHED
    assert len(runner.events(ev.NetworkRetried)) == 2 + 1
    assert len(runner.events(ev.NetworkFailed)) == 1


def test_retry_continues_from_reported_state(folders, monkeypatch):
    def write_late(*arguments):
        time.sleep(0.2)
        write(*arguments)

    write = Writer._write
    monkeypatch.setattr(Writer, "_write", write_late)
    monkeypatch.setattr(retries, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(SoftmaxRegression, "step", failing_once(SoftmaxRegression.step, at=4))
    runner = shaky(folders(), failures=0, retries=1, epochs=2, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(ev.NetworkRetried)) == 1
    assert [event.record.epoch for event in runner.events(ev.EpochEnded)] == [1, 2]


@pytest.mark.long_but_first
@pytest.mark.parametrize("data", [{}, {"order": "ring", "shards": 2}], ids=["strict", "ring"])
def test_retry_of_replay_takes_the_remaining_epochs(folders, monkeypatch, data):
    monkeypatch.setattr(retries, "_BACKOFF_S", 0.01)
    runner = shaky(folders(), failures=0, retries=1, epochs=3, data=data, policy="global")
    assert runner.launch() is ExitStatus.OK
    last, consumed = runner.prepared.paths.last("n0"), runner.history("n0")
    if not data:  # as a network has them that was not in every round
        state = read_state(last)
        consumed = tuple(
            dataclasses.replace(record, stream_epoch=epoch)
            for record, epoch in zip(state.history, (0, 2, 5), strict=True)
        )
        write_state(last, dataclasses.replace(state, history=consumed))
    monkeypatch.setattr(SoftmaxRegression, "step", failing_once(SoftmaxRegression.step, at=8))
    assert runner.launch(replay=str(runner.folder / "run"), only="n0") is ExitStatus.OK
    assert len(runner.events(ev.NetworkRetried)) == 1
    assert [first_chunk_of(record) for record in runner.history("n0")] == [
        first_chunk_of(record) for record in consumed
    ]
