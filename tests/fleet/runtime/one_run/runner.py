"""Whole runs, all ranks in one process: a case, who launches it, and what must hold at its end."""

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
from fleet.prediction.saved_predictions import probabilities, read_predictions
from fleet.runtime.session import Session
from fleet.runtime.training.sources import Sources, make_sources
from fleet.storage.checkpoint import find_best, find_newest
from fleet.storage.event_log import events_of
from fleet.storage.rate_cache import RateBook
from fleet.storage.results import Status, read_results, recover
from fleet.storage.writer import CheckpointWriter
from fleet.stream.batch import split_rows
from fleet.stream.order import Epoch, EpochPlan, parse_path
from preprocess.base import row_numbers
from scheduler.ensemble.policies import POLICIES
from tests.examples import examples
from tests.fleet.histories import results_of
from tests.fleet.one_process import Launch
from tests.fleet.runtime.runs import Interruption, prepare
from tests.fleet.runtime.training.going_ahead import BeginningRegression
from tests.sources import Numbered

_write_cache = RateBook.write


class Writer(CheckpointWriter):
    """Survives the kill of its rank, for threads cannot be killed; so the next launch waits for it."""

    alive: ClassVar[list] = []

    def __init__(self, *args):
        super().__init__(*args)
        self.alive.append(self)

    @classmethod
    def promote_previous(cls):
        while cls.alive:
            cls.alive.pop()._jobs.join()


@dataclass(frozen=True)
class Case:
    """A run: its spec, its ranks, and the order in which they happen to run."""

    content: dict
    node_of: tuple
    chunk: int
    spare_slots: int
    seed: int


class Recorder:
    """A stream that notes which rows of which epoch it has given to which network."""

    def __init__(self, stream, serving, notes):
        self._stream, self._serving, self._notes = stream, serving, notes

    def __getattr__(self, name):
        return getattr(self._stream, name)

    @property
    def local(self):
        return Recorder(self._stream.local, self._serving, self._notes)

    def batches(self, epoch, start, batch, group, taken):
        for item in self._stream.batches(epoch, start, batch, group, taken):
            rows = split_rows(item.position - item.size, item.position, group.rank, group.size)
            numbers = [Numbered.number(image) for image in item.images]
            assert len(numbers) == rows[1] - rows[0]
            index = item.epoch.path[0] if item.epoch.path else item.epoch.number
            self._notes[self._serving[0], index] += zip(range(*rows), numbers, strict=True)
            yield item


