"""Checks that ranks make before a run (pure); ``fleet doctor`` gathers the facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet.errors import shortened
from fleet.units import format_size
from launch.binding import BINDING_REMEDY, Cores, binding_problem, by_node
from launch.errors import pluralize
from launch.numa import GpuNode
from launch.place import format_numbers

# Environment variables that set the number of threads of a process.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclass(frozen=True)
class Finding:
    """A problem of the setup, and its remedy."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class RankFacts:
    """The facts that one rank reports.

    Args:
        host: name of its node.
        cores: cores that it may use.
        threads: number of threads that environment variables set.
        gpus: GPUs that are visible to it.
        gpu_files: number of GPUs of its node in ``/dev``.
        data_problem: why the first rank of a node cannot read the data; empty if it can.
        libraries: (problem, remedy) for libraries of the engine, from the first rank of a node.
        shared_free: bytes of memory that ranks of its node can still share.
        near: the NUMA nodes of its visible GPUs.
        devices: the devices of its node, from its first rank; see
            :func:`launch.devices.describe_devices`.
    """

    host: str
    cores: Cores
    threads: int
    gpus: tuple[str, ...]
    gpu_files: int
    data_problem: str
    libraries: Sequence[tuple[str, str]]
    shared_free: float
    near: Sequence[GpuNode]
    devices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeaseTrial:
    """The result of taking a lease at the same time as ranks of other nodes.

    Args:
        host: name of its node.
        won: True if the rank got the lease.
        holder: the holder of the lease as this rank reads it.
        noticed: True if it noticed within seconds that another rank had taken the lease over.
        problem: why it could not try.
    """

    host: str
    won: bool
    holder: str
    noticed: bool = True
    problem: str = ""


def check_launch(launcher: str, launched: int | None, size: int, library: str) -> list[Finding]:
    """Check that MPI and the launcher agree; otherwise every process believes it is rank 0.

    Args:
        launcher: name of the launcher.
        launched: number of ranks that it started; None if unknown.
        size: number of ranks that MPI sees.
        library: the MPI that mpi4py uses.
    """
    if launched is None or launched == size:
        return []
    return [
        Finding(
            f"{launcher} started {pluralize(launched, 'rank')}, but MPI sees {size}: mpi4py uses "
            f"{library}",
            "start with the launcher of that MPI, or build mpi4py for this one: "
            "MPICC=mpicc pip install --no-cache-dir --no-binary mpi4py mpi4py",
        )
    ]


def check_ranks(
    ranks: Sequence[RankFacts],
    node_of: Sequence[int],
    trainers: Sequence[int],
    needs_gpus: bool,
    slots: int = 1,
) -> list[Finding]:
    """Check that cores and GPUs are assigned to ranks in a useful way.

    Args:
        ranks: the facts of each rank.
        node_of: the node of each rank.
        trainers: the ranks that train, as far as known.
        needs_gpus: True if the run is to use GPUs.
        slots: number of trainers per GPU; without GPUs, ranks may share cores.
    """
    problem = binding_problem([rank.cores for rank in ranks], node_of)
    findings = [Finding(problem, BINDING_REMEDY)] if problem else []
    for node, node_ranks in enumerate(by_node(range(len(ranks)), node_of)):
        node_facts = [ranks[rank] for rank in node_ranks]
        findings += _check_threads(node, node_facts, slots)
        if needs_gpus:
            findings += _check_gpus(
                node, node_facts, [ranks[rank] for rank in node_ranks if rank in trainers], slots
            )
    return findings


def describe_numa_node(near: GpuNode) -> str:
    """Return the NUMA node of a GPU as text.

    >>> describe_numa_node(GpuNode("0", 1, frozenset({8, 9, 10})))
    'NUMA node 1 (CPUs 8-10)'
    """
    return f"NUMA node {near.node} (CPUs {format_numbers(sorted(near.cores))})"


