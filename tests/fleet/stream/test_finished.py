"""What one trainer of a node has finished serves all that come to the same epoch."""

import os
from functools import partial

import numpy as np
import pytest

from fleet.stream.augment import AugmentedEpochs, NodeEpochs
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.sample import ImageSpec
from preprocess.transforms import parse_transforms
from tests.preprocess.samples import Memory, pattern


@pytest.fixture
def name(request):
    return f"fleet-test-finished-{os.getpid()}"


def mapped(name, epochs, image=ImageSpec((2, 2, 1), "uint8"), samples=4, trainers=2):
    """The same memory as each trainer maps it."""
    maps = [
        NodeEpochs(image, np.dtype(np.int64), samples, epochs, trainers, name, create)
        for create in (True, False)
    ]
    maps[0].segment.unlink()
    return [partial(entry.take, trainer) for trainer, entry in enumerate(maps)]


def test_trainers_of_one_epoch_have_the_same_memory(name):
    first, second = mapped(name, epochs=2)
    images, targets, are_there = first(5)
    images[3], targets[3], are_there[3] = 7, 1, True
    results = second(5)
    assert (results[0][3] == 7).all()
    assert results[1][3] == 1
    assert results[2].tolist() == [False, False, False, True]


def test_the_latest_epoch_that_nobody_is_at_makes_room(name):
    first, second = mapped(name, epochs=3)
    for epoch in (0, 1, 2):
        first(epoch)[2][:] = True
    second(1)
    assert not first(3)[2].any()  # in the place of 2
    assert first(0)[2].all()
    assert first(1)[2].all()
    assert not first(2)[2].any()  # 3 had to go


def test_an_epoch_without_room_is_not_shared(name):
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
    counted = []
    plain = pipeline.augment_stored
    monkeypatch.setattr(
        pipeline,
        "augment_stored",
        lambda *arguments: counted.extend(arguments[2].tolist()) or plain(*arguments),
    )
    takes = mapped(name, 2, pipeline.sample.image, samples=12)
    for epoch in (0, 1, 2):
        matches = []
        for take in takes:
            images, targets = pipeline.empty(8)
            AugmentedEpochs(pipeline, shared=take).finish(
                lambda which: (stored[0][which], stored[1][which]),
                np.arange(8),
                epoch,
                images,
                targets,
            )
            matches.append((images.tobytes(), targets.tolist()))
        alone = pipeline.empty(8)
        plain(stored[0][:8], stored[1][:8], np.arange(8), epoch, *alone)
        assert matches == [(alone[0].tobytes(), alone[1].tolist())] * 2
    assert counted == [*range(8)] * 3
