"""The data of a spec: opened and probed once by rank 0, and described for all ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fleet.errors import UserError
from fleet.runtime import input_pipelines as feeding
from fleet.runtime.input_pipelines import InputPipeline
from fleet.spec import Spec
from fleet.spec.criteria import with_data_defaults
from fleet.spec.data import Target
from fleet.storage.files import storage_errors
from fleet.terminal import progress_bar
from preprocess.base import CannotWrite, DataSet, InputError, Source, UnreadableSample
from preprocess.chain import split_scale
from preprocess.decoded_copy import decode_once
from preprocess.fingerprint import Fingerprint
from preprocess.moments import Standardization, compute_standardization
from preprocess.pipeline import Pipeline
from preprocess.probe import SampleProbe
from preprocess.sample import Affine, SampleSpec
from preprocess.source import assign_folds, open_per_target
from preprocess.target import TargetSpec, TargetWish, plain_targets, read_mask, target_of
from preprocess.transforms import Transform
from preprocess.transforms.color import Standardize
from preprocess.transforms.on_device import inline_device_transforms

_CHANNELS = 4  # of an image, at most, where its last number is not taken for them


@dataclass(frozen=True)
class Inputs:
    """The data that networks train on and are evaluated on.

    Attributes:
        data: the samples as they lie there.
        transforms: what is done to them.
        samples: what a sample of each part is then, by the names of :meth:`DataSet.splits`; they
            may differ in what is kept of them alone.
        probes: the probes of each split.
        left_out: the samples that could not be decoded when they were, once and for all.
        pipelines: what networks are fed with, by their keys, where it is not the same for all;
            ``data``, ``transforms`` and ``samples`` are then of the stream, which carries what all
            have in common.
        fingerprint: what the data is known by; None if it was not requested.
        rows: the places of the training samples among those of ``train`` in the fingerprint, before
            any are taken.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    probes: Mapping[str, SampleProbe]
    left_out: tuple[UnreadableSample, ...] = ()
    pipelines: Mapping[str, InputPipeline] = field(default_factory=dict)
    fingerprint: Fingerprint | None = None
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes, labels or values, by feed; empty where they have none."""
        return {key: feed.data.classes for key, feed in self.pipelines.items()} or {
            "": self.data.classes
        }

    @property
    def sample(self) -> SampleSpec:
        """A training sample."""
        return self.samples["train"]

    def for_ranks(self) -> Inputs:
        """Return the inputs without what only rank 0 needs."""
        return replace(self, probes={}, fingerprint=None, rows=np.empty(0, np.int64))

    def keeping(self, cache: str) -> Inputs:
        """Return the inputs with stored samples: training ones in memory, or all in a file.

        Args:
            cache: as in ``data.cache``.

        Raises:
            InputError: they are not alike before the first random transform.
        """
        parts = {"none": (), "memory": ("train",), "file": tuple(self.samples)}[cache]
        stored = {
            name: replace(self.samples[name], stored=self.probes[name].with_stored().stored)
            for name in parts
        }
        pipelines = self.pipelines
        if "train" in stored and cache == "memory":
            pipelines = {
                key: replace(feed, stream_target=stored["train"].stored_target)
                for key, feed in pipelines.items()
            }
        return replace(self, samples={**self.samples, **stored}, pipelines=pipelines)


def open_inputs_with_fingerprint(
    spec: Spec, before: Fingerprint | None, features: Sequence[str] = ()
) -> Inputs:
    """Open the data as :func:`open_inputs` does, with its fingerprint and old division.

    Args:
        before: what it was known by, and how it was divided; None to divide it anew.
        features: see :func:`~preprocess.source.open_per_target`.

    Raises:
        InputError, UserError: as there; or all samples of a side have gone.
    """
    data_sets, fingerprint = fingerprint_data(spec, before, features)
    return replace(
        _probe(spec, _split_by_pipeline(spec, data_sets)),
        fingerprint=fingerprint,
        rows=np.flatnonzero(fingerprint.sides == 0),
    )


def fingerprint_data(
    spec: Spec, before: Fingerprint | None, features: Sequence[str] = ()
) -> tuple[tuple[DataSet, ...], Fingerprint]:
    """Open the data of a spec for each target, with its fingerprint."""
    settings = spec.data
    shares = [
        setting if isinstance(setting, float) else None
        for setting in (settings.validation, settings.test)
    ]
    division = (
        f"validation: {shares[0]}, test: {shares[1]}, folds: {settings.folds}, seed: {spec.seed}"
    )
    targets = _list_targets(spec)
    return open_per_target(
        settings.source,
        settings.path,
        *_division_of(spec),
        settings.options,
        settings.test,
        [_parse_target(target) for target in targets],
        division,
        before,
        features,
    )


def open_inputs(spec: Spec) -> Inputs:
    """Open the data of a spec and probe a few of its samples.

    Raises:
        InputError, UserError: the data is not there, or not what it should be.
    """
    settings = spec.data
    data_sets, _ = open_per_target(
        settings.source,
        settings.path,
        *_division_of(spec),
        settings.options,
        settings.test,
        [_parse_target(target) for target in _list_targets(spec)],
    )
    return _probe(spec, _split_by_pipeline(spec, data_sets))


def _probe(spec: Spec, data_of: Mapping[str, DataSet]) -> Inputs:
    """Probe a few samples of opened data, by input pipeline."""
    settings = spec.data
    data = next(iter(data_of.values()))
    try:
        pickle.dumps(data)  # all ranks get it from rank 0, by MPI
    except Exception as error:  # the user's classes may raise anything
        raise UserError(
            f"data.source: {settings.source} cannot be sent to the other ranks: {error}; it should "
            "hold plain values, and open its files when it reads"
        ) from None
    transforms_by_key = feeding.parse_pipeline_transforms(spec, data_of)
    transforms = next(iter(transforms_by_key.values()))
    pipelines = dict[str, InputPipeline]()
    prepares_own = spec.policy.own_samples and spec.data.cache != "file"
    if len(transforms_by_key) == 1 or prepares_own:
        samples, probes = feeding.probe_splits(data, transforms, spec.seed)
        shared = feeding.SharedTransforms((), dict.fromkeys(transforms_by_key, 0), {})
    else:
        shared = feeding.find_shared_transforms(spec, data_of, transforms_by_key)
        transforms = shared.transforms
        samples, probes = feeding.probe_shared_samples(data, shared, spec)
    if len(transforms_by_key) > 1:
        pipelines = feeding.make_pipelines(
            spec, data_of, transforms_by_key, shared, None if prepares_own else samples
        )
        samples = {
            part: replace(
                sample, per_pipeline={key: feed.samples[part] for key, feed in pipelines.items()}
            )
            for part, sample in samples.items()
        }
    remark = "\n".join(
        filter(
            None,
            (
                data.remark,
                probes["train"].remark,
                feeding.describe_sharing(spec, pipelines),
                _describe_channels(samples),
                _describe_standardizing(spec, transforms_by_key),
                feeding.describe_device_transforms(spec, transforms_by_key),
            ),
        )
    )
    return Inputs(replace(data, remark=remark), transforms, samples, probes, pipelines=pipelines)


def _describe_channels(samples: Mapping[str, SampleSpec]) -> str:
    """Describe inputs whose channels seem to come first; empty if there are none."""
    for sample in samples.values():
        for variant in (sample, *sample.per_pipeline.values()):
            shape = variant.image.shape
            if len(shape) == 3 and shape[0] <= _CHANNELS < min(shape[1:]):
                height, width, channels = shape
                return (
                    f"data: inputs of {variant.image} are taken for images of height {height} and width {width} with "
                    f"{channels} channels; if their channels come first, move these to the end: "
                    f"({width}, {channels}, {height})"
                )
    return ""


def _describe_standardizing(
    spec: Spec, transforms_by_key: Mapping[str, tuple[Transform, ...]]
) -> str:
    """Describe the data that inputs are standardized by; empty if they are not."""
    if not any(
        isinstance(split_scale(transforms)[1], Standardize)
        for transforms in transforms_by_key.values()
    ):
        return ""
    if spec.data.folds:
        samples = "each fold's training samples"
    else:
        samples = "the training samples"
    return (
        f"data: standardize takes means and deviations from {samples} before anything is trained; they are exported "
        "with the networks"
    )


def _list_targets(spec: Spec) -> list[Target | str | None]:
    """Return the distinct targets of all input pipelines."""
    targets = [feed.target for feed in spec.data_by_pipeline.values()]
    return [target for index, target in enumerate(targets) if target not in targets[:index]]


def _division_of(spec: Spec) -> tuple[float | str | None, int]:
    """Return the share held out for validation, and the seed of the choice."""
    return spec.data.validation if spec.data.folds is None else None, spec.seed


def _split_by_pipeline(spec: Spec, data_sets: tuple[DataSet, ...]) -> dict[str, DataSet]:
    """Return the data of each input pipeline: the same samples, equally divided."""
    targets = _list_targets(spec)
    if spec.data.folds is not None:
        data_sets = tuple(_use_folds(data, spec.data.folds, spec.seed) for data in data_sets)
    return {
        key: data_sets[targets.index(feed.target)] for key, feed in spec.data_by_pipeline.items()
    }


def _parse_target(target: str | Target | None) -> TargetWish | None:
    """Parse the target settings of a spec."""
    if target is None:
        return None
    if isinstance(target, str):
        target = Target(kind=target)  # type: ignore[arg-type] # the schema has seen to it
    return TargetWish(target.kind, target.outputs, target.names, target.ignore)


def resolve_with_data(opened: Inputs, *specs: Spec) -> list[Spec]:
    """Resolve specs with what the data decides: monitored metric and class weights.

    Raises:
        UserError: there are no such classes.
    """
    target_counts: dict[str, tuple[TargetSpec, tuple[int, ...]]] = {}
    networks = [network for spec in specs for network in spec.networks]
    for key in specs[0].data_by_pipeline:
        source = (opened.pipelines[key].data if opened.pipelines else opened.data).train
        target = target_of(source)
        counts = tuple[int, ...]()
        if any(
            network.train.class_weights == "balanced"
            for network in networks
            if network.pipeline == key
        ):
            if target.kind == "class":
                counts = tuple(
                    np.bincount(
                        np.asarray(plain_targets(source)), minlength=target.outputs
                    ).tolist()
                )
            elif target.kind == "mask":
                counts = _count_class_pixels(source, target)
        target_counts[key] = target, counts
    return [with_data_defaults(spec, target_counts) for spec in specs]


def _count_class_pixels(source: Source, target: TargetSpec) -> tuple[int, ...]:
    """Count the pixels of each class in all masks, without excluded pixels."""
    counts = np.zeros(target.outputs, np.int64)
    with progress_bar(len(source), "counting pixels") as advance:
        for index in range(len(source)):
            with suppress(UnreadableSample):
                mask = read_mask(source, index, target)
                counts += np.bincount(mask[mask != target.void], minlength=target.outputs)
            advance(1)
    return tuple(counts.tolist())


def _use_folds(data: DataSet, folds: int, seed: int) -> DataSet:
    """Return data whose training samples also evaluate the networks of their folds."""
    assign_folds(data.train, folds, seed)  # says what is wrong before anything else is done
    if data.validation is None:
        remark = data.remark
    else:
        remark = (
            f"data: with data.folds: {folds} each network is judged by a fold of the training samples; the validation part "
            "of the data is not used, unless data.test names it"
        )
    return replace(data, validation=data.train, remark=remark)


def find_folds(spec: Spec, opened: Inputs) -> np.ndarray | None:
    """Return the fold of each training sample, (samples,); None without folds."""
    if spec.data.folds is None:
        return None
    if opened.fingerprint is None or not len(opened.fingerprint.folds):
        saved_folds = None
    else:
        saved_folds = opened.fingerprint.folds[opened.rows]
    return assign_folds(opened.data.train, spec.data.folds, spec.seed, saved_folds)


def count_epoch_samples(data: DataSet, folds: np.ndarray | None) -> int:
    """Return the samples of a network's epoch; with folds, those of the smallest."""
    return len(data.train) - (0 if folds is None else int(np.bincount(folds).max()))


