"""Detection of dead ranks of a node, and of the networks that they trained.

When a rank dies, Open MPI's mpirun kills all others half a second later, and tells them by signals
before that. That is time enough to see which process is gone, to say in the run's folder what it
trained (:mod:`fleet.storage.rank_deaths`), and to name the network. What a signal finds alive did
not die by itself: each rank takes its own mark away then. The same holds where the launcher is
killed, of which the kernel tells each rank.
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


class Witness:
    """Detects dead ranks of this node; collective over all ranks.

    Args:
        paths: of the run.

    Attributes:
        mark: of this rank.
    """

    def __init__(self, world: World, paths: RunPaths) -> None:
        self._paths = paths
        self.mark = RankMarker(paths, world.rank, world.host)
        self._host = world.host
        self._launcher = None if find_launcher(os.environ) is None else os.getppid()
        if world.is_fault_tolerant:
            if world.rank:  # the others see it die, and end with the launcher by SIGKILL
                self.mark.close()
        elif self._launcher is not None:
            end_with_parent(signal.SIGCONT)
        # A process of the same number may begin later.
        self._processes = world.allgather((world.host, os.getpid(), started(os.getpid())))

    def on_signal(self, number: int) -> str:
        """Handle a signal; returns which rank has died, or an empty string."""
        if self._launcher not in (None, os.getppid()):  # the launcher was killed, and its ranks end
            self.mark.close()
            return ""
        death = self.record_deaths()
        if number in SIGNALS:
            self.mark.close()
        return death

    def leave(self) -> None:
        """Prepare for this rank to end all ranks."""
        self.record_deaths()
        self.mark.close()
        end_children()

    def record_deaths(self) -> str:
        """Record dead ranks of this node and their networks; describes the last one."""
        death = ""
        for rank, (host, pid, began) in enumerate(self._processes):
            if host != self._host or started(pid) == began:
                continue
            death = f"rank {rank} on {host} has died"
            network = claim_death(self._paths, rank)
            if network:
                with suppress(OSError):  # stderr is closed
                    print(
                        f"fleet: rank {rank} on {host} died while it trained {network}, and all ranks end: the same "
                        f"command goes on, with {network} last (fleet skip leaves it out)",
                        file=sys.stderr,
                        flush=True,
                    )
        return death
