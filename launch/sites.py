"""Sites: known machines, and machines that users describe.

FLEET was not tested on the known machines. It assumes:

- Summit: cores are numbered by hardware thread, 0-83 and 88-171; the last core of each socket
  belongs to the system (OLCF, *ERF CPU indexing*); GPUs 0-2 are on the first socket. The machine is
  retired; the entry serves as an example of its kind of node.
- Frontier: the order of dies over L3 regions, and the first core of each region, which is left to
  the system, are those of the OLCF guide (and of LUMI-G, which has the same nodes). Low-noise mode
  is on, as it is by default.
- Perlmutter, Polaris: GPU 0 is nearest to the last NUMA domain, GPU 3 to the first (NERSC; ALCF,
  *Using GPUs on Polaris*).
- Aurora: cores 0 and 52 belong to the system; CPU lists and ``ZE_FLAT_DEVICE_HIERARCHY=FLAT``,
  which makes each tile a device, are those of ALCF's *Running jobs on Aurora*. TensorFlow there is
  Intel's extension.
- File systems such as ``home:eagle`` (Polaris) and ``home:flare`` (Aurora) are from the sites'
  documentation. Name others in a file with ``base: polaris``.
- ``srun``, ``jsrun`` and PALS pass SIGUSR2 on to the ranks and return a rank's 75. If one does not,
  the launch is killed after the warning: another job follows, and up to an epoch of each network is
  trained again.
- LSF counts the warning in minutes. Compute nodes may submit jobs; if the site forbids that, the
  chain ends with a note in ``stops.jsonl``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.base import check_fields
from launch.errors import InputError
from launch.place import format_numbers, parse_cpus
from launch.systems import COUNTS, SYSTEMS

MPIRUN = "mpirun -n {ranks} --map-by ppr:{ranks_per_node}:node:oversubscribe --bind-to none"


@dataclass(frozen=True)
class Site:
    """The nodes of one machine, and the options of its batch system.

    Args:
        system: the batch system, or the import path of one; None leaves the choice to the user.
        gpus: GPUs per node, as its runtime counts them (MI250X dies, tiles of Intel GPUs), with one
            trainer each.
        ranks: ranks per node; ranks without a GPU are preprocessors.
        cpus: the CPUs near each GPU, one hardware thread per core; empty leaves ranks unbound.
        visible: the variable that lists GPUs which ``/dev`` does not show (AMD and Intel).
        launcher: the command that starts ranks without binding them; may contain ``{nodes}``,
            ``{ranks}``, ``{ranks_per_node}`` and ``{gpus}``.
        queue: the default queue.
        queue_option: the option that names the queue, with ``{}``, instead of the system's.
        resources: options that request nodes, with the same fields, instead of the system's.
        directives: further options of every job.
        setup: shell lines before the launch.
    """

    system: str | None = None
    gpus: int = 0
    ranks: int = 4
    cpus: tuple[str, ...] = ()
    visible: str = ""
    launcher: str = MPIRUN
    queue: str = ""
    queue_option: str = ""
    resources: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


_SRUN = (
    "srun --nodes={nodes} --ntasks-per-node={ranks_per_node} --gpus-per-node={gpus} "
    "--gpu-bind=none --cpu-bind=none --kill-on-bad-exit=1"
)
_SLURM = (
    "--nodes={nodes}",
    "--ntasks-per-node={ranks_per_node}",
    "--gpus-per-node={gpus}",
    "--exclusive",
)
_PALS = "mpiexec -n {ranks} --ppn {ranks_per_node} --cpu-bind none"

SITES = {
    "generic": Site(),
    # IBM AC922: 2 POWER9 of 22 cores (the last of each is the system's) with 4 threads each; 6
    # V100, 3 a socket.
    "summit": Site(
        "lsf",
        gpus=6,
        ranks=18,
        cpus=("0-24/4", "28-52/4", "56-80/4", "88-112/4", "116-140/4", "144-168/4"),
        # One resource set is a whole node: its ranks share memory, and all of them see all of its
        # GPUs.
        launcher="jsrun -n {nodes} -r 1 -a {ranks_per_node} -c 42 -g {gpus} -b rs",
        resources=("-nnodes {nodes}", "-alloc_flags smt4"),
    ),
    # HPE EX235a: 64 cores in 8 L3 regions (the first of each is the system's); 4 MI250X of 2 dies,
    # whose nearest regions are in another order.
    "frontier": Site(
        "slurm",
        gpus=8,
        ranks=24,
        cpus=("49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"),
        visible="ROCR_VISIBLE_DEVICES",
        launcher=_SRUN,
        resources=_SLURM,
    ),
    # HPE EX235n: 64 cores in 4 NUMA domains; 4 A100, numbered in reverse.
    "perlmutter": Site(
        "slurm",
        gpus=4,
        ranks=12,
        cpus=("48-63", "32-47", "16-31", "0-15"),
        launcher=_SRUN,
        queue="regular",
        queue_option="--qos={}",
        resources=_SLURM,
        directives=("--constraint=gpu",),
    ),
    # HPE Apollo 6500: 32 cores in 4 NUMA domains; 4 A100, numbered in reverse.
    "polaris": Site(
        "pbs",
        gpus=4,
        ranks=12,
        cpus=("24-31", "16-23", "8-15", "0-7"),
        launcher=_PALS,
        queue="prod",
        resources=(
            "-l select={nodes}:system=polaris",
            "-l place=scatter",
            "-l filesystems=home:eagle",
        ),
    ),
    # HPE EX: 2 Xeon Max of 52 cores (the first of each is the system's); 6 GPUs of 2 tiles, 3 GPUs
    # a socket.
    "aurora": Site(
        "pbs",
        gpus=12,
        ranks=36,
        cpus=(
            "1-8",
            "9-16",
            "17-24",
            "25-32",
            "33-40",
            "41-48",
            "53-60",
            "61-68",
            "69-76",
            "77-84",
            "85-92",
            "93-100",
        ),
        visible="ZE_AFFINITY_MASK",
        launcher=_PALS,
        queue="prod",
        resources=("-l select={nodes}", "-l place=scatter", "-l filesystems=home:flare"),
        setup=("export ZE_FLAT_DEVICE_HIERARCHY=FLAT   # a tile is a device",),
    ),
}


def parse_site(content: Mapping[str, Any], source: str) -> Site:
    """Parse a site that a user describes, with the keys of :class:`Site`.

    Args:
        content: the content of the file; ``base`` names a known site with the defaults.
        source: the file, for messages.

    Raises:
        InputError: a key or value is unknown or of the wrong type.
    """
    base_name = content.get("base", "generic")
    if not isinstance(base_name, str) or base_name not in SITES:
        raise InputError(f"{source}: base: {base_name!r} is unknown; there are {', '.join(SITES)}")
    base = SITES[base_name]
    defaults = {field.name: getattr(base, field.name) for field in dataclasses.fields(Site)}
    settings = {key: value for key, value in content.items() if key != "base"}
    unknown = sorted(map(str, settings.keys() - defaults.keys()))
    if unknown:
        available = "\n".join(
            f"  {name}: {_format_value(value)}"
            for name, value in {"base": base_name, **defaults}.items()
        )
        raise InputError(
            f"{source}: {unknown[0]!r} is unknown; there are, with their defaults\n{available}"
        )
    site = dataclasses.replace(
        base, **{key: _checked(key, value, source) for key, value in settings.items()}
    )
    if site.system is not None and site.system not in SYSTEMS and ":" not in site.system:
        raise InputError(
            f"{source}: system: {site.system!r} is unknown; there are {', '.join(SYSTEMS)}, or an "
            "import path module:system"
        )
    check_fields(site.queue_option, {""}, source)
    for text in (site.launcher, *site.resources):
        check_fields(text, COUNTS, source)
    places(site, site.ranks, source)
    return site


def places(site: Site, ranks: int, source: str, trainers: int | None = None) -> tuple[str, ...]:
    """Return the CPUs of each rank of a node: preprocessors first, then trainers by GPU.

    A preprocessor is single-threaded and gets one core. Preprocessors are spread over the CPUs near
    the GPUs; the trainers of a GPU share its remaining CPUs.

    Args:
        site: the site, whose CPUs are divided.
        ranks: ranks per node.
        source: the file, for messages.
        trainers: trainers per node; None for one per GPU.

    Raises:
        InputError: there are fewer cores than ranks.

    >>> places(Site(gpus=2, cpus=("8-15", "0-7")), 5, "a site")
    ('15', '7', '14', '8-13', '0-6')
    >>> places(Site(gpus=2, cpus=("8-15", "0-7")), 5, "a site", trainers=4)
    ('15', '8-14', '0-7', '8-14', '0-7')
    """
    if site.gpus and ranks <= site.gpus:
        raise InputError(
            f"{source}: ranks: {ranks} on a node of {site.gpus} GPUs leave none to prepare "
            f"samples; it should be {site.gpus + 1} at least"
        )
    if not site.cpus:
        return ()
    if len(site.cpus) != site.gpus:
        raise InputError(
            f"{source}: cpus should have a list for each of its GPUs, {site.gpus}, not "
            f"{len(site.cpus)}"
        )
    near = [list(parse_cpus(text)) for text in site.cpus]
    cores_of_node = sum(map(len, near))
    if len({cpu for cpus in near for cpu in cpus}) < cores_of_node:
        raise InputError(f"{source}: cpus: a CPU is in two lists")
    trainers = trainers or site.gpus
    preparing = []
    for rank in range(ranks - trainers):
        cores = near[rank % site.gpus]
        if len(cores) == 1:
            raise InputError(
                f"{source}: ranks: {ranks} are more than the {cores_of_node} cores of a node"
            )
        preparing.append([cores.pop()])
    return tuple(
        format_numbers(cpus)
        for cpus in (*preparing, *(near[slot % site.gpus] for slot in range(trainers)))
    )


def _checked(key: str, value: Any, source: str) -> Any:
    if key in ("gpus", "ranks"):
        minimum = 0 if key == "gpus" else 1
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 1024:
            raise InputError(
                f"{source}: {key}: {value!r} should be a whole number from {minimum} to 1024"
            )
        return value
    if key in ("cpus", "resources", "directives", "setup"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(
                f"{source}: {key}: {value!r} should be a list of strings (numbers in quotes)"
            )
        lines = value
    elif not isinstance(value, str):
        raise InputError(f"{source}: {key}: {value!r} should be a string")
    else:
        lines = [value]
    if any("\n" in line for line in lines):
        raise InputError(f"{source}: {key}: {value!r} should not contain line breaks")
    if isinstance(value, list):
        return tuple(value)
    return value


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return str(value)
