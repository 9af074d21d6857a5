"""Whole runs, all ranks in one process: any ranks, any networks, any order of events."""

import dataclasses
import errno
import gc
import itertools
import json
import os
import shutil
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.comm.alone import Alone
from fleet.comm.messages import Join, Start
from fleet.comm.roles import assign
from fleet.domain.events import (
    Ended,
    EpochEnded,
    FirstStep,
    GroupChanged,
    GroupStarted,
    NetworkFailed,
    NetworkFellBack,
    NetworkFinished,
    NetworkRetried,
    NetworkTested,
    Profiled,
    RanksReady,
    RateLearned,
    RateMeasured,
    RateOff,
    RatesRemembered,
    RoundStarted,
)
from fleet.engines import softmax
from fleet.engines.softmax import NumpyEngine, SoftmaxRegression
from fleet.ensemble import networks
from fleet.errors import DamagedError, ExitStatus, StorageError, UserError
from fleet.prediction.ensembles import read_ensembles
from fleet.prediction.kept import probabilities, read_predicted
from fleet.runtime import session as fleet_session
from fleet.runtime.session import Session
from fleet.runtime.training import evaluation, trainer
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.sources import Sources, sources_of
from fleet.storage.checkpoint import best_state, newest, read_state, write_state
from fleet.storage.event_log import events_of, logged_epochs, read_events
from fleet.storage.rate_cache import RateBook, cache_path, read_cache
from fleet.storage.results import Results, Status, leaderboard, read_results, recover
from fleet.storage.writer import CheckpointWriter
from fleet.stream.batch import split_rows
from fleet.stream.filler import WindowFiller
from fleet.stream.order import Epoch, Itinerary, read_path
from preprocess.base import row_numbers
from scheduler.base import Member, Round
from scheduler.ensemble.policies import POLICIES, Policy
from tests.examples import examples, long_but_first
from tests.fleet.one_process import Launch
from tests.fleet.runtime.runs import Interruption, Signal, prepare
from tests.fleet.runtime.training.going_ahead import BeginningRegression
from tests.sources import Numbered


