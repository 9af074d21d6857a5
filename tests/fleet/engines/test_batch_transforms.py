"""Batch transforms: what functions see and draw, what they may return, Mixup and CutMix."""

import numpy as np
import pytest

from fleet.engines.batch_transforms import BatchTransforms, transformed_sample
from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from fleet.vocabulary.batch_transforms import cutmix, mixup
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.refusals import refused

IMAGES = SampleSpec(ArraySpec((4, 6, 1), "uint8"), 3, Affine(0.5, 0.5))
TOKENS = SampleSpec(ArraySpec((5,), "int64"), 2)
MASKS = SampleSpec(ArraySpec((4, 6, 1), "uint8"), 3, target=TargetSpec("mask", 3, size=(4, 6)))
PATH = f"{__name__}:"


def rows_of(sample, rows=6):
    random = np.random.default_rng(0)
    return sample.input.random_inputs(random, rows), sample.target.random_targets(random, rows)


def transformed(transform, sample=IMAGES, epoch=0, step=0, rows=None, seed=7):
    transforms = BatchTransforms.of([transform], sample, seed)
    return transforms(*(rows or rows_of(sample)), epoch, step)


SEEN = []


def remember(batch, rng):
    SEEN.append({name: values.copy() for name, values in batch.items()} | {"draw": rng.random()})


def seen(**arguments):
    SEEN.clear()
    transformed(PATH + "remember", **arguments)
    [batch] = SEEN
    return batch


# ---- what a function sees ------------------------------------------------------------------------


def test_function_gets_scaled_inputs_and_shares_of_classes():
    inputs, targets = rows_of(IMAGES)
    batch = seen()
    assert np.array_equal(batch["input"], IMAGES.affine.apply(inputs))
    assert np.array_equal(batch["target"], np.eye(3)[targets])
    assert batch["weight"].tolist() == [1.0] * 6


def test_function_gets_whole_numbers_of_tokens():
    assert seen(sample=TOKENS)["input"].dtype == np.int64


def test_function_gets_images_without_scale_as_floats():
    assert seen(sample=MASKS)["input"].dtype == np.float32
    assert seen(sample=MASKS)["target"].dtype == np.uint8


def test_function_gets_weights_of_samples():
    sample = SampleSpec(ArraySpec((5,), "float32"), 2, target=TargetSpec("value", 2, weighted=True))
    inputs, targets = rows_of(sample)
    targets["weight"] = np.arange(6)
    assert seen(sample=sample, rows=(inputs, targets))["weight"].tolist() == [0, 1, 2, 3, 4, 5]


def test_function_does_not_see_unreadable_rows():
    inputs, targets = rows_of(IMAGES)
    targets[2] = -1
    assert len(seen(rows=(inputs, targets))["input"]) == 5
    _, after = transformed("mixup", rows=(inputs, targets))
    assert (after["weight"] < 0).tolist() == [False, False, True, False, False, False]


def test_batch_without_readable_rows_calls_no_function():
    inputs, targets = rows_of(IMAGES)
    targets[:] = -1
    SEEN.clear()
    transformed(PATH + "remember", rows=(inputs, targets))
    assert not SEEN


def test_function_draws_by_seed_epoch_and_step():
    draw = np.random.default_rng([7, 6, 2, 5]).random()  # as docs/targets.md says
    assert seen(epoch=2, step=5)["draw"] == draw
    changed = [seen(epoch=5, step=2), seen(epoch=2, step=6), seen(epoch=2, step=5, seed=8)]
    assert draw not in [batch["draw"] for batch in changed]


def draw_globally(batch, rng):
    batch["weight"] += np.random.random()


def test_global_generator_follows_from_the_step_too():
    first, again = (transformed(PATH + "draw_globally", step=3)[1] for _ in range(2))
    later = transformed(PATH + "draw_globally", step=4)[1]
    assert first["weight"].tolist() == again["weight"].tolist() != later["weight"].tolist()


# ---- what a function returns ---------------------------------------------------------------------


def fail(batch, rng):
    raise KeyError("nope")


def cut(batch, rng):
    return {name: values[:1] for name, values in batch.items()}


def drop(batch, rng):
    return {"input": batch["input"], "target": batch["target"]}


def add(batch, rng):
    return {**batch, "extra": batch["weight"]}


def forget(batch, rng):
    return batch["input"]


def round_up(batch, rng):
    return {**batch, "input": batch["input"] * 0.5}


def invert_weights(batch, rng):
    return {**batch, "weight": -batch["weight"]}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fail", "failed: KeyError: 'nope'"),
        ("cut", r"returned input of shape \(1, 5\) .* it should have the shape \(6, 5\)"),
        ("drop", "returned a batch that lacks 'weight'; it should have input, target, weight"),
        ("add", "returned a batch that has 'extra'"),
        ("forget", "returned a ndarray; it should return the batch, a mapping"),
        ("round_up", "type float64; it should have .* the type int64"),
        ("invert_weights", "returned a weight that is negative"),
        ("missing", "has no 'missing'"),
        ("TOKENS", "is a SampleSpec; it should be a function"),
    ],
)
def test_wrong_batch_transforms_name_their_problem(function, message):
    with pytest.raises(SettingError, match=message) as refusal:
        transformed(PATH + function, TOKENS)
    assert refusal.value.setting == ("train", "batch_transforms")


