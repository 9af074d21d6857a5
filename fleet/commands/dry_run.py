"""Try a spec on this machine before you spend an allocation: the same run with emulated training.

  fleet dry-run spec.yaml
  fleet dry-run spec.yaml --gpus 16
  fleet dry-run spec.yaml --gpus 64 --gpus-per-node 4 --rates profile.json
  fleet dry-run spec.yaml --gpus 16 --time-scale 0.001 --output runs/dry-run

First, all policies are simulated without the cost of moving networks. Then the data of the spec is
opened, its networks are drawn, and the run is launched with one rank per trainer of the real run
and one more per node. It forms groups, prepares the stream and writes checkpoints, but ranks sleep
instead of training, for as long as the rates say, scaled down. Rates come from --rates, from
`schedule.rates`, from the profile of an earlier run of the spec, or from the cache of your
measurements. Otherwise they are estimated from the numbers of parameters, which does not predict
how long the run will take. Networks train for the epochs in the rates file, or for as many as the
spec allows. The estimated time of the run includes the measurement of rates, if they are not known.
Without --gpus or --ranks the dry run uses one node: with as many GPUs as the spec says, or with one
for each network, at most 8.
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
from fleet.checks.dry_run import DryRun, estimated_rates, make_dry_run, with_epochs
from fleet.commands.known_rates import cached, known_rates_of, shared_cluster, with_sharing
from fleet.commands.options import add_spec, describe_gpus
from fleet.commands.output import print_policies, show
from fleet.control.measurement import MeasurementEstimate, RateMeasurement, estimate_duration
from fleet.errors import ExitStatus, FleetError, InfrastructureError, UserError
from fleet.monitor.accounting import ACTIVITIES, Account
from fleet.monitor.report import read_report
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.data import open_inputs
from fleet.spec import Spec, load, read_yaml, with_cache
from fleet.spec.engines import find_engine
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from fleet.units import about, format_duration, listed
from launch.errors import pluralize
from preprocess.sample import SampleSpec
from scheduler.base import Cluster, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates_file import write_rates
from scheduler.simulation.ensemble import Simulated, simulate

# The fields of each policy that --json prints.
_PRINTED = ("policy", "makespan_s", "lower_bound_s", "waiting_s_per_gpu", "checkpoint_s")
_ESTIMATED = "estimated"  # the origin of rates that were not measured
_MAX_DEFAULT_GPUS = 8  # if neither an option nor the spec sets the number of GPUs


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--gpus", type=count, metavar="M", help="number of GPUs of the run (those of one node)"
    )
    size.add_argument(
        "--ranks",
        type=count,
        metavar="N",
        help="number of ranks of the run: one per node prepares samples, the others have a GPU",
    )
    parser.add_argument(
        "--gpus-per-node",
        type=count,
        metavar="G",
        help="number of GPUs per node (as in the spec, or all GPUs on one node)",
    )
    parser.add_argument("--rates", metavar="FILE", help="JSON file of training rates")
    parser.add_argument(
        "--time-scale",
        type=positive,
        metavar="S",
        help="seconds that one second of the run takes, such as 0.001 (so that the dry run takes "
        "half a minute)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder for the files of the dry run (a temporary folder)",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate, do the dry run, and print both results."""
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
    resources = HostResources(0 if spec.policy.own_samples else nodes, cluster.gpus_per_node)
    choice = choose_cache(spec, opened, resources)
    spec = with_cache(spec, choice.cache)
    rate_table, origin = known_rates_of(spec, args.spec, args.rates, sample, gpu_cluster) or (
        estimated_rates(spec, sample, gpu_cluster.gpus_per_node),
        _ESTIMATED,
    )
    rates = with_sharing(spec, with_epochs(spec, rate_table, len(data.train)))
    policies = {**POLICIES, spec.policy.name: spec.policy}  # the policy may be custom
    outcomes = {
        name: simulate(rates, cluster, policy, spec.options, Costs())
        for name, policy in policies.items()
    }
    planned = outcomes[spec.schedule.policy]
    profiling = _profiling(args, spec, sample, rates, gpu_cluster)
    dry_run = make_dry_run(
        spec, rates, cluster, planned.makespan_s, os.cpu_count() or 1, sample, args.time_scale
    )
    if not args.json:
        print(choice.summary)
        _announce(spec, cluster, origin, outcomes, dry_run, profiling)
    status, account = _perform(args, dry_run, cluster)
    show(
        args,
        lambda: _numbers(spec, cluster, origin, outcomes, dry_run, account, profiling),
        lambda: _print(account, dry_run, profiling, origin != _ESTIMATED),
    )
    return status


