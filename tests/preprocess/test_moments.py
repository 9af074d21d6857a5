"""Means and deviations of training samples."""

import numpy as np
import pytest

from launch.errors import InputError
from preprocess import moments
from preprocess.moments import Moments, compute_standardization
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.source import open_data
from preprocess.transforms import parse_transforms
from preprocess.transforms.color import Standardize
from tests.preprocess.samples import Memory, pattern


def standardize(samples, item="standardize", folds=None, before=()):
    transforms = parse_transforms([*before, item])
    return compute_standardization(
        "", Pipeline.from_source(Memory(samples), transforms, 7), transforms[-1], folds
    )


def table(rows=2500):
    random = np.random.default_rng(0)
    numbers = random.normal(size=(rows, 5)) * [1, 1e-3, 1e4, 0, 5] + [0, 3, -1e6, 0.1, 2000]
    return numbers.astype(np.float32)


def test_they_are_those_of_scikit_learn():
    scaler = (
        pytest.importorskip("sklearn.preprocessing")
        .StandardScaler()
        .fit(table().astype(np.float64))
    )
    affine = standardize(list(table())).affine
    np.testing.assert_allclose(affine.mean, scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(affine.std, scaler.scale_, rtol=1e-12)
    assert affine.std[3] == 1  # constant
    np.testing.assert_allclose(
        affine.apply(table())[:, :2], scaler.transform(table())[:, :2], atol=1e-3
    )
    assert not affine.apply(table())[:, 3].any()


def test_blocks_come_to_what_all_rows_come_to():
    rows = table(40)
    parts = Moments.of(rows[:1]) + Moments.of(rows[1:30]) + Moments.of(rows[30:])
    np.testing.assert_allclose(parts.affine().std, Moments.of(rows).affine().std, rtol=1e-12)


def test_moments_leave_out_unreadable_samples():
    samples = list(table(20))
    samples[3] = None
    samples[5] = np.full(5, np.nan, np.float32)
    assert standardize(samples) == standardize(
        [sample for index, sample in enumerate(samples) if index not in (3, 5)]
    )


def test_moments_of_a_fold_use_its_training_samples():
    samples, folds = table(30), np.arange(30) % 3
    for fold, affine in enumerate(standardize(list(samples), folds=folds).folds):
        rows = samples[folds != fold].astype(np.float64)
        np.testing.assert_allclose(affine.mean, rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(affine.std[:3], rows.std(axis=0)[:3], rtol=1e-9)


@pytest.mark.parametrize(
    ("item", "axes"), [("standardize", (0, 1)), ({"standardize": {"per": "array"}}, (0, 1, 2))]
)
def test_moments_are_per_channel_or_over_the_array(item, axes):
    signals = np.random.default_rng(0).normal(3, 2, (20, 50, 4)).astype(np.float32)
    affine = standardize(list(signals), item).affine
    np.testing.assert_allclose(
        affine.mean, np.atleast_1d(signals.mean(axes, np.float64)), rtol=1e-12
    )
    np.testing.assert_allclose(affine.std, np.atleast_1d(signals.std(axes, np.float64)), rtol=1e-12)


def test_random_transforms_do_not_count():
    volumes = list(np.random.default_rng(0).normal(size=(9, 6, 6, 2)).astype(np.float32))
    inside = [volume[1:5, 1:5] for volume in volumes]
    assert standardize(volumes, before=[{"random_crop": {"size": [4, 4]}}]) == standardize(inside)


def test_images_and_other_places_are_refused():
    with pytest.raises(
        InputError, match=r"standardize is for tables .* samples are 4 x 4 x 3 uint8, .* use scale"
    ):
        standardize([pattern(4, 4)] * 3)
    with pytest.raises(InputError, match=r"transforms\[0\]: standardize must come last"):
        parse_transforms(["standardize", {"flip": {"horizontal": True}}])


def test_scale_by_data_uses_the_channels_of_images():
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
    affine = standardize(list(images), {"scale": "data"}).affine
    np.testing.assert_allclose(affine.mean, images.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(affine.std, images.std(axis=(0, 1, 2)), rtol=1e-12)
    scaled = affine.apply(images)
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), 1, atol=1e-5)


def test_scale_by_data_reads_a_part_of_many_images(monkeypatch):
    monkeypatch.setattr(moments, "_IMAGES", 5)
    monkeypatch.setattr(moments, "_BLOCK_NUMBERS", 64)
    images = [np.full((4, 4, 3), index, np.uint8) for index in range(41)]
    affine = standardize(images, {"scale": "data"}).affine
    assert affine.mean == (20, 20, 20)  # of 0, 10, 20, 30, 40


@pytest.mark.parametrize("kind", ["csv", "npz", "int64"])
def test_large_numbers_are_standardized_in_float64(tmp_path, kind):
    seconds = 1_700_000_000 + np.arange(8) * 7
    if kind == "csv":
        rows = "\n".join(f"{second},{row % 2}" for row, second in enumerate(seconds))
        (tmp_path / "t.csv").write_text(f"seconds,target\n{rows}\n")
        source = open_data("table", str(tmp_path / "t.csv"), None, 0).train
    else:
        x = seconds[:, None].astype("f8" if kind == "npz" else "i8")
        np.savez(tmp_path / "a.npz", x=x, y=np.arange(8) % 2)
        source = open_data("npz", str(tmp_path / "a.npz"), None, 0).train
    transforms = parse_transforms(["standardize"])
    sample = infer_sample_spec(source, transforms, 0).as_float64()
    pipeline = Pipeline(source, transforms, 0, sample)
    affine = compute_standardization("", pipeline, Standardize()).affine
    inputs, targets = pipeline.empty(8)
    assert not pipeline.load(range(8), 0, inputs, targets)
    expected = (seconds - seconds.mean()) / seconds.std()
    assert affine.precise
    np.testing.assert_allclose(affine.apply(inputs)[:, 0], expected, atol=1e-6)


def test_numbers_that_float32_tells_apart_travel_as_float32():
    affine = Moments.of(np.array([[1.0], [2], [6]])).affine()
    assert not affine.precise
    assert affine.multiplier.dtype == np.float32
