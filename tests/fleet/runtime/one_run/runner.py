"""Whole runs, all ranks in one process: cases, their launches, and checks of their results."""

import dataclasses
import errno
import gc
import itertools
import json
import os
import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fleet.comm.messages import Join, Start
from fleet.comm.roles import assign
from fleet.comm.single_rank import SingleRankGroup
from fleet.domain import events as ev
from fleet.engines import softmax
from fleet.engines.softmax import NumpyEngine
from fleet.errors import DamagedError, ExitStatus
from fleet.prediction.saved_predictions import read_predictions
from fleet.runtime.session import Session
from fleet.runtime.training.sources import Sources, make_sources
from fleet.storage.checkpoint import find_best, find_newest
from fleet.storage.event_log import events_of
from fleet.storage.rate_cache import RateBook
from fleet.storage.recovery import recover
from fleet.storage.results import Status, read_results
from fleet.storage.writer import CheckpointWriter
from fleet.stream.batch import split_rows
from fleet.stream.order import Epoch, EpochPlan, parse_path
from preprocess.base import row_numbers
from preprocess.target_kinds import KINDS
from scheduler.ensemble.policies import POLICIES
from tests.examples import examples
from tests.fleet.histories import results_of
from tests.fleet.one_process import Launch
from tests.fleet.runtime.runs import Interruption, prepare
from tests.fleet.runtime.training.async_regression import AsyncRegression
from tests.sources import Numbered

_write_cache = RateBook.write


class Writer(CheckpointWriter):
    """A writer whose thread survives the kill of its rank, so that the next launch waits for it."""

    alive: ClassVar[list] = []

    def __init__(self, *args):
        super().__init__(*args)
        self.alive.append(self)

    @classmethod
    def wait_for_all(cls):
        while cls.alive:
            cls.alive.pop()._jobs.join()


@dataclass(frozen=True)
class Case:
    """A run: its spec, its ranks, and the seed of the order in which they run."""

    content: dict
    node_of: tuple
    chunk: int
    spare_slots: int
    seed: int


class Recorder:
    """A stream that records which rows of which epoch each network has read."""

    def __init__(self, stream, current, notes):
        self._stream, self._current, self._notes = stream, current, notes

    def __getattr__(self, name):
        return getattr(self._stream, name)

    @property
    def local(self):
        return Recorder(self._stream.local, self._current, self._notes)

    def batches(self, epoch, start, size, group, consumed):
        for batch in self._stream.batches(epoch, start, size, group, consumed):
            rows = split_rows(batch.position - batch.size, batch.position, group.rank, group.size)
            numbers = [Numbered.number(image) for image in batch.inputs]
            assert len(numbers) == rows[1] - rows[0]
            index = batch.epoch.path[0] if batch.epoch.path else batch.epoch.number
            self._notes[self._current[0], index] += zip(range(*rows), numbers, strict=True)
            yield batch


