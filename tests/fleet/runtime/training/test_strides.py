"""Which batches are taken at once, and that they are the samples of the stream."""

import itertools
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from fleet.engines import softmax
from fleet.engines.base import StepTotals
from fleet.engines.softmax import SoftmaxRegression
from fleet.errors import ExitStatus
from fleet.runtime.training import steps as steps_module
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.steps import strides
from fleet.storage.results import read_results
from fleet.stream.batch import Batch
from fleet.stream.order import Epoch
from tests.fakes import Group
from tests.fleet.runtime.runs import launch, write


class Window:
    """A stream of 23 samples whose batches lie in the same memory, one after the other."""

    def __init__(self):
        self.given = 0

    def batches(self, size=5):
        images, targets = np.empty((size, 2), np.uint8), np.empty(size, np.int64)
        for first in range(0, 23, size):
            rows = np.arange(first, min(first + size, 23))
            images[: len(rows)], targets[: len(rows)] = rows[:, None], rows
            self.given += 1
            yield Batch(
                images[: len(rows)],
                targets[: len(rows)],
                len(rows),
                rows[-1] + 1,
                rows[-1] == 22,
                Epoch(0),
            )


def training(seconds=0.005, size=1, can_stride=True, together=True, steps_per_call=1):
    """A network whose steps take so long."""
    clock = StepClock(warm_up=0)
    clock.add(5, seconds)
    clock.steps_per_call = steps_per_call
    trainable = SimpleNamespace(can_stride=lambda: can_stride, stride=list)
    if together:
        trainable.begin = trainable.begin_together = list
    return SimpleNamespace(
        steps=clock,
        group=Group(size),
        trainable=trainable,
        begin=lambda images, targets, sizes, rows, asked: asked,
    )


def taken(one):
    """(Positions, images, targets) of each stride, read when it is given, as a trainer does."""
    return [
        (
            [batch.position for batch in stride.batches],
            stride.images[:, 1].tolist(),
            stride.targets.tolist(),
        )
        for stride in strides(one, Window().batches())
    ]


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    """All batches are there at once, whatever the machine does."""
    monkeypatch.setattr(steps_module, "_PROMPT_S", np.inf)


def test_strides_gather_short_steps_and_smaller_last_ones():
    assert [(positions, len(targets)) for positions, _, targets in taken(training(0.013))] == [
        ([5, 10, 15], 15),
        ([20, 23], 8),
    ]


@pytest.mark.parametrize(
    "one",
    [training(0.5), training(size=2), training(can_stride=False)],
    ids=["long steps", "a group that has heard of no more", "an engine that cannot now"],
)
def test_others_one_by_one(one):
    assert [positions for positions, *_ in taken(one)] == [[5], [10], [15], [20], [23]]


def test_steps_that_nobody_has_timed_yet_are_taken_one_by_one():
    entry = training()
    entry.steps = StepClock(warm_up=1)
    entry.steps.add(5, 0.005)
    assert next(strides(entry, Window().batches())).batches[0].position == 5


@pytest.mark.parametrize("seconds", [0.5, 0.02, 0.0001])
def test_strides_yield_the_samples_of_the_stream(seconds):
    matches = taken(training(seconds))
    assert [row for _, images, _ in matches for row in images] == list(range(23))
    assert [row for *_, targets in matches for row in targets] == list(range(23))


def test_no_step_waits_for_batches_that_were_not_there(monkeypatch):
    monkeypatch.setattr(steps_module, "_PROMPT_S", 0.0)
    assert [positions for positions, *_ in taken(training(0.001))] == [[5], [10], [15], [20], [23]]


def test_a_stride_ends_with_a_batch_that_was_not_there(monkeypatch):
    now = itertools.chain([0, 0, 0], itertools.repeat(9))  # only the second one is late
    monkeypatch.setattr(steps_module, "_PROMPT_S", 1.0)
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: next(now))
    assert [positions for positions, *_ in taken(training(0.001))] == [[5, 10], [15, 20, 23]]


