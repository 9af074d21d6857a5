"""Batched transforms give the same bits as one sample at a time."""

import sys

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess.base import UnreadableImage
from preprocess.lazy_numba import NUMBA, LazyNumba
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.target import TargetSpec
from preprocess.transforms import parse_transforms
from tests.examples import examples
from tests.preprocess.samples import Memory, Samples, pattern


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("numba")
    assert NUMBA.load()
    yield NUMBA.kernels
    NUMBA.kernels = None


def brighter(image, rng, training):
    """A custom transform that draws any number of times."""
    if image[0, 0, 0] == 255:
        raise UnreadableImage("is too bright")
    return np.clip(image + rng.integers(0, 9, rng.integers(1, 4)).sum(), 0, 255).astype(image.dtype)


def images_of(source, transforms, seed):
    """Make a pipeline that stores samples."""
    parsed = parse_transforms(transforms)
    return Pipeline(source, parsed, seed, infer_sample_spec(source, parsed, seed, keep=True))


def made_or_not(source, transforms, seed):
    """Make the pipeline, or skip the example if it cannot transform such samples."""
    try:
        return images_of(source, transforms, seed)
    except InputError:
        return reject()


def both(pipeline, kernels, indices, epoch, training=True):
    """Load all samples, stored and directly, one by one and batched."""
    stored = pipeline.empty_stored(len(indices))
    pipeline.load_stored(indices, *stored)
    results = []
    for NUMBA.kernels in (None, kernels):
        for way in (
            lambda *into: pipeline.augment_stored(
                *stored, np.array(indices), epoch, *into, training
            ),
            lambda *into: pipeline.load(indices, epoch, *into, training),
        ):
            images, targets = pipeline.empty(len(indices))
            images.view(np.uint8)[:] = 77
            bad = way(images, targets)
            results.append(
                (
                    images.tobytes(),
                    targets.tolist(),
                    [(str(result), result.position) for result in bad],
                )
            )
    return results


# Each turns an image of at least 6 x 5 pixels into one that the next can use.
sizes = st.tuples(st.integers(5, 12), st.integers(5, 12))
MOVES = st.one_of(
    st.builds(
        lambda size, padding: {"random_crop": {"size": size, "padding": padding}},
        st.tuples(st.integers(1, 5), st.integers(1, 5)),
        st.integers(0, 9),
    ),
    st.builds(
        lambda size: {"center_crop": {"size": size}},
        st.tuples(st.integers(1, 5), st.integers(1, 5)),
    ),
    st.sampled_from(
        [
            {"flip": {"horizontal": True}},
            {"flip": {"vertical": True}},
            {"flip": {"horizontal": True, "vertical": True}},
        ]
    ),
    st.builds(
        lambda size, how: {"resize": {"size": size, "filter": how}},
        st.one_of(sizes, st.integers(3, 9)),
        st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
    ),
    st.builds(
        lambda size, how, scale, ratio: {
            "random_resized_crop": {"size": size, "filter": how, "scale": scale, "ratio": ratio}
        },
        sizes,
        st.sampled_from(["bilinear", "bicubic", "lanczos"]),
        st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.3, 0.3)]),
        st.sampled_from([(0.75, 1.33), (3.0, 3.0), (0.2, 5.0)]),
    ),
)
COLOURS = st.one_of(
    st.builds(
        lambda b, c, s, h: {
            "color_jitter": {"brightness": b, "contrast": c, "saturation": s, "hue": h}
        },
        st.sampled_from([0.4, (0.0, 3.0)]),
        *(st.sampled_from([0.0, 0.9, (1.0, 2.5)]),) * 2,
        st.sampled_from([0.0, 0.5, (-0.25, 0.1)]),
    ),
    st.sampled_from(
        [
            {"color_jitter": {"hue": 0.5}},
            {"random_erasing": {"p": 0.5}},
            {"tests.preprocess.test_batches:brighter": {}},
        ]
    ),
)
LISTS = st.tuples(
    st.lists(st.one_of(MOVES, COLOURS), min_size=1, max_size=4),
    st.sampled_from([[], ["scale"], ["scale", {"flip": {"horizontal": True}}]]),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    transforms=LISTS.map(lambda parts: parts[0] + parts[1]),
    height=st.integers(6, 30),
    width=st.integers(5, 30),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**40),
    training=st.booleans(),
)
def test_apply_batch_equals_one_sample_at_a_time(
    kernels, transforms, height, width, channels, seed, epoch, training
):
    images = [pattern(height, width, channels, number) for number in range(5)]
    source = Memory([*images[:3], None, images[3]])
    source.samples[1] = np.full_like(images[1], 255)
    pipeline = made_or_not(source, transforms, seed)
    first, *alone = both(pipeline, kernels, [4, 0, 3, 1, 2], epoch, training)
    assert first[:2] == alone[1][:2] == alone[0][:2] == alone[2][:2]
    assert first[2] == alone[1][2]  # only load reports unreadable samples
    assert alone[0][2] == alone[2][2]


@settings(max_examples=examples(100), deadline=None)
@given(
    transforms=st.lists(MOVES, min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    outputs=st.sampled_from([3, 300]),
    weighted=st.booleans(),
    training=st.booleans(),
)
def test_masks_stay_with_their_images(kernels, transforms, seed, outputs, weighted, training):
    rng = np.random.default_rng(seed)
    target = {"weights": np.ones(3, np.float32)} if weighted else {}
    source = Samples(
        [pattern(20, 16, seed=number) for number in range(3)],
        target=TargetSpec("mask", outputs),
        masks=rng.integers(0, outputs, (3, 20, 16)),
        **target,
    )
    pipeline = made_or_not(source, transforms, seed)
    first, *alone = both(pipeline, kernels, [2, 0, 1], 7, training)
    assert all(str(first) == str(expected) for expected in alone)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8])
@pytest.mark.parametrize("shape", [(8, 6, 2), (8, 6, 3), (7, 5, 4)])
def test_arrays_of_other_types_are_cropped_and_mirrored_at_once(kernels, dtype, shape):
    source = Memory(list(np.random.default_rng(0).integers(0, 200, (4, *shape)).astype(dtype)))
    transforms = [
        {"random_crop": {"size": [5, 4], "padding": 2}},
        {"flip": {"horizontal": True, "vertical": True}},
    ]
    pipeline = images_of(source, transforms, 3)
    first, *alone = both(pipeline, kernels, [3, 1, 2, 0], 9)
    assert all(first == expected for expected in alone)


def test_batches_rotate_hues_like_pillow(kernels):
    colours = np.random.default_rng(0).integers(0, 256, (4, 500, 500, 3), np.uint8)
    source = Memory(list(colours))
    pipeline = images_of(source, [{"color_jitter": {"hue": 0.5, "saturation": (0.0, 4.0)}}], 0)
    first, *alone = both(pipeline, kernels, range(4), 1)
    assert all(first == expected for expected in alone)


@pytest.mark.parametrize("has_numba", [True, False])
def test_batches_load_compiled_loops_when_worthwhile(has_numba, monkeypatch):
    if has_numba:
        pytest.importorskip("numba")
    else:
        monkeypatch.setitem(sys.modules, "preprocess.kernels", None)
    loading, loaded = LazyNumba(), []
    monkeypatch.setattr(loading, "load", lambda: loaded.append(LazyNumba.load(loading)))
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread.run())
    loading.add_slow_time(0.9)
    assert loaded == []
    for _ in range(3):
        loading.add_slow_time(0.2)
    assert loaded == [has_numba]
    assert (loading.kernels is not None) == has_numba