class Runner:
    """Launches a case repeatedly until it has finished."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.notes = defaultdict(list)
        content = {**case.content, "output": str(folder / "run")}
        if "rates" in content["schedule"]:
            (folder / "rates.json").write_text(json.dumps(content["schedule"]["rates"]))
            content["schedule"] = {**content["schedule"], "rates": str(folder / "rates.json")}
        self.path = folder / "spec.yaml"
        self.path.write_text(yaml.safe_dump(content))

    def launch(self, interruption=None, turns=None, **replay):
        """Run the ranks; return rank 0's exit status, or None if the run was killed."""
        self.prepared = prepare(str(self.path), self.case.node_of, None, plain=True, **replay)
        layout = self.prepared.layout
        if layout is not None and layout.is_ring:
            spare = dataclasses.replace(layout, slots=3 + self.case.spare_slots)
            self.prepared = dataclasses.replace(self.prepared, layout=spare)
        elif layout is not None:
            chunk = min(self.case.chunk, layout.samples)
            largest = max(network.train.batch.size for network in self.prepared.spec.networks)
            batch_chunks = -(-(largest - 1) // chunk) + 1
            self.prepared = dataclasses.replace(
                self.prepared,
                layout=dataclasses.replace(
                    layout,
                    chunk=chunk,
                    slots=batch_chunks + self.case.spare_slots,
                    lookahead=batch_chunks + 1,
                ),
            )
        statuses = {}

        def rank_main(world):
            statuses[world.rank] = _Session(
                world, self.prepared, interruption or Interruption(), self.notes
            ).run()

        with pytest.MonkeyPatch.context() as patch:
            if self.case.seed % 2:  # an asynchronous engine
                patch.setattr(softmax, "SoftmaxRegression", AsyncRegression)
            has_ended = Launch(len(self.case.node_of), self.case.seed).run(rank_main, turns)
        Writer.wait_for_all()
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # killed ranks leave open files, which would warn in another test
        return ExitStatus(statuses[0]) if has_ended else None

    def forget_unsaved_rows(self):
        """Forget rows that no intact checkpoint has: they will be trained again."""
        results = results_of(self.prepared.spec, self.prepared.paths)
        results.run.restore(recover(results)[0])
        for name in self.prepared.spec.by_name:
            has_ended = results.run.status_of(name).outcome is not None
            lookup = find_newest(self.prepared.paths, name, with_arrays=not has_ended)
            state, history = lookup.state, ()
            if has_ended:
                history = lookup.history
            elif state:
                history = state.history
            complete = {first_chunk_of(record) for record in history}
            part = {(state.path or [state.stream_epoch])[0]: state.position} if state else {}
            for key in [key for key in self.notes if key[0] == name and key[1] not in complete]:
                self.notes[key] = [
                    (row, number) for row, number in self.notes[key] if row < part.get(key[1], 0)
                ]

    def results(self):
        """Return the rows of networks, without the mean rows of folds."""
        return {row.name: row for row in read_results(self.folder / "run") if not row.folds}

    def events(self, kind):
        return events_of(self.prepared.paths.events, kind)

    def history(self, name):
        return find_newest(self.prepared.paths, name, with_arrays=False).history

    def best(self, name):
        """Return the best state of a finished network; None if it is damaged."""
        spec = self.prepared.spec
        try:
            lookup = find_best(
                self.prepared.paths, name, spec.by_name[name].train.stopping, spec.checkpoint.keep
            )
        except DamagedError:
            return None
        return None if lookup.damage else lookup.state

    def check_tests(self):
        """Check that every finished network was tested once, as exported, and no other one."""
        test, spec = self.prepared.pipeline("test"), self.prepared.spec
        tested = [event.network for event in self.events(ev.NetworkTested)]
        restarted = [
            event.network for event in self.events(ev.NetworkRolledBack) if not event.finished
        ]
        for name, row in self.results().items():
            if test is None or row.status is not Status.FINISHED:
                assert np.isnan([row.test_loss, row.test_accuracy]).all()
                assert name not in tested
                continue
            assert 1 <= tested.count(name) <= 1 + restarted.count(name)
            best = self.best(name)
            if best is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(
                spec.by_name[name], SingleRankGroup()
            )
            trainable.load(best.arrays)
            totals = trainable.evaluate(*loaded(test, range(test.samples), 0, False))
            np.testing.assert_allclose(
                [row.test_loss, row.test_accuracy],
                [totals.loss / totals.count, totals.correct / totals.count],
                rtol=1e-9,
            )

    def check_predictions(self):
        """Check that saved predictions of a finished network are those of the exported one."""
        evaluation, spec, folds = (
            self.prepared.pipeline("validation"),
            self.prepared.spec,
            self.prepared.inputs.folds,
        )
        for name, row in self.results().items():
            stored = read_predictions(self.prepared.paths, name, "validation", KINDS["class"])
            if stored is None or row.status is not Status.FINISHED:
                continue
            best = self.best(name)
            if best is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(
                spec.by_name[name], SingleRankGroup()
            )
            trainable.load(best.arrays)
            rows = range(evaluation.samples)
            if folds is not None:
                rows = np.flatnonzero(folds == spec.by_name[name].fold).tolist()
            images, labels = loaded(evaluation, rows, 0, False)
            usable = labels >= 0
            outputs = trainable.predict(images, labels)[1]
            np.testing.assert_allclose(
                stored.values, KINDS["class"].predictions(outputs[usable]), rtol=1e-6
            )
            np.testing.assert_array_equal(stored.truth.targets, labels[usable])
            np.testing.assert_array_equal(stored.rows, row_numbers(evaluation.source)[rows][usable])

    def check_epochs(self):
        """Check that every epoch had each sample once, in order, and equals training alone."""
        self.check_tests()
        self.check_predictions()
        assert self.prepared.paths.foreign_files() == []
        for name in self.results():
            history = self.history(name)
            for record in history:
                rows = sorted(self.notes[name, first_chunk_of(record)])
                assert rows == list(enumerate(plan_epoch(self.prepared, record, name).indices)), (
                    name,
                    record,
                )
            assert [record.epoch for record in history] == list(range(1, len(history) + 1))
            consumed = [
                chunk
                for record in history
                for chunk in parse_path(record.path) or [record.stream_epoch]
            ]
            assert len(set(consumed)) == len(consumed)
            if not history:
                continue
            alone = train_alone(self.prepared, name, history)
            scores = [
                (record.loss, record.accuracy, record.val_loss, record.val_accuracy)
                for record in history
            ]
            np.testing.assert_allclose(scores, alone, rtol=1e-9)


class _Session(Session):
    """Records the samples of networks."""

    def __init__(self, world, prepared, interruption, notes):
        super().__init__(world, prepared, interruption)
        world.notes, world.current_network = notes, [None]
        receive = world.receive

        def receive_and_record(tag):
            message = receive(tag)
            if isinstance(message, Start | Join):
                world.current_network[0] = message.network.name
            return message

        world.receive = receive_and_record


def make_recorded_sources(world, launch, memory, first_epoch):
    per_rank = make_sources(world, launch, memory, first_epoch)._sources
    return Sources(
        {
            key: dataclasses.replace(
                source, stream=Recorder(source.stream, world.current_network, world.notes)
            )
            for key, source in per_rank.items()
        }
    )


def first_chunk_of(record):
    """Return the first chunk of an epoch, or its stream epoch, which identifies it."""
    return (parse_path(record.path) or [record.stream_epoch])[0]


def plan_epoch(prepared, record, name):
    """Return the samples of a network's epoch: all, or all outside of its fold."""
    plan = prepared.order(prepared.pipeline("train")).plan_epoch(
        Epoch(record.stream_epoch, parse_path(record.path))
    )
    if prepared.inputs.folds is None:
        return plan
    rows = [
        row
        for row, index in enumerate(plan.indices)
        if prepared.inputs.folds[index] != prepared.spec.by_name[name].fold
    ]
    return EpochPlan(plan.productions[rows], plan.indices[rows], plan.path)


def train_alone(prepared, name, history):
    """Return the scores of each epoch if one rank trains one network on its own samples."""
    network = prepared.spec.by_name[name]
    trainable = NumpyEngine(prepared.sample).build(network, SingleRankGroup())
    training, evaluation = prepared.pipeline("train"), prepared.pipeline("validation")
    validation = range(evaluation.samples)
    if network.fold is not None:
        validation = [
            index for index, fold in enumerate(prepared.inputs.folds) if fold == network.fold
        ]
    scores = []
    for record in history:
        plan, sums = plan_epoch(prepared, record, name), np.zeros(3)
        for first in range(0, len(plan.indices), network.train.batch.size):
            rows = range(first, min(first + network.train.batch.size, len(plan.indices)))
            parts = [
                loaded(training, [plan.indices[row]], int(plan.productions[row]), True)
                for row in rows
            ]
            images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
            result = trainable.step(images, labels, len(labels))
            sums += (result.loss, result.correct, result.count)
        totals = trainable.evaluate(*loaded(evaluation, validation, 0, False))
        scores.append(
            [*sums[:2] / sums[2], totals.loss / totals.count, totals.correct / totals.count]
        )
    return scores


def loaded(pipeline, indices, epoch, training):
    images, labels = pipeline.empty(len(indices))
    pipeline.load(indices, epoch, images, labels, training)
    return images, labels


FAILING = {
    "tests.sources:broken": "unknown layer",
    "tests.sources:not_a_number": "the loss became nan",
    "tests.sources:too_large": "out of memory",
}


@st.composite
def cases(draw, failing=False, regroups=False):
    nodes = draw(st.integers(1, 2))
    on_each = draw(st.integers(3 if regroups else 2, 4))
    node_of = tuple(node for node in range(nodes) for _ in range(on_each))
    preprocessors = nodes if regroups else draw(st.integers(nodes, nodes * (on_each - 1)))
    if not regroups and draw(st.integers(0, 4)) == 0:
        node_of, preprocessors = (0,), "auto"
    policy = "adaptive" if regroups else draw(st.sampled_from(sorted(POLICIES)))
    roles = assign(
        node_of, None if preprocessors == "auto" else preprocessors, None, policy == "baseline"
    )
    trainers, samples = len(roles.trainers), draw(st.integers(4, 40))
    models = []
    for index in range(draw(st.integers(2 if regroups else 1, 4))):
        minimum = draw(st.integers(1, 2 if regroups else trainers))
        subject = {"family": "softmax"}
        if failing and draw(st.booleans()):
            subject = {"build": draw(st.sampled_from(sorted(FAILING)))}
        maximum = trainers if regroups else draw(st.integers(minimum, trainers))
        models.append(
            {
                **subject,
                "name": f"n{index}",
                "gpus": [minimum, maximum],
                "train": {
                    "batch": {"size": draw(st.integers(1, samples // 4 if regroups else samples))},
                    "stopping": {"max_epochs": draw(st.integers(1, 3))},
                },
            }
        )
    curve = st.lists(st.floats(1, 50), min_size=1, max_size=trainers)
    if regroups:  # more devices are always faster
        curve = st.floats(1, 50).map(
            lambda rate: [rate * gpus**0.9 for gpus in range(1, trainers + 1)]
        )
    rates = [{"name": model["name"], "rates": draw(curve)} for model in models]
    content = {
        "seed": 5,
        # A launch of one rank that is killed looks like a crash of its network.
        "max_deaths": 2 if len(node_of) > 1 else 99,
        "models": models,
        "data": {
            "source": "tests.sources:numbered",
            "path": str(samples),
            **draw(
                st.sampled_from(
                    [
                        {"cache": "none"},
                        {"order": "ring", "shards": draw(st.integers(2, 9))},
                        {"cache": "memory"},
                        {"cache": "file"},
                    ]
                )
            ),
            **draw(st.sampled_from([{}, {"test": "9"}])),
            "transforms": [
                {"center_crop": {"size": [4, 4]}},
                "tests.sources:noise",
                {"scale": {"mean": 0.5, "std": 0.5}},
            ],
        },
        "train": {"optimizer": {"learning_rate": 0.02, "momentum": 0.5}},
        "schedule": {
            "policy": policy,
            "rates": {
                "samples_per_epoch": samples,
                "gpus_per_node": roles.gpus_per_node,
                "models": rates,
            },
        },
        "resources": {"engine": "numpy", "preprocessors": preprocessors},
    }
    return Case(
        content,
        node_of,
        draw(st.integers(1, 8)),
        draw(st.integers(1, 5)),
        draw(st.integers(0, 10**6)),
    )


few = settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def shaky(
    folder,
    failures,
    retries,
    epochs=1,
    engine="numpy",
    data=None,
    checkpoint=None,
    gpus=1,
    when="offline",
    **schedule,
):
    """Return a run of one network whose file system fails a number of times."""
    (folder / "tries").mkdir()
    model = {
        "build": "tests.sources:shaky",
        "name": "n0",
        "gpus": gpus,
        "args": {"failures": failures, "folder": str(folder / "tries")},
    }
    content = {
        "models": [model],
        "retries": retries,
        "resources": {"engine": engine},
        "schedule": schedule,
        "data": {
            "source": "tests.sources:numbered",
            "path": "12",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
            **(data or {}),
        },
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": epochs}},
        "profile": {"when": when, "batches": 2, "timed": 1},
        "checkpoint": checkpoint or {},
    }
    return Runner(Case(content, (0,) * (gpus + (gpus > 1)), 4, 1, 0), folder)


def failing_once(function, at):
    """Return the function with a failure of the file system in one call."""
    calls = itertools.count(1)

    def fails(*arguments, **options):
        if next(calls) == at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return function(*arguments, **options)

    return fails


def counting(function, calls):
    """Return the function with a hook in some of its calls: number -> hook."""
    numbers = itertools.count(1)

    def counts(*arguments, **options):
        calls.get(next(numbers), lambda: None)()
        return function(*arguments, **options)

    return counts
