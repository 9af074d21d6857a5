"""Try a spec before an allocation is spent: the same run, with training emulated, on this machine.

  fleet dry-run spec.yaml
  fleet dry-run spec.yaml --gpus 16
  fleet dry-run spec.yaml --gpus 64 --gpus-per-node 4 --rates profile.json
  fleet dry-run spec.yaml --gpus 16 --time-scale 0.001 --output runs/rehearsal

First all policies are simulated, as if moves cost nothing. Then the data of the spec is opened and
its networks are drawn, and as many ranks as the real run has trainers, and one more on each node,
go through all of it: groups, stream, rounds, checkpoints. Instead of training they sleep for as
long as the rates say, scaled down. Rates come from --rates, from `schedule.rates`, from the profile
that a run of the spec has left, or from the cache of your measurements. If there are none, they are
estimated from the numbers of parameters, which says nothing about how long the run will take.
Networks train for the epochs that the rates file gives them, otherwise for as many as the spec
allows. The estimate of the run includes the time in which rates are measured, if the run will have
to measure them. Without --gpus or --ranks the run is rehearsed on one node: with as many GPUs as
the spec says, or with one for each network, at most 8.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from fleet import api
from fleet.arguments import count, positive
from fleet.commands.known_rates import cached, known_rates_of, shared_cluster, with_sharing
from fleet.commands.options import add_spec, describe_gpus
from fleet.commands.output import add_json, print_policies, show
from fleet.control.measurement import MeasurementEstimate, RateMeasurement, estimate_duration
from fleet.errors import ExitStatus, FleetError, InfrastructureError, UserError
from fleet.jobs.dry_run import DryRun, estimated_rates, make_dry_run, with_epochs
from fleet.monitor.accounting import Account
from fleet.monitor.report import read_report
from fleet.runtime.caching import HostResources, choose_cache
from fleet.runtime.inputs import open_inputs
from fleet.spec import Spec, load, read_yaml, with_cache
from fleet.spec.engines import find_engine
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from fleet.units import about, format_duration, listed, pluralize
from preprocess.sample import SampleSpec
from scheduler.base import Cluster, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates_file import write_rates
from scheduler.simulation.ensemble import Simulated, simulate

# What --json prints of each policy.
_PRINTED = ("policy", "makespan_s", "lower_bound_s", "waiting_s_per_gpu", "checkpoint_s")
_ESTIMATED = "estimated"  # rates of which nothing was measured
_MOST_BY_ITSELF = 8  # GPUs, where neither an option nor the spec says how many


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--gpus", type=count, metavar="M", help="number of GPUs that the run will have (one node)"
    )
    size.add_argument(
        "--ranks",
        type=count,
        metavar="N",
        help="number of ranks that the run will have: all but one on each node have a GPU",
    )
    parser.add_argument(
        "--gpus-per-node",
        type=count,
        metavar="G",
        help="number of GPUs of each node (as the spec says, or all on one node)",
    )
    parser.add_argument("--rates", metavar="FILE", help="JSON file of training rates")
    parser.add_argument(
        "--time-scale",
        type=positive,
        metavar="S",
        help="seconds that a second of the run takes, such as 0.001 (so that it takes half a minute)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder that keeps the files of the rehearsal (they are deleted)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, rehearse, and print how both came out."""
    spec = load(args.spec)
    if spec.searches or not spec.networks:
        raise UserError(
            f"{args.spec}: the networks of a search are not known in advance; use a spec with "
            "`count:` instead of `search:`"
        )
    if args.output is not None:
        _check_output(args.output)
    opened = open_inputs(spec)
    data = opened.data
    sample = opened.sample
    gpu_cluster = _cluster(args, spec)
    nodes = gpu_cluster.gpus // gpu_cluster.gpus_per_node
    cluster = shared_cluster(spec, gpu_cluster)
    means = HostResources(0 if spec.policy.own_samples else nodes, cluster.gpus_per_node)
    choice = choose_cache(spec, opened, means)
    spec = with_cache(spec, choice.cache)
    rates_found, origin = known_rates_of(spec, args.spec, args.rates, sample, gpu_cluster) or (
        estimated_rates(spec, sample, gpu_cluster.gpus_per_node),
        _ESTIMATED,
    )
    rates = with_sharing(spec, with_epochs(spec, rates_found, len(data.train)))
    policies = {**POLICIES, spec.policy.name: spec.policy}  # it may be one of the user's own
    outcomes = [
        simulate(rates, cluster, policy, spec.options, Costs()) for policy in policies.values()
    ]
    planned = next(outcome for outcome in outcomes if outcome.policy == spec.schedule.policy)
    profiling = _profiling(args, spec, sample, rates, gpu_cluster)
    rehearsal = make_dry_run(
        spec, rates, cluster, planned.makespan_s, os.cpu_count() or 1, sample, args.time_scale
    )
    if not args.json:
        print(choice.summary)
        _announce(spec, cluster, origin, outcomes, rehearsal, profiling)
    status, account = _perform(args, rehearsal, cluster)
    show(
        args,
        lambda: _numbers(spec, cluster, origin, outcomes, rehearsal, account, profiling),
        lambda: _print(account, rehearsal, profiling, origin != _ESTIMATED),
    )
    return status


