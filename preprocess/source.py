"""Open a spec's ``data`` as training, validation and test sources.

A source is any object with the methods of :class:`~preprocess.base.Source`. Validation samples come
from a separate path, from the validation split of the data, or are a fraction of the training data;
test samples come from a separate path, from the test split, or are a fraction.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np

from preprocess.base import (
    ClassSource,
    DataSet,
    InputError,
    RandomAccess,
    Source,
    and_more,
    first_duplicate,
    format_exception,
    import_function,
    normalize_name,
    printable,
    row_numbers,
)
from preprocess.division import assign_folds, draw_held_out, groups_of, strata_of
from preprocess.fingerprint import (
    NOT_READ,
    Fingerprint,
    PreviousDivision,
    SampleIds,
    add_target_ids,
    identify_samples,
)
from preprocess.sources.image_folder import describe_unread
from preprocess.sources.table import columns_of
from preprocess.target import TargetSpec, TargetWish, find_targets, target_of
from preprocess.target_checks import checked_labels, checked_target
from preprocess.user_code import UserCode

__all__ = [
    "SOURCES",
    "DataSet",
    "RandomAccess",
    "Source",
    "View",
    "assign_folds",
    "open_data",
    "open_per_target",
    "split",
    "with_requested_targets",
]

# name -> module:function, which takes (path, **options) and returns training samples, validation
# samples or None, and optionally test samples or None; a path with a default may be omitted
SOURCES: dict[str, str] = {
    "image_folder": "preprocess.sources.image_folder:open_image_folder",
    "hdf5": "preprocess.sources.hdf5:open_hdf5",
    "tfrecord": "preprocess.sources.tfrecord:open_tfrecord",
    "webdataset": "preprocess.sources.webdataset:open_webdataset",
    "npz": "preprocess.sources.arrays:open_npz",
    "npy": "preprocess.sources.arrays:open_npy",
    "table": "preprocess.sources.table:open_table",
    "huggingface": "preprocess.sources.huggingface:open_huggingface",
    "builtin:digits": "preprocess.sources.digits:open_digits",
    "builtin:noise": "preprocess.sources.noise:open_noise",
}

Opened = tuple[Source, Source | None, Source | None]  # training, validation and test samples
Opener = Callable[..., Opened]


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
        self.row_numbers = row_numbers(source)[indices]
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
        if target.kind != "mask":
            self.targets: Any = _LazyTargets(source, self.indices)

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


class _LazyTargets:
    """The targets of a view, looked up on demand because arrays may be memory-mapped."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self._source = source
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._source.targets[self._indices[index]]  # type: ignore[attr-defined]

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
        target: of its samples.
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


def open_data(
    source: str,
    path: str | None,
    validation: float | str | None,
    seed: int,
    options: Mapping[str, Any] | None = None,
    test: float | str | None = None,
    target: TargetWish | None = None,
) -> DataSet:
    """Open the data of a spec.

    Args:
        source: a name in ``SOURCES``, or an import path ``module:function``. The function takes
            (path, ``**options``) and returns a :class:`~preprocess.base.Source`, or a tuple of two
            (training, validation) or three (also test).
        path: what the source reads.
        validation: the path of validation data; or, for data without a validation split, the
            fraction of each class to hold out, chosen by ``seed``; or None.
        seed: of the run.
        options: further keyword arguments of the source.
        test: the path of test data; or the fraction of each class to hold out, chosen by ``seed``,
            before validation; or None for the data's own test split, if it also has a validation
            split. If the data's own validation split lies at that path, it is test data only.
        target: the targets, if the source cannot tell. A function with a parameter ``target``
            receives it; other sources are wrapped (:class:`WithTargets`).

    Raises:
        InputError: the source, path, options, targets, validation or test data are wrong.
    """
    return open_per_target(source, path, validation, seed, options, test, (target,))[0][0]


