"""Networks that are fed with different things from one stream: other transforms, or other targets, of the same samples.

What the transforms of all networks have in common at their beginning, up to the first random one, is done once, and the
stream carries what comes out. Where they differ in how a file is decoded, it carries what each of them makes, side by
side. Each network does the rest to its own samples as it reads them; see docs/design/stream.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.units import counted, listed
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
    """What some networks are fed with, beside others that are fed with something else.

    Attributes:
        data: the samples, with the targets of these networks.
        transforms: all that is done to them.
        samples: what a sample of each part is then.
        done: how many of the transforms the stream has done; 0 where there is none, or all are fed with the same.
        carried: the target of a sample of the stream; None where there is none, and each network prepares its own, or
            where all are fed with the same.
        piece: where in a sample of the stream these have left what they made; None where it carries nothing else.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    done: int
    carried: TargetSpec | None = None
    piece: PackedSlice | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do to an input of the stream."""
        return self.done == len(split_scale(self.transforms)[0])

    @property
    def is_carried(self) -> bool:
        """Whether the stream carries just what these networks are fed with, where there is one."""
        return self.carried is None or (
            self.is_done and self.piece is None and self.samples["train"].target == self.carried
        )

    def pipeline(self, part: str, seed: int) -> Pipeline | None:
        """How the samples of a part are prepared for these networks; None where there is no such part."""
        source = self.data.splits().get(part)
        if source is None:
            return None
        fixed = None if self.is_done or self.carried is None else self.done
        return Pipeline(
            source, self.transforms, seed, self.samples[part], fixed, self.carried, self.piece
        )

    def after_decoding(self, data: DataSet, done: int) -> InputPipeline:
        """The same from a copy of the data to which so many of the stream's transforms were done."""
        if self.piece is not None:
            return replace(
                self, data=data, transforms=(self.piece, *self.transforms[self.done :]), done=1
            )
        return replace(self, data=data, transforms=self.transforms[done:], done=self.done - done)


@dataclass(frozen=True)
class SharedPart:
    """What is done once for all networks.

    Attributes:
        transforms: which ones; none of them random, unless all networks have the same.
        done: how many of the transforms of each feed these are.
        pieces: where in a sample what was made for each feed is; empty where the same was made for all.
    """

    transforms: tuple[Transform, ...]
    done: Mapping[str, int]
    pieces: Mapping[str, PackedSlice]


def transforms_of(spec: Spec, data: Mapping[str, DataSet]) -> dict[str, tuple[Transform, ...]]:
    """The transforms of each feed of some data."""
    each = {key: parse_transforms(settings.transforms) for key, settings in spec.feeds.items()}
    if spec.data.augment_on == "device":
        each = {key: defer_to_device(found) for key, found in each.items()}
    return {
        key: with_full_decoding(found) if is_mask(data[key].train) else found
        for key, found in each.items()
    }


def shared_part(
    spec: Spec, data: Mapping[str, DataSet], each: Mapping[str, tuple[Transform, ...]]
) -> SharedPart:
    """What the feeds of a spec can share; where they share no transform, looks at a few samples.

    Args:
        data, each: the data and the transforms of each feed.

    Raises:
        UserError: what one of them makes before its first random transform differs from sample to sample.
    """
    lists = list(each.values())
    done = count_common(lists)
    if done or not all(transforms and isinstance(transforms[0], Decode) for transforms in lists):
        return SharedPart(split_scale(lists[0])[0][:done], dict.fromkeys(each, done), {})
    fixed = {key: transforms[: count_fixed(transforms)] for key, transforms in each.items()}
    shapes = dict[tuple[Transform, ...], tuple[int, ...]]()
    for key, transforms in fixed.items():
        if transforms not in shapes:
            try:
                shapes[transforms] = look_at(data[key], transforms, spec.seed)[0][
                    "train"
                ].image.shape
            except (InputError, UserError) as error:
                raise UserError(
                    f"{_place(spec, key)}: networks share what each makes of a file before its first "
                    f"random transform: {str(error).removeprefix('data: ')}; {_instead(spec)}"
                ) from error
    beside = PackedVariants(tuple(shapes), tuple(shapes.values()))
    pieces = dict(zip(shapes, beside.slices(), strict=True))
    return SharedPart(
        (beside,),
        {key: len(transforms) for key, transforms in fixed.items()},
        {key: pieces[transforms] for key, transforms in fixed.items()},
    )


