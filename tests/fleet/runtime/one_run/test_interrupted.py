"""Whole runs that are interrupted and resumed."""

import dataclasses
import time
from collections import Counter

import pytest
from hypothesis import given

from fleet.engines.softmax import SoftmaxRegression
from fleet.errors import ExitStatus
from fleet.runtime.coordinator import Coordinator
from fleet.storage import event_log, verified_hdf5
from fleet.storage.checkpoint import find_newest
from fleet.storage.results import Status
from tests.fleet.runtime.one_run.runner import Runner, cases, counting, few, shaky
from tests.fleet.runtime.runs import Interruption, Signal


class Hurry(Interruption):
    """A walltime without time left for another epoch, in which running epochs finish."""

    def seconds_left(self):
        return 0.0


@pytest.mark.long
@few
@given(cases())
def test_launches_short_of_time_finish_round_by_round(folders, case):
    runner = Runner(case, folders())
    for _ in range(1 + len(case.content["models"])):
        done = 0
        if runner.path.with_name("run").exists():
            done = sum(row.epochs for row in runner.results().values())
        if runner.launch(Hurry()) is ExitStatus.OK:
            break
        assert sum(row.epochs for row in runner.results().values()) > done
    runner.check_epochs()
    assert {row.status for row in runner.results().values()} == {Status.FINISHED}


def test_resume_reads_each_line_and_checkpoint_once(folders, monkeypatch):
    runner = shaky(
        folders(), failures=0, retries=0, epochs=9, policy="baseline", checkpoint={"keep": "last"}
    )
    signal = Signal()
    with monkeypatch.context() as patched:
        patched.setattr(
            SoftmaxRegression,
            "step",
            counting(SoftmaxRegression.step, {10: lambda: setattr(signal, "has_come", True)}),
        )
        assert runner.launch(signal) is ExitStatus.RESUMABLE
    epochs = len(runner.history("n0"))
    assert 0 < epochs < 9
    read, start = Counter(), Coordinator.start

    def counted(function, kind):
        def count(first, *arguments):
            read[kind(first)] += 1
            return function(first, *arguments)

        return count

    def started(coordinator, *arguments):
        assert (read["epoch"], read["last.h5"], read["previous.h5"]) == (epochs, 1, 0)
        read["started"] += 1
        start(coordinator, *arguments)

    monkeypatch.setattr(
        event_log, "event_from_json", counted(event_log.event_from_json, lambda line: line["event"])
    )
    monkeypatch.setattr(
        verified_hdf5, "_read_block", counted(verified_hdf5._read_block, lambda path: path.name)
    )
    monkeypatch.setattr(Coordinator, "start", started)
    assert runner.launch() is ExitStatus.OK
    assert read["started"] == 1


@pytest.mark.long
@pytest.mark.long_but_first
@pytest.mark.parametrize("checkpoint", [{}, {"every": "0.001s"}], ids=["between", "within"])
def test_interrupted_epoch_sums_the_time_of_its_parts(folders, monkeypatch, checkpoint):
    signal = Signal()
    monkeypatch.setattr(
        SoftmaxRegression,
        "step",
        counting(
            SoftmaxRegression.step,
            {1: lambda: time.sleep(0.3), 2: lambda: setattr(signal, "has_come", True)},
        ),
    )
    runner = shaky(
        folders(),
        failures=0,
        retries=0,
        data={"path": "24"},
        policy="baseline",
        checkpoint=checkpoint,
    )
    spent = 0.0
    for interruption, status in ((signal, ExitStatus.RESUMABLE), (None, ExitStatus.OK)):
        began = time.perf_counter()
        assert runner.launch(interruption) is status
        spent += time.perf_counter() - began
    (record,) = runner.history("n0")
    assert 0.3 <= record.seconds < spent
    assert 0 < record.waited_s < record.seconds


@pytest.mark.long_but_first
@pytest.mark.parametrize("spare_slots", [0, 5])
def test_group_reads_the_ring_on_after_a_checkpoint(folders, spare_slots):
    runner = shaky(
        folders(),
        failures=0,
        retries=0,
        epochs=2,
        data={"order": "ring", "shards": 3},
        checkpoint={"every": "0.001s"},
        gpus=2,
        policy="local",
    )
    runner.case = dataclasses.replace(runner.case, spare_slots=spare_slots)
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.long_but_first
@pytest.mark.parametrize("gpus", [1, 2])
def test_interrupted_evaluation_is_repeated_without_training(folders, monkeypatch, gpus):
    signal, steps = Signal(), []
    monkeypatch.setattr(
        SoftmaxRegression,
        "evaluate",
        counting(SoftmaxRegression.evaluate, {2: lambda: setattr(signal, "has_come", True)}),
    )
    runner = shaky(folders(), failures=0, retries=0, epochs=2, gpus=gpus, policy="baseline")
    assert runner.launch(signal) is ExitStatus.RESUMABLE
    state = find_newest(runner.prepared.paths, "n0", with_arrays=False).state
    assert (state.history, state.position) == ((), 12)
    step = SoftmaxRegression.step
    monkeypatch.setattr(
        SoftmaxRegression, "step", lambda *arguments: (steps.append(1), step(*arguments))[1]
    )
    assert runner.launch() is ExitStatus.OK
    assert len(steps) == 3 * gpus  # of the second epoch
    runner.check_epochs()
