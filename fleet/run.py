"""The main job: ``mpirun -n N python -m fleet.run SPEC``.

Every rank runs this module. Rank 0 reads the spec and the listing of the data set and broadcasts
both; then each rank starts its role.
"""

from __future__ import annotations

import os
import time

from launch.environment import has_core

if __name__ == "__main__" and not has_core(os.environ, os.cpu_count() or 1):
    # Rank 0 reads the spec before MPI starts. If there are fewer cores than ranks, importing the
    # modules below on all ranks at once would double the time until it reports a mistake.
    time.sleep(0.5)

import argparse
import atexit
import logging
import logging.handlers
import re
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fleet.arguments import Parser, add_changes, duration, with_current_names
from fleet.batch_systems import SYSTEM_VARIABLE, known_systems, lease_of_process
from fleet.errors import (
    ExitStatus,
    LeaseLost,
    StorageError,
    UserError,
    shortened,
    status_of,
)
from fleet.gc_pause import paused_collection
from fleet.runtime.interrupt import Interruption
from fleet.runtime.startup.request import IDLE_S, Request, StartupTimer
from fleet.spec import load
from fleet.storage.files import explain_refused_read, storage_errors
from fleet.storage.lease import Lease
from fleet.terminal import print_any_name
from fleet.units import format_duration
from launch.binding import (
    BINDING_REMEDY,
    binding_problem,
    cores_per_node,
    process_cores,
    ranks_per_core,
)
from launch.devices import DEVICES, find_maker, gpus_per_node, visible_gpus
from launch.energy import find_counters
from launch.environment import ends_with_any_rank, is_first, launched_ranks, local_rank
from launch.errors import InputError
from launch.memory import free_shared_memory
from launch.processes import end_children
from launch.stale_files import remove_leftovers, use_separate_folder
from launch.systems import this_job
from launch.walltime import seconds_left
from preprocess.transient_errors import is_transient_for_writer

if TYPE_CHECKING:  # imported later, so that --help is fast
    from fleet.comm.protocols import World
    from fleet.runtime.startup.launch import Launch


FORMER_OPTIONS = {"--beside-others": "--share-run", "--idle": "--idle-timeout"}
# The log until start_logging().
_EARLY_RECORDS = logging.handlers.MemoryHandler(1000, logging.CRITICAL + 1, flushOnClose=True)
# Those of srun do not tell that it started this process as a rank.
_MPIRUN_VARIABLES = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
_JOIN_S = 0.5  # for threads that end by themselves
_FIRST_RANK_REPORTS_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a launch."""
    parser.add_argument("spec", help="the YAML file")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="delete the results of an earlier run of this spec and start over",
    )
    add_changes(parser)
    parser.add_argument(
        "--replay",
        metavar="RUN",
        help="train one network of a run again, alone, on the stream epochs of its history and "
        "compare the losses",
    )
    parser.add_argument("--only", metavar="NAME", help="the network to replay")
    parser.add_argument(
        "--plain", action="store_true", help="plain lines instead of the live table"
    )
    parser.add_argument(
        "--walltime",
        type=duration,
        metavar="2h",
        help="save everything and exit with status 75 shortly before this time is over",
    )
    parser.add_argument(
        "--share-run",
        dest="shares_run",
        action="store_true",
        help="share the run with other launches that use this option; each trains the "
        "networks whose lease it holds",
    )
    parser.add_argument(
        "--idle-timeout",
        type=duration,
        metavar="5min",
        help="with --share-run: exit after this time without a network to train (default: "
        f"{format_duration(IDLE_S)})",
    )


def parse_arguments(argv: Sequence[str] | None = None) -> Request:
    """Read the command line; ``--help`` prints it and exits.

    Raises:
        UserError: the command line is wrong.
    """
    parser = Parser(
        prog="python -m fleet.run",
        allow_abbrev=False,
        description="Train the ensemble of a spec: mpirun -n N python -m fleet.run SPEC. "
        "The same command resumes a run that was interrupted.",
    )
    add_arguments(parser)
    words = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(with_current_names("fleet", words, FORMER_OPTIONS))
    if arguments.idle_timeout is not None and not arguments.shares_run:
        parser.error("--idle-timeout requires --share-run")
    if arguments.shares_run:
        for option in ("fresh", "fresh_network", "accept_changes", "replay", "remeasure"):
            if getattr(arguments, option):
                parser.error(
                    f"--share-run cannot be combined with --{option.replace('_', '-')}: other "
                    "launches train the networks"
                )
    if (arguments.replay is None) != (arguments.only is None):
        parser.error("--replay RUN and --only NAME require each other")
    if arguments.fresh_network and (arguments.fresh or arguments.replay):
        option = "--fresh" if arguments.fresh else "--replay"
        parser.error(f"--fresh-network cannot be combined with {option}")
    values = {name: value for name, value in vars(arguments).items() if value is not None}
    return Request(**{**values, "fresh_network": tuple(arguments.fresh_network)})


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank; returns the exit status of the whole job."""
    print_any_name()
    try:
        request = parse_arguments(argv)
        if is_first(os.environ) and ends_with_any_rank(os.environ):
            load(request.spec)  # reports mistakes before MPI starts and libraries are imported
    except UserError as error:
        return _refuse(shortened(str(error)), ExitStatus.BAD_INPUT)
    interruption = Interruption(None)
    timer = StartupTimer()
    interruption.watch()  # early, because a rank that dies of a signal takes the others with it
    # Before MPI starts: after that no process should be forked.
    batch_left = seconds_left(os.environ) if is_first(os.environ) else None
    with paused_collection():
        import fleet.runtime.session  # noqa: F401 - before MPI starts, where ranks wait

        timer.end("imports")
        try:
            from fleet.comm.mpi import start_mpi
        except (ImportError, RuntimeError) as error:
            return _refuse_without_mpi(error)

    logging.getLogger("fleet").addHandler(_EARLY_RECORDS)
    logging.getLogger("fleet").setLevel(logging.INFO)
    world = start_mpi()
    if (
        world.size == 1
        and (launched_ranks(os.environ) or 1) > 1
        and _MPIRUN_VARIABLES & os.environ.keys()
    ):
        return _refuse_to_run_alone()
    if not local_rank(os.environ):
        remove_leftovers()
    use_separate_folder()
    timer.end("MPI")
    try:
        with _lease(world, request) as lease:
            status = _run(world, request, batch_left, interruption, lease, timer)
        end_children()
        return world.exit(status)
    except KeyboardInterrupt:
        world.end_all_ranks(130)
    except (UserError, InputError) as error:
        print(f"fleet: {error}", file=sys.stderr, flush=True)
        world.end_all_ranks(ExitStatus.BAD_INPUT)
    except BaseException as error:
        logging.getLogger("fleet").critical("rank %d failed", world.rank, exc_info=True)
        refusal = _storage_refusal(error)
        if refusal is None:
            world.abort(error)
        print(f"fleet: rank {world.rank} on {world.host}: {refusal}", file=sys.stderr, flush=True)
        world.end_all_ranks(_status_of(refusal) or ExitStatus.INFRASTRUCTURE)