@pytest.fixture(scope="module", autouse=True)
def _quick(tmp_path_factory):
    """No disk is waited for, and what one run measures is not known to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(RateBook, "write", lambda book: None)
        patch.setattr(trainer, "CheckpointWriter", _Writer)
        patch.setattr(fleet_session, "sources_of", _noted_sources)
        patch.setattr(evaluation, "_JUDGED_AT_ONCE_S", 0.0)  # an interruption may come between any two batches
        yield


_write_cache = RateBook.write


class _Writer(CheckpointWriter):
    """Survives the kill of its rank, for threads cannot be killed; so the next launch waits for it."""

    alive: ClassVar[list] = []

    def __init__(self, *args):
        super().__init__(*args)
        self.alive.append(self)

    @classmethod
    def promote_previous(cls):
        while cls.alive:
            cls.alive.pop()._jobs.join()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("run")


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
    def own(self):
        return Recorder(self._stream.own, self._serving, self._notes)

    def batches(self, epoch, start, batch, group, taken):
        for item in self._stream.batches(epoch, start, batch, group, taken):
            rows = split_rows(item.position - item.size, item.position, group.rank, group.size)
            numbers = [Numbered.number(image) for image in item.images]
            assert len(numbers) == rows[1] - rows[0]
            place = item.epoch.path[0] if item.epoch.path else item.epoch.number
            self._notes[self._serving[0], place] += zip(range(*rows), numbers, strict=True)
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
            self.prepared = dataclasses.replace(self.prepared, layout=dataclasses.replace(
                layout, chunk=chunk, slots=touched + self.case.spare_slots, lookahead=touched + 1))
        statuses = {}

        def rank_main(world):
            statuses[world.rank] = _Session(world, self.prepared, interruption or Interruption(), self.notes).run()

        with pytest.MonkeyPatch.context() as patch:
            if self.case.seed % 2:  # an engine that can goes ahead of the sums
                patch.setattr(softmax, "SoftmaxRegression", BeginningRegression)
            ended = Launch(len(self.case.node_of), self.case.seed).run(rank_main, turns)
        _Writer.promote_previous()
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # who was killed closed no files: not one of them is left to warn in another test
        return ExitStatus(statuses[0]) if ended else None

    def forget_what_was_not_saved(self):
        """What is in no checkpoint, or in one that is damaged, is trained again."""
        results = Results(self.prepared.spec, self.prepared.paths, 1)
        recover(results)
        for name in self.prepared.spec.by_name:  # nobody reads the arrays of one that is done
            is_over = results.standing(name).outcome is not None
            found = newest(self.prepared.paths, name, with_arrays=not is_over)
            state, history = found.state, found.history if is_over else found.state.history if found.state else ()
            whole = {place_of(record) for record in history}
            part = {(state.path or [state.stream_epoch])[0]: state.position} if state else {}
            for key in [key for key in self.notes if key[0] == name and key[1] not in whole]:
                self.notes[key] = [(row, number) for row, number in self.notes[key] if row < part.get(key[1], 0)]

    def results(self):
        """Of the networks; not the rows that stand for all folds of one."""
        return {row.name: row for row in read_results(self.folder / "run") if not row.folds}

    def events(self, kind):
        return events_of(self.prepared.paths.events, kind)

    def history(self, name):
        return newest(self.prepared.paths, name, with_arrays=False).history

    def best(self, name):
        """What a network that is done was judged and exported with; None where it was damaged since."""
        spec = self.prepared.spec
        try:
            found = best_state(self.prepared.paths, name, spec.by_name[name].train.converge, spec.checkpoint.keep)
        except DamagedError:
            return None
        return None if found.damage else found.state

    def check_tests(self):
        """Every network that is done was judged on the test data once, as it is exported; no other was."""
        test, spec = self.prepared.pipeline("test"), self.prepared.spec
        told = [event.network for event in self.events(NetworkTested)]
        begun_again = [event.network for event in self.events(NetworkFellBack) if not event.finished]
        for name, row in self.results().items():
            if test is None or row.status is not Status.FINISHED:
                assert np.isnan([row.test_loss, row.test_accuracy]).all()
                assert name not in told
                continue
            assert 1 <= told.count(name) <= 1 + begun_again.count(name)
            if (best := self.best(name)) is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(spec.by_name[name], Alone())
            trainable.load(best.arrays)
            judged = trainable.evaluate(*loaded(test, range(test.samples), 0, False))
            np.testing.assert_allclose([row.test_loss, row.test_accuracy],
                                       [judged.loss / judged.count, judged.correct / judged.count], rtol=1e-9)

    def check_predictions(self):
        """What was kept of a network that is done is what it gives, as it is exported, for each validation sample."""
        evaluation, spec, folds = self.prepared.pipeline("validation"), self.prepared.spec, self.prepared.folds
        for name, row in self.results().items():
            kept = read_predicted(self.prepared.paths, name, "validation", "class")
            if kept is None or row.status is not Status.FINISHED:
                continue
            if (best := self.best(name)) is None:
                continue
            trainable = NumpyEngine(self.prepared.sample).build(spec.by_name[name], Alone())
            trainable.load(best.arrays)
            rows = (range(evaluation.samples) if folds is None
                    else np.flatnonzero(folds == spec.by_name[name].fold).tolist())
            images, labels = loaded(evaluation, rows, 0, False)
            usable = labels >= 0
            outputs = trainable.predict(images, labels)[1]
            np.testing.assert_allclose(kept.values, probabilities(outputs[usable], "class"), rtol=1e-6)
            np.testing.assert_array_equal(kept.truth.targets, labels[usable])
            np.testing.assert_array_equal(kept.rows, row_numbers(evaluation.source)[rows][usable])

    def check_epochs(self):
        """Every epoch of every history was the whole data set, in order, each sample once; and trained as alone."""
        self.check_tests()
        self.check_predictions()
        assert self.prepared.paths.foreign() == []
        for name in self.results():
            history = self.history(name)
            for record in history:
                noted = sorted(self.notes[name, place_of(record)])
                assert noted == list(enumerate(itinerary(self.prepared, record, name).indices)), (name, record)
            assert [record.epoch for record in history] == list(range(1, len(history) + 1))
            consumed = [chunk for record in history for chunk in read_path(record.path) or [record.stream_epoch]]
            assert len(set(consumed)) == len(consumed)
            if not history:
                continue
            alone = train_alone(self.prepared, name, history)
            all_or_none = [(record.loss, record.accuracy, record.val_loss, record.val_accuracy) for record in history]
            np.testing.assert_allclose(all_or_none, alone, rtol=1e-9)


class _Session(Session):
    """Notes what networks are given."""

    def __init__(self, world, prepared, interruption, notes):
        super().__init__(world, prepared, interruption)
        world.notes, world.serving = notes, [None]
        hear = world.hear

        def hear_and_note(tag):
            message = hear(tag)
            if isinstance(message, Start | Join):
                world.serving[0] = message.network.name
            return message

        world.hear = hear_and_note


def _noted_sources(world, launch, memory, first_epoch):
    each = sources_of(world, launch, memory, first_epoch)._each
    return Sources({key: dataclasses.replace(source, stream=Recorder(source.stream, world.serving, world.notes))
                    for key, source in each.items()})


def place_of(record):
    """What tells an epoch from all others of its network."""
    return (read_path(record.path) or [record.stream_epoch])[0]


def itinerary(prepared, record, name):
    """The samples of an epoch of a network: all, or those that are not of its fold."""
    whole = prepared.order(prepared.pipeline("train")).itinerary(Epoch(record.stream_epoch, read_path(record.path)))
    if prepared.folds is None:
        return whole
    kept = [row for row, index in enumerate(whole.indices)
            if prepared.folds[index] != prepared.spec.by_name[name].fold]
    return Itinerary(whole.productions[kept], whole.indices[kept], whole.path)


def train_alone(prepared, name, history):
    """What each epoch comes to where one rank trains one network on samples that it prepares itself."""
    network = prepared.spec.by_name[name]
    trainable = NumpyEngine(prepared.sample).build(network, Alone())
    training, evaluation = prepared.pipeline("train"), prepared.pipeline("validation")
    judging = (range(evaluation.samples) if network.fold is None
               else [index for index, fold in enumerate(prepared.folds) if fold == network.fold])
    came_to = []
    for record in history:
        whole, sums = itinerary(prepared, record, name), np.zeros(3)
        for first in range(0, len(whole.indices), network.train.batch.size):
            rows = range(first, min(first + network.train.batch.size, len(whole.indices)))
            parts = [loaded(training, [whole.indices[row]], int(whole.productions[row]), True) for row in rows]
            images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
            result = trainable.step(images, labels, len(labels))
            sums += (result.loss, result.correct, result.count)
        judged = trainable.evaluate(*loaded(evaluation, judging, 0, False))
        came_to.append([*sums[:2] / sums[2], judged.loss / judged.count, judged.correct / judged.count])
    return came_to


def loaded(pipeline, indices, epoch, training):
    images, labels = pipeline.empty(len(indices))
    pipeline.load(indices, epoch, images, labels, training)
    return images, labels


# ---- any run at all ----------------------------------------------------------------------------

FAILING = {"tests.sources:broken": "no such layer", "tests.sources:not_a_number": "the loss became nan",
           "tests.sources:too_large": "out of memory"}


@st.composite
def cases(draw, failing=False, regroups=False):
    nodes = draw(st.integers(1, 2))
    on_each = draw(st.integers(3 if regroups else 2, 4))
    node_of = tuple(node for node in range(nodes) for _ in range(on_each))
    preprocessors = nodes if regroups else draw(st.integers(nodes, nodes * (on_each - 1)))
    if not regroups and draw(st.integers(0, 4)) == 0:
        node_of, preprocessors = (0,), "auto"
    policy = "adaptive" if regroups else draw(st.sampled_from(sorted(POLICIES)))
    roles = assign(node_of, None if preprocessors == "auto" else preprocessors, None, policy == "baseline")
    trainers, samples = len(roles.trainers), draw(st.integers(4, 40))
    models = []
    for place in range(draw(st.integers(2 if regroups else 1, 4))):
        least = draw(st.integers(1, 2 if regroups else trainers))
        what = {"build": draw(st.sampled_from(sorted(FAILING)))} if failing and draw(st.booleans()) else {
            "family": "softmax"}
        most = trainers if regroups else draw(st.integers(least, trainers))
        models.append({**what, "name": f"n{place}", "gpus": [least, most],
                       "train": {"batch": {"size": draw(st.integers(1, samples // 4 if regroups else samples))},
                                 "converge": {"max_epochs": draw(st.integers(1, 3))}}})
    curve = (st.floats(1, 50).map(lambda rate: [rate * gpus**0.9 for gpus in range(1, trainers + 1)]) if regroups else
             st.lists(st.floats(1, 50), min_size=1, max_size=trainers))  # with the first, devices are always of use
    rates = [{"name": model["name"], "rates": draw(curve)} for model in models]
    content = {
        "seed": 5, "models": models,
        "data": {"source": "tests.sources:numbered", "path": str(samples), **draw(st.sampled_from(
                     [{"cache": "none"}, {"order": "ring", "shards": draw(st.integers(2, 9))}, {"cache": "memory"},
                      {"cache": "file"}])), **draw(st.sampled_from([{}, {"test": "9"}])),
                 "transforms": [{"center_crop": {"size": [4, 4]}}, "tests.sources:noise",
                                {"scale": {"mean": 0.5, "std": 0.5}}]},
        "train": {"optimizer": {"learning_rate": 0.02, "momentum": 0.5}},
        "schedule": {"policy": policy, "rates": {
            "samples_per_epoch": samples, "gpus_per_node": roles.gpus_per_node, "models": rates}},
        "resources": {"engine": "numpy", "preprocessors": preprocessors}}
    return Case(content, node_of, draw(st.integers(1, 8)), draw(st.integers(1, 5)), draw(st.integers(0, 10**6)))


few = settings(max_examples=examples(10), deadline=None,
               suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@few
@given(cases())
def test_every_network_is_trained_to_its_end_as_if_it_were_alone(folders, case):
    runner = Runner(case, folders())
    assert runner.launch() is ExitStatus.OK
    assert {row.status for row in runner.results().values()} == {Status.FINISHED}
    for model in case.content["models"]:
        assert len(runner.history(model["name"])) == model["train"]["converge"]["max_epochs"]
    runner.check_epochs()


@st.composite
def folded(draw):
    """A run of which each network is trained on folds."""
    case = draw(cases())
    data = case.content["data"]
    folds = data["folds"] = draw(st.integers(2, 3))
    samples = int(data["path"])
    for model in case.content["models"]:
        size = model["train"]["batch"]["size"]
        model["train"]["batch"]["size"] = min(size, samples - -(-samples // folds))
    rates = case.content["schedule"]["rates"]["models"]
    case.content["schedule"]["rates"]["models"] = [
        {**rate, "name": f"{rate['name']}-fold{fold}"} for rate in rates for fold in range(folds)]
    return case


@pytest.mark.long
@few
@given(folded())
def test_a_network_of_a_fold_is_trained_as_if_it_were_alone_on_the_other_folds(folders, case):
    runner = Runner(case, folders())
    assert runner.launch() is ExitStatus.OK
    assert {row.status for row in runner.results().values()} == {Status.FINISHED}
    folds, samples = case.content["data"]["folds"], int(case.content["data"]["path"])
    assert set(runner.results()) == {f"{model['name']}-fold{fold}" for model in case.content["models"]
                                     for fold in range(folds)}
    assert len(runner.prepared.folds) == samples
    runner.check_epochs()


@pytest.mark.long
@few
@given(folded(), st.lists(st.integers(0, 60), max_size=4))
def test_a_run_of_folds_that_is_interrupted_goes_on_and_nothing_is_trained_twice(folders, case, moments):
    runner = Runner(case, folders())
    for moment in moments:
        runner.launch(Interruption(after=moment))
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.long
@few
@given(folded(), st.lists(st.integers(1, 3000), min_size=1, max_size=3))
def test_a_run_of_folds_that_is_killed_at_any_moment_goes_on_where_its_checkpoints_are(folders, case, moments):
    runner = Runner(case, folders())
    for turns in moments:
        if runner.launch(turns=turns) is None:
            runner.forget_what_was_not_saved()
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.parametrize("data", [{"cache": "none"}, {"order": "ring", "shards": 5}, {"cache": "memory"}])
def test_a_network_of_a_fold_comes_to_the_numbers_of_one_that_is_given_those_samples_alone(folders, data):
    """The data of the second run is the fold itself: what it trains on, and what it is judged by."""
    def spec(name, **more):  # each on a rank of its own from the first epoch of the stream on
        return {"seed": 5, "models": [{"family": "softmax", "name": name, "gpus": 1}],
                "resources": {"engine": "numpy", "preprocessors": 1},
                "data": {"transforms": [{"scale": {"mean": 0.5, "std": 0.5}}], **more},
                "train": {"batch": {"size": 7}, "converge": {"max_epochs": 3}}, "schedule": {"policy": "global"}}

    runner = Runner(Case(spec("n", source="tests.sources:unvalidated", path="41", folds=3, **data), (0,) * 4, 4, 3, 0),
                    folders())
    assert runner.launch() is ExitStatus.OK
    if "order" in data:  # which chunks were there decides the order of the samples
        runner.check_epochs()
        return
    for fold in range(3):
        name = f"n-fold{fold}"
        alone = Runner(Case(spec(name, source="tests.sources:one_fold", path="41",
                                 options={"folds": 3, "fold": fold, "seed": 5}), (0,) * 4, 4, 3, 0), folders())
        assert alone.launch() is ExitStatus.OK
        ours, theirs = ([(record.loss, record.val_loss, record.val_accuracy) for record in one.history(name)]
                        for one in (runner, alone))
        assert ours == theirs
        assert len(ours) == 3


def test_the_row_of_a_network_has_the_mean_of_its_folds_and_stands_before_them(folders):
    content = {"models": [{"family": "softmax", "name": name} for name in ("a", "b")], "resources": {"engine": "numpy"},
               "data": {"source": "tests.sources:unvalidated", "path": "40", "folds": 4,
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}]},
               "train": {"batch": {"size": 8}, "converge": {"max_epochs": 2}}, "schedule": {"policy": "baseline"}}
    runner = Runner(Case(content, (0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    rows = read_results(runner.folder / "run")
    assert [row.folds for row in rows] == [4, 0, 0, 0, 0] * 2
    for mean, folds in ((rows[0], rows[1:5]), (rows[5], rows[6:])):
        assert [row.name for row in folds] == [f"{mean.name}-fold{fold}" for fold in range(4)]
        found = [row.val_loss for row in folds]
        assert mean.val_loss == pytest.approx(np.mean(found))
        assert mean.deviation["val_loss"] == pytest.approx(np.std(found, ddof=1))
        assert (mean.status, mean.epochs) == (Status.FINISHED, 2)
        judged = [record.val_accuracy * 10 for row in folds for record in runner.history(row.name)]
        assert judged == pytest.approx(np.round(judged))  # of ten samples each
    headers, shown = leaderboard(rows)
    assert shown[0][headers.index("val loss")] == f"{rows[0].val_loss:.4f} ± {rows[0].deviation['val_loss']:.4f}"
    assert "±" not in shown[1][headers.index("val loss")]


def test_a_share_is_set_aside_for_the_test_before_any_other_and_is_never_trained_on(folders):
    content = {"models": [{"family": "softmax", "name": "n0"}], "resources": {"engine": "numpy"},
               "data": {"source": "tests.sources:unvalidated", "path": "40", "validation": "20%", "test": "25%",
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}]},
               "train": {"batch": {"size": 8}, "converge": {"max_epochs": 2}}, "schedule": {"policy": "baseline"}}
    runner = Runner(Case(content, (0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    parts = {name: {source.name(index) for index in range(len(source))}
             for name, source in runner.prepared.inputs.data.parts().items()}
    assert {name: len(found) for name, found in parts.items()} == {"train": 24, "validation": 6, "test": 10}
    assert len(set.union(*parts.values())) == 40
    assert {f"sample {number}" for noted in runner.notes.values() for _, number in noted} == parts["train"]
    runner.check_tests()


def test_finished_networks_are_judged_when_the_spec_names_test_data_later_or_other_data(folders):
    folder = folders()
    before = shaky(folder, failures=0, retries=0, epochs=2)
    assert before.launch() is ExitStatus.OK
    for test, judged in [("9", 1), ("9", 1), ("12", 2)]:
        content = {**before.case.content, "data": {**before.case.content["data"], "test": test}}
        runner = Runner(dataclasses.replace(before.case, content=content), folder)
        assert runner.launch() is ExitStatus.OK
        assert len(runner.events(NetworkTested)) == judged
        assert runner.history("n0") == before.history("n0")
    assert runner.results()["n0"].test_accuracy >= 0


def test_a_network_that_is_trained_further_is_judged_as_it_is_then(folders):
    folder = folders()
    for epochs in (2, 4):
        runner = further(folder, epochs)
        assert runner.launch() is ExitStatus.OK
        assert len(runner.events(NetworkTested)) == epochs / 2
    runner.prepared.paths.tested("n0").write_text("{")  # damaged, or lost with a killed launch
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(NetworkTested)) == 3


def test_networks_that_finish_keep_what_they_give_and_the_run_says_how_good_they_are_together(folders):
    content = {**further(folders(), 2).case.content, "models": [
        {"family": "softmax", "count": 3, "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.5}}}]}
    runner = Runner(Case(content, (0, 0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    runner.check_predictions()
    rows, together = list(runner.results().values()), {row.name: row for row in read_ensembles(runner.folder / "run")}
    assert list(together) == ["single", "top 2", "top 3", "greedy"]
    assert list(together["top 2"].members) == [row.name for row in rows[:2]]
    single, best = together["single"], rows[0]
    assert (single.validation.accuracy, single.test.accuracy) == pytest.approx((best.val_accuracy, best.test_accuracy))
    assert (single.validation.log_loss, single.test.log_loss) == pytest.approx((best.val_loss, best.test_loss))
    assert together["greedy"].validation.accuracy >= single.validation.accuracy


def further(folder, epochs):
    """A run with test data in a folder where there may be one already."""
    content = {"models": [{"family": "softmax", "name": "n0"}], "resources": {"engine": "numpy"},
               "data": {"source": "tests.sources:numbered", "path": "12", "test": "9",
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}]},
               "train": {"batch": {"size": 4}, "converge": {"max_epochs": epochs}}, "schedule": {"policy": "baseline"}}
    return Runner(Case(content, (0, 0), 4, 1, 0), folder)


@few
@given(cases(failing=True))
def test_networks_that_fail_are_rows_and_the_others_are_trained_to_their_end(folders, case):
    runner = Runner(case, folders())
    failing = {model["name"]: FAILING[model["build"]] for model in case.content["models"] if "build" in model}
    assert runner.launch() is (ExitStatus.NETWORK_FAILED if failing else ExitStatus.OK)
    for name, row in runner.results().items():
        assert row.status is (Status.FAILED if name in failing else Status.FINISHED)
        assert failing.get(name, "") in row.reason
    runner.check_epochs()


def shaky(folder, failures, retries, epochs=1, engine="numpy", data=None, checkpoint=None, gpus=1, when="before",
          **rest):
    """A run of one network, on no more ranks than it needs, whose file system fails so many times."""
    (folder / "tries").mkdir()
    model = {"build": "tests.sources:shaky", "name": "n0", "gpus": gpus,
             "args": {"failures": failures, "folder": str(folder / "tries")}}
    content = {"models": [model], "retries": retries, "resources": {"engine": engine}, "schedule": rest,
               "data": {"source": "tests.sources:numbered", "path": "12",
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}], **(data or {})},
               "train": {"batch": {"size": 4}, "converge": {"max_epochs": epochs}},
               "profile": {"when": when, "batches": 2, "timed": 1}, "checkpoint": checkpoint or {}}
    return Runner(Case(content, (0,) * (gpus + (gpus > 1)), 4, 1, 0), folder)


@pytest.mark.parametrize("policy", ["global", "baseline"])  # with baseline nothing is measured before
def test_a_network_is_tried_again_as_often_as_the_spec_says_and_again_in_the_next_launch(folders, monkeypatch, policy):
    monkeypatch.setattr(networks, "_REST_S", 0.01)
    runner = shaky(folders(), failures=4, retries=2, policy=policy)
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    assert runner.results()["n0"].reason == "OSError: [Errno 116] Stale file handle"
    assert runner.launch() is ExitStatus.OK
    assert runner.results()["n0"].status is Status.FINISHED
    assert len(runner.events(NetworkRetried)) == 2 + 1
    assert len(runner.events(NetworkFailed)) == 1


def failing_once(function, at):
    """The same function, but for one call, in which the file system fails."""
    calls = itertools.count(1)

    def fails(*arguments, **options):
        if next(calls) == at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return function(*arguments, **options)

    return fails


def test_a_network_that_is_tried_again_goes_on_from_all_that_it_has_told(folders, monkeypatch):
    def write_late(*arguments):
        time.sleep(0.2)
        write(*arguments)

    write = _Writer._write
    monkeypatch.setattr(_Writer, "_write", write_late)
    monkeypatch.setattr(networks, "_REST_S", 0.01)
    monkeypatch.setattr(SoftmaxRegression, "step", failing_once(SoftmaxRegression.step, at=4))
    runner = shaky(folders(), failures=0, retries=1, epochs=2, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(NetworkRetried)) == 1
    assert [event.record.epoch for event in runner.events(EpochEnded)] == [1, 2]


def test_measured_rates_are_kept_before_anything_is_trained(folders, monkeypatch):
    kept = []
    runner = shaky(folders(), failures=0, retries=0, policy="global")
    monkeypatch.setattr(RateBook, "write", lambda book: kept.append(
        (list(read_events(runner.prepared.paths.events))[-1].event, [list(rates) for rates in book._new.values()])))
    assert runner.launch() is ExitStatus.OK
    assert isinstance(kept[0][0], Profiled)
    assert kept[0][1] == [[1]]


def rates_in(cache):
    """Without what launches took beside steps."""
    return [(key, sizes) for key, sizes in cache.items() if not key.startswith("beside steps")]


def test_a_launch_that_looks_at_no_rates_leaves_those_that_it_showed_and_what_it_took_beside_steps(
        folders, monkeypatch):
    folder = folders()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(RateBook, "write", _write_cache)
    runner = shaky(folder, failures=0, retries=0, policy="baseline", epochs=3)
    assert runner.launch() is ExitStatus.OK
    known = json.loads(cache_path().read_text())
    (_, sizes), = rates_in(known)
    assert (sizes["1"]["how"], sizes["1"]["network"]) == ("trained", "n0")
    beside, = (sizes for key, sizes in known.items() if key.startswith("beside steps"))
    assert [beside[number]["network"] for number in "123"] == ["ready_s", "start_s", "epoch_s"]


def test_a_rate_of_the_cache_is_told_with_its_age_corrected_where_it_is_wrong_and_measured_anew_if_asked(
        folders, monkeypatch):
    folder = folders()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(RateBook, "write", _write_cache)
    add = StepClock.add
    monkeypatch.setattr(StepClock, "add", lambda clock, samples, seconds: add(clock, samples, 0.001))
    runner = shaky(folder, failures=0, retries=0, policy="global", data={"path": "80"}, epochs=2)
    runner.launch()
    wrong = json.loads(cache_path().read_text())
    (key, sizes), = rates_in(wrong)
    assert (sizes["1"]["how"], sizes["1"]["steps"], sizes["1"]["network"]) == ("measured", 1, "n0")
    assert sizes["1"]["rate"] == pytest.approx(4000)
    sizes["1"].update(rate=1.0, at=time.time() - 3600, machine="node7: a slow one")
    cache_path().write_text(json.dumps(wrong))

    runner.launch(fresh=True)
    told, = runner.events(RatesRemembered)
    assert (told.rates["n0"][0].rate, told.rates["n0"][0].machine) == (1.0, "node7: a slow one")
    assert told.rates["n0"][0].age_s == pytest.approx(3600, abs=60)
    assert runner.events(RateOff)[0].expected == 1.0
    corrected = read_cache(cache_path())[key][1]
    assert (corrected.how, corrected.rate) == ("trained", pytest.approx(4000))

    runner.launch(fresh=True)  # what is near the truth is taken as it is
    assert runner.events(RateMeasured) == []
    runner.launch(fresh=True, remeasure=True)
    assert (runner.events(RatesRemembered), len(runner.events(RateMeasured))) == ([], 1)


def test_rates_are_learned_in_training_and_kept_and_corrected_where_the_cache_was_wrong(folders, monkeypatch):
    folder = folders()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(RateBook, "write", _write_cache)
    add = StepClock.add
    monkeypatch.setattr(StepClock, "add", lambda clock, samples, seconds: add(clock, samples, 0.001))
    runner = shaky(folder, failures=0, retries=0, when="online", policy="global", data={"path": "80"}, epochs=2)
    assert runner.launch() is ExitStatus.OK
    assert runner.events(RateMeasured) == []
    assert {(event.gpus, event.rate) for event in runner.events(RateLearned)} == {(1, 4000.0)}
    assert [len(runner.events(kind)) for kind in (RanksReady, FirstStep)] == [1, 1]
    assert runner.events(Ended)[-1].profiling_s == 0
    known = json.loads(cache_path().read_text())
    (key, sizes), = rates_in(known)
    assert (sizes["1"]["how"], sizes["1"]["rate"]) == ("trained", pytest.approx(4000))
    sizes |= {"1": {**sizes["1"], "rate": 1.0}, "2": {**sizes["1"], "rate": 2.0}}
    cache_path().write_text(json.dumps(known))

    runner.launch(fresh=True)
    assert runner.events(RateOff)[0].expected == 1.0
    corrected = read_cache(cache_path())[key]
    assert {gpus: round(rate.rate) for gpus, rate in corrected.items()} == {1: 4000}
    profile = json.loads(runner.prepared.paths.profile.read_text())
    assert [model["rates"] for model in profile["models"]] == [[pytest.approx(4000)]]


@pytest.mark.parametrize(("schedule", "why"), [
    ({"policy": "baseline"}, "the policy baseline looks at no rates"), ({"rates": "x.json"}, "x.json")])
def test_who_asks_to_measure_anew_what_is_not_measured_is_told_so(folders, schedule, why):
    folder = folders()
    (folder / "x.json").write_text(json.dumps({"samples_per_epoch": 12, "gpus_per_node": 1,
                                               "models": [{"name": "n0", "rates": [10.0]}]}))
    if "rates" in schedule:
        schedule = {"rates": str(folder / "x.json")}
    runner = shaky(folder, failures=0, retries=0)
    runner.case.content["schedule"] = {}
    runner.path.write_text(yaml.safe_dump({**runner.case.content, "schedule": schedule, "output": str(folder / "run")}))
    with pytest.raises(UserError, match=f"--remeasure: .*{why}; leave it out"):
        runner.launch(remeasure=True)


@pytest.mark.parametrize("data", [{}, {"order": "ring", "shards": 2}], ids=["strict", "ring"])
def test_a_replay_that_is_tried_again_takes_the_epochs_that_are_left(folders, monkeypatch, data):
    monkeypatch.setattr(networks, "_REST_S", 0.01)
    runner = shaky(folders(), failures=0, retries=1, epochs=3, data=data, policy="global")
    assert runner.launch() is ExitStatus.OK
    last, taken = runner.prepared.paths.last("n0"), runner.history("n0")
    if not data:  # as a network has them that was not in every round
        state = read_state(last)
        taken = tuple(dataclasses.replace(record, stream_epoch=epoch)
                      for record, epoch in zip(state.history, (0, 2, 5), strict=True))
        write_state(last, dataclasses.replace(state, history=taken))
    monkeypatch.setattr(SoftmaxRegression, "step", failing_once(SoftmaxRegression.step, at=8))
    assert runner.launch(replay=str(runner.folder / "run"), only="n0") is ExitStatus.OK
    assert len(runner.events(NetworkRetried)) == 1
    assert [place_of(record) for record in runner.history("n0")] == [place_of(record) for record in taken]


@pytest.mark.parametrize("data", [{"source": "tests.sources:numbered"},
                                  {"source": "tests.sources:unvalidated", "folds": 2}], ids=["whole", "folds"])
def test_a_network_that_is_new_in_a_resumed_ring_waits_for_no_chunk_of_the_launch_before(folders, monkeypatch, data):
    """It chooses before the preprocessors have begun, and would take any shard of any production."""
    content = {"models": [{"family": "softmax", "name": "old"}],
               "data": {**data, "path": "24", "order": "ring", "shards": 4,
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}]},
               "train": {"batch": {"size": 4}, "converge": {"max_epochs": 2}},
               "schedule": {"policy": "global"}, "resources": {"engine": "numpy", "preprocessors": 1}}
    runner = Runner(Case(content, (0, 0), 1, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    trained = max(record.stream_epoch for name in runner.results() for record in runner.history(name))
    step, chosen = WindowFiller.step, []

    def late(filler):
        if not chosen and (chunk := filler._window.fastest_reader()) is not None:
            chosen.append(chunk)
        return step(filler) if chosen else False

    monkeypatch.setattr(WindowFiller, "step", late)
    more = {**content, "models": [*content["models"], {"family": "softmax", "name": "new"}]}
    resumed = Runner(dataclasses.replace(runner.case, content=more), runner.folder)
    assert resumed.launch() is ExitStatus.OK
    assert chosen == [resumed.prepared.layout.sequence(trained + 1, 0)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_within_its_quota_drops_older_checkpoints_and_one_without_room_goes_on_with_a_larger_quota(folders):
    runner = shaky(folders(), failures=0, retries=0, policy="global")
    runner.case.content["train"]["converge"] = {"max_epochs": 4}
    runner.case.content["models"] = [{"family": "softmax", "name": name} for name in ("n0", "n1")]

    def within(**checkpoint):
        return Runner(dataclasses.replace(runner.case, content={**runner.case.content, "checkpoint": checkpoint}),
                      runner.folder)

    whole = within()
    assert whole.launch(Interruption(40)) is ExitStatus.RESUMABLE
    size = whole.prepared.paths.last("n0").stat().st_size
    refused = within(quota=5 * 816)  # the arrays alone
    with pytest.raises(StorageError, match=r"cannot be written: .* checkpoint.quota is 4.08 kB"):
        refused.launch()
    ended = within(quota=5 * size + 10_000)
    assert ended.launch() is ExitStatus.OK
    assert [row.epochs for row in ended.results().values()] == [4, 4]
    assert ended.prepared.paths.all_previous() == []


class Hurry(Interruption):
    """A walltime that is over as soon as anything has begun, and yet lets everything end that runs."""

    def seconds_left(self):
        return 0.0


@pytest.mark.long
@few
@given(cases())
def test_launches_that_have_too_little_time_for_a_second_round_train_the_first_and_come_to_the_end(folders, case):
    runner = Runner(case, folders())
    for _ in range(1 + len(case.content["models"])):
        done = sum(row.epochs for row in runner.results().values()) if runner.path.with_name("run").exists() else 0
        if runner.launch(Hurry()) is ExitStatus.OK:
            break
        assert sum(row.epochs for row in runner.results().values()) > done
    runner.check_epochs()
    assert {row.status for row in runner.results().values()} == {Status.FINISHED}


class _Exporting(SoftmaxRegression):
    """A network that leaves a file behind, as Keras' do."""

    def export(self, arrays, path):
        path.write_text(str(sorted(arrays)))