def open_per_target(
    source: str,
    path: str | None,
    validation: float | str | None,
    seed: int,
    options: Mapping[str, Any] | None = None,
    test: float | str | None = None,
    targets: Sequence[TargetWish | None] = (None,),
    division: str | None = None,
    before: Fingerprint | None = None,
    features: Sequence[str] = (),
) -> tuple[tuple[DataSet, ...], Fingerprint]:
    """Open the data once per target, all divided as the first; see :func:`open_data`.

    Args:
        targets: one per result; None for the source's own.
        division: the settings by which samples are divided. If given, the data is fingerprinted,
            and known samples keep their side.
        before: the fingerprint of an earlier launch.
        features: the columns of a table in the order that networks have learned, wherever they are
            now.

    Returns:
        The data sets, and the fingerprint, whose folds are the earlier ones. It is empty without a
        ``division``.

    Raises:
        InputError: as for :func:`open_data`; the targets have different samples; or one side would
            be empty.
    """
    for split_name, location in (("validation", validation), ("test", test)):
        # it would return its training data again
        if source.startswith("builtin:") and isinstance(location, str):
            raise InputError(
                f"data.{split_name}: {location}: {source} has no other data; give a share, like 10%"
            )
    data_sets: list[DataSet] = []
    first: Source | None = None
    marks: dict[str, SampleIds] = {}
    previous = PreviousDivision()
    for number, target in enumerate(targets):
        opener, (train, held_out, tested) = _open_with_features(
            source, path, options or {}, target, features
        )
        if isinstance(train, ClassSource) and len(train.classes) < 2:
            raise InputError(
                f"{path or source}: only one class, {train.classes[0]!r}; at least two are needed"
            )
        if target is not None:
            target.check(target_of(train))
        if division is not None:
            marks |= _training_ids(train, path, number, target, marks)
        if first is None:
            first = train
            if division is not None and before is not None:
                previous = before.find_previous(
                    marks["train"], division, groups_of(train) is not None
                )
        else:
            train = _with_strata_of(first, train, path or source)
        data_sets.append(
            _divide(
                (train, held_out, tested),
                opener,
                path or source,
                path,
                validation,
                seed,
                test,
                previous.sides,
            )
        )
    if division is None or first is None:
        return tuple(data_sets), Fingerprint({})
    sides = np.zeros(len(first), np.int8)
    remarks = [data_sets[0].remark]
    for side, split_name, location in ((1, "validation", validation), (2, "test", test)):
        held_out_source = data_sets[0].splits().get(split_name)
        if held_out_source is None:
            continue
        rows = _rows_in(held_out_source, first)
        if rows is None:
            marks[split_name] = add_target_ids(
                _ids_of(held_out_source, location if isinstance(location, str) else path),
                held_out_source,
                targets[0],
            )
            remarks.append(_warn_of_copies(marks, split_name, held_out_source, location))
        else:
            sides[rows] = side
    data_sets[0] = replace(data_sets[0], remark="\n".join(filter(None, remarks)))
    folds = np.empty(0, np.int16) if previous.folds is None else previous.folds
    return tuple(data_sets), Fingerprint(
        marks, division, sides, folds, test if isinstance(test, str) else ""
    )


def _open_with_features(
    source: str,
    path: str | None,
    options: Mapping[str, Any],
    target: TargetWish | None,
    features: Sequence[str],
) -> tuple[Opener, Opened]:
    """Open a path; return the opener of further paths, with a table's features by name."""
    opener: Opener = partial(_open_at, source, copy.deepcopy(dict(options)), target)
    opened = opener(path)
    columns = columns_of(opened[0])
    if columns is None or columns.is_paths:
        return opener, opened
    if sorted(features) == sorted(columns.inputs):
        names = tuple(features)
    else:
        names = columns.inputs
    opener = partial(_open_at, source, {**options, "inputs": names}, target)
    return opener, opened if names == columns.inputs else opener(path)


def _training_ids(
    train: Source,
    path: str | None,
    number: int,
    target: TargetWish | None,
    marks: Mapping[str, SampleIds],
) -> dict[str, SampleIds]:
    """Return the ids of training samples before any are held out; or of further targets only."""
    if not number:
        return {"train": add_target_ids(_ids_of(train, path), train, target)}
    first = marks["train"]
    names = SampleIds(first.names, unit=first.unit, by_content=first.by_content)
    return {f"train:{number}": add_target_ids(names, train, target)}


def _ids_of(source: Source, path: str | None) -> SampleIds:
    """Return the ids of a source's samples, without their targets."""
    if isinstance(source, View):
        return _ids_of(source.source, path).select(source.indices)
    return identify_samples(source, path or "")


