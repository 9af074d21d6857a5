"""Options that commands for batch jobs share: machine, batch system, times and ranks."""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class JobRequest:
    """A spec that batch jobs launch, and what these request.

    Attributes:
        options: the options of the command, including what :func:`add` declares.
        path: the spec file, as the user named it.
        spec: the spec.
        system: the batch system.
        site: the machine.
        nodes: number of nodes of a job.
    """

    options: argparse.Namespace
    path: str
    spec: Spec
    system: System
    site: Site
    nodes: int

    @property
    def paths(self) -> RunPaths:
        """The paths of the run."""
        return RunPaths(self.spec.output.absolute())

    @property
    def ranks(self) -> int:
        """The ranks per node that the options or the spec request, or the site's.

        With slots (``resources.networks_per_gpu: K``) a GPU has K trainers; the number of
        preprocessors does not change.
        """
        requested: int | None = self.options.ranks_per_node
        if requested is not None:
            return requested
        gpus = self.site.gpus
        if not gpus:
            return self.site.ranks
        preprocessors = self.spec.resources.preprocessors
        slots = self.spec.resources.networks_per_gpu
        extra = 0 if slots == "auto" else (slots - 1) * gpus
        if preprocessors == "auto":
            return self.site.ranks + extra
        if preprocessors < self.nodes:
            raise UserError(
                f"resources.preprocessors: {preprocessors} should be at least {self.nodes}, one "
                "per node"
            )
        return gpus + extra + math.ceil(preprocessors / self.nodes)

    @property
    def roles(self) -> Roles:
        """The roles of a job's ranks."""
        ranks = self.ranks
        return assign_roles(
            self.spec,
            [rank // ranks for rank in range(self.nodes * ranks)],
            self.site.gpus or None,
        )

    def make_job(self, walltime: float | None) -> Job:
        """Return a job, with the options that all commands share.

        Args:
            walltime: the walltime of the job, in seconds.
        """
        # Networks that share GPUs have more than one trainer per GPU.
        trainers = None
        if self.spec.resources.networks_per_gpu != 1 and self.site.gpus:
            roles = self.roles
            trainers = sum(roles.node_of[rank] == 0 for rank in roles.trainers)
        return Job(
            self.spec.document.name,
            self.path,
            Path.cwd(),
            Path(sys.executable),
            self.paths.root,
            self.paths.jobs,
            self.nodes,
            walltime,
            self._warning_s(walltime),
            self.ranks,
            account=self.options.account,
            queue=self.options.queue,
            trainers=trainers,
        )

    def _warning_s(self, walltime: float | None) -> float:
        """Return how long before the end of its walltime a job saves everything."""
        if walltime is None and self.system.has_queue:
            raise UserError(
                "set the walltime of the job with --walltime, such as 2h, or in the spec"
            )
        warning: float = self.options.warn or min(
            WARNING_S, _WARNING_SHARE * (walltime or math.inf)
        )
        if walltime is not None and warning >= walltime:
            raise UserError(
                f"--warn is {format_duration(warning)}; it should be less than the walltime"
            )
        return warning