class Runner:
    """Launches a case, again and again until it is done."""

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
        """Run the ranks; returns rank 0's exit status, None where the run was killed before."""
        self.prepared = prepare(str(self.path), self.case.node_of, None, plain=True, **replay)
        layout = self.prepared.layout
        if layout is not None and layout.is_ring:
            spare = dataclasses.replace(layout, slots=3 + self.case.spare_slots)
            self.prepared = dataclasses.replace(self.prepared, layout=spare)
        elif layout is not None:
            chunk = min(self.case.chunk, layout.samples)
            largest = max(network.train.batch.size for network in self.prepared.spec.networks)
            touched = -(-(largest - 1) // chunk) + 1
            self.prepared = dataclasses.replace(
                self.prepared,
                layout=dataclasses.replace(
                    layout,
                    chunk=chunk,
                    slots=touched + self.case.spare_slots,
                    lookahead=touched + 1,
                ),
            )
        statuses = {}

        def rank_main(world):
            statuses[world.rank] = _Session(
                world, self.prepared, interruption or Interruption(), self.notes
            ).run()

        with pytest.MonkeyPatch.context() as patch:
            if self.case.seed % 2:  # an engine that can goes ahead of the sums
                patch.setattr(softmax, "SoftmaxRegression", BeginningRegression)
            ended = Launch(len(self.case.node_of), self.case.seed).run(rank_main, turns)
        Writer.promote_previous()
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # who was killed closed no files: not one of them is left to warn in another test
        return ExitStatus(statuses[0]) if ended else None

    def forget_what_was_not_saved(self):
        """What is in no checkpoint, or in one that is damaged, is trained again."""
        results = results_of(self.prepared.spec, self.prepared.paths)
        results.run.restore(recover(results)[0])
        for name in self.prepared.spec.by_name:  # nobody reads the arrays of one that is done
            is_over = results.network_status(name).outcome is not None
            matches = find_newest(self.prepared.paths, name, with_arrays=not is_over)
            state, history = (
                matches.state,
                matches.history if is_over else matches.state.history if matches.state else (),
            )
            complete = {place_of(record) for record in history}
            part = {(state.path or [state.stream_epoch])[0]: state.position} if state else {}
            for key in [key for key in self.notes if key[0] == name and key[1] not in complete]:
                self.notes[key] = [
                    (row, number) for row, number in self.notes[key] if row < part.get(key[1], 0)
                ]

    def finish_interrupted(self, moments):
        """Launches that are interrupted at these moments, and one that is not; all epochs are as of a single one."""
        for moment in moments:
            assert self.launch(Interruption(moment)) in (ExitStatus.RESUMABLE, ExitStatus.OK)
        self._finish()

    def finish_killed(self, moments):
        """Launches that are killed after so many turns, and one that is not; all epochs are as of a single one."""
        for turns in moments:
            if self.launch(turns=turns) is None:
                self.forget_what_was_not_saved()
        self._finish()

    def _finish(self):
        assert self.launch() is ExitStatus.OK
        self.check_epochs()

    def results(self):
        """Of the networks; not the rows that stand for all folds of one."""
        return {row.name: row for row in read_results(self.folder / "run") if not row.folds}

    def events(self, kind):
        return events_of(self.prepared.paths.events, kind)

    def history(self, name):
        return find_newest(self.prepared.paths, name, with_arrays=False).history

    def best(self, name):
        """What a network that is done was judged and exported with; None where it was damaged since."""
        spec = self.prepared.spec
        try:
            matches = find_best(
                self.prepared.paths, name, spec.by_name[name].train.stopping, spec.checkpoint.keep
            )
        except DamagedError:
            return None
        return None if matches.damage else matches.state

    def check_tests(self):
        """Every network that is done was judged on the test data once, as it is exported; no other was."""
        test, spec = self.prepared.pipeline("test"), self.prepared.spec
        received = [event.network for event in self.events(ev.NetworkTested)]
        begun_again = [
            event.network for event in self.events(ev.NetworkRolledBack) if not event.finished
        ]
        for name, row in self.results().items():
            if test is None or row.status is not Status.FINISHED:
                assert np.isnan([row.test_loss, row.test_accuracy]).all()
                assert name not in received
                continue
            assert 1 <= received.count(name) <= 1 + begun_again.count(name)
            if (best := self.best(name)) is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(
                spec.by_name[name], SingleRankGroup()
            )
            trainable.load(best.arrays)
            judged = trainable.evaluate(*loaded(test, range(test.samples), 0, False))
            np.testing.assert_allclose(
                [row.test_loss, row.test_accuracy],
                [judged.loss / judged.count, judged.correct / judged.count],
                rtol=1e-9,
            )

    def check_predictions(self):
        """What was kept of a network that is done is what it gives, as it is exported, for each validation sample."""
        evaluation, spec, folds = (
            self.prepared.pipeline("validation"),
            self.prepared.spec,
            self.prepared.folds,
        )
        for name, row in self.results().items():
            stored = read_predictions(self.prepared.paths, name, "validation", "class")
            if stored is None or row.status is not Status.FINISHED:
                continue
            if (best := self.best(name)) is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(
                spec.by_name[name], SingleRankGroup()
            )
            trainable.load(best.arrays)
            rows = (
                range(evaluation.samples)
                if folds is None
                else np.flatnonzero(folds == spec.by_name[name].fold).tolist()
            )
            images, labels = loaded(evaluation, rows, 0, False)
            usable = labels >= 0
            outputs = trainable.predict(images, labels)[1]
            np.testing.assert_allclose(
                stored.values, probabilities(outputs[usable], "class"), rtol=1e-6
            )
            np.testing.assert_array_equal(stored.truth.targets, labels[usable])
            np.testing.assert_array_equal(stored.rows, row_numbers(evaluation.source)[rows][usable])

    def check_epochs(self):
        """Every epoch of every history was the whole data set, in order, each sample once; and trained as alone."""
        self.check_tests()
        self.check_predictions()
        assert self.prepared.paths.foreign_files() == []
        for name in self.results():
            history = self.history(name)
            for record in history:
                noted = sorted(self.notes[name, place_of(record)])
                assert noted == list(enumerate(plan_epoch(self.prepared, record, name).indices)), (
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
            all_or_none = [
                (record.loss, record.accuracy, record.val_loss, record.val_accuracy)
                for record in history
            ]
            np.testing.assert_allclose(all_or_none, alone, rtol=1e-9)


class _Session(Session):
    """Notes what networks are given."""

    def __init__(self, world, prepared, interruption, notes):
        super().__init__(world, prepared, interruption)
        world.notes, world.serving = notes, [None]
        hear = world.receive

        def hear_and_note(tag):
            message = hear(tag)
            if isinstance(message, Start | Join):
                world.serving[0] = message.network.name
            return message

        world.receive = hear_and_note


def noted_sources(world, launch, memory, first_epoch):
    per_rank = make_sources(world, launch, memory, first_epoch)._sources
    return Sources(
        {
            key: dataclasses.replace(
                source, stream=Recorder(source.stream, world.serving, world.notes)
            )
            for key, source in per_rank.items()
        }
    )


def place_of(record):
    """What tells an epoch from all others of its network."""
    return (parse_path(record.path) or [record.stream_epoch])[0]


def plan_epoch(prepared, record, name):
    """The samples of an epoch of a network: all, or those that are not of its fold."""
    full = prepared.order(prepared.pipeline("train")).plan_epoch(
        Epoch(record.stream_epoch, parse_path(record.path))
    )
    if prepared.folds is None:
        return full
    saved = [
        row
        for row, index in enumerate(full.indices)
        if prepared.folds[index] != prepared.spec.by_name[name].fold
    ]
    return EpochPlan(full.productions[saved], full.indices[saved], full.path)


def train_alone(prepared, name, history):
    """What each epoch comes to where one rank trains one network on samples that it prepares itself."""
    network = prepared.spec.by_name[name]
    trainable = NumpyEngine(prepared.sample).build(network, SingleRankGroup())
    training, evaluation = prepared.pipeline("train"), prepared.pipeline("validation")
    judging = (
        range(evaluation.samples)
        if network.fold is None
        else [index for index, fold in enumerate(prepared.folds) if fold == network.fold]
    )
    came_to = []
    for record in history:
        complete, sums = plan_epoch(prepared, record, name), np.zeros(3)
        for first in range(0, len(complete.indices), network.train.batch.size):
            rows = range(first, min(first + network.train.batch.size, len(complete.indices)))
            parts = [
                loaded(training, [complete.indices[row]], int(complete.productions[row]), True)
                for row in rows
            ]
            images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
            result = trainable.step(images, labels, len(labels))
            sums += (result.loss, result.correct, result.count)
        judged = trainable.evaluate(*loaded(evaluation, judging, 0, False))
        came_to.append(
            [*sums[:2] / sums[2], judged.loss / judged.count, judged.correct / judged.count]
        )
    return came_to


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
        subject = (
            {"build": draw(st.sampled_from(sorted(FAILING)))}
            if failing and draw(st.booleans())
            else {"family": "softmax"}
        )
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
    curve = (
        st.floats(1, 50).map(lambda rate: [rate * gpus**0.9 for gpus in range(1, trainers + 1)])
        if regroups
        else st.lists(st.floats(1, 50), min_size=1, max_size=trainers)
    )  # with the first, devices are always of use
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
    **rest,
):
    """A run of one network, on no more ranks than it needs, whose file system fails so many times."""
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
        "schedule": rest,
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
    """The same function, but for one call, in which the file system fails."""
    calls = itertools.count(1)

    def fails(*arguments, **options):
        if next(calls) == at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return function(*arguments, **options)

    return fails


def counting(function, calls):
    """The same function, which does something in some of its calls: number -> what."""
    numbers = itertools.count(1)

    def counts(*arguments, **options):
        calls.get(next(numbers), lambda: None)()
        return function(*arguments, **options)

    return counts