class _ExportingEngine(NumpyEngine):
    def build(self, network, group):
        trainable = super().build(network, group)
        trainable.__class__ = _Exporting
        return trainable


@pytest.mark.parametrize("failures", [1, 2])
def test_an_export_that_fails_for_a_reason_that_may_pass_is_tried_again(folders, monkeypatch, failures):
    monkeypatch.setattr(networks, "_REST_S", 0.01)
    monkeypatch.setattr(fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample))
    export = _Exporting.export
    for _ in range(failures):
        export = failing_once(export, at=1)
    monkeypatch.setattr(_Exporting, "export", export)
    runner = shaky(folders(), failures=0, retries=1, epochs=2, engine="keras", policy="baseline")
    assert runner.launch() is (ExitStatus.OK if failures == 1 else ExitStatus.NETWORK_FAILED)
    paths = runner.prepared.paths
    assert (paths.exported("n0", ".keras").exists(), paths.previous("n0").exists()) == (failures == 1, failures == 2)
    assert runner.launch() is ExitStatus.OK
    assert [event.record.epoch for event in runner.events(EpochEnded)] == [1, 2]
    assert paths.exported("n0", ".keras").exists()


@pytest.mark.parametrize("keep", ["best+last", "last"])
def test_a_network_that_was_trained_on_is_exported_again_whichever_launch_comes_to_that(folders, monkeypatch, keep):
    export = lambda self, arrays, path: path.write_text(repr(arrays["weights"].tolist()))  # noqa: E731
    monkeypatch.setattr(fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample))
    monkeypatch.setattr(_Exporting, "export", export)
    runner = shaky(folders(), failures=0, retries=0, engine="keras", policy="baseline", checkpoint={"keep": keep})
    assert runner.launch() is ExitStatus.OK
    paths, before = runner.prepared.paths, runner.prepared.paths.exported("n0", ".keras").read_text()
    runner.path.write_text(runner.path.read_text().replace("max_epochs: 1", "max_epochs: 3"))
    monkeypatch.setattr(_Exporting, "export", failing_once(export, at=1))
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    assert paths.exported("n0", ".keras").read_text() == before
    assert runner.launch() is ExitStatus.OK
    assert [event.record.epoch for event in runner.events(EpochEnded)] == [1, 2, 3]
    best = best_state(paths, "n0", runner.prepared.spec.by_name["n0"].train.converge, keep).state
    assert paths.exported("n0", ".keras").read_text() == repr(best.arrays["weights"].tolist()) != before


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(cases(), st.lists(st.integers(1, 150), min_size=1, max_size=2))
def test_every_network_is_exported_whenever_a_launch_was_killed(folders, case, moments):
    case.content["resources"]["engine"] = "keras"
    runner = Runner(case, folders())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample))
        for turns in moments:
            runner.launch(turns=turns)
        assert runner.launch() is ExitStatus.OK
    for name in runner.results():
        assert runner.prepared.paths.exported(name, ".keras").read_text() == "['velocity', 'weights']"
        most = case.content["models"][int(name[1:])]["train"]["converge"]["max_epochs"]
        assert len(runner.history(name)) == most


