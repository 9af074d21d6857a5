"""No launch writes without the lease (docs/design/checkpoints.md, "One launch at a time").

A launch may publish files of a network while it holds the network's lease or that of the folder,
and other files of the run while it holds the folder's. A launch that was suspended, and lost its
lease meanwhile, may end what it has begun: one write of rank 0 within a second of its own time, and
one rename into a folder that its successor moves away. It notices the loss at its next check.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fleet.storage.lease import Times
from tests.simulate import kernel as k
from tests.simulate.disk import Disk

_GENERATION = re.compile(r"(\.fleet-leases?(?:/[^/.][^/]*)?)/(\d{8})")
_NETWORK = re.compile(r"models/([^/]+)(/.*)?")
# Files that any launch of several writes (docs/design/harvest.md, "Who writes which file").
_OF_ANY = {"results.csv", "report.html", "ensembles.csv", "profile.json", "bad_samples.csv"}
# Files of one process, or of one launch, or of those who command it; and temporary ones.
_OWN = re.compile(r"(events|mailbox|logs|training|tensorboard)(/.*)?|models|(.*/)?\..*")
_FOLDER = ".fleet-lease"


@dataclass(eq=False)
class _Holding:
    """A generation of a lease.

    Attributes:
        launch: the launch that created it.
        process: its rank 0.
        renewed_s: when it last wrote the file.
        is_free: whether it has released the lease.
        lost_s: when its successor had told it, or None.
    """

    generation: int
    launch: str
    process: k.Process
    renewed_s: float
    is_free: bool = False
    lost_s: float | None = None


@dataclass
class _Resource:
    """A lease: all its generations, and the folders that the newest holder has made anew."""

    holdings: list[_Holding] = field(default_factory=list)
    remade: set[str] = field(default_factory=set)


class LeaseOracle:
    """Watches all changes in a run's folder.

    Args:
        folder: the run's folder.
        object_to: is called with what is wrong.
    """

    def __init__(self, disk: Disk, folder: Path, object_to: Callable[[str], None]) -> None:
        self._disk = disk
        self._kernel = disk.kernel
        self._prefix = f"{folder}/"
        self._object_to = object_to
        self._resources: dict[str, _Resource] = {}
        # Another thread may check between a thread's check and its rename.
        self._checked_s: dict[tuple[k.Task | None, str], float] = {}
        self.sharing: set[str] = set()  # launches that share the run

    def storage_crashed(self) -> None:
        """Forget all leases: their files may be gone, and so are all launches."""
        self._resources.clear()

    def holds(self, process: k.Process, name: str) -> bool:
        """Return True if the launch of a process may write the files of a network."""
        launch = _launch_of(process)
        return any(
            (newest := self._newest(key)) is not None
            and newest.launch == launch
            and not newest.is_free
            for key in (_FOLDER, f"{_FOLDER}s/{name}")
        )

    def did(self, call: str, path: str, data: bytes) -> None:
        """A process has changed a file or folder, or lists a folder."""
        process = self._kernel.process
        if process is None or process.mpi is None or not path.startswith(self._prefix):
            return
        relative = path[len(self._prefix) :]
        if call == "list":
            self._checked_s[self._kernel.current, relative] = self._kernel.now
        elif match := _GENERATION.fullmatch(relative):
            self._change_lease(process, call, match[1], int(match[2]), data)
        elif _OWN.fullmatch(relative):
            return
        elif match := _NETWORK.fullmatch(relative):
            self._check_network(process, call, match[1], relative)
        elif relative not in _OF_ANY or _launch_of(process) not in self.sharing:
            self._check(process, call, relative, [_FOLDER])

    # ---- leases ----

    def _newest(self, key: str) -> _Holding | None:
        resource = self._resources.get(key)
        return resource.holdings[-1] if resource is not None and resource.holdings else None

    def _change_lease(
        self, process: k.Process, call: str, key: str, generation: int, data: bytes
    ) -> None:
        now = self._kernel.now
        resource = self._resources.setdefault(key, _Resource())
        before = self._newest(key)
        if call in ("link", "create") and (before is None or generation > before.generation):
            if before is not None and before.lost_s is None:
                before.lost_s = now + self._disk.faults.lag_s
                self._check_takeover(process, key, before)
            resource.holdings.append(_Holding(generation, _launch_of(process), process, now))
            resource.remade.clear()
        for holding in resource.holdings if call == "write" else ():
            if holding.generation == generation and holding.launch == _launch_of(process):
                holding.renewed_s = now
                holding.is_free |= data[20:25] == b" free"
            elif holding.generation == generation and data.startswith(b"taken"):
                holding.lost_s = min(now, holding.lost_s or now)

    def _check_takeover(self, process: k.Process, key: str, before: _Holding) -> None:
        """Check that no launch takes the lease of a launch that lives and renews it."""
        silent_s = self._kernel.now - before.renewed_s
        if before.process.is_alive and not before.is_free and silent_s < Times.stale:
            self._object_to(
                f"{process} takes {key} from {before.process}, which has renewed it "
                f"{silent_s:.1f} s ago"
            )

    # ---- writes ----

    def _check_network(self, process: k.Process, call: str, name: str, relative: str) -> None:
        key = f"{_FOLDER}s/{name}"
        for newest in (self._newest(key), self._newest(_FOLDER)):
            if call == "mkdir" and newest is not None and newest.launch == _launch_of(process):
                for resource in (key, _FOLDER):
                    self._resources.setdefault(resource, _Resource()).remade.add(name)
        if call != "mkdir" or not self.holds(process, name):
            self._check(process, call, relative, [key, _FOLDER], name)

    def _check(
        self, process: k.Process, call: str, relative: str, keys: list[str], name: str = ""
    ) -> None:
        """Check that a launch may change a file now."""
        launch = _launch_of(process)
        former: list[tuple[str, _Holding]] = []
        for key in keys:
            newest = self._newest(key)
            # A launch that is ended by force has released it; no other launch has it yet.
            if newest is not None and newest.launch == launch:
                return
            former += [
                (key, holding)
                for holding in self._resources.get(key, _Resource()).holdings
                if holding.launch == launch and not holding.is_free
            ]
        change = f"{process} does {call} {relative}"
        if not former:
            self._object_to(f"{change} without a lease")
            return
        key, holding = former[-1]
        lost_s = holding.lost_s
        if lost_s is None:
            return
        if self._checked_s.get((self._kernel.current, key), 0.0) > lost_s:
            self._object_to(f"{change}, though it has checked {key} after it lost that")
        elif name and name in self._resources[key].remade:
            self._object_to(f"{change}, whose folder its successor has made anew")
        running_s = self._kernel.now - max(lost_s, process.frozen_until)
        patience_s = (2.0 + 3 * self._disk.faults.slow_s) * process.slowness
        if running_s > patience_s:
            self._object_to(f"{change}, {running_s:.1f} s after it lost {key}")


def _launch_of(process: k.Process) -> str:
    return process.label.partition(".")[0]
