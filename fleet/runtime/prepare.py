"""Checks before any rank waits: the spec, the data, the ranks and the run's folder."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.comm.roles import Roles, assign_roles
from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import CacheChosen, CommandReceived, EarlierRunRead, NetworkAdded
from fleet.domain.run import RunState
from fleet.engines.registry import check_installed
from fleet.errors import UserError
from fleet.monitor.timeline import replay_log
from fleet.prediction.sample_file import (
    read_columns,
    read_standardized,
    write_sample,
    write_standardized,
)
from fleet.runtime import compatibility, inputs
from fleet.runtime.caching import HostResources, choose_cache, count_shared_epochs, validation_bytes
from fleet.runtime.engine_import import Ahead, plan_import
from fleet.runtime.folder import (
    check_shareable,
    enter_folder,
    free_disk,
    take_folder,
    write_spec,
    writing_into,
)
from fleet.runtime.known_rates import check_remeasuring, find_rates, hardware, read_rates_of
from fleet.runtime.launch import Launch, Ranks
from fleet.runtime.replay import Replay, make_replay
from fleet.runtime.searchers import make_searchers
from fleet.runtime.startup import Request
from fleet.spec import NetworkSpec, Spec, with_cache
from fleet.spec.criteria import check_comparable
from fleet.spec.fit_checks import Misfit, find_data_misfits, merge_misfits
from fleet.spec.resolve import variants, with_extreme_networks
from fleet.storage.event_log import read_run
from fleet.storage.identity import Machine
from fleet.storage.lease import Lease
from fleet.storage.paths import RunPaths
from fleet.storage.quota import check_quota
from fleet.storage.run_spec import spec_for_run
from fleet.stream.layout import Layout, plan_layout, plan_ring, row_bytes
from fleet.units import format_size, pluralize
from preprocess.base import DataSet
from preprocess.fingerprint import Fingerprint
from preprocess.moments import Standardization
from preprocess.sample import SampleSpec
from preprocess.sources.table import columns_of
from scheduler.base import Network, RateTable
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.rates_file import read_rates


def prepare(
    request: Request,
    ranks: Ranks,
    lease: Lease | None = None,
    announce: Callable[[Ahead], None] = lambda ahead: None,
    name: str = "",
) -> Launch:
    """Read and validate the whole launch before anything is written.

    Args:
        lease: keeps other launches out of the run's folder from now on; beside others, until all is
            read and checked.
        announce: receives what can be imported ahead, as soon as that is known.
        name: of this launch among others.

    Raises:
        UserError, InputError: what is wrong, and what would be right.
    """
    plan = _make_plan(request, ranks, name)
    ahead = plan_import(plan.trained, plan.roles, plan.earlier_paths is not plan.paths)
    if ahead.ranks:
        check_installed(plan.trained.engine)
    announce(ahead)
    replay = plan.replay
    paths = plan.paths
    roles = plan.roles
    earlier_paths = plan.earlier_paths
    if earlier_paths is None:
        before = None
    else:
        before = compatibility.read_known_fingerprint(earlier_paths, request.fresh_network)
    opened = inputs.open_inputs_with_fingerprint(
        plan.trained, before, _read_features(earlier_paths)
    )
    means = HostResources(
        len(roles.preprocessors),
        roles.gpus_per_node,
        ranks.per_core > 1,
        ranks.shared_free,
        free_disk(paths),
    )
    cache = choose_cache(
        _with_extremes(plan.trained, plan.ends), opened, means, plan.run_state.cache
    )
    opened, standardized = inputs.standardize(
        opened.keeping(cache.cache),
        plan.trained,
        {} if earlier_paths is None else read_standardized(earlier_paths),
    )
    epoch_samples = inputs.count_epoch_samples(opened.data, inputs.find_folds(plan.trained, opened))
    spec, ends, full_spec = _resolve_specs(plan, opened, cache, epoch_samples)
    layout = plan_memory(
        _with_extremes(spec, ends), opened.data, opened.sample, roles, ranks.shared_free
    )
    if request.remeasure:
        check_remeasuring(spec, replay is not None)
    launch = Launch(
        request,
        spec,
        ends,
        paths,
        roles,
        opened,
        layout,
        None,
        cache,
        _rates(spec, epoch_samples, roles, replay is not None),
        Machine(hardware(), ranks.per_core),
        compatibility.read_codes(spec, Path(request.spec).absolute().parent),
        replayed=() if replay is None else replay.history,
    )
    if before is None or opened.fingerprint is None:
        changed = []
    else:
        changed = compatibility.describe_data_changes(spec, before, opened.fingerprint)
    if replay is not None:
        replay.check(full_spec, opened.sample, launch.codes, changed, request.accept_changes)
    launch = _enter(launch, lease, before, changed, replay)
    _write_run_metadata(launch, plan.trained, standardized)
    if spec.data.cache == "file":
        opened = inputs.decode(opened, spec, _find_decoded_file(cache, paths, earlier_paths))
    folds = inputs.find_folds(spec, opened)
    fingerprint = opened.fingerprint
    assert fingerprint is not None
    with writing_into(paths):
        compatibility.save_fingerprint(paths, fingerprint, folds, opened.rows, launch.fence)
    if request.shares_run and lease is not None:
        lease.release()
        launch = dataclasses.replace(launch, fence=None)
    return dataclasses.replace(
        launch,
        folds=folds,
        inputs=opened.for_ranks(),
        augmented_epochs=plan_augmented_epochs(launch, ranks.shared_free),
    )


def _read_features(earlier_paths: RunPaths | None) -> tuple[str, ...]:
    """Return a table's columns in the order that earlier launches have read them."""
    with suppress(UserError):  # it is missing or damaged, and written anew
        if earlier_paths is not None and (columns := read_columns(earlier_paths)) is not None:
            return columns.inputs
    return ()


