"""What commands that hand in jobs have in common: options, machine, batch system, times, and what the ranks do."""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

from fleet.arguments import duration, integer
from fleet.comm.roles import Roles, assign_roles
from fleet.errors import UserError
from fleet.jobs.systems import find_system
from fleet.spec import Spec, read_yaml
from fleet.storage.paths import RunPaths
from fleet.units import format_duration
from launch.render import Job
from launch.sites import SITES, Site, parse_site
from launch.systems import SYSTEMS, System

MOST_JOBS = 20  # of a chain, where nobody says
WARNING_S = 120.0  # before the end of the walltime
_WARNING_SHARE = 0.1  # of a short one
size = integer(1, 100_000)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked for each job, whoever hands it in."""
    parser.add_argument(
        "--system",
        metavar="NAME",
        help=f"batch system: {', '.join(SYSTEMS)}, or module:system of your own (that of the site)",
    )
    parser.add_argument(
        "--site",
        default="generic",
        metavar="NAME",
        help=f"machine: {', '.join(SITES)}, or a YAML file of your own (generic)",
    )
    parser.add_argument(
        "--warn",
        type=duration,
        metavar="2min",
        help="save everything this long before the walltime ends (2min, or a tenth of the walltime if "
        "that is less)",
    )
    parser.add_argument(
        "--ranks-per-node", type=size, metavar="N", help="number of ranks on each node (the site's)"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=size,
        metavar="N",
        help="number of GPUs of each node, if the site does not say (resources.gpus_per_node of the "
        "spec)",
    )
    parser.add_argument("--account", metavar="NAME", help="account that pays for the time")
    parser.add_argument("--queue", metavar="NAME", help="queue or partition")


def find_site(name: str) -> Site:
    """Return the site of a name, or of a file.

    Raises:
        UserError: there is none.
    """
    if name in SITES:
        return SITES[name]
    if not name.endswith((".yaml", ".yml")) and not os.path.exists(name):
        raise UserError(
            f"--site {name} is unknown; there are {', '.join(SITES)}, or a YAML file of your own"
        )
    return parse_site(read_yaml(Path(name))[0], name)


def with_gpus(args: argparse.Namespace, spec: Spec, site: Site) -> Site:
    """Return the site with the requested GPUs, or the spec's, if it has none."""
    requested = args.gpus_per_node
    assumed = spec.resources.gpus_per_node
    if requested is not None and site.gpus:
        raise UserError(
            f"--gpus-per-node goes with a site that does not say; {args.site} has {site.gpus}"
        )
    if requested is not None:
        gpus = requested
    elif assumed == "auto":
        gpus = 0
    else:
        gpus = assumed
    if not gpus or site.gpus:
        return site
    # One rank trains on each, two prepare; a number of ranks that the site's file names is kept if
    # it will do.
    return replace(
        site, gpus=gpus, ranks=3 * gpus if site.ranks == Site.ranks else max(site.ranks, gpus + 1)
    )


def system_of(name: str | None, site: Site, source: str) -> System:
    """Return the requested batch system, or the site's.

    Raises:
        UserError: neither, or they differ.
    """
    if name is None and site.system is None:
        raise UserError(
            f"--system says which batch system there is: {', '.join(SYSTEMS)}, or an import path"
        )
    if name is not None and site.system not in (None, name):
        raise UserError(f"--system {name}: {source} has {site.system}")
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
        path: of the spec, as the user named it.
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
    """How long before the end of its walltime a job saves everything; both in seconds."""
    if walltime is None and system.has_queue:
        raise UserError(
            "--walltime (or walltime in the spec) says how long a job may take, such as 2h"
        )
    warning: float = args.warn or min(WARNING_S, _WARNING_SHARE * (walltime or math.inf))
    if walltime is not None and warning >= walltime:
        raise UserError(
            f"--warn is {format_duration(warning)}; it should be less than the walltime"
        )
    return warning


def ranks_of(args: argparse.Namespace, spec: Spec, site: Site) -> int | None:
    """Ranks of a node: what is asked for, what the spec's preprocessors and slots want beside the GPUs, or the site's.

    With slots (``resources.networks_per_gpu: K``) a GPU has K trainers, and as many ranks prepare
    as without.
    """
    requested: int | None = args.ranks_per_node
    preparing = spec.resources.preprocessors
    slots = spec.resources.networks_per_gpu
    further = 0 if slots == "auto" else (slots - 1) * site.gpus
    if requested is not None or not site.gpus or (preparing == "auto" and not further):
        return requested
    if preparing == "auto":
        return site.ranks + further
    if preparing < args.nodes:
        raise UserError(
            f"resources.preprocessors: {preparing} should be at least {args.nodes}, one on each node"
        )
    return site.gpus + further + math.ceil(preparing / args.nodes)


def trainers_of(args: argparse.Namespace, spec: Spec, site: Site) -> int | None:
    """Return how many ranks of a node train where several may share a GPU; None for one on each."""
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
