"""Scaling bytes: NumPy and the compiled loop give the same bits."""

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.lazy_numba import NUMBA
from preprocess.scaling import scale_into
from tests.preprocess.samples import pattern

MULTIPLIER, OFFSET = (
    np.array([0.017, 0.018, 0.019], np.float32),
    np.array([-2.1, -2.0, -1.8], np.float32),
)


def plain(images, multiplier, offset):
    return np.add(np.multiply(images, multiplier, dtype=np.float32), offset)


@given(
    shape=st.tuples(*(st.integers(1, 5),) * 3),
    few=st.sampled_from(["none", "multiplier", "offset", "both"]),
)
def test_small_images_scale_as_the_formula_says(shape, few):
    images = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    multiplier = (
        MULTIPLIER if few in ("multiplier", "both") else np.float32(0.25) * np.ones((), np.float32)
    )
    offset = OFFSET if few in ("offset", "both") else np.array(-1.5, np.float32)
    out = np.empty(images.shape, np.float32)
    scale_into(out, images, multiplier, offset)
    assert np.array_equal(out, plain(images, multiplier, offset))


@pytest.fixture(params=[True, False], ids=["compiled", "NumPy"])
def _loops(request, monkeypatch):
    if request.param:
        pytest.importorskip("numba")
        monkeypatch.setattr(NUMBA, "kernels", import_module("preprocess.kernels"))


@pytest.mark.parametrize(
    "numbers", [(MULTIPLIER, OFFSET), (MULTIPLIER[0].reshape(()), OFFSET[0].reshape(()))]
)
@pytest.mark.parametrize("width", [256, 251])
@pytest.mark.usefixtures("_loops")
def test_scaling_compiled_loop_gives_the_same_bits(numbers, width):
    images = np.stack([pattern(256, width, seed=seed) for seed in range(2)])
    out = np.empty(images.shape, np.float32)
    scale_into(out, images, *numbers)
    assert np.array_equal(out, plain(images, *numbers))


@pytest.mark.usefixtures("_loops")
def test_images_and_results_may_be_cut_out_of_larger_arrays():
    images, out = pattern(300, 300)[7:207, 3:203], np.zeros((200, 300, 3), np.float32)
    scale_into(out[:, 50:250], images, MULTIPLIER, OFFSET)
    assert np.array_equal(out[:, 50:250], plain(images, MULTIPLIER, OFFSET))
    assert not out[:, :50].any()
    larger = np.empty(images.shape, np.float32)
    scale_into(larger, images, MULTIPLIER, OFFSET)
    assert np.array_equal(larger, out[:, 50:250])