@dataclass(frozen=True)
class _Plan:
    """A launch's specs and paths, before the data is known.

    Attributes:
        trained: what the spec says, with the networks that this launch is to train.
        full_spec: with the networks that came while earlier launches went on; each is to be trained
            as the spec says.
        ends: the same, with the networks that stand for those of its searches, instead of its own.
        written: the networks that the spec says.
        earlier_paths: where earlier launches have left what counts here; None where nothing does.
        run_state: what these have logged of networks that came, of samples, and of earlier runs.
    """

    trained: Spec
    full_spec: Spec
    ends: Spec
    written: tuple[NetworkSpec, ...]
    roles: Roles
    paths: RunPaths
    earlier_paths: RunPaths | None
    run_state: RunState
    replay: Replay | None


def _make_plan(request: Request, ranks: Ranks, name: str) -> _Plan:
    if request.replay is None:
        replayed = None
    else:
        replayed = RunPaths(Path(request.replay).absolute())
    spec, remark = spec_for_run(request.spec, replayed, request.fresh)
    for line in filter(None, (remark, *spec.notices)):
        print(f"fleet: {line}", file=sys.stderr, flush=True)
    written = spec.networks
    paths = RunPaths(spec.output.absolute(), name)  # wherever users' code may go
    earlier_paths = replayed or (None if request.fresh else paths)
    run_state = replay_log(
        ()
        if earlier_paths is None
        else read_run(earlier_paths, (NetworkAdded, CommandReceived, CacheChosen, EarlierRunRead))
    )
    spec = with_added_networks(spec, run_state)
    if request.shares_run:
        check_shareable(spec, "--share-run")
    compatibility.check_fresh(spec, request.fresh_network)
    trained = with_epochs_from_rates(spec)
    roles = assign_roles(
        trained, ranks.node_of, ranks.gpus_per_node, replayed is not None, ranks.cores
    )
    if replayed is not None:
        trained, replay = make_replay(
            trained, replayed, str(request.only), roles.cluster.whole_gpus
        )
        return _Plan(
            trained,
            spec,
            dataclasses.replace(spec, networks=()),
            (),
            roles,
            RunPaths(trained.output.absolute()),
            earlier_paths,
            run_state,
            replay,
        )
    return _Plan(
        trained,
        spec,
        with_extreme_networks(spec),
        written,
        roles,
        paths,
        earlier_paths,
        run_state,
        None,
    )


def _resolve_specs(
    plan: _Plan, opened: inputs.Inputs, cache: CacheChosen, epoch_samples: int
) -> tuple[Spec, Spec, Spec]:
    """Resolve and check the specs of a launch with what the data decides.

    Raises:
        UserError: networks cannot be trained on it, or compared.
    """
    spec, full_spec, ends = inputs.resolve_with_data(
        opened, with_cache(plan.trained, cache.cache), plan.full_spec, plan.ends
    )
    sample = opened.sample
    drawn = dataclasses.replace(full_spec, networks=() if plan.replay else variants(full_spec))
    check_comparable(full_spec, (*plan.written, *drawn.networks), target_kinds(sample))
    ends = with_epochs_from_rates(ends)
    for candidate in (spec, ends, drawn):
        check_networks(candidate, sample, opened.data, epoch_samples, plan.roles.cluster.whole_gpus)
    make_searchers(ends, plan.run_state)  # says what is wrong with one before anything is written
    check_quota(spec, sample)
    return spec, ends, full_spec