def standardize(
    inputs: Inputs, spec: Spec, before: Mapping[str, Standardization]
) -> tuple[Inputs, dict[str, Standardization]]:
    """Return the inputs with means and deviations of the training samples.

    Args:
        before: what earlier launches have found, by feed; it holds as long as the spec asks for the
            same, also where data was added since.

    Returns:
        The inputs, and what was found, by feed.

    Raises:
        InputError: no sample can be read.
    """
    results = dict[str, Standardization]()
    for key, settings in spec.data_by_pipeline.items():
        feed = inputs.pipelines.get(key) or InputPipeline(
            inputs.data, inputs.transforms, inputs.samples, 0
        )
        how = split_scale(feed.transforms)[1]
        if not isinstance(how, Standardize):
            continue
        settings_key = json.dumps(settings.transforms, default=str)
        folds = find_folds(spec, inputs)
        earlier = before.get(key)
        features = how.features(feed.samples["train"].image.shape)
        if earlier is not None and (
            earlier.transforms,
            len(earlier.folds),
            np.size(earlier.affine.mean),
        ) == (
            settings_key,
            spec.data.folds or 0,
            features,
        ):
            results[key] = earlier
            continue
        on_host = replace(feed.samples["train"], deferred_input=None).as_float64()
        pipeline = Pipeline(
            feed.data.train, inline_device_transforms(feed.transforms), spec.seed, on_host
        )
        with progress_bar(pipeline.samples, "means and deviations") as advance:
            results[key] = compute_standardization(settings_key, pipeline, how, folds, advance)
        if inputs.pipelines or feed.samples["train"].deferred_input is not None:
            _check_float32(results[key].affine)

    def with_affine(sample: SampleSpec, key: str) -> SampleSpec:
        if key not in results:
            return sample
        affine = results[key].affine
        return replace(
            sample.as_float64() if affine.precise else sample,
            affine=affine,
            folds=results[key].folds,
        )

    alone = "" if inputs.pipelines else next(iter(spec.data_by_pipeline))
    samples = {
        part: replace(
            sample if inputs.pipelines else with_affine(sample, alone),
            per_pipeline={
                key: with_affine(variant, key) for key, variant in sample.per_pipeline.items()
            },
        )
        for part, sample in inputs.samples.items()
    }
    return replace(inputs, samples=samples), results


