"""Networks with different transforms or targets on one shared stream.

The first transforms that all networks share, up to the first random one, are applied once, and the
stream carries the results. If networks decode files differently, the stream carries the results of
each, packed into one sample. Each network applies its remaining transforms as it reads samples; see
docs/design/stream.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.units import listed
from launch.errors import InputError, pluralize
from preprocess.base import DataSet
from preprocess.chain import split_scale
from preprocess.padding import Pad
from preprocess.probe import SampleProbe, probe_samples
from preprocess.record_pipeline import AnyPipeline, make_pipeline
from preprocess.records import (
    AnyTransforms,
    Counts,
    RecordTransforms,
    count_all_common,
    count_all_fixed,
    count_unscaled,
    is_any,
    lists_of,
    parse_record_transforms,
    slice_transforms,
)
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec, is_mask
from preprocess.transforms import Transform
from preprocess.transforms.decoding import Decode, with_full_decoding
from preprocess.transforms.on_device import defer_to_device, inline_device_transforms, split_device
from preprocess.transforms.packed_variants import PackedSlice, PackedVariants


@dataclass(frozen=True)
class InputPipeline:
    """The samples, transforms and targets of some networks.

    Attributes:
        data: the samples, with the targets of these networks.
        transforms: all transforms.
        samples: split -> specification of a transformed sample, by the names of
            :meth:`DataSet.splits`; they differ at most in how samples are stored.
        shared_count: number of transforms that the stream has applied, of several inputs by name; 0
            without a stream, or if all networks have the same pipeline.
        stream_target: target of a sample of the stream; None without a stream, or if all networks
            have the same pipeline.
        packed_slice: this pipeline's part of a sample of the stream; None if it is not packed.
        examples: name of an input -> (k, ...) a few training inputs before the last scale; only on
            rank 0.
    """

    data: DataSet
    transforms: AnyTransforms
    samples: Mapping[str, SampleSpec]
    shared_count: Counts = 0
    stream_target: TargetSpec | None = None
    packed_slice: PackedSlice | None = None
    examples: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_input_done(self) -> bool:
        """True if the stream has applied all transforms to its inputs."""
        return self.shared_count == count_unscaled(self.transforms)

    @property
    def matches_stream(self) -> bool:
        """True if the stream carries exactly these networks' samples."""
        return self.stream_target is None or (
            self.is_input_done
            and self.packed_slice is None
            and self.samples["train"].target == self.stream_target
        )

    def pipeline(self, split: str, seed: int) -> AnyPipeline | None:
        """Return the pipeline of a split for these networks; None if the data lacks the split."""
        source = self.data.splits().get(split)
        if source is None:
            return None
        fixed = None if self.is_input_done or self.stream_target is None else self.shared_count
        return make_pipeline(
            source,
            self.transforms,
            seed,
            self.samples[split],
            fixed,
            self.stream_target,
            self.packed_slice,
        )

    def after_decoding(self, data: DataSet, shared_count: int) -> InputPipeline:
        """Return the pipeline on a decoded copy of the data."""
        if self.packed_slice is not None:
            [remaining] = lists_of(slice_transforms(self.transforms, self.shared_count, None))
            return replace(
                self,
                data=data,
                transforms=(self.packed_slice, *remaining),
                shared_count=1,
            )
        assert isinstance(self.shared_count, int)
        return replace(
            self,
            data=data,
            transforms=slice_transforms(self.transforms, shared_count, None),
            shared_count=self.shared_count - shared_count,
        )


@dataclass(frozen=True)
class SharedTransforms:
    """The transforms that are applied once for all networks.

    Attributes:
        transforms: the shared transforms, none of them random unless all networks have the same.
        shared_count: pipeline key -> number of its transforms that are shared.
        packed_slices: pipeline key -> its part of a packed sample; empty if samples are not packed.
    """

    transforms: AnyTransforms
    shared_count: Mapping[str, Counts]
    packed_slices: Mapping[str, PackedSlice]


