"""Views of sources: subsets of their samples, other labels, and requested targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import ClassSource, Source, and_more, normalize_name, row_numbers
from preprocess.padding import given_lengths
from preprocess.record_target import (
    RecordTarget,
    check_names_of,
    request_of,
    single_request,
)
from preprocess.target import (
    Request,
    TargetSpec,
    TargetWish,
    find_targets,
    plain_targets,
    target_of,
)


class View:
    """A subset of a source's samples, in the source's order, with their targets and weights.

    Args:
        source: the full source.
        indices: (n,) integers, ascending.
    """

    strata: np.ndarray

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source = source
        self.indices = indices
        self.places: tuple[str, ...] = getattr(source, "places", ())
        self.input_names: tuple[str, ...] = getattr(source, "input_names", ())
        self.row_numbers = row_numbers(source)[indices]
        self.input_lengths = {
            name: lengths[indices] for name, lengths in given_lengths(source).items()
        }
        self._positions = np.full(len(source), -1)
        self._positions[indices] = np.arange(len(indices))
        for name in ("groups", "strata", "weights"):
            values = getattr(source, name, None)
            if values is not None:
                setattr(self, name, np.asarray(values)[indices])
        self._take_targets(source)

    def _take_targets(self, source: Source) -> None:
        target: TargetSpec | None = getattr(source, "target", None)
        if target is None:
            classified = cast(ClassSource, source)
            self.labels = np.asarray(classified.labels)[self.indices]
            self.classes = classified.classes
            return
        self.target = target
        if target.parts:
            self.targets: Any = {
                name: _LazyTargets(values, self.indices)
                for name, values in plain_targets(source).items()
            }
        elif not target.semantics.is_of_pixels:
            self.targets = _LazyTargets(plain_targets(source), self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> bytes | np.ndarray:
        """Read an input; see :class:`~preprocess.base.Source`."""
        return self.source.read(int(self.indices[index]))

    def read_target(self, index: int) -> np.ndarray:
        """Read a mask, (height, width) integers; see :mod:`preprocess.target`."""
        return self.source.read_target(int(self.indices[index]))  # type: ignore[attr-defined]

    def name(self, index: int) -> str:
        """Return a sample's name; see :class:`~preprocess.base.Source`."""
        return self.source.name(int(self.indices[index]))

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return the source's order without the samples outside of the view, (n,) int64."""
        positions = self._positions[self.source.order(seed, epoch)]
        return positions[positions >= 0]


class Measured(View):
    """All samples of a source, whose lengths are known.

    Args:
        source: the samples.
        lengths: the names of inputs -> (n,) integers, the length of each sample.
    """

    def __init__(self, source: Source, lengths: Mapping[str, np.ndarray]) -> None:
        super().__init__(source, np.arange(len(source)))
        self.input_lengths = dict(lengths)


