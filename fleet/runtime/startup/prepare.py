"""Preparation of a launch on rank 0: the spec, the data, the ranks and the run's folder."""

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
from fleet.domain.timeline import replay_log
from fleet.engines.registry import check_installed
from fleet.errors import UserError
from fleet.prediction.sample_file import (
    read_columns,
    read_standardized,
    write_sample,
    write_standardized,
)
from fleet.runtime.known_rates import (
    check_remeasuring,
    find_launch_rates,
    hardware,
    with_epochs_from_rates,
)
from fleet.runtime.replay import Replay, make_replay
from fleet.runtime.run_sharing import find_run_sharing
from fleet.runtime.searchers import make_searchers
from fleet.runtime.startup import compatibility
from fleet.runtime.startup import data as inputs
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.engine_import import ImportPlan, plan_import
from fleet.runtime.startup.folder import free_disk, write_spec, writing_into
from fleet.runtime.startup.launch import Launch, Ranks
from fleet.runtime.startup.memory import plan_augmented_epochs, plan_memory
from fleet.runtime.startup.request import Request
from fleet.spec import NetworkSpec, Spec, with_cache
from fleet.spec.criteria import check_comparable, target_kinds
from fleet.spec.fit_checks import find_misfits, merge_misfits
from fleet.spec.resolve import variants, with_extreme_networks
from fleet.storage.event_log import read_run_state
from fleet.storage.identity import Machine
from fleet.storage.lease import Lease
from fleet.storage.paths import RunPaths
from fleet.storage.quota import check_quota
from fleet.storage.run_spec import spec_for_run
from fleet.units import pluralize
from preprocess.base import DataSet
from preprocess.fingerprint import Fingerprint
from preprocess.moments import Standardization
from preprocess.sample import SampleSpec
from preprocess.sources.table import columns_of


def prepare(
    request: Request,
    ranks: Ranks,
    lease: Lease | None = None,
    announce: Callable[[ImportPlan], None] = lambda import_plan: None,
    name: str = "",
) -> Launch:
    """Read and validate the whole launch before anything is written.

    Args:
        lease: locks the run's folder for other launches from now on; if the run is shared, only
            until everything is read and checked.
        announce: receives the engine import that can start early, as soon as it is known.
        name: name of this launch among the launches that share the run.

    Raises:
        UserError, InputError: the input is wrong; the message says what would be right.
    """
    plan = _make_plan(request, ranks, name)
    import_plan = plan_import(plan.trained, plan.roles, plan.earlier_paths is not plan.paths)
    if import_plan.ranks:
        check_installed(plan.trained.engine)
    announce(import_plan)
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
    resources = HostResources(
        len(roles.preprocessors),
        roles.gpus_per_node,
        ranks.per_core > 1,
        ranks.shared_free,
        free_disk(paths),
    )
    cache = choose_cache(
        _with_extremes(plan.trained, plan.extremes), opened, resources, plan.run_state.cache
    )
    opened, standardized = inputs.standardize(
        opened.keeping(cache.cache),
        plan.trained,
        {} if earlier_paths is None else read_standardized(earlier_paths),
    )
    epoch_samples = inputs.count_epoch_samples(opened.data, inputs.find_folds(plan.trained, opened))
    spec, extremes, full_spec = _resolve_specs(plan, opened, cache, epoch_samples)
    layout = plan_memory(_with_extremes(spec, extremes), opened, roles, ranks.shared_free)
    if request.remeasure:
        check_remeasuring(spec, replay is not None)
    launch = Launch(
        request,
        spec,
        extremes,
        paths,
        roles,
        opened,
        layout,
        None,
        cache,
        find_launch_rates(spec, epoch_samples, roles, replay is not None),
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
        augmented_epochs=plan_augmented_epochs(
            _with_extremes(launch.spec, launch.search_extremes), opened, roles, ranks.shared_free
        ),
    )


def _read_features(earlier_paths: RunPaths | None) -> tuple[str, ...]:
    """Return a table's columns in the order in which earlier launches have read them."""
    if earlier_paths is None:
        return ()
    with suppress(UserError):  # the file is missing or damaged, and will be written anew
        columns = read_columns(earlier_paths)
        if columns is not None:
            return columns.inputs
    return ()


