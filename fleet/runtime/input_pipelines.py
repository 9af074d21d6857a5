"""Networks with different transforms or targets on one shared stream.

What the transforms of all networks have in common at their beginning, up to the first random one,
is done once, and the stream carries what comes out. Where they differ in how a file is decoded, it
carries what each of them makes, side by side. Each network does the rest to its own samples as it
reads them; see docs/design/stream.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.units import listed, pluralize
from preprocess.base import DataSet, InputError
from preprocess.chain import count_common, count_fixed, split_scale
from preprocess.pipeline import Pipeline
from preprocess.probe import SampleProbe, probe_samples
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec, is_mask
from preprocess.transforms import Transform, parse_transforms
from preprocess.transforms.decoding import Decode, with_full_decoding
from preprocess.transforms.on_device import defer_to_device, inline_device_transforms, split_device
from preprocess.transforms.packed_variants import PackedSlice, PackedVariants


@dataclass(frozen=True)
class InputPipeline:
    """The samples, transforms and targets of some networks.

    Attributes:
        data: the samples, with the targets of these networks.
        transforms: all that is done to them.
        samples: what a sample of each part is then.
        shared_count: number of transforms that the stream has applied; 0 where there is none, or
            all are fed with the same.
        stream_target: the target of a sample of the stream; None where there is none, and each
            network prepares its own, or where all are fed with the same.
        packed_slice: where in a sample of the stream these have left what they made; None where it
            carries nothing else.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    shared_count: int
    stream_target: TargetSpec | None = None
    packed_slice: PackedSlice | None = None

    @property
    def is_input_done(self) -> bool:
        """True if the stream has applied all transforms to its inputs."""
        return self.shared_count == len(split_scale(self.transforms)[0])

    @property
    def matches_stream(self) -> bool:
        """True if the stream carries exactly these networks' samples."""
        return self.stream_target is None or (
            self.is_input_done
            and self.packed_slice is None
            and self.samples["train"].target == self.stream_target
        )

    def pipeline(self, part: str, seed: int) -> Pipeline | None:
        """Return the pipeline of a split for these networks; None if there is no such split."""
        source = self.data.splits().get(part)
        if source is None:
            return None
        fixed = None if self.is_input_done or self.stream_target is None else self.shared_count
        return Pipeline(
            source,
            self.transforms,
            seed,
            self.samples[part],
            fixed,
            self.stream_target,
            self.packed_slice,
        )

    def after_decoding(self, data: DataSet, shared_count: int) -> InputPipeline:
        """Return the pipeline on a decoded copy of the data."""
        if self.packed_slice is not None:
            return replace(
                self,
                data=data,
                transforms=(self.packed_slice, *self.transforms[self.shared_count :]),
                shared_count=1,
            )
        return replace(
            self,
            data=data,
            transforms=self.transforms[shared_count:],
            shared_count=self.shared_count - shared_count,
        )


@dataclass(frozen=True)
class SharedTransforms:
    """The transforms that are applied once for all networks.

    Attributes:
        transforms: which ones; none of them random, unless all networks have the same.
        shared_count: how many of the transforms of each feed these are.
        packed_slices: where in a sample what was made for each feed is; empty where the same was
            made for all.
    """

    transforms: tuple[Transform, ...]
    shared_count: Mapping[str, int]
    packed_slices: Mapping[str, PackedSlice]


def parse_pipeline_transforms(
    spec: Spec, data: Mapping[str, DataSet]
) -> dict[str, tuple[Transform, ...]]:
    """Parse the transforms of each input pipeline."""
    transforms_by_key = {
        key: parse_transforms(settings.transforms)
        for key, settings in spec.data_by_pipeline.items()
    }
    if spec.data.augment_on == "device":
        transforms_by_key = {
            key: defer_to_device(transforms) for key, transforms in transforms_by_key.items()
        }
    return {
        key: with_full_decoding(transforms) if is_mask(data[key].train) else transforms
        for key, transforms in transforms_by_key.items()
    }