def _rows_in(subset: Source, source: Source) -> np.ndarray | None:
    """Return the indices of a subset's samples in a source, (n,); None if it is not a subset."""
    if subset is source:
        return np.arange(len(source))
    rows = _rows_in(subset.source, source) if isinstance(subset, View) else None
    if rows is None or not isinstance(subset, View):
        return None
    return rows[subset.indices]


def _with_strata_of(first: Source, source: Source, location: str) -> View:
    """Return a view of another target's samples that is divided as the first target's."""
    count = len(first)
    if len(source) != count or any(
        first.name(index) != source.name(index) for index in {0, count // 2, count - 1}
    ):
        raise InputError(
            f"{location}: data.target of an entry: the source has other samples, or another order, "
            f"for these targets, so they cannot be shared"
        )
    view = View(source, np.arange(count))
    strata = np.zeros(count, np.int64)
    for number, members in enumerate(strata_of(first)):
        strata[members] = number
    view.strata = strata
    return view


def _divide(
    opened: Opened,
    opener: Opener,
    source: str,
    path: str | None,
    validation: float | str | None,
    seed: int,
    test: float | str | None,
    previous: np.ndarray | None,
) -> DataSet:
    """Divide what a source returned into the splits of a spec.

    Args:
        previous: as in :class:`preprocess.fingerprint.PreviousDivision`.
    """
    train, held_out, tested = opened
    tested = None if tested is None else _with_labels_of(tested, train, source, "test")
    if isinstance(test, str) and _is_test_split_of_path(held_out, test, path):
        tested = _with_labels_of(cast(Source, held_out), train, source, "test")
        held_out = None
    elif isinstance(test, str):
        tested = _with_labels_of(opener(test)[0], train, test, "test")
        if held_out is not None and _overlap(held_out, tested):
            held_out = None
        else:
            held_out = held_out
    elif test is not None:
        train, tested = split(train, test, seed, "test", _was_on_side(previous, 2))
        if previous is None or not isinstance(train, View):
            previous = None
        else:
            previous = previous[train.indices]
    all_train = train
    remark = ""
    if isinstance(validation, str):
        held_out = _with_labels_of(opener(validation)[0], train, validation)
        _check_apart(validation, held_out, {"training": train}, "validation")
    elif held_out is not None:
        held_out, remark = (
            _with_labels_of(held_out, train, source),
            _warn_of_test_as_validation(held_out, path),
        )
    elif validation is not None:
        train, held_out = split(train, validation, seed, previous=_was_on_side(previous, 1))
        remark = _warn_of_share(held_out, all_train, validation)
    remark = "\n".join(filter(None, [remark, *_warn_of_unread(opened)]))
    if tested is not None and isinstance(test, str):
        _check_apart(test, tested, {"training": train, "validation": held_out}, "test")
    return DataSet(train, held_out, target_of(train).names, tested, remark)


def _is_test_split_of_path(held_out: Source | None, test: str, path: str | None) -> bool:
    """Return True if the spec names as test data the data's own test split."""
    return (
        hasattr(held_out, "stand_in_path")
        and path is not None
        and os.path.realpath(test) == os.path.realpath(path)
    )


def _was_on_side(sides: np.ndarray | None, side: int) -> np.ndarray | None:
    """Return which samples were on a side, (n,): 1, 0, or -1 if new."""
    if sides is None:
        return None
    return np.where(sides < 0, -1, sides == side)


def split(
    source: Source,
    fraction: float,
    seed: int,
    split_name: str = "validation",
    previous: np.ndarray | None = None,
) -> tuple[View, View]:
    """Split a source into two views; see :func:`preprocess.division.draw_held_out`.

    Returns:
        The remaining samples, and the held-out ones.
    """
    is_held_out = draw_held_out(source, fraction, seed, split_name, previous)
    return View(source, np.flatnonzero(~is_held_out)), View(source, np.flatnonzero(is_held_out))


def _overlap(first: Source, second: Source) -> bool:
    """Return True if two sources lie in the same folder or file, judged by their ``places``."""
    first_paths, second_paths = (
        [os.path.realpath(path) for path in getattr(source, "places", ())]
        for source in (first, second)
    )
    return any(
        a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep)
        for a in first_paths
        for b in second_paths
    )


