"""The data of a spec: opened and probed once by rank 0, and described for all ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fleet.errors import UserError
from fleet.runtime.startup import input_pipelines
from fleet.runtime.startup.input_pipelines import InputPipeline
from fleet.runtime.startup.padding import measure_padded
from fleet.spec import Spec
from fleet.spec.criteria import with_data_defaults
from fleet.spec.data import Target
from fleet.storage.files import storage_errors
from fleet.stream.layout import row_bytes
from fleet.terminal import progress_bar
from launch.errors import InputError
from preprocess.base import CannotWrite, DataSet, Source, UnreadableSample
from preprocess.chain import split_scale
from preprocess.decoded_copy import decode_once
from preprocess.fingerprint import Fingerprint
from preprocess.moments import Standardization, compute_standardization
from preprocess.probe import SampleProbe
from preprocess.record_pipeline import make_input_pipeline, make_pipeline
from preprocess.records import AnyTransforms, lists_of, transforms_by_input
from preprocess.sample import Affine, SampleSpec
from preprocess.source import assign_folds, open_per_target
from preprocess.target import (
    Request,
    TargetSpec,
    TargetWish,
    plain_targets,
    read_mask,
    target_of,
)
from preprocess.transforms.color import Standardize
from preprocess.transforms.on_device import inline_device_transforms

_EXAMPLES = 16  # samples on which data.collate is tried
_MAX_CHANNELS = 4  # a first axis of this length or less may be the channels of an image


@dataclass(frozen=True)
class Inputs(InputPipeline):
    """The input pipeline of all networks, or of the stream that several pipelines share.

    Attributes:
        probes: split -> probe.
        left_out: the samples that could not be decoded into a file.
        pipelines: the input pipelines by key, if there are several.
        fingerprint: the data's fingerprint; empty if it was not requested.
        rows: (samples,) int64, the rows of the training samples in the fingerprint.
        folds: (samples,) int, the fold of each training sample; None without folds.
    """

    probes: Mapping[str, SampleProbe] = field(default_factory=dict)
    left_out: tuple[UnreadableSample, ...] = ()
    pipelines: Mapping[str, InputPipeline] = field(default_factory=dict)
    fingerprint: Fingerprint = field(default_factory=lambda: Fingerprint({}))
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    folds: np.ndarray | None = None

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Pipeline key -> names of its classes, labels or values; empty if they have none."""
        return {key: pipeline.data.classes for key, pipeline in self.by_pipeline.items()}

    @property
    def sample(self) -> SampleSpec:
        """The specification of a training sample."""
        return self.samples["train"]

    @property
    def stored_bytes(self) -> int:
        """Size of all training samples as they are stored in memory."""
        assert self.sample.stored is not None
        row = row_bytes(self.sample.stored, self.sample.stored_target.wire)
        return len(self.data.train) * row

    @property
    def epoch_samples(self) -> int:
        """Number of samples of a network's epoch; with folds, the smallest."""
        held_out = 0 if self.folds is None else int(np.bincount(self.folds).max())
        return len(self.data.train) - held_out

    @property
    def by_pipeline(self) -> Mapping[str, InputPipeline]:
        """Input pipelines by key; a single one has an empty key."""
        return self.pipelines or {"": self}

    def for_ranks(self) -> Inputs:
        """Return the inputs without the parts that only rank 0 needs."""
        return replace(
            self,
            examples={},
            probes={},
            pipelines={key: replace(part, examples={}) for key, part in self.pipelines.items()},
            fingerprint=Fingerprint({}),
            rows=np.empty(0, np.int64),
        )

    def keeping(self, cache: str) -> Inputs:
        """Return the inputs with stored samples: training ones in memory, or all in a file.

        Args:
            cache: a value of ``data.cache``.

        Raises:
            InputError: samples differ in shape before the first random transform.
        """
        parts = {"none": (), "memory": ("train",), "file": tuple(self.samples)}[cache]
        stored = {}
        for name in parts:
            array = self.probes[name].with_stored().stored
            assert array is not None
            stored[name] = self.samples[name].with_stored(array)
        pipelines = self.pipelines
        if "train" in stored and cache == "memory":
            pipelines = {
                key: replace(pipeline, stream_target=stored["train"].stored_target)
                for key, pipeline in pipelines.items()
            }
        return replace(self, samples={**self.samples, **stored}, pipelines=pipelines)