def look_at_shared(
    data: DataSet, shared: SharedPart, spec: Spec
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """What is carried to networks of which each does the rest to it.

    Raises:
        UserError: it differs from sample to sample, so that it cannot be carried.
    """
    try:
        return look_at(data, shared.transforms, spec.seed)
    except (InputError, UserError) as error:
        raise UserError(
            f"data: networks share what the first {counted(len(shared.transforms), 'transform')} of all of "
            f"them make: {str(error).removeprefix('data: ')}, the same one in all entries; "
            f"{_instead(spec)}"
        ) from error


def _instead(spec: Spec) -> str:
    """What to do where samples cannot be shared."""
    if spec.policy.own_samples:
        how = "data.cache: none"
    else:
        how = "schedule.policy: baseline"
    return f"or let each network prepare its own samples ({how})"


def make_feeds(
    spec: Spec,
    data: Mapping[str, DataSet],
    each: Mapping[str, tuple[Transform, ...]],
    shared: SharedPart,
    stream: Mapping[str, SampleSpec] | None,
) -> dict[str, InputPipeline]:
    """The feeds of a spec that has several, by their keys; each looks at a few samples.

    Args:
        data, each: the data and the transforms of each feed.
        shared: what is done for all of them.
        stream: what the stream carries of each part; None where there is none, and each network prepares its own.

    Raises:
        UserError: the targets cannot differ as they do.
    """
    carried = None if stream is None else stream["train"].target
    feeds = {}
    for key, transforms in each.items():
        try:
            samples, _ = look_at(data[key], transforms, spec.seed)
        except (InputError, UserError) as error:
            raise UserError(f"{_place(spec, key)}: {str(error).removeprefix('data: ')}") from error
        feeds[key] = InputPipeline(
            data[key], transforms, samples, shared.done[key], carried, shared.pieces.get(key)
        )
    _check_targets(spec, feeds)
    return feeds


def look_at(
    data: DataSet, transforms: tuple[Transform, ...], seed: int
) -> tuple[dict[str, SampleSpec], dict[str, SampleProbe]]:
    """What the samples of each part are, and what a look at them has shown; see :func:`preprocess.probe.probe_samples`.

    Raises:
        InputError, UserError: they are not alike.
    """
    looks = {
        name: probe_samples(source, transforms, seed) for name, source in data.splits().items()
    }
    weighted = any(
        one.sample.target.weighted for one in looks.values()
    )  # what travels is the same of all parts
    samples = {
        name: replace(one.sample, target=replace(one.sample.target, weighted=weighted))
        for name, one in looks.items()
    }
    for part, sample in samples.items():
        there = sample.deferred_input or sample.image
        if there != (first := samples["train"].deferred_input or samples["train"].image):
            raise UserError(
                f"data: training samples are {first} and {part} samples {there}; add a resize or a crop"
            )
    return samples, looks


def _check_targets(spec: Spec, feeds: Mapping[str, InputPipeline]) -> None:
    targets = {key: replace(feed.samples["train"].target, size=None) for key, feed in feeds.items()}
    kinds = {target.kind for target in targets.values()}
    if len(set(targets.values())) == 1:
        return
    odd = next(key for key, target in targets.items() if target != next(iter(targets.values())))
    if "mask" in kinds:
        raise UserError(
            f"{_place(spec, odd)}: a mask goes through the transforms with its image, so all networks of a "
            f"run must have the same ones, not {' and '.join(map(str, targets.values()))}; make it another "
            "run"
        )
    if spec.data.cache == "file":
        raise UserError(
            f"{_place(spec, odd)}: data.cache: file keeps one target of each sample; where networks "
            "have different ones it should be memory or none"
        )


def _place(spec: Spec, key: str) -> str:
    """Where the data settings of a feed stand."""
    if not key:
        return "data"
    entries = enumerate(spec.document.models)
    return f"models[{next(place for place, entry in entries if spec.document.feed_of(entry) == key)}].data"


def have_one_target(feeds: Mapping[str, InputPipeline]) -> bool:
    """Whether all networks are to answer the same, though they may be fed with different inputs."""
    return len({replace(feed.samples["train"].target, size=None) for feed in feeds.values()}) < 2


def remark(spec: Spec, feeds: Mapping[str, InputPipeline]) -> str:
    """What of the samples is prepared how often, in one line; nothing where all networks are fed with the same."""
    if len({network.feed for network in spec.networks}) < 2:  # a replay trains but one
        return ""
    names: dict[str, list[str]] = {key: [] for key in feeds}
    for network in spec.networks:
        names[network.feed].append(network.name)
    done = {
        key: len(inline_device_transforms(feed.transforms[: feed.done]))
        for key, feed in feeds.items()
    }
    rests = "; ".join(
        f"{listed(names[key])}: {_named(spec.feeds[key].transforms[done[key] :]) or 'nothing more'}"
        f", {feed.samples['train'].target}"
        for key, feed in feeds.items()
        if names[key]
    )
    if spec.policy.own_samples:
        return f"data: entries have data of their own, and each trainer prepares its samples alone: {rests}"
    key, first = next(iter(feeds.items()))
    if first.piece is not None:
        made = "; ".join(
            f"{listed(names[key])}: {_named(spec.feeds[key].transforms[: done[key]])}"
            for key in feeds
            if names[key]
        )
        return (
            f"data: read once for all {counted(len(spec.networks), 'network')}, and prepared for {made}; by each "
            f"network for itself: {rests}"
        )
    shared = spec.feeds[key].transforms[: done[key]]
    return (
        f"data: prepared once for all {counted(len(spec.networks), 'network')}: {_named(shared) or 'reading'}; by "
        f"each network for itself: {rests}"
    )


def on_finishing(spec: Spec, each: Mapping[str, tuple[Transform, ...]]) -> str:
    """What of the transforms of each feed is left to the device, in a line or some."""
    lines = dict[str, None]()
    for key, transforms in each.items():
        items = spec.feeds[key].transforms
        (host, left) = split_device(transforms)
        if left is not None:
            first = len(split_scale(host)[0])
            lines[
                f"data: on the device: {_named(items[first:])}; on the host, before: "
                f"{_named(items[:first]) or 'reading'}"
            ] = None
    return "\n".join(lines)


def _named(items: tuple[str | dict, ...]) -> str:
    return ", ".join(item if isinstance(item, str) else next(iter(item)) for item in items)
