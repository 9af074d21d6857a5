"""Infer what an array of targets means: classes, labels, values or masks.

A source knows dtype and shape; if these are ambiguous, ``data.target`` of the spec decides:

=========================== ======================================================================
(n,) text or integers        ``class``: each distinct one is a class, ascending
(n,) floats                  ``value``; if all are 0 or 1, ambiguous: ``class`` or ``value``
(n, k) floats                ``value``, k of them; if all are 0 or 1, ambiguous, as below
(n, k) zeros and ones        ``multilabel``; if each row has a single 1, ambiguous: maybe ``class``
(n, k) other integers        only as ``value``, if the spec says so
(n, height, width) integers ``mask``
=========================== ======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from launch.errors import InputError, pluralize, printable
from preprocess.base import RandomAccess, and_more, flatten_rows, normalize_name
from preprocess.record_target import RecordTarget
from preprocess.sources.masks import Masks
from preprocess.target import TargetSpec, TargetWish
from preprocess.target_kinds import KINDS, Kind, TargetKind

_MAX_GUESSED_CLASSES = 20  # distinct integers that may be classes, however few samples there are


@dataclass(frozen=True)
class Targets:
    """The parsed targets of a source.

    Attributes:
        kind: the kind of the targets.
        values: (n,) int64 classes; (n, labels) or (n, values) unchecked numbers.
        names: the names of the classes, labels or values; for labels and values they may be
            missing.
    """

    kind: Kind
    values: np.ndarray
    names: tuple[str, ...] = ()

    @property
    def semantics(self) -> TargetKind:
        """What the kind means."""
        return KINDS[self.kind]

    @classmethod
    def missing(cls, count: int) -> Targets:
        """Return the targets of samples that have none."""
        return cls("none", np.zeros(count, np.int64))

    def spec(self) -> TargetSpec:
        """Return the spec of the targets."""
        try:
            return TargetSpec(
                self.kind,
                len(self.names) if self.semantics.is_scalar else self.values.shape[1],
                self.names,
            )
        except ValueError as error:
            raise InputError(str(error)) from error

    def select(self, rows: np.ndarray) -> Targets:
        """Return the targets of the samples ``rows``, (m,) integers."""
        return replace(self, values=self.values[rows])


def parse_targets(
    values: np.ndarray,
    request: TargetWish | None,
    origin: str,
    name: Callable[[int], str],
    names: tuple[str, ...] = (),
) -> Targets:
    """Parse an array of targets other than masks; see the module.

    Args:
        values: (n, ...) as they are stored.
        request: the ``data.target``; None to infer the kind.
        origin: the origin of the array, for messages.
        name: returns the name of a sample, for messages.
        names: the names of labels or values, if known.

    Raises:
        InputError: they do not fit the request, or are ambiguous without one.
    """
    kind = guess_kind(values, origin) if request is None else request.kind
    semantics = KINDS[kind]
    if values.ndim == 2 and values.shape[1] == 1 and not semantics.has_label_sets:
        values = values[:, 0]
    if request is not None and request.names and (not names or set(names) != set(request.names)):
        names = request.names
    outputs = 0
    if request is not None:
        outputs = len(request.names) or request.outputs or 0
    if semantics.is_scalar and values.ndim == 1 and values.dtype.kind == "f":
        values = _as_integers(values, origin, name)
    if semantics.is_scalar and outputs and values.ndim == 1:
        targets = _classes_of_names(values, request, origin, name)
    else:
        targets = {"class": _classes, "multilabel": _labels, "value": _values}[kind](
            values, origin, name, names
        )
    is_open = request is not None and not request.names and values.dtype.kind in "USO"
    if request is not None and outputs and not (is_open and len(targets.names) < outputs):
        request.check(targets.spec())  # a validation split may lack a class
    return targets


def encode_label_sets(
    sets: Sequence[Set[object]],
    request: TargetWish | None,
    origin: str,
    name: Callable[[int], str],
) -> Targets:
    """Encode the labels of each sample, given as sets, as zeros and ones.

    Labels are in ascending order. Names in ``request`` keep a column for labels that no sample has;
    numbers are then indices into these names.

    Args:
        sets: n sets of texts or numbers.
        request: the ``data.target``; None without one.
        origin: the origin of the data, for messages.
        name: returns the name of a sample, for messages.

    Returns:
        Targets of (n, labels) uint8.

    Raises:
        InputError: a label is not named in ``request``.
    """
    distinct = set().union(*sets)
    if len(set(map(_normalize_label, distinct))) < len(distinct):
        sets = [set(map(_normalize_label, members)) for members in sets]
    names = sorted(set().union(*sets))  # type: ignore[type-var]
    labels = tuple(printable(str(label)) for label in names)
    columns = dict(zip(names, range(len(names)), strict=True))
    if request is not None and (request.names or request.outputs):
        labels, columns = _places(names, request)
        for row, members in enumerate(sets):
            unknown = sorted(map(str, members - columns.keys()))
            if unknown:
                raise InputError(
                    f"{origin}: {name(row)} has the label {unknown[0]!r}, which is not among "
                    f"{_format_names(labels)} (data.target)"
                )
    values = np.zeros((len(sets), len(labels)), np.uint8)
    for row, members in enumerate(sets):
        values[row, [columns[label] for label in members]] = 1
    return Targets("multilabel", values, labels)


def with_names(targets: Targets, request: TargetWish | None, origin: str) -> Targets:
    """Check the names of a file's classes or labels against those of the request.

    Args:
        targets: the targets of the file.
        request: the ``data.target``; None without one.
        origin: the origin of the data, for messages.

    Returns:
        The targets, with a place for each requested name.

    Raises:
        InputError: the file has a name that is not requested.
    """
    if request is None or not request.names or set(targets.names) == set(request.names):
        return targets
    unknown = [name for name in targets.names if name not in request.names]
    if unknown:
        raise InputError(
            f"{origin}: {unknown[0]!r}{and_more(unknown)} is not among "
            f"{_format_names(request.names)} (data.target: names); the names must be those of the "
            "data"
        )
    return relabel(targets, tuple(sorted(request.names)))


def relabel(targets: Targets, names: tuple[str, ...]) -> Targets:
    """Return the same classes or labels, indexed by ``names``, which contain all of theirs."""
    places = np.array([names.index(name) for name in targets.names], np.int64)
    if targets.semantics.is_scalar:
        return Targets("class", places[targets.values], names)
    values = np.zeros((len(targets.values), len(names)), targets.values.dtype)
    values[:, places] = targets.values
    return replace(targets, values=values, names=names)


def _classes_of_names(
    values: np.ndarray, request: TargetWish | None, origin: str, name: Callable[[int], str]
) -> Targets:
    """Parse classes whose names, or number, the spec gives."""
    assert request is not None
    if values.dtype.kind in "iub" and not _are_numbers(request.names):
        names = request.names or tuple(map(str, range(request.outputs or 0)))
        return class_targets(values, names, origin, name)
    targets = _classes(values, origin, name, ())
    if not request.names:
        return targets
    for row, label in enumerate(targets.values.tolist()):
        if targets.names[label] not in request.names:
            raise InputError(
                f"{origin}: {name(row)} has the class {targets.names[label]!r}, which is not "
                f"among {_format_names(request.names)} (data.target: names)"
            )
    if len(targets.names) == len(request.names):
        return targets
    if _are_numbers(request.names):
        ascending = sorted(request.names, key=int)
    else:
        ascending = sorted(request.names)
    return relabel(targets, tuple(ascending))


def _places(labels: Sequence[object], request: TargetWish) -> tuple[tuple[str, ...], dict]:
    """Return the names of all labels, and the column of each: by name for text, else by index."""
    is_text = any(isinstance(label, str) for label in labels)
    if request.names and (is_text or _are_numbers(request.names)):
        names = request.names
        keys: Sequence[object]
        if is_text:
            names = tuple(sorted(names))
            keys = names
        else:
            keys = list(map(int, names))
        return names, dict(zip(keys, range(len(names)), strict=True))
    if is_text:  # their number is checked later
        return tuple(printable(str(label)) for label in labels), dict(
            zip(labels, range(len(labels)), strict=True)
        )
    count = len(request.names) or request.outputs or 0
    return request.names or tuple(map(str, range(count))), dict(
        zip(range(count), range(count), strict=True)
    )


def _are_numbers(names: Sequence[str]) -> bool:
    return bool(names) and all(name.lstrip("-").isdecimal() for name in names)


def _format_names(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:10]))}{' ...' if len(names) > 10 else ''}"


def _normalize_label(label: object) -> object:
    if isinstance(label, str):
        return normalize_name(label)
    return label


def flatten_column(numbers: np.ndarray) -> np.ndarray:
    """Return numbers (n,) or (n, 1) as (n,)."""
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        return numbers[:, 0]
    return numbers


def guess_kind(values: np.ndarray, origin: str) -> Kind:
    """Infer the kind of targets; see the module.

    Raises:
        InputError: it is ambiguous.
    """
    type_ = values.dtype.kind
    is_whole = type_ in "iub"
    is_column = values.ndim == 1 or values.shape[1:] == (1,)
    if is_column and (is_whole or type_ in "USO"):
        if type_ in "iu":
            _check_few(values, origin)
        return "class"
    if values.ndim in (1, 2) and type_ == "f":
        _check_not_flags(values, origin)
        return "value"
    if is_whole and (values.ndim == 3 or (values.ndim == 4 and values.shape[3] == 1)):
        return "mask"
    if values.ndim != 2 or not is_whole:
        raise InputError(
            f"{origin}: targets are {_describe(values)}; they should be (n,) classes, (n, labels) "
            "zeros and ones, (n,) or (n, values) floats, or (n, height, width) integers"
        )
    if not np.isin(values, (0, 1)).all():
        raise InputError(
            f"{origin}: targets are {_describe(values)}, and not all of them 0 or 1; set "
            f"data.target: value to predict numbers"
        )
    if len(values) and (values.sum(axis=1) == 1).all():
        raise InputError(
            f"{origin}: each row of these targets has a single 1, so they may be classes or "
            "labels; set data.target: class or data.target: multilabel"
        )
    return "multilabel"


def _check_not_flags(values: np.ndarray, origin: str) -> None:
    """Refuse floats that are all 0 or 1 unless the spec gives their kind."""
    if values.size and np.isin(values, (0, 1)).all() and len(np.unique(values)) == 2:
        columns = 1 if values.ndim == 1 else values.shape[1]
        if columns == 1 or (values.sum(axis=1) == 1).all():
            meaning = "classes"
            kind = "class"
        else:
            meaning = "labels"
            kind = "multilabel"
        raise InputError(
            f"{origin}: these targets are floats and all of them 0 or 1, so they may be "
            f"{meaning} or values; set data.target: {kind} or data.target: value"
        )


def _check_few(values: np.ndarray, origin: str) -> None:
    """Refuse integers with too many distinct values for classes unless the spec says so."""
    distinct = len(np.unique(values))
    if distinct > max(_MAX_GUESSED_CLASSES, len(values) // 2):
        raise InputError(
            f"{origin}: there are {distinct} different integers in "
            f"{pluralize(len(values), 'target')}, so they may be classes or values; set "
            "data.target: class or data.target: value"
        )


def class_targets(
    values: np.ndarray, names: tuple[str, ...], origin: str, name: Callable[[int], str]
) -> Targets:
    """Return targets of classes numbered from 0, after checking the numbers (n,)."""
    wrong = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(wrong):
        raise InputError(
            f"{origin}: {name(int(wrong[0]))} has the target {values[wrong[0]]}{and_more(wrong)}, "
            f"not one of the {len(names)} classes, 0 to {len(names) - 1}"
        )
    return Targets("class", values.astype(np.int64), names)


def _classes(
    values: np.ndarray, origin: str, name: Callable[[int], str], names: tuple[str, ...]
) -> Targets:
    if values.ndim == 2 and values.dtype.kind in "iubf":
        is_one_hot = np.isin(values, (0, 1)).all(axis=1) & (values.sum(axis=1) == 1)
        wrong = np.flatnonzero(~is_one_hot)
        if len(wrong):
            raise InputError(
                f"{origin}: {name(int(wrong[0]))} has the target "
                f"{values[wrong[0]].tolist()}{and_more(wrong)}, not a single 1 among zeros; a "
                "class should be a number, a text, or such a row"
            )
        columns = names or tuple(map(str, range(values.shape[1])))
        return Targets("class", values.argmax(axis=1).astype(np.int64), columns)
    if values.ndim != 1 or values.dtype.kind not in "iubfUSO":
        raise InputError(
            f"{origin}: targets are {_describe(values)}; classes should be (n,) integers or text"
        )
    if values.dtype.kind == "f":
        values = _as_integers(values, origin, name)
    if values.dtype.kind in "SO":
        values = np.array(
            [
                text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text)
                for text in values
            ]
        )
    if values.dtype.kind == "U":
        if len(values):
            empty = np.flatnonzero(np.char.strip(values) == "")
        else:
            empty = np.empty(0, int)
        if len(empty):
            raise InputError(
                f"{origin}: {name(int(empty[0]))} has no class{and_more(empty)}: an empty text"
            )
    distinct, labels = np.unique(values, return_inverse=True)
    if values.dtype.kind == "U" and len(set(map(normalize_name, distinct))) < len(distinct):
        values = np.array([normalize_name(text) for text in values])
        distinct, labels = np.unique(values, return_inverse=True)
    classes = tuple(printable(str(name)) for name in distinct)
    return Targets("class", labels.astype(np.int64).reshape(len(values)), classes)


def _as_integers(values: np.ndarray, origin: str, name: Callable[[int], str]) -> np.ndarray:
    """Convert floats (n,) that are integers to int64; refuse fractions."""
    wrong = np.flatnonzero(~(np.isfinite(values) & (values == np.floor(values))))
    if len(wrong):
        raise InputError(
            f"{origin}: {name(int(wrong[0]))} has the target {values[wrong[0]]}{and_more(wrong)}, "
            "which is not a class: nothing is rounded; set data.target: value to predict numbers"
        )
    return values.astype(np.int64)


def _labels(
    values: np.ndarray, origin: str, name: Callable[[int], str], names: tuple[str, ...]
) -> Targets:
    if values.ndim != 2 or values.dtype.kind not in "iubf":
        raise InputError(
            f"{origin}: targets are {_describe(values)}; labels should be (n, labels) zeros and "
            f"ones"
        )
    return Targets("multilabel", values, names)


def _values(
    values: np.ndarray, origin: str, name: Callable[[int], str], names: tuple[str, ...]
) -> Targets:
    if values.ndim not in (1, 2) or values.dtype.kind not in "iubf":
        raise InputError(
            f"{origin}: targets are {_describe(values)}; values should be (n,) or (n, values) "
            f"numbers"
        )
    return Targets("value", flatten_rows(values), names)


def _describe(values: np.ndarray) -> str:
    """Format the shape and dtype of an array."""
    kind = str(values.dtype)
    if values.dtype.kind in "US":
        kind = "text"
    return f"an array {values.shape} of {kind}"


AnyTargets: TypeAlias = Targets | Masks | Mapping[str, Targets | Masks]


class TargetedSource(RandomAccess):
    """Base of the built-in sources: a source of any kind of targets.

    Args:
        targets: the targets of its samples; of several, by name. Masks are read one at a time
            instead, through ``masks``.
        weights: (n,) numbers; None if all samples weigh the same.
        count: number of samples.

    Attributes:
        classes: the names of classes, labels or values, if they have some.
        places: where the samples lie.
    """

    places: tuple[str, ...] = ()

    def __init__(self, targets: AnyTargets, weights: np.ndarray | None, count: int) -> None:
        self._count = count
        self.masks: Masks | None = None
        if isinstance(targets, Mapping):
            self._take_several(targets)
        elif not isinstance(targets, Targets):
            self.masks = targets
            self.target = targets.spec
            self.classes = targets.spec.names
        elif targets.semantics.has_classes:
            self.labels = targets.values
            self.classes = targets.names
        else:
            self.target = targets.spec()
            self.targets: Any = targets.values
            self.classes = targets.names
        if weights is not None:
            self.weights = weights

    def _take_several(self, targets: Mapping[str, Targets | Masks]) -> None:
        specs = {}
        self.targets = {}
        for name, target in targets.items():
            if isinstance(target, Targets):
                specs[name] = target.spec()
                self.targets[name] = target.values
                continue
            if self.masks is not None:
                raise InputError(
                    f"targets: {name}: a sample may have one mask among its targets; join masks "
                    "into one, with a class for each combination"
                )
            specs[name] = target.spec
            self.masks = target
        self.target = RecordTarget.of(specs)
        self.classes = ()

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, object]:
        """Omit cached properties, such as open files, which other ranks open themselves."""
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def read(self, index: int) -> Any:
        """Read the input of a sample; see :class:`~preprocess.base.Source`."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return a sample's name; see :class:`~preprocess.base.Source`."""
        raise NotImplementedError

    def read_target(self, index: int) -> np.ndarray:
        """Read the mask of a sample, (height, width) integers."""
        if self.masks is None:
            raise TypeError("only masks are read")
        return self.masks.read(index)
