"""Chunks of the stream and sizes of windows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import UserError
from fleet.stream.layout import Layout, plan_layout, plan_ring
from preprocess.sample import ArraySpec
from tests.examples import examples
from tests.fleet.stream.streams import COLOR, GREY
from tests.refusals import refused

layouts = st.builds(
    lambda samples, chunk, slots: Layout(
        ArraySpec((2, 2, 1), "uint8"), samples, min(chunk, samples), 2 + slots, 9, 1
    ),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 9),
)


@given(layouts, st.integers(0, 5))
def test_layout_chunks_hold_each_position_of_an_epoch_once(layout, epoch):
    numbers = range(epoch * layout.chunks, (epoch + 1) * layout.chunks)
    assert {layout.span(number)[0] for number in numbers} == {epoch}
    positions = [position for number in numbers for position in range(*layout.span(number)[1:])]
    assert positions == list(range(layout.samples))
    for position in positions:
        assert (
            layout.span(layout.sequence(epoch, position))[1]
            <= position
            < layout.span(layout.sequence(epoch, position))[2]
        )


@settings(max_examples=examples(300))
@given(
    st.integers(1, 3000),
    st.sampled_from([(2, 2, 1), (32, 32, 3), (224, 224, 3)]),
    st.integers(1, 400),
    st.integers(1, 10**9),
    st.integers(1, 8),
)
def test_plan_layout_fits_largest_batch_and_one_chunk(samples, shape, batch, window, readers):
    batch = min(batch, samples)
    try:
        layout = plan_layout(ArraySpec(shape, "uint8"), samples, window, batch, readers)
    except UserError as error:
        message = str(error)
    else:
        assert layout.window_bytes <= window
        batch_chunks = -(-(batch - 1) // layout.chunk) + 1  # of the worst position of a batch
        assert layout.slots >= batch_chunks + 1
        assert layout.lookahead >= batch_chunks
        assert 1 <= layout.chunk <= samples
        return
    assert "data.shared_memory" in message
    assert " need " in message


def test_plan_layout_error_names_needed_size():
    with refused(UserError, "data.shared_memory", "128 samples of 3.07 kB", "need 786 kB"):
        plan_layout(COLOR, 10_000, 500_000, 128, 4)
    assert plan_layout(COLOR, 10_000, 786_432, 128, 4).slots == 4


@pytest.mark.parametrize(("epochs", "window_epochs"), [(1, 2), (2, 2), (7, 7)])
def test_plan_layout_holds_needed_epochs_at_least_two(epochs, window_epochs):
    layout = plan_layout(GREY, 100, 10**12, 10, 1, epochs=epochs)
    assert layout.slots == window_epochs * layout.chunks
    assert plan_layout(GREY, 100, 4000, 10, 1, epochs=epochs).window_bytes <= 4000


def test_plan_ring_needs_three_shards():
    assert plan_ring(COLOR, 1000, 10**6, 50, readers=4).chunk == 20
    with refused(
        UserError, "data.shared_memory", "20 samples of 3.07 kB", "184 kB", "data.shards above 50"
    ):
        plan_ring(COLOR, 1000, 10**5, 50, readers=4)
