"""Open a spec's ``data`` as training, validation and test sources.

A source is any object with the methods of :class:`~preprocess.base.Source`. Validation samples come
from a separate path, from the validation split of the data, or are a fraction of the training data;
test samples come from a separate path, from the test split, or are a fraction.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import ClassSource, DataSet, RandomAccess, Source
from preprocess.division import assign_folds, draw_held_out, groups_of, strata_of
from preprocess.fingerprint import (
    NOT_READ,
    Fingerprint,
    PreviousDivision,
    SampleIds,
    add_target_ids,
    identify_samples,
)
from preprocess.open_source import SOURCES, Opened, Opener, open_with_features
from preprocess.record_target import check_request
from preprocess.sources.image_folder import describe_unread
from preprocess.target import Request, target_of
from preprocess.views import View, with_labels_of, with_requested_targets

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


def open_data(
    source: str,
    path: str | None,
    validation: float | str | None,
    seed: int,
    options: Mapping[str, Any] | None = None,
    test: float | str | None = None,
    target: Request = None,
) -> DataSet:
    """Open the data of a spec.

    Args:
        source: a name in ``SOURCES``, or an import path ``module:function``. The function takes
            (path, ``**options``) and returns a :class:`~preprocess.base.Source`, or a tuple of two
            (training, validation) or three (also test).
        path: the path of the data.
        validation: the path of validation data; or, for data without a validation split, the
            fraction of each class to hold out, chosen by ``seed``; or None.
        seed: the seed of the run.
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
    targets: Sequence[Request] = (None,),
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
        opener, (train, held_out, tested) = open_with_features(
            source, path, options or {}, target, features
        )
        if isinstance(train, ClassSource) and len(train.classes) < 2:
            raise InputError(
                f"{path or source}: only one class, {train.classes[0]!r}; at least two are needed"
            )
        check_request(target, target_of(train))
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


def _training_ids(
    train: Source,
    path: str | None,
    number: int,
    target: Request,
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
    if not isinstance(subset, View):
        return None
    rows = _rows_in(subset.source, source)
    if rows is None:
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
        previous: see :class:`preprocess.fingerprint.PreviousDivision`.
    """
    train, held_out, tested = opened
    if tested is not None:
        tested = with_labels_of(tested, train, source, "test")
    if isinstance(test, str) and _is_test_split_of_path(held_out, test, path):
        tested = with_labels_of(cast(Source, held_out), train, source, "test")
        held_out = None
    elif isinstance(test, str):
        tested = with_labels_of(opener(test)[0], train, test, "test")
        if held_out is not None and _overlap(held_out, tested):
            held_out = None
    elif test is not None:
        train, tested = split(train, test, seed, "test", _was_on_side(previous, 2))
        if previous is None or not isinstance(train, View):
            previous = None
        else:
            previous = previous[train.indices]
    all_train = train
    remark = ""
    if isinstance(validation, str):
        held_out = with_labels_of(opener(validation)[0], train, validation)
        _check_apart(validation, held_out, {"training": train}, "validation")
    elif held_out is not None:
        remark = _warn_of_test_as_validation(held_out, path)
        held_out = with_labels_of(held_out, train, source)
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
    purpose = "is not trained on"
    if split_name == "test":
        purpose = "is not used for selection"
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
