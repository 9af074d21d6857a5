"""Labels are classes: a source of the user's own may bring anything, which is found out before a rank waits for it.

:mod:`preprocess.target_checks` looks at targets of other kinds.
"""

from __future__ import annotations

import numpy as np

from preprocess.base import ClassSource, InputError, counted, in_one_line


def checked_labels(source: ClassSource, origin: str) -> np.ndarray:
    """The labels of a source, if each is one of its classes.

    A list of integers is as good as an array. Nothing is rounded: numbers with a fraction are targets of another kind.

    Args:
        source: has at least one class.
        origin: of the source, for messages.

    Returns:
        (len(source),) of an integer type, 0 <= label < len(source.classes); the source's own array where it has one.

    Raises:
        InputError: the labels are of another shape or type, or one is no class; names the first such sample.
    """
    try:
        labels, count = np.asarray(source.labels), len(source)
    except Exception as error:  # the user's class may hold anything
        raise InputError(f"{origin}: its labels are not one number for each sample: {in_one_line(error)}") from error
    if labels.shape != (count,):
        advice = ""
        if labels.shape == (count, 1):
            advice = "; labels[:, 0] is that"
        elif labels.ndim == 2:
            advice = "; labels.argmax(axis=1) makes that of rows with a 1 in each"
        raise InputError(f"{origin}: its labels are an array of shape {labels.shape} for {counted(count, 'sample')}; "
                         f"{_wanted(source)}{advice}")
    if len(labels) and labels.dtype.kind not in "iub":
        index = _first_with_a_fraction(labels)
        raise InputError(f"{origin}: {source.name(index)} has the label {labels[index]}, of type {labels.dtype}; "
                         f"{_wanted(source)}")
    outside = np.flatnonzero((labels < 0) | (labels >= len(source.classes)))
    if len(outside):
        more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
        raise InputError(f"{origin}: {source.name(int(outside[0]))} has the label {labels[outside[0]]}{more}, not "
                         f"one of the {len(source.classes)} classes; {_wanted(source)}")
    return labels.astype(np.int64) if labels.dtype.kind == "b" or not len(labels) else labels


def _wanted(source: ClassSource) -> str:
    return (f"labels should be {counted(len(source), 'integer')} from 0 to {len(source.classes) - 1}, one class for "
            "each sample")


def _first_with_a_fraction(labels: np.ndarray) -> int:
    """The first label that rounding would change, as the best example; the first of all where there is none."""
    if labels.dtype.kind != "f":
        return 0
    return int(np.argmax(labels != np.floor(labels)))
