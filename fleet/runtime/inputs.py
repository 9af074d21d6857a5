"""The data of a spec: opened, looked at once by rank 0, and described for all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from fleet.errors import UserError
from fleet.runtime.feeds import Feed, look_at, make_feeds, remark, transforms_of
from fleet.spec import Spec
from fleet.spec.data import Target
from fleet.spec.settling import settled
from fleet.storage.files import storing
from fleet.terminal import progress_bar
from fleet.units import counted
from preprocess.base import BadSample, CannotWrite, DataSet, InputError, Source
from preprocess.chain import split_scale
from preprocess.decoded_copy import decode_once
from preprocess.probe import Look
from preprocess.sample import SampleSpec
from preprocess.source import fold_of, open_each
from preprocess.target import TargetSpec, TargetWish, plain_targets, read_mask, target_of
from preprocess.transforms import Transform


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
        feeds: what networks are fed with, by their keys, where it is not the same for all; ``data``, ``transforms`` and
            ``samples`` are then of the stream, which carries what all have in common.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    looks: Mapping[str, Look]
    left_out: tuple[BadSample, ...] = ()
    feeds: Mapping[str, Feed] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes, labels or values, by feed; empty where they have none."""
        return {key: feed.data.classes for key, feed in self.feeds.items()} or {"": self.data.classes}

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
        feeds = self.feeds
        if "train" in kept and cache == "memory":
            feeds = {key: replace(feed, carried=kept["train"].kept_target) for key, feed in feeds.items()}
        return replace(self, samples={**self.samples, **kept}, feeds=feeds)


def open_inputs(spec: Spec) -> Inputs:
    """Open the data of a spec and look at a few of its samples, each once.

    Raises:
        InputError, UserError: the data is not there, or not what it should be.
    """
    settings = spec.data
    data_of = _open_each(spec)
    data = next(iter(data_of.values()))
    try:
        pickle.dumps(data)  # all ranks get it from rank 0, by MPI
    except Exception as error:  # the user's classes may raise anything
        raise UserError(f"data.source: {settings.source} cannot be sent to the other ranks: {error}; it should "
                        "hold plain values, and open its files when it reads") from None
    each, done = transforms_of(spec)
    transforms = next(iter(each.values()))
    if len(each) == 1:
        samples, looks = look_at(data, transforms, spec.seed)
        return Inputs(data, transforms, samples, looks)
    if spec.policy.own_samples:
        if spec.data.cache == "file":
            raise UserError("data.cache: file: with schedule.policy: baseline there is no file where entries have data "
                            "of their own; it should be none, or another policy")
        (samples, looks), stream = look_at(data, transforms, spec.seed), None
    else:
        transforms = split_scale(transforms)[0][:done]
        samples, looks = _look_at_stream(data, transforms, spec)
        stream = samples
    feeds = make_feeds(spec, data_of, stream)
    samples = {part: replace(sample, own={key: feed.samples[part] for key, feed in feeds.items()})
               for part, sample in samples.items()}
    said = "\n".join(line for line in (data.remark, remark(spec, feeds)) if line)
    return Inputs(replace(data, remark=said), transforms, samples, looks, feeds=feeds)


def _look_at_stream(data: DataSet, transforms: tuple[Transform, ...], spec: Spec
                    ) -> tuple[dict[str, SampleSpec], dict[str, Look]]:
    """What is carried to networks of which each does the rest to it.

    Raises:
        UserError: it differs from sample to sample, so that it cannot be carried.
    """
    try:
        return look_at(data, transforms, spec.seed)
    except (InputError, UserError) as error:
        raise UserError(f"data: networks share what the first {counted(len(transforms), 'transform')} of all of them "
                        f"make: {str(error).removeprefix('data: ')}, the same one in all entries; or let each network "
                        "prepare its own samples (schedule.policy: baseline)") from error


def _open_each(spec: Spec) -> dict[str, DataSet]:
    """The data of each feed: the same samples, divided in the same way."""
    settings, wishes = spec.data, list[Target | str | None]()
    for feed in spec.feeds.values():
        if feed.target not in wishes:
            wishes.append(feed.target)
    validation = settings.validation if settings.folds is None else None
    found = open_each(settings.source, settings.path, validation, spec.seed, settings.options, settings.test,
                      [_wish(target) for target in wishes])
    if settings.folds is not None:
        found = tuple(_folded(data, settings.folds, spec.seed) for data in found)
    return {key: found[wishes.index(feed.target)] for key, feed in spec.feeds.items()}


def _wish(target: str | Target | None) -> TargetWish | None:
    """What a spec says of the targets."""
    if target is None:
        return None
    if isinstance(target, str):
        target = Target(kind=target)  # type: ignore[arg-type] # the schema has seen to it
    return TargetWish(target.kind, target.outputs, target.names, target.ignore)


class Opened(Protocol):
    """Data that was opened."""

    @property
    def data(self) -> DataSet:
        """As of :class:`Inputs`."""

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """As of :class:`Inputs`."""


def settle(opened: Opened, *specs: Spec) -> list[Spec]:
    """Specs of the same data with what that decides: what is monitored, and the weights of classes.

    Raises:
        UserError: there are no such classes.
    """
    told: dict[str, tuple[TargetSpec, tuple[int, ...]]] = {}
    networks = [network for spec in specs for network in spec.networks]
    for key in specs[0].feeds:
        source = (opened.feeds[key].data if opened.feeds else opened.data).train
        target, counts = target_of(source), tuple[int, ...]()
        if any(network.train.class_weights == "balanced" for network in networks if network.feed == key):
            if target.kind == "class":
                counts = tuple(np.bincount(np.asarray(plain_targets(source)), minlength=target.outputs).tolist())
            elif target.kind == "mask":
                counts = _pixels_of_classes(source, target)
        told[key] = target, counts
    return [settled(spec, told) for spec in specs]


def _pixels_of_classes(source: Source, target: TargetSpec) -> tuple[int, ...]:
    """How many pixels each class has in all masks; those that cannot be read, or count for nothing, are left out."""
    counts = np.zeros(target.outputs, np.int64)
    with progress_bar(len(source), "counting pixels") as advance:
        for index in range(len(source)):
            with suppress(BadSample):
                mask = read_mask(source, index, target)
                counts += np.bincount(mask[mask != target.void], minlength=target.outputs)
            advance(1)
    return tuple(counts.tolist())


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
    done = len(inputs.transforms) - len(decoded.transforms)
    return replace(inputs, data=decoded.data, transforms=decoded.transforms, left_out=tuple(decoded.left_out),
                   feeds={key: feed.after_decoding(decoded.data, done) for key, feed in inputs.feeds.items()})