def merge_devices(devices: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """Return one line for each kind of device, from its descriptions by the nodes.

    Args:
        devices: host and its devices; without devices for ranks that are not first of their nodes.

    >>> merge_devices([("a", {"cuda": "1 GPU", "cpu": "4 cores"}), ("b", {"cuda": "no GPU"})])
    {'cuda': '1 GPU (a); no GPU (b)', 'cpu': '4 cores (a)'}
    """
    hosts: dict[str, dict[str, list[str]]] = {}
    for host, of_host in devices:
        for device, text in of_host.items():
            hosts.setdefault(device, {}).setdefault(text, []).append(host)
    lines = {}
    for device, texts in hosts.items():
        parts = [f"{text} ({shortened(', '.join(names))})" for text, names in texts.items()]
        lines[device] = "; ".join(parts)
    return lines


def check_libraries(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Check that the libraries of the engine work on every node."""
    return [
        Finding(f"{rank.host}: {problem}", remedy)
        for rank in ranks
        for problem, remedy in rank.libraries
    ]


def check_data(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Check that every node can read the data."""
    return [
        Finding(
            f"{rank.host} cannot read the data: {rank.data_problem}",
            "put it where all nodes can read it, under the same path",
        )
        for rank in ranks
        if rank.data_problem
    ]


def check_disk(folder: Path, free: int, needed: int, problem: str, purpose: str) -> list[Finding]:
    """Check that there is room for checkpoints, and for decoded samples in a file.

    Args:
        folder: the folder of the run.
        free: free bytes of its file system.
        needed: needed bytes.
        problem: why the folder cannot be written; empty if it can.
        purpose: what needs the bytes.
    """
    if problem:
        return [
            Finding(
                f"{folder} cannot be written: {problem}",
                "set `output:` to another folder",
            )
        ]
    if free >= needed:
        return []
    return [
        Finding(
            f"{folder} has {format_size(free)} free, but {purpose} need about "
            f"{format_size(needed)}",
            "free some space, or set `output:` to another folder",
        )
    ]


def check_shared_memory(ranks: Sequence[RankFacts], needed: int) -> list[Finding]:
    """Check that there is room for the samples that the ranks of a node share.

    Args:
        ranks: the facts of each rank.
        needed: bytes needed on each node.
    """
    fullest = min(ranks, key=lambda rank: rank.shared_free)
    if fullest.shared_free >= needed:
        return []
    return [
        Finding(
            f"{fullest.host} has {format_size(fullest.shared_free)} of shared memory free, but "
            f"samples need {format_size(needed)} on each node",
            "lower data.shared_memory, or free space in /dev/shm",
        )
    ]


def check_lease(trials: Sequence[LeaseTrial]) -> list[Finding]:
    """Check that only one launch at a time can hold the folder of the run.

    Args:
        trials: of one rank per node, or of two ranks of the only node.
    """
    share = "set `output:` to a folder on a file system that all nodes share"
    failed = [trial for trial in trials if trial.problem]
    if failed:
        return [
            Finding(
                f"{trial.host} cannot take the lease of the run's folder: {trial.problem}", share
            )
            for trial in failed
        ]
    hosts = " and ".join(trial.host for trial in trials if trial.won)
    if sum(trial.won for trial in trials) > 1:
        return [
            Finding(
                f"{hosts} can take the lease of the run's folder at the same time, so two "
                "launches could write there",
                share,
            )
        ]
    if trials and (not hosts or len({trial.holder for trial in trials}) > 1):
        return [Finding("the nodes do not agree on who holds the lease of the run's folder", share)]
    return [
        Finding(
            f"{trial.host} does not notice within seconds that another rank has taken the lease "
            "of the run's folder",
            "mount the file system without attribute caching (NFS: actimeo=1), or set another "
            "`output:`",
        )
        for trial in trials
        if not trial.noticed
    ]


# ---- threads and GPUs ---------------------------------------------------------------------------


def _check_threads(node: int, ranks: Sequence[RankFacts], slots: int) -> Iterator[Finding]:
    cores = len({core for rank in ranks for core in rank.cores.usable})
    threads = sum(rank.threads for rank in ranks)
    share = slots > 1 and not any(rank.gpus for rank in ranks)
    if threads > max(cores, len(ranks) * share):
        if threads > len(ranks):
            cause = f" ({' or '.join(THREAD_VARIABLES)} makes {threads} threads)"
        else:
            cause = ""
        yield Finding(
            f"node {node} has {pluralize(len(ranks), 'rank')}{cause} on {pluralize(cores, 'core')}",
            "start fewer ranks there, or use fewer threads per rank",
        )


def _check_gpus(
    node: int, ranks: Sequence[RankFacts], trainers: Sequence[RankFacts], slots: int
) -> Iterator[Finding]:
    installed = max(rank.gpu_files for rank in ranks)
    visible = {gpu for rank in ranks for gpu in rank.gpus}
    if not visible:
        if installed:
            yield Finding(
                f"node {node} has {pluralize(installed, 'GPU')}, but none is visible to its ranks",
                "check CUDA_VISIBLE_DEVICES and similar variables, and the resources of the job",
            )
        return
    # The engine chooses the only visible GPU of a rank, or the GPU at its index among the trainers.
    gpus_needed = -(-len(trainers) // slots)
    assigned = []
    for index, rank in enumerate(trainers):
        if len(rank.gpus) == 1:
            assigned.append(rank.gpus[0])
        elif index % gpus_needed < len(rank.gpus):
            assigned.append(rank.gpus[index % gpus_needed])
        elif rank.gpus:
            assigned.append("")
    if installed > 1:
        only_gpus = [rank.gpus[0] for rank in ranks if len(rank.gpus) == 1]
    else:
        only_gpus = []
    duplicates = {
        gpu: count
        for gpus in (only_gpus, assigned)
        for gpu, count in Counter(gpus).items()
        if gpu and count > slots
    }
    for gpu, count in duplicates.items():
        yield Finding(
            f"{count} ranks of node {node} see only GPU {gpu}, or different GPUs under its name",
            "make all GPUs of a node visible to every rank (srun --gpu-bind=none, no "
            "--gpus-per-task): FLEET assigns them",
        )
    for rank, gpu in zip((rank for rank in trainers if rank.gpus), assigned, strict=True):
        yield from (
            Finding(
                f"a trainer of node {node} is bound to cores far from its GPU {gpu} on "
                f"{describe_numa_node(nearby)}",
                "bind it to these CPUs, or start it unbound",
            )
            for nearby in rank.near
            if nearby.gpu == gpu and not rank.cores.usable & nearby.cores
        )
    missing = len(trainers) - sum(map(bool, assigned))
    if missing:
        yield Finding(
            f"{pluralize(missing, 'trainer')} of node {node} without their own GPU",
            "start fewer ranks there, or set resources.gpus_per_node",
        )
