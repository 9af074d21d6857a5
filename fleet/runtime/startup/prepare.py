"""The five steps of a start on rank 0, in their order; see the package."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from fleet.comm.roles import assign_roles
from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import CacheChosen
from fleet.domain.run import RunState
from fleet.engines.registry import check_installed, check_metrics_installed
from fleet.errors import UserError
from fleet.prediction.sample_file import read_standardized, write_sample, write_standardized
from fleet.runtime.known_rates import (
    check_remeasuring,
    find_launch_rates,
    hardware,
    with_epochs_from_rates,
)
from fleet.runtime.replay import Replay, make_replay
from fleet.runtime.run_sharing import find_run_sharing
from fleet.runtime.searchers import start_searches
from fleet.runtime.startup import fingerprint
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.compatibility import check_fresh, check_saved_networks
from fleet.runtime.startup.data import (
    Inputs,
    decode,
    open_inputs,
    resolve_with_data,
    standardize,
)
from fleet.runtime.startup.data_warnings import find_accuracies_of_chance, find_data_warnings
from fleet.runtime.startup.engine_import import ImportPlan, plan_import
from fleet.runtime.startup.folder import free_disk, write_spec, writing_into
from fleet.runtime.startup.launch import PreparedLaunch, Ranks
from fleet.runtime.startup.memory import plan_augmented_epochs, plan_memory
from fleet.runtime.startup.past import Past
from fleet.runtime.startup.request import Request
from fleet.spec import NetworkSpec, Spec, with_cache
from fleet.spec.criteria import check_comparable, target_kinds
from fleet.spec.entries import variants, with_extreme_networks
from fleet.spec.fit_checks import find_misfits, merge_misfits
from fleet.storage.identity import Machine, hash_all_sources
from fleet.storage.lease import NO_FENCE, Lease
from fleet.storage.paths import RunPaths
from fleet.storage.quota import check_quota
from fleet.storage.run_spec import spec_for_run
from launch.errors import pluralize
from preprocess.sources.table import columns_of


def prepare(
    request: Request,
    ranks: Ranks,
    lease: Lease | None = None,
    announce: Callable[[ImportPlan], None] = lambda import_plan: None,
    name: str = "",
) -> PreparedLaunch:
    """Read and validate the whole launch before anything is written.

    Args:
        lease: locks the run's folder for other launches from now on; if the run is shared, only
            until everything is read and checked.
        announce: receives the engine import that can start early, as soon as it is known.
        name: name of this launch among the launches that share the run.

    Raises:
        UserError, InputError: the input is wrong; the message says what would be right.
    """
    # 1. The request, and the spec that it names.
    written = _read_spec(request)
    paths = RunPaths(written.output.absolute(), name)  # users' code may change the working folder

    # 2. The past of the run.
    past = Past(request, paths, written)
    full_spec = with_added_networks(written, past.run)
    sharing = find_run_sharing(request.shares_run)
    sharing.check_spec(full_spec, "--share-run")
    check_fresh(full_spec, request.fresh_network)
    spec = with_epochs_from_rates(full_spec)
    gpus = ranks.count_gpus(spec.resources.device if spec.engine.uses_gpus else "auto")
    roles = assign_roles(spec, ranks.node_of, gpus, request.replayed is not None, ranks.cores)
    if request.replayed is None:
        replay: Replay | None = None
        extremes = with_extreme_networks(full_spec)
    else:
        spec, replay = make_replay(
            spec, request.replayed, str(request.only), roles.cluster.whole_gpus
        )
        paths = RunPaths(spec.output.absolute())
        extremes = dataclasses.replace(full_spec, networks=())
    if spec.engine.learns and not ranks.counts_energy:
        _check_energy(full_spec)
    import_plan = plan_import(spec, roles, RunState() if replay else past.run)
    if import_plan.ranks:
        check_installed(spec.engine)
        check_metrics_installed(spec)
    announce(import_plan)

    # 3. The data, and its fingerprint.
    inputs = open_inputs(spec, True, past.fingerprint, past.features)
    data_warnings: tuple[str, ...] = ()
    if spec.engine.learns:
        data_warnings = find_data_warnings(_with_networks_of(spec, extremes), inputs)

    # 4. Memory: where samples are stored, and the window of the stream.
    resources = HostResources(
        len(roles.preprocessors),
        roles.gpus_per_node,
        ranks.per_core > 1,
        ranks.shared_free,
        free_disk(paths),
    )
    cache = choose_cache(_with_networks_of(spec, extremes), inputs, resources, past.run.cache)
    inputs, standardized = standardize(
        inputs.keeping(cache.cache),
        spec,
        {} if past.paths is None else read_standardized(past.paths),
    )
    saved_spec = spec
    spec, full_spec, extremes = resolve_with_data(
        inputs, with_cache(spec, cache.cache), full_spec, extremes
    )
    extremes = with_epochs_from_rates(extremes)
    drawn = () if replay else variants(full_spec)
    written_networks = () if replay else written.networks
    check_comparable(full_spec, (*written_networks, *drawn), target_kinds(inputs.sample))
    refused = past.run.refused
    trained = tuple(network for network in spec.networks if network.name not in refused)
    for networks in (trained, extremes.networks, drawn):
        _check_networks(spec, networks, inputs, roles.cluster.whole_gpus)
    searches = start_searches(extremes, past.run)  # raises before anything is written
    for search in searches.values():
        if search.note:
            print(f"fleet: {search.note}", file=sys.stderr, flush=True)
    check_quota(spec, inputs.sample)
    every = _with_networks_of(spec, extremes)
    layout = plan_memory(every, inputs, roles, ranks.shared_free)
    augmented_epochs = plan_augmented_epochs(every, inputs, roles, ranks.shared_free)

    # 5. The launch: the run's folder is entered, and checkpoints are compared with the spec.
    if request.remeasure:
        check_remeasuring(spec, replay is not None)
    rates = find_launch_rates(spec, inputs.epoch_samples, roles, replay is not None, past.run.added)
    codes = hash_all_sources(spec, request.spec_folder)
    changed = fingerprint.describe_data_changes(spec, past.fingerprint, inputs.fingerprint)
    if replay is not None:
        replay.check(full_spec, inputs.sample, codes, changed, request.accept_changes)
    is_fresh = request.fresh or replay is not None
    sharing.enter_folder(paths, is_fresh, lease)
    fence = NO_FENCE if lease is None else lease.fence
    if replay is not None:
        replay.copy_initial_weights(paths)
    elif past.catch_up():  # another launch has ended meanwhile
        searches = start_searches(extremes, past.run)
    if not is_fresh:
        fingerprint.check_data_unchanged(
            paths, past.fingerprint, inputs.fingerprint, request.fresh_network
        )
    past.changes, checkpoints = check_saved_networks(
        spec, paths, inputs.sample, codes, request, fence, [] if is_fresh else changed
    )
    if not request.shares_run:
        past.checkpoints = checkpoints
    fingerprint.delete_stale_data(paths, inputs.fingerprint)
    write_spec(saved_spec, paths)
    write_sample(paths, inputs.sample, inputs.names, columns_of(inputs.data.train))
    write_standardized(paths, standardized)
    if spec.data.cache == "file":
        inputs = decode(inputs, spec, _find_decoded_file(cache, paths, past.paths))
    with writing_into(paths):
        fingerprint.save_fingerprint(paths, inputs, fence)
    if request.shares_run and lease is not None:
        lease.release()
        fence = NO_FENCE
    return PreparedLaunch(
        request,
        spec,
        paths,
        roles,
        inputs.for_ranks(),
        layout,
        augmented_epochs,
        rates,
        codes,
        fence,
        () if replay is None else replay.history,
        ranks.counts_energy and spec.engine.learns and replay is None,
        cache,
        Machine(hardware(spec.resources.device), ranks.per_core),
        extremes,
        past,
        searches,
        data_warnings,
        find_accuracies_of_chance(inputs),
    )


def _check_energy(spec: Spec) -> None:
    """Refuse searches that need a counter of energy.

    Raises:
        UserError: one has a budget or an objective of energy.
    """
    for index, entry in enumerate(spec.document.models):
        search = entry.search
        if search is None:
            continue
        path = f"models[{index}].search"
        if search.budget is not None and search.budget.kwh is not None:
            key, use = f"{path}.budget.kwh", "epochs or gpu_hours"
        elif any(objective.value == "energy" for objective in search.objectives):
            key, use = f"{path}.objectives: energy", "seconds"
        else:
            continue
        raise UserError(
            f"{key}: no rank can read a counter of energy (fleet doctor says why); use {use}"
        )


def _read_spec(request: Request) -> Spec:
    """Return the spec as it is written, and print its notices.

    Raises:
        SpecError: with every mistake, each with file, line and key.
    """
    spec, remark = spec_for_run(request.spec, request.replayed, request.fresh)
    for line in filter(None, (remark, *spec.notices)):
        print(f"fleet: {line}", file=sys.stderr, flush=True)
    return spec


def _with_networks_of(spec: Spec, extremes: Spec) -> Spec:
    """Return a spec with the extreme networks of its searches added."""
    return dataclasses.replace(spec, networks=(*spec.networks, *extremes.networks))


def _check_networks(
    spec: Spec, networks: tuple[NetworkSpec, ...], inputs: Inputs, trainers: int
) -> None:
    """Refuse networks that cannot be trained on this data or with these trainers.

    Raises:
        UserError: some networks cannot be trained; the message lists all of them.
    """
    problems = find_misfits(
        dataclasses.replace(spec, networks=networks),
        inputs.sample,
        inputs.epoch_samples,
        inputs.data.validation is not None,
        trainers,
    )
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


def _find_decoded_file(cache: CacheChosen, paths: RunPaths, earlier: RunPaths | None) -> Path:
    """Return the path of decoded samples; a replay uses the file of its run."""
    run_paths = earlier or paths
    if cache.is_temporary and not run_paths.decoded.exists():
        return paths.decoded
    return run_paths.decoded
