"""Batches that are trained in one call, and their samples."""

import itertools
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from fleet.engines import softmax
from fleet.engines.base import StepTotals
from fleet.engines.softmax import SoftmaxRegression
from fleet.engines.steps import StepCapabilities
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
    """A stream of 23 samples whose batches reuse the same memory."""

    def __init__(self):
        self.batch_count = 0

    def batches(self, size=5):
        images, targets = np.empty((size, 2), np.uint8), np.empty(size, np.int64)
        for first in range(0, 23, size):
            rows = np.arange(first, min(first + size, 23))
            images[: len(rows)], targets[: len(rows)] = rows[:, None], rows
            self.batch_count += 1
            yield Batch(
                images[: len(rows)],
                targets[: len(rows)],
                len(rows),
                rows[-1] + 1,
                rows[-1] == 22,
                Epoch(0),
            )


def training(seconds=0.005, size=1, max_steps=16, steps_per_call=1):
    """Return a network whose steps take ``seconds``."""
    clock = StepClock(warm_up=0)
    clock.add(5, seconds)
    clock.steps_per_call = steps_per_call
    return SimpleNamespace(
        steps=clock,
        group=Group(size),
        capabilities=StepCapabilities(max_steps),
        begin=lambda batches, indices: batches.flags,
    )


def read_strides(network):
    """Return (positions, images, targets) of each stride, read when it is yielded."""
    return [
        (
            [batch.position for batch in stride.batches],
            stride.inputs[:, 1].tolist(),
            stride.targets.tolist(),
        )
        for stride in strides(network, Window().batches())
    ]


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    """Treat all batches as ready, whatever the machine does."""
    monkeypatch.setattr(steps_module, "_PROMPT_S", np.inf)


def test_strides_gather_short_steps_and_smaller_last_ones():
    assert [
        (positions, len(targets)) for positions, _, targets in read_strides(training(0.013))
    ] == [
        ([5, 10, 15], 15),
        ([20, 23], 8),
    ]


@pytest.mark.parametrize(
    "network",
    [training(0.5), training(size=2), training(max_steps=1)],
    ids=["long steps", "a group without an agreed count", "an engine that cannot stride"],
)
def test_strides_have_one_batch_otherwise(network):
    assert [positions for positions, *_ in read_strides(network)] == [[5], [10], [15], [20], [23]]


def test_strides_have_one_batch_before_steps_are_timed():
    network = training()
    network.steps = StepClock(warm_up=1)
    network.steps.add(5, 0.005)
    assert next(strides(network, Window().batches())).batches[0].position == 5


@pytest.mark.parametrize("seconds", [0.5, 0.02, 0.0001])
def test_strides_yield_the_samples_of_the_stream(seconds):
    results = read_strides(training(seconds))
    assert [row for _, images, _ in results for row in images] == list(range(23))
    assert [row for *_, targets in results for row in targets] == list(range(23))


def test_strides_do_not_wait_for_batches(monkeypatch):
    monkeypatch.setattr(steps_module, "_PROMPT_S", 0.0)
    assert [positions for positions, *_ in read_strides(training(0.001))] == [
        [5],
        [10],
        [15],
        [20],
        [23],
    ]


def test_stride_ends_with_a_batch_that_was_not_ready(monkeypatch):
    now = itertools.chain([0, 0, 0], itertools.repeat(9))  # only the second one is late
    monkeypatch.setattr(steps_module, "_PROMPT_S", 1.0)
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: next(now))
    assert [positions for positions, *_ in read_strides(training(0.001))] == [[5, 10], [15, 20, 23]]


@pytest.mark.parametrize("prompt_s", [0.0, np.inf])
def test_strides_of_group_have_agreed_length(monkeypatch, prompt_s):
    monkeypatch.setattr(steps_module, "_PROMPT_S", prompt_s)
    assert [
        positions for positions, *_ in read_strides(training(0.5, size=2, steps_per_call=3))
    ] == [
        [5, 10, 15],
        [20, 23],
    ]


@pytest.mark.parametrize(
    ("late", "network", "fitting"),
    [
        ([], training(0.005, size=2, steps_per_call=3), 4),
        ([], training(0.005, size=2), 4),
        ([1], training(0.005, size=2), 4),
        ([0], training(0.005, size=2), 1),
        ([1], training(0.005, size=2, steps_per_call=3), 2),
        ([0, 1, 2], training(0.005, size=2, steps_per_call=3), 1),
        ([0], training(0.015, size=2, steps_per_call=3), 1),
        ([], training(0.005, size=2, max_steps=1), 1),
        ([], training(0.001, size=2, max_steps=3), 3),
    ],
)
def test_stride_count_fits_20_ms_and_ready_batches(monkeypatch, late, network, fitting):
    monkeypatch.setattr(steps_module, "_PROMPT_S", 1.0)
    clock = itertools.accumulate(
        itertools.chain.from_iterable([0, 9 * (index in late)] for index in range(9))
    )
    monkeypatch.setattr(steps_module.time, "perf_counter", lambda: next(clock))
    stride = next(strides(network, Window().batches()))
    assert stride.begin(network, stop=False) == StepTotals(steps=fitting)


def test_strides_request_batches_as_late_as_possible():
    window = Window()
    next(strides(training(0.02), window.batches()))
    assert window.batch_count == 2


def test_strides_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(steps_module, "_MAX_BYTES", 25)  # a batch has 10
    assert [positions for positions, *_ in read_strides(training(0.001))] == [
        [5, 10],
        [15, 20],
        [23],
    ]


class StridingRegression(SoftmaxRegression):
    """Takes several steps per call and records their number."""

    step_counts: ClassVar[list] = []

    def can_stride(self):
        return True

    def stride(self, images, targets, sizes, weights=None):
        assert weights is None
        self.step_counts.append(len(sizes))
        cuts = np.cumsum(sizes)[:-1]
        return [
            self.step(*rows, len(rows[1]))
            for rows in zip(np.split(images, cuts), np.split(targets, cuts), strict=True)
        ]


@pytest.fixture
def striding(monkeypatch):
    """Let the numpy engine take up to three steps per call; return the steps of each call."""
    monkeypatch.setattr(softmax, "SoftmaxRegression", StridingRegression)
    monkeypatch.setattr(StridingRegression, "step_counts", [])
    monkeypatch.setattr(StepClock, "count_fitting", lambda clock, seconds: 3)
    return StridingRegression.step_counts


def result(folder, after=None):
    """Return the scores of a run of one network, interrupted after some checks of rank 0."""
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
