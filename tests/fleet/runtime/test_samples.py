"""Each network gets the same samples, bit for bit, whatever order, store and finish a spec composes for it."""

import zlib
from collections import defaultdict

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.runtime.training import loop
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from preprocess.pipeline import Pipeline
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.test_input_pipelines import FLIPPED, SHARED, Images

FEEDS = {
    "one": {"": FLIPPED},  # all networks get what the stream carries
    "targets": {
        "plain": (SHARED, None),
        "value": (SHARED, "value"),
    },  # the same inputs, and other targets
    "several": {"plain": (SHARED, None), "flipped": (FLIPPED, None), "value": (FLIPPED, "value")},
}
STREAMS = {
    "none": {"cache": "none"},
    "small": {"cache": "none", "window": 250 * 8 * 8},  # of which a batch is at times no view
    "ring": {"cache": "none", "order": "ring", "shards": 5},
    "memory": {"cache": "memory"},
    "file": {"cache": "file"},
    **{f"own {cache}": {"cache": cache} for cache in ("none", "memory", "file")},
}
VALIDATION = {
    "share": {"validation": 0.2, "test": 0.1},
    "folds": {"validation": None, "folds": 3},
    "own": {"validation": None},
    "none": {"validation": None},
}
SAMPLES, SHARDS, SEED = 200, 5, 5

pytestmark = pytest.mark.usefixtures("quick")


def images(path):
    """Samples for training, of which one cannot be read, and for validation where the path asks for them."""
    train = Images(SAMPLES, 1, bad=(7,))
    return (train, Images(40, 2)) if path == "own" else train


def written(folder, stream, validation, feeds):
    """A spec of a network for each feed."""
    entry = FEEDS[feeds].get("")
    models = [
        {
            "family": "softmax",
            "name": name or "net",
            "gpus": 1,
            "train": {"batch": {"size": 12 + 7 * index}},
            **(
                {}
                if entry
                else {
                    "data": {
                        "transforms": output[0],
                        **({"target": output[1]} if output[1] else {}),
                    }
                }
            ),
        }
        for index, (name, output) in enumerate(FEEDS[feeds].items())
    ]
    if "file" in stream and feeds == "several":  # which keeps one target of each sample
        models = models[:2]
    return write(
        folder,
        models,
        data={
            "source": f"{__name__}:images",
            "path": validation,
            "max_unreadable": 0.5,
            **STREAMS[stream],
            **VALIDATION[validation],
            **({"transforms": entry} if entry else {}),
        },
        train={
            "optimizer": {"name": "sgd", "learning_rate": 1e-7},
            "stopping": {"max_epochs": 2, "monitor": "loss"},
        },
        schedule={"policy": "baseline" if "own" in stream else "adaptive"},
        profile={"batches": 4, "timed": 2, "max_gpus": 2},
        resources={"engine": "numpy", **({} if "own" in stream else {"preprocessors": "auto"})},
    )


class Recorder:
    """Notes each sample that networks get, by network, epoch, position and rank."""

    def __init__(self, monkeypatch):
        self._epochs, self._judged = defaultdict(dict), defaultdict(dict)
        monkeypatch.setattr(loop, "strides", self._noting(loop.strides))
        monkeypatch.setattr(loop, "evaluate", self._judging(loop.evaluate))
        monkeypatch.setattr(loop, "predict", self._judging(loop.predict))

    def _noting(self, strides):
        def noting(training, batches):
            def noted():
                so_far = {}
                for batch in batches:
                    so_far[batch.position, training.group.rank] = _sums(batch.images, batch.targets)
                    if batch.is_last:
                        key = training.network.name, batch.epoch.number, batch.epoch.path
                        self._epochs[key].update(so_far)
                    yield batch

            return strides(training, noted())

        return noting

    def _judging(self, original):
        def judging(training, samples, *more):
            if samples is not None:
                samples = _Noted(samples, self._judged[training.network.name, samples.samples])
            return original(training, samples, *more)

        return judging

    def epochs(self):
        """(network, stream epoch, path) -> the sums of its samples, in order."""
        return {key: _in_order(results) for key, results in self._epochs.items()}

    def judged(self):
        """(network, samples of the part) -> the sums of its samples, in order."""
        return {key: _in_order(matches) for key, matches in self._judged.items()}


class _Noted:
    def __init__(self, samples, found):
        self._samples, self._found, self.samples = samples, found, samples.samples

    def batches(self, batch, rank, size):
        own_rows = []
        for inputs, targets in self._samples.batches(batch, rank, size):
            own_rows += _sums(inputs, targets)
            yield inputs, targets
        self._found[rank] = own_rows


def _sums(inputs, targets):
    return [
        zlib.crc32(target.tobytes(), zlib.crc32(image.tobytes()))
        for image, target in zip(inputs, targets, strict=True)
    ]


def _in_order(found):
    return [single for index in sorted(found) for single in found[index]]


def alone(prepared, network):
    """The samples of a network, prepared one by one from their source."""
    feed = prepared.inputs.pipelines.get(network.pipeline)
    if feed is None:
        return Pipeline(
            prepared.inputs.data.train, prepared.inputs.transforms, SEED, prepared.sample
        )
    return Pipeline(feed.data.train, feed.transforms, SEED, feed.samples["train"])


def expected(pipeline, indices, productions):
    results = []
    for index, production in zip(indices.tolist(), productions.tolist(), strict=True):
        inputs, targets = pipeline.empty(1)
        pipeline.load([index], production, inputs, targets)
        results += _sums(inputs, targets)
    return results


CASES = [
    (stream, validation, feeds)
    for stream in STREAMS
    for validation in VALIDATION
    for feeds in FEEDS
    if not ("file" in stream and feeds != "one" and (feeds != "several" or "own" in stream))
]


@pytest.mark.parametrize(("stream", "validation", "feeds"), CASES[::5])
def test_networks_get_the_samples_of_their_epochs_in_order(
    stream, validation, feeds, tmp_path, monkeypatch
):
    recorder = Recorder(monkeypatch)
    status, prepared = launch(written(tmp_path, stream, validation, feeds), 3)
    assert status is ExitStatus.OK
    provided = recorder.epochs()
    assert len(provided) >= 2 * len(prepared.spec.networks)
    for (name, number, path), sums in provided.items():
        network = prepared.spec.by_name[name]
        pipeline = alone(prepared, network)
        order = (
            RingOrder(pipeline, -(-pipeline.samples // SHARDS), SEED)
            if path
            else StrictOrder(pipeline, 64)
        )
        complete = order.plan_epoch(Epoch(number, path))
        stored = (
            np.ones(len(complete.indices), bool)
            if network.fold is None
            else (prepared.folds[complete.indices] != network.fold)
        )
        assert sums == expected(pipeline, complete.indices[stored], complete.productions[stored])
    parts = {
        name: {samples for entry, samples in recorder.judged() if entry == name}
        for name in prepared.spec.by_name
    }
    assert {len(results) for results in parts.values()} == {
        {"share": 2, "none": 0}.get(validation, 1)
    }
