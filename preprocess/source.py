"""Where samples come from: ``open_data`` turns a spec's ``data`` into training, validation and test sources.

A source is anything with the methods of :class:`~preprocess.base.Source`. Validation samples are the data of
a path of their own, the validation part of the training data, or a fraction of it; test samples are the data of a path
of their own, or a fraction.
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

# name -> module:function, which takes (path, **options) and returns training samples, those for validation or None, and
# perhaps those for testing or None; it can do without a path where that has a default
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
    """Some samples of a source, in the source's order, with their targets and weights.

    Args:
        source: whose samples.
        indices: of the samples, ascending.
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
        """See :class:`~preprocess.base.Source`."""
        return self.source.read(int(self.indices[index]))

    def read_target(self, index: int) -> np.ndarray:
        """See :mod:`preprocess.target`; for masks only."""
        return self.source.read_target(int(self.indices[index]))  # type: ignore[attr-defined]

    def name(self, index: int) -> str:
        """See :class:`~preprocess.base.Source`."""
        return self.source.name(int(self.indices[index]))

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The source's order without the samples that are not here."""
        positions = self._positions[self.source.order(seed, epoch)]
        return positions[positions >= 0]


class _LazyTargets:
    """The targets of some samples of a source, looked up when they are asked for: an array may be memory-mapped."""

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
        labels: (n,) of all samples.
        classes: the names of the labels.
    """

    def __init__(self, source: Source, labels: np.ndarray, classes: tuple[str, ...]) -> None:
        super().__init__(source, np.arange(len(source)))
        self.labels = labels
        self.classes = classes


class WithTargets(View):
    """All samples of a source, with targets of the kind that a spec's ``data.target`` says.

    Args:
        source: has them as its ``targets`` or ``labels``, or gives them by ``read_target(index)``.
        target: of all its samples.
    """

    def __init__(self, source: Source, target: TargetSpec) -> None:
        self.target = target
        self.masks = getattr(source, "masks", None)
        super().__init__(source, np.arange(len(source)))

    def _take_targets(self, source: Source) -> None:
        """Nothing: they are looked up in the source."""

    @property
    def targets(self) -> Any:
        """The array that the source has."""
        return find_targets(self.source)


class WithLabels(View):
    """All samples of a source of many labels, as places in a longer list of labels.

    Args:
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
        source: a name in ``SOURCES``, or an import path ``module:function``; the function takes (path,
            ``**options``) and returns a :class:`~preprocess.base.Source`, or two: training and validation, or three:
            the last one for testing.
        path: what the source reads.
        validation: a path with the validation data. Or, for data without a validation part of its own, the
            fraction of the samples of each class that is taken for it, chosen by ``seed``. Or None.
        seed: the seed of the run.
        options: further arguments of the source, by name.
        test: a path with the test data. Or the fraction of the training samples of each class that is taken for it,
            chosen by ``seed``, before any are taken for validation. Or None: then the data's own test part, where
            it has one beside its validation part. If the data's own validation part lies at that path, it is test data
            only.
        target: what the targets are, where the source cannot tell. A function with a parameter ``target`` is given it;
            the sources of others are taken to have such targets (:class:`WithTargets`).

    Raises:
        InputError: what is wrong with the source, path, options, targets, validation data or test data.
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
    """The same samples with each of some targets, all divided as the first; see :func:`open_data`.

    Args:
        division: how samples are divided, as settings say it, where it is to be found out what they are known by: those
            that were known then stay where they were.
        before: what the data was known by, and how it was divided.
        features: the columns of a table, in the order in which networks have learned them; it stays, wherever they
            stand now.

    Returns:
        The data, and its fingerprint: the folds in it are those that were known. It is empty without a ``division``.

    Raises:
        InputError: as there; they are not the same samples; or all samples of a side have gone.
    """
    for part, location in (("validation", validation), ("test", test)):
        if source.startswith("builtin:") and isinstance(
            location, str
        ):  # it would give its training data again
            raise InputError(
                f"data.{part}: {location}: {source} has no data elsewhere; give a share, like 10%"
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
    for side, part, location in ((1, "validation", validation), (2, "test", test)):
        held_out_source = data_sets[0].splits().get(part)
        if held_out_source is None:
            continue
        rows = _rows_in(held_out_source, first)
        if rows is None:
            marks[part] = add_target_ids(
                _ids_of(held_out_source, location if isinstance(location, str) else path),
                held_out_source,
                targets[0],
            )
            remarks.append(_warn_of_copies(marks, part, held_out_source, location))
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
    """What lies at a path, and what opens further parts of it: in tables, features are found by their names."""
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
    """What the samples are known by, before any are taken from them; of further targets of the same, these alone."""
    if not number:
        return {"train": add_target_ids(_ids_of(train, path), train, target)}
    first = marks["train"]
    names = SampleIds(first.names, unit=first.unit, by_content=first.by_content)
    return {f"train:{number}": add_target_ids(names, train, target)}


def _ids_of(source: Source, path: str | None) -> SampleIds:
    """What the samples of a source are known by, without their targets."""
    if isinstance(source, View):
        return _ids_of(source.source, path).select(source.indices)
    return identify_samples(source, path or "")


def _rows_in(subset: Source, source: Source) -> np.ndarray | None:
    """The places that samples of a part have in a source; None if they are none of its samples."""
    if subset is source:
        return np.arange(len(source))
    rows = _rows_in(subset.source, source) if isinstance(subset, View) else None
    if rows is None or not isinstance(subset, View):
        return None
    return rows[subset.indices]


def _with_strata_of(first: Source, source: Source, location: str) -> View:
    """The samples of one source, to be divided as those of another, which have other targets."""
    count = len(first)
    if len(source) != count or any(
        first.name(index) != source.name(index) for index in {0, count // 2, count - 1}
    ):
        raise InputError(
            f"{location}: data.target of an entry: the source has other samples, or another order of them, "
            "for these targets, so they cannot be shared"
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
    """Training, validation and test samples, of what a source has and what a spec says.

    Args:
        known: as of :class:`preprocess.fingerprint.PreviousDivision`.
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
    """Whether a spec names, as test data, the place whose test part would stand in for validation data."""
    return (
        hasattr(held_out, "stand_in_path")
        and path is not None
        and os.path.realpath(test) == os.path.realpath(path)
    )


def _was_on_side(sides: np.ndarray | None, side: int) -> np.ndarray | None:
    """Whether samples were on a side: 1, 0, or -1 of new ones."""
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
    """Divide a source into two; see :func:`preprocess.division.draw_held_out`.

    Returns:
        What is left, and the fraction.
    """
    is_held_out = draw_held_out(source, fraction, seed, split_name, previous)
    return View(source, np.flatnonzero(~is_held_out)), View(source, np.flatnonzero(is_held_out))


def _overlap(first: Source, second: Source) -> bool:
    """Whether two sources lie in the same folder or file, as far as they say where they lie (``places``)."""
    first_paths, second_paths = (
        [os.path.realpath(path) for path in getattr(source, "places", ())]
        for source in (first, second)
    )
    return any(
        a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep)
        for a in first_paths
        for b in second_paths
    )


def _check_apart(path: str, data: Source, sources: Mapping[str, Source | None], part: str) -> None:
    """Refuse data of a path of its own that is other data too."""
    purpose = "chooses nothing" if part == "test" else "nobody trains on"
    for role, source in sources.items():
        if source is not None and _overlap(data, source):
            raise InputError(
                f"data.{part}: {path}: this is {role} data too; it should be data that {purpose}, and "
                "lie elsewhere"
            )


def _warn_of_share(held_out: Source, train: Source, share: float) -> str:
    """A word about many more samples held out than asked for; nothing of others."""
    count = len(held_out)
    expected = share * len(train)
    if count < 1.5 * expected or count - expected < 3:
        return ""
    reason = "samples of one group stay together"
    if groups_of(train) is None:
        reason = "each class of two samples or more has one at least on either side"
    return (
        f"data.validation: {count} of {len(train)} samples are held out ({count / len(train):.0%}), not "
        f"{share:.0%}, because {reason}; give the path of validation data, or use data.folds, to train on more"
    )


def _warn_of_copies(
    marks: Mapping[str, SampleIds], part: str, source: Source, path: float | str | None
) -> str:
    """A word about samples of a part that are copies of training samples; empty where there are none.

    Nothing is said of data many of whose training samples are alike, such as rows of a few small numbers.
    """
    train_hashes, held_out_hashes = (_content_hashes(marks[name]) for name in ("train", part))
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
            f"data.{part}: {path} is a copy of the training data; results on it say nothing of new "
            "samples, so name other data"
        )
    return (
        f"data: {len(copies)} of {len(source)} {part} samples are training samples too, with the same "
        f"content, such as {first}"
    )


def _content_hashes(marks: SampleIds) -> np.ndarray:
    """A number for the content of each sample, ``UNSEEN`` where that was not looked at."""
    if marks.by_content:
        return marks.names
    return marks.hashes.get("content", np.empty(0, np.uint64))


def _warn_of_test_as_validation(held_out: Source, path: str | None) -> str:
    """A word about data whose test part stands in for validation data; nothing of other data."""
    location = getattr(held_out, "stand_in_path", None)
    if location is None:
        return ""
    return (
        f"data: {location} is taken for validation, so networks are chosen by it, because {path} has no "
        f"validation part; name {'it' if os.path.exists(location) else path} in data.test if it should choose "
        "nothing"
    )


def _warn_of_unread(opened: Opened) -> list[str]:
    """Words about files that are not read, by their names."""
    return [f"data: {line}" for line in map(describe_unread, opened) if line]


def _open_at(
    source: str, options: Mapping[str, Any], target: TargetWish | None, path: str | None
) -> Opened:
    """What lies at a path, looked at: targets of one kind, each of which is one, and weights from 0.

    Targets are of the kind that is asked for, where the sources do not say themselves what they have.
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
            f"{source} failed for path {path!r} and options {dict(options)}: {format_exception(error)}"
        ) from error
    parts = (
        *(result if isinstance(result, tuple) and len(result) in (2, 3) else (result,)),
        None,
        None,
    )[:3]
    for part in () if is_builtin else parts:
        if not (_is_source(part, target) or (part is None and part is not parts[0])):
            raise InputError(
                f"{source} returned {type(part).__name__}, not a source, which has len(), "
                "labels, classes, read(index), name(index) and order(seed, epoch); or, for targets of "
                "another kind, target and targets instead of labels and classes"
            )
    if target is not None and not extra:
        parts = tuple(
            None if part is None else with_requested_targets(part, target) for part in parts
        )
    # A source of the user's own is where its labels are made; of others, the path is.
    if is_builtin:
        origin = str(path)
    else:
        origin = f"{source}{f' of {path}' if path else ''}"
    return cast(
        Opened,
        tuple(
            None if part is None else _check_source(part, origin + name)
            for part, name in zip(parts, ("", ", validation", ", test"), strict=True)
        ),
    )


def _find_opener(source: str, options: Mapping[str, Any], path: str | None) -> Callable[..., Any]:
    """The function that opens a source, if that can do with these arguments."""
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
    except (TypeError, ValueError):  # a builtin that has none
        return False


def with_requested_targets(source: Source, request: TargetWish) -> Source:
    """A source with targets of the kind that is asked for.

    Raises:
        InputError: it says itself that it has others, or has none of that kind.
    """
    own_target: TargetSpec | None = getattr(source, "target", None)
    if own_target is not None:
        request.check(own_target)
        return source
    if request.kind == "class" and isinstance(source, ClassSource):
        return _with_names(source, request)
    return WithTargets(source, request.spec_of(source))


def _with_names(source: ClassSource, request: TargetWish) -> Source:
    """A source of classes, some of which it may lack, by the names that a spec has for them.

    Raises:
        InputError: it has a class that is none of these.
    """
    classes = tuple(map(str, source.classes))
    if not request.names or set(request.names) == set(classes):
        return source
    if classes == tuple(map(str, range(len(classes)))) and len(classes) == len(request.names):
        return Relabeled(source, source.labels, request.names)
    unknown = [name for name in classes if name not in request.names]
    if unknown:
        raise InputError(
            f"data.target: names: the source has the class {unknown[0]!r}{and_more(unknown)}, which is "
            f"none of {', '.join(request.names[:10])}; the names should be those of the data"
        )
    names = tuple(sorted(request.names))
    places = np.array([names.index(name) for name in classes], np.int64)
    return Relabeled(source, places[np.asarray(source.labels)], names)


def _check_source(source: Source, origin: str) -> Source:
    """The source itself, or a view of it where its labels were no array or its classes no text."""
    if checked_target(source, origin) is not None:
        return source
    classified = cast(ClassSource, source)
    classes = tuple(printable(str(name)) for name in classified.classes)
    if not classes:
        raise InputError(f"{origin}: no classes; at least two are needed")
    twice = first_duplicate(classes)
    if twice:
        raise InputError(
            f"{origin}: two classes are named {twice!r}; each should have a name of its own"
        )
    twice = first_duplicate(tuple(map(normalize_name, classes)))
    if twice:
        alike = [name for name in classes if normalize_name(name) == twice]
        raise InputError(
            f"{origin}: the classes {alike[0]!a} and {alike[1]!a} are one name in two spellings "
            "(a space around it, or an accent as a letter of its own); make them one class"
        )
    labels = checked_labels(classified, origin)
    if labels is classified.labels and classes == classified.classes:
        return source
    return Relabeled(source, labels, classes)


def _is_source(part: Any, target: TargetWish | None) -> bool:
    """Whether it can be read, and says its targets, or need not because a spec does."""
    return isinstance(part, Source) and (
        isinstance(part, ClassSource) or hasattr(part, "target") or target is not None
    )


def _with_labels_of(
    source: Source, train: Source, location: str | None, part: str = "validation"
) -> Source:
    """Validation or test samples with the labels that the training samples have.

    Raises:
        InputError: they have other targets.
    """
    if isinstance(source, ClassSource) and isinstance(train, ClassSource):
        return _with_classes(source, train.classes, location, part)
    train_target = target_of(train)
    own_target = target_of(source)
    if train_target.kind == own_target.kind == "multilabel" and set(own_target.names) < set(
        train_target.names
    ):
        return WithLabels(source, train_target)
    if replace(own_target, weighted=train_target.weighted) != train_target:
        raise InputError(
            f"{location}: the {part} data has other targets than the training data: {own_target.kind} "
            f"({own_target}{_format_names(own_target)}), not {train_target.kind} ({train_target}{_format_names(train_target)})"
        )
    return source


def _format_names(target: TargetSpec) -> str:
    if target.names:
        return f": {', '.join(target.names[:5])}{' ...' if len(target.names) > 5 else ''}"
    return ""


def _with_classes(
    source: ClassSource, classes: tuple[str, ...], location: str | None, part: str
) -> Source:
    if source.classes == classes:
        return source
    place_of = {normalize_name(name): number for number, name in enumerate(classes)}
    unknown = sorted(name for name in source.classes if normalize_name(name) not in place_of)
    if unknown:
        raise InputError(
            f"{location}: the {part} data has classes that the training data lacks: "
            f"{', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}; "
            f"the {len(classes)} classes of training are "
            f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}"
        )
    labels = np.array([place_of[normalize_name(name)] for name in source.classes])[source.labels]
    return Relabeled(source, labels, classes)