def _enter(
    launch: Launch,
    lease: Lease | None,
    before: Fingerprint | None,
    changed: list[str],
    replay: Replay | None,
) -> Launch:
    """Acquire the run's folder, and check that its checkpoints fit this spec and data.

    Raises:
        UserError: it is not, or the folder is not to be had.
    """
    request = launch.request
    paths = launch.paths
    fingerprint = launch.inputs.fingerprint
    is_fresh = request.fresh or replay is not None
    if request.shares_run and lease is not None:
        enter_folder(paths, lease)
    else:
        take_folder(paths, is_fresh, lease)
    if replay is not None:
        replay.copy_initial_weights(paths)
    fence = None if lease is None else lease.fence
    assert fingerprint is not None
    if not is_fresh:
        compatibility.check_data_unchanged(
            paths,
            before,
            compatibility.read_known_fingerprint(paths, request.fresh_network),
            fingerprint,
        )
    events, checkpoints = compatibility.check_saved_networks(
        launch.spec, paths, launch.sample, launch.codes, request, fence, [] if is_fresh else changed
    )
    compatibility.delete_stale_data(paths, fingerprint)
    return dataclasses.replace(
        launch, fence=fence, changes=events, checkpoints={} if request.shares_run else checkpoints
    )


def _write_run_metadata(
    launch: Launch, spec: Spec, standardized: Mapping[str, Standardization]
) -> None:
    """Write the spec, sample and standardization into the run's folder."""
    opened = launch.inputs
    write_spec(spec, launch.paths)
    write_sample(launch.paths, launch.sample, opened.names, columns_of(opened.data.train))
    write_standardized(launch.paths, standardized)


def _with_extremes(spec: Spec, ends: Spec) -> Spec:
    """Return a spec with the networks that represent its searches."""
    return dataclasses.replace(spec, networks=(*spec.networks, *ends.networks))


def _find_decoded_file(cache: CacheChosen, paths: RunPaths, earlier_paths: RunPaths | None) -> Path:
    """Return the path of decoded samples; a replay uses the file of its run."""
    of_run = paths if earlier_paths is None else earlier_paths
    if cache.is_temporary and not of_run.decoded.exists():
        return paths.decoded
    return of_run.decoded


def plan_memory(
    spec: Spec, data: DataSet, sample: SampleSpec, roles: Roles, shared_free: float
) -> Layout | None:
    """Plan the window of the stream on a node; None if no window is needed.

    Args:
        shared_free: bytes of shared memory that are free on the node that has least.

    Raises:
        UserError: the window is too small for it.
    """
    if not roles.shared:
        return None
    samples = len(data.train)
    settings = spec.data
    needed = samples * (sample.wire.nbytes + sample.target.nbytes)
    if settings.folds is not None and needed > settings.shared_memory:
        raise UserError(
            f"data.shared_memory: {format_size(settings.shared_memory)} is too small for data.folds: "
            f"networks are judged by all {pluralize(samples, 'sample')}, which would take "
            f"{format_size(needed)} on each node; give that much"
        )
    if settings.cache == "memory":
        assert sample.stored is not None
        needed = samples * row_bytes(sample.stored, sample.stored_target.wire)
        if needed > settings.shared_memory:
            raise UserError(
                f"data.shared_memory: {format_size(settings.shared_memory)} is too small for data.cache: memory: "
                f"{pluralize(samples, 'decoded sample')} would take {format_size(needed)} on each node; "
                "give that much, or use data.order: ring"
            )
        return None
    if settings.order == "ring":
        return plan_ring(
            sample.wire,
            samples,
            settings.shared_memory,
            settings.shards,
            roles.gpus_per_node,
            sample.target.wire,
        )
    group_sizes = [
        min(network.max_gpus or len(roles.trainers), len(roles.trainers))
        for network in spec.networks
    ]
    largest = max(
        (
            network.largest_batch(gpus)
            for network, gpus in zip(spec.networks, group_sizes, strict=True)
        ),
        default=spec.document.train.batch.bounds[1],
    )
    # Networks can be as far apart as all epochs of the run: one trains its first while others come
    # and go.
    total_epochs = sum(network.train.stopping.max_epochs for network in spec.networks)
    fitting_epochs = shared_free / 2 / (samples * row_bytes(sample.wire, sample.target.wire))
    return plan_layout(
        sample.wire,
        samples,
        settings.shared_memory,
        largest,
        roles.gpus_per_node,
        sample.target.wire,
        int(min(total_epochs, fitting_epochs)),
    )


