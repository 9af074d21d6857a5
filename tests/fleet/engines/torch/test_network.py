"""A PyTorch network on one rank: settings, states, unreadable samples, errors."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import collect_warnings
from fleet.engines.registry import count_parameters, load_ensemble, make_engine
from fleet.errors import CheckpointError, FleetError, SettingError
from fleet.spec import parse
from fleet.storage.checkpoint import merge_inherited
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.engines.async_steps import begin, take_step
from tests.fleet.one_process import Launch
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
CNN = {"family": "cnn", "args": {"filters": [4], "dense": [8]}}
MODULES = "tests.torch_modules"


def spec_of(model=CNN, **train):
    train = {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, **train}
    return parse({"models": [model], "resources": {"engine": "torch"}, "train": train})


def built(model=CNN, sample=SAMPLE, seed=0, **train):
    spec = spec_of(model, **train)
    return make_engine(spec, sample, None, 0, 1).build(
        replace(spec.networks[0], seed=seed), SingleRankGroup()
    )


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"batch": {"accumulate": 2}},
        {"precision": "mixed_bfloat16"},
        {
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.02,
                "weight_decay": 0.01,
                "amsgrad": True,
            }
        },
        {"optimizer": {"name": "nadam", "learning_rate": 0.02, "clipnorm": 1.0}},
        {
            "optimizer": {
                "name": "sgd",
                "learning_rate": 0.1,
                "nesterov": True,
                "momentum": 0.5,
                "use_ema": True,
                "ema_momentum": 0.5,
            }
        },
        {
            "optimizer": {
                "name": "rmsprop",
                "learning_rate": 0.01,
                "centered": True,
                "momentum": 0.5,
            }
        },
        {
            "optimizer": {
                "name": "adam",
                "learning_rate": {
                    "name": "CosineDecay",
                    "initial_learning_rate": 0.02,
                    "decay_steps": 100,
                },
            }
        },
        {"optimizer": {"name": "torch.optim:Adagrad", "learning_rate": 0.1}},
        {
            "optimizer": {
                "name": f"{MODULES}:momentum",
                "args": {"decay": 0.001},
                "learning_rate": {
                    "name": "CosineDecay",
                    "initial_learning_rate": 0.0,
                    "decay_steps": 100,
                    "warmup_target": 0.1,
                    "warmup_steps": 2,
                },
            }
        },
    ],
    ids=lambda train: " ".join([*train, str(train.get("optimizer", {}).get("name", ""))]),
)
def test_network_learns_and_resumes_bit_for_bit(batch, train):
    trainable, reference = built(**train), built(seed=1, **train)
    fresh = built(**train)
    fresh.load(reference.state())  # ranks of a group share a state even before the first step
    losses = [take_step(trainable, *batch, 12).loss / 12 for _ in range(24)]
    assert losses[-1] < 0.7 * losses[0]
    reference.load(trainable.state())
    assert [take_step(trainable, *batch, 12) for _ in range(3)] == [
        take_step(reference, *batch, 12) for _ in range(3)
    ]
    assert trainable.evaluate(*batch) == reference.evaluate(*batch)
    assert all(
        np.array_equal(array, reference.state()[name]) for name, array in trainable.state().items()
    )


def test_dropout_follows_from_seed_and_step(batch):
    model = {"build": f"{MODULES}:dense"}
    first, second, reference = built(model), built(model), built(model, seed=1)
    assert [take_step(first, *batch, 12) for _ in range(2)] == [
        take_step(second, *batch, 12) for _ in range(2)
    ]
    second.load({**second.state(), "optimizer/iterations": np.array(7)})
    reference.load(first.state())
    assert len({take_step(entry, *batch, 12).loss for entry in (first, second, reference)}) == 3


def test_load_refuses_state_of_another_network():
    trainable = built()
    state = trainable.state()
    state.pop("model/stage0_conv.weight")
    with refused(CheckpointError, "another network", "model/stage0_conv.weight"):
        trainable.load(state)


def test_unreadable_batch_changes_nothing(batch):
    trainable = built()
    before = trainable.state()
    assert take_step(trainable, batch[0], np.full(12, -1), 12).as_tuple == (0.0, 0.0, 0.0)
    assert all(np.array_equal(before[name], array) for name, array in trainable.state().items())


def test_unreadable_samples_are_excluded(batch):
    images, labels = batch
    reference, trainable = built(), built()
    expected = take_step(reference, images[:8], labels[:8], 8)
    assert take_step(trainable, images, np.where(np.arange(12) < 8, labels, -1), 12) == expected
    for name, array in reference.state().items():
        assert trainable.state()[name] == pytest.approx(array, abs=1e-6), name


def test_step_of_one_row_with_batch_normalization(batch):
    trainable = built({"build": f"{MODULES}:normalized"})
    before = trainable.state()
    assert take_step(trainable, batch[0][:1], batch[1][:1], 1).count == 1
    changed = {
        name for name, array in trainable.state().items() if not np.array_equal(array, before[name])
    }
    assert {"model/0.1.weight", "model/2.weight"} < changed
    assert "model/1.running_var" not in changed  # a single number has no variance
    take_step(trainable, *batch, 12)
    assert not np.array_equal(
        trainable.state()["model/1.running_var"], before["model/1.running_var"]
    )


def test_check_learns_accepts_a_head_of_zeros(batch):
    trainable = built({"build": f"{MODULES}:zero"})
    trainable.check_learns(*batch)


def test_child_inherits_state_but_not_settings(batch):
    parent = built(optimizer={"name": "adam", "learning_rate": 0.1, "use_ema": True})
    child = built(optimizer={"name": "adam", "learning_rate": 0.03, "use_ema": True}, seed=1)
    take_step(parent, *batch, 12)
    child.load(merge_inherited(child.state(), parent.state(), spec_of().engine.own_arrays))
    assert all(np.array_equal(array, child.state()[name]) for name, array in parent.state().items())
    assert child.evaluate(*batch) == parent.evaluate(*batch)
    assert child.learning_rate() == 0.03


def test_torch_takes_several_steps_per_call(batch):
    trainable, reference = built(), built()
    images, labels = batch
    halves = (slice(6), slice(6, 12))
    expected = [take_step(trainable, images[rows], labels[rows], 6) for rows in halves]
    assert reference.capabilities.max_steps_per_call > 1
    assert begin(reference, images, labels, [6, 6])().sums == expected


@pytest.mark.parametrize(
    "train", [{}, {"batch": {"accumulate": 2}, "optimizer": {"name": "adamw"}}], ids=str
)
def test_totals_read_late_match_bit_for_bit(batch, train):
    trainable, (images, labels) = built(**train), batch
    rows, none = np.where(np.arange(12) % 3 == 0, -1, labels), np.full(12, -1)
    waits = [
        begin(trainable, images, labels, [12]),
        begin(trainable, images, rows, [12]),
        begin(trainable, images, none, [12]),
        begin(trainable, images, rows, [4, 8]),
    ]
    sums = [output for wait in waits for output in wait().sums]
    assert [output.count for output in sums] == [12, 8, 0, 2, 6]
    reference = built(**train)
    assert sums == [
        take_step(reference, *batch, 12),
        take_step(reference, images, rows, 12),
        take_step(reference, images, none, 12),
        *begin(reference, images, rows, [4, 8])().sums,
    ]
    assert all(
        np.array_equal(array, reference.state()[name]) for name, array in trainable.state().items()
    )


def test_gathered_gradients_match_added_bit_for_bit():
    import torch

    from fleet.engines.torch.flat_parameters import FlatParameters

    torch.manual_seed(0)
    words, dense = torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 4)
    module = torch.nn.ModuleList([words, dense, torch.nn.Linear(3, 2)])  # the last is not used
    flat, result = FlatParameters(module, 0), []
    for prepare, end in (
        (flat.zero_gradients, list),
        (flat.detach_gradients, flat.gather_gradients),
        (flat.detach_gradients, flat.gather_gradients),
    ):
        prepare()
        dense(dense(words(torch.tensor([1, 5, 1])))).square().sum().backward()
        end()
        flat.check_gradients()
        result.append(flat.buffer.clone())
    assert result[0].any()
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[1], result[2])


def test_steps_of_a_call_support_sample_weights(batch):
    sample = replace(SAMPLE, target=TargetSpec("class", 3, weighted=True))
    (images, labels), weights = batch, np.linspace(-1, 2, 12, dtype="f")
    reference = built(sample=sample)
    assert begin(built(sample=sample), images, labels, [5, 7], weights)().sums == [
        take_step(reference, images[rows], labels[rows], size, weights=weights[rows])
        for rows, size in ((slice(5), 5), (slice(5, 12), 7))
    ]


@pytest.mark.parametrize("labels", [np.arange(12) % 3, np.full(12, -1)], ids=["", "unreadable"])
def test_step_of_a_single_rank_says_that_it_stops(batch, labels):
    stops = [take_step(built(), batch[0], labels, 12, stop).stop for stop in (False, True)]
    assert stops == [False, True]


@pytest.mark.parametrize(
    "model",
    [
        {"build": f"{MODULES}:viewing"},
        {"build": f"{MODULES}:convolutional", "args": {"filters": 6}},
        {"family": "softmax"},
        {"family": "mlp", "args": {"hidden": [8, 4], "norm": "batch", "dropout": 0.2}},
        {"family": "resnet", "args": {"blocks": [1, 1], "width": 4}},
        {
            "family": "resnet",
            "args": {"blocks": [1, 1], "width": 4, "stem": "imagenet", "norm": "none"},
        },
        {"family": "densenet", "args": {"blocks": [1, 2], "growth": 3}},
    ],
    ids=lambda model: next(iter(model.values())),
)
def test_count_parameters_matches_built_network(batch, model):
    trainable, spec = built(model), spec_of(model)
    assert trainable.count_parameters() == count_parameters(spec.networks[0], spec, SAMPLE)
    assert trainable.row_bytes() > 0
    trainable.check_learns(*batch)
    assert take_step(trainable, *batch, 12).count == 12


def test_integer_inputs_reach_embedding_unchanged():
    sample = SampleSpec(ArraySpec((5,), "int32"), 3)
    trainable = built({"build": f"{MODULES}:embedding"}, sample)
    numbers = np.random.default_rng(0).integers(0, 50, (6, 5)).astype(np.int32)
    assert take_step(trainable, numbers, np.arange(6) % 3, 6).count == 6
    plain = built({"build": f"{MODULES}:dense"}, sample)  # a dense layer takes floats
    assert take_step(plain, numbers, np.arange(6) % 3, 6).count == 6
    networks = [built({"build": f"{MODULES}:{name}"}, sample) for name in ("embedding", "sparse")]
    losses = [
        [take_step(network, numbers, np.arange(6) % 3, 6).loss for _ in range(3)]
        for network in networks
    ]
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("probable", "returns probabilities, from a softmax; remove it"),
        ("of_another_size", "outputs of shape (None, 4); they should have the shape (None, 3)"),
        ("no_module", "returned a int; it should return a torch.nn.Module"),
        ("raising", "raised ValueError: no luck"),
        ("frozen", "no trainable parameter"),
        ("embedding", "fails on images of"),
    ],
)
def test_build_refuses_unusable_modules(function, message):
    with refused(FleetError, message):
        built({"build": f"{MODULES}:{function}"})


TARGETS = {
    "class": (
        TargetSpec("class", 3, weighted=True),
        {"class_weights": {"0": 2.0}, "label_smoothing": 0.1},
        ["AUC", "F1Score", "top_k_categorical_accuracy"],
    ),
    "multilabel": (
        TargetSpec("multilabel", 3),
        {"label_smoothing": 0.1},
        ["Precision", "Recall", "binary_accuracy"],
    ),
    "value": (
        TargetSpec("value", 3),
        {"loss": "huber"},
        ["mae", "rmse", "R2Score", f"{MODULES}:absolute"],
    ),
    "custom loss": (TargetSpec("value", 3), {"loss": f"{MODULES}:absolute"}, ["mse"]),
    "torch loss": (
        TargetSpec("value", 3),
        {"loss": {"torch.nn:SmoothL1Loss": {"beta": 0.5}}},
        ["mse"],
    ),
    "mask": (
        TargetSpec("mask", 3, size=(8, 8), ignore=9),
        {"class_weights": {"1": 2.0}},
        ["MeanIoU", "mae"],
    ),
    "dice": (TargetSpec("mask", 3, size=(8, 8)), {"loss": "dice"}, ["F1Score"]),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("family", [True, False], ids=["softmax", "module"])
def test_network_learns_every_kind_of_target(case, family):
    target, train, metrics = TARGETS[case]
    if "class_weights" in train:  # for all classes, as a run completes them
        train = {
            **train,
            "class_weights": {
                str(entry): train["class_weights"].get(str(entry), 1.0) for entry in range(3)
            },
        }
    sample = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5), target=target)
    function = "segmenting" if target.kind == "mask" else "viewing"
    model = {"family": "softmax"} if family else {"build": f"{MODULES}:{function}"}
    trainable = built(
        model, sample, metrics=metrics, optimizer={"name": "adam", "learning_rate": 0.01}, **train
    )
    spec = spec_of(model)
    assert trainable.count_parameters() == count_parameters(spec.networks[0], spec, sample)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (10, 8, 8, 1)).astype(np.uint8)
    values, weights = target.split(target.random_targets(rng, 10))
    trainable.check_learns(images, values)
    losses = [take_step(trainable, images, values, 10, weights=weights).loss for _ in range(20)]
    assert losses[-1] < losses[0]
    sums, outputs = trainable.predict(images, values, weights)
    assert outputs.shape == (10, *((8, 8) if target.kind == "mask" else ()), 3)
    assert len(trainable.scores(sums.metric_totals)) == len(metrics)


@pytest.mark.parametrize(
    ("train", "setting"),
    [
        ({"loss": f"{MODULES}:one_number"}, "loss"),
        ({"metrics": [f"{MODULES}:one_number"]}, "metrics"),
        ({"loss": {"huber": {"beta": 1}}}, "loss"),
        ({"metrics": [{"AUC": {"curve": "XY"}}]}, "metrics"),
        ({"optimizer": {"name": f"{MODULES}:dense"}}, "optimizer"),
        ({"optimizer": {"name": f"{MODULES}:counting"}}, "optimizer"),  # loses its count
    ],
)
def test_unsupported_setting_is_named(train, setting):
    sample = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, target=TargetSpec("value", 3))
    with pytest.raises(SettingError) as caught:
        built({"family": "softmax"}, sample, **train).check_learns(
            np.zeros((2, 8, 8, 1), np.uint8), np.ones((2, 3), np.float32)
        )
    assert caught.value.setting[1] == setting


FLAT = SampleSpec(ArraySpec((6,), "float32"), 3)
VALUES = SampleSpec(ArraySpec((6,), "float32"), 3, target=TargetSpec("value", 3))
LABELS = SampleSpec(ArraySpec((6,), "float32"), 3, target=TargetSpec("multilabel", 3))


def flat_batch(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(1, 2, (12, 6)).astype(np.float32), rng.integers(0, 3, 12)


def module_like(trainable, model, **args):
    """Return a new module with the weights of a network."""
    import torch

    from tests import torch_modules

    module = getattr(torch_modules, model)((6,), 3, **args)
    weights = {
        name.removeprefix("model/"): torch.from_numpy(array)
        for name, array in trainable.state().items()
        if name.startswith("model/")
    }
    module.load_state_dict(weights)
    return module


def weights_of(trainable):
    return {
        name.removeprefix("model/"): array
        for name, array in trainable.state().items()
        if name.startswith("model/")
    }


def custom(function, **args):
    return {"build": f"{MODULES}:{function}", "args": args}


def test_parameter_that_forward_replaces_is_refused():
    with refused(FleetError, "replaced its parameter body.weight"):
        take_step(built(custom("replacing"), FLAT), *flat_batch(), 12)


@pytest.mark.parametrize("shape", [(6,), (6, 6, 1)])
def test_forward_cannot_change_input_arrays(shape):
    sample = SampleSpec(ArraySpec(shape, "float32"), 3)
    trainable = built(custom("overwriting"), sample)
    images = np.random.default_rng(0).normal(1, 1, (4, *shape)).astype(np.float32)
    before, labels = images.copy(), np.array([0, 1, 2, 0])
    first = trainable.evaluate(images, labels)
    assert trainable.evaluate(images, labels) == first
    take_step(trainable, images, labels, 4)
    assert np.array_equal(images, before)


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize("sample", [FLAT, LABELS], ids=["class", "multilabel"])
def test_probabilities_from_forward_are_refused(sample, gate):
    model = custom("gated", gate=gate) if gate == "sigmoid" else custom("probable")
    with refused(FleetError, "returns probabilities"):
        built(model, sample)


def test_sigmoid_inside_of_a_module_is_allowed():
    built(custom("gated", inner=True), LABELS)
    built(custom("zero"), LABELS)


def test_loss_is_called_in_the_order_of_its_names():
    rng = np.random.default_rng(0)
    images, targets = (rng.normal(2, 1, (4, count)).astype(np.float32) for count in (6, 3))
    before = targets.copy()
    trainable = built(
        custom("gated"),
        VALUES,
        loss=f"{MODULES}:reversed_error",
        metrics=[f"{MODULES}:reversed_error"],
    )
    sums, outputs = trainable.predict(images, targets)
    expected = np.abs(outputs - targets) ** 2
    assert sums.loss / 4 == pytest.approx(expected.mean(), rel=1e-5)
    assert trainable.scores(sums.metric_totals)["reversed_error"] == pytest.approx(
        expected.mean(), rel=1e-5
    )
    assert np.array_equal(targets, before)
    with collect_warnings() as messages:
        trainable.check_learns(images, targets)
        built(custom("gated"), VALUES, loss=f"{MODULES}:unclear_error").check_learns(
            images, targets
        )
        built(custom("gated"), VALUES, loss=f"{MODULES}:absolute").check_learns(images, targets)
    assert ["(outputs, targets)" in line for line in messages] == [True, True]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ema_covers_weights_and_statistics(accumulate):
    import torch

    optimizer = {"name": "sgd", "learning_rate": 0.1, "use_ema": True, "ema_momentum": 0.8}
    trainable = built(
        custom("normalized"), FLAT, optimizer=optimizer, batch={"accumulate": accumulate}
    )
    module = module_like(trainable, "normalized")
    means = {}
    for step in range(5):
        take_step(trainable, *flat_batch(step), 12)
        share = 0.2 if step // accumulate else 1.0
        for name, value in weights_of(trainable).items():
            means[name] = (1 - share) * means.get(name, 0.0) + share * value
    module.load_state_dict(
        {name: torch.from_numpy(np.array(value)) for name, value in means.items()}
    )
    images, labels = flat_batch(9)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(images)).numpy()
    state = trainable.state()
    assert trainable.predict(images, labels)[1] == pytest.approx(expected, abs=1e-5)
    assert all(np.array_equal(array, state[name]) for name, array in trainable.state().items())
    old = {key: array for key, array in state.items() if "average/1.running" not in key}
    assert len(old) == len(state) - 2
    trainable.load(old)  # a state that FLEET 0.2 has saved
    assert np.array_equal(
        trainable.state()["optimizer/average/1.running_mean"], state["model/1.running_mean"]
    )


def test_default_learning_rate_is_that_of_the_function():
    assert (
        built(FLAT_MODEL, FLAT, optimizer={"name": "torch.optim:Adagrad"}).learning_rate() == 0.01
    )
    assert built(FLAT_MODEL, FLAT, optimizer={"name": "torch.optim:NAdam"}).learning_rate() == 0.002
    assert (
        built(FLAT_MODEL, FLAT, optimizer={"name": f"{MODULES}:momentum"}).learning_rate() == 0.01
    )


FLAT_MODEL = custom("gated")


def test_weight_changes_if_any_rank_has_its_gradient():
    result, first = {}, {}

    def rank_main(world):
        spec = spec_of(custom("with_spare_parts"), optimizer={"name": "adamw", "weight_decay": 0.3})
        engine = make_engine(spec, FLAT, None, 0, 2)
        trainable = engine.build(spec.networks[0], world.group([0, 1], 1))
        trainable.module.calls = world.rank  # the two ranks use the layer `extra` in turns
        first[world.rank] = weights_of(trainable)
        images, labels = flat_batch()
        actual = slice(6 * world.rank, 6 * world.rank + 6)
        for _ in range(3):
            take_step(trainable, images[actual], labels[actual], 12)
        result[world.rank] = weights_of(trainable)

    assert Launch(2, 0).run(rank_main)
    for name, value in result[0].items():
        assert np.array_equal(value, result[1][name])
        assert np.array_equal(value, first[0][name]) == name.startswith("spare"), name


def test_exported_network_does_not_change_inputs(tmp_path):
    spec = spec_of(custom("overwriting"))
    trainable = built(custom("overwriting"), FLAT)
    trainable.export(trainable.state(), tmp_path / "best.safetensors")
    ensemble = load_ensemble(spec, [tmp_path / "best.safetensors"] * 2, [0.5, 0.5], "class")
    images = flat_batch()[0]
    before = images.copy()
    assert np.array_equal(ensemble.predict(images), ensemble.predict(images))
    assert np.array_equal(images, before)


def test_count_parameters_keeps_shared_tables_intact(batch):
    model = {"build": f"{MODULES}:tabled"}
    spec = spec_of(model)
    assert count_parameters(spec.networks[0], spec, SAMPLE) == 3 * 65
    assert take_step(built(model), *batch, 12).count == 12


def test_module_whose_train_returns_none_is_built(batch):
    trainable = built({"build": f"{MODULES}:train_without_return"})
    assert trainable.row_bytes() > 0
    assert take_step(trainable, *batch, 12).count == 12


@pytest.mark.parametrize("name", ["embedding", "packed_tokens"])
def test_token_models_are_tried_on_valid_tokens(name, tmp_path):
    sample = SampleSpec(ArraySpec((5,), "int64"), 3)
    trainable = built({"build": f"{MODULES}:{name}"}, sample)
    tokens = np.array([[1, 2, 1, 0, 0], [2, 1, 2, 1, 2]])
    trainable.check_learns(tokens, np.array([0, 1]))
    assert "loading best.safetensors requires" in trainable.try_export(tmp_path)
    assert built({"build": f"{MODULES}:embedding"}, sample).try_export(tmp_path)


def test_module_that_draws_in_evaluation_is_exported(tmp_path):
    trainable = built({"build": f"{MODULES}:drawing"})
    assert "loading best.safetensors requires" in trainable.try_export(tmp_path)


@pytest.mark.parametrize("enables", [False, True])
def test_forward_may_take_derivatives_in_evaluation(tmp_path, enables):
    sample = SampleSpec(ArraySpec((2,), "float32"), 2, target=TargetSpec("value", 2))
    model = {"build": f"{MODULES}:differentiating", "args": {"enables": enables}}
    trainable = built(model, sample)
    points = np.array([[0.5, -1.0], [0.25, 1.0]], np.float32)
    before = trainable.predict(points, np.zeros((2, 2), np.float32))[1]
    assert np.isfinite(before).all()
    assert before.any()
    trainable.try_export(tmp_path)
    take_step(trainable, points, np.ones((2, 2), np.float32), 2)
    after = trainable.predict(points, np.zeros((2, 2), np.float32))[1]
    assert abs(after - before).max() > 0


def test_row_bytes_frees_the_module():
    trainable = built({"build": f"{MODULES}:normalized"})
    trainable.row_bytes()
    weight = weakref.ref(next(trainable.module.parameters()))
    del trainable
    gc.collect()
    assert weight() is None
