"""The kinds of targets: one class for each, which says all that the kind means.

============== ============================== ======= ===========================
kind           one sample's target            outputs a network returns
============== ============================== ======= ===========================
``class``      () int64: one class            classes a logit per class
``multilabel`` (labels,) uint8: 1 if it holds labels  a logit per label
``value``      (values,) float32              values  the values
``mask``       (height, width): pixel classes classes a logit per class and pixel
``none``       () int64: always 0             0       anything, for a step of the user
============== ============================== ======= ===========================

Specs and files name a kind by its word; :data:`KINDS` has its class. Other modules ask it instead
of comparing words. What a kind means to one layer is code of this layer, in a table by the same
words: how a source parses its targets in :mod:`preprocess.sources.targets`, what the networks of an
engine compute in :mod:`fleet.engines.tensor_ops` and, for NumPy, :mod:`fleet.engines.linear`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import numpy as np

Kind = Literal["class", "multilabel", "value", "mask", "none"]
SEVERAL: Literal["several"] = "several"  # the word of several targets by name
AnyKind = Kind | Literal["several"]

_MIN_PROBABILITY = 1e-7  # keeps log losses finite; about the precision of float32


class TargetKind:
    """What a kind of target means. The base class is the kind of targets that is not known yet.

    Attributes:
        nouns: what one output of a network stands for, and several.
        plural: what the targets of all samples are, for messages.
        preposition: connects samples and outputs, as in "2 images of 3 classes".
        min_outputs: the least number of outputs.
        column: the data set of a converted file that holds the targets.
        expected: what each number of a target should be, a template for the number of outputs.
        activation: the function of the last layer that turns outputs into predictions.
        default_loss: the loss by its name in Keras.
        loss_text: describes the default loss.
        default_monitor: the column by which networks are judged by default.
        has_classes: True if a target consists of numbers of classes.
        is_scalar: True if a sample's target is a single class.
        is_of_pixels: True if each pixel has a target, so that it is transformed with its image.
        has_label_sets: True if a sample may have no label, or several.
        is_numeric: True if targets are numbers to approximate; predictions are not right or wrong.
        headers: the columns of what is predicted, before those of all outputs.
        exists: False if samples have no targets.
    """

    nouns: ClassVar[tuple[str, str]]
    plural: ClassVar[str]
    preposition: ClassVar[str] = "with"
    min_outputs: ClassVar[int] = 1
    column: ClassVar[str] = "targets"
    expected: ClassVar[str]
    activation: ClassVar[str]
    default_loss: ClassVar[str]
    loss_text: ClassVar[str]
    default_monitor: ClassVar[str] = "val_loss"
    has_classes: ClassVar[bool] = False
    is_scalar: ClassVar[bool] = False
    is_of_pixels: ClassVar[bool] = False
    has_label_sets: ClassVar[bool] = False
    is_numeric: ClassVar[bool] = False
    headers: ClassVar[tuple[str, ...]] = ()
    exists: ClassVar[bool] = True

    def shape(self, outputs: int, size: tuple[int, int] | None) -> tuple[int, ...]:
        """Return the shape of one sample's target.

        Args:
            outputs: number of outputs.
            size: (height, width) of masks; None if not known.

        Raises:
            ValueError: the size of masks is not known.
        """
        return (outputs,)

    def dtype(self, outputs: int) -> np.dtype:
        """Return the dtype of one sample's target as it travels, for a number of outputs."""
        raise NotImplementedError

    def draw(self, random: np.random.Generator, shape: tuple[int, ...], outputs: int) -> np.ndarray:
        """Draw random targets of a shape: (rows, *shape of one target)."""
        raise NotImplementedError

    def is_wrong(self, values: np.ndarray, outputs: int) -> np.ndarray:
        """Return which numbers cannot be targets, bool in the shape of ``values``."""
        raise NotImplementedError

    def outputs_of(self, targets: np.ndarray) -> int:
        """Return the number of outputs that the targets of all samples, (n, ...), show."""
        return targets.shape[1] if targets.ndim == 2 else 1

    def counts(self, targets: Any, outputs: int) -> np.ndarray | None:
        """Return the number of samples with each class or label, (outputs,); None if undefined.

        Args:
            targets: an array, or what makes one on demand: (n,) classes or (n, labels).
            outputs: number of outputs.
        """
        return None

    # ---- predictions -----------------------------------------------------------------------------

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return probabilities of logits (..., outputs), float32; values are unchanged."""
        raise NotImplementedError

    def is_correct(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return which predictions are correct: (n,) for classes, (n, labels), or NaN for values.

        Args:
            predicted: (n, outputs) predictions.
            targets: (n, ...).
        """
        raise NotImplementedError

    def losses(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the log loss of each sample in nats, (n,); for values the squared error.

        Args:
            predicted: (n, outputs) predictions.
            targets: (n, ...).
        """
        raise NotImplementedError

    def confidence(self, predicted: np.ndarray) -> np.ndarray:
        """Return the probability of each predicted class (n,), or label (n, labels)."""
        raise NotImplementedError

    def choose(self, names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:
        """Return what is predicted for a sample, by column.

        Args:
            names: the names of the outputs.
            row: (outputs,) predictions.
        """
        return {}


class ClassTarget(TargetKind):
    """One class for each sample."""

    nouns = ("class", "classes")
    plural = "classes"
    preposition = "of"
    min_outputs = 2
    column = "labels"
    expected = "one of the {outputs} classes, 0 to {last}"
    activation = "softmax"
    default_loss = "categorical_crossentropy"
    loss_text = "the softmax cross-entropy of its logits"
    default_monitor = "val_accuracy"
    has_classes = True
    is_scalar = True
    headers: ClassVar[tuple[str, ...]] = ("class",)

    def shape(self, outputs: int, size: tuple[int, int] | None) -> tuple[int, ...]:  # noqa: D102
        return ()

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return np.dtype(np.int64)

    def draw(  # noqa: D102
        self, random: np.random.Generator, shape: tuple[int, ...], outputs: int
    ) -> np.ndarray:
        return random.integers(0, outputs, shape)

    def is_wrong(self, values: np.ndarray, outputs: int) -> np.ndarray:  # noqa: D102
        wrong: np.ndarray = (values != np.floor(values)) | (values < 0) | (values >= outputs)
        return wrong

    def outputs_of(self, targets: np.ndarray) -> int:  # noqa: D102
        return int(targets.max(initial=0)) + 1

    def counts(self, targets: Any, outputs: int) -> np.ndarray | None:  # noqa: D102
        return np.bincount(np.asarray(targets), minlength=outputs)

    def predictions(self, outputs: np.ndarray) -> np.ndarray:  # noqa: D102
        logits = outputs.astype(np.float64)
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)

    def is_correct(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        return predicted.argmax(axis=-1) == targets

    def losses(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        of_target = predicted[np.arange(len(targets)), targets]
        return -np.log(np.clip(of_target.astype(np.float64), _MIN_PROBABILITY, 1))

    def confidence(self, predicted: np.ndarray) -> np.ndarray:  # noqa: D102
        largest: np.ndarray = predicted.max(axis=-1)
        return largest

    def choose(self, names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:  # noqa: D102
        likeliest = int(row.argmax())
        return {"class": names[likeliest], "probability": float(row[likeliest])}


class MultilabelTarget(TargetKind):
    """Any number of labels for each sample."""

    nouns = ("label", "labels")
    plural = "yes-or-no labels"
    expected = "0 or 1 for each label"
    activation = "sigmoid"
    default_loss = "binary_crossentropy"
    loss_text = "the sigmoid cross-entropy of its logits"
    has_label_sets = True
    headers = ("labels",)

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return np.dtype(np.uint8)

    def draw(  # noqa: D102
        self, random: np.random.Generator, shape: tuple[int, ...], outputs: int
    ) -> np.ndarray:
        return random.integers(0, 2, shape)

    def is_wrong(self, values: np.ndarray, outputs: int) -> np.ndarray:  # noqa: D102
        wrong: np.ndarray = (values != 0) & (values != 1)
        return wrong

    def counts(self, targets: Any, outputs: int) -> np.ndarray | None:  # noqa: D102
        count: np.ndarray = np.asarray(targets).sum(axis=0, dtype=np.int64)
        return count

    def predictions(self, outputs: np.ndarray) -> np.ndarray:  # noqa: D102
        # The logistic function, without overflow.
        return (0.5 * (1 + np.tanh(outputs.astype(np.float64) / 2))).astype(np.float32)

    def is_correct(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        return (predicted > 0.5) == (targets > 0)

    def losses(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        exact = predicted.astype(np.float64)
        of_target = np.where(targets > 0, exact, 1 - exact)
        loss: np.ndarray = -np.log(np.clip(of_target, _MIN_PROBABILITY, 1)).mean(axis=1)
        return loss

    def confidence(self, predicted: np.ndarray) -> np.ndarray:  # noqa: D102
        return np.maximum(predicted, 1 - predicted)

    def choose(self, names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:  # noqa: D102
        return {"labels": [name for name, share in zip(names, row, strict=True) if share > 0.5]}


class ValueTarget(TargetKind):
    """One or several numbers for each sample."""

    nouns = ("value", "values")
    plural = "values"
    preposition = "each with"
    expected = "finite numbers, also in float32"
    activation = "linear"
    default_loss = "mean_squared_error"
    loss_text = "the mean squared error of its values"
    is_numeric = True

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return np.dtype(np.float32)

    def draw(  # noqa: D102
        self, random: np.random.Generator, shape: tuple[int, ...], outputs: int
    ) -> np.ndarray:
        return random.random(shape, np.float32)

    def is_wrong(self, values: np.ndarray, outputs: int) -> np.ndarray:  # noqa: D102
        with np.errstate(over="ignore"):  # numbers beyond float32
            return ~np.isfinite(values.astype(np.float32))

    def predictions(self, outputs: np.ndarray) -> np.ndarray:  # noqa: D102
        return outputs.astype(np.float32)

    def is_correct(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        return np.full(len(targets), np.nan)

    def losses(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        loss: np.ndarray = np.square(predicted.astype(np.float64) - targets).mean(axis=1)
        return loss


class MaskTarget(ClassTarget):
    """A class for each pixel."""

    nouns = ("class a pixel", "classes a pixel")
    plural = "masks"
    preposition = "with"
    column = "targets"
    loss_text = "the softmax cross-entropy of each pixel's logits"
    default_monitor = "val_loss"
    is_scalar = False
    is_of_pixels = True
    headers = ()

    def shape(self, outputs: int, size: tuple[int, int] | None) -> tuple[int, ...]:  # noqa: D102
        if size is None:
            raise ValueError("the size of masks is not known before samples are probed")
        return size

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return np.dtype(np.uint8 if outputs < 256 else np.int32)

    def counts(self, targets: Any, outputs: int) -> np.ndarray | None:  # noqa: D102
        return None


class NoTarget(TargetKind):
    """No target: a step of the user learns from the inputs alone."""

    nouns = ("target", "targets")
    plural = "left out"
    min_outputs = 0
    expected = "0"
    activation = "linear"
    default_loss = ""
    loss_text = "the loss of its step"
    is_scalar = True
    is_numeric = True
    exists = False

    def shape(self, outputs: int, size: tuple[int, int] | None) -> tuple[int, ...]:  # noqa: D102
        return ()

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return np.dtype(np.int64)

    def draw(  # noqa: D102
        self, random: np.random.Generator, shape: tuple[int, ...], outputs: int
    ) -> np.ndarray:
        return np.zeros(shape, np.int64)

    def is_wrong(self, values: np.ndarray, outputs: int) -> np.ndarray:  # noqa: D102
        wrong: np.ndarray = values != 0
        return wrong

    def outputs_of(self, targets: np.ndarray) -> int:  # noqa: D102
        return 0

    def predictions(self, outputs: np.ndarray) -> np.ndarray:  # noqa: D102
        return outputs.astype(np.float32)


UNDECIDED = TargetKind()

# The word of a kind -> its class; in the order in which messages list them.
KINDS: dict[str, TargetKind] = dict(
    zip(
        get_args(Kind),
        (ClassTarget(), MultilabelTarget(), ValueTarget(), MaskTarget(), NoTarget()),
        strict=True,
    )
)