def plan_augmented_epochs(launch: Launch, shared_free: float) -> int:
    """Return how many augmented epochs fit beside the decoded samples of a node.

    Args:
        shared_free: bytes of shared memory that are free on the node that has least.
    """
    if launch.kept_image is None or not launch.roles.shared:
        return 0
    spec = launch.spec
    opened = launch.inputs
    used_bytes = shared_bytes(spec, opened, launch.roles, shared_free)
    return count_shared_epochs(
        _with_extremes(spec, launch.search_extremes), opened, used_bytes, shared_free
    )


def shared_bytes(spec: Spec, opened: inputs.Inputs, roles: Roles, shared_free: float) -> int:
    """Return the bytes of the samples that the ranks of a node share.

    Args:
        spec: with what was chosen for ``data.cache``.
        shared_free: bytes of shared memory that are free on the node that has least.

    Raises:
        UserError: the window is too small for it.
    """
    if not roles.shared:
        return 0
    sample = opened.sample
    samples = len(opened.data.train)
    layout = plan_memory(spec, opened.data, sample, roles, shared_free)
    if layout is not None:
        return layout.window_bytes + validation_bytes(opened)
    assert sample.stored is not None
    return samples * row_bytes(sample.stored, sample.stored_target.wire) + validation_bytes(opened)


def target_kinds(sample: SampleSpec) -> Callable[[NetworkSpec], tuple[str]]:
    """Return a function for the kind of each network's target."""
    return lambda network: (sample.for_pipeline(network.pipeline).target.kind,)


def check_networks(
    spec: Spec, sample: SampleSpec, data: DataSet, samples: int, trainers: int
) -> None:
    """Refuse networks that cannot be trained on this data or with these trainers.

    Args:
        samples: of an epoch.

    Raises:
        UserError: all that is wrong with any.
    """
    problems = find_misfits(spec, sample, data, samples, trainers)
    if problems:
        count = len({network.name for network, *_ in problems})
        raise UserError(
            "\n  ".join(
                [
                    f"{count} of the networks cannot be trained as the spec says",
                    *map(str, merge_misfits(spec, problems)),
                ]
            )
        )


def find_misfits(
    spec: Spec, sample: SampleSpec, data: DataSet, samples: int, trainers: int
) -> list[Misfit]:
    """Find networks that cannot be trained on this data or with these trainers."""
    return [
        *find_data_misfits(spec, sample, samples, data.validation is not None),
        *(
            (
                network,
                ("models", network.entry, "gpus"),
                f"gpus: needs at least {network.min_gpus} trainers, but there are {trainers}",
                "start more ranks",
            )
            for network in spec.networks
            if network.min_gpus > trainers
        ),
    ]


# ---- rates -------------------------------------------------------------------------------------


def _rates(spec: Spec, epoch_samples: int, roles: Roles, replays: bool) -> RateTable | None:
    """Return the rates of a file, with the spec's bounds; None if they are to be measured."""
    if spec.schedule.rates is not None:
        table = with_best_batches(
            read_rates_of(spec, spec.schedule.rates), roles.cluster.whole_gpus
        )
        return dataclasses.replace(
            table, samples_per_epoch=epoch_samples, gpus_per_node=roles.physical_gpus_per_node
        )
    if spec.policy.needs_rates and not replays:
        return None
    # For a network alone, and for the policy that looks at no rates: nothing is measured.
    return RateTable(
        1,
        roles.physical_gpus_per_node,
        tuple(
            Network(network.name, (1.0,), min_gpus=network.min_gpus, max_gpus=network.max_gpus)
            for network in spec.networks
        ),
    )


def with_epochs_from_rates(spec: Spec) -> Spec:
    """Limit emulated networks to the epochs that the rates file has for them."""
    if spec.schedule.rates is None or spec.engine.learns:
        return spec
    table = read_rates(spec.schedule.rates)

    def limited(network: NetworkSpec) -> NetworkSpec:
        epochs = find_rates(network, spec, table).epochs
        if epochs is None:
            return network
        converge = dataclasses.replace(
            network.train.stopping, max_epochs=epochs, patience=None, stop_at=None
        )
        return dataclasses.replace(
            network, train=dataclasses.replace(network.train, stopping=converge)
        )

    return dataclasses.replace(spec, networks=tuple(map(limited, spec.networks)))
