"""Steps of asynchronous engines, whose sums are read late."""

import dataclasses
import itertools
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fleet.engines import softmax
from fleet.engines.base import StepResult, StepTotals
from fleet.engines.steps import StepCapabilities
from fleet.errors import ExitStatus
from fleet.runtime.training import steps as steps_module
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.loop import TrainingLoop
from fleet.runtime.training.steps import Steps
from fleet.storage.checkpoint import find_newest
from tests.fakes import Group
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.training.async_regression import AsyncRegression


class Strides:
    """Strides of one batch each; records when they are made, begun and read."""

    def __init__(self, count=4, stops=None):
        self.log, self._count, self._stops = [], count, stops

    def __iter__(self):
        for number in range(self._count):
            self.log.append(f"make {number}")
            yield SimpleNamespace(batches=[number], begin=partial(self._begin, number))

    def _begin(self, number, training, stop):
        self.log.append(f"begin {number}{' stop' if stop else ''}")

        def end():
            self.log.append(f"read {number}")
            return StepResult([StepTotals(number, stop=number == self._stops)], number)

        return end


def run_steps(strides, is_async=True, size=1, stops=(), due=()):
    """Return (number, stops, is_idle) of each step; ``stops`` and ``due`` are numbers of calls."""
    training = SimpleNamespace(
        capabilities=StepCapabilities(can_overlap=is_async), group=Group(size), steps=StepClock()
    )
    stop_calls, due_calls = iter(range(9)), iter(range(9))
    steps = Steps(training, lambda: next(stop_calls) in stops, lambda: next(due_calls) in due)
    return [(step.batches[0], step.stops, step.is_idle) for step in steps.run(strides)]


def test_steps_read_sums_after_the_next_step_began():
    strides = Strides(3)
    assert run_steps(strides) == [(0, False, False), (1, False, False), (2, False, True)]
    assert strides.log == [
        "make 0",
        "begin 0",
        "make 1",
        "begin 1",
        "read 0",
        "make 2",
        "begin 2",
        "read 1",
        "read 2",
    ]


def test_steps_of_a_synchronous_engine_are_read_immediately():
    strides = Strides(2)
    assert run_steps(strides, is_async=False) == [(0, False, True), (1, False, True)]
    assert strides.log == ["make 0", "begin 0", "read 0", "make 1", "begin 1", "read 1"]
    assert run_steps(Strides(4, stops=1), is_async=False, size=2) == [
        (0, False, True),
        (1, True, True),
    ]
    assert run_steps(Strides(4), is_async=False, stops=[1]) == [(0, False, True), (1, True, True)]


def test_steps_of_a_group_stop_one_step_later():
    strides = Strides(9, stops=1)
    assert run_steps(strides, size=2, stops=[1]) == [
        (0, False, False),
        (1, True, False),
        (2, False, True),
    ]
    assert strides.log[-4:] == ["make 2", "begin 2 stop", "read 1", "read 2"]
    assert run_steps(Strides(9), stops=[1]) == [(0, False, False), (1, True, True)]


def test_steps_read_sums_before_checkpoint_with_batch_ready():
    strides = Strides(3)
    assert run_steps(strides, due=[0]) == [(0, False, True), (1, False, False), (2, False, True)]
    assert strides.log[:4] == ["make 0", "begin 0", "make 1", "read 0"]


def test_steps_last_from_previous_end_or_own_start(monkeypatch):
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: 0.5)
    training = SimpleNamespace(
        capabilities=StepCapabilities(can_overlap=True), group=Group(), steps=StepClock()
    )
    seconds = [
        single.seconds for single in Steps(training, lambda: False, lambda: False).run(Strides(3))
    ]
    assert seconds == [-0.5, 0.5, 1]  # the steps ended at 0, 1 and 2


@pytest.fixture(params=[1, 2])
def ranks(request):
    return request.param


def outcome(folder, ranks, is_async, after=None):
    """Return the history of a run, and the bytes of its last checkpoint's arrays."""
    path = write(
        folder,
        [{"family": "softmax", "name": "n", "gpus": ranks}],
        schedule={"policy": "baseline"},
        data={
            "source": "tests.sources:numbered",
            "path": "90",
            "transforms": [
                {"center_crop": {"size": [4, 4]}},
                "tests.sources:noise",
                {"scale": {"mean": 0.5, "std": 0.5}},
            ],
        },
        train={"batch": {"size": 7}, "stopping": {"max_epochs": 3, "monitor": "loss"}},
        checkpoint={"every": "0.001s"},
        resources={"engine": "numpy"},
    )
    with pytest.MonkeyPatch.context() as patch:
        if is_async:
            patch.setattr(softmax, "SoftmaxRegression", AsyncRegression)
            patch.setattr(AsyncRegression, "calls", [])
            patch.setattr(steps_module, "_PROMPT_S", math.inf)
            fits = itertools.cycle([3, 1, 5, 2])
            patch.setattr(StepClock, "count_fitting", lambda clock, seconds: next(fits))
        status, prepared = launch(path, ranks + 1, after)
        if status is not ExitStatus.OK:
            assert launch(path, ranks + 1)[0] is ExitStatus.OK
        assert not is_async or any(
            group == ranks and steps > 1 for group, steps in AsyncRegression.calls
        )
    state = find_newest(prepared.paths, "n").state
    rows = [
        dataclasses.replace(record, seconds=0.0, waited_s=0.0, accepted=())
        for record in state.history
    ]
    return rows, {name: array.tobytes() for name, array in state.arrays.items()}


@pytest.mark.long_but_first
def test_steps_ahead_give_histories_of_single_steps(tmp_path, ranks):
    expected = outcome(tmp_path / "single", ranks, is_async=False)
    assert outcome(tmp_path / "async", ranks, is_async=True) == expected
    for after in (20, 45):  # checks of the coordinator
        folder = tmp_path / f"interrupted after {after}"
        assert outcome(folder, ranks, is_async=True, after=after) == expected


class WithStatistic(softmax.SoftmaxRegression):
    """A network with a statistic on each rank: the number of its steps times its rank."""

    statistic = 0.0

    def step(self, images, targets, size, stop=False, *weights):
        self.statistic += self._group.rank
        return super().step(images, targets, size, stop, *weights)

    def average_statistics(self):
        total = np.array([self.statistic])
        self._group.sum(total)
        self.statistic = float(total[0]) / self._group.size

    def state(self):
        return {**super().state(), "statistic": np.array(self.statistic)}

    def load(self, arrays):
        self.statistic = float(arrays["statistic"])
        super().load({name: array for name, array in arrays.items() if name != "statistic"})


def test_checkpoint_within_an_epoch_has_the_mean_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(softmax, "SoftmaxRegression", WithStatistic)
    saved = []
    save = TrainingLoop._save

    def note(loop, training, state, is_best=False):
        saved.append((state.position, training.trainable.statistic))
        save(loop, training, state, is_best)

    monkeypatch.setattr(TrainingLoop, "_save", note)
    path = write(
        tmp_path,
        [{"family": "softmax", "name": "n", "gpus": 2}],
        schedule={"policy": "baseline"},
        data={
            "source": "tests.sources:numbered",
            "path": "90",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        train={"batch": {"size": 10}, "stopping": {"max_epochs": 1, "monitor": "loss"}},
        checkpoint={"every": "0.001s"},
    )
    status, _ = launch(path, 3)
    assert status is ExitStatus.OK
    assert len([position for position, _ in saved if position]) > 1
    for position, statistic in saved:  # the mean of 0 and of the steps that rank 1 took
        assert statistic == (position or 90) / 10 / 2
