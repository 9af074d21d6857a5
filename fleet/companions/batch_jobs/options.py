"""Options that commands for batch jobs share: machine, batch system, times and ranks."""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

from fleet.arguments import duration, integer
from fleet.batch_systems import find_system
from fleet.comm.roles import Roles, assign_roles
from fleet.errors import UserError
from fleet.spec import Spec, read_yaml
from fleet.storage.paths import RunPaths
from fleet.units import format_duration
from launch.render import Job
from launch.sites import SITES, Site, parse_site
from launch.systems import SYSTEMS, System

MAX_JOBS = 20  # of a chain, by default
WARNING_S = 120.0  # before the end of the walltime
_WARNING_SHARE = 0.1  # of a short walltime
size = integer(1, 100_000)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options of jobs."""
    parser.add_argument(
        "--system",
        metavar="NAME",
        help=f"batch system: {', '.join(SYSTEMS)}, or a custom module:system (the site's)",
    )
    parser.add_argument(
        "--site",
        default="generic",
        metavar="NAME",
        help=f"machine: {', '.join(SITES)}, or your own YAML file (generic)",
    )
    parser.add_argument(
        "--warn",
        type=duration,
        metavar="2min",
        help="save everything this long before the walltime ends (2min, or a tenth of the walltime "
        "if that is less)",
    )
    parser.add_argument(
        "--ranks-per-node", type=size, metavar="N", help="number of ranks on each node (the site's)"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=size,
        metavar="N",
        help="number of GPUs per node, for a site without GPUs (resources.gpus_per_node of the "
        "spec)",
    )
    parser.add_argument("--account", metavar="NAME", help="account to charge")
    parser.add_argument("--queue", metavar="NAME", help="queue or partition")


def find_site(name: str) -> Site:
    """Return the site with a name, or the site that a file describes.

    Raises:
        UserError: the site is unknown.
    """
    if name in SITES:
        return SITES[name]
    if not name.endswith((".yaml", ".yml")) and not os.path.exists(name):
        raise UserError(
            f"--site {name} is unknown; use one of {', '.join(SITES)}, or your own YAML file"
        )
    return parse_site(read_yaml(Path(name))[0], name)


def with_gpus(args: argparse.Namespace, spec: Spec, site: Site) -> Site:
    """Return the site with the requested GPUs, or the spec's, if it has none."""
    requested = args.gpus_per_node
    assumed = spec.resources.gpus_per_node
    if requested is not None and site.gpus:
        raise UserError(
            f"--gpus-per-node is for sites that do not set it; {args.site} has {site.gpus} GPUs"
        )
    if requested is not None:
        gpus = requested
    elif assumed == "auto":
        gpus = 0
    else:
        gpus = assumed
    if not gpus or site.gpus:
        return site
    # By default one rank per GPU trains, and two prepare samples.
    if site.ranks == Site.ranks:
        ranks = 3 * gpus
    else:
        ranks = max(site.ranks, gpus + 1)
    return replace(site, gpus=gpus, ranks=ranks)


def system_of(args: argparse.Namespace, site: Site) -> System:
    """Return the requested batch system, or the site's.

    Raises:
        UserError: neither is given, or they differ.
    """
    name: str | None = args.system
    if name is None and site.system is None:
        raise UserError(
            f"choose the batch system with --system: {', '.join(SYSTEMS)}, or an import path"
        )
    if name is not None and site.system not in (None, name):
        raise UserError(f"--system {name}: the site {args.site} has the batch system {site.system}")
    return find_system(str(name or site.system))


def job_of(
    args: argparse.Namespace,
    path: str,
    spec: Spec,
    system: System,
    site: Site,
    walltime: float | None,
) -> Job:
    """Return the job that launches a spec, with the options that all commands share.

    Args:
        args: the options.
        path: the spec file, as the user named it.
        spec: the spec.
        system: the batch system.
        site: the machine.
        walltime: the walltime of the job, in seconds.
    """
    paths = RunPaths(spec.output.absolute())
    return Job(
        spec.document.name,
        path,
        Path.cwd(),
        Path(sys.executable),
        paths.root,
        paths.jobs,
        args.nodes,
        walltime,
        _warning(args, walltime, system),
        ranks_of(args, spec, site),
        account=args.account,
        queue=args.queue,
        trainers=trainers_of(args, spec, site),
    )


def _warning(args: argparse.Namespace, walltime: float | None, system: System) -> float:
    """Return how long before the end of its walltime a job saves everything; in seconds."""
    if walltime is None and system.has_queue:
        raise UserError("set the walltime of the job with --walltime, such as 2h, or in the spec")
    warning: float = args.warn or min(WARNING_S, _WARNING_SHARE * (walltime or math.inf))
    if walltime is not None and warning >= walltime:
        raise UserError(
            f"--warn is {format_duration(warning)}; it should be less than the walltime"
        )
    return warning


def ranks_of(args: argparse.Namespace, spec: Spec, site: Site) -> int | None:
    """Return the ranks per node that the options or the spec request; None for the site's.

    With slots (``resources.networks_per_gpu: K``) a GPU has K trainers; the number of preprocessors
    does not change.
    """
    requested: int | None = args.ranks_per_node
    preprocessors = spec.resources.preprocessors
    slots = spec.resources.networks_per_gpu
    extra = 0 if slots == "auto" else (slots - 1) * site.gpus
    if requested is not None or not site.gpus or (preprocessors == "auto" and not extra):
        return requested
    if preprocessors == "auto":
        return site.ranks + extra
    if preprocessors < args.nodes:
        raise UserError(
            f"resources.preprocessors: {preprocessors} should be at least {args.nodes}, one per "
            "node"
        )
    return site.gpus + extra + math.ceil(preprocessors / args.nodes)


def trainers_of(args: argparse.Namespace, spec: Spec, site: Site) -> int | None:
    """Return the number of trainers per node if networks share GPUs; None for one per GPU."""
    if spec.resources.networks_per_gpu == 1 or not site.gpus:
        return None
    roles = roles_of_job(args, spec, site)
    return sum(roles.node_of[rank] == 0 for rank in roles.trainers)


def roles_of_job(args: argparse.Namespace, spec: Spec, site: Site) -> Roles:
    """Return the roles of the job's ranks."""
    ranks = ranks_of(args, spec, site) or site.ranks
    return assign_roles(
        spec, [rank // ranks for rank in range(args.nodes * ranks)], site.gpus or None
    )
