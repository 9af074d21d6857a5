"""Where samples come from: ``open_data`` turns a spec's ``data`` into training and validation sources.

A source is anything with the methods of :class:`~preprocess.base.Source`. Validation samples are the data of
a path of their own, the validation part of the training data, or a fraction of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from preprocess.base import SPLIT, DataSet, InputError, RandomAccess, Source, import_function, rng_for

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
              options: Mapping[str, Any] | None = None) -> DataSet:
    """Open the data of a spec.

    Args:
        source: a name in ``SOURCES``, or an import path ``module:function``; the function takes (path,
            ``**options``) and returns a :class:`~preprocess.base.Source`, or two: training and validation.
        path: what the source reads.
        validation: a path with the validation data. Or, for data without a validation part of its own, the
            fraction of the samples of each class that is taken for it, chosen by ``seed``. Or None.
        seed: the seed of the run.
        options: further arguments of the source, by name.

    Raises:
        InputError: what is wrong with the source, the path, the options or the validation data.
    """
    opener = _opener(source, options or {})
    train, held_out = opener(path)
    if len(train.classes) < 2:
        raise InputError(f"{path}: only one class, {train.classes[0]!r}; at least two are needed")
    if isinstance(validation, str):
        held_out = opener(validation)[0]
    elif validation is not None and held_out is None:
        train, held_out = split(train, validation, seed)
    if held_out is not None:
        held_out = _with_classes(held_out, train.classes, validation if isinstance(validation, str) else path)
    return DataSet(train, held_out, train.classes)


def split(source: Source, fraction: float, seed: int) -> tuple[View, View]:
    """Divide a source into two, at random, the same fraction of each class.

    A class of two samples or more has at least one on either side.

    Args:
        source: the samples.
        fraction: between 0 and 1, of the samples that go to the second part.
        seed: of the choice.

    Returns:
        What is left, and the fraction.

    Raises:
        InputError: the fraction is not between 0 and 1, or no class has two samples.
    """
    if not 0 < fraction < 1:
        raise InputError(f"validation: {fraction} is not a fraction between 0 and 1 (nor a path)")
    rng = rng_for(seed, SPLIT)
    taken = np.zeros(len(source), bool)
    for label in range(len(source.classes)):
        members = np.flatnonzero(source.labels == label)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        taken[rng.permutation(members)[:max(count, 0)]] = True
    if not taken.any():
        raise InputError(f"validation: {fraction} of {len(source)} samples is none, because no class has two")
    return View(source, np.flatnonzero(~taken)), View(source, np.flatnonzero(taken))


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


def _user_opener(source: str, options: Mapping[str, Any]) -> Opener:
    function = import_function(source, "data source")

    def opener(path: str | None) -> tuple[Source, Source | None]:
        try:
            found = function(path, **options)
        except InputError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise InputError(f"{source} failed for path {path!r} and options {dict(options)}: "
                             f"{type(error).__name__}: {error}") from error
        pair = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        for part in pair:
            if not (isinstance(part, Source) or (part is None and part is not pair[0])):
                raise InputError(f"{source} returned {type(part).__name__}, not a source, which has len(), "
                                 "labels, classes, read(index), name(index) and order(seed, epoch)")
        return pair

    return opener


def _with_classes(source: Source, classes: tuple[str, ...], place: str | None) -> Source:
    """Validation samples with the labels that the training samples have."""
    if source.classes == classes:
        return source
    unknown = sorted(set(source.classes) - set(classes))
    if unknown:
        raise InputError(f"{place}: the validation data has classes that the training data lacks: "
                         f"{', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}; "
                         f"the {len(classes)} classes of training are "
                         f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}")
    labels = np.array([classes.index(name) for name in source.classes])[source.labels]
    return View(source, np.arange(len(source)), labels, classes)