def parse_pipeline_transforms(
    spec: Spec, data: Mapping[str, DataSet], pads: Sequence[Pad] = ()
) -> dict[str, AnyTransforms]:
    """Parse the transforms of each input pipeline.

    Args:
        data: the data of each pipeline.
        pads: how inputs of unequal length are padded.

    Raises:
        InputError: they do not fit the inputs of the data.
    """
    transforms_by_key = {}
    for key, settings in spec.data_by_pipeline.items():
        try:
            transforms_by_key[key] = parse_record_transforms(
                settings.transforms, data[key].train, settings.together, pads
            )
        except InputError as error:
            raise InputError(f"{_locate(spec, key)}.{error}") from error
    if spec.data.augment_on == "device":
        transforms_by_key = {
            key: _defer_to_device(transforms) for key, transforms in transforms_by_key.items()
        }
    return {
        key: with_full_decoding(transforms)
        if isinstance(transforms, tuple) and is_mask(data[key].train)
        else transforms
        for key, transforms in transforms_by_key.items()
    }


def _defer_to_device(transforms: AnyTransforms) -> AnyTransforms:
    if isinstance(transforms, RecordTransforms):
        raise InputError(
            "data.augment_on: device: samples have several inputs, which are transformed on the "
            "host; use host"
        )
    return defer_to_device(transforms)


def find_shared_transforms(
    spec: Spec, data: Mapping[str, DataSet], transforms_by_key: Mapping[str, AnyTransforms]
) -> SharedTransforms:
    """Find the transforms that input pipelines can share, probing samples if necessary.

    Args:
        data, transforms_by_key: the data and the transforms of each pipeline.

    Raises:
        UserError: before its first random transform, a pipeline yields samples of several shapes.
    """
    lists = list(transforms_by_key.values())
    shared_count = count_all_common(lists)
    first = lists[0]
    if isinstance(first, RecordTransforms):
        _check_one_decoding(spec, first, shared_count)
    if is_any(shared_count) or not all(_begins_with_decode(transforms) for transforms in lists):
        return SharedTransforms(
            slice_transforms(first, None, shared_count),
            dict.fromkeys(transforms_by_key, shared_count),
            {},
        )
    fixed = {
        key: lists_of(slice_transforms(transforms, None, count_all_fixed(transforms)))[0]
        for key, transforms in transforms_by_key.items()
    }
    shapes = dict[tuple[Transform, ...], tuple[int, ...]]()
    for key, transforms in fixed.items():
        if transforms not in shapes:
            try:
                samples, _ = probe_splits(data[key], transforms, spec.seed)
            except (InputError, UserError) as error:
                raise UserError(
                    f"{_locate(spec, key)}: all samples must have one shape before their first "
                    "random transform, because that part is computed once for all networks: "
                    f"{str(error).removeprefix('data: ')}; {_suggest_own_samples(spec)}"
                ) from error
            shapes[transforms] = samples["train"].input.shape
    variants = PackedVariants(tuple(shapes), tuple(shapes.values()))
    packed_slices = dict(zip(shapes, variants.slices(), strict=True))
    return SharedTransforms(
        (variants,),
        {key: len(transforms) for key, transforms in fixed.items()},
        {key: packed_slices[transforms] for key, transforms in fixed.items()},
    )


def _begins_with_decode(transforms: AnyTransforms) -> bool:
    if isinstance(transforms, RecordTransforms):
        return False
    return bool(transforms) and isinstance(transforms[0], Decode)


def _check_one_decoding(spec: Spec, first: RecordTransforms, shared: Counts) -> None:
    """Check that all pipelines decode each of several inputs alike.

    Raises:
        UserError: an input is decoded in several ways.
    """
    assert isinstance(shared, Mapping)
    for name, transforms in first.fields:
        if _begins_with_decode(transforms) and not shared[name]:
            raise UserError(
                f"data.transforms: entries of models decode the input {name} differently, which "
                "samples of several inputs cannot share; let all entries begin with the same "
                f"decode, {_suggest_own_samples(spec)}"
            )