def _check_output(folder: Path) -> None:
    """Refuse the folder of a real run: what an earlier rehearsal has left there is deleted."""
    paths = RunPaths(folder)
    if not paths.marker.exists():  # nothing is there, or nothing that the launch would delete
        return
    if not (paths.spec.exists() and _is_rehearsal(read_yaml(paths.spec)[0])):
        raise UserError(
            f"--output {folder} holds a run that is not a rehearsal; name another folder"
        )


def _is_rehearsal(content: dict[str, Any]) -> bool:
    """Return True if a spec trains nothing."""
    resources = content.get("resources")
    try:
        return (
            isinstance(resources, dict)
            and "engine" in resources
            and not find_engine(resources["engine"]).learns
        )
    except (UserError, TypeError):
        return False


def _cluster(args: argparse.Namespace, spec: Spec) -> Cluster:
    per_node = args.gpus_per_node
    if per_node is None and spec.resources.gpus_per_node != "auto":
        per_node = spec.resources.gpus_per_node
    if args.gpus is not None:
        gpus = args.gpus
    elif args.ranks is None:
        gpus = _some_gpus(spec, per_node)
    else:
        if spec.resources.networks_per_gpu == "auto":
            slots = 1
        else:
            slots = spec.resources.networks_per_gpu
        nodes = 1 if per_node is None else -(-args.ranks // (per_node * slots + 1))
        gpus = -(-(args.ranks - nodes) // slots)
    if gpus < 1:
        raise UserError(
            f"{gpus} GPUs: a rehearsal needs at least 1, and one more rank on each node"
        )
    per_node = gpus if per_node is None else min(per_node, gpus)
    if per_node < 1 or gpus % per_node:
        raise UserError(f"{gpus} GPUs on nodes of {per_node}: a rehearsal needs whole nodes")
    return Cluster.of(gpus, per_node)


def _some_gpus(spec: Spec, per_node: int | None) -> int:
    """GPUs of one node, or of so many that every network can train, where nobody says how many there will be."""
    min_gpus = max(network.min_gpus for network in spec.networks)
    if per_node:
        return per_node * -(-min_gpus // per_node)
    return max(min_gpus, min(len(spec.networks), _MOST_BY_ITSELF))


def _profiling(
    args: argparse.Namespace, spec: Spec, sample: SampleSpec, rates: RateTable, cluster: Cluster
) -> MeasurementEstimate:
    """Estimate the measurements before training that this machine's cache does not have."""
    if (
        spec.schedule.rates is not None
        or not spec.policy.needs_rates
        or spec.profile.when == "online"
    ):
        return MeasurementEstimate(0, 0.0)
    keys, cached_rates = cached(spec, args.spec, sample, cluster)
    survey = RateMeasurement(
        spec.networks, keys, spec.profile, cluster.gpus, cluster.gpus_per_node, cached_rates
    )
    return estimate_duration(survey, rates, spec.engine.build_s)


def _perform(
    args: argparse.Namespace, rehearsal: DryRun, cluster: Cluster
) -> tuple[ExitStatus, Account]:
    """Run it, in a folder that is deleted unless ``--output`` names one."""
    with tempfile.TemporaryDirectory(prefix="fleet-rehearsal-") as temporary:
        folder = Path(temporary)
        output = folder / "run" if args.output is None else args.output.resolve()
        status = _launch(
            _written(rehearsal, folder, output),
            cluster,
            modules_folder=Path(args.spec).absolute().parent,
        )
        return status, read_report(RunPaths(output)).account


def _written(rehearsal: DryRun, folder: Path, output: Path) -> Path:
    """Write the spec and the rates file of a dry run; return the spec's path."""
    rates = folder / "rates.json"
    spec = folder / "spec.yaml"
    write_json(rates, write_rates(rehearsal.rates))
    schedule = dataclasses.replace(rehearsal.document.schedule, rates=str(rates))
    api.write_spec(
        dataclasses.replace(rehearsal.document, schedule=schedule, output=str(output)), spec
    )
    return spec


def _launch(spec: Path, cluster: Cluster, modules_folder: Path) -> ExitStatus:
    """Launch a spec. What it prints goes to a file, whose end is shown if the launch does not end well.

    Args:
        modules_folder: where modules of the user are found as well.
    """
    ranks = (
        cluster.gpus + cluster.gpus // cluster.gpus_per_node
    )  # one of each node prepares samples
    modules = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(modules_folder))))
    with open(spec.with_name("log"), "w+", encoding="utf-8") as log:
        try:
            status = api.run(
                spec,
                ranks,
                "--plain",
                "--fresh",
                log=log,
                environment={
                    "FLEET_RANKS_PER_NODE": str(cluster.gpus_per_node + 1),
                    "PYTHONPATH": modules,
                },
            )
        except FleetError as error:
            kind = UserError if isinstance(error, UserError) else InfrastructureError
            raise kind(f"{error}: {_tail(log)}") from None
        if status != ExitStatus.OK:
            print(f"The rehearsal ended with status {int(status)}: {_tail(log)}", file=sys.stderr)
    return status