@few
@given(cases(), st.lists(st.integers(0, 120), min_size=1, max_size=3))
def test_a_run_that_is_interrupted_goes_on_and_nothing_is_trained_twice(folders, case, moments):
    runner = Runner(case, folders())
    for moment in moments:
        assert runner.launch(Interruption(moment)) in (ExitStatus.RESUMABLE, ExitStatus.OK)
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


def counting(function, calls):
    """The same function, which does something in some of its calls: number -> what."""
    numbers = itertools.count(1)

    def counts(*arguments, **options):
        calls.get(next(numbers), lambda: None)()
        return function(*arguments, **options)

    return counts


@pytest.mark.parametrize("checkpoint", [{}, {"every": "0.001s"}], ids=["between", "within"])
def test_an_epoch_that_was_interrupted_took_as_long_as_all_of_its_pieces(folders, monkeypatch, checkpoint):
    signal = Signal()
    monkeypatch.setattr(SoftmaxRegression, "step", counting(SoftmaxRegression.step, {
        1: lambda: time.sleep(0.3), 2: lambda: setattr(signal, "has_come", True)}))
    runner = shaky(folders(), failures=0, retries=0, data={"path": "24"}, policy="baseline", checkpoint=checkpoint)
    spent = 0.0
    for interruption, status in ((signal, ExitStatus.RESUMABLE), (None, ExitStatus.OK)):
        began = time.perf_counter()
        assert runner.launch(interruption) is status
        spent += time.perf_counter() - began
    record, = runner.history("n0")
    assert 0.3 <= record.seconds < spent
    assert 0 < record.waited_s < record.seconds


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_epoch_whose_judgement_was_interrupted_is_judged_again_and_not_trained(folders, monkeypatch, gpus):
    signal, steps = Signal(), []
    monkeypatch.setattr(SoftmaxRegression, "evaluate", counting(SoftmaxRegression.evaluate, {
        2: lambda: setattr(signal, "has_come", True)}))
    runner = shaky(folders(), failures=0, retries=0, epochs=2, gpus=gpus, policy="baseline")
    assert runner.launch(signal) is ExitStatus.RESUMABLE
    state = newest(runner.prepared.paths, "n0", with_arrays=False).state
    assert (state.history, state.position) == ((), 12)
    step = SoftmaxRegression.step
    monkeypatch.setattr(SoftmaxRegression, "step", lambda *given: (steps.append(1), step(*given))[1])
    assert runner.launch() is ExitStatus.OK
    assert len(steps) == 3 * gpus  # of the second epoch
    runner.check_epochs()