def _check_float32(affine: Affine) -> None:
    """Check that float32 can represent standardized inputs.

    Raises:
        InputError: it cannot.
    """
    if affine.precise:
        raise InputError(
            "transforms: standardize: the mean of a feature is thousands of its deviations away from 0, so that "
            "float32 cannot tell its numbers apart; subtract what they have in common in the data, or give all "
            "entries of models the same data, with data.augment_on: host"
        )


def decode(inputs: Inputs, spec: Spec, path: Path) -> Inputs:
    """Return the inputs with decoded images, writing the copy if it is missing.

    Raises:
        UserError: too many samples cannot be decoded.
        StorageError: the disk is full, ...
    """
    data = inputs.data
    total = sum(map(len, data.splits().values()))
    with progress_bar(total, "decoding once") as advance, storage_errors(path, kind=CannotWrite):
        decoded = decode_once(data, inputs.transforms, inputs.samples, path, advance)
    if len(decoded.unreadable) > spec.data.max_unreadable * len(data.train):
        raise UserError(
            f"{len(decoded.unreadable)} of {total} samples cannot be decoded, more than data.max_unreadable: "
            f"{spec.data.max_unreadable:.2%}; the first: {decoded.unreadable[0]}"
        )
    done = len(inputs.transforms) - len(decoded.transforms)
    return replace(
        inputs,
        data=decoded.data,
        transforms=decoded.transforms,
        left_out=tuple(decoded.unreadable),
        pipelines={
            key: feed.after_decoding(decoded.data, done) for key, feed in inputs.pipelines.items()
        },
    )
