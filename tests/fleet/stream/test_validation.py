"""Validation samples."""

import zlib

import pytest

from fleet.stream.stall import Waiting
from fleet.stream.validation import NodeValidation, Validation
from preprocess.pipeline import Pipeline
from tests.fleet.one_process import Launch
from tests.fleet.stream.streams import SEED, set_of
from tests.sources import Numbered


@pytest.mark.parametrize("size", [1, 2, 3])
def test_validation_is_divided_among_ranks(size):
    complete = Pipeline.from_source(Numbered(20, seed=2), [], SEED)
    shared = set_of(20, 6)
    samples = {"shared": [], "local": []}

    def rank_main(world):
        if world.rank == 0:
            for chunk in range(shared.chunks):
                world.pause(worked=True)
                rows = shared.rows(chunk)
                complete.load(
                    range(rows.start, rows.stop),
                    0,
                    shared.inputs[rows],
                    shared.targets[rows],
                    training=False,
                )
                assert not shared.is_complete()
                shared.publish(chunk)
        for kind, stored in (("shared", NodeValidation(shared, Waiting(world))), ("local", None)):
            validation = Validation(complete, pytest.fail, shared=stored)
            for images, labels in validation.batches(4, world.rank, size):
                assert len(labels) <= 4
                samples[kind] += [
                    (Numbered.number(image), label, zlib.crc32(image.tobytes()))
                    for image, label in zip(images, labels, strict=True)
                ]

    assert Launch(size, seed=1).run(rank_main)
    assert sorted(samples["shared"]) == sorted(samples["local"])
    assert [number for number, *_ in sorted(samples["shared"])] == list(range(20))
