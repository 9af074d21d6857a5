"""Specs of samples."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import class_target


def test_sample_image_takes_its_numbers_times_their_bytes():
    image = ArraySpec((4, 5, 3), "float32")
    array = np.zeros(image.shape, image.dtype)
    assert (image.size, image.nbytes, str(image)) == (array.size, array.nbytes, "4 x 5 x 3 float32")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_with_a_fraction_travel_in_single_precision(dtype):
    assert ArraySpec.of(np.zeros((2, 2, 1), dtype)) == ArraySpec((2, 2, 1), "float32")
    assert ArraySpec.of(np.zeros((2, 2, 1), np.uint8)).dtype == "uint8"


def test_sample_affine_fits_its_number_of_channels():
    Affine(0.5, 0.5).check(4)
    Affine((0.5, 0.4, 0.3), 0.5).check(3)
    with pytest.raises(InputError, match="3 numbers"):
        Affine(0.5, (0.5, 0.4, 0.3)).check(1)


@pytest.mark.parametrize(
    ("image", "maximum"),
    [
        (ArraySpec((8, 8, 3), "uint8"), 255),
        (ArraySpec((40,), "int64"), 1),
        (ArraySpec((40,), "float32"), 1.0),
    ],
)
def test_random_inputs_have_the_dtype_and_small_tokens(image, maximum):
    inputs = image.random_inputs(np.random.default_rng(0), 5)
    assert (inputs.shape, str(inputs.dtype)) == ((5, *image.shape), image.dtype)
    assert 0 <= inputs.min() < inputs.max() <= maximum


PARTS = {
    "image": SampleSpec(ArraySpec((2, 2, 1), "uint8"), 2, Affine(0.0, 1.0)),
    "facts": SampleSpec(ArraySpec((3,), "float32"), 2, folds=(Affine(1.0, 2.0, 1.0),)),
}
RECORD = SampleSpec.of_parts(PARTS, class_target(2))


def test_record_dtype_is_aligned():
    assert RECORD.input.dtype.fields["facts"][1] % 4 == 0
    assert RECORD.input.nbytes == 16
    assert RECORD.input_shape == {"image": (2, 2, 1), "facts": (3,)}


def test_record_identity_lists_its_inputs():
    identity = RECORD.identity()
    assert list(identity["inputs"]) == ["image", "facts"]
    assert identity["inputs"]["image"]["affine"] == {"mean": 0.0, "std": 1.0}


def test_record_scales_each_input():
    rows = RECORD.input.random_inputs(np.random.default_rng(0), 2)
    scaled = RECORD.for_pipeline("", fold=0).scale(rows)
    np.testing.assert_allclose(scaled["image"], rows["image"] / np.float32(255), rtol=1e-6)
    np.testing.assert_allclose(scaled["facts"], (rows["facts"] - 1) / 2, rtol=1e-6)
    assert RECORD.scale(rows)["facts"] is not None


def test_record_as_float64_leaves_whole_numbers():
    inputs = RECORD.as_float64().input.arrays
    assert [array.dtype for array in inputs.values()] == ["uint8", "float64"]