def probe_shared_samples(
    data: DataSet, shared: SharedTransforms, spec: Spec
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """Probe the samples that the stream carries for several input pipelines.

    Raises:
        UserError: samples differ in shape, so that the stream cannot carry them.
    """
    try:
        return probe_splits(data, shared.transforms, spec.seed)
    except (InputError, UserError) as error:
        raise UserError(
            f"data: all samples must have one shape after the first "
            f"{_count_transforms(shared.transforms)}, which all networks share: "
            f"{str(error).removeprefix('data: ')}, the same one in all entries; "
            f"{_suggest_own_samples(spec)}"
        ) from error


def _count_transforms(transforms: AnyTransforms) -> str:
    if isinstance(transforms, RecordTransforms):
        return "transforms of each input"
    return pluralize(len(transforms), "transform")


def _suggest_own_samples(spec: Spec) -> str:
    """Suggest what to change if samples cannot be shared."""
    if spec.policy.own_samples:
        setting = "data.cache: none"
    else:
        setting = "schedule.policy: baseline"
    return f"or let each network prepare its own samples ({setting})"


def make_pipelines(
    spec: Spec,
    data: Mapping[str, DataSet],
    transforms_by_key: Mapping[str, AnyTransforms],
    shared: SharedTransforms,
    stream: Mapping[str, SampleSpec] | None,
) -> dict[str, InputPipeline]:
    """Make the input pipelines of a spec that has several, probing samples for each.

    Args:
        data, transforms_by_key: the data and the transforms of each pipeline.
        shared: the transforms that are applied once for all.
        stream: split -> specification of a sample of the stream; None if each network prepares its
            own samples.

    Raises:
        UserError: the targets of pipelines cannot be combined.
    """
    stream_target = None if stream is None else stream["train"].target
    pipelines = {}
    for key, transforms in transforms_by_key.items():
        try:
            samples, probes = probe_splits(data[key], transforms, spec.seed)
        except (InputError, UserError) as error:
            raise UserError(f"{_locate(spec, key)}: {str(error).removeprefix('data: ')}") from error
        pipelines[key] = InputPipeline(
            data[key],
            transforms,
            samples,
            shared.shared_count[key],
            stream_target,
            shared.packed_slices.get(key),
            probes["train"].examples,
        )
    _check_targets(spec, pipelines)
    return pipelines


def probe_splits(
    data: DataSet, transforms: AnyTransforms, seed: int
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """Probe the samples of each split; see :func:`preprocess.probe.probe_samples`.

    Raises:
        InputError, UserError: samples differ in shape or dtype.
    """
    probes = {
        name: probe_samples(source, transforms, seed) for name, source in data.splits().items()
    }
    # The targets of all splits have the same dtype in the stream.
    weighted = any(probe.sample.target.weighted for probe in probes.values())
    samples = {
        name: replace(probe.sample, target=replace(probe.sample.target, weighted=weighted))
        for name, probe in probes.items()
    }
    training_input = samples["train"].deferred_input or samples["train"].input
    for split, sample in samples.items():
        array = sample.deferred_input or sample.input
        if array != training_input:
            raise UserError(
                f"data: training samples are {training_input} and {split} samples {array}; add a "
                "resize or a crop"
            )
    return samples, probes


def _check_targets(spec: Spec, pipelines: Mapping[str, InputPipeline]) -> None:
    targets = {key: _sizeless_target(pipeline) for key, pipeline in pipelines.items()}
    if len(set(targets.values())) == 1:
        return
    first = next(iter(targets.values()))
    differing = next(key for key, target in targets.items() if target != first)
    if any(target.semantics.is_of_pixels for target in targets.values()):
        raise UserError(
            f"{_locate(spec, differing)}: a mask is transformed with its image, so all networks of "
            f"a run must have the same masks, not {' and '.join(map(str, targets.values()))}; use "
            "another run"
        )
    if spec.data.cache == "file":
        raise UserError(
            f"{_locate(spec, differing)}: data.cache: file stores one target per sample; if "
            "networks have different targets, use memory or none"
        )


def _sizeless_target(pipeline: InputPipeline) -> TargetSpec:
    return pipeline.samples["train"].target.with_size(None)


def _locate(spec: Spec, key: str) -> str:
    """Return the place in the spec of an input pipeline's data settings."""
    if not key:
        return "data"
    keys = list(map(spec.document.pipeline_of, spec.document.models))
    return f"models[{keys.index(key)}].data"


def have_same_target(pipelines: Mapping[str, InputPipeline]) -> bool:
    """Return True if all networks have the same target."""
    return len(set(map(_sizeless_target, pipelines.values()))) < 2


def describe_sharing(spec: Spec, pipelines: Mapping[str, InputPipeline]) -> str:
    """Describe which preparation is shared, in one line; empty if all of it is."""
    # A replay has several pipelines, but trains only one network.
    if len({network.pipeline for network in spec.networks}) < 2:
        return ""
    names: dict[str, list[str]] = {key: [] for key in pipelines}
    for network in spec.networks:
        names[network.pipeline].append(network.name)
    shared = {
        key: _list_transforms(spec, key, pipeline, is_shared=True)
        for key, pipeline in pipelines.items()
    }
    remaining = {
        key: _list_transforms(spec, key, pipeline, is_shared=False) or "nothing more"
        for key, pipeline in pipelines.items()
    }
    by_network = "; ".join(
        f"{listed(names[key])}: {remaining[key]}, {pipeline.samples['train'].target}"
        for key, pipeline in pipelines.items()
        if names[key]
    )
    if spec.policy.own_samples:
        return (
            "data: entries have different data, and each trainer prepares its own samples: "
            f"{by_network}"
        )
    networks = pluralize(len(spec.networks), "network")
    key, first = next(iter(pipelines.items()))
    if first.packed_slice is not None:
        prepared = "; ".join(
            f"{listed(names[key])}: {shared[key]}" for key in pipelines if names[key]
        )
        return (
            f"data: read once for all {networks}, prepared for {prepared}; by network: {by_network}"
        )
    return (
        f"data: prepared once for all {networks}: {shared[key] or 'reading'}; by network: "
        f"{by_network}"
    )


def _list_transforms(spec: Spec, key: str, pipeline: InputPipeline, is_shared: bool) -> str:
    """List the transforms that a pipeline shares with others, or the ones it does not."""
    settings = spec.data_by_pipeline[key].transforms
    if isinstance(pipeline.transforms, RecordTransforms):
        assert isinstance(settings, Mapping)
        counts = pipeline.shared_count
        assert isinstance(counts, Mapping)
        lists = {
            name: items[: counts[name]] if is_shared else items[counts[name] :]
            for name, items in settings.items()
        }
        return ", ".join(f"{name}: {_list_names(items)}" for name, items in lists.items() if items)
    assert isinstance(settings, tuple)
    assert isinstance(pipeline.shared_count, int)
    count = len(inline_device_transforms(pipeline.transforms[: pipeline.shared_count]))
    return _list_names(settings[:count] if is_shared else settings[count:])


def describe_device_transforms(spec: Spec, transforms_by_key: Mapping[str, AnyTransforms]) -> str:
    """Describe which transforms run on the device, one line per case."""
    lines = dict[str, None]()
    for key, transforms in transforms_by_key.items():
        settings = spec.data_by_pipeline[key].transforms
        if isinstance(transforms, RecordTransforms) or isinstance(settings, Mapping):
            continue
        (host, on_device) = split_device(transforms)
        if on_device is not None:
            first = len(split_scale(host)[0])
            lines[
                f"data: on the device: {_list_names(settings[first:])}; on the host, before: "
                f"{_list_names(settings[:first]) or 'reading'}"
            ] = None
    return "\n".join(lines)


def _list_names(settings: tuple[str | dict, ...]) -> str:
    return ", ".join(
        setting if isinstance(setting, str) else next(iter(setting)) for setting in settings
    )