def open_inputs(
    spec: Spec,
    with_fingerprint: bool = False,
    before: Fingerprint | None = None,
    features: Sequence[str] = (),
) -> Inputs:
    """Open the data of a spec and probe a few of its samples.

    Args:
        with_fingerprint, before, features: see :func:`open_data_sets`.

    Raises:
        InputError, UserError: the data is missing or invalid; or all samples of a split have been
            removed.
    """
    data_sets, fingerprint = open_data_sets(spec, with_fingerprint, before, features)
    data_of = _split_by_pipeline(spec, data_sets)
    data = next(iter(data_of.values()))
    try:
        pickle.dumps(data)  # rank 0 broadcasts it
    except Exception as error:  # users' classes may raise anything
        raise UserError(
            f"data.source: {spec.data.source} cannot be sent to the other ranks: {error}; store "
            "only picklable attributes, and open files when samples are read"
        ) from None
    padded = measure_padded(spec, data_of)
    data_of = dict(padded.data)
    data = next(iter(data_of.values()))
    transforms_by_key = input_pipelines.parse_pipeline_transforms(spec, data_of, padded.pads)
    transforms = next(iter(transforms_by_key.values()))
    pipelines = dict[str, InputPipeline]()
    prepares_own = spec.policy.own_samples and spec.data.cache != "file"
    if len(transforms_by_key) == 1 or prepares_own:
        samples, probes = input_pipelines.probe_splits(data, transforms, spec.seed)
        shared = input_pipelines.SharedTransforms((), dict.fromkeys(transforms_by_key, 0), {})
    else:
        shared = input_pipelines.find_shared_transforms(spec, data_of, transforms_by_key)
        transforms = shared.transforms
        samples, probes = input_pipelines.probe_shared_samples(data, shared, spec)
    if len(transforms_by_key) > 1:
        pipelines = input_pipelines.make_pipelines(
            spec, data_of, transforms_by_key, shared, None if prepares_own else samples
        )
        samples = {
            split: replace(
                sample,
                per_pipeline={key: pipeline.samples[split] for key, pipeline in pipelines.items()},
            )
            for split, sample in samples.items()
        }
    if spec.data.collate is not None:
        samples = _with_collation(spec, data, transforms, samples, len(pipelines))
    remark = "\n".join(
        filter(
            None,
            (
                data.remark,
                padded.remark,
                probes["train"].remark,
                input_pipelines.describe_sharing(spec, pipelines),
                _describe_channels(samples),
                input_pipelines.describe_device_transforms(spec, transforms_by_key),
            ),
        )
    )
    rows = np.flatnonzero(fingerprint.sides == 0)
    folds = None
    if spec.data.folds is not None:
        saved_folds = fingerprint.folds[rows] if len(fingerprint.folds) else None
        folds = assign_folds(data.train, spec.data.folds, spec.seed, saved_folds)
    return Inputs(
        replace(data, remark=remark),
        transforms,
        samples,
        examples=probes["train"].examples,
        probes=probes,
        pipelines=pipelines,
        fingerprint=fingerprint,
        rows=rows,
        folds=folds,
    )