@pytest.mark.parametrize("where", [0, 100, -1], ids=["head", "record", "arrays"])
def test_a_finished_network_with_a_damaged_checkpoint_is_not_trained_again(folders, where):
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    before, row = runner.history("n0"), str(runner.results()["n0"])
    path = runner.prepared.paths.last("n0")
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert runner.launch() is ExitStatus.OK
    assert (runner.history("n0"), str(runner.results()["n0"])) == (before, row)
    assert len(runner.events(EpochEnded)) == 3
    assert [event.finished for event in runner.events(NetworkFellBack)] == [True] * (where != -1)  # nobody reads those


def test_a_network_whose_newest_checkpoint_was_deleted_says_from_which_epoch_it_goes_on(folders, monkeypatch, capsys):
    signal = Signal()
    monkeypatch.setattr(SoftmaxRegression, "step", counting(SoftmaxRegression.step, {
        2 * 3 + 1: lambda: setattr(signal, "has_come", True)}))  # in the third epoch, and two are saved
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch(signal) is ExitStatus.RESUMABLE
    runner.prepared.paths.last("n0").unlink()
    runner.forget_what_was_not_saved()
    left = len(runner.history("n0"))
    assert runner.launch() is ExitStatus.OK
    event, = runner.events(NetworkFellBack)
    assert (event.network, event.epochs) == ("n0", left)
    assert event.damage.startswith(f"{runner.prepared.paths.last('n0')} is missing")
    assert "WARNING: n0 goes on after epoch" in capsys.readouterr().out
    runner.check_epochs()


