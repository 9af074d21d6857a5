"""The data of a spec: opened, looked at once by rank 0, and described for all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.spec.data import Target
from fleet.spec.settling import settled
from fleet.storage.files import storing
from fleet.terminal import progress_bar
from preprocess.base import BadSample, CannotWrite, DataSet
from preprocess.decoded_copy import decode_once
from preprocess.probe import Look, look
from preprocess.sample import SampleSpec
from preprocess.source import fold_of, open_data
from preprocess.target import TargetWish, plain_targets, target_of
from preprocess.transforms import Transform, parse_transforms


@dataclass(frozen=True)
class Inputs:
    """What networks learn from and are judged by.

    Attributes:
        data: the samples as they lie there.
        transforms: what is done to them.
        samples: what a sample of each part is then, by the names of :meth:`DataSet.parts`; they may differ in what is
            kept of them alone.
        looks: what the first look at each part has shown.
        left_out: the samples that could not be decoded when they were, once and for all.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    looks: Mapping[str, Look]
    left_out: tuple[BadSample, ...] = ()

    @property
    def sample(self) -> SampleSpec:
        """A training sample."""
        return self.samples["train"]

    def keeping(self, cache: str) -> Inputs:
        """The same, with what is kept of decoded samples: of those for training in memory, of all in a file.

        Args:
            cache: as in ``data.cache``.

        Raises:
            InputError: they are not alike before the first random transform.
        """
        parts = {"none": (), "memory": ("train",), "file": tuple(self.samples)}[cache]
        kept = {name: replace(self.samples[name], kept=self.looks[name].keeping().kept) for name in parts}
        return replace(self, samples={**self.samples, **kept})


def open_inputs(spec: Spec) -> Inputs:
    """Open the data of a spec and look at a few of its samples, each once.

    Raises:
        InputError, UserError: the data is not there, or not what it should be.
    """
    settings = spec.data
    transforms = parse_transforms(settings.transforms)
    validation = settings.validation if settings.folds is None else None
    data = open_data(settings.source, settings.path, validation, spec.seed, settings.options,
                     settings.test, _wish(settings.target))
    if settings.folds is not None:
        data = _folded(data, settings.folds, spec.seed)
    try:
        pickle.dumps(data)  # all ranks get it from rank 0, by MPI
    except Exception as error:  # the user's classes may raise anything
        raise UserError(f"data.source: {settings.source} cannot be sent to the other ranks: {error}; it should "
                        "hold plain values, and open its files when it reads") from None
    looks = {name: look(source, transforms, spec.seed) for name, source in data.parts().items()}
    weighted = any(one.sample.target.weighted for one in looks.values())  # what travels is the same of all parts
    samples = {name: replace(one.sample, target=replace(one.sample.target, weighted=weighted))
               for name, one in looks.items()}
    for part, sample in samples.items():
        if sample.image != samples["train"].image:
            raise UserError(f"data: training samples are {samples['train'].image} and {part} samples {sample.image}; "
                            "add a resize or a crop")
    return Inputs(data, transforms, samples, looks)


def _wish(target: str | Target | None) -> TargetWish | None:
    """What a spec says of the targets."""
    if target is None:
        return None
    if isinstance(target, str):
        target = Target(kind=target)  # type: ignore[arg-type] # the schema has seen to it
    return TargetWish(target.kind, target.outputs, target.names, target.ignore)


def settle(spec: Spec, data: DataSet) -> Spec:
    """The spec with what its data decides: what is monitored, and the weights of classes.

    Raises:
        UserError: there are no such classes.
    """
    target = target_of(data.train)
    counts: tuple[int, ...] = ()
    if target.kind == "class" and any(network.train.class_weights == "balanced" for network in spec.networks):
        counts = tuple(np.bincount(np.asarray(plain_targets(data.train)), minlength=target.outputs).tolist())
    return settled(spec, target, counts)


def _folded(data: DataSet, folds: int, seed: int) -> DataSet:
    """Data of which every training sample judges the networks of its fold; a validation part is left aside."""
    fold_of(data.train, folds, seed)  # says what is wrong before anything else is done
    remark = data.remark if data.validation is None else (
        f"data: with data.folds: {folds} each network is judged by a fold of the training samples; the validation part "
        "of the data is not used, unless data.test names it")
    return replace(data, validation=data.train, remark=remark)


def folds_of(spec: Spec, data: DataSet) -> np.ndarray | None:
    """The fold of each training sample, (samples,); None where there are no folds."""
    return None if spec.data.folds is None else fold_of(data.train, spec.data.folds, spec.seed)


def samples_of_epoch(data: DataSet, folds: np.ndarray | None) -> int:
    """How many samples a network trains on in an epoch; of folds, those of the fewest."""
    return len(data.train) - (0 if folds is None else int(np.bincount(folds).max()))


def decode(inputs: Inputs, spec: Spec, path: Path) -> Inputs:
    """The same with decoded images; the copy at ``path`` is made where it is not there yet.

    Raises:
        UserError: too many samples cannot be decoded.
        StorageError: the disk is full, ...
    """
    data = inputs.data
    total = sum(map(len, data.parts().values()))
    with progress_bar(total, "decoding once") as advance, storing(path, kind=CannotWrite):
        decoded = decode_once(data, inputs.transforms, inputs.samples, path, advance)
    if len(decoded.left_out) > spec.data.max_bad * len(data.train):
        raise UserError(f"{len(decoded.left_out)} of {total} samples cannot be decoded, more than data.max_bad: "
                        f"{spec.data.max_bad:.2%}; the first: {decoded.left_out[0]}")
    return replace(inputs, data=decoded.data, transforms=decoded.transforms, left_out=tuple(decoded.left_out))
