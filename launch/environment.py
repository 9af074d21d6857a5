"""Read the variables that launchers set in the environment of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """The variables of one launcher.

    Args:
        name: the launcher's name for users.
        size: the variable that holds the number of ranks.
        rank: the variable that holds the number of the rank.
        local_rank: the variable that holds the rank's number on its node.
    """

    name: str
    size: str
    rank: str
    local_rank: str


_OPEN_MPI = Launcher(
    "mpirun of Open MPI",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
)

# The order matters: mpirun starts its daemons by srun, whose variables remain in the environment of
# the ranks.
LAUNCHERS = (
    _OPEN_MPI,
    Launcher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    Launcher("mpiexec of PALS", "PALS_SIZE", "PALS_RANKID", "PALS_LOCAL_RANKID"),
    Launcher(
        "mpirun of MVAPICH",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher("mpiexec of MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    Launcher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
)


def find_launcher(environment: Mapping[str, str]) -> Launcher | None:
    """Find the launcher that started this process; None if it is unknown.

    >>> find_launcher({"PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}).name
    'mpiexec of MPICH'
    """
    return next(
        (launcher for launcher in LAUNCHERS if _number(environment, launcher.size) is not None),
        None,
    )


def launched_ranks(environment: Mapping[str, str]) -> int | None:
    """Return the number of ranks that the launcher started.

    >>> launched_ranks({"OMPI_COMM_WORLD_SIZE": "8"})
    8
    """
    launcher = find_launcher(environment)
    if launcher is None:
        return None
    return _number(environment, launcher.size)


def is_first(environment: Mapping[str, str]) -> bool:
    """Return True if this process is rank 0, or no launcher says otherwise before MPI starts.

    >>> mpirun = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3"}
    >>> is_first({**mpirun, "SLURM_PROCID": "0"}), is_first({})
    (False, True)
    """
    launcher = find_launcher(environment)
    return launcher is None or not _number(environment, launcher.rank)


def local_rank(environment: Mapping[str, str]) -> int | None:
    """Return the number of this rank on its node.

    >>> mpirun = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    >>> local_rank({**mpirun, "SLURM_LOCALID": "0"})
    3
    """
    ranks = (_number(environment, launcher.local_rank) for launcher in LAUNCHERS)
    return next((rank for rank in ranks if rank is not None), None)


def is_fault_tolerant(environment: Mapping[str, str]) -> bool:
    """Return True if Open MPI's mpirun lets ranks go on when others end: ``--with-ft ulfm``."""
    return environment.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true")


def ends_with_any_rank(environment: Mapping[str, str]) -> bool:
    """Return True if a launch surely ends when a rank ends with an error before MPI starts.

    Other launchers, such as srun, may let the other ranks wait for it without end.

    >>> mpirun = {"OMPI_COMM_WORLD_SIZE": "8"}
    >>> ends_with_any_rank(mpirun), ends_with_any_rank({**mpirun, "OMPI_MCA_mpi_ft_enable": "1"})
    (True, False)
    """
    launcher = find_launcher(environment)
    return launcher is None or (launcher is _OPEN_MPI and not is_fault_tolerant(environment))


def has_core(environment: Mapping[str, str], cores: int) -> bool:
    """Return True if a rank is among the first of its node, as many as there are cores.

    Args:
        cores: number of cores of the node.

    >>> has_core({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, cores=2), has_core({}, cores=2)
    (False, True)
    """
    return (local_rank(environment) or 0) < cores


def _number(environment: Mapping[str, str], variable: str) -> int | None:
    value = environment.get(variable, "")
    if value.isascii() and value.isdecimal():
        return int(value)
    return None
