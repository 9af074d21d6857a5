"""Compute what losses and metrics of any tensor library have in common, by the kind of target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fleet.errors import SettingError
from preprocess.target import TargetSpec
from preprocess.target_kinds import KINDS

Tensor: TypeAlias = Any  # of the library
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> loss of each sample, (n,)
_Function: TypeAlias = Callable[..., Tensor]


class TensorOps(NamedTuple):
    """The operations of a tensor library.

    Attributes:
        as_float, as_int: convert to float32 and to int64.
        one_hot: converts classes (...) to (..., count), from the classes and their count.
        argmax, softmax: along the last axis.
        maximum: larger one of each element and a number.
        mean, sum: over some axes.
        sigmoid, zeros_like: of each element.
        take: elements of a vector at some indices.
        select: elements of two tensors by a condition.
    """

    as_float: _Function
    as_int: _Function
    one_hot: _Function
    argmax: _Function
    softmax: _Function
    maximum: _Function
    mean: _Function
    sum: _Function
    sigmoid: _Function
    zeros_like: _Function
    take: _Function
    select: _Function

    def to_dense(self, targets: Tensor, target: TargetSpec) -> Tensor:
        """Return targets as float32 with one number per output; classes are one-hot.

        Args:
            targets: (n, ...).
            target: target of a sample.
        """
        if target.semantics.has_classes and not self.are_shares(targets, target):
            targets = self.one_hot(self.maximum(targets, 0), target.outputs)
        return self.as_float(targets)

    def are_shares(self, targets: Tensor, target: TargetSpec) -> bool:
        """Return True for shares of classes, (n, classes), which batch transforms give."""
        return target.semantics.is_scalar and len(targets.shape) == 2

    def most_likely(self, targets: Tensor, target: TargetSpec) -> Tensor:
        """Return the classes or labels with the largest shares, from any targets.

        Args:
            targets: (n, ...), as they travel, or shares.
            target: target of a sample.
        """
        if self.are_shares(targets, target):
            return self.argmax(targets)
        if target.semantics.has_label_sets:
            return self.as_int(self.as_float(targets) >= 0.5)
        return targets

    def probabilities(self, outputs: Tensor, kind: str) -> Tensor:
        """Return the probabilities of logits; values are unchanged.

        Args:
            outputs: (n, ...) logits or values.
            kind: kind of the targets (:mod:`preprocess.target`).
        """
        semantics = KINDS[kind]
        if semantics.is_numeric:
            return outputs
        return getattr(self, semantics.activation)(outputs)

    def pixels(self, targets: Tensor, target: TargetSpec) -> tuple[Tensor, Tensor]:
        """Return the class of each pixel, 0 if excluded, and 1 for counted pixels, else 0.

        Args:
            targets: (n, height, width).
            target: target of a sample.
        """
        counted = targets != target.void
        return self.select(counted, self.as_int(targets), 0), self.as_float(counted)

    def mean_of_pixels(self, values: Tensor, counted: Tensor) -> Tensor:
        """Return means over counted pixels, (n, height, width) -> (n,); 0 if none counts.

        Args:
            values: (n, height, width).
            counted: (n, height, width), 0 for pixels excluded from loss and metrics, else 1.
        """
        axes = (1, 2)
        return self.sum(values * counted, axes) / self.maximum(self.sum(counted, axes), 1.0)

    def correct(self, outputs: Tensor, targets: Tensor, target: TargetSpec) -> Tensor:
        """Return 1 for each correct sample, or its share of correct labels or pixels; 0 for values.

        Args:
            outputs: (n, ...) logits or values.
            targets: (n, ...).
            target: target of a sample.
        """
        return _CORRECT[target.kind](self, outputs, targets, target)

    def dense_loss(
        self, function: _Function, target: TargetSpec, takes_logits: bool, is_of_masks: bool
    ) -> Loss:
        """Return a loss of outputs and targets.

        Args:
            function: loss of dense targets, and of logits, probabilities or values.
            target: target of a sample.
            takes_logits: True if it takes logits.
            is_of_masks: True if it returns one number per mask.
        """

        def compute(outputs: Tensor, targets: Tensor) -> Tensor:
            predicted = outputs if takes_logits else self.probabilities(outputs, target.kind)
            expected = self.to_dense(targets, target)
            if is_of_masks and target.semantics.is_of_pixels:
                # Excluded pixels get neither a target nor a prediction.
                counted = self.as_float(targets >= 0)[..., None]
                expected = expected * counted
                predicted = predicted * counted
            return function(expected, predicted)

        return compute

    def per_sample(self, losses: Tensor, name: str, target: TargetSpec) -> Tensor:
        """Return one loss per sample or pixel: the mean over further dimensions.

        Args:
            losses: what a loss returned.
            name: name of the loss.
            target: target of a sample.

        Raises:
            SettingError: it returned a single number.
        """
        losses = self.as_float(losses)
        rank = len(losses.shape)
        if rank == 0:
            raise scalar_result_error(name, "loss")
        if rank == 1 or (target.semantics.is_of_pixels and rank == 3):
            return losses
        return self.mean(losses, tuple(range(1, rank)))

    def with_class_weights(
        self, loss: Loss, target: TargetSpec, by_class: Tensor | None = None
    ) -> Loss:
        """Turn a loss of samples or pixels into a loss of samples with class weights.

        Args:
            loss: loss of outputs and targets; for masks, excluded pixels have the target -1.
            target: target of a sample.
            by_class: (classes,) weights; None for equal weights.
        """
        if not target.semantics.is_of_pixels:
            if by_class is None:
                return loss
            return lambda outputs, targets: loss(outputs, targets) * self._class_weights(
                by_class, targets, target
            )

        def of_masks(outputs: Tensor, targets: Tensor) -> Tensor:
            labels, counted = self.pixels(targets, target)
            losses = loss(outputs, self.select(counted > 0, labels, -1))
            if len(losses.shape) != 3:
                if by_class is not None:
                    raise mask_weights_error("the loss")
                return losses
            if by_class is not None:
                losses = losses * self.take(by_class, labels)
            return self.mean_of_pixels(self.select(counted > 0, losses, 0.0), counted)

        return of_masks

    def _class_weights(self, by_class: Tensor, targets: Tensor, target: TargetSpec) -> Tensor:
        """Return the weight of each sample by its class, or the mean by its shares: (n,)."""
        if self.are_shares(targets, target):
            return self.sum(targets * by_class, -1)
        return self.take(by_class, self.maximum(targets, 0))


def _correct_classes(
    ops: TensorOps, outputs: Tensor, targets: Tensor, target: TargetSpec
) -> Tensor:
    return ops.as_float(ops.argmax(outputs) == targets)


def _correct_labels(ops: TensorOps, outputs: Tensor, targets: Tensor, target: TargetSpec) -> Tensor:
    return ops.mean(ops.as_float((outputs > 0) == (targets > 0)), -1)


def _correct_values(ops: TensorOps, outputs: Tensor, targets: Tensor, target: TargetSpec) -> Tensor:
    return ops.zeros_like(outputs[:, 0])


def _correct_masks(ops: TensorOps, outputs: Tensor, targets: Tensor, target: TargetSpec) -> Tensor:
    labels, counted = ops.pixels(targets, target)
    return ops.mean_of_pixels(ops.as_float(ops.argmax(outputs) == labels), counted)


_CORRECT: dict[str, _Function] = {
    "class": _correct_classes,
    "multilabel": _correct_labels,
    "value": _correct_values,
    "mask": _correct_masks,
}


def scalar_result_error(name: str, key: str, alternative: str = "") -> SettingError:
    """Return the error for a loss or metric that returns a single number.

    Args:
        name: name of the loss or metric.
        key: key of the setting.
        alternative: what else it may return, appended to the message.
    """
    return SettingError(
        f"{name} returns one number for a whole batch, which ranks cannot add up; it should return "
        f"one number per sample{alternative}",
        "train",
        key,
    )


def mask_weights_error(name: str) -> SettingError:
    """Return the error for class weights combined with a loss of whole masks."""
    return SettingError(
        f"class_weights apply to pixels, but {name} returns one number per mask; use a loss of "
        "pixels, or remove class_weights",
        "train",
        "class_weights",
    )
