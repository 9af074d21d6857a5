"""Where samples come from: ``open_data`` turns a spec's ``data`` into training, validation and test sources.

A source is anything with the methods of :class:`~preprocess.base.Source`. Validation samples are the data of
a path of their own, the validation part of the training data, or a fraction of it; test samples are the data of a path
of their own, or a fraction.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from preprocess.base import (
    SPLIT,
    TEST_SPLIT,
    DataSet,
    InputError,
    RandomAccess,
    Source,
    counted,
    import_function,
    in_one_line,
    rng_for,
)
from preprocess.labels import checked_labels

__all__ = ["SOURCES", "DataSet", "RandomAccess", "Source", "View", "open_data", "split"]

# name -> module:function, which takes (path, **options) and returns (training, validation or None); it can do without
# a path where that has a default
SOURCES: dict[str, str] = {
    "image_folder": "preprocess.sources.image_folder:open_image_folder",
    "hdf5": "preprocess.sources.hdf5:open_hdf5",
    "tfrecord": "preprocess.sources.tfrecord:open_tfrecord",
    "webdataset": "preprocess.sources.webdataset:open_webdataset",
    "builtin:digits": "preprocess.sources.digits:open_digits",
    "builtin:noise": "preprocess.sources.noise:open_noise",
}

Opener = Callable[..., tuple[Source, Source | None]]


class View:
    """Some samples of a source, in the source's order, perhaps with other labels.

    Args:
        source: whose samples.
        indices: of the samples, ascending.
        labels: of all samples of the source; its own by default.
        classes: the names of the labels; the source's own by default.
    """

    def __init__(self, source: Source, indices: np.ndarray, labels: np.ndarray | None = None,
                 classes: tuple[str, ...] | None = None) -> None:
        self.source = source
        self.indices = indices
        self.labels = (source.labels if labels is None else labels)[indices]
        self.classes = source.classes if classes is None else classes
        self.places: tuple[str, ...] = getattr(source, "places", ())
        self._place = np.full(len(source), -1)
        self._place[indices] = np.arange(len(indices))

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> bytes | np.ndarray:
        """See :class:`~preprocess.base.Source`."""
        return self.source.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        """See :class:`~preprocess.base.Source`."""
        return self.source.name(int(self.indices[index]))

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The source's order without the samples that are not here."""
        place = self._place[self.source.order(seed, epoch)]
        return place[place >= 0]


def open_data(source: str, path: str | None, validation: float | str | None, seed: int,
              options: Mapping[str, Any] | None = None, test: float | str | None = None) -> DataSet:
    """Open the data of a spec.

    Args:
        source: a name in ``SOURCES``, or an import path ``module:function``; the function takes (path,
            ``**options``) and returns a :class:`~preprocess.base.Source`, or two: training and validation.
        path: what the source reads.
        validation: a path with the validation data. Or, for data without a validation part of its own, the
            fraction of the samples of each class that is taken for it, chosen by ``seed``. Or None.
        seed: the seed of the run.
        options: further arguments of the source, by name.
        test: a path with the test data. Or the fraction of the training samples of each class that is taken for it,
            chosen by ``seed``, before any are taken for validation. Or None. If the data's own validation part lies
            at that path, it is test data only.

    Raises:
        InputError: what is wrong with the source, path, options, labels, validation data or test data.
    """
    opener = _checking_labels(source, _opener(source, options or {}))
    train, held_out = opener(path)
    if len(train.classes) < 2:
        raise InputError(f"{path}: only one class, {train.classes[0]!r}; at least two are needed")
    tested: Source | None = None
    if isinstance(test, str):
        tested = _with_classes(opener(test)[0], train.classes, test, "test")
        held_out = None if held_out is not None and _overlap(held_out, tested) else held_out
    elif test is not None:
        train, tested = split(train, test, seed, "test")
    remark = ""
    if isinstance(validation, str):
        held_out = _with_classes(opener(validation)[0], train.classes, validation)
    elif held_out is not None:
        held_out, remark = _with_classes(held_out, train.classes, path), _remark_on_test_part(held_out, path)
    elif validation is not None:
        train, held_out = split(train, validation, seed)
    if tested is not None and isinstance(test, str):
        _check_apart(test, tested, {"training": train, "validation": held_out})
    return DataSet(train, held_out, train.classes, tested, remark)