def _check_apart(
    path: str, data: Source, sources: Mapping[str, Source | None], split_name: str
) -> None:
    """Refuse data of a separate path that is also data of another split."""
    purpose = "is not used for selection" if split_name == "test" else "is not trained on"
    for role, source in sources.items():
        if source is not None and _overlap(data, source):
            raise InputError(
                f"data.{split_name}: {path}: this is also {role} data; name "
                f"separate data, which {purpose}"
            )


def _warn_of_share(held_out: Source, train: Source, share: float) -> str:
    """Return a warning if far more samples are held out than requested; else ""."""
    count = len(held_out)
    expected = share * len(train)
    if count < 1.5 * expected or count - expected < 3:
        return ""
    reason = "samples of one group stay together"
    if groups_of(train) is None:
        reason = "each class of two or more samples needs at least one on either side"
    return (
        f"data.validation: {count} of {len(train)} samples are held out "
        f"({count / len(train):.0%}), not {share:.0%}, because {reason}; give the path of "
        "validation data, or use data.folds, to train on more"
    )


def _warn_of_copies(
    marks: Mapping[str, SampleIds], split_name: str, source: Source, path: float | str | None
) -> str:
    """Return a warning if held-out samples are copies of training samples; else "".

    Data with many equal training samples, such as rows of a few small numbers, gets no warning.
    """
    train_hashes, held_out_hashes = (_content_hashes(marks[name]) for name in ("train", split_name))
    seen = train_hashes[train_hashes != NOT_READ]
    if not len(seen) or len(np.unique(seen)) < 0.9 * len(seen):
        return ""
    copies = np.flatnonzero(np.isin(held_out_hashes, seen))
    if not len(copies):
        return ""
    first = source.name(int(copies[0]))
    if isinstance(path, str) and np.array_equal(
        np.unique(held_out_hashes), np.unique(train_hashes)
    ):
        return (
            f"data.{split_name}: {path} is a copy of the training data; scores on it say nothing "
            "about new samples, so name other data"
        )
    return (
        f"data: {len(copies)} of {len(source)} {split_name} samples have the same content "
        f"as training samples, such as {first}"
    )


def _content_hashes(marks: SampleIds) -> np.ndarray:
    """Return the hash of each sample's content, (n,) uint64; ``NOT_READ`` if unknown."""
    if marks.by_content:
        return marks.names
    return marks.hashes.get("content", np.empty(0, np.uint64))


def _warn_of_test_as_validation(held_out: Source, path: str | None) -> str:
    """Return a warning if test data is used as validation data; else ""."""
    location = getattr(held_out, "stand_in_path", None)
    if location is None:
        return ""
    name = "it" if os.path.exists(location) else path
    return (
        f"data: {location} is used for validation, so networks are selected by it, because {path} "
        f"has no validation split; name {name} in data.test to use it for the final score only"
    )


def _warn_of_unread(opened: Opened) -> list[str]:
    """Return warnings about files that are not read, by extension."""
    return [f"data: {line}" for line in map(describe_unread, opened) if line]


def _open_at(
    source: str, options: Mapping[str, Any], target: TargetWish | None, path: str | None
) -> Opened:
    """Open a path and check targets and weights of all its splits.

    Targets get the requested kind if the sources do not say what they have.
    """
    is_builtin = source in SOURCES
    code = UserCode()
    with code.running():
        function = _find_opener(source, options, path)
    if target is not None and _wants_target(function):
        extra = {"target": target}
    else:
        extra = {}
    try:
        with code.running():
            result = function(path, **options, **extra)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's function may raise anything, and exit
        if is_builtin:
            raise
        raise InputError(
            f"{source} failed for path {path!r} and options {dict(options)}: "
            f"{format_exception(error)}"
        ) from error
    candidates = (
        *(result if isinstance(result, tuple) and len(result) in (2, 3) else (result,)),
        None,
        None,
    )[:3]
    for candidate in () if is_builtin else candidates:
        if not (
            _is_source(candidate, target) or (candidate is None and candidate is not candidates[0])
        ):
            raise InputError(
                f"{source} returned {type(candidate).__name__}, not a source, which has len(), "
                "labels, classes, read(index), name(index) and order(seed, epoch); or, for "
                "targets of another kind, target and targets instead of labels and classes"
            )
    if target is not None and not extra:
        candidates = tuple(
            None if candidate is None else with_requested_targets(candidate, target)
            for candidate in candidates
        )
    # Errors name a custom source itself, and the path of a built-in one.
    if is_builtin:
        origin = str(path)
    else:
        origin = f"{source}{f' of {path}' if path else ''}"
    return cast(
        Opened,
        tuple(
            None if candidate is None else _check_source(candidate, origin + name)
            for candidate, name in zip(candidates, ("", ", validation", ", test"), strict=True)
        ),
    )