def _with_collation(
    spec: Spec,
    data: DataSet,
    transforms: AnyTransforms,
    samples: Mapping[str, SampleSpec],
    pipelines: int,
) -> dict[str, SampleSpec]:
    """Return the specs of samples of which a function of the user makes inputs of networks.

    Raises:
        UserError, InputError: there are several pipelines, or none of the first samples can be
            used.
    """
    path = spec.data.collate
    assert path is not None
    if pipelines > 1:
        raise UserError(
            "data.collate: entries of models have other data, and one function makes the inputs of "
            "all; use several runs"
        )
    pipeline = make_pipeline(data.train, transforms, spec.seed, samples["train"])
    count = min(_EXAMPLES, len(data.train))
    inputs, targets = pipeline.empty(count)
    errors = pipeline.load(range(count), 0, inputs, targets)
    unusable = [error.position for error in errors if error.position is not None]
    examples = np.delete(inputs, np.array(unusable, np.int64), axis=0)
    if not len(examples):
        raise UserError(f"data.collate: the first samples cannot be used: {errors[0]}")
    try:
        return {split: sample.with_collation(path, examples) for split, sample in samples.items()}
    except InputError as error:
        raise InputError(f"data.{error}") from error


def open_data_sets(
    spec: Spec,
    with_fingerprint: bool = True,
    before: Fingerprint | None = None,
    features: Sequence[str] = (),
) -> tuple[tuple[DataSet, ...], Fingerprint]:
    """Open the data of a spec for each target.

    Args:
        with_fingerprint: whether to make its fingerprint, which is empty otherwise.
        before: the fingerprint of an earlier launch, with its division into splits; None to divide
            the data anew.
        features: see :func:`~preprocess.source.open_per_target`.
    """
    settings = spec.data
    division = None
    if with_fingerprint:
        validation, test = (
            setting if isinstance(setting, float) else None
            for setting in (settings.validation, settings.test)
        )
        division = (
            f"validation: {validation}, test: {test}, folds: {settings.folds}, seed: {spec.seed}"
        )
    return open_per_target(
        settings.source,
        settings.path,
        settings.validation if settings.folds is None else None,
        spec.seed,
        settings.options,
        settings.test,
        [_parse_target(target) for target in _list_targets(spec)],
        division,
        before,
        features,
    )


def _describe_channels(samples: Mapping[str, SampleSpec]) -> str:
    """Describe inputs whose channels seem to come first; empty if there are none."""
    for sample in samples.values():
        variants = (sample, *sample.per_pipeline.values())
        for part in [part for variant in variants for part in variant.by_input.values()]:
            shape = part.input.shape
            if len(shape) == 3 and shape[0] <= _MAX_CHANNELS < min(shape[1:]):
                height, width, channels = shape
                return (
                    f"data: inputs of {part.input} are read as images of height {height} and "
                    f"width {width} with {channels} channels; if their first axis is the channels, "
                    f"move it to the end: ({width}, {channels}, {height})"
                )
    return ""


def describe_standardizing(spec: Spec, inputs: Inputs) -> str:
    """Describe the data that inputs are standardized by; empty if they are not."""
    scales = [
        split_scale(items)[1]
        for pipeline in inputs.by_pipeline.values()
        for items in lists_of(pipeline.transforms)
    ]
    words = dict.fromkeys(scale.written for scale in scales if isinstance(scale, Standardize))
    if not words:
        return ""
    if spec.data.folds:
        samples = "each fold's training samples"
    else:
        samples = "the training samples"
    verb = "uses" if len(words) == 1 else "use"
    return (
        f"{' and '.join(words)} {verb} means and deviations of {samples}, computed before training "
        "and exported with the networks"
    )


def _list_targets(spec: Spec) -> list[Any]:
    """Return the distinct targets of all input pipelines."""
    targets = [settings.target for settings in spec.data_by_pipeline.values()]
    return [target for index, target in enumerate(targets) if target not in targets[:index]]