class _LazyTargets:
    """The targets of a view, looked up on demand because arrays may be memory-mapped.

    Args:
        targets: of all samples of the source, (n, ...).
        indices: the samples of the view.
    """

    def __init__(self, targets: Any, indices: np.ndarray) -> None:
        self._targets = targets
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._targets[self._indices[index]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


class Relabeled(View):
    """All samples of a source of classes, with other labels.

    Args:
        source: the samples.
        labels: (n,) integers, of all samples.
        classes: the names of the labels.
    """

    def __init__(self, source: Source, labels: np.ndarray, classes: tuple[str, ...]) -> None:
        super().__init__(source, np.arange(len(source)))
        self.labels = labels
        self.classes = classes


class WithTargets(View):
    """All samples of a source, with targets of the kind in ``data.target``.

    Args:
        source: has ``targets`` or ``labels``, or a method ``read_target(index)``.
        target: the target of its samples.
    """

    def __init__(self, source: Source, target: TargetSpec) -> None:
        self.target = target
        self.masks = getattr(source, "masks", None)
        super().__init__(source, np.arange(len(source)))

    def _take_targets(self, source: Source) -> None:
        """Do nothing: targets are looked up in the source."""

    @property
    def targets(self) -> Any:
        """The source's array, (n, ...)."""
        return find_targets(self.source)


class WithoutTargets(View):
    """All samples of a source, whose targets, if it has some, are not used."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, np.arange(len(source)))

    def _take_targets(self, source: Source) -> None:
        self.target = TargetSpec("none", 0)
        self.targets = np.zeros(len(source), np.int64)


class WithLabels(View):
    """All samples of a multilabel source, with columns for a longer list of labels.

    Args:
        source: the samples.
        target: has all labels of the source, and more.
    """

    def __init__(self, source: Source, target: TargetSpec) -> None:
        super().__init__(source, np.arange(len(source)))
        names = target_of(source).names
        values = np.asarray(source.targets)  # type: ignore[attr-defined]
        self.targets = np.zeros((len(values), target.outputs), values.dtype)
        self.targets[:, [target.names.index(name) for name in names]] = values
        self.target = replace(target, weighted=False)


# ---- several targets ----------------------------------------------------------------------------


class TargetPart(View):
    """All samples of a source with one of its several targets.

    Args:
        source: the samples.
        target: the target.
        values: the targets of all samples; None for masks, which are read.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    target: TargetSpec

    def __init__(self, source: Source, target: TargetSpec, values: Any) -> None:
        self.masks = None
        if target.semantics.is_scalar and target.semantics.has_classes:
            self.labels = np.asarray(values)
            self.classes = target.names or tuple(map(str, range(target.outputs)))
        else:
            self.target = target
            self.masks = getattr(source, "masks", None)
            if values is not None:
                self.targets: Any = values
        super().__init__(source, np.arange(len(source)))

    def _take_targets(self, source: Source) -> None:
        """Do nothing: the constructor has them."""


class MaskPart(TargetPart):
    """All samples of a user's source with the mask among its several targets.

    Args:
        source: its ``read_target(index)`` returns the mask, or a mapping that has it by name.
        name: the name of the mask.
        target: the target.
    """

    def __init__(self, source: Source, name: str, target: TargetSpec) -> None:
        self._name = name
        super().__init__(source, target, None)

    def read_target(self, index: int) -> np.ndarray:
        """Read the mask of a sample; see :class:`View`."""
        content: Any = super().read_target(index)
        return content[self._name] if isinstance(content, Mapping) else content


class WithParts(View):
    """All samples of a source, with several targets that sources of each of them have.

    Args:
        source: the samples.
        parts: the samples with each target alone.
    """

    def __init__(self, source: Source, parts: Mapping[str, Source]) -> None:
        self.target = RecordTarget.of({name: target_of(part) for name, part in parts.items()})
        values = {name: plain_targets(part) for name, part in parts.items()}
        self.targets = {name: array for name, array in values.items() if array is not None}
        self._masked = next((parts[name] for name in parts if values[name] is None), None)
        self.masks = getattr(self._masked, "masks", None)
        super().__init__(source, np.arange(len(source)))

    def _take_targets(self, source: Source) -> None:
        """Do nothing: the constructor has them."""

    def read_target(self, index: int) -> np.ndarray:
        """Read the mask of a sample; see :class:`View`."""
        return self._masked.read_target(index)  # type: ignore[union-attr]


def split_targets(source: Source) -> dict[str, Source]:
    """Return a source with each of its several targets alone, by name."""
    target = target_of(source)
    values = plain_targets(source)
    return {name: TargetPart(source, part, values.get(name)) for name, part in target.parts.items()}


def join_targets(
    source: Source, before: Mapping[str, Source], after: Mapping[str, Source]
) -> Source:
    """Return a source with changed targets, or as it is if none has changed.

    Args:
        source: the samples.
        before: what :func:`split_targets` returned.
        after: the same with other targets.
    """
    if list(before) == list(after) and all(after[name] is before[name] for name in after):
        return source
    return WithParts(source, after)


def with_requested_targets(source: Source, request: Request) -> Source:
    """Return a source with targets of the requested kind, or kinds by name.

    Raises:
        InputError: its own targets are of another kind, or it has none of that kind.
    """
    own_target: TargetSpec | None = getattr(source, "target", None)
    if own_target is not None and own_target.parts and not _is_without(request):
        check_names_of(request, tuple(own_target.parts), "the source")
        parts = split_targets(source)
        requested = {name: request_of(request, name) for name in parts}
        return join_targets(
            source,
            parts,
            {
                name: part if single is None else with_requested_targets(part, single)
                for (name, part), single in zip(parts.items(), requested.values(), strict=True)
            },
        )
    single = single_request(request, "the source")
    if single is None:
        return source
    return _with_requested_target(source, single)


def _is_without(request: Request) -> bool:
    return isinstance(request, TargetWish) and not request.semantics.exists


def _with_requested_target(source: Source, request: TargetWish) -> Source:
    own_target: TargetSpec | None = getattr(source, "target", None)
    if not request.semantics.exists:
        if own_target is not None and not own_target.semantics.exists:
            return source
        return WithoutTargets(source)
    if own_target is not None:
        request.check(own_target)
        return source
    if request.semantics.is_scalar and isinstance(source, ClassSource):
        return _with_names(source, request)
    return WithTargets(source, request.spec_of(source))


def _with_names(source: ClassSource, request: TargetWish) -> Source:
    """Return a source of classes relabeled by the names in the spec.

    Raises:
        InputError: it has a class that is not among them.
    """
    classes = tuple(map(str, source.classes))
    if not request.names or set(request.names) == set(classes):
        return source
    numbers = tuple(map(str, range(len(request.names))))
    if classes == numbers:
        return Relabeled(source, source.labels, request.names)
    unknown = [name for name in classes if name not in request.names]
    if unknown:
        raise InputError(
            f"data.target: names: the source has the class {unknown[0]!r}{and_more(unknown)}, "
            f"which is not among {', '.join(request.names[:10])}; the names must be those of the "
            "data"
        )
    names = tuple(sorted(request.names))
    places = np.array([names.index(name) for name in classes], np.int64)
    return Relabeled(source, places[np.asarray(source.labels)], names)


def with_labels_of(
    source: Source, train: Source, location: str | None, split_name: str = "validation"
) -> Source:
    """Return validation or test samples with the labels of the training samples.

    Raises:
        InputError: they have other targets.
    """
    if isinstance(source, ClassSource) and isinstance(train, ClassSource):
        return _with_classes(source, train.classes, location, split_name)
    train_target = target_of(train)
    own_target = target_of(source)
    if own_target.parts and own_target.parts.keys() == train_target.parts.keys():
        parts = split_targets(source)
        of_train = split_targets(train)
        after = {
            name: with_labels_of(parts[name], of_train[name], location, f"{split_name} {name}")
            for name in of_train
        }
        return join_targets(source, parts, after)
    are_label_sets = train_target.kind == own_target.kind and own_target.semantics.has_label_sets
    if are_label_sets and set(own_target.names) < set(train_target.names):
        return WithLabels(source, train_target)
    if replace(own_target, weighted=train_target.weighted) != train_target:
        raise InputError(
            f"{location}: the {split_name} data has other targets than the training data: "
            f"{own_target.kind} ({own_target}{_format_names(own_target)}), not "
            f"{train_target.kind} ({train_target}{_format_names(train_target)})"
        )
    return source


def _with_classes(
    source: ClassSource, classes: tuple[str, ...], location: str | None, split_name: str
) -> Source:
    if source.classes == classes:
        return source
    place_of = {normalize_name(name): number for number, name in enumerate(classes)}
    unknown = sorted(name for name in source.classes if normalize_name(name) not in place_of)
    if unknown:
        raise InputError(
            f"{location}: the {split_name} data has classes that the training data lacks: "
            f"{', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}; the {len(classes)} "
            f"classes of training are {', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}"
        )
    labels = np.array([place_of[normalize_name(name)] for name in source.classes])[source.labels]
    return Relabeled(source, labels, classes)


def _format_names(target: TargetSpec) -> str:
    if target.names:
        return f": {', '.join(target.names[:5])}{' ...' if len(target.names) > 5 else ''}"
    return ""
