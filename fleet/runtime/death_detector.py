"""Detection of dead ranks of a node, and of the networks that they trained.

When a rank dies, Open MPI's mpirun kills all others half a second later, after it has sent them
signals. That is enough time to see which process is missing, to record in the run's folder which
network it trained (:mod:`fleet.storage.rank_deaths`), and to report it. A rank that receives a
signal has not died by itself, so it removes its own marker. The same holds if the launcher is
killed, which the kernel reports to each rank.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from fleet.comm.protocols import World
from fleet.runtime.interrupt import SIGNALS
from fleet.storage.paths import RunPaths
from fleet.storage.rank_deaths import RankMarker, claim_death
from launch.environment import find_launcher
from launch.processes import end_children, end_with_parent, started


class DeathDetector:
    """Detects dead ranks of this node; collective over all ranks.

    Attributes:
        marker: the marker file of this rank.
    """

    def __init__(self, world: World, paths: RunPaths) -> None:
        self._paths = paths
        self.marker = RankMarker(paths, world.rank, world.host)
        self._host = world.host
        self._launcher = None if find_launcher(os.environ) is None else os.getppid()
        if world.is_fault_tolerant:
            if world.rank:  # other ranks detect its death, and it ends with the launcher by SIGKILL
                self.marker.close()
        elif self._launcher is not None:
            end_with_parent(signal.SIGCONT)
        # With the start time, because a later process may have the same id.
        self._processes = world.allgather((world.host, os.getpid(), started(os.getpid())))

    def on_signal(self, number: int) -> str:
        """Handle a signal; returns which rank has died, or an empty string."""
        if self._launcher not in (None, os.getppid()):  # the launcher was killed, and its ranks end
            self.marker.close()
            return ""
        death = self.record_deaths()
        if number in SIGNALS:
            self.marker.close()
        return death

    def prepare_end(self) -> None:
        """Prepare for this rank to end all ranks."""
        self.record_deaths()
        self.marker.close()
        end_children()

    def record_deaths(self) -> str:
        """Record dead ranks of this node and their networks; returns which rank died last."""
        death = ""
        for rank, (host, pid, began) in enumerate(self._processes):
            if host != self._host or started(pid) == began:
                continue
            death = f"rank {rank} on {host} has died"
            network = claim_death(self._paths, rank)
            if network:
                with suppress(OSError):  # stderr is closed
                    print(
                        f"fleet: rank {rank} on {host} died while training {network}, and all "
                        "ranks end. The same command resumes the run and trains "
                        f"{network} last; fleet skip leaves it out.",
                        file=sys.stderr,
                        flush=True,
                    )
        return death