def _split_by_pipeline(spec: Spec, data_sets: tuple[DataSet, ...]) -> dict[str, DataSet]:
    """Return the data of each input pipeline: the same samples, equally divided."""
    targets = _list_targets(spec)
    if spec.data.folds is not None:
        data_sets = tuple(_use_folds(data, spec.data.folds, spec.seed) for data in data_sets)
    return {
        key: data_sets[targets.index(settings.target)]
        for key, settings in spec.data_by_pipeline.items()
    }


def _parse_target(target: str | Target | Mapping[str, str | Target] | None) -> Request:
    """Parse the target settings of a spec."""
    if target is None:
        return None
    if isinstance(target, Mapping):
        return {name: _parse_wish(part) for name, part in target.items()}
    return _parse_wish(target)


def _parse_wish(target: str | Target) -> TargetWish:
    if isinstance(target, str):
        target = Target(kind=target)  # type: ignore[arg-type] # the schema has checked it
    return TargetWish(target.kind, target.outputs, target.names, target.ignore)


def resolve_with_data(opened: Inputs, *specs: Spec) -> list[Spec]:
    """Resolve the settings of specs that depend on the data: monitored metric, class weights.

    Raises:
        UserError: class weights do not fit the classes of the data.
    """
    target_counts: dict[str, tuple[TargetSpec, dict[str, tuple[int, ...]]]] = {}
    networks = [network for spec in specs for network in spec.networks]
    for key in specs[0].data_by_pipeline:
        source = (opened.pipelines[key].data if opened.pipelines else opened.data).train
        target = target_of(source)
        balanced: set[str] = set()
        for network in networks:
            if network.pipeline == key:
                balanced |= _balanced_targets(network.train.class_weights, target)
        target_counts[key] = target, {name: _count(source, target, name) for name in balanced}
    return [with_data_defaults(spec, target_counts) for spec in specs]


def _balanced_targets(weights: Any, target: TargetSpec) -> set[str]:
    """Return the names of targets whose classes are weighted by their samples; one has no name."""
    if weights == "balanced":
        return {
            name
            for name, part in (target.parts or {"": target}).items()
            if part.semantics.has_classes
        }
    if not isinstance(weights, Mapping):
        return set()
    return {
        name
        for name, part in target.parts.items()
        if weights.get(name) == "balanced" and part.semantics.has_classes
    }


def _count(source: Source, target: TargetSpec, name: str) -> tuple[int, ...]:
    """Count the samples, or pixels, of each class of a target by its name, if there are several."""
    part = target.parts[name] if name else target
    if part.semantics.is_of_pixels:
        return _count_class_pixels(source, part)
    targets = plain_targets(source)
    labels = np.asarray(targets[name] if name else targets)
    return tuple(np.bincount(labels, minlength=part.outputs).tolist())


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
    assign_folds(data.train, folds, seed)  # raises early if the data cannot be divided
    if data.validation is None:
        remark = data.remark
    else:
        remark = (
            f"data: with data.folds: {folds}, each network is evaluated on one fold of the "
            "training samples; the validation split is not used, unless data.test names it"
        )
    return replace(data, validation=data.train, remark=remark)


