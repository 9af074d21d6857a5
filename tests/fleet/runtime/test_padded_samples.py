"""Batches of inputs of unequal length are cut alike on all ranks, with every order and store."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.runtime.training import loop
from fleet.runtime.training.network import Training
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from preprocess.base import RandomAccess
from preprocess.length_order import padding_share
from tests.fleet.runtime.runs import launch, write

SAMPLES, SHARDS, SEED = 1200, 6, 5
STREAMS = {
    "none": {"cache": "none"},
    "small": {"cache": "none", "shared_memory": 200_000},
    "ring": {"cache": "none", "order": "ring", "shards": SHARDS},
    "memory": {"cache": "memory"},
    "own none": {"cache": "none"},
    "own memory": {"cache": "memory"},
}

pytestmark = pytest.mark.usefixtures("quick")


class Sentences(RandomAccess):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.sizes = np.clip(rng.lognormal(2, 0.8, count).astype(int), 1, 60)
        self.labels = np.arange(count) % 2
        self.classes = ("a", "b")

    def read(self, index):
        return {"tokens": np.arange(self.sizes[index]) + index, "age": np.float32([index])}

    def name(self, index):
        return f"sentence {index}"


def sentences(path):
    return Sentences(SAMPLES, 1), Sentences(40, 2)


def write_spec(folder, stream, folds=None):
    held_out = {"validation": None, "folds": folds} if folds else {}
    return write(
        folder,
        [
            {"family": "softmax", "name": name, "gpus": gpus, "train": {"batch": {"size": batch}}}
            for name, gpus, batch in (("alone", 1, 16), ("group", 2, 24))
        ],
        data={
            "source": f"{__name__}:sentences",
            "pad": {"tokens": {"to": "longest", "value": -1}},
            **STREAMS[stream],
            **held_out,
        },
        train={
            "optimizer": {"name": "sgd", "learning_rate": 1e-9},
            "stopping": {"max_epochs": 2, "monitor": "loss"},
        },
        schedule={"policy": "baseline" if "own" in stream else "adaptive"},
        resources={"engine": "numpy", **({} if "own" in stream else {"preprocessors": "auto"})},
    )


def record_batches(monkeypatch):
    """Record the batches of each (network, epoch, path), by the last position and the rank."""
    epochs = defaultdict(dict)
    strides = loop.strides

    def recording_strides(training, batches):
        def recorded():
            parts = {}
            for batch in batches:
                key = batch.position, training.group.rank
                parts[key] = batch.size, batch.inputs["tokens"].copy(), batch.inputs["age"].copy()
                if batch.is_last:
                    epochs[training.network.name, batch.epoch].update(parts)
                yield replace(batch, inputs=batch.inputs.view(training.sample.wire.dtype))

        return strides(training, recorded())

    monkeypatch.setattr(loop, "strides", recording_strides)
    # The engine takes whole rows, so batches would not be cut.
    monkeypatch.setattr(Training, "cuts_batches", property(lambda self: True))
    return epochs


def order_of(pipeline, path):
    if path:
        return RingOrder(pipeline, -(-pipeline.samples // SHARDS), SEED)
    return StrictOrder(pipeline, 64)


@pytest.mark.long_but_first
@pytest.mark.parametrize(("stream", "folds"), [*((name, None) for name in STREAMS), ("none", 3)])
def test_batches_are_cut_to_their_longest_row(stream, folds, tmp_path, monkeypatch):
    epochs = record_batches(monkeypatch)
    status, prepared = launch(write_spec(tmp_path, stream, folds), 3)
    assert status is ExitStatus.OK
    sizes = Sentences(SAMPLES, 1).sizes
    pipeline = prepared.pipeline("train")
    assert len(epochs) == 2 * len(prepared.spec.networks)
    for (name, epoch), parts in epochs.items():
        plan = order_of(pipeline, epoch.path).plan_epoch(Epoch(epoch.number, epoch.path))
        indices = plan.indices
        fold = prepared.spec.by_name[name].fold
        if fold is not None:
            indices = indices[prepared.inputs.folds[indices] != fold]
        seen = np.concatenate([parts[key][2].ravel() for key in sorted(parts)])
        np.testing.assert_array_equal(seen, indices)
        for (position, _), (size, tokens, ages) in parts.items():
            assert tokens.shape[1] == sizes[indices[position - size : position]].max()
            for row, index in zip(tokens, ages.ravel().astype(int), strict=True):
                length = sizes[index]
                assert row[:length].tolist() == list(range(index, index + length))
                assert (row[length:] == -1).all()


def test_launch_tells_lengths_and_padding(tmp_path):
    _, prepared = launch(write_spec(tmp_path, "none"), 3)
    sizes = Sentences(SAMPLES, 1).sizes
    share = padding_share(sizes, prepared.pipeline("train").order(0), 16)
    assert share < 0.1
    remark = prepared.inputs.data.remark
    assert f"data.pad: tokens: lengths from {sizes.min()} to {sizes.max()}" in remark
    assert f"{share:.1%} of batches of 16" in remark
