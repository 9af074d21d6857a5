"""Steps whose sums are read late: what is computed, what comes later, and where nothing may be under way."""

import dataclasses
import itertools
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fleet.engines import softmax
from fleet.engines.base import StepResult, StepTotals
from fleet.errors import ExitStatus
from fleet.runtime.training import steps as steps_module
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.loop import TrainingLoop
from fleet.runtime.training.steps import Steps
from fleet.storage.checkpoint import find_newest
from tests.fakes import Group
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.training.going_ahead import BeginningRegression


class Strides:
    """Strides of one batch each; notes when they are asked for, begun and read."""

    def __init__(self, count=4, stops=None):
        self.said, self._count, self._stops = [], count, stops

    def __iter__(self):
        for number in range(self._count):
            self.said.append(f"make {number}")
            yield SimpleNamespace(batches=[number], begin=partial(self._begin, number))

    def _begin(self, number, training, stop):
        self.said.append(f"begin {number}{' stop' if stop else ''}")

        def end():
            self.said.append(f"read {number}")
            return StepResult([StepTotals(number, stop=number == self._stops)], number)

        return end


def taken(strides, is_async=True, size=1, asks=(), due=()):
    """(number, whether it stops, whether it rests) of each; ``asks`` and ``due`` say in which looks."""
    training = SimpleNamespace(is_async=is_async, group=Group(size), steps=StepClock())
    looks = {"asks": iter(range(9)), "due": iter(range(9))}
    steps = Steps(training, lambda: next(looks["asks"]) in asks, lambda: next(looks["due"]) in due)
    return [(entry.batches[0], entry.stops, entry.is_idle) for entry in steps.run(strides)]


def test_sums_are_read_when_the_next_step_has_begun():
    strides = Strides(3)
    assert taken(strides) == [(0, False, False), (1, False, False), (2, False, True)]
    assert strides.said == [
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


def test_those_of_an_engine_that_cannot_are_read_at_once():
    strides = Strides(2)
    assert taken(strides, is_async=False) == [(0, False, True), (1, False, True)]
    assert strides.said == ["make 0", "begin 0", "read 0", "make 1", "begin 1", "read 1"]
    assert taken(Strides(4, stops=1), is_async=False, size=2) == [
        (0, False, True),
        (1, True, True),
    ]
    assert taken(Strides(4), is_async=False, asks=[1]) == [(0, False, True), (1, True, True)]


def test_a_group_stops_one_step_later_and_a_rank_alone_at_once():
    strides = Strides(9, stops=1)
    assert taken(strides, size=2, asks=[1]) == [
        (0, False, False),
        (1, True, False),
        (2, False, True),
    ]
    assert strides.said[-4:] == ["make 2", "begin 2 stop", "read 1", "read 2"]
    assert taken(Strides(9), asks=[1]) == [(0, False, False), (1, True, True)]


def test_steps_read_sums_before_checkpoint_with_batch_ready():
    strides = Strides(3)
    assert taken(strides, due=[0]) == [(0, False, True), (1, False, False), (2, False, True)]
    assert strides.said[:4] == ["make 0", "begin 0", "make 1", "read 0"]


def test_steps_last_from_previous_end_or_own_start(monkeypatch):
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: 0.5)
    training = SimpleNamespace(is_async=True, group=Group(), steps=StepClock())
    seconds = [
        single.seconds for single in Steps(training, lambda: False, lambda: False).run(Strides(3))
    ]
    assert seconds == [-0.5, 0.5, 1]  # it ended at 0, at 1 and at 2


@pytest.fixture(params=[1, 2])
def ranks(request):
    return request.param


def outcome(folder, ranks, ahead, after=None):
    """What a run comes to, bit for bit: its history, and what its last checkpoint holds."""
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
        if ahead:
            patch.setattr(softmax, "SoftmaxRegression", BeginningRegression)
            patch.setattr(BeginningRegression, "taken", [])
            patch.setattr(steps_module, "_PROMPT_S", math.inf)
            fits = itertools.cycle([3, 1, 5, 2])
            patch.setattr(StepClock, "count_fitting", lambda clock, seconds: next(fits))
        status, prepared = launch(path, ranks + 1, after)
        if status is not ExitStatus.OK:
            assert launch(path, ranks + 1)[0] is ExitStatus.OK
        assert not ahead or any(
            group == ranks and steps > 1 for group, steps in BeginningRegression.taken
        )
    state = find_newest(prepared.paths, "n").state
    rows = [
        dataclasses.replace(record, seconds=0.0, waited_s=0.0, accepted=())
        for record in state.history
    ]
    return rows, {name: array.tobytes() for name, array in state.arrays.items()}


def test_steps_ahead_give_histories_of_single_steps(tmp_path, ranks):
    at_once = outcome(tmp_path / "at once", ranks, ahead=False)
    assert outcome(tmp_path / "ahead", ranks, ahead=True) == at_once
    for after in (20, 45):  # looks of the coordinator
        assert (
            outcome(tmp_path / f"interrupted after {after}", ranks, ahead=True, after=after)
            == at_once
        )


class Gathering(softmax.SoftmaxRegression):
    """Each rank gathers a statistic of its own rows: how many steps it took, times its rank."""

    statistic = 0.0

    def step(self, images, targets, size, stop=False, weights=None):
        self.statistic += self._group.rank
        return super().step(images, targets, size, stop, weights)

    def average_statistics(self):
        total = np.array([self.statistic])
        self._group.sum(total)
        self.statistic = float(total[0]) / self._group.size

    def state(self):
        return {**super().state(), "statistic": np.array(self.statistic)}

    def load(self, arrays):
        self.statistic = float(arrays["statistic"])
        super().load({name: array for name, array in arrays.items() if name != "statistic"})


def test_a_checkpoint_within_an_epoch_has_the_mean_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(softmax, "SoftmaxRegression", Gathering)
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