def standardize(
    inputs: Inputs, spec: Spec, before: Mapping[str, Standardization]
) -> tuple[Inputs, dict[str, Standardization]]:
    """Return the inputs with means and deviations of the training samples.

    Args:
        before: pipeline key -> standardization of earlier launches, which is kept if the spec still
            has the same transforms, even if data was added.

    Returns:
        The inputs, and pipeline key -> standardization.

    Raises:
        InputError: no sample can be read.
    """
    results = dict[str, Standardization]()
    for key, settings in spec.data_by_pipeline.items():
        input_pipeline = inputs.by_pipeline[key if inputs.pipelines else ""]
        sample = input_pipeline.samples["train"]
        source = input_pipeline.data.train
        for name, items in transforms_by_input(input_pipeline.transforms).items():
            transform = split_scale(items)[1]
            if not isinstance(transform, Standardize):
                continue
            part = sample.by_input[name]
            written: Any = settings.transforms
            if sample.parts:
                written = written[name]
            settings_key = json.dumps(written, default=str)
            result_key = _standardization_key(key, name if sample.parts else "")
            earlier = before.get(result_key)
            features = transform.features(part.input.shape)
            if (
                earlier is not None
                and earlier.transforms == settings_key
                and len(earlier.folds) == (spec.data.folds or 0)
                and np.size(earlier.affine.mean) == features
            ):
                results[result_key] = earlier
                continue
            pipeline = make_input_pipeline(
                source,
                _inline_device(input_pipeline.transforms),
                name,
                spec.seed,
                replace(part, deferred_input=None).as_float64(),
            )
            with progress_bar(pipeline.samples, "means and deviations") as advance:
                results[result_key] = compute_standardization(
                    settings_key, pipeline, transform, inputs.folds, advance
                )
            if inputs.pipelines or sample.deferred_input is not None:
                _check_float32(results[result_key].affine)

    def with_affine(sample: SampleSpec, key: str, name: str = "") -> SampleSpec:
        if sample.parts:
            return sample.with_parts(
                {name: with_affine(part, key, name) for name, part in sample.parts.items()}
            )
        result = results.get(_standardization_key(key, name))
        if result is None:
            return sample
        return replace(
            sample.as_float64() if result.affine.precise else sample,
            affine=result.affine,
            folds=result.folds,
        )

    single_key = "" if inputs.pipelines else next(iter(spec.data_by_pipeline))
    samples = {
        split: replace(
            sample if inputs.pipelines else with_affine(sample, single_key),
            per_pipeline={
                key: with_affine(variant, key) for key, variant in sample.per_pipeline.items()
            },
        )
        for split, sample in inputs.samples.items()
    }
    return replace(inputs, samples=samples), results


def _standardization_key(key: str, name: str) -> str:
    """Return the key of the moments of a pipeline, or of one of its several inputs."""
    return f"{key}#{name}" if name else key


def _inline_device(transforms: AnyTransforms) -> AnyTransforms:
    if isinstance(transforms, tuple):
        return inline_device_transforms(transforms)
    return transforms


def _check_float32(affine: Affine) -> None:
    """Check that float32 can represent standardized inputs.

    Raises:
        InputError: float32 is not precise enough.
    """
    if affine.precise:
        raise InputError(
            "transforms: standardize: the mean of a feature is thousands of standard deviations "
            "away from 0, too far for the precision of float32; subtract an offset from the data, "
            "or use the same data for all entries of models and data.augment_on: host"
        )


def decode(inputs: Inputs, spec: Spec, path: Path) -> Inputs:
    """Return the inputs with decoded images, writing the copy if it is missing.

    Raises:
        UserError: too many samples cannot be decoded.
        StorageError: the disk is full, ...
    """
    data = inputs.data
    transforms = inputs.transforms
    if not isinstance(transforms, tuple):
        raise InputError(
            "data.cache: file: samples of several inputs are kept in memory only; use memory, none "
            "or auto"
        )
    total = sum(map(len, data.splits().values()))
    with progress_bar(total, "decoding once") as advance, storage_errors(path, kind=CannotWrite):
        decoded = decode_once(data, transforms, inputs.samples, path, advance)
    if len(decoded.unreadable) > spec.data.max_unreadable * len(data.train):
        raise UserError(
            f"{len(decoded.unreadable)} of {total} samples cannot be decoded, more than "
            f"data.max_unreadable: {spec.data.max_unreadable:.2%}; the first: "
            f"{decoded.unreadable[0]}"
        )
    done = len(transforms) - len(decoded.transforms)
    return replace(
        inputs,
        data=decoded.data,
        transforms=decoded.transforms,
        left_out=tuple(decoded.unreadable),
        pipelines={
            key: pipeline.after_decoding(decoded.data, done)
            for key, pipeline in inputs.pipelines.items()
        },
    )
