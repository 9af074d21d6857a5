"""Reading the window: what goes wrong."""

import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.errors import InfrastructureError
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.reader import Reader
from fleet.stream.stall import Waiting
from tests.fleet.stream.streams import LAYOUT, alone_in_the_world, pipeline, window_of


def stalled(layout, prepare, chunk=0):
    """What a reader says of a chunk that does not come."""
    window = window_of(layout)
    prepare(window)

    def use(world):
        stream = Reader(
            window, 0, Waiting(world, 0.05), StrictOrder(pipeline(layout.samples), layout.chunk)
        )
        epoch, position, _ = layout.span(chunk)
        with pytest.raises(InfrastructureError) as caught:
            list(stream.batches(Epoch(epoch), position, 8, SingleRankGroup()))
        return str(caught.value)

    return alone_in_the_world(use)


def test_a_writer_that_does_not_write_is_named_in_an_error():
    assert stalled(LAYOUT, lambda window: window.publish(0)) == (
        "chunk 1 of the stream has not arrived for 0 s (data.data_timeout): the preprocessor that should write it does not; "
        "the newest chunk is 0"
    )


def test_a_reader_that_reads_no_further_is_named_in_an_error():
    def prepare(window):
        for chunk in range(1, 4):  # the window is full, and reader 1 wants all that is in it
            window.publish(chunk)
        window.need(1, 1)

    assert "reader 1 of this node, at chunk 1, reads no further and the window is full" in stalled(
        LAYOUT, prepare, 4
    )
