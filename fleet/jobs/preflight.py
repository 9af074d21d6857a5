"""What would go wrong in a run, as far as its ranks can tell before it (pure): ``fleet doctor`` gathers the facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.units import format_size, pluralize
from launch.binding import BINDING_REMEDY, Cores, binding_problem, by_node
from launch.numa import GpuNode
from launch.place import format_numbers

# What says how many threads a process uses, beside its own choice.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclass(frozen=True)
class Finding:
    """One thing that would go wrong, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class RankFacts:
    """What one rank knows of itself.

    Args:
        host: its node's name.
        cores: that it may use.
        threads: that variables tell it to use.
        gpus: that it is shown.
        gpu_files: how many GPUs its node has in ``/dev``.
        data_problem: why it cannot read the data; of the first rank of each node, nothing where it can.
        libraries: what is wrong with those of the engine, and what to do about it; of the first rank of each node.
        shared_free: bytes of memory that ranks of its node can still share.
        near: where the GPUs hang that it is shown.
    """

    host: str
    cores: Cores
    threads: int
    gpus: tuple[str, ...]
    gpu_files: int
    data_problem: str = ""
    libraries: Sequence[tuple[str, str]] = ()
    shared_free: float = math.inf
    near: Sequence[GpuNode] = ()


@dataclass(frozen=True)
class LeaseTrial:
    """What came of it when a rank took a lease, at the same moment as ranks of other nodes.

    Args:
        host: its node's name.
        won: whether it got it.
        holder: who holds the lease, as this rank reads it; a word for each rank.
        noticed: whether it found out, within some seconds, when another had taken the lease from it.
        problem: why it could not even try.
    """

    host: str
    won: bool
    holder: str
    noticed: bool = True
    problem: str = ""


@dataclass(frozen=True)
class Disk:
    """The file system of the run's folder, in bytes; ``problem`` says why nothing can be written there."""

    folder: str
    free: int
    needed: int
    problem: str = ""
    purpose: str = "the checkpoints"