@dataclass(frozen=True)
class _Plan:
    """A launch's specs and paths, before the data is known.

    Attributes:
        trained: the spec with the networks that this launch trains.
        full_spec: the spec with networks that were added in earlier launches, without the limits of
            emulated networks.
        extremes: the spec with the extreme networks of its searches in place of its own networks.
        written: the networks of the spec's file.
        earlier_paths: the folder with results of earlier launches that are used; None without any.
        run_state: the logged state of earlier launches: added networks, cache, and earlier runs.
    """

    trained: Spec
    full_spec: Spec
    extremes: Spec
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
    paths = RunPaths(spec.output.absolute(), name)  # users' code may change the working folder
    earlier_paths = replayed or (None if request.fresh else paths)
    if earlier_paths is None:
        run_state = replay_log(())
    else:
        kinds = (NetworkAdded, CommandReceived, CacheChosen, EarlierRunRead)
        run_state = read_run_state(earlier_paths, kinds)
    spec = with_added_networks(spec, run_state)
    find_run_sharing(request.shares_run).check_spec(spec, "--share-run")
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
    """Resolve the settings of a launch's specs that depend on the data, and check the specs.

    Returns:
        The resolved ``trained``, ``extremes`` and ``full_spec`` of the plan.

    Raises:
        UserError: networks cannot be trained on the data, or cannot be compared.
    """
    spec, full_spec, extremes = inputs.resolve_with_data(
        opened, with_cache(plan.trained, cache.cache), plan.full_spec, plan.extremes
    )
    sample = opened.sample
    drawn = dataclasses.replace(full_spec, networks=() if plan.replay else variants(full_spec))
    check_comparable(full_spec, (*plan.written, *drawn.networks), target_kinds(sample))
    extremes = with_epochs_from_rates(extremes)
    for candidate in (spec, extremes, drawn):
        check_networks(candidate, sample, opened.data, epoch_samples, plan.roles.cluster.whole_gpus)
    make_searchers(extremes, plan.run_state)  # raises before anything is written
    check_quota(spec, sample)
    return spec, extremes, full_spec


def _enter(
    launch: Launch,
    lease: Lease | None,
    before: Fingerprint | None,
    changed: list[str],
    replay: Replay | None,
) -> Launch:
    """Acquire the run's folder, and check that its checkpoints fit this spec and data.

    Raises:
        UserError: they do not fit, or the folder cannot be acquired.
    """
    request = launch.request
    paths = launch.paths
    fingerprint = launch.inputs.fingerprint
    is_fresh = request.fresh or replay is not None
    find_run_sharing(request.shares_run).enter_folder(paths, is_fresh, lease)
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


def _with_extremes(spec: Spec, extremes: Spec) -> Spec:
    """Return a spec with the extreme networks of its searches added."""
    return dataclasses.replace(spec, networks=(*spec.networks, *extremes.networks))


def _find_decoded_file(cache: CacheChosen, paths: RunPaths, earlier_paths: RunPaths | None) -> Path:
    """Return the path of decoded samples; a replay uses the file of its run."""
    run_paths = paths if earlier_paths is None else earlier_paths
    if cache.is_temporary and not run_paths.decoded.exists():
        return paths.decoded
    return run_paths.decoded


def check_networks(
    spec: Spec, sample: SampleSpec, data: DataSet, samples: int, trainers: int
) -> None:
    """Refuse networks that cannot be trained on this data or with these trainers.

    Args:
        samples: number of samples of an epoch.

    Raises:
        UserError: some networks cannot be trained; the message lists all of them.
    """
    problems = find_misfits(spec, sample, samples, data.validation is not None, trainers)
    if problems:
        count = len({network.name for network, *_ in problems})
        raise UserError(
            "\n  ".join(
                [
                    f"{pluralize(count, 'network')} cannot be trained as specified:",
                    *map(str, merge_misfits(spec, problems)),
                ]
            )
        )