def test_a_network_whose_folder_was_deleted_says_that_it_starts_over(folders, capsys):
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    assert not runner.events(NetworkFellBack)
    shutil.rmtree(runner.prepared.paths.last("n0").parent)
    assert runner.launch() is ExitStatus.OK
    assert "WARNING: n0 starts over: no checkpoint of it is left, and the log has 3 epochs of it" in (
        capsys.readouterr().out)
    assert len(runner.history("n0")) == 3
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(NetworkFellBack)) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(cases(), st.lists(st.integers(1, 150), min_size=1, max_size=3))
def test_a_run_that_is_killed_at_any_moment_goes_on_where_its_checkpoints_are(folders, case, moments):
    runner = Runner(case, folders())
    for turns in moments:
        runner.launch(turns=turns)
        runner.forget_what_was_not_saved()
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()
    events = runner.prepared.paths.events
    assert isinstance(list(read_events(events))[-1].event, Ended)
    assert logged_epochs(runner.prepared.paths) >= {
        (name, record.epoch, record.stream_epoch) for name in runner.results() for record in runner.history(name)}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(cases(), st.lists(st.tuples(st.booleans(), st.integers(0, 120), st.lists(st.tuples(
    st.integers(0, 3), st.sampled_from(["last", "previous", "best"]), st.floats(0, 1)), max_size=5)),
    min_size=1, max_size=3))