def check_launch(launcher: str, launched: int | None, size: int, library: str) -> list[Finding]:
    """Whether MPI and the launcher know each other; where not, every rank takes itself for rank 0.

    Args:
        launcher: who started the ranks.
        launched: how many it started; None where nobody is known to have.
        size: how many MPI sees.
        library: the MPI that mpi4py uses.
    """
    if launched is None or launched == size:
        return []
    return [
        Finding(
            f"{launcher} started {pluralize(launched, 'rank')}, but MPI sees {size}: mpi4py uses {library}",
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
    """Whether cores and GPUs are shown to the ranks in a way that makes sense.

    Args:
        ranks: the facts of each.
        node_of: the node of each rank.
        trainers: the ranks that train, as far as that is known.
        needs_gpus: whether the run is to use the GPUs that there are.
        slots: trainers that share a GPU; where there is none, ranks are meant to share cores.
    """
    problem = binding_problem([rank.cores for rank in ranks], node_of)
    findings = [Finding(problem, BINDING_REMEDY)] if problem else []
    for node, here in enumerate(by_node(range(len(ranks)), node_of)):
        of_node = [ranks[rank] for rank in here]
        findings += _check_threads(node, of_node, slots)
        if needs_gpus:
            findings += _check_gpus(
                node, of_node, [ranks[rank] for rank in here if rank in trainers], slots
            )
    return findings


def describe_numa_node(near: GpuNode) -> str:
    """Where a GPU hangs, in words.

    >>> describe_numa_node(Near("0", 1, frozenset({8, 9, 10})))
    'NUMA node 1 (CPUs 8-10)'
    """
    return f"NUMA node {near.node} (CPUs {format_numbers(sorted(near.cores))})"


def check_libraries(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Whether what the engine stands on can be used on every node."""
    return [
        Finding(f"{rank.host}: {what}", remedy) for rank in ranks for what, remedy in rank.libraries
    ]


def check_data(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Whether every node can read the data."""
    return [
        Finding(
            f"{rank.host} cannot read the data: {rank.data_problem}",
            "put it where all nodes see it, under the same path, readable by you",
        )
        for rank in ranks
        if rank.data_problem
    ]


def check_disk(disk: Disk) -> list[Finding]:
    """Whether there is room for the checkpoints, and for decoded samples in a file."""
    if disk.problem:
        return [
            Finding(
                f"{disk.folder} cannot be written: {disk.problem}",
                "name another folder as `output:`",
            )
        ]
    if disk.free >= disk.needed:
        return []
    return [
        Finding(
            f"{disk.folder} has {format_size(disk.free)} free, but {disk.purpose} need about "
            f"{format_size(disk.needed)}",
            "make room, or name another folder as `output:`",
        )
    ]


def check_shared_memory(ranks: Sequence[RankFacts], needed: int) -> list[Finding]:
    """Whether there is room for the samples that the ranks of a node share.

    Args:
        needed: bytes on each node.
    """
    least = min(ranks, key=lambda rank: rank.shared_free)
    if least.shared_free >= needed:
        return []
    return [
        Finding(
            f"{least.host} has {format_size(least.shared_free)} of shared memory free, but samples need "
            f"{format_size(needed)} on each node",
            "lower data.shared_memory, or make room in /dev/shm",
        )
    ]


def check_lease(trials: Sequence[LeaseTrial]) -> list[Finding]:
    """Whether the folder of the run can be held by one launch at a time.

    Args:
        trials: of one rank of each node, or of two ranks of the only node.
    """
    share = "name an `output:` on a file system that all nodes share"
    lost = [trial for trial in trials if trial.problem]
    if lost:
        return [
            Finding(
                f"{trial.host} cannot take the lease of the run's folder: {trial.problem}", share
            )
            for trial in lost
        ]
    hosts = " and ".join(trial.host for trial in trials if trial.won)
    if sum(trial.won for trial in trials) > 1:
        return [
            Finding(
                f"{hosts} can take the lease of the run's folder at the same time, so two launches could write "
                "there",
                share,
            )
        ]
    if trials and (not hosts or len({trial.holder for trial in trials}) > 1):
        return [Finding("the nodes do not agree on who has the lease of the run's folder", share)]
    return [
        Finding(
            f"{trial.host} does not see within seconds that another has taken the lease of the run's folder",
            "mount the file system so that files of others are seen at once (NFS: actimeo=1), or name another "
            "`output:`",
        )
        for trial in trials
        if not trial.noticed
    ]


# ---- the parts ----------------------------------------------------------------------------------


def _check_threads(node: int, ranks: Sequence[RankFacts], slots: int) -> Iterator[Finding]:
    cores = len({core for rank in ranks for core in rank.cores.usable})
    threads = sum(rank.threads for rank in ranks)
    share = slots > 1 and not any(rank.gpus for rank in ranks)
    if threads > max(cores, len(ranks) * share):
        if threads > len(ranks):
            why = f" ({' or '.join(THREAD_VARIABLES)} makes that {threads} threads)"
        else:
            why = ""
        yield Finding(
            f"node {node} has {pluralize(len(ranks), 'rank')}{why} on {pluralize(cores, 'core')}",
            "start fewer ranks there, or let them use fewer threads",
        )


def _check_gpus(
    node: int, ranks: Sequence[RankFacts], trainers: Sequence[RankFacts], slots: int
) -> Iterator[Finding]:
    there = max(rank.gpu_files for rank in ranks)
    shown = {gpu for rank in ranks for gpu in rank.gpus}
    if not shown:
        if there:
            yield Finding(
                f"node {node} has {pluralize(there, 'GPU')}, but its ranks are shown none",
                "check CUDA_VISIBLE_DEVICES and variables like it, and what the job asks for",
            )
        return
    # As the engine chooses: the one that a rank is shown alone, otherwise that of its place among the trainers.
    whole = -(-len(trainers) // slots)
    taken = [
        rank.gpus[0]
        if len(rank.gpus) == 1
        else rank.gpus[place % whole]
        if place % whole < len(rank.gpus)
        else ""
        for place, rank in enumerate(trainers)
        if rank.gpus
    ]
    if there > 1:
        alone = [rank.gpus[0] for rank in ranks if len(rank.gpus) == 1]
    else:
        alone = []
    twice = {
        gpu: count
        for gpus in (alone, taken)
        for gpu, count in Counter(gpus).items()
        if gpu and count > slots
    }
    for gpu, count in twice.items():
        yield Finding(
            f"{count} ranks of node {node} are shown GPU {gpu} alone, or others under its name",
            "show every rank all GPUs of its node (srun --gpu-bind=none, no --gpus-per-task): FLEET hands "
            "them out",
        )
    for rank, gpu in zip((rank for rank in trainers if rank.gpus), taken, strict=True):
        yield from (
            Finding(
                f"a trainer of node {node} is bound to cores far from its GPU {gpu}, which is on "
                f"{describe_numa_node(one)}",
                "bind it to some of these, or start it unbound",
            )
            for one in rank.near
            if one.gpu == gpu and not rank.cores.usable & one.cores
        )
    missing = len(trainers) - sum(map(bool, taken))
    if missing:
        yield Finding(
            f"{pluralize(missing, 'trainer')} of node {node} are shown no GPU of their own",
            "start fewer ranks there, or set resources.gpus_per_node",
        )