def split(source: Source, fraction: float, seed: int, part: str = "validation") -> tuple[View, View]:
    """Divide a source into two, at random, the same fraction of each class.

    A class of two samples or more has at least one on either side.

    Args:
        source: the samples.
        fraction: between 0 and 1, of the samples that go to the second part.
        seed: of the choice.
        part: what the second part is for: ``validation`` or ``test``, which are chosen independently.

    Returns:
        What is left, and the fraction.

    Raises:
        InputError: the fraction is not between 0 and 1, or no class has two samples.
    """
    if not 0 < fraction < 1:
        raise InputError(f"{part}: {fraction} is not a fraction between 0 and 1 (nor a path)")
    rng = rng_for(seed, TEST_SPLIT if part == "test" else SPLIT)
    taken = np.zeros(len(source), bool)
    for label in range(len(source.classes)):
        members = np.flatnonzero(source.labels == label)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        taken[rng.permutation(members)[:max(count, 0)]] = True
    if not taken.any():
        raise InputError(f"{part}: {fraction} of {counted(len(source), 'sample')} is none, because no class has two")
    return View(source, np.flatnonzero(~taken)), View(source, np.flatnonzero(taken))


def _overlap(one: Source, other: Source) -> bool:
    """Whether two sources lie in the same folder or file, as far as they say where they lie (``places``)."""
    ours, theirs = ([os.path.realpath(place) for place in getattr(source, "places", ())] for source in (one, other))
    return any(a == b or a.startswith(b + os.sep) or b.startswith(a + os.sep) for a in ours for b in theirs)


def _check_apart(path: str, test: Source, others: Mapping[str, Source | None]) -> None:
    for what, source in others.items():
        if source is not None and _overlap(test, source):
            raise InputError(f"data.test: {path}: this is {what} data too; it should be data that chooses nothing, and "
                             "lie elsewhere")


def _remark_on_test_part(held_out: Source, path: str | None) -> str:
    """A word about data whose test part stands in for validation data; nothing of other data."""
    for place in getattr(held_out, "places", ()):
        inside = os.path.relpath(place, path or ".")
        if inside.startswith("test"):
            return (f"data: {place} is taken for validation, so networks are chosen by it, because {path} has no "
                    f"validation part; name it in data.test if it should choose nothing")
    return ""


def _opener(source: str, options: Mapping[str, Any]) -> Opener:
    """The function that opens a source, its options already given."""
    if source not in SOURCES and ":" not in source:
        raise InputError(f"unknown source {source!r}; there are {', '.join(SOURCES)}, "
                         "or an import path module:function")
    if source not in SOURCES:
        return _user_opener(source, options)
    module, _, name = SOURCES[source].partition(":")
    function = getattr(import_module(module), name)
    place, *known = inspect.signature(function).parameters.values()
    for option in options:
        if option not in [parameter.name for parameter in known]:
            listed = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in known) or "none"
            raise InputError(f"{source}: unknown option {option!r}; its options: {listed}")

    def opener(path: str | None) -> tuple[Source, Source | None]:
        if path is None and place.default is place.empty:
            raise InputError(f"{source}: it needs a path")
        return function(path, **options)

    return opener


def _checking_labels(source: str, opener: Opener) -> Opener:
    """An opener whose sources have labels that are classes: each in an array, and the names of the classes as text."""
    def checking(path: str | None) -> tuple[Source, Source | None]:
        train, held_out = opener(path)
        # A source of the user's own is where its labels are made; of others, the path is.
        place = f"{source}{f' of {path}' if path else ''}" if ":" in source and source not in SOURCES else str(path)
        return _checked(train, place), None if held_out is None else _checked(held_out, f"{place}, validation")

    return checking


def _checked(source: Source, origin: str) -> Source:
    """The source itself, or a view of it where its labels were no array or its classes no text."""
    classes = tuple(map(str, source.classes))
    if not classes:
        raise InputError(f"{origin}: no classes; at least two are needed")
    labels = checked_labels(source, origin)
    if labels is source.labels and classes == source.classes:
        return source
    return View(source, np.arange(len(source)), labels, classes)


def _user_opener(source: str, options: Mapping[str, Any]) -> Opener:
    function = import_function(source, "data source")

    def opener(path: str | None) -> tuple[Source, Source | None]:
        try:
            found = function(path, **options)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's function may raise anything, and exit
            raise InputError(f"{source} failed for path {path!r} and options {dict(options)}: {in_one_line(error)}"
                             ) from error
        pair = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        for part in pair:
            if not (isinstance(part, Source) or (part is None and part is not pair[0])):
                raise InputError(f"{source} returned {type(part).__name__}, not a source, which has len(), "
                                 "labels, classes, read(index), name(index) and order(seed, epoch)")
        return pair

    return opener


def _with_classes(source: Source, classes: tuple[str, ...], place: str | None, part: str = "validation") -> Source:
    """Validation or test samples with the labels that the training samples have."""
    if source.classes == classes:
        return source
    unknown = sorted(set(source.classes) - set(classes))
    if unknown:
        raise InputError(f"{place}: the {part} data has classes that the training data lacks: "
                         f"{', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}; "
                         f"the {len(classes)} classes of training are "
                         f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}")
    labels = np.array([classes.index(name) for name in source.classes])[source.labels]
    return View(source, np.arange(len(source)), labels, classes)
