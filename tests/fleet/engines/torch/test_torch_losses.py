"""Losses by the names of torch.nn: the class's own numbers, and refusals."""

import numpy as np
import pytest

from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from fleet.spec.train import Train
from fleet.vocabulary.torch_measures import TORCH_LOSSES
from preprocess.target import TargetSpec
from tests.refusals import refused

pytestmark = pytest.mark.torch

TARGETS = {
    "class": TargetSpec("class", 3),
    "multilabel": TargetSpec("multilabel", 4),
    "value": TargetSpec("value", 2),
    "mask": TargetSpec("mask", 3, size=(4, 5)),
}
ARGUMENTS = {
    "BCEWithLogitsLoss": {"pos_weight": [1, 2, 3, 4]},
    "CrossEntropyLoss": {"label_smoothing": 0.1},
    "HuberLoss": {"delta": 0.3},
    "SmoothL1Loss": {"beta": 0.5},
    "PoissonNLLLoss": {"full": True},
    "MultiMarginLoss": {"margin": 0.5},
}
CASES = [
    (word.written, kind, arguments)
    for word in TORCH_LOSSES.values()
    for kind in TARGETS
    for arguments in ({}, ARGUMENTS.get(word.written))
    if not word.refused and kind not in word.unfit and arguments is not None
]


def samples_of(kind):
    """Return outputs with classes last, and targets as they travel."""
    import torch

    target = TARGETS[kind]
    random = np.random.default_rng(0)
    outputs = torch.from_numpy(random.normal(size=(6, *target.output_shape)).astype(np.float32))
    targets = np.array(target.split(target.random_targets(random, 6))[0])
    return outputs, torch.from_numpy(targets)


def loss_of(loss, kind, **settings):
    import torch

    from fleet.engines.torch.losses import make_losses

    return make_losses(Train(loss=loss, **settings), TARGETS[kind], torch.device("cpu")).evaluation


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # of KLDivLoss
@pytest.mark.parametrize(("name", "kind", "arguments"), CASES)
def test_loss_by_torch_name_is_the_mean_of_torch(name, kind, arguments):
    import torch

    outputs, targets = samples_of(kind)
    expected = targets.long() if kind in ("class", "mask") else targets.float()
    layout = outputs.movedim(-1, 1) if kind == "mask" else outputs
    options = {
        key: torch.tensor(value, dtype=torch.float32) if isinstance(value, list) else value
        for key, value in arguments.items()
    }
    losses = loss_of({f"nn.{name}": arguments}, kind)(outputs, targets)
    assert losses.shape == (6,)
    truth = getattr(torch.nn, name)(**options)(layout, expected)
    assert float(losses.mean()) == pytest.approx(float(truth), rel=1e-6)


def test_loss_by_torch_name_excludes_void_pixels():
    outputs, targets = samples_of("mask")
    targets[:, 0] = TARGETS["mask"].void
    counted = loss_of("CrossEntropyLoss", "mask")(outputs, targets)
    assert counted.tolist() == loss_of(None, "mask")(outputs, targets).tolist()


def test_loss_by_torch_name_takes_the_key_label_smoothing():
    outputs, targets = samples_of("class")
    smoothed = loss_of("CrossEntropyLoss", "class", label_smoothing=0.1)(outputs, targets)
    assert (
        smoothed.tolist()
        == loss_of({"CrossEntropyLoss": {"label_smoothing": 0.1}}, "class")(
            outputs, targets
        ).tolist()
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_reduction_of_a_torch_loss_may_be_written(reduction):
    outputs, targets = samples_of("value")
    written = loss_of({"L1Loss": {"reduction": reduction}}, "value")(outputs, targets)
    assert written.tolist() == loss_of("L1Loss", "value")(outputs, targets).tolist()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"L1Loss": {"reduction": "sum"}}, "L1Loss has no reduction sum"),
        ({"HuberLoss": {"dleta": 1}}, "HuberLoss has no parameter dleta; its parameters are delta"),
    ],
)
def test_arguments_of_a_torch_loss_are_checked(loss, message):
    with pytest.raises(SettingError, match=message):
        loss_of(loss, "value")(*samples_of("value"))


# ---- specs -------------------------------------------------------------------------------------


def spec_of(loss, engine="torch", **train):
    return {
        "models": [{"family": "softmax"}],
        "resources": {"engine": engine},
        "train": {"loss": loss, **train},
    }


def test_spec_with_torch_engine_takes_names_of_torch_and_keras():
    for loss in ("nn.HuberLoss", "torch.nn.HuberLoss", "HuberLoss", "huber", "Huber"):
        assert parse(spec_of(loss)).networks[0].train.loss == loss


def test_spec_with_keras_engine_has_no_torch_loss():
    with refused(SpecError, "the keras engine has no loss 'HuberLoss' (did you mean huber"):
        parse(spec_of("HuberLoss", "keras"))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("BCELoss", "takes probabilities, but modules return logits; use BCEWithLogitsLoss"),
        ("GaussianNLLLoss", "takes other arguments than outputs and targets"),
        ("HuberLos", "did you mean"),
    ],
)
def test_torch_losses_that_no_spec_can_use_are_refused(loss, message):
    with refused(SpecError, message):
        parse(spec_of(loss))


def test_equal_losses_of_torch_and_keras_are_comparable():
    from fleet.spec.measures import canonical_loss

    words = parse(spec_of("L1Loss")).engine.words.losses
    for torch_loss, keras_loss, kind in (
        ("L1Loss", "mae", "value"),
        ({"HuberLoss": {"delta": 2}}, {"huber": {"delta": 2}}, "value"),
        ("CrossEntropyLoss", None, "class"),
    ):
        assert canonical_loss(torch_loss, 0.0, kind, words) == canonical_loss(
            keras_loss, 0.0, kind, words
        )
    assert canonical_loss({"CrossEntropyLoss": {"weight": [1, 2]}}, 0.0, "class", words) == {
        "cross_entropy_loss": {"weight": [1, 2]}
    }