def find_shared_transforms(
    spec: Spec, data: Mapping[str, DataSet], transforms_by_key: Mapping[str, tuple[Transform, ...]]
) -> SharedTransforms:
    """Find the transforms that input pipelines can share, probing samples if necessary.

    Args:
        data, transforms_by_key: the data and the transforms of each feed.

    Raises:
        UserError: what one of them makes before its first random transform differs from sample to
            sample.
    """
    lists = list(transforms_by_key.values())
    shared_count = count_common(lists)
    if shared_count or not all(
        transforms and isinstance(transforms[0], Decode) for transforms in lists
    ):
        return SharedTransforms(
            split_scale(lists[0])[0][:shared_count],
            dict.fromkeys(transforms_by_key, shared_count),
            {},
        )
    fixed = {
        key: transforms[: count_fixed(transforms)] for key, transforms in transforms_by_key.items()
    }
    shapes = dict[tuple[Transform, ...], tuple[int, ...]]()
    for key, transforms in fixed.items():
        if transforms not in shapes:
            try:
                shapes[transforms] = probe_splits(data[key], transforms, spec.seed)[0][
                    "train"
                ].image.shape
            except (InputError, UserError) as error:
                raise UserError(
                    f"{_locate(spec, key)}: networks share what each makes of a file before its first "
                    f"random transform: {str(error).removeprefix('data: ')}; {_suggest_own_samples(spec)}"
                ) from error
    variants = PackedVariants(tuple(shapes), tuple(shapes.values()))
    packed_slices = dict(zip(shapes, variants.slices(), strict=True))
    return SharedTransforms(
        (variants,),
        {key: len(transforms) for key, transforms in fixed.items()},
        {key: packed_slices[transforms] for key, transforms in fixed.items()},
    )