def test_a_run_whose_checkpoints_are_damaged_goes_on_from_those_that_are_whole(folders, case, launches):
    runner = Runner(case, folders())
    for is_kill, moment, flips in launches:
        runner.launch(**({"turns": moment + 1} if is_kill else {"interruption": Interruption(moment)}))
        for number, file, share in flips:
            path = getattr(runner.prepared.paths, file)(f"n{number}")
            if path.exists():
                content = bytearray(path.read_bytes())
                content[int(share * (len(content) - 1))] ^= 1
                path.write_bytes(content)
        runner.forget_what_was_not_saved()
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()
    for name, row in runner.results().items():
        history = runner.history(name)
        assert len(history) == row.epochs == case.content["models"][int(name[1:])]["train"]["converge"]["max_epochs"]
        assert len(runner.prepared.paths.history(name).read_text().splitlines()) == 1 + len(history)
        assert logged_epochs(runner.prepared.paths) >= {
            (name, record.epoch, record.stream_epoch) for record in history}


# ---- groups that change their devices while they train -----------------------------------------


def restless(seed):
    """A policy that deals all devices anew after every epoch: groups grow, shrink, move, stop and start."""

    def policy(rates, progress, cluster, options):
        random = Random(repr((seed, sorted(progress.epochs_done.items()), sorted(progress.finished))))
        devices, members = random.sample(cluster.devices, cluster.gpus), []
        waiting = [network for network in rates.models if network.name not in progress.finished]
        for network in random.sample(waiting, len(waiting)):
            if network.min_gpus <= len(devices):
                count = random.randint(network.min_gpus, len(devices))
                members.append(Member(network.name, tuple(devices[:count])))
                del devices[:count]
        return Round(tuple(members))

    return policy


@pytest.fixture(params=long_but_first("adaptive", "restless"))
def regrouping(request):
    """Whole runs of a case under a policy that changes running groups."""

    def runner(case, folder):
        if request.param == "restless":
            patch.setitem(POLICIES, "adaptive", Policy("adaptive", restless(case.seed)))
        return Runner(case, folder)

    with pytest.MonkeyPatch.context() as patch:
        yield runner