def test_batch_transform_gets_its_arguments():
    with pytest.raises(SettingError, match=r"does not take \(batch, rng, amount\)"):
        transformed({PATH + "cut": {"amount": 1}})


def test_samples_augmented_on_the_device_are_refused():
    sample = SampleSpec(IMAGES.input, 3, deferred_input=ArraySpec((8, 8, 1), "uint8"))
    with pytest.raises(SettingError, match="use data.augment_on: host"):
        BatchTransforms.of(["mixup"], sample, 0)


def test_transformed_sample_has_weights_and_floats():
    sample = transformed_sample(IMAGES)
    assert (sample.input.dtype, sample.affine) == ("float32", None)
    assert (sample.target.shape, sample.target.dtype) == ((3,), np.float32)
    assert transformed_sample(MASKS).target == MASKS.target


# ---- mixup and cutmix ----------------------------------------------------------------------------


def batch_of(*shapes, rows=5):
    random = np.random.default_rng(1)
    names = ("input", "target", "mask")
    return {
        name: random.random((rows, *shape), np.float32)
        for name, shape in zip(names, shapes, strict=False)
    } | {"weight": np.arange(rows, dtype=np.float32)}


def test_mixup_is_one_mean_of_inputs_and_targets():
    batch = batch_of((4, 4, 1), (3,))
    rng = np.random.default_rng(3)
    share, partners = np.float32(rng.beta(0.2, 0.2)), rng.permutation(5)
    after = mixup(dict(batch), np.random.default_rng(3))
    for name in ("input", "target"):
        mean = share * batch[name] + (1 - share) * batch[name][partners]
        assert np.allclose(after[name], mean, atol=1e-6)
    assert np.array_equal(after["weight"], batch["weight"])


def test_cutmix_pastes_a_box_and_mixes_targets_by_its_area():
    batch = batch_of((8, 10, 1), (3,))
    before = {name: values.copy() for name, values in batch.items()}
    after = cutmix(batch, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    rng.beta(1, 1)
    partners = rng.permutation(5)
    is_pasted = (after["input"] != before["input"]).any(axis=(0, 3))
    assert 0 < is_pasted.sum() < 80
    expected = np.where(is_pasted[:, :, None], before["input"][partners], before["input"])
    assert np.array_equal(after["input"], expected)
    share = 1 - is_pasted.mean()
    mean = share * before["target"] + (1 - share) * before["target"][partners]
    assert np.allclose(after["target"], mean, atol=1e-6)


def test_cutmix_pastes_masks_like_images():
    batch = batch_of((8, 10, 1))
    batch["target"] = (batch["input"][..., 0] * 10).astype(np.uint8)
    after = cutmix(batch, np.random.default_rng(3))
    assert np.array_equal(after["target"], (after["input"][..., 0] * 10).astype(np.uint8))


@pytest.mark.parametrize("transform", ["mixup", "cutmix"])
def test_probability_leaves_batches_unchanged(transform):
    inputs, _ = rows_of(IMAGES)
    changed = [
        not np.array_equal(
            transformed({transform: {"probability": 0.5}}, step=step)[0],
            IMAGES.affine.apply(inputs),
        )
        for step in range(20)
    ]
    assert 3 < sum(changed) < 17


@pytest.mark.parametrize(
    ("transform", "sample", "message"),
    [
        ({"mixup": {"alpha": 0}}, IMAGES, "alpha is 0; it should be a number above 0"),
        ({"cutmix": {"probability": 2}}, IMAGES, "probability is 2"),
        ("mixup", TOKENS, "input holds whole numbers"),
        ("mixup", MASKS, "use cutmix for masks"),
        ("cutmix", TOKENS, "the batch has no images"),
    ],
)
def test_mixing_what_cannot_be_mixed_is_refused(transform, sample, message):
    with pytest.raises(SettingError, match=message):
        transformed(transform, sample)


# ---- specs ---------------------------------------------------------------------------------------


def spec_of(transforms, engine="keras", **data):
    return {
        "data": {"source": "builtin:digits", "transforms": ["decode"], **data},
        "models": [{"family": "softmax"}],
        "resources": {"engine": engine},
        "train": {"batch_transforms": transforms},
    }


@pytest.mark.parametrize("engine", ["keras", "torch"])
def test_spec_takes_batch_transforms_of_both_engines(engine):
    transforms = ("mixup", {"cutmix": {"alpha": 2}}, "my:noise")
    train = parse(spec_of(list(transforms), engine)).networks[0].train
    assert train.batch_transforms == transforms


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (spec_of(["mixp"]), "no batch transform is named 'mixp' (did you mean mixup"),
        (spec_of([{"mixup": {"alhpa": 1}}]), "mixup has no parameter alhpa (did you mean alpha?)"),
        (spec_of([{"mixup": {}, "cutmix": {}}]), "should be one name with its parameters"),
        (spec_of(["mixup"], "numpy"), "the numpy engine does not transform batches"),
        (
            spec_of(["mixup"], augment_on="device"),
            "train.batch_transforms take batches that are augmented",
        ),
    ],
)
def test_wrong_batch_transforms_of_a_spec_are_refused(content, message):
    with refused(SpecError, message):
        parse(content)
