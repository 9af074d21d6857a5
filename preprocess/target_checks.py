"""Check the targets, labels and weights of a source, on rank 0 before other ranks start.

A user's source may return anything. Errors name the first wrong sample. Masks are files, or made on
demand, so each is checked when it is read (:func:`preprocess.target.read_mask`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import ClassSource, Source, and_more, format_exception
from preprocess.target import TargetSpec
from preprocess.target_kinds import KINDS

_BLOCK = 2**16  # samples checked together; targets may exceed the memory


def checked_target(source: Source, origin: str) -> TargetSpec | None:
    """Return the target spec of a source after checking all targets; None for plain classes.

    Args:
        source: may be a user's.
        origin: the origin of the source, for messages.

    Raises:
        InputError: it is not a :class:`TargetSpec`; targets have the wrong shape or type; a label
            is not 0 or 1, a value not finite, or a weight negative.
    """
    check_weights(source, origin)
    target = getattr(source, "target", None)
    if target is None:
        return None
    if not isinstance(target, TargetSpec):
        raise InputError(
            f"{origin}: its target is {type(target).__name__}; it should be a "
            f"preprocess.target.TargetSpec, of the kind {', '.join(KINDS)}"
        )
    if target.semantics.is_of_pixels:
        if not callable(getattr(source, "read_target", None)):
            raise InputError(
                f"{origin}: its targets are masks, so it should have read_target(index)"
            )
        return target
    _check_targets(source, target, origin)
    return target


def _check_targets(source: Source, target: TargetSpec, origin: str) -> None:
    targets = _array(source, "targets", origin)
    count = len(source)
    shape = target.shape
    allowed: list[tuple[int, ...]] = [(count, *shape)]
    if shape == (1,):
        allowed.append((count,))
    if targets.shape not in allowed or targets.dtype.kind not in "iufb":
        raise InputError(
            f"{origin}: its targets are an array of shape {targets.shape} of {targets.dtype} for "
            f"{pluralize(count, 'sample')}; it should be numbers of shape {allowed[0]}: {target}"
        )
    _check_each(
        source,
        targets,
        partial(target.semantics.is_wrong, outputs=target.outputs),
        origin,
        "the target",
        target.semantics.expected.format(outputs=target.outputs, last=target.outputs - 1),
    )


def check_weights(source: Source, origin: str) -> None:
    """Check the weights of a source's samples, if it has some.

    Args:
        source: may be a user's.
        origin: the origin of the source, for messages.

    Raises:
        InputError: they are not one number from 0 for each sample, or all are 0.
    """
    if getattr(source, "weights", None) is None:
        return
    weights = _array(source, "weights", origin)
    if weights.shape != (len(source),) or weights.dtype.kind not in "iufb":
        raise InputError(
            f"{origin}: its weights are an array of shape {weights.shape} of {weights.dtype}; it "
            f"should be {pluralize(len(source), 'number')} from 0, one for each sample"
        )
    _check_each(
        source,
        weights,
        lambda values: ~(np.isfinite(values) & (values >= 0)),
        origin,
        "the weight",
        "a number from 0",
    )
    if len(weights) and not weights.any():
        raise InputError(f"{origin}: all its weights are 0, so nothing would be learned")


def _array(source: Source, name: str, origin: str) -> np.ndarray:
    try:
        return np.asanyarray(getattr(source, name))
    except Exception as error:  # the user's class may hold anything
        raise InputError(
            f"{origin}: its {name} are not an array of numbers: {format_exception(error)}"
        ) from error


def _check_each(
    source: Source,
    values: np.ndarray,
    is_wrong: Callable[[np.ndarray], Any],
    origin: str,
    role: str,
    expected: str,
) -> None:
    """Refuse values for which ``is_wrong`` holds; name the first sample and count the others."""
    first = -1
    count = 0
    for begin in range(0, len(values), _BLOCK):
        wrong = is_wrong(np.asarray(values[begin : begin + _BLOCK])).reshape(
            len(values[begin : begin + _BLOCK]), -1
        )
        rows = np.flatnonzero(wrong.any(axis=1))
        if len(rows) and first < 0:
            first = begin + int(rows[0])
        count += len(rows)
    if count:
        text = " ".join(f"{value:g}" for value in np.ravel(values[first]).tolist()[:8])
        if count > 1:
            text += f" (and {count - 1} more)"
        raise InputError(
            f"{origin}: {source.name(first)} has {role} {text}; it should be {expected}"
        )


# ---- labels -----------------------------------------------------------------------------------


def checked_labels(source: ClassSource, origin: str) -> np.ndarray:
    """Return the labels of a source after checking that each is one of its classes.

    A list of integers is as good as an array. Nothing is rounded: fractions are targets of another
    kind.

    Args:
        source: has at least one class.
        origin: the origin of the source, for messages.

    Returns:
        (n,) integers, 0 <= label < len(source.classes); the source's own array if it has one.

    Raises:
        InputError: the labels have the wrong shape or type, or one is not a class; the message
            names the first such sample.
    """
    try:
        labels = np.asarray(source.labels)
        count = len(source)
    except Exception as error:  # the user's class may hold anything
        raise InputError(
            f"{origin}: its labels are not one number for each sample: {format_exception(error)}"
        ) from error
    if labels.shape != (count,):
        advice = ""
        if labels.shape == (count, 1):
            advice = "; use labels[:, 0]"
        elif labels.ndim == 2:
            advice = "; use labels.argmax(axis=1) for one-hot rows"
        raise InputError(
            f"{origin}: its labels are an array of shape {labels.shape} for "
            f"{pluralize(count, 'sample')}; {_expected_labels(source)}{advice}"
        )
    if len(labels) and labels.dtype.kind not in "iub":
        # The first label with a fraction is the best example.
        if labels.dtype.kind == "f":
            index = int(np.argmax(labels != np.floor(labels)))
        else:
            index = 0
        raise InputError(
            f"{origin}: {source.name(index)} has the label {labels[index]}, of type "
            f"{labels.dtype}; {_expected_labels(source)}"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= len(source.classes)))
    if len(outside):
        raise InputError(
            f"{origin}: {source.name(int(outside[0]))} has the label "
            f"{labels[outside[0]]}{and_more(outside)}, not one of the {len(source.classes)} "
            f"classes; {_expected_labels(source)}"
        )
    if labels.dtype.kind == "b" or not len(labels):
        return labels.astype(np.int64)
    return labels


def _expected_labels(source: ClassSource) -> str:
    return (
        f"labels should be {pluralize(len(source), 'integer')} from 0 to {len(source.classes) - 1}"
        ", one class for each sample"
    )
