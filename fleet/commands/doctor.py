"""Check the environment before you spend an allocation. Start it as you would start the run.

    mpirun -n 9 python -m fleet doctor photos.yaml
    mpirun -n 9 python -m fleet doctor --startup photos.yaml
    python -m fleet doctor

It checks the launcher and the cores, threads and GPUs of every rank; with a spec also the libraries
of its engine, the data, the disk and the shared memory of every node. Each finding is a line with a
remedy. The exit status is 0 without findings, and 1 otherwise. With --startup it times the imports
of each rank, and tells you whether a container image and a broadcast would help.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.checks import preflight as checks
from fleet.comm.protocols import World
from fleet.comm.roles import Roles, assign, assign_roles
from fleet.commands.options import add_spec
from fleet.commands.output import show
from fleet.commands.startup import Startup, print_startup, time_imports
from fleet.domain.events import CacheChosen
from fleet.engines.registry import count_network_parameters, find_engine_problems
from fleet.errors import ExitStatus, LeaseLost, NotInstalledError, UserError, shortened
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.data import Inputs, open_inputs
from fleet.runtime.startup.folder import free_disk, nearest_folder
from fleet.runtime.startup.launch import Ranks
from fleet.runtime.startup.memory import shared_bytes
from fleet.spec import NetworkSpec, Spec, allow_imports_beside, load, with_cache
from fleet.storage.event_log import read_run_state
from fleet.storage.lease import (
    Fence,
    Process,
    create_generation,
    mark_taken,
    parse_lease,
    read_generation,
)
from fleet.storage.paths import RunPaths
from fleet.storage.quota import folder_bytes
from launch.binding import cores_per_node, process_cores
from launch.devices import describe_devices, find_maker, gpus_per_node, visible_gpus
from launch.energy import describe_counters, find_counters
from launch.environment import find_launcher, launched_ranks, local_rank
from launch.errors import InputError, pluralize
from launch.gpus import Maker, usable_gpus
from launch.memory import free_shared_memory
from launch.numa import GpuNode, find_gpu_nodes
from launch.place import format_numbers
from launch.stale_files import remove_leftovers
from preprocess.base import DataSet
from preprocess.sample import SampleSpec

if TYPE_CHECKING:  # importing it starts MPI
    from fleet.comm.world import MPIWorld

_MPI4PY = "MPICC=mpicc pip install --no-cache-dir --no-binary mpi4py mpi4py"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser, optional=True)
    parser.add_argument(
        "--startup",
        action="store_true",
        help="time the imports of each rank, first on rank 0 alone, then on all ranks together",
    )


def run(args: argparse.Namespace) -> int:
    """Check all ranks and print the findings."""
    try:
        from fleet.comm.mpi import start_mpi
    except (ImportError, RuntimeError) as error:
        finding = checks.Finding(
            f"MPI cannot be loaded ({' '.join(str(error).split())[:200]})",
            f"load an MPI module, and build mpi4py for it: {_MPI4PY}",
        )
        return _show(args, [finding], "this process")
    world = start_mpi()
    try:
        return _examine(world, args)
    except UserError as error:
        if world.rank:  # a mistake in the spec occurs on all ranks, and rank 0 reports it
            world.abort(error, ExitStatus.BAD_INPUT)
        raise
    except BaseException as error:
        world.abort(error)


def _examine(world: MPIWorld, args: argparse.Namespace) -> int:
    launcher = find_launcher(os.environ)
    findings = checks.check_launch(
        launcher.name if launcher else "",
        launched_ranks(os.environ),
        world.size,
        world.library_name(),
    )
    # Every process believes it is rank 0: only the first of each node reports.
    if findings and local_rank(os.environ):
        return ExitStatus.INFRASTRUCTURE
    if args.spec is not None:
        # On all ranks: objects that rank 0 broadcasts may need modules next to the spec.
        allow_imports_beside(args.spec)
    spec, opened, problem = world.broadcast_value(_open(args.spec) if world.rank == 0 else None)
    if spec is None and problem:
        if world.rank == 0:
            raise UserError(problem)
        return ExitStatus.BAD_INPUT
    node_of = world.node_of()
    leftovers = world.allgather(
        remove_leftovers() if node_of.index(node_of[world.rank]) == world.rank else []
    )
    facts = world.allgather(
        _facts(world, node_of, spec, None if opened is None else opened.data, problem)
    )
    startup = time_imports(world, spec) if args.startup else None
    trials = world.allgather(None if spec is None else _try_lease(world, node_of, spec))
    if world.rank == 0:
        roles, role_findings = _roles(spec, facts, node_of)
        device_findings = _device_findings(spec, facts)
        trainers, slots = ((), 1) if roles is None else (roles.trainers, roles.slots)
        uses_gpus = spec is None or spec.uses_gpus
        findings += [
            *role_findings,
            *device_findings,
            *checks.check_ranks(facts, node_of, trainers, uses_gpus, slots),
            *checks.check_data(facts),
        ]
        if spec is not None:
            findings += checks.check_libraries(facts)
            space_findings, cache_choice = _check_space(spec, opened, roles, facts)
            findings += space_findings
            findings += checks.check_lease([trial for trial in trials if trial is not None])
            if cache_choice:
                print(f"fleet doctor: {cache_choice}", file=sys.stderr)
        for fact, paths in zip(facts, leftovers, strict=True):
            if paths:
                print(
                    f"fleet doctor: removed {pluralize(len(paths), 'leftover file')} of dead "
                    f"processes from {fact.host}: {shortened(', '.join(map(str, paths)))}",
                    file=sys.stderr,
                )
        devices = checks.merge_devices([(fact.host, fact.devices) for fact in facts])
        devices["mpi"] = describe_mpi(world.library_name())
        for device, text in devices.items():
            print(f"fleet doctor: {device}: {text}", file=sys.stderr)
        gpu_nodes = sorted(
            {(fact.host, gpu) for fact in facts for gpu in fact.near},
            key=lambda item: (item[0], item[1].node, item[1].gpu),
        )
        for host, gpu in gpu_nodes:
            print(
                f"fleet doctor: GPU {gpu.gpu} of {host} is on {checks.describe_numa_node(gpu)}",
                file=sys.stderr,
            )
        if startup is not None and not args.json:
            print_startup(startup)
        _show(
            args,
            findings,
            f"ranks: {world.size}, nodes: {max(node_of) + 1}",
            gpu_nodes,
            devices,
            startup,
        )
    if world.broadcast_value(findings):
        status = ExitStatus.INFRASTRUCTURE
    else:
        status = ExitStatus.OK
    world.finish()
    return world.exit(status)


def _show(
    args: argparse.Namespace,
    findings: Sequence[checks.Finding],
    scope: str,
    gpu_nodes: Sequence[tuple[str, GpuNode]] = (),
    devices: Mapping[str, str] | None = None,
    startup: Startup | None = None,
) -> int:
    gpus = [
        {
            "host": host,
            "gpu": node.gpu,
            "numa_node": node.node,
            "cpus": format_numbers(sorted(node.cores)),
        }
        for host, node in gpu_nodes
    ]
    if startup is None:
        startup_numbers = {}
    else:
        startup_numbers = {"startup": {**asdict(startup), "advice": startup.advice}}
    show(
        args,
        lambda: {"findings": findings, "devices": devices or {}, "gpus": gpus, **startup_numbers},
        lambda: print("\n".join(map(str, findings)) or f"no problems found ({scope})", flush=True),
    )
    return ExitStatus.INFRASTRUCTURE if findings else ExitStatus.OK


# ---- facts --------------------------------------------------------------------------------------


def _open(path: str | None) -> tuple[Spec | None, Inputs | None, str]:
    """Open the spec and its data; return the problem of either as text."""
    if path is None:
        return None, None, ""
    try:
        spec = load(path)
    except UserError as error:
        return None, None, str(error)
    try:
        return spec, open_inputs(spec), ""
    except Exception as error:  # a custom source may raise anything
        return spec, None, str(error)


def _facts(
    world: World, node_of: Sequence[int], spec: Spec | None, data: DataSet | None, problem: str
) -> checks.RankFacts:
    device = "auto" if spec is None else spec.resources.device
    maker = find_maker(os.environ, device)
    threads = [os.environ.get(variable, "") for variable in checks.THREAD_VARIABLES]
    # Some facts are the same on all ranks of a node.
    is_first_of_node = node_of.index(node_of[world.rank]) == world.rank
    gpus = visible_gpus(os.environ, device)
    if is_first_of_node and spec is not None:
        libraries = find_engine_problems(spec.engine, gpus, spec.resources.exchange)
    else:
        libraries = []
    return checks.RankFacts(
        world.host,
        process_cores(),
        max([int(text) for text in threads if text.isdecimal()], default=1),
        gpus,
        0 if maker is None else len(usable_gpus(maker, os.environ)),
        (problem or _reading_problem(data)) if is_first_of_node else "",
        libraries,
        free_shared_memory(),
        find_gpu_nodes(gpus, maker),
        _devices(gpus, maker) if is_first_of_node else {},
    )


def describe_mpi(library: str) -> str:
    """Say what a launch can do with an MPI, by its name.

    >>> describe_mpi("MPICH Version:      5.0.2").partition(";")[0]
    'MPICH Version: 5.0.2: the launch ends when a rank dies, and the same command resumes it'
    """
    name = " ".join(library.split())
    if library.startswith("Open MPI"):
        return f"{name}: with mpirun --with-ft ulfm, a launch survives trainers that die"
    ends = "the launch ends when a rank dies, and the same command resumes it"
    if library.startswith("MPICH"):
        return (
            f"{name}: {ends}; it cannot tell which network that rank trained; the signal to save "
            "and end is SIGTERM, since mpirun does not pass on SIGUSR2"
        )
    return f"{name}: {ends}"


def _devices(gpus: Sequence[str], maker: Maker | None) -> dict[str, str]:
    """Describe the devices of a node, and what counts their energy."""
    counters = find_counters(gpus, maker, os.environ)
    return {**describe_devices(os.environ), "energy": describe_counters(counters)}


def _reading_problem(data: DataSet | None) -> str:
    """Read the first, middle and last sample of each split; return the first error."""
    for source in () if data is None else data.splits().values():
        for index in {0, len(source) // 2, len(source) - 1}:
            try:
                source.read(index)
            except Exception as error:
                return f"{source.name(index)}: {error}"
    return ""


def _roles(
    spec: Spec | None, facts: Sequence[checks.RankFacts], node_of: Sequence[int]
) -> tuple[Roles | None, list[checks.Finding]]:
    """Return the roles of the ranks, or a finding why the run would not start."""
    gpus = gpus_per_node([rank.gpus for rank in facts], node_of)
    try:
        cores = cores_per_node([rank.cores for rank in facts], node_of)
        if spec is None:
            return assign(node_of, None, gpus), []
        return assign_roles(spec, node_of, gpus, cores=cores), []
    except UserError as error:
        problem, _, remedy = str(error).rpartition(": ")
        return None, [checks.Finding(problem, remedy)]


def _device_findings(spec: Spec | None, facts: Sequence[checks.RankFacts]) -> list[checks.Finding]:
    """Return a finding if no rank sees a GPU of the kind that the spec names."""
    if spec is None or not spec.engine.uses_gpus:
        return []
    ranks = Ranks((0,), gpus_of={spec.resources.device: len(facts[0].gpus) or None})
    try:
        ranks.count_gpus(spec.resources.device)
    except UserError as error:
        problem, _, remedy = str(error).rpartition("; ")
        return [checks.Finding(problem, remedy)]
    return []


def _check_space(
    spec: Spec, opened: Inputs | None, roles: Roles | None, facts: Sequence[checks.RankFacts]
) -> tuple[list[checks.Finding], str]:
    """Check the space for checkpoints and samples; return findings and the choice of the cache.

    Networks that cannot be built are ignored, since the size of their checkpoints is unknown.
    """
    try:
        if opened is None or roles is None:
            return _check_disk(spec, None if opened is None else opened.sample), ""
        paths = RunPaths(spec.output)
        shared_free = min(rank.shared_free for rank in facts)
        resources = HostResources(
            len(roles.preprocessors), roles.gpus_per_node, False, shared_free, free_disk(paths)
        )
        choice = choose_cache(spec, opened, resources, read_run_state(paths, (CacheChosen,)).cache)
        decoded = choice.nbytes if choice.cache == "file" else 0
        shared = shared_bytes(
            with_cache(spec, choice.cache), opened.keeping(choice.cache), roles, shared_free
        )
        return [
            *_check_disk(spec, opened.sample, decoded),
            *checks.check_shared_memory(facts, shared),
        ], choice.summary
    except NotInstalledError:  # another finding reports it
        return [], ""
    except InputError as error:
        return [
            checks.Finding(f"data.cache: {spec.data.cache}: {error}", "or use data.cache: auto")
        ], ""
    except UserError as error:
        return [checks.Finding(str(error), "change the network, or its images")], ""


# ---- the lease ----------------------------------------------------------------------------------


def _try_lease(world: World, node_of: Sequence[int], spec: Spec) -> checks.LeaseTrial | None:
    """Let one rank of each node try to take a lease in the run's folder together; collective.

    On a single node, the first two ranks try. Then another rank takes the lease from its holder.
    """
    firsts = [node_of.index(node) for node in range(max(node_of) + 1)]
    ranks = firsts if len(firsts) > 1 else list(range(min(world.size, 2)))
    folder = Path(world.broadcast_value(_make_probe(spec) if world.rank == 0 else None))
    process = Process()
    tries = world.rank in ranks and folder != Path()
    won = False
    problem = ""
    world.allgather(None)
    if tries:
        try:
            won = create_generation(folder, 1, process.me)
        except OSError as error:
            problem = error.strerror or str(error)
    winners = [rank for rank, has_won in enumerate(world.allgather(won)) if has_won]
    holder = parse_lease(read_generation(folder, 1) or "").holder if tries else None
    world.allgather(None)
    if (
        world.rank == next((rank for rank in ranks if rank not in winners[:1]), 0)
        and tries
        and winners
    ):
        create_generation(folder, 2, process.me)
        mark_taken(folder, 1, process.me)
    world.allgather(None)
    noticed = _notices(Fence(folder, 1, process.me.launch)) if won else True
    world.allgather(None)
    if world.rank == 0 and tries:
        shutil.rmtree(folder, ignore_errors=True)
    if tries:
        return checks.LeaseTrial(world.host, won, holder.launch if holder else "", noticed, problem)
    return None


def _make_probe(spec: Spec) -> str:
    """Make a folder for a trial lease; return "" if that fails, which another finding reports."""
    try:
        return tempfile.mkdtemp(prefix=".fleet-doctor-", dir=nearest_folder(RunPaths(spec.output)))
    except OSError:
        return ""


def _notices(fence: Fence) -> bool:
    """Return True if a holder notices within a few seconds that it has lost the lease."""
    for _ in range(20):
        try:
            fence.check()
        except LeaseLost:
            return True
        time.sleep(0.25)
    return False


def _check_disk(spec: Spec, sample: SampleSpec | None, decoded: int = 0) -> list[checks.Finding]:
    if sample is None:
        needed = 0
    else:
        needed = sum(_folder_bytes(network, spec, sample) for network in spec.networks)
    if spec.checkpoint.quota is not None:
        needed = min(needed, spec.checkpoint.quota)
    folder = nearest_folder(RunPaths(spec.output))
    problem = ""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = error.strerror or str(error)
    purpose = "the checkpoints and decoded samples" if decoded else "the checkpoints"
    free = shutil.disk_usage(folder).free
    return checks.check_disk(folder, free, needed + decoded, problem, purpose)


def _folder_bytes(network: NetworkSpec, spec: Spec, sample: SampleSpec) -> int:
    """Return the most bytes that a network's folder may take; 0 if unknown or not trained."""
    if spec.engine.learns:
        parameters = count_network_parameters(network, spec, sample)
    else:
        parameters = None
    if parameters is None:
        return 0
    return folder_bytes(parameters, network, spec)