def _check_output(folder: Path) -> None:
    """Refuse the folder of a real run: a launch deletes the run in its folder."""
    paths = RunPaths(folder)
    if not paths.marker.exists():  # there is no run to delete
        return
    if not (paths.spec.exists() and _is_dry_run(read_yaml(paths.spec)[0])):
        raise UserError(f"--output {folder} contains a real run; use another folder")


def _is_dry_run(content: dict[str, Any]) -> bool:
    """Return True if the engine of a spec does not learn."""
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
        gpus = _default_gpus(spec, per_node)
    else:
        if spec.resources.networks_per_gpu == "auto":
            slots = 1
        else:
            slots = spec.resources.networks_per_gpu
        nodes = 1 if per_node is None else -(-args.ranks // (per_node * slots + 1))
        gpus = -(-(args.ranks - nodes) // slots)
    if gpus < 1:
        raise UserError(f"{gpus} GPUs: a dry run needs at least 1, and one more rank on each node")
    per_node = gpus if per_node is None else min(per_node, gpus)
    if per_node < 1 or gpus % per_node:
        raise UserError(f"{gpus} GPUs on nodes with {per_node} GPUs: a dry run needs whole nodes")
    return Cluster.of(gpus, per_node)


def _default_gpus(spec: Spec, per_node: int | None) -> int:
    """Return the GPUs of one node, or of as many nodes as the largest network needs."""
    min_gpus = max(network.min_gpus for network in spec.networks)
    if per_node:
        return per_node * -(-min_gpus // per_node)
    return max(min_gpus, min(len(spec.networks), _MAX_DEFAULT_GPUS))


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
    measurement = RateMeasurement(
        spec.networks, keys, spec.profile, cluster.gpus, cluster.gpus_per_node, cached_rates
    )
    return estimate_duration(measurement, rates, spec.engine.build_s)


def _perform(
    args: argparse.Namespace, dry_run: DryRun, cluster: Cluster
) -> tuple[ExitStatus, Account]:
    """Launch the dry run, in a temporary folder unless ``--output`` names one."""
    with tempfile.TemporaryDirectory(prefix="fleet-dry-run-") as temporary:
        folder = Path(temporary)
        output = folder / "run" if args.output is None else args.output.resolve()
        status = _launch(
            _write_spec(dry_run, folder, output),
            cluster,
            modules_folder=Path(args.spec).absolute().parent,
        )
        return status, read_report(RunPaths(output)).account


def _write_spec(dry_run: DryRun, folder: Path, output: Path) -> Path:
    """Write the spec and the rates file of a dry run; return the spec's path."""
    rates = folder / "rates.json"
    spec = folder / "spec.yaml"
    write_json(rates, write_rates(dry_run.rates))
    schedule = dataclasses.replace(dry_run.document.schedule, rates=str(rates))
    api.write_spec(
        dataclasses.replace(dry_run.document, schedule=schedule, output=str(output)), spec
    )
    return spec


def _launch(spec: Path, cluster: Cluster, modules_folder: Path) -> ExitStatus:
    """Launch a spec; if the launch fails, print the end of its output.

    Args:
        spec: the spec file.
        cluster: the GPUs of the run.
        modules_folder: a folder from which modules can be imported.
    """
    # One rank of each node prepares samples.
    ranks = cluster.gpus + cluster.gpus // cluster.gpus_per_node
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
            print(f"The dry run ended with status {status}: {_tail(log)}", file=sys.stderr)
    return status


def _tail(log: IO[str]) -> str:
    log.seek(0)
    return log.read().strip()[-2000:]


def _announce(
    spec: Spec,
    cluster: Cluster,
    origin: str,
    outcomes: dict[str, Simulated],
    dry_run: DryRun,
    profiling: MeasurementEstimate,
) -> None:
    policy = spec.schedule.policy
    is_known = origin != _ESTIMATED
    format_time = format_duration if is_known else about
    note = "" if is_known else " (with estimated rates: nothing was measured)"
    planned = outcomes[policy]
    print(
        f"{pluralize(len(spec.networks), 'network')}, "
        f"{pluralize(dry_run.rates.samples_per_epoch, 'sample')} per epoch; "
        f"{describe_gpus(cluster)}; rates: {origin}"
    )
    print_policies(list(outcomes.values()), is_known)
    print_table(
        ["round", "start", "duration", "networks and their GPUs"],
        [
            [
                number,
                format_time(round_.start_s),
                format_time(round_.end_s - round_.start_s),
                listed([f"{member.name} {member.gpus}" for member in round_.members], limit=8),
            ]
            for number, round_ in enumerate(planned.rounds[:10], start=1)
        ],
        title=f"{policy}: {format_time(planned.makespan_s)} in "
        f"{pluralize(len(planned.rounds), 'round')}{note}",
    )
    total_s = profiling.seconds + planned.makespan_s
    if profiling.measurements:
        print(
            f"Rates are measured first: {pluralize(profiling.measurements, 'measurement')} in "
            f"about {format_duration(profiling.seconds)}. The whole run: {about(total_s)}{note}."
        )
    if spec.document.walltime is not None and total_s > spec.document.walltime:
        print(
            f"The walltime of {format_duration(spec.document.walltime)} is too short: the run will "
            "stop, and the same command resumes it."
        )
    print(
        f"Dry run on {cluster.gpus + cluster.gpus // cluster.gpus_per_node} ranks in about "
        f"{format_duration(planned.makespan_s * dry_run.scale)} ...",
        flush=True,
    )


def _print(
    account: Account, dry_run: DryRun, profiling: MeasurementEstimate, is_known: bool
) -> None:
    print(
        f"{pluralize(len({stint.name for stint in account.stints}), 'network')} trained in "
        f"{pluralize(len(account.stints), 'group')}; GPU time: "
        + ", ".join(
            f"{ACTIVITIES[name]} {share:.1%}"
            for name, share in account.spent.shares.items()
            if share >= 0.0005
        )
    )
    if account.measured_s is not None:
        run_s = account.measured_s / dry_run.scale
        if is_known:
            run_time = format_duration(run_s)
        else:
            run_time = f"{about(run_s)} (with estimated rates)"
        per_group = 1000 * account.costs.regroup_s
        per_epoch = 1000 * account.costs.epoch_s
        if profiling.seconds:
            measuring = f", after {format_duration(profiling.seconds)} of measurements"
        else:
            measuring = ""
        print(
            f"The dry run took {format_duration(account.measured_s)}, {account.ratio:.3f} times "
            f"the simulated time ({per_group:.0f} ms to form a group, {per_epoch:.0f} ms between "
            f"epochs). The run will take {run_time}{measuring}."
        )


def _numbers(
    spec: Spec,
    cluster: Cluster,
    origin: str,
    outcomes: dict[str, Simulated],
    dry_run: DryRun,
    account: Account,
    profiling: MeasurementEstimate,
) -> dict[str, Any]:
    planned = outcomes[spec.schedule.policy]
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
            for outcome in outcomes.values()
        ],
        "rounds": planned.rounds,
        "predicted_s": {name: outcome.makespan_s for name, outcome in outcomes.items()},
        "lower_bound_s": next(iter(outcomes.values())).lower_bound_s,
        "time_scale": dry_run.scale,
        "measured_s": account.measured_s,
        "simulated_s": account.simulated_s,
        "groups": len(account.stints),
        "networks": len({stint.name for stint in account.stints}),
        "spent_gpu_s": dataclasses.asdict(account.spent),
    }