def _refuse(message: str, status: ExitStatus) -> ExitStatus:
    """Let the first rank report a mistake that all ranks see before MPI starts.

    The other ranks wait a while: mpirun stops all ranks when the first one ends with an error, so
    that otherwise they could stop rank 0 before it has printed.
    """
    if is_first(os.environ):
        with suppress(OSError):  # the terminal may have gone with the launcher
            print(f"fleet: {message}", file=sys.stderr, flush=True)
    else:
        time.sleep(_FIRST_RANK_REPORTS_S)
    return status


def _refuse_without_mpi(error: ImportError | RuntimeError) -> ExitStatus:
    """Report that mpi4py is not installed, or finds no MPI.

    Raises:
        ImportError: another module is missing.
    """
    if isinstance(error, ImportError) and not (error.name or "").startswith("mpi4py"):
        raise error
    return _refuse(
        f"mpi4py cannot be imported ({error}): install it with Open MPI by pip install "
        "'fleet-ensemble[keras]' or '[torch]'; on a cluster, build it for the MPI of the machine",
        ExitStatus.BAD_INPUT,
    )


def _refuse_to_run_alone() -> ExitStatus:
    """Report that mpirun has started several ranks, but MPI sees this one only.

    The mpirun has died meanwhile, or it belongs to another MPI: every process believes that it is
    rank 0.
    """
    return _refuse(
        f"mpirun started {launched_ranks(os.environ)} ranks, but MPI sees only this one: mpirun "
        "ended during start-up, or belongs to another MPI than mpi4py (run fleet doctor); on one "
        "machine, fleet run starts the mpirun of this environment",
        ExitStatus.INFRASTRUCTURE,
    )


def _storage_refusal(error: BaseException) -> StorageError | LeaseLost | None:
    """Return the error to print if storage has failed, where a traceback would not help."""
    if isinstance(error, StorageError | LeaseLost):
        return error
    if isinstance(error, OSError) and error.filename and is_transient_for_writer(error):
        return StorageError(explain_refused_read(error), may_pass=True)
    return None


def _status_of(error: Exception) -> ExitStatus | None:
    """Return the exit status of an error, or None for errors of the program.

    A batch job that restarts the launch (``SYSTEM_VARIABLE``) can wait until a storage error has
    passed, so that it gets a status of its own.
    """
    if isinstance(error, StorageError) and error.may_pass and SYSTEM_VARIABLE in os.environ:
        return ExitStatus.CAN_PASS
    return status_of(error)


