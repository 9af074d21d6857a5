"""A simulated cluster: nodes, and launches of ``python -m fleet.run`` by a simulated mpirun."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulate import kernel as k
from tests.simulate import mpi

_KILL_AFTER_S = 0.5  # between the signals of mpirun and SIGKILL


@dataclass(eq=False)
class Launch:
    """One command: an mpirun and its ranks.

    Attributes:
        launcher: the process of mpirun.
        status: its exit status; None while it runs.
        interrupted_s: when mpirun got its first signal; infinity before.
        ended_s: when mpirun has returned.
    """

    number: int
    ranks: list[k.Process]
    launcher: k.Process
    is_fault_tolerant: bool
    status: int | None = None
    is_ending: bool = False
    statuses: list[int] = field(default_factory=list)
    interrupted_s: float = math.inf
    ended_s: float = math.inf

    @property
    def has_ended(self) -> bool:
        """True once mpirun has returned."""
        return self.status is not None


class Cluster:
    """Nodes, and what runs on them."""

    def __init__(self, kernel: k.Kernel, names: Sequence[str]) -> None:
        self.kernel = kernel
        self.nodes = [k.Node(name, number) for number, name in enumerate(names)]
        self.launches: list[Launch] = []
        self._running = 0

    def launch(
        self,
        nodes: Sequence[k.Node],
        ranks_per_node: int,
        main: Callable[[], int | None],
        fault_tolerant: bool,
        delay_s: float,
        late: float,
        environ: dict[str, str],
    ) -> Launch:
        """Start a launch: ``mpirun -n N`` with some ranks on each node."""
        kernel = self.kernel
        size = len(nodes) * ranks_per_node
        number = len(self.launches)
        launcher = kernel.add_process(nodes[0], f"mpirun {number}", {})
        job = mpi.Job(kernel, [], delay_s, late, fault_tolerant, lambda status: None)
        launch = Launch(number, [], launcher, fault_tolerant)
        job.abort = lambda status: self._end(launch, status)
        for rank in range(size):
            node = nodes[rank // ranks_per_node]
            variables = {
                **environ,
                "OMPI_COMM_WORLD_SIZE": str(size),
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % ranks_per_node),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks_per_node),
                "PRTE_LAUNCHED": "1",
            }
            if fault_tolerant:
                variables["OMPI_MCA_mpi_ft_enable"] = "1"
            process = kernel.start_process(node, f"{number}.{rank}", variables, main, launcher)
            process.mpi = job
            process.on_end.append(lambda process=process: self._rank_ended(launch, process))
            launch.ranks.append(process)
        job.processes.extend(launch.ranks)
        self.launches.append(launch)
        self._running += 1
        kernel.note(f"mpirun {number}", f"starts {size} ranks on {[node.name for node in nodes]}")
        return launch

    @property
    def is_idle(self) -> bool:
        """True once all launches have ended."""
        return not self._running

    def _rank_ended(self, launch: Launch, process: k.Process) -> None:
        status = process.status
        assert status is not None
        process.mpi.has_deaths = True
        if status:
            launch.statuses.append(status)
        if status and not launch.is_ending and not launch.is_fault_tolerant:
            self._end(launch, 128 - status if status < 0 else status)
        if not any(rank.is_alive for rank in launch.ranks):
            self._finish(launch)

    def _finish(self, launch: Launch) -> None:
        if launch.status is not None:
            return
        if launch.is_fault_tolerant and launch.ranks[0].status is not None:
            status = launch.ranks[0].status
        else:
            status = launch.statuses[0] if launch.statuses else 0
        launch.status = 128 - status if status < 0 else status
        self._running -= 1
        launch.ended_s = self.kernel.now
        self.kernel.note(f"mpirun {launch.number}", f"returns {launch.status}")
        if launch.launcher.is_alive:
            self.kernel.end_process(launch.launcher, launch.status)

    def _end(self, launch: Launch, status: int) -> None:
        """Let mpirun end all ranks: signals first, then SIGKILL."""
        if launch.is_ending:
            return
        launch.is_ending = True
        launch.statuses.insert(0, status)
        kernel = self.kernel
        for number, after_s in ((signal.SIGCONT, 0.0), (signal.SIGTERM, 0.0), (9, _KILL_AFTER_S)):
            for rank in launch.ranks:
                kernel.call_at(
                    kernel.now + after_s + kernel.random.uniform(0.001, 0.02),
                    lambda rank=rank, number=number: kernel.send_signal(rank, number),
                )

    # ---- what happens to it ----

    def interrupt(self, launch: Launch, number: int) -> None:
        """Send a signal to mpirun, which forwards it to all ranks."""
        launch.interrupted_s = min(launch.interrupted_s, self.kernel.now)
        if number == signal.SIGTERM:
            self._end(launch, 128 + number)
            return
        for rank in launch.ranks:
            self.kernel.call_at(
                self.kernel.now + self.kernel.random.uniform(0.0, 0.01),
                lambda rank=rank: self.kernel.send_signal(rank, number),
            )

    def kill_rank(self, launch: Launch, rank: int, number: int = 9) -> None:
        """Kill one rank, as the kernel does that is out of memory."""
        self.kernel.counts["killed rank"] += 1
        self.kernel.send_signal(launch.ranks[rank], number)

    def kill_launcher(self, launch: Launch) -> None:
        """Kill mpirun itself by SIGKILL."""
        self.kernel.counts["killed mpirun"] += 1
        self.kernel.end_process(launch.launcher, -9)

    def kill_all(self, launch: Launch) -> None:
        """Kill all ranks and mpirun, as a batch system does at the end."""
        for process in launch.ranks:
            self.kernel.end_process(process, -9)

    def crash(self, node: k.Node, disk: Any) -> None:
        """Let a node crash and boot again."""
        self.kernel.counts["node crash"] += 1
        self.kernel.note(node.name, "crashes")
        for process in list(self.kernel.living()):
            if process.node is node:
                self.kernel.end_process(process, -9)
        disk.crash_node(node)
        node.boot += 1
        node.processes.clear()
