"""Transform whole batches before a step: Mixup, CutMix, and functions of the user.

A function gets the readable rows of the *global* batch, in order, on every rank, and a generator
that follows from the seed of the network, its epoch and the step. So it draws the same numbers and
sees the same rows whatever the number of ranks; each rank then trains on its own rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fleet.engines.custom import load_custom
from fleet.errors import SettingError
from fleet.spec.measures import Measure, name_of, parameters_of
from fleet.spec.model import one_line
from fleet.vocabulary.batch_transforms import BATCH_TRANSFORMS
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import UNUSABLE, TargetSpec
from preprocess.user_code import UserCode, exclusive_generators, seed_generators

_BATCH = 6  # purpose of randomness, beside those of preprocess.base
_KEY = "batch_transforms"


def transformed_sample(sample: SampleSpec) -> SampleSpec:
    """Return the spec of training samples that batch transforms have changed.

    Inputs are scaled. Targets of classes and labels are shares, and always have weights.

    Args:
        sample: the samples before.

    Raises:
        SettingError: they have several inputs.
    """
    if not isinstance(sample.input, ArraySpec):
        raise SettingError(
            f"batch_transforms take samples of one input, but these have several: "
            f"{', '.join(sample.input.arrays)}",
            "train",
            _KEY,
        )
    target = sample.target
    if not target.semantics.is_of_pixels:
        target = TargetSpec("value", target.outputs)
    is_image = len(sample.input.shape) == 3
    dtype = sample.input.dtype
    if is_image or sample.affine is not None:
        dtype = "float32"
    return replace(sample, input=ArraySpec(sample.input.shape, dtype), affine=None, target=target)


@dataclass(frozen=True)
class BatchTransforms:
    """The batch transforms of a network.

    Attributes:
        functions: the name in the spec and the function of (batch, rng) of each, in order.
        sample: the samples as they travel.
        seed: seed of the network.
    """

    functions: Sequence[tuple[str, Callable[..., Any]]]
    sample: SampleSpec
    seed: int

    @classmethod
    def of(
        cls, transforms: Sequence[Measure], sample: SampleSpec, seed: int
    ) -> BatchTransforms | None:
        """Return the batch transforms of a network; None if it has none.

        Raises:
            SettingError: a function does not exist, or does not take its arguments.
        """
        if not transforms:
            return None
        transformed_sample(sample)
        if sample.deferred_input is not None:
            raise SettingError(
                "batch_transforms take batches that are augmented; use data.augment_on: host",
                "train",
                _KEY,
            )
        return cls(list(map(_load, transforms)), sample, seed)

    def __call__(
        self, inputs: np.ndarray, targets: np.ndarray, epoch: int, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the transformed rows of a batch, as :func:`transformed_sample` describes them.

        Args:
            inputs, targets: all rows of the global batch, as the stream carries them.
            epoch: number of the network's epoch, from 0.
            step: number of the step in the epoch, from 0.

        Raises:
            SettingError: a function fails, or returns something else than a batch.
        """
        changed = transformed_sample(self.sample)
        usable = self.sample.target.is_usable(targets)
        new_inputs = np.zeros((len(targets), *changed.input.shape), changed.input.dtype)
        new_targets = np.zeros(len(targets), changed.target.wire)
        new_targets["weight"] = UNUSABLE
        if usable.any():
            batch = self._transform(
                self._make_batch(inputs[usable], targets[usable], changed), epoch, step
            )
            new_inputs[usable] = batch["input"]
            new_targets["target"][usable] = batch["target"]
            new_targets["weight"][usable] = batch["weight"]
        return new_inputs, new_targets

    def _make_batch(
        self, inputs: np.ndarray, targets: np.ndarray, changed: SampleSpec
    ) -> dict[str, np.ndarray]:
        affine = self.sample.affine
        if affine is None:
            scaled = inputs.astype(changed.input.dtype)
        else:
            scaled = affine.apply(np.ascontiguousarray(inputs))
        plain, *weights = self.sample.target.split(targets)
        if plain.ndim == 1:  # classes
            shares = np.eye(self.sample.target.outputs, dtype=np.float32)[plain]
        else:
            shares = plain.astype(changed.target.dtype)
        weight = weights[0].copy() if weights else np.ones(len(targets), np.float32)
        return {"input": scaled, "target": shares, "weight": weight}

    def _transform(
        self, batch: dict[str, np.ndarray], epoch: int, step: int
    ) -> dict[str, np.ndarray]:
        key = [self.seed, _BATCH, epoch, step]
        rng = np.random.default_rng(key)
        [seed] = np.random.SeedSequence(key).generate_state(1, np.uint64).tolist()
        before = {name: (values.shape, values.dtype) for name, values in batch.items()}
        with UserCode(keeps_rng_state=False).running(quick=True), exclusive_generators():
            seed_generators(seed)
            for name, function in self.functions:
                try:
                    returned = function(batch, rng)
                except Exception as error:  # the user's function may raise anything
                    raise _error(name, f"failed: {one_line(error)}") from error
                batch = _check(name, batch if returned is None else returned, before)
        return batch


def _load(transform: Measure) -> tuple[str, Callable[..., Any]]:
    """Return the name of a batch transform, and the function with its arguments."""
    name = name_of(transform)
    arguments = parameters_of(transform)
    function = BATCH_TRANSFORMS.get(name) or load_custom(name, "batch transform", _KEY)
    if not callable(function):
        raise _error(name, f"is a {type(function).__name__}; it should be a function")
    try:
        inspect.signature(function).bind(None, None, **arguments)
    except TypeError as error:
        raise _error(
            name, f"does not take (batch, rng{''.join(f', {key}' for key in arguments)}): {error}"
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    return name, partial(function, **arguments)


def _check(
    name: str, batch: Any, before: Mapping[str, tuple[tuple[int, ...], np.dtype]]
) -> dict[str, np.ndarray]:
    """Return a batch with the arrays of ``before``, converted to their types."""
    if not isinstance(batch, Mapping):
        raise _error(
            name, f"returned a {type(batch).__name__}; it should return the batch, a mapping"
        )
    missing = [key for key in before if key not in batch]
    unknown = [key for key in batch if key not in before]
    if missing or unknown:
        wrong = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}"
        raise _error(
            name, f"returned a batch that {wrong}; it should have {', '.join(before)} and no more"
        )
    checked = {}
    for key, (shape, dtype) in before.items():
        values = np.asarray(batch[key])
        if values.shape != shape or not np.can_cast(values.dtype, dtype, "same_kind"):
            raise _error(
                name,
                f"returned {key} of shape {values.shape} and type {values.dtype}; it should have "
                f"the shape {shape} and the type {dtype}, as before",
            )
        checked[key] = values.astype(dtype, copy=False)
    if not (np.isfinite(checked["weight"]) & (checked["weight"] >= 0)).all():
        raise _error(name, "returned a weight that is negative or not finite")
    return checked


def _error(name: str, problem: str) -> SettingError:
    return SettingError(f"the batch transform {name} {problem}", "train", _KEY)
