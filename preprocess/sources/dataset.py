"""Samples of a map-style ``Dataset`` of PyTorch, or of any object like it.

Such an object has ``__len__`` and ``__getitem__``, which returns (input, target), where both may be
mappings by name; or one mapping, of which ``data.target`` says what the targets are. Nothing here
imports PyTorch: the dataset is sent to other ranks as it was pickled, and unpickled, with what its
classes import, by the ranks that read samples.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from launch.errors import InputError, printable
from preprocess.base import UnreadableSample, as_array, check_input_name, format_exception
from preprocess.record_target import check_target_name, parse_each, single_request
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    class_targets,
    parse_targets,
)
from preprocess.target import Request, TargetWish
from preprocess.user_code import UserCode, import_user_module

_PYTORCH = "torch"  # the names of its modules, and of packages beside it, begin with this
_PROBES = 8  # samples that are read twice at the start
# Attributes by which data sets tell their targets without reading samples.
_TARGETS = ("targets", "labels")


def is_dataset(value: Any) -> bool:
    """Return True for a map-style dataset: an object with a length, read by index."""
    return (
        not isinstance(value, str | bytes | Sequence | dict | np.ndarray)
        and hasattr(type(value), "__len__")
        and hasattr(type(value), "__getitem__")
        and not _is_of(value, "IterableDataset", "DataLoader")
    )


def describe_misuse(value: Any, origin: str) -> str:
    """Explain why a dataset or loader of PyTorch is no source; empty for other objects.

    Args:
        value: what the user's function returned.
        origin: the function, for the message.
    """
    if _is_of(value, "DataLoader"):
        return (
            f"{origin} returned a DataLoader; it should return its dataset: FLEET makes the "
            "batches itself"
        )
    if _is_of(value, "IterableDataset"):
        return (
            f"{origin} returned an IterableDataset ({type(value).__name__}), whose samples cannot "
            "be read by index, and FLEET divides, shuffles and resumes by index; return a Dataset "
            "with __len__ and __getitem__, or write the samples into shards or a file once and "
            "name those (source: webdataset, hdf5 or npz)"
        )
    return ""


def _is_of(value: Any, *names: str) -> bool:
    """Return True for an instance of a class of torch.utils.data, which may not be imported."""
    return any(
        kind.__name__ in names and kind.__module__.startswith("torch.")
        for kind in type(value).__mro__
    )


class DatasetSource(TargetedSource):
    """The samples of a map-style dataset.

    Args:
        dataset: has ``__len__``, and ``__getitem__``, which returns (input, target), or a mapping.
        target: the ``data.target`` of the spec.
        origin: the import path of the user's function.

    Raises:
        InputError: a sample is not (input, target), or differs from call to call; the targets are
            ambiguous; or the dataset cannot be pickled.
    """

    input_names: tuple[str, ...] = ()

    def __init__(self, dataset: Any, target: Request, origin: str) -> None:
        self._origin = origin
        self._target_names = tuple(target) if isinstance(target, Mapping) else ()
        self._mask_name = ""
        self._code = UserCode()
        self._dataset = dataset
        self._last: tuple[int, Any] = (-1, None)
        with self._code.running():
            count = len(dataset)
        if not count:
            raise InputError(f"{origin}: the dataset has no samples")
        try:
            self._packed = pickle.dumps(dataset)
        except Exception as error:  # the user's class may hold anything
            raise InputError(
                f"{origin}: the dataset cannot be sent to other ranks, because it cannot be "
                f"pickled: {format_exception(error)}; replace lambdas and local functions by "
                "functions of a module, and open files in __getitem__"
            ) from error
        self._check_samples(count)
        inputs, targets = self._sample(0)
        if isinstance(inputs, Mapping):
            for name in inputs:
                check_input_name(name, self.name(0))
            self.input_names = tuple(inputs)
        parsed: AnyTargets
        if isinstance(targets, Mapping):
            for name in targets:
                check_target_name(name, self.name(0))
            parsed = parse_each(
                targets, target, origin, lambda name, single: self._parsed(name, single, count)
            )
        else:
            parsed = self._parsed("", single_request(target, origin), count)
        super().__init__(parsed, None, count)

    def _parsed(self, name: str, request: TargetWish | None, count: int) -> Masks | Targets:
        """Parse the only target of all samples, or the one of several that has a name."""
        values = self._find_targets(name, count)
        if values is None:
            self._mask_name = name
            masks = PixelClasses.from_options(None, request)
            return Masks(count, masks, self.name, self._read_mask)
        return self._parse(values, request, name)

    def __getstate__(self) -> dict[str, object]:
        """Send the pickled dataset."""
        state = super().__getstate__()
        return {
            name: value
            for name, value in state.items()
            if name not in ("_dataset", "_code", "_last")
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """Receive the pickled dataset, without importing its classes."""
        vars(self).update(state)
        self._code = UserCode()
        self._last = (-1, None)

    @cached_property
    def _dataset(self) -> Any:
        with self._code.running():
            return _Unpickler(io.BytesIO(self._packed)).load()

    def read(self, index: int) -> Any:
        """Return the input of a sample; a tensor of an image gets its channels last.

        Of several inputs, these by name.
        """
        content = self._sample(index)[0]
        if isinstance(content, Mapping):
            return {name: self._as_input(value, index) for name, value in content.items()}
        return self._as_input(content, index)

    def _as_input(self, content: Any, index: int) -> bytes | np.ndarray:
        if isinstance(content, bytes):
            return content
        if isinstance(content, int | float | np.generic):
            return np.array(content, ndmin=1)
        array = as_array(content, self.name(index), "a tensor or an array, and its target")
        if array.ndim == 3 and type(content).__module__.startswith(_PYTORCH):
            array = np.moveaxis(array, 0, -1)
        return np.array(array, ndmin=1)

    def name(self, index: int) -> str:
        """Return the function and the index."""
        return printable(f"{self._origin}[{index}]")

    def _sample(self, index: int) -> tuple[Any, Any]:
        """Return an input and its target, as the dataset gives them.

        Raises:
            UnreadableSample: the dataset says so.
            InputError: the dataset raises something else, or returns something else.
        """
        last, sample = self._last
        if last == index:  # the target of the input that was just read
            return sample[0], sample[1]
        try:
            with self._code.running(quick=True):
                sample = self._dataset[index]
        except (UnreadableSample, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's class may raise anything, and exit
            raise InputError(f"{self.name(index)} failed: {format_exception(error)}") from error
        if isinstance(sample, Mapping):
            sample = self._divided(sample, index)
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            extent = f"of {len(sample)}" if isinstance(sample, tuple | list) else "alone"
            raise InputError(
                f"{self.name(index)} is a {type(sample).__name__} {extent}; it should be (input, "
                "target)"
            )
        self._last = (index, sample)
        return sample[0], sample[1]

    def _divided(self, sample: Mapping[Any, Any], index: int) -> tuple[Any, Any]:
        """Return the inputs and the targets in a mapping, by name.

        Raises:
            InputError: the spec does not say what the targets are, or one is missing.
        """
        listed = ", ".join(map(str, sample))
        if not self._target_names:
            raise InputError(
                f"{self.name(index)} is a mapping ({listed}); name its targets in data.target, "
                f"like {{{list(sample)[-1]}: class}}, or return (input, target)"
            )
        missing = [name for name in self._target_names if name not in sample]
        if missing:
            raise InputError(
                f"data.target: {missing[0]}: {self.name(index)} has no target of this name; it has "
                f"{listed}"
            )
        inputs = {name: value for name, value in sample.items() if name not in self._target_names}
        if not inputs:
            raise InputError(
                f"data.target: {listed}: {self.name(index)} has no inputs beside these"
            )
        return inputs, {name: sample[name] for name in self._target_names}

    def _target(self, index: int, name: str = "") -> np.ndarray:
        value = self._sample(index)[1]
        if name:
            if not isinstance(value, Mapping) or name not in value:
                raise InputError(f"{self.name(index)} has no target {name!r}, unlike the first one")
            value = value[name]
        if isinstance(value, str | int | float | np.generic):
            return np.asarray(value)
        return as_array(value, self.name(index), "a number, a tensor or an array as target")

    def _read_mask(self, index: int) -> np.ndarray:
        return self._target(index, self._mask_name)

    def _check_samples(self, count: int) -> None:
        """Check that some samples are the same when they are read again.

        Raises:
            InputError: one is not.
        """
        for index in _spread(count):
            first = self.read(index)
            self._last = (-1, None)
            again = self.read(index)
            if not _are_equal(first, again):
                raise InputError(
                    f"{self.name(index)} differs from call to call: FLEET reads a sample once and "
                    "changes it in each epoch by data.transforms; move what is random there "
                    "(docs/data.md, transforms of your own)"
                )

    def _find_targets(self, name: str, count: int) -> np.ndarray | None:
        """Return the targets of all samples, (count, ...); None for masks.

        Targets that the dataset has are used if some samples confirm them; otherwise
        all samples are read.
        """
        if self._target(0, name).ndim > 1:
            return None
        declared = None
        if not name:
            with self._code.running():
                declared = _declared_targets(self._dataset, count)
        if declared is not None and all(
            np.array_equal(self._target(index), declared[index]) for index in _spread(count)
        ):
            return declared
        values = [self._target(index, name) for index in range(count)]
        shapes = {value.shape for value in values}
        if len(shapes) > 1:
            wrong = next(
                index for index, value in enumerate(values) if value.shape != values[0].shape
            )
            raise InputError(
                f"{self.name(wrong)} has a target of shape {values[wrong].shape}, the first one "
                f"{values[0].shape}; they should have one shape"
            )
        return np.stack(values)

    def _parse(self, values: np.ndarray, target: TargetWish | None, name: str) -> Targets:
        names = () if name else getattr(self._dataset, "classes", ())
        is_named = (
            isinstance(names, list | tuple)
            and all(isinstance(name, str) for name in names)
            and values.ndim == 1
            and values.dtype.kind in "iu"
            and (target is None or (target.semantics.is_scalar and not target.names))
        )
        if is_named and len(names) > max(1, int(values.max(initial=0))):
            return class_targets(values, tuple(names), self._origin, self.name)
        return parse_targets(values, target, self._origin, self.name)


def _are_equal(first: Any, second: Any) -> bool:
    """Return True if the inputs of a sample are equal; of several, by name."""
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(
            _are_equal(first[name], second[name]) for name in first
        )
    return first == second if isinstance(first, bytes) else np.array_equal(first, second)


class _Unpickler(pickle.Unpickler):
    """An unpickler that imports modules of the user as :mod:`preprocess.user_code` does."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of a module."""
        if module not in sys.modules:
            import_user_module(module)
        return super().find_class(module, name)


def _spread(count: int) -> list[int]:
    """Return the indices of some samples, from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, _PROBES).astype(int).tolist()))


def _declared_targets(dataset: Any, count: int) -> np.ndarray | None:
    """Return the targets that a dataset, or a subset of one, has as an array; None without any."""
    indices = getattr(dataset, "indices", None)
    inner = getattr(dataset, "dataset", None)
    if indices is not None and inner is not None:  # torch.utils.data.Subset
        declared = _declared_targets(inner, len(inner))
        return None if declared is None else declared[np.asarray(indices, np.int64)]
    tensors = getattr(dataset, "tensors", ())
    candidates = [getattr(dataset, name, None) for name in _TARGETS]
    candidates += tensors[1:] if len(tensors) == 2 else []
    for values in candidates:
        if values is None or callable(values):
            continue
        try:
            array = np.asarray(values)
        except Exception:  # not what it seems
            continue
        if array.shape[:1] == (count,) and array.dtype.kind in "iufbU":
            return array
    return None