def _find_opener(source: str, options: Mapping[str, Any], path: str | None) -> Callable[..., Any]:
    """Return the function that opens a source, after checking its arguments."""
    if source not in SOURCES:
        if ":" not in source:
            raise InputError(
                f"unknown source {source!r}; there are {', '.join(SOURCES)}, "
                "or an import path module:function"
            )
        return import_function(source, "data source")
    module, _, name = SOURCES[source].partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    path_parameter, *parameters = inspect.signature(function).parameters.values()
    known_options = [parameter for parameter in parameters if parameter.name != "target"]
    for option in options:
        if option not in [parameter.name for parameter in known_options]:
            listed = (
                ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in known_options)
                or "none"
            )
            raise InputError(f"{source}: unknown option {option!r}; its options: {listed}")
    if path is None and path_parameter.default is path_parameter.empty:
        raise InputError(f"{source}: it needs a path")
    return function


def _wants_target(function: Callable[..., Any]) -> bool:
    try:
        return "target" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def with_requested_targets(source: Source, request: TargetWish) -> Source:
    """Return a source with targets of the requested kind.

    Raises:
        InputError: its own targets are of another kind, or it has none of that kind.
    """
    own_target: TargetSpec | None = getattr(source, "target", None)
    if own_target is not None:
        request.check(own_target)
        return source
    if request.kind == "class" and isinstance(source, ClassSource):
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
    if classes == tuple(map(str, range(len(classes)))) and len(classes) == len(request.names):
        return Relabeled(source, source.labels, request.names)
    unknown = [name for name in classes if name not in request.names]
    if unknown:
        raise InputError(
            f"data.target: names: the source has the class {unknown[0]!r}{and_more(unknown)}, "
            f"which is not among {', '.join(request.names[:10])}; "
            f"the names must be those of the data"
        )
    names = tuple(sorted(request.names))
    places = np.array([names.index(name) for name in classes], np.int64)
    return Relabeled(source, places[np.asarray(source.labels)], names)


def _check_source(source: Source, origin: str) -> Source:
    """Check classes and labels; return the source, or a view that normalizes them."""
    if checked_target(source, origin) is not None:
        return source
    classified = cast(ClassSource, source)
    classes = tuple(printable(str(name)) for name in classified.classes)
    if not classes:
        raise InputError(f"{origin}: no classes; at least two are needed")
    twice = first_duplicate(classes)
    if twice:
        raise InputError(f"{origin}: two classes are named {twice!r}; names must differ")
    twice = first_duplicate(tuple(map(normalize_name, classes)))
    if twice:
        alike = [name for name in classes if normalize_name(name) == twice]
        raise InputError(
            f"{origin}: the classes {alike[0]!a} and {alike[1]!a} are one name in two spellings "
            "(spaces around it, or a decomposed accent); merge them into one class"
        )
    labels = checked_labels(classified, origin)
    if labels is classified.labels and classes == classified.classes:
        return source
    return Relabeled(source, labels, classes)


def _is_source(candidate: Any, target: TargetWish | None) -> bool:
    """Return True if an object is a source whose targets are known."""
    return isinstance(candidate, Source) and (
        isinstance(candidate, ClassSource) or hasattr(candidate, "target") or target is not None
    )


def _with_labels_of(
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
    if train_target.kind == own_target.kind == "multilabel" and set(own_target.names) < set(
        train_target.names
    ):
        return WithLabels(source, train_target)
    if replace(own_target, weighted=train_target.weighted) != train_target:
        raise InputError(
            f"{location}: the {split_name} data has other targets than the training data: "
            f"{own_target.kind} ({own_target}{_format_names(own_target)}), not "
            f"{train_target.kind} ({train_target}{_format_names(train_target)})"
        )
    return source


def _format_names(target: TargetSpec) -> str:
    if target.names:
        return f": {', '.join(target.names[:5])}{' ...' if len(target.names) > 5 else ''}"
    return ""


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