def _tail(log: IO[str]) -> str:
    log.seek(0)
    return log.read().strip()[-2000:]


def _announce(
    spec: Spec,
    cluster: Cluster,
    origin: str,
    outcomes: list[Simulated],
    rehearsal: DryRun,
    profiling: MeasurementEstimate,
) -> None:
    policy = spec.schedule.policy
    is_known = origin != _ESTIMATED
    format_time = format_duration if is_known else about
    by_what = "" if is_known else ", by estimated rates: nothing was measured"
    planned = next(outcome for outcome in outcomes if outcome.policy == policy)
    print(
        f"{pluralize(len(spec.networks), 'network')}, {pluralize(rehearsal.rates.samples_per_epoch, 'sample')} an epoch; "
        f"{describe_gpus(cluster)}; rates: {origin}"
    )
    print_policies(outcomes, is_known)
    print_table(
        ["round", "start", "takes", "networks on GPUs"],
        [
            [
                number,
                format_time(round_.start_s),
                format_time(round_.end_s - round_.start_s),
                listed([f"{member.name} {member.gpus}" for member in round_.members], limit=8),
            ]
            for number, round_ in enumerate(planned.rounds[:10], start=1)
        ],
        title=f"{policy}: {format_time(planned.makespan_s)} in {pluralize(len(planned.rounds), 'round')}{by_what}",
    )
    total_s = profiling.seconds + planned.makespan_s
    if profiling.measurements:
        print(
            f"Before that, rates are measured: {pluralize(profiling.measurements, 'measurement')} in about "
            f"{format_duration(profiling.seconds)}. The whole run: {about(total_s)}{by_what}."
        )
    if spec.document.walltime is not None and total_s > spec.document.walltime:
        print(
            f"The walltime of {format_duration(spec.document.walltime)} will not be enough: the run will stop, "
            "and the same command resumes it."
        )
    print(
        f"Rehearsing it on {cluster.gpus + cluster.gpus // cluster.gpus_per_node} ranks in about "
        f"{format_duration(planned.makespan_s * rehearsal.scale)} ...",
        flush=True,
    )


def _print(
    account: Account, rehearsal: DryRun, profiling: MeasurementEstimate, is_known: bool
) -> None:
    print(
        f"{pluralize(len({stint.name for stint in account.stints}), 'network')} trained in "
        f"{pluralize(len(account.stints), 'group')}; GPU time: "
        + ", ".join(
            f"{name} {share:.1%}" for name, share in account.spent.shares.items() if share >= 0.0005
        )
    )
    if account.measured_s is not None:
        run_s = account.measured_s / rehearsal.scale
        if is_known:
            run_time = format_duration(run_s)
        else:
            run_time = f"{about(run_s)}, by estimated rates,"
        per_group = 1000 * account.costs.regroup_s
        per_epoch = 1000 * account.costs.epoch_s
        print(
            f"It took {format_duration(account.measured_s)}, {account.ratio:.3f} times what the "
            f"simulation says ({per_group:.0f} ms to form a group, {per_epoch:.0f} ms between epochs): "
            f"{run_time} of the run's own time"
            + (
                f", and {format_duration(profiling.seconds)} of measuring before it."
                if profiling.seconds
                else "."
            )
        )


def _numbers(
    spec: Spec,
    cluster: Cluster,
    origin: str,
    outcomes: list[Simulated],
    rehearsal: DryRun,
    account: Account,
    profiling: MeasurementEstimate,
) -> dict[str, Any]:
    planned = next(outcome for outcome in outcomes if outcome.policy == spec.schedule.policy)
    return {
        "policy": spec.schedule.policy,
        "gpus": cluster.whole_gpus,
        "gpus_per_node": cluster.gpus_per_node // cluster.slots,
        "networks_per_gpu": cluster.slots,
        "rates": origin,
        "measurements": profiling.measurements,
        "profiling_s": profiling.seconds,
        "policies": [
            {name: getattr(outcome, name) for name in _PRINTED} | {"rounds": len(outcome.rounds)}
            for outcome in outcomes
        ],
        "rounds": planned.rounds,
        "predicted_s": {outcome.policy: outcome.makespan_s for outcome in outcomes},
        "lower_bound_s": outcomes[0].lower_bound_s,
        "time_scale": rehearsal.scale,
        "measured_s": account.measured_s,
        "simulated_s": account.simulated_s,
        "groups": len(account.stints),
        "networks": len({stint.name for stint in account.stints}),
        "spent_gpu_s": dataclasses.asdict(account.spent),
    }
