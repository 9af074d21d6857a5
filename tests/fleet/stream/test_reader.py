"""Errors while reading the window."""

import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.errors import InfrastructureError
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.reader import Reader
from fleet.stream.stall import Waiting
from tests.fleet.stream.streams import LAYOUT, alone_in_the_world, pipeline, window_of


def stall_message(layout, prepare, chunk=0):
    """Return the error of a reader that waits for a chunk in vain."""
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


def test_reader_reports_a_stopped_writer():
    assert stall_message(LAYOUT, lambda window: window.publish(0)) == (
        "chunk 1 of the stream has not arrived for 0 s (data.data_timeout): the preprocessor that "
        "should write it does not; the newest chunk is 0"
    )


def test_reader_reports_another_stopped_reader():
    def prepare(window):
        for chunk in range(1, 4):  # the window is full, and reader 1 still needs all of it
            window.publish(chunk)
        window.need(1, 1)

    message = stall_message(LAYOUT, prepare, 4)
    assert "the window is full, and reader 1 of this node has stopped at chunk 1" in message