@pytest.mark.parametrize("prompt_s", [0.0, np.inf])
def test_strides_of_group_have_agreed_length(monkeypatch, prompt_s):
    monkeypatch.setattr(steps_module, "_PROMPT_S", prompt_s)
    assert [positions for positions, *_ in taken(training(0.5, size=2, steps_per_call=3))] == [
        [5, 10, 15],
        [20, 23],
    ]


@pytest.mark.parametrize(
    ("late", "one", "fitting"),
    [
        ([], training(0.005, size=2, steps_per_call=3), 4),
        ([], training(0.005, size=2), 4),
        ([1], training(0.005, size=2), 4),
        ([0], training(0.005, size=2), 1),
        ([1], training(0.005, size=2, steps_per_call=3), 2),
        ([0, 1, 2], training(0.005, size=2, steps_per_call=3), 1),
        ([0], training(0.015, size=2, steps_per_call=3), 1),
        ([], training(0.005, size=2, together=False), 1),
        ([], training(0.005, size=2, can_stride=False), 1),
    ],
)
def test_stride_count_fits_20_ms_and_ready_batches(monkeypatch, late, one, fitting):
    monkeypatch.setattr(steps_module, "_PROMPT_S", 1.0)
    clock = itertools.accumulate(
        itertools.chain.from_iterable([0, 9 * (index in late)] for index in range(9))
    )
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: next(clock))
    assert next(strides(one, Window().batches())).begin(one, stop=False) == StepTotals(
        steps=fitting
    )


def test_batches_are_asked_for_when_their_stride_is():
    window = Window()
    next(strides(training(0.02), window.batches()))
    assert window.given == 2


def test_what_is_gathered_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(steps_module, "_MOST_BYTES", 25)  # a batch has 10
    assert [positions for positions, *_ in taken(training(0.001))] == [[5, 10], [15, 20], [23]]


class StridingRegression(SoftmaxRegression):
    """Takes several steps at once, and notes how many. A class of its own: Python remembers who is Striding."""

    taken: ClassVar[list] = []

    def can_stride(self):
        return True

    def stride(self, images, targets, sizes, weights=None):
        assert weights is None
        self.taken.append(len(sizes))
        places = np.cumsum(sizes)[:-1]
        return [
            self.step(*rows, len(rows[1]))
            for rows in zip(np.split(images, places), np.split(targets, places), strict=True)
        ]


@pytest.fixture
def striding(monkeypatch):
    """Have networks of the numpy engine take up to three steps at once; gives how many each call has taken."""
    monkeypatch.setattr(softmax, "SoftmaxRegression", StridingRegression)
    monkeypatch.setattr(StridingRegression, "taken", [])
    monkeypatch.setattr(StepClock, "count_fitting", lambda clock, seconds: 3)
    return StridingRegression.taken


def result(folder, after=None):
    """What a run of one network comes to, which may be interrupted when its coordinator has looked so many times."""
    path = write(
        folder,
        data={
            "source": "builtin:digits",
            "path": str(folder.parent / "digits"),
            "transforms": [{"decode": {"mode": "L"}}, {"scale": {"mean": 0.5, "std": 0.5}}],
        },
        train={"batch": {"size": 64}, "stopping": {"max_epochs": 3}},
    )
    if launch(path, 2, after)[0] is not ExitStatus.OK:
        assert launch(path, 2)[0] is ExitStatus.OK
    [row] = read_results(folder / "run")
    return row.loss, row.accuracy, row.val_loss, row.val_accuracy, row.best_epoch


def test_strides_equal_single_steps_when_interrupted(tmp_path, striding, monkeypatch):
    folders = [tmp_path / name for name in ("strides", "interrupted", "steps")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    by_strides = result(folders[0])
    assert striding == 3 * [*7 * [3], 2]  # of 23 batches an epoch
    interrupted = result(folders[1], after=60)
    monkeypatch.setattr(StridingRegression, "can_stride", lambda network: False)
    assert by_strides == interrupted == result(folders[2])
