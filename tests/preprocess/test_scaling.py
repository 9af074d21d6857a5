"""Bytes to numbers: the same bits, whichever way they are computed."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import scaling
from preprocess.scaling import scale_into
from tests.preprocess.samples import pattern

MULTIPLIER, OFFSET = np.array([0.017, 0.018, 0.019], np.float32), np.array([-2.1, -2.0, -1.8], np.float32)


def plain(images, multiplier, offset):
    return np.add(np.multiply(images, multiplier, dtype=np.float32), offset)


@given(shape=st.tuples(*(st.integers(1, 5),) * 3), few=st.sampled_from(["none", "multiplier", "offset", "both"]))
def test_small_images_scale_as_the_formula_says(shape, few):
    images = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    multiplier = MULTIPLIER if few in ("multiplier", "both") else np.float32(0.25) * np.ones((), np.float32)
    offset = OFFSET if few in ("offset", "both") else np.array(-1.5, np.float32)
    out = np.empty(images.shape, np.float32)
    scale_into(out, images, multiplier, offset)
    assert np.array_equal(out, plain(images, multiplier, offset))


@pytest.mark.parametrize("numbers", [(MULTIPLIER, OFFSET), (MULTIPLIER[0].reshape(()), OFFSET[0].reshape(()))])
@pytest.mark.parametrize("has_numba", [True, False])
def test_the_compiled_loop_gives_the_same_bits(numbers, has_numba, monkeypatch):
    if has_numba:
        pytest.importorskip("numba")
    else:
        monkeypatch.setitem(sys.modules, "numba", None)
    scaling._loop.cache_clear()
    images = np.stack([pattern(256, 256, seed=seed) for seed in range(2)])
    out = np.empty(images.shape, np.float32)
    scale_into(out, images, *numbers)
    scaling._loop.cache_clear()
    assert np.array_equal(out, plain(images, *numbers))


def test_images_and_results_may_be_cut_out_of_larger_arrays():
    images, out = pattern(300, 300)[7:207, 3:203], np.zeros((200, 300, 3), np.float32)
    scale_into(out[:, 50:250], images, MULTIPLIER, OFFSET)
    assert np.array_equal(out[:, 50:250], plain(images, MULTIPLIER, OFFSET))
    assert not out[:, :50].any()
    whole = np.empty(images.shape, np.float32)
    scale_into(whole, images, MULTIPLIER, OFFSET)
    assert np.array_equal(whole, out[:, 50:250])


@pytest.mark.parametrize("numbers", [(MULTIPLIER, OFFSET), (MULTIPLIER[0].reshape(()), OFFSET[0].reshape(()))])
@pytest.mark.parametrize(("count", "width", "shift"), [
    (8, 256, 0), (8, 252, 0), (8, 251, 0), (8, 256, 1)], ids=["whole", "with a rest", "unaligned rows", "unaligned"])
def test_a_batch_that_is_written_past_the_caches_has_the_same_bits(numbers, count, width, shift):
    images = np.random.default_rng(0).integers(0, 256, (count, 256, width, 3), np.uint8)
    out = np.empty(images.size + shift, np.float32)[shift:].reshape(images.shape)
    scale_into(out, images, *numbers)
    assert np.array_equal(out, plain(images, *numbers))
