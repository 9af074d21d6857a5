"""The rows in the data set of the samples of a stream's batches."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.stream.compose import NodeMemory, compose
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from fleet.stream.stall import Waiting
from fleet.stream.validation import Validation
from preprocess.pipeline import Pipeline
from preprocess.transforms import parse_transforms
from preprocess.views import View
from tests.fleet.stream.streams import alone_in_the_world
from tests.sources import Numbered

PART = np.array([1, 4, 5, 9, 11, 12, 17])  # rows of the training samples


def part_of_source():
    """Return a pipeline of a part of a data set, and the labels of the whole."""
    source = Numbered(20, seed=1)
    return Pipeline.from_source(View(source, PART), parse_transforms(["decode"]), 3), source.labels


@pytest.mark.parametrize("kind", ["strict", "ring"])
@pytest.mark.parametrize("keeps", [None, np.arange(7) % 3 != 1])
def test_number_gives_rows_in_the_data_set(kind, keeps):
    alone, labels = part_of_source()
    order = StrictOrder(alone, 3) if kind == "strict" else RingOrder(alone, 3, seed=3)

    def use(world):
        stream = compose(order, alone, NodeMemory(), 0, Waiting(world), pytest.fail)(keeps)
        group = SingleRankGroup()
        batches = stream.local.batches(Epoch(1), 0, 2, group)
        return [(batch.indices, batch.targets) for batch in stream.number(batches, group)]

    batches = alone_in_the_world(use)
    for indices, targets in batches:
        assert np.array_equal(labels[indices], targets)
    seen = sorted(np.concatenate([indices for indices, _ in batches]).tolist())
    assert seen == (PART if keeps is None else PART[keeps]).tolist()


def test_validation_numbers_are_rows_in_the_data_set():
    alone, _ = part_of_source()
    assert Validation(alone, pytest.fail).numbers.tolist() == PART.tolist()
    assert Validation(alone, pytest.fail, np.array([1, 2])).numbers.tolist() == [4, 5]