@few
@given(cases(regroups=True))
def test_groups_that_grow_and_shrink_train_as_if_alone(regrouping, folders, case):
    runner = regrouping(case, folders())
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()
    for regroup in runner.events(GroupChanged):
        assert set(regroup.before) != set(regroup.devices)
        assert regroup.devices[0] in regroup.before


@few
@given(cases(regroups=True, failing=True))
def test_networks_that_fail_while_groups_change_are_rows(regrouping, folders, case):
    runner = regrouping(case, folders())
    failing = {model["name"] for model in case.content["models"] if "build" in model}
    assert runner.launch() is (ExitStatus.NETWORK_FAILED if failing else ExitStatus.OK)
    assert {name for name, row in runner.results().items() if row.status is Status.FAILED} == failing
    runner.check_epochs()


@pytest.mark.long
@few
@given(cases(regroups=True), st.lists(st.integers(0, 200), min_size=1, max_size=3))
def test_a_run_may_be_interrupted_while_its_groups_change(regrouping, folders, case, moments):
    runner = regrouping(case, folders())
    for moment in moments:
        assert runner.launch(Interruption(moment)) in (ExitStatus.RESUMABLE, ExitStatus.OK)
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(cases(regroups=True), st.lists(st.integers(1, 300), min_size=1, max_size=3))
def test_a_run_may_be_killed_while_its_groups_change(regrouping, folders, case, moments):
    runner = regrouping(case, folders())
    for turns in moments:
        runner.launch(turns=turns)
        runner.forget_what_was_not_saved()
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


def test_a_network_that_cannot_be_built_on_a_rank_that_joins_fails_on_all_of_its_ranks(folders, monkeypatch):
    build = NumpyEngine.build

    def small(engine, network, group):
        if network.name == "grows" and group.size < network.min_gpus:  # so it is for a rank that will join
            raise MemoryError("wanted 3 GB")
        return build(engine, network, group)

    monkeypatch.setattr(NumpyEngine, "build", small)
    models = [{"family": "softmax", "name": "ends", "gpus": 2, "train": {"converge": {"max_epochs": 1}}},
              {"family": "softmax", "name": "grows", "gpus": [2, 4], "train": {"converge": {"max_epochs": 200}}},
              {"family": "softmax", "name": "waits", "gpus": 3, "train": {"converge": {"max_epochs": 1}}}]
    rates = [{"name": "ends", "rates": [1.0, 2.0]}, {"name": "grows", "rates": [1.0, 2.0, 3.0, 4.0]},
             {"name": "waits", "rates": [0.1, 0.2, 0.3]}]
    monkeypatch.setitem(POLICIES, "adaptive", Policy("adaptive", lambda rates, progress, cluster, options: Round(
        (Member("waits", (0, 1, 2)),) if "grows" in progress.finished else
        (Member("grows", (2, 3, 0, 1)),) if "ends" in progress.finished else
        (Member("ends", (0, 1)), Member("grows", (2, 3))))))
    content = {"models": models, "resources": {"engine": "numpy"}, "train": {"batch": {"size": 4}},
               "data": {"source": "tests.sources:numbered", "path": "40",
                        "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.5, "std": 0.5}}]},
               "schedule": {"policy": "adaptive",
                            "rates": {"samples_per_epoch": 40, "gpus_per_node": 4, "models": rates}}}
    runner = Runner(Case(content, (0,) * 5, 8, 3, 1), folders())
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    rows = runner.results()
    assert {name: row.status for name, row in rows.items()} == {
        "ends": Status.FINISHED, "grows": Status.FAILED, "waits": Status.FINISHED}
    assert "out of memory: MemoryError: wanted 3 GB" in rows["grows"].reason
    assert rows["grows"].epochs < 200


OWN_POLICY = """
from scheduler.base import Member, Round

def policy(rates, progress, cluster, options):
    if progress.epochs_done and FAILS:
        raise LookupError("no plan")
    left = [network.name for network in rates.models if network.name not in progress.finished]
    return Round(tuple(Member(name, (device,)) for name, device in zip(left, cluster.devices)))
"""


def test_a_policy_of_ones_own_that_fails_ends_the_run_with_its_name_and_the_run_goes_on_when_it_is_mended(
        folders, monkeypatch):
    folder = folders()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "live_policy", raising=False)
    (folder / "live_policy.py").write_text(f"FAILS = True\n{OWN_POLICY}")
    models = [{"family": "softmax", "name": name, "train": {"converge": {"max_epochs": 2}}} for name in "ab"]
    content = {"models": models, "resources": {"engine": "numpy"}, "train": {"batch": {"size": 4}},
               "data": {"source": "tests.sources:numbered", "path": "40", "cache": "none",
                        "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.5, "std": 0.5}}]},
               "schedule": {"policy": "live_policy:policy", "rates": {
                   "samples_per_epoch": 40, "gpus_per_node": 2,
                   "models": [{"name": name, "rates": [1.0]} for name in "ab"]}}}
    runner = Runner(Case(content, (0,) * 3, 8, 3, 1), folder)
    with pytest.raises(UserError, match="the policy live_policy:policy failed: LookupError: no plan"):
        runner.launch()
    monkeypatch.setattr(sys.modules["live_policy"], "FAILS", False)
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()


@pytest.mark.parametrize("seed", range(4))
def test_in_lockstep_the_groups_of_a_round_begin_and_end_on_the_same_epochs_of_the_stream(folders, seed):
    epochs = {"n0": 1, "n1": 4, "n2": 2, "n3": 3, "n4": 2}
    content = {"models": [{"family": "softmax", "name": name, "train": {"converge": {"max_epochs": count}}}
                          for name, count in epochs.items()],
               "schedule": {"policy": "global", "rates": {
                   "samples_per_epoch": 24, "gpus_per_node": 4,
                   "models": [{"name": name, "rates": [10.0, 19.0]} for name in epochs]}},
               "resources": {"engine": "numpy"}, "train": {"batch": {"size": 4}},
               "data": {"source": "tests.sources:numbered", "path": "24", "cache": "none",
                        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}]}}
    runner = Runner(Case(content, (0,) * 5, 4, 1, seed), folders())
    assert runner.launch() is ExitStatus.OK
    began, last, final = {}, {}, set()  # network -> epochs of the stream
    for _, event in read_events(runner.prepared.paths.events):
        if isinstance(event, GroupStarted):
            began[event.network] = event.stream_epoch
            final.discard(event.network)
        elif isinstance(event, EpochEnded):
            last[event.network] = event.record.stream_epoch
        elif isinstance(event, NetworkFinished):
            final.add(event.network)
        elif isinstance(event, RoundStarted | Ended):
            assert len(set(began.values())) <= 1
            assert len({last[name] for name in began.keys() - final}) <= 1
            began.clear()
