"""Networks that are fed with different things from one stream: other transforms, or other targets, of the same samples.

What the transforms of all networks have in common at their beginning, up to the first random one, is done once, and the
stream carries what comes out. Each network does the rest to its own samples as it reads them; see
docs/design/stream.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.errors import UserError
from fleet.spec import ModelEntry, Spec
from fleet.spec.data import feed_key
from fleet.spec.fitting import listed
from fleet.units import counted
from preprocess.base import DataSet, InputError
from preprocess.chain import common_part, split_scale
from preprocess.pipeline import Pipeline
from preprocess.probe import Look, look
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec
from preprocess.transforms import Transform, parse_transforms


@dataclass(frozen=True)
class Feed:
    """What some networks are fed with, beside others that are fed with something else.

    Attributes:
        data: the samples, with the targets of these networks.
        transforms: all that is done to them.
        samples: what a sample of each part is then.
        done: how many of the transforms the stream has done.
        carried: the target of a sample of the stream; None where there is none, and each network prepares its own.
    """

    data: DataSet
    transforms: tuple[Transform, ...]
    samples: Mapping[str, SampleSpec]
    done: int
    carried: TargetSpec | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do to an input of the stream."""
        return self.done == len(split_scale(self.transforms)[0])

    @property
    def is_carried(self) -> bool:
        """Whether the stream carries just what these networks are fed with."""
        return self.is_done and self.samples["train"].target == self.carried

    def pipeline(self, part: str, seed: int) -> Pipeline | None:
        """How the samples of a part are prepared for these networks; None where there is no such part."""
        source = self.data.parts().get(part)
        if source is None:
            return None
        fixed = None if self.is_done else self.done
        return Pipeline(source, self.transforms, seed, self.samples[part], fixed, self.carried)

    def after_decoding(self, data: DataSet, done: int) -> Feed:
        """The same from a copy of the data to which so many of the transforms were done."""
        return replace(self, data=data, transforms=self.transforms[done:], done=self.done - done)


def transforms_of(spec: Spec) -> tuple[dict[str, tuple[Transform, ...]], int]:
    """The transforms of each feed, and how many of them all have in common."""
    each = {key: parse_transforms(settings.transforms) for key, settings in spec.feeds.items()}
    return each, common_part(list(each.values()))


def make_feeds(spec: Spec, data: Mapping[str, DataSet], stream: Mapping[str, SampleSpec] | None) -> dict[str, Feed]:
    """The feeds of a spec that has several, by their keys; each looks at a few samples.

    Args:
        data: of each feed.
        stream: what the stream carries of each part; None where there is none, and each network prepares its own.

    Raises:
        UserError: the targets cannot differ as they do.
    """
    each, done = transforms_of(spec)
    carried = None if stream is None else stream["train"].target
    feeds = {}
    for key, transforms in each.items():
        fixed = None if done == len(split_scale(transforms)[0]) else done
        try:
            samples, _ = look_at(data[key], transforms, spec.seed, fixed)
        except (InputError, UserError) as error:
            raise UserError(f"{_place(spec, key)}: {str(error).removeprefix('data: ')}") from error
        feeds[key] = Feed(data[key], transforms, samples, done, carried)
    _check_targets(spec, feeds)
    return feeds


def look_at(data: DataSet, transforms: tuple[Transform, ...], seed: int, fixed: int | None = None
            ) -> tuple[dict[str, SampleSpec], dict[str, Look]]:
    """What the samples of each part are, and what a look at them has shown; see :func:`preprocess.probe.look`.

    Raises:
        InputError, UserError: they are not alike.
    """
    looks = {name: look(source, transforms, seed, fixed) for name, source in data.parts().items()}
    weighted = any(one.sample.target.weighted for one in looks.values())  # what travels is the same of all parts
    samples = {name: replace(one.sample, target=replace(one.sample.target, weighted=weighted))
               for name, one in looks.items()}
    for part, sample in samples.items():
        if sample.image != samples["train"].image:
            raise UserError(f"data: training samples are {samples['train'].image} and {part} samples {sample.image}; "
                            "add a resize or a crop")
    return samples, looks


def _check_targets(spec: Spec, feeds: Mapping[str, Feed]) -> None:
    targets = {key: replace(feed.samples["train"].target, size=None) for key, feed in feeds.items()}
    kinds = {target.kind for target in targets.values()}
    if len(set(targets.values())) == 1:
        return
    odd = next(key for key, target in targets.items() if target != next(iter(targets.values())))
    if "mask" in kinds:
        raise UserError(f"{_place(spec, odd)}: a mask goes through the transforms with its image, so all networks of a "
                        f"run must have the same ones, not {' and '.join(map(str, targets.values()))}; make it another "
                        "run")
    if spec.data.cache == "file":
        raise UserError(f"{_place(spec, odd)}: data.cache: file keeps one target of each sample; where networks "
                        "have different ones it should be memory or none")


def _place(spec: Spec, key: str) -> str:
    """Where the data settings of a feed stand."""
    if not key:
        return "data"
    models = spec.document.models
    return f"models[{next(place for place, entry in enumerate(models) if _key(spec, entry) == key)}].data"


def _key(spec: Spec, entry: ModelEntry) -> str:
    return feed_key(spec.document.own_data(entry))


def have_one_target(feeds: Mapping[str, Feed]) -> bool:
    """Whether all networks are to answer the same, though they may be fed with different inputs."""
    return len({replace(feed.samples["train"].target, size=None) for feed in feeds.values()}) < 2


def remark(spec: Spec, feeds: Mapping[str, Feed]) -> str:
    """What of the samples is prepared how often, in one line; nothing where all networks are fed with the same."""
    if len({network.feed for network in spec.networks}) < 2:  # a replay trains but one
        return ""
    names: dict[str, list[str]] = {key: [] for key in feeds}
    for network in spec.networks:
        names[network.feed].append(network.name)
    rests = "; ".join(f"{listed(names[key])}: {_named(spec.feeds[key].transforms[feed.done:]) or 'nothing more'}"
                      f", {feed.samples['train'].target}" for key, feed in feeds.items() if names[key])
    done = next(iter(feeds.values())).done
    shared = spec.feeds[next(iter(feeds))].transforms[:done]
    if spec.policy.own_samples:
        return f"data: entries have data of their own, and each trainer prepares its samples alone: {rests}"
    return (f"data: prepared once for all {counted(len(spec.networks), 'network')}: {_named(shared) or 'reading'}; by "
            f"each network for itself: {rests}")


def _named(items: tuple[str | dict, ...]) -> str:
    return ", ".join(item if isinstance(item, str) else next(iter(item)) for item in items)
