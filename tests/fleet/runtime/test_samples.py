"""Each network gets the same samples, bit for bit, with every order, store and augmentation."""

import zlib
from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.runtime.training import loop
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from preprocess.pipeline import Pipeline
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.test_input_pipelines import FLIPPED, SHARED, Images

PIPELINES = {
    "one": {"": FLIPPED},  # all networks read samples of the stream unchanged
    # equal inputs, different targets
    "targets": {"plain": (SHARED, None), "value": (SHARED, "value")},
    "several": {"plain": (SHARED, None), "flipped": (FLIPPED, None), "value": (FLIPPED, "value")},
}
STREAMS = {
    "none": {"cache": "none"},
    "small": {"cache": "none", "window": 250 * 8 * 8},  # a batch is not always a view of it
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
    """Return training samples, one of them unreadable, and validation samples on request."""
    train = Images(SAMPLES, 1, bad=(7,))
    return (train, Images(40, 2)) if path == "own" else train


def write_pipelines(folder, stream, validation, pipelines):
    """Write a spec with a network for each pipeline."""
    transforms = PIPELINES[pipelines].get("")
    models = [
        {
            "family": "softmax",
            "name": name or "net",
            "gpus": 1,
            "train": {"batch": {"size": 12 + 7 * index}},
        }
        for index, name in enumerate(PIPELINES[pipelines])
    ]
    if not transforms:
        for model, (own_transforms, target) in zip(
            models, PIPELINES[pipelines].values(), strict=True
        ):
            model["data"] = {"transforms": own_transforms}
            if target:
                model["data"]["target"] = target
    if "file" in stream and pipelines == "several":  # a file stores one target per sample
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
            **({"transforms": transforms} if transforms else {}),
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
    """Records each sample that networks get, by network, epoch, position and rank."""

    def __init__(self, monkeypatch):
        self._epochs, self._evaluations = defaultdict(dict), defaultdict(dict)
        monkeypatch.setattr(loop, "strides", self._recording_strides(loop.strides))
        monkeypatch.setattr(loop, "evaluate", self._recording_evaluation(loop.evaluate))
        monkeypatch.setattr(loop, "predict", self._recording_evaluation(loop.predict))

    def _recording_strides(self, strides):
        def recording_strides(training, batches):
            def recorded():
                checksums = {}
                for batch in batches:
                    position = batch.position, training.group.rank
                    checksums[position] = _checksums(batch.inputs, batch.targets)
                    if batch.is_last:
                        key = training.network.name, batch.epoch.number, batch.epoch.path
                        self._epochs[key].update(checksums)
                    yield batch

            return strides(training, recorded())

        return recording_strides

    def _recording_evaluation(self, function):
        def recording_evaluation(training, samples, *arguments):
            if samples is not None:
                key = training.network.name, samples.samples
                samples = _RecordedValidation(samples, self._evaluations[key])
            return function(training, samples, *arguments)

        return recording_evaluation

    def epochs(self):
        """Return (network, stream epoch, path) -> checksums of the samples, in order."""
        return {key: _in_order(checksums) for key, checksums in self._epochs.items()}

    def evaluations(self):
        """Return (network, samples of the split) -> checksums of the samples, in order."""
        return {key: _in_order(checksums) for key, checksums in self._evaluations.items()}


class _RecordedValidation:
    def __init__(self, samples, checksums):
        self._samples, self._checksums, self.samples = samples, checksums, samples.samples
        self.numbers = samples.numbers

    def batches(self, batch, rank, size):
        checksums = []
        for inputs, targets in self._samples.batches(batch, rank, size):
            checksums += _checksums(inputs, targets)
            yield inputs, targets
        self._checksums[rank] = checksums


def _checksums(inputs, targets):
    return [
        zlib.crc32(target.tobytes(), zlib.crc32(image.tobytes()))
        for image, target in zip(inputs, targets, strict=True)
    ]


def _in_order(checksums):
    return [checksum for index in sorted(checksums) for checksum in checksums[index]]


def alone(prepared, network):
    """Return the pipeline of a network alone."""
    pipeline = prepared.inputs.pipelines.get(network.pipeline)
    if pipeline is None:
        return Pipeline(
            prepared.inputs.data.train, prepared.inputs.transforms, SEED, prepared.sample
        )
    return Pipeline(pipeline.data.train, pipeline.transforms, SEED, pipeline.samples["train"])


def expected(pipeline, indices, productions):
    checksums = []
    for index, production in zip(indices.tolist(), productions.tolist(), strict=True):
        inputs, targets = pipeline.empty(1)
        pipeline.load([index], production, inputs, targets)
        checksums += _checksums(inputs, targets)
    return checksums


def is_possible(stream, pipelines):
    """A file stores one target per sample, and no stream of trainers' own."""
    if "file" not in stream or pipelines == "one":
        return True
    return pipelines == "several" and "own" not in stream


CASES = [
    (stream, validation, pipelines)
    for stream, validation, pipelines in product(STREAMS, VALIDATION, PIPELINES)
    if is_possible(stream, pipelines)
]


@pytest.mark.long_but_first
@pytest.mark.parametrize(("stream", "validation", "pipelines"), CASES[::5])
def test_samples_of_networks_are_those_of_their_epochs_in_order(
    stream, validation, pipelines, tmp_path, monkeypatch
):
    recorder = Recorder(monkeypatch)
    status, prepared = launch(write_pipelines(tmp_path, stream, validation, pipelines), 3)
    assert status is ExitStatus.OK
    epochs = recorder.epochs()
    assert len(epochs) >= 2 * len(prepared.spec.networks)
    for (name, number, path), checksums in epochs.items():
        network = prepared.spec.by_name[name]
        pipeline = alone(prepared, network)
        if path:
            order = RingOrder(pipeline, -(-pipeline.samples // SHARDS), SEED)
        else:
            order = StrictOrder(pipeline, 64)
        plan = order.plan_epoch(Epoch(number, path))
        keeps = np.ones(len(plan.indices), bool)
        if network.fold is not None:
            keeps = prepared.inputs.folds[plan.indices] != network.fold
        assert checksums == expected(pipeline, plan.indices[keeps], plan.productions[keeps])
    split_sizes = {
        name: {samples for network, samples in recorder.evaluations() if network == name}
        for name in prepared.spec.by_name
    }
    assert {len(sizes) for sizes in split_sizes.values()} == {
        {"share": 2, "none": 0}.get(validation, 1)
    }