def _run(
    world: World,
    request: Request,
    batch_left: float | None,
    interruption: Interruption,
    lease: Lease | None,
    timer: StartupTimer,
) -> int:
    from fleet.comm.roles import describe_missing_slots, describe_unfused
    from fleet.runtime.session import Session
    from fleet.runtime.startup.all_ranks import Refused, start_other_rank, start_rank_zero
    from fleet.runtime.startup.engine_import import EngineImport
    from fleet.runtime.startup.launch import Ranks
    from fleet.spec import allow_imports_beside

    # On all ranks, because rank 0 broadcasts objects of modules beside the spec.
    allow_imports_beside(request.spec)
    # Rank 0 validates the input; then all ranks continue, or none does.
    node_of = world.node_of()
    visible = {device: visible_gpus(os.environ, device) for device in DEVICES}
    counters = find_counters(visible["auto"], find_maker(os.environ), os.environ)
    gpus, counts_energy = zip(*world.allgather((visible, bool(counters))), strict=True)
    gpus_of = {
        device: gpus_per_node([of_rank[device] for of_rank in gpus], node_of) for device in DEVICES
    }
    cores = world.allgather(process_cores())
    ranks = Ranks(
        node_of,
        gpus_of["auto"],
        ranks_per_core(cores, node_of),
        min(world.allgather(free_shared_memory())),
        cores_per_node(cores, node_of),
        gpus_of,
        any(counts_energy),
    )
    timer.end("meeting")
    engine_import = EngineImport()
    try:
        if world.rank == 0:
            from fleet.runtime.startup.prepare import prepare

            launch: Launch = start_rank_zero(
                world,
                lambda announce: prepare(
                    request, ranks, lease, announce, _name() if request.shares_run else ""
                ),
                _status_of,
            )
        else:
            launch = start_other_rank(world, engine_import)
    except Refused as refused:
        if world.rank == 0:
            print(f"fleet: {shortened(str(refused))}", file=sys.stderr, flush=True)
        world.finish()
        return int(refused.status)
    timer.end("reading")
    if world.rank == 0:
        binding = binding_problem(cores, node_of)
        for line in (
            f"{binding}: {BINDING_REMEDY}" if binding else "",
            describe_unfused(launch.spec),
            describe_missing_slots(launch.spec, launch.roles),
            launch.describe_unlisted,
            *launch.inputs.data.remark.splitlines(),
        ):
            if line:
                print(f"fleet: {line}", file=sys.stderr, flush=True)
    start_logging(launch.paths.log(world.rank), world.rank, world.host)
    if request.walltime is not None:
        walltime: float | None = request.walltime
    else:
        walltime = launch.spec.document.walltime
    interruption.limit(shortest(walltime, batch_left))
    return Session(world, launch, interruption, lease, engine_import, timer).run()


def _lease(world: World, request: Request) -> AbstractContextManager[Lease | None]:
    """Return rank 0's lease, which locks the run's folder for other launches."""
    if world.rank:
        return nullcontext()
    from fleet.spec import allow_imports_beside

    allow_imports_beside(request.spec)  # a custom batch system may be there
    return lease_of_process(os.environ)


def _name() -> str:
    """Return the name of this launch: the batch job's id, or host and process id."""
    job = this_job(os.environ, known_systems(os.environ))
    return re.sub(r"[^\w.-]", "_", job.id or f"{socket.gethostname()}-{os.getpid()}")


def shortest(*walltimes: float | None) -> float | None:
    """Return the shortest walltime that is set; None if none is.

    >>> shortest(7200.0, 600.0), shortest(None, 600.0), shortest(None, None)
    (600.0, 600.0, None)
    """
    return min((seconds for seconds in walltimes if seconds is not None), default=None)


def start_logging(path: Path, rank: int, host: str) -> None:
    """Log to this rank's file."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    logging.raiseExceptions = False  # other code reports a full disk
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {host}:{rank} %(name)s %(levelname)s %(message)s")
    )
    logger = logging.getLogger("fleet")
    logger.addHandler(handler)
    logger.removeHandler(_EARLY_RECORDS)
    _EARLY_RECORDS.setTarget(handler)
    _EARLY_RECORDS.close()
    logger.setLevel(logging.INFO)
    logger.propagate = False


def leave(status: int) -> NoReturn:
    """Exit, even if users' code has left threads for which Python would wait forever."""
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    threads.discard(threading.main_thread())
    for thread in threads:
        thread.join(_JOIN_S)
    if not any(thread.is_alive() for thread in threads):
        sys.exit(status)
    # Do what Python does at exit, but without waiting for threads.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()
    os._exit(status)


if __name__ == "__main__":
    leave(main())