def probe_shared_samples(
    data: DataSet, shared: SharedTransforms, spec: Spec
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """Probe the samples that the stream carries for several input pipelines.

    Raises:
        UserError: it differs from sample to sample, so that it cannot be carried.
    """
    try:
        return probe_splits(data, shared.transforms, spec.seed)
    except (InputError, UserError) as error:
        raise UserError(
            f"data: networks share what the first {pluralize(len(shared.transforms), 'transform')} of all of "
            f"them make: {str(error).removeprefix('data: ')}, the same one in all entries; "
            f"{_suggest_own_samples(spec)}"
        ) from error


def _suggest_own_samples(spec: Spec) -> str:
    """Suggest what to change if samples cannot be shared."""
    if spec.policy.own_samples:
        how = "data.cache: none"
    else:
        how = "schedule.policy: baseline"
    return f"or let each network prepare its own samples ({how})"


def make_pipelines(
    spec: Spec,
    data: Mapping[str, DataSet],
    transforms_by_key: Mapping[str, tuple[Transform, ...]],
    shared: SharedTransforms,
    stream: Mapping[str, SampleSpec] | None,
) -> dict[str, InputPipeline]:
    """Make the input pipelines of a spec that has several, probing samples for each.

    Args:
        data, transforms_by_key: the data and the transforms of each feed.
        shared: what is done for all of them.
        stream: what the stream carries of each part; None where there is none, and each network
            prepares its own.

    Raises:
        UserError: the targets cannot differ as they do.
    """
    stream_target = None if stream is None else stream["train"].target
    pipelines = {}
    for key, transforms in transforms_by_key.items():
        try:
            samples, _ = probe_splits(data[key], transforms, spec.seed)
        except (InputError, UserError) as error:
            raise UserError(f"{_locate(spec, key)}: {str(error).removeprefix('data: ')}") from error
        pipelines[key] = InputPipeline(
            data[key],
            transforms,
            samples,
            shared.shared_count[key],
            stream_target,
            shared.packed_slices.get(key),
        )
    _check_targets(spec, pipelines)
    return pipelines


def probe_splits(
    data: DataSet, transforms: tuple[Transform, ...], seed: int
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """Probe the samples of each split; see :func:`preprocess.probe.probe_samples`.

    Raises:
        InputError, UserError: they are not alike.
    """
    probes = {
        name: probe_samples(source, transforms, seed) for name, source in data.splits().items()
    }
    weighted = any(
        probe.sample.target.weighted for probe in probes.values()
    )  # what travels is the same of all parts
    samples = {
        name: replace(probe.sample, target=replace(probe.sample.target, weighted=weighted))
        for name, probe in probes.items()
    }
    for part, sample in samples.items():
        image = sample.deferred_input or sample.image
        if image != (first := samples["train"].deferred_input or samples["train"].image):
            raise UserError(
                f"data: training samples are {first} and {part} samples {image}; add a resize or a crop"
            )
    return samples, probes


def _check_targets(spec: Spec, pipelines: Mapping[str, InputPipeline]) -> None:
    targets = {
        key: replace(feed.samples["train"].target, size=None) for key, feed in pipelines.items()
    }
    kinds = {target.kind for target in targets.values()}
    if len(set(targets.values())) == 1:
        return
    odd = next(key for key, target in targets.items() if target != next(iter(targets.values())))
    if "mask" in kinds:
        raise UserError(
            f"{_locate(spec, odd)}: a mask goes through the transforms with its image, so all networks of a "
            f"run must have the same ones, not {' and '.join(map(str, targets.values()))}; make it another "
            "run"
        )
    if spec.data.cache == "file":
        raise UserError(
            f"{_locate(spec, odd)}: data.cache: file keeps one target of each sample; where networks "
            "have different ones it should be memory or none"
        )


def _locate(spec: Spec, key: str) -> str:
    """Return the place in the spec of an input pipeline's data settings."""
    if not key:
        return "data"
    entries = enumerate(spec.document.models)
    return f"models[{next(index for index, entry in entries if spec.document.pipeline_of(entry) == key)}].data"


def have_same_target(pipelines: Mapping[str, InputPipeline]) -> bool:
    """Return True if all networks have the same target."""
    return (
        len({replace(feed.samples["train"].target, size=None) for feed in pipelines.values()}) < 2
    )


def describe_sharing(spec: Spec, pipelines: Mapping[str, InputPipeline]) -> str:
    """Describe which preparation is shared, in one line; empty if all of it is."""
    if len({network.pipeline for network in spec.networks}) < 2:  # a replay trains but one
        return ""
    names: dict[str, list[str]] = {key: [] for key in pipelines}
    for network in spec.networks:
        names[network.pipeline].append(network.name)
    shared_count = {
        key: len(inline_device_transforms(feed.transforms[: feed.shared_count]))
        for key, feed in pipelines.items()
    }
    rests = "; ".join(
        f"{listed(names[key])}: {_list_names(spec.data_by_pipeline[key].transforms[shared_count[key] :]) or 'nothing more'}"
        f", {feed.samples['train'].target}"
        for key, feed in pipelines.items()
        if names[key]
    )
    if spec.policy.own_samples:
        return f"data: entries have data of their own, and each trainer prepares its samples alone: {rests}"
    key, first = next(iter(pipelines.items()))
    if first.packed_slice is not None:
        prepared = "; ".join(
            f"{listed(names[key])}: {_list_names(spec.data_by_pipeline[key].transforms[: shared_count[key]])}"
            for key in pipelines
            if names[key]
        )
        return (
            f"data: read once for all {pluralize(len(spec.networks), 'network')}, and prepared for {prepared}; by each "
            f"network for itself: {rests}"
        )
    shared = spec.data_by_pipeline[key].transforms[: shared_count[key]]
    return (
        f"data: prepared once for all {pluralize(len(spec.networks), 'network')}: {_list_names(shared) or 'reading'}; by "
        f"each network for itself: {rests}"
    )


def describe_device_transforms(
    spec: Spec, transforms_by_key: Mapping[str, tuple[Transform, ...]]
) -> str:
    """Describe which transforms run on the device, one line per case."""
    lines = dict[str, None]()
    for key, transforms in transforms_by_key.items():
        items = spec.data_by_pipeline[key].transforms
        (host, on_device) = split_device(transforms)
        if on_device is not None:
            first = len(split_scale(host)[0])
            lines[
                f"data: on the device: {_list_names(items[first:])}; on the host, before: "
                f"{_list_names(items[:first]) or 'reading'}"
            ] = None
    return "\n".join(lines)


def _list_names(items: tuple[str | dict, ...]) -> str:
    return ", ".join(item if isinstance(item, str) else next(iter(item)) for item in items)
