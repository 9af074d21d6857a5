"""All that is checked before any rank waits: the spec against the data, the ranks and the run's folder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fleet.comm.roles import Roles, roles_of
from fleet.domain.events import Event
from fleet.domain.late import with_late
from fleet.domain.network import Code, EpochRecord
from fleet.errors import UserError
from fleet.prediction.sample_file import read_standardized, write_sample, write_standardized
from fleet.runtime.ahead import Ahead, ahead_of
from fleet.runtime.caching import CacheChoice, Means, choose_cache, judging_bytes
from fleet.runtime.changes import (
    Wishes,
    changes_of_data,
    check_meanwhile,
    check_replayed,
    codes_of,
    forget_old_data,
    known_data,
    note_data,
    take_up,
)
from fleet.runtime.feeds import Feed
from fleet.runtime.folder import check_shareable, enter_folder, free_disk, take_folder, write_spec, writing_into
from fleet.runtime.inputs import (
    Inputs,
    decode,
    folds_of,
    open_marked_inputs,
    samples_of_epoch,
    settle,
    standardize,
)
from fleet.runtime.known_rates import check_remeasuring, hardware, rates_of, rates_of_engine, read_rates_of
from fleet.runtime.replay import _check_identity, _replaying
from fleet.runtime.searches import make_searchers
from fleet.spec import NetworkSpec, Spec, load, with_cache
from fleet.spec.fitting import joined, misfits
from fleet.spec.judging import check_comparable
from fleet.spec.resolve import extremes, variants
from fleet.storage.event_log import last_cache, read_events
from fleet.storage.files import replacing
from fleet.storage.identity import Machine
from fleet.storage.lease import Fence, Lease
from fleet.storage.paths import RunPaths
from fleet.storage.sizes import check_quota
from fleet.stream.compose import Way
from fleet.stream.layout import Layout, plan_layout, plan_ring, row_bytes
from fleet.stream.order import Order, RingOrder, StrictOrder, read_path
from fleet.units import counted, format_size
from preprocess.base import BadSample, DataSet
from preprocess.fingerprint import Fingerprint
from preprocess.pipeline import Pipeline
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.sources.table import columns_of
from preprocess.transforms import Transform
from scheduler.base import Network, RateTable
from scheduler.ensemble.elastic import at_best
from scheduler.ensemble.rates_file import read_rates


@dataclass(frozen=True)
class BesideOthers:
    """A launch among several that work on the networks of one run at a time.

    Attributes:
        launch: its name, which no other has.
        idle_s: seconds without a network after which it leaves.
    """

    launch: str
    idle_s: float


@dataclass(frozen=True)
class Prepared:
    """What every rank needs to take up its role.

    Attributes:
        sample: what the samples are; no rank looks at one to find out.
        layout: of the stream; None where every trainer prepares its own samples, or finishes kept ones.
        left_out: the samples that could not be decoded when they were, once and for all.
        rates: where they need not be measured.
        replayed: the history to train again, of the one network that there is.
        machine: on which it trains.
        beside: the folder of the spec.
        remeasure: whether rates are measured that earlier launches have measured.
        codes: import path of a ``build:`` function -> its files.
        changes: what was done to networks before the launch, for the event log.
        folds: the fold of each training sample, (samples,); None where there are no folds.
        feeds: as of :class:`fleet.runtime.inputs.Inputs`.
        fence: this launch's right to write into the run's folder; None where it has one for each network, and in a
            test that needs none.
        cache: what becomes of decoded samples, and why; ``spec.data.cache`` is what was chosen.
        beside_others: how to work on the networks of the run together with other launches, where that is asked for.
        ends: the spec with the networks that stand for those of its searches, instead of its own; of none in a replay.
    """

    spec: Spec
    paths: RunPaths
    data: DataSet
    transforms: tuple[Transform, ...]
    sample: SampleSpec
    roles: Roles
    layout: Layout | None
    left_out: tuple[BadSample, ...]
    rates: RateTable | None
    replayed: tuple[EpochRecord, ...] = ()
    plain: bool = False
    machine: Machine = field(default_factory=lambda: Machine("", 1.0))
    beside: Path = Path()
    remeasure: bool = False
    codes: Mapping[str, Code] = field(default_factory=dict)
    changes: tuple[Event, ...] = ()
    fence: Fence | None = None
    folds: np.ndarray | None = None
    cache: CacheChoice = CacheChoice("none")  # noqa: RUF009 - frozen
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    beside_others: BesideOthers | None = None
    ends: Spec | None = None

    @property
    def engine_rates(self) -> RateTable | None:
        """The rates by which an engine trains that needs some."""
        file = self.spec.schedule.rates
        return self.rates if self.rates is None or file is None else rates_of_engine(self.spec, file, self.rates)

    @property
    def fold_count(self) -> int:
        """How many folds there are."""
        return self.spec.data.folds or 0

    @property
    def epoch_samples(self) -> int:
        """How many samples a network trains on in an epoch; of folds, those of the fewest."""
        return samples_of_epoch(self.data, self.folds)

    @property
    def way(self) -> Way:
        """How samples come to trainers."""
        if self.roles.shared:
            return Way(self.spec.data.order, "window" if self.kept is None else "node")
        return Way(self.spec.data.order, "files" if self.kept is None else "own")

    @property
    def fed(self) -> Mapping[str, Feed]:
        """What networks are fed with, by feed; the one under no key, where it is the same for all."""
        same = dict.fromkeys(self.data.parts(), self.sample)
        return self.feeds or {"": Feed(self.data, self.transforms, same, 0)}

    @property
    def kept(self) -> ImageSpec | None:
        """A sample that every node keeps decoded; None where none are kept in memory."""
        return self.sample.kept if self.spec.data.cache == "memory" else None

    def training(self) -> Pipeline:
        """How training samples are prepared."""
        return Pipeline(self.data.train, self.transforms, self.spec.seed, self.sample)

    def order(self, training: Pipeline) -> Order:
        """The order of the training samples."""
        if self.spec.data.order == "ring":
            size = -(-training.samples // min(self.spec.data.shards, training.samples))
            return RingOrder(training, size, self.spec.seed, [read_path(record.path) for record in self.replayed])
        return StrictOrder(training, self.layout.chunk if self.layout is not None else training.samples)

    def replayed_epochs(self) -> list[int]:
        """The stream epochs to train on again; in a ring the order knows their paths by number."""
        if self.spec.data.order == "ring":
            return list(range(len(self.replayed)))
        return [record.stream_epoch for record in self.replayed]

    def evaluation(self) -> Pipeline | None:
        """How validation samples are prepared."""
        if self.data.validation is None:
            return None
        return Pipeline(self.data.validation, self.transforms, self.spec.seed, self.sample)

    def test(self) -> Pipeline | None:
        """How test samples are prepared; a replay judges nothing, for it makes no new network."""
        if self.data.test is None or self.replayed:
            return None
        return Pipeline(self.data.test, self.transforms, self.spec.seed, self.sample)


def prepare(path: str, node_of: Sequence[int], gpus_per_node: int | None, fresh: bool = False,
            replay: str | None = None, only: str | None = None, plain: bool = False, lease: Lease | None = None,
            ranks_per_core: float = 1.0, remeasure: bool = False, wishes: Wishes = Wishes(),  # noqa: B008
            shared_free: float = math.inf, beside_others: BesideOthers | None = None,
            announce: Callable[[Ahead], None] = lambda ahead: None, cores: int | None = None) -> Prepared:
    """Read and check everything; nothing is written before all of it is right, but for what only decoding once finds.

    Args:
        path: of the spec.
        node_of: the node of each rank.
        gpus_per_node: as the nodes show them, None without GPUs.
        fresh: start over.
        replay, only: train one network of a run again.
        lease: keeps other launches out of the run's folder from now on.
        ranks_per_core: how many ranks share a core.
        remeasure: measure rates that earlier launches have measured.
        wishes: what is to become of networks that have changed.
        shared_free: bytes of shared memory that are free on the node that has least.
        beside_others: leave the folder to other launches again, when all is read and checked.
        announce: is told what can be imported ahead, as soon as that is known.
        cores: of a node, that its ranks may use.

    Raises:
        UserError, InputError: what is wrong, and what would be right.
    """
    spec = load(path)
    written = spec.networks
    if replay is not None or not fresh:
        log = RunPaths(spec.output if replay is None else Path(replay)).events
        spec = with_late(spec, (event for _, event in read_events(log)) if log.exists() else ())
    asked = spec
    if beside_others is not None:
        check_shareable(spec, "--beside-others")
    wishes.check(spec)
    spec = told_when_to_end(spec)
    replayed: tuple[EpochRecord, ...] = ()
    if replay is not None and only is not None:
        roles = roles_of(spec, node_of, gpus_per_node, own_preprocessing=True, cores=cores)
        spec, replayed = _replaying(spec, RunPaths(Path(replay)), only, roles.cluster.whole_gpus)
        fresh = True
    else:
        roles = roles_of(spec, node_of, gpus_per_node, cores=cores)
    announce(ahead_of(spec, roles, fresh))
    paths = RunPaths(spec.output, beside_others.launch if beside_others is not None else "")
    means = Means(len(roles.preprocessors), roles.gpus_per_node, ranks_per_core > 1, shared_free, free_disk(paths))
    left = RunPaths(Path(str(replay))) if replayed else None if fresh else paths
    before = None if left is None else known_data(left, wishes.fresh_networks)
    opened = open_marked_inputs(spec, before)
    cache = choose_cache(spec if replayed else _both(spec, extremes(spec)), opened, means,
                         None if left is None else last_cache(left))
    opened, known = standardize(opened.keeping(cache.cache), spec, {} if left is None else read_standardized(left))
    data, sample = opened.data, opened.sample
    given = spec
    ends = dataclasses.replace(asked, networks=()) if replayed else extremes(asked)
    spec, asked, ends = settle(opened, with_cache(spec, cache.cache), asked, ends)
    epoch_samples = samples_of_epoch(data, folds_of(spec, opened))
    drawn = dataclasses.replace(asked, networks=() if replayed else variants(asked))
    check_comparable(asked, () if replayed else (*written, *drawn.networks), kinds_of(sample))
    ends = told_when_to_end(ends)
    for some in (spec, ends, drawn):
        check_networks(some, sample, data, epoch_samples, roles.cluster.whole_gpus)
    make_searchers(ends)  # says what is wrong with one before anything is written
    check_quota(spec, sample)
    layout = plan_memory(_both(spec, ends), data, sample, roles, shared_free)
    if remeasure:
        check_remeasuring(spec, bool(replayed))
    needless = spec.schedule.rates is None and (bool(replayed) or not spec.policy.needs_rates)
    rates = _equal_rates(spec, roles) if needless else _rates(spec, epoch_samples, roles)
    beside = Path(path).absolute().parent
    codes = codes_of(spec, beside)
    if replayed:
        check_replayed(RunPaths(Path(str(replay))), _changed(spec, before, opened), wishes)
        _check_identity(asked.by_name[str(only)], asked, sample, RunPaths(Path(str(replay))), codes, wishes)
    if beside_others is not None and lease is not None:
        enter_folder(paths, lease)
    else:
        take_folder(paths, fresh, lease)
    if replayed and (first := RunPaths(Path(str(replay))).first(str(only))).exists():
        with writing_into(paths):
            paths.model(str(only)).mkdir(parents=True, exist_ok=True)
            with replacing(paths.first(str(only)), "wb") as file:
                file.write(first.read_bytes())
    fence = None if lease is None else lease.fence
    fingerprint = opened.fingerprint
    assert fingerprint is not None
    if not fresh:
        check_meanwhile(paths, before, known_data(paths, wishes.fresh_networks), fingerprint)
    changes = take_up(spec, paths, sample, codes, Wishes() if replayed else wishes, fence, beside_others is not None,
                      [] if fresh else _changed(spec, before, opened))
    forget_old_data(paths, fingerprint)
    write_spec(given, paths)
    write_sample(paths, sample, opened.names, columns_of(opened.data.train))
    write_standardized(paths, known)
    if spec.data.cache == "file":
        opened = decode(opened, spec, _decoded_path(cache, paths, left))
    folds = folds_of(spec, opened)
    with writing_into(paths):
        note_data(paths, fingerprint, folds, opened.rows, fence)
    if beside_others is not None and lease is not None:
        lease.release()
        fence = None
    return Prepared(spec, paths, opened.data, opened.transforms, sample, roles, layout, opened.left_out, rates,
                    replayed, plain, Machine(hardware(), ranks_per_core), beside, remeasure, codes, changes,
                    fence, folds, cache, opened.feeds, beside_others, ends)


def _changed(spec: Spec, before: Fingerprint | None, opened: Inputs) -> list[str]:
    """What of the data has changed since networks were trained on it, in words."""
    return [] if before is None or opened.fingerprint is None else changes_of_data(spec, before, opened.fingerprint)


def _both(spec: Spec, ends: Spec) -> Spec:
    """A spec with the networks that stand for those of its searches."""
    return dataclasses.replace(spec, networks=(*spec.networks, *ends.networks))


def _decoded_path(cache: CacheChoice, paths: RunPaths, left: RunPaths | None) -> Path:
    """Where decoded samples are: a replay uses the file of its run, and makes one for itself if that was deleted."""
    of_run = paths if left is None else left
    return paths.decoded if cache.is_passing and not of_run.decoded.exists() else of_run.decoded


def plan_memory(spec: Spec, data: DataSet, sample: SampleSpec, roles: Roles, shared_free: float) -> Layout | None:
    """The window of the stream that the ranks of a node share; None where they share none, or all decoded samples.

    Args:
        shared_free: bytes of shared memory that are free on the node that has least.

    Raises:
        UserError: the window is too small for it.
    """
    if not roles.shared:
        return None
    samples, settings = len(data.train), spec.data
    needed = samples * (sample.image.nbytes + sample.target.nbytes)
    if settings.folds is not None and needed > settings.window:
        raise UserError(f"data.window: {format_size(settings.window)} is too small for data.folds: "
                        f"{counted(samples, 'sample')}, each of which some network is judged by, would take "
                        f"{format_size(needed)} on each node; give that much")
    if settings.cache == "memory":
        assert sample.kept is not None
        needed = samples * row_bytes(sample.kept, sample.kept_target.wire)
        if needed > settings.window:
            raise UserError(f"data.window: {format_size(settings.window)} is too small for data.cache: memory: "
                            f"{counted(samples, 'decoded sample')} would take {format_size(needed)} on each node; "
                            "give that much, or use data.order: ring")
        return None
    if settings.order == "ring":
        return plan_ring(sample.image, samples, settings.window, settings.shards, roles.gpus_per_node,
                         sample.target.wire)
    most = [min(network.max_gpus or len(roles.trainers), len(roles.trainers)) for network in spec.networks]
    largest = max((network.largest_batch(gpus) for network, gpus in zip(spec.networks, most, strict=True)),
                  default=spec.document.train.batch.bounds[1])
    # Networks can be as far apart as all epochs of the run: one trains its first while others come and go.
    wanted = sum(network.train.converge.max_epochs for network in spec.networks)
    there = shared_free / 2 / (samples * row_bytes(sample.image, sample.target.wire))
    return plan_layout(sample.image, samples, settings.window, largest, roles.gpus_per_node,
                       sample.target.wire, int(min(wanted, there)))


def shared_bytes(spec: Spec, opened: Inputs, roles: Roles, shared_free: float) -> int:
    """Bytes of the samples that the ranks of a node share.

    Args:
        spec: with what was chosen for ``data.cache``.
        shared_free: bytes of shared memory that are free on the node that has least.

    Raises:
        UserError: the window is too small for it.
    """
    if not roles.shared:
        return 0
    sample, samples = opened.sample, len(opened.data.train)
    layout = plan_memory(spec, opened.data, sample, roles, shared_free)
    if layout is not None:
        return layout.window_bytes + judging_bytes(opened)
    assert sample.kept is not None
    return samples * row_bytes(sample.kept, sample.kept_target.wire) + judging_bytes(opened)


def kinds_of(sample: SampleSpec) -> Callable[[NetworkSpec], tuple[str]]:
    """The kind of each network's target, once the data is known (:func:`fleet.spec.judging.check_comparable`)."""
    return lambda network: (sample.of(network.feed).target.kind,)


