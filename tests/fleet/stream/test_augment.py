"""Augmented epochs that the trainers of a node share."""

import os
from functools import partial

import numpy as np
import pytest

from fleet.stream.augment import AugmentedEpochs, NodeEpochs
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.sample import ArraySpec
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import Memory, pattern


@pytest.fixture
def name(request):
    return f"fleet-test-augmented-{os.getpid()}"


def mapped(name, epochs, array=ArraySpec((2, 2, 1), "uint8"), samples=4, trainers=2):
    """Return ``take`` of the same memory for each of two trainers."""
    maps = [
        NodeEpochs(array, np.dtype(np.int64), samples, epochs, trainers, name, create)
        for create in (True, False)
    ]
    maps[0].segment.unlink()
    return [partial(node_epochs.take, trainer) for trainer, node_epochs in enumerate(maps)]


def test_node_epochs_are_shared_by_trainers_of_one_epoch(name):
    first, second = mapped(name, epochs=2)
    images, targets, is_ready = first(5)
    images[3], targets[3], is_ready[3] = 7, 1, True
    shared_images, shared_targets, shared_ready = second(5)
    assert (shared_images[3] == 7).all()
    assert shared_targets[3] == 1
    assert shared_ready.tolist() == [False, False, False, True]


def test_node_epochs_replace_the_latest_unused_epoch(name):
    first, second = mapped(name, epochs=3)
    for epoch in (0, 1, 2):
        first(epoch)[2][:] = True
    second(1)
    assert not first(3)[2].any()  # replaces 2
    assert first(0)[2].all()
    assert first(1)[2].all()
    assert not first(2)[2].any()  # replaces 3


def test_node_epochs_without_room_return_none(name):
    first, second = mapped(name, epochs=1)
    assert first(0) is not None
    assert second(9) is None
    assert second(0) is not None


def test_augmented_epochs_are_shared_bit_for_bit(name, monkeypatch):
    source = Memory([pattern(6, 6, seed=number) for number in range(12)])
    transforms = parse_transforms(
        [{"random_crop": {"size": [4, 4]}}, {"flip": {"horizontal": True}}]
    )
    pipeline = Pipeline(source, transforms, 3, infer_sample_spec(source, transforms, 3, keep=True))
    stored = pipeline.empty_stored(12)
    pipeline.load_stored(range(12), *stored)
    augmented = []
    augment_stored = pipeline.augment_stored
    monkeypatch.setattr(
        pipeline,
        "augment_stored",
        lambda *arguments: augmented.extend(arguments[2].tolist()) or augment_stored(*arguments),
    )
    takes = mapped(name, 2, pipeline.sample.input, samples=12)
    for epoch in (0, 1, 2):
        results = []
        for take in takes:
            images, targets = pipeline.empty(8)
            AugmentedEpochs(pipeline, shared=take).finish(
                lambda rows: (stored[0][rows], stored[1][rows]),
                np.arange(8),
                epoch,
                images,
                targets,
            )
            results.append((images.tobytes(), targets.tolist()))
        alone = pipeline.empty(8)
        augment_stored(stored[0][:8], stored[1][:8], np.arange(8), epoch, *alone)
        assert results == [(alone[0].tobytes(), alone[1].tolist())] * 2
    assert augmented == [*range(8)] * 3
