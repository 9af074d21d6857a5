"""Compute the loss of each sample, by the kind of its target or by a name.

A name is one of ``torch.nn``, such as ``HuberLoss``, or one of Keras, such as ``huber``.

Modules return logits, so the losses of classes, labels and masks apply the softmax or sigmoid
themselves. A module returns masks as (n, classes, height, width); here classes are last, as a view.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    normalize,
    one_hot,
    softplus,
)

from fleet.engines.custom import (
    ArgumentOrder,
    find_argument_order,
    make_custom_loss,
    takes_outputs_first,
)
from fleet.engines.measures import OF_MASKS, LossFunctions, loss_arguments
from fleet.engines.several_targets import check_each, losses_of_targets
from fleet.engines.tensor_ops import Loss, TensorOps
from fleet.errors import SettingError
from fleet.spec import Train
from fleet.spec.engines import find_engine
from fleet.spec.measures import name_of, parameters_of
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.measures import canonical_name
from fleet.vocabulary.torch_measures import TORCH_LOSSES
from preprocess.record_target import record_of
from preprocess.target import TargetSpec

_TINY = 1e-7  # Keras' epsilon
# Arguments of the losses of torch.nn that FLEET sets, or that PyTorch is about to remove. Excluded
# pixels are excluded whatever ignore_index is.
_NOT_SET = ("reduction", "size_average", "reduce", "ignore_index")

OPS = TensorOps(
    as_float=Tensor.float,
    as_int=Tensor.long,
    one_hot=one_hot,
    argmax=partial(torch.argmax, dim=-1),
    softmax=partial(torch.softmax, dim=-1),
    maximum=torch.clamp,
    mean=torch.mean,
    sum=torch.sum,
    sigmoid=torch.sigmoid,
    zeros_like=torch.zeros_like,
    take=operator.getitem,
    select=torch.where,
)


def make_losses(
    train: Train, target: TargetSpec, device: torch.device, outputs_first: bool = True
) -> LossFunctions:
    """Return the losses of a network.

    Args:
        train: training settings.
        target: target of a sample.
        device: device of class weights.
        outputs_first: True if a function whose parameters do not tell takes (outputs, targets).

    Raises:
        SettingError: the loss does not exist, or is not for such targets.
    """
    if target.parts:
        return losses_of_targets(
            train,
            record_of(target),
            find_engine("torch").words.metrics,
            lambda settings, part: make_losses(settings, part, device, outputs_first),
            torch.reshape,
        )
    order = ArgumentOrder(True)
    if train.single.loss is None:
        loss: Loss = partial(_DEFAULTS[target.kind], smoothing=train.single.label_smoothing)
    elif ":" in name_of(train.single.loss):
        loss, order = _make_custom(train, target, outputs_first)
    else:
        loss = _make_named(train, target, device)
    return LossFunctions.of(
        train,
        target,
        loss,
        OPS,
        partial(torch.tensor, dtype=torch.float32, device=device),
        find_engine("torch").words.losses,
        order,
    )


def check_losses(
    losses: LossFunctions, outputs: Tensor, targets: Tensor | dict[str, Tensor]
) -> None:
    """Check on some samples and the network's outputs for them that losses are usable.

    Args:
        losses: losses to check.
        outputs: (n, ...) finite logits or values.
        targets: (n, ...); of several targets, by name.

    Raises:
        SettingError: a loss is not usable.
    """
    if losses.parts:
        check_each(losses, outputs, targets, check_losses)
        return

    def slope(loss: Loss) -> np.ndarray | None:
        generator = torch.Generator().manual_seed(0)
        random_outputs = torch.randn(outputs.shape, generator=generator).to(outputs.device)
        random_outputs.requires_grad_()
        losses = loss(random_outputs, targets)
        if not losses.requires_grad:
            return None
        derivative = torch.autograd.grad(losses.sum(), random_outputs, allow_unused=True)[0]
        if derivative is None:
            return None
        return derivative.cpu().numpy()

    losses.check(slope, lambda: losses.evaluation(outputs, targets).detach().cpu().numpy())


# ---- losses by Keras names, for dense targets --------------------------------------------------


def _binary(expected: Tensor, logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
    expected = expected * (1 - label_smoothing) + 0.5 * label_smoothing
    return binary_cross_entropy_with_logits(logits, expected, reduction="none").mean(-1)


def _smoothed(expected: Tensor, smoothing: float) -> Tensor:
    if smoothing:
        return expected * (1 - smoothing) + smoothing / expected.shape[-1]
    return expected


def _class_loss(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def _label_loss(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return _binary(targets.float(), outputs, smoothing)


def _value_loss(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return (outputs - targets).square().mean(-1)


def _mask_loss(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return _class_loss(outputs.movedim(-1, 1), targets.clamp(min=0), smoothing)


# Kind of targets -> its default loss, from logits or values.
_DEFAULTS: dict[str, Callable[..., Tensor]] = {
    "class": _class_loss,
    "multilabel": _label_loss,
    "value": _value_loss,
    "mask": _mask_loss,
}


def _categorical(expected: Tensor, logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
    return -(_smoothed(expected, label_smoothing) * logits.log_softmax(-1)).sum(-1)


def _binary_focal(
    expected: Tensor,
    logits: Tensor,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    expected = expected * (1 - label_smoothing) + 0.5 * label_smoothing
    predicted = logits.sigmoid()
    clamped = predicted.clamp(_TINY, 1 - _TINY)
    losses = -(expected * clamped.log() + (1 - expected) * (1 - clamped).log())
    losses = (1 - (expected * predicted + (1 - expected) * (1 - predicted))) ** gamma * losses
    if apply_class_balancing:
        losses = (expected * alpha + (1 - expected) * (1 - alpha)) * losses
    return losses.mean(-1)


def _categorical_focal(
    expected: Tensor,
    logits: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    predicted = logits.softmax(-1).clamp(_TINY, 1 - _TINY)
    return (
        -_smoothed(expected, label_smoothing) * predicted.log() * alpha * (1 - predicted) ** gamma
    ).sum(-1)


def _generalized(expected: Tensor, predicted: Tensor, *, q: float) -> Tensor:
    return (1 - (expected * predicted).sum(-1) ** q) / q


def _signs(expected: Tensor) -> Tensor:
    """Map 0 and 1 to -1 and 1; return other targets unchanged."""
    if bool(((expected == 0) | (expected == 1)).all()):
        return 2 * expected - 1
    return expected


def _hinge(expected: Tensor, scores: Tensor) -> Tensor:
    return (1 - _signs(expected) * scores).clamp(min=0).mean(-1)


def _squared_hinge(expected: Tensor, scores: Tensor) -> Tensor:
    return (1 - _signs(expected) * scores).clamp(min=0).square().mean(-1)


def _categorical_hinge(expected: Tensor, scores: Tensor) -> Tensor:
    return (((1 - expected) * scores).amax(-1) - (expected * scores).sum(-1) + 1).clamp(min=0)


def _cosine(expected: Tensor, predicted: Tensor) -> Tensor:
    return -(normalize(expected, dim=-1, eps=1e-6) * normalize(predicted, dim=-1, eps=1e-6)).sum(-1)


def _huber(expected: Tensor, predicted: Tensor, delta: float = 1.0) -> Tensor:
    return huber_loss(predicted, expected, reduction="none", delta=delta).mean(-1)


def _divergence(expected: Tensor, predicted: Tensor) -> Tensor:
    expected = expected.clamp(_TINY, 1)
    predicted = predicted.clamp(_TINY, 1)
    return (expected * (expected / predicted).log()).sum(-1)


def _log_cosh(expected: Tensor, predicted: Tensor) -> Tensor:
    error = predicted - expected
    return (error + softplus(-2 * error) - math.log(2)).mean(-1)


def _logarithmic(expected: Tensor, predicted: Tensor) -> Tensor:
    return (
        (predicted.clamp(min=_TINY).log1p() - expected.clamp(min=_TINY).log1p()).square().mean(-1)
    )


def _percentage(expected: Tensor, predicted: Tensor) -> Tensor:
    return 100 * ((expected - predicted) / expected.abs().clamp(min=_TINY)).abs().mean(-1)


def _poisson(expected: Tensor, predicted: Tensor) -> Tensor:
    return (predicted - expected * (predicted + _TINY).log()).mean(-1)


def _dice(expected: Tensor, predicted: Tensor) -> Tensor:
    axes = tuple(range(1, expected.dim()))
    return 1 - 2 * (expected * predicted).sum(axes) / (
        expected.sum(axes) + predicted.sum(axes) + _TINY
    )


def _tversky(expected: Tensor, predicted: Tensor, alpha: float = 0.5, beta: float = 0.5) -> Tensor:
    axes = tuple(range(1, expected.dim()))
    both = (expected * predicted).sum(axes)
    only_expected = ((1 - predicted) * expected).sum(axes)
    only_predicted = (predicted * (1 - expected)).sum(axes)
    return 1 - both / (both + only_expected * alpha + only_predicted * beta + _TINY)


# name -> loss of (targets, logits)
OF_LOGITS: dict[str, Callable[..., Tensor]] = {
    "binary_crossentropy": _binary,
    "categorical_crossentropy": _categorical,
    "sparse_categorical_crossentropy": _categorical,
    "binary_focal_crossentropy": _binary_focal,
    "categorical_focal_crossentropy": _categorical_focal,
    "hinge": _hinge,
    "squared_hinge": _squared_hinge,
    "categorical_hinge": _categorical_hinge,
}
# name -> loss of (targets, probabilities), or of (targets, values)
OF_PREDICTIONS: dict[str, Callable[..., Tensor]] = {
    "categorical_generalized_cross_entropy": _generalized,
    "cosine_similarity": _cosine,
    "dice": _dice,
    "huber": _huber,
    "kl_divergence": _divergence,
    "log_cosh": _log_cosh,
    "mean_absolute_error": lambda expected, predicted: (predicted - expected).abs().mean(-1),
    "mean_absolute_percentage_error": _percentage,
    "mean_squared_error": lambda expected, predicted: (predicted - expected).square().mean(-1),
    "mean_squared_logarithmic_error": _logarithmic,
    "poisson": _poisson,
    "tversky": _tversky,
}


def _make_named(train: Train, target: TargetSpec, device: torch.device) -> Loss:
    assert train.single.loss is not None
    name = name_of(train.single.loss)
    short = canonical_name(name)
    if short in TORCH_LOSSES:
        return _make_torch(train, target, TORCH_LOSSES[short].written, device)
    takes_logits = short in OF_LOGITS
    function = OF_LOGITS[short] if takes_logits else OF_PREDICTIONS[short]
    arguments = loss_arguments(train, target, list(inspect.signature(function).parameters)[2:])

    return OPS.dense_loss(partial(function, **arguments), target, takes_logits, short in OF_MASKS)


def _make_torch(train: Train, target: TargetSpec, name: str, device: torch.device) -> Loss:
    """Return a loss of ``torch.nn``, for outputs and targets in PyTorch's layout.

    Args:
        train: training settings, with the arguments of the loss.
        target: target of a sample.
        name: the name of the class.
        device: device of weights in the arguments.
    """
    kind = getattr(torch.nn, name)
    accepted = [key for key in inspect.signature(kind).parameters if key not in _NOT_SET]
    arguments = loss_arguments(_without_reduction(train, name), target, accepted)
    arguments = {
        key: torch.tensor(value, dtype=torch.float32) if isinstance(value, list) else value
        for key, value in arguments.items()
    }
    with wrapping_errors(f"{name}:", SettingError, "train", "loss"):
        function = kind(**arguments, reduction="none").to(device)
    is_of_classes = target.semantics.has_classes

    def compute(outputs: Tensor, targets: Tensor) -> Tensor:
        if target.semantics.is_of_pixels:
            outputs = outputs.movedim(-1, 1)
        # Excluded pixels have the class -1; their loss is not counted.
        expected = targets.clamp(min=0) if is_of_classes else targets.float()
        return OPS.per_sample(function(outputs, expected), name, target)

    return compute


def _without_reduction(train: Train, name: str) -> Train:
    """Return the settings without ``reduction: mean`` or ``none``, which both mean FLEET's mean.

    Raises:
        SettingError: it is another one.
    """
    assert train.single.loss is not None
    arguments = parameters_of(train.single.loss)
    reduction = arguments.pop("reduction", "mean")
    if reduction not in ("mean", "none"):
        raise SettingError(
            f"{name} has no reduction {reduction}: the loss of a step is the mean over the samples "
            "of the batch; remove it",
            "train",
            "loss",
        )
    return replace(train, loss={name: arguments})


def _make_custom(
    train: Train, target: TargetSpec, outputs_first: bool
) -> tuple[Loss, ArgumentOrder]:
    """Return a user function or a loss of ``torch.nn``, which takes outputs of the module."""
    assert train.single.loss is not None
    name = name_of(train.single.loss)
    function, arguments = make_custom_loss(train, torch.nn.Module, reduction="none")

    def ordered(order: ArgumentOrder) -> Loss:
        call = order.as_targets_first(function)

        def compute(outputs: Tensor, targets: Tensor) -> Tensor:
            if target.semantics.is_of_pixels:
                outputs = outputs.movedim(-1, 1)
            expected = targets if target.semantics.has_classes else targets.float()
            # The function may write into its arguments.
            losses = call(expected.clone(), outputs.clone(), **arguments)
            return OPS.per_sample(losses, name, target)

        return compute

    if isinstance(function, torch.nn.Module):  # as all losses of PyTorch
        by_name = takes_outputs_first(function.forward)
        order = ArgumentOrder(by_name is not False)
    else:
        order = find_argument_order(
            function, lambda order: _depends_on_outputs(ordered(order), target), outputs_first
        )
    return ordered(order), order


def _depends_on_outputs(loss: Loss, target: TargetSpec) -> bool:
    """Return True if a loss of made-up samples has a finite derivative by the outputs."""
    random = np.random.default_rng(0)
    targets = torch.from_numpy(np.array(target.split(target.random_targets(random, 4))[0]))
    outputs = torch.from_numpy(random.normal(size=(4, *target.output_shape)).astype(np.float32))
    outputs.requires_grad_()
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            [slope] = torch.autograd.grad(loss(outputs, targets).sum(), outputs)
    except Exception:  # the function may raise anything
        return False
    return bool(slope.isfinite().all() and slope.any())