def check_networks(spec: Spec, sample: SampleSpec, data: DataSet, samples: int, trainers: int) -> None:
    """Refuse networks that cannot be trained on this data, or on so few trainers.

    Args:
        samples: of an epoch.

    Raises:
        UserError: all that is wrong with any.
    """
    found = misfits(spec, sample, samples, data.validation is not None)
    found += [(network, ("models", network.entry, "gpus"),
               f"gpus: needs at least {network.min_gpus} trainers, but there are {trainers}", "start more ranks")
              for network in spec.networks if network.min_gpus > trainers]
    if found:
        count = len({network.name for network, *_ in found})
        raise UserError("\n  ".join([f"{count} of the networks cannot be trained as the spec says",
                                     *map(str, joined(spec, found))]))


# ---- rates -------------------------------------------------------------------------------------


def _rates(spec: Spec, samples: int, roles: Roles) -> RateTable | None:
    """The rates of a file, with the bounds of the spec; None where they are to be measured."""
    if spec.schedule.rates is None:
        return None
    table = at_best(read_rates_of(spec, spec.schedule.rates), roles.cluster.whole_gpus)
    return dataclasses.replace(table, samples_per_epoch=samples, gpus_per_node=roles.whole_per_node)


def told_when_to_end(spec: Spec) -> Spec:
    """Networks that learn nothing converge after the epochs that the rates file has for them."""
    if spec.schedule.rates is None or spec.engine.learns:
        return spec
    table = read_rates(spec.schedule.rates)

    def limited(network: NetworkSpec) -> NetworkSpec:
        known = rates_of(network, spec, table).epochs
        if known is None:
            return network
        converge = dataclasses.replace(network.train.converge, max_epochs=known, patience=None, target=None)
        return dataclasses.replace(network, train=dataclasses.replace(network.train, converge=converge))

    return dataclasses.replace(spec, networks=tuple(map(limited, spec.networks)))


def _equal_rates(spec: Spec, roles: Roles) -> RateTable:
    """For a network alone, and for the policy that looks at no rates: nothing is measured."""
    return RateTable(1, roles.whole_per_node, tuple(
        Network(network.name, (1.0,), min_gpus=network.min_gpus, max_gpus=network.max_gpus)
        for network in spec.networks))
