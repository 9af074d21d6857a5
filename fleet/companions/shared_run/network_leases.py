"""Hold leases of single networks, in a thread, for one of several launches that share a run.

See :mod:`fleet.storage.network_leases` for the order in which leases are taken. One thread renews
all leases of a launch. So if one is lost, the whole launch was stopped, and it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

from fleet.errors import LeaseLost, StorageError, UserError
from fleet.storage.fencing import fence_out
from fleet.storage.files import storage_errors, with_retries
from fleet.storage.lease import Lease, newest_state, newest_token
from fleet.storage.paths import RunPaths


class NetworkLeases:
    """The networks that a launch holds, and its requests for more.

    Args:
        paths: files of the run.
        lease: lease of this process, copied for each network.
    """

    def __init__(self, paths: RunPaths, lease: Lease) -> None:
        self._paths = paths
        self._lease = lease
        self._names: tuple[str, ...] = ()
        self._max_held = 0
        self._attempts: dict[str, tuple[Lease, Iterator[float]]] = {}
        self._leases: dict[str, Lease] = {}
        self._acquired: list[str] = []
        self._error: LeaseLost | StorageError | None = None
        self._lock = threading.Lock()  # of held leases: none is renewed while it is released
        self._requested = threading.Event()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    # ---- called by the coordinator ----

    def start(self) -> None:
        """Start threads that poll for networks and renew the leases of held ones."""
        for work in (self._poll_forever, self._renew_forever):
            self._threads.append(
                threading.Thread(target=work, name=work.__name__.strip("_"), daemon=True)
            )
            self._threads[-1].start()

    def request(self, names: tuple[str, ...], max_held: int) -> None:
        """Take the first available of these networks, up to a number of held ones.

        This replaces earlier requests; repeating one has no effect.

        Args:
            names: names of networks, in order of preference.
            max_held: maximum number of held networks.
        """
        if (names, max_held) != (self._names, self._max_held):
            self._names = names
            self._max_held = max_held
            self._requested.set()

    def pop_acquired(self) -> list[str]:
        """Return the networks acquired since the last call."""
        with self._lock:
            acquired = self._acquired
            self._acquired = []
        return acquired

    def lease_of(self, name: str) -> Lease:
        """Return the lease of a held network: the right to write its files."""
        return self._leases[name]

    def release(self, name: str) -> None:
        """Release a network, so that another launch need not wait."""
        with self._lock:
            self._leases.pop(name).release()

    def check(self) -> None:
        """Check that all networks are still held.

        Raises:
            LeaseLost: another launch has taken one over.
            StorageError: no network can be taken.
        """
        if self._error is not None:
            raise self._error
        for lease in list(self._leases.values()):
            lease.check()

    def close(self, may_write: bool = False) -> None:
        """Release all networks.

        Args:
            may_write: True if ranks of this launch may still write: other launches take its
                networks over as from a dead launch.
        """
        self._ended.set()
        self._requested.set()
        for thread in self._threads:
            thread.join()
        for name, lease in list(self._leases.items()):
            if may_write:
                lease.abandon()
            else:
                self.release(name)

    # ---- the threads ----

    def _poll_forever(self) -> None:
        # often enough to notice a stale lease in time, without loading the file server
        pause_s = max(self._lease.times.poll, self._lease.times.stale / 30)
        while not self._ended.is_set():
            self._requested.wait(pause_s)
            self._requested.clear()
            try:
                with_retries(self.poll)
            except StorageError as error:
                self._error = error
                return

    def _renew_forever(self) -> None:
        while not self._ended.wait(self._lease.times.renew):
            self.renew()

    def renew(self) -> None:
        """Renew the leases of all held networks."""
        with self._lock:
            for lease in self._leases.values():
                try:
                    lease.renew()
                except LeaseLost as lost:
                    self._error = lost
                except OSError:  # a slow file server: try again next time, or the lease goes stale
                    continue

    def poll(self) -> None:
        """Take the requested networks that are available.

        Raises:
            StorageError: the file system refuses.
        """
        for name in self._names:
            if self._ended.is_set() or len(self._leases) >= self._max_held:
                return
            if name not in self._leases and not self._try(name):
                return

    def _try(self, name: str) -> bool:
        """Try to take a network; return False if none can be taken now."""
        with storage_errors(self._paths.network_lease(name)):
            if not self._is_folder_free():
                return False
            lease = self._acquire(name)
            if lease is None:
                return True
            if not self._is_folder_free():
                lease.release()
                return False
            self._hold(name, lease)
        return True

    def _acquire(self, name: str) -> Lease | None:
        """Advance the acquisition of a network, or of the folder (""); return its lease if held.

        If the holder is alive, the next call begins as if for the first time.
        """
        if name in self._attempts:
            lease, steps = self._attempts.pop(name)
        elif name:
            folder = self._paths.network_lease(name)
            folder.mkdir(parents=True, exist_ok=True)
            lease = self._lease.sibling(f"network {name}")
            # A launch that worked alone has written with a token of the folder's lease.
            steps = lease.steps(folder, floor=newest_token(self._paths.lease))
        else:
            lease = self._lease.sibling("")
            steps = lease.steps(self._paths.lease)
        if not _is_decided(steps):
            self._attempts[name] = lease, steps
        elif lease.fence.generation:
            return lease
        return None

    def _hold(self, name: str, lease: Lease) -> None:
        if lease.took_over:
            fence_out(self._paths, name)
        with self._lock:
            self._leases[name] = lease
            self._acquired.append(name)

    def _is_folder_free(self) -> bool:
        """Return True if no launch holds the folder's lease; dead holders are fenced out."""
        if newest_state(self._paths.lease).is_free:
            self._attempts.pop("", None)
            return True
        lease = self._acquire("")
        if lease is None:
            return False
        lease.release()
        return True


def _is_decided(steps: Iterator[float]) -> bool:
    """Advance the acquisition of a lease; return True once it has succeeded or failed."""
    with suppress(UserError):
        return not any(steps)
    return True
