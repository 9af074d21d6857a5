"""Deferred augmentation gives the same bits on the device as on the host."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess.deferred_augmentation import finished, pack_rows
from preprocess.lazy_numba import NUMBA
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec, probe_samples
from preprocess.sample import CROP_BYTES, ArraySpec
from preprocess.target import TargetSpec
from preprocess.transforms import parse_transforms
from preprocess.transforms.on_device import (
    OnDevice,
    defer_to_device,
    inline_device_transforms,
    split_device,
)
from tests.examples import examples
from tests.preprocess.samples import Memory, Samples, pattern
from tests.preprocess.test_batches import COLOURS, MOVES

CROP, FLIP, JITTER = (
    {"random_crop": {"size": [4, 4]}},
    {"flip": {"horizontal": True}},
    {"color_jitter": {"hue": 0.5}},
)
CENTER = {"center_crop": {"size": [3, 3]}}


@pytest.fixture(scope="module", params=[True, False], ids=["at once", "one by one"])
def kernels(request):
    """Run with and without the compiled loops."""
    if request.param:
        pytest.importorskip("numba")
        assert NUMBA.load()
    yield
    NUMBA.kernels = None


def images_of(source, transforms, seed):
    """Make the pipelines of a host that does everything, and of one that defers to the device."""
    parsed = parse_transforms(transforms)
    try:
        return [
            Pipeline(source, count, seed, infer_sample_spec(source, count, seed, keep=True))
            for count in (parsed, defer_to_device(parsed))
        ]
    except InputError:
        return reject()


def all_of(pipeline, epoch, training):
    """Load all samples, stored and directly; return inputs, targets and unreadable samples."""
    rows = np.arange(pipeline.samples)[::-1]
    stored = pipeline.empty_stored(len(rows))
    pipeline.load_stored(rows, *stored)
    for way in (
        lambda *into: pipeline.augment_stored(*stored, rows, epoch, *into, training),
        lambda *into: pipeline.load(rows, epoch, *into, training),
    ):
        images, targets = pipeline.empty(len(rows))
        images.view(np.uint8)[:] = 77
        bad = way(images, targets)
        images = finished(images, pipeline.sample)
        yield (
            images.shape,
            images.dtype,
            images.tobytes(),
            str(targets.tolist()),
            [position.position for position in bad],
        )


TAILS = st.lists(
    st.one_of(
        st.builds(
            lambda size, padding: {"random_crop": {"size": size, "padding": padding}},
            st.tuples(st.integers(1, 5), st.integers(1, 5)),
            st.integers(0, 9),
        ),
        st.sampled_from(
            [
                FLIP,
                {"flip": {"vertical": True}},
                {"flip": {"horizontal": True, "vertical": True}},
                CENTER,
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    before=st.lists(st.one_of(MOVES, COLOURS), max_size=2),
    tail=TAILS,
    scales=st.booleans(),
    height=st.integers(6, 30),
    width=st.integers(5, 30),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**40),
    training=st.booleans(),
)
def test_images_have_the_bits_of_the_host(
    kernels, before, tail, scales, height, width, channels, seed, epoch, training
):
    source = Memory([pattern(height, width, channels, number) for number in range(3)] + [None])
    host, device = images_of(source, [*before, *tail, *(["scale"] if scales else [])], seed)
    assert list(all_of(host, epoch, training)) == list(all_of(device, epoch, training))
    assert device.sample.input == host.sample.input
    assert device.sample.identity() == host.sample.identity()


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "uint16", "int32", "int64", "float32", "float64", "bool"]
)
@pytest.mark.parametrize("shape", [(8, 6, 2), (7, 5, 4), (20, 9, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_arrays_of_all_types_have_the_bits_of_the_host(kernels, dtype, shape, training):
    source = Memory(list(np.random.default_rng(0).integers(0, 200, (4, *shape)).astype(dtype)))
    host, device = images_of(
        source,
        [
            FLIP,
            {"random_crop": {"size": [5, 4], "padding": 3}},
            {"flip": {"horizontal": True, "vertical": True}},
        ],
        3,
    )
    assert device.sample.wire == ArraySpec((device.sample.deferred_input.nbytes + 16,), "uint8")
    assert list(all_of(host, 9, training)) == list(all_of(device, 9, training))


@settings(max_examples=examples(100), deadline=None)
@given(
    before=st.lists(MOVES, max_size=1),
    tail=TAILS,
    seed=st.integers(0, 2**32),
    outputs=st.sampled_from([3, 300]),
    training=st.booleans(),
)
def test_masks_move_on_the_host_as_images_on_the_device(
    kernels, before, tail, seed, outputs, training
):
    rng = np.random.default_rng(seed)
    source = Samples(
        [pattern(20, 16, seed=number) for number in range(3)],
        target=TargetSpec("mask", outputs),
        masks=rng.integers(0, outputs, (3, 20, 16)),
    )
    host, device = images_of(source, [*before, *tail], seed)
    assert list(all_of(host, 7, training)) == list(all_of(device, 7, training))


@pytest.mark.parametrize(
    ("transforms", "deferred"),
    [
        (["decode", CROP, FLIP, "scale"], 2),
        (["decode", FLIP, CROP], 2),
        (["decode", JITTER, CENTER, FLIP], 2),
        (["decode", CROP, JITTER, FLIP], 1),
        (["decode", CROP, FLIP, CENTER, FLIP], 3),  # all after the first crop
        (["decode", CENTER], 0),
        (["decode", CENTER, FLIP, "scale"], 1),  # fixed transforms are stored
        (["decode", CROP, JITTER, "scale"], 0),
        (["decode", CROP, "scale", JITTER], 0),
        ([], 0),
        (["decode"], 0),
    ],
)
def test_on_device_defers_the_last_crop_and_flips(transforms, deferred):
    parsed = parse_transforms(transforms)
    with_device = defer_to_device(parsed)
    host, device = split_device(with_device)
    assert inline_device_transforms(with_device) == parsed
    assert (0 if device is None else len(device.transforms)) == deferred
    assert len(host) + deferred == len(parsed)


def test_on_device_reports_unsupported_transforms():
    images = [pattern(8, 8), pattern(8, 9), *[pattern(8, 8)] * 6]
    for source, words in (
        (
            Memory(images),
            "must end in one shape, but sample 0 is 8 x 8 x 3 uint8 and sample 1 is 8 x 9",
        ),
        (Memory([pattern(3, 3)]), "of 3 x 3 pixels is too small to crop 4 x 4"),
        (
            Memory([np.zeros(5, np.float32)]),
            "it crops and mirrors images, and sample 0 becomes 5 fl",
        ),
    ):
        with pytest.raises(InputError, match=words):
            probe_samples(source, defer_to_device(parse_transforms([CROP])), 0)


def test_on_device_sample_of_another_size_is_left_out_alone(kernels):
    source = Memory([pattern(8, 6, seed=number) for number in range(20)])
    _, device = images_of(source, [CROP], 0)
    source.samples[1] = pattern(6, 8)  # with as many bytes
    images, targets = device.empty(3)
    bad = device.load(range(3), 0, images, targets)
    assert [(error.position, error.reason) for error in bad] == [
        (1, "is 6 x 8 x 3 uint8; the others are 8 x 6 x 3 uint8")
    ]
    assert device.sample.target.is_usable(targets).tolist() == [True, False, True]


def test_rank_without_rows_packs_none():
    images = np.zeros((0, 4, 3, 1), np.uint8)
    assert pack_rows(images, np.zeros((0, 4))).shape == (0, 4 * 3 * 1 + CROP_BYTES)


def test_batches_are_drawn_and_written_at_once(monkeypatch):
    pytest.importorskip("numba")
    _, device = images_of(
        Memory([pattern(8, 6, seed=number) for number in range(9)]), [JITTER, FLIP, CROP], 0
    )
    expected = list(all_of(device, 3, True))
    assert NUMBA.load()
    monkeypatch.setattr(OnDevice, "apply", None)
    try:
        assert list(all_of(device, 3, True)) == expected
    finally:
        NUMBA.kernels = None
