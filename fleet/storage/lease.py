"""Hold a lease: one launch's right to write, by nothing but atomic creation of files.

A lease has a folder, and each of its holders a file there, named by a number: the generation.
Whichever process creates the file of the next generation holds the lease; a file can be created
once (by a link, or by ``O_EXCL``), and all who saw the same newest generation create the same one.
File locks are not needed: on Lustre they are off by default, and may hold on one node only.

Checkpoints store who has written them as a fencing token, which rises over all leases of a run. It
is in the file of a generation: processes that skipped generations would not exclude each other.

A holder renews its file every few seconds. Another launch takes the lease over if the holder has
released it, if its process on this host has died, if it is an earlier run of the same batch job, or
if the file has not changed for some time, by the observer's clock, and the batch system no longer
knows the holder's job. The holder may only have been stopped. It detects that before it writes
anything important (:meth:`Fence.check`), and must then end.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from fleet.domain.json_record import read_record, write_record
from fleet.errors import LeaseLost, UserError
from fleet.storage.files import storage_errors
from fleet.units import parse_duration
from launch.processes import started
from preprocess.transient_errors import retry_transient

# Generations whose files are kept; no process stays suspended through more between two steps.
_KEPT = 8
_MAX_BYTES = 2**16  # of a generation's file
_HEAD = re.compile(r"(\d{20}) (held|free)\n")


@dataclass(frozen=True)
class Times:
    """Durations in seconds.

    Attributes:
        stale: a lease that has not changed for this long is taken over, unless the batch system
            still knows the job of its holder.
        renew: between two renewals.
        patience: how long to wait for a holder that is alive, or known to the batch system.
        dying: how long the ranks of a launch need to end after its first process has died.
        poll: between two observations.
    """

    stale: float = 60.0
    renew: float = 3.0
    patience: float = 5.0
    dying: float = 3.0
    poll: float = 0.2

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Times:
        """Return the durations for ``FLEET_LEASE=5min``, the time until a lease is stale.

        Raises:
            UserError: it is not a positive duration.
        """
        text = environment.get("FLEET_LEASE")
        if not text:
            return cls()
        try:
            stale = parse_duration(text)
        except ValueError as error:
            raise UserError(f"FLEET_LEASE: {error}") from None
        if stale <= 0:
            raise UserError(f"FLEET_LEASE: {text} should be a duration above zero, such as 5min")
        return cls(
            stale, min(cls.renew, stale / 5), min(cls.patience, stale), min(cls.dying, stale)
        )


@dataclass(frozen=True)
class Holder:
    """The holder of a lease.

    Attributes:
        launch: a random word, unique to the launch.
        host: host name.
        pid, started, boot, namespace: the process, its start (ticks since the boot), the boot, and
            the namespace of the process id; empty if unknown.
        system, job, restarts: the batch system, the job id, and how often it was requeued; empty
            outside a job.
        token: its fencing token; 0 in files of older versions, where it is the generation.
    """

    launch: str
    host: str
    pid: int
    started: str = ""
    boot: str = ""
    namespace: str = ""
    system: str = ""
    job: str = ""
    restarts: int = 0
    token: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (
            f", job {self.job} of {self.system}" if self.job else ""
        )

    def is_of_job(self, holder: Holder) -> bool:
        """Return True if two holders belong to one batch job."""
        return bool(self.job) and (self.system, self.job) == (holder.system, holder.job)


class Process:
    """This process, and what it can observe about other machines.

    Args:
        ask: returns whether a batch system still knows a job, by their names.
        job: batch system, id and restarts of this process's job.
    """

    def __init__(
        self,
        ask: Callable[[str, str], bool | None] = lambda system, job: None,
        job: tuple[str, str, int] = ("", "", 0),
    ) -> None:
        self._ask = ask
        self.me = Holder(
            secrets.token_hex(8),
            socket.gethostname(),
            os.getpid(),
            started(os.getpid()) or "",
            _text("/proc/sys/kernel/random/boot_id"),
            _namespace(),
            *job,
        )

    def now(self) -> float:
        """Return seconds from any origin, which advance while the process is stopped."""
        return time.monotonic()

    def has_died(self, holder: Holder) -> bool:
        """Return True if a holder is known to be dead; False if that cannot be observed."""
        if not (self.me.boot and holder.boot):
            return False
        if holder.boot == self.me.boot:
            return holder.namespace == self.me.namespace and started(holder.pid) != holder.started
        # This host was rebooted; but several hosts may be called localhost.
        return holder.host == self.me.host and not holder.host.startswith("localhost")

    def knows_job(self, holder: Holder) -> bool | None:
        """Return True if the holder's batch system still knows its job; None if unknown."""
        if holder.job:
            return self._ask(holder.system, holder.job)
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


# ---- the files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fence:
    """A launch's right to write, which each of its ranks can check.

    Attributes:
        folder: folder of the lease.
        generation: generation of the launch; 0 if it needs no lease and may always write.
        launch: its unique word.
        resource: what the right covers; empty for the folder around that of the lease.
        excess: by how much the fencing token exceeds the generation.
    """

    folder: Path
    generation: int
    launch: str
    resource: str = ""
    excess: int = 0

    @property
    def token(self) -> int:
        """The fencing token, above those of all earlier holders; 0 if it needs no lease."""
        return self.generation + self.excess

    def check(self) -> None:
        """Check that this launch holds the lease now.

        Raises:
            LeaseLost: it does not; it must end, and write nothing more.
        """
        if not self.generation:
            return
        newest = newest_generation(self.folder)
        text = read_generation(self.folder, self.generation)
        # Also look for the successor's note: an opened file is up to date even if a listing is
        # not.
        if newest > self.generation or text is None or "\ntaken" in text or self.launch not in text:
            successor = parse_lease(read_generation(self.folder, newest) or "").holder
            if newest != self.generation and successor is not None:
                by = f" by another launch ({successor})"
            else:
                by = ""
            raise LeaseLost(
                f"{self.resource or self.folder.parent} has been taken over{by}, because this "
                "launch had shown no sign of life for a while; it ends and writes nothing more, "
                "and everything that it had saved is intact"
            )


NO_FENCE = Fence(Path(), 0, "")  # of a launch that needs no lease


@dataclass(frozen=True)
class LeaseState:
    """The content of a generation's file."""

    is_free: bool
    holder: Holder | None


def parse_lease(text: str) -> LeaseState:
    """Parse a generation's file; an incomplete one has no holder, and is not free."""
    head = _HEAD.match(text)
    if head is None:
        return LeaseState(False, None)
    try:
        return LeaseState(
            head[2] == "free",
            read_record(Holder, json.loads(text[head.end() :].partition("\n")[0])),
        )
    except ValueError:
        return LeaseState(head[2] == "free", None)


def newest_generation(folder: Path) -> int:
    """Return the newest generation; 0 if there is none."""
    try:
        return max(map(int, _generations(folder)), default=0)
    except FileNotFoundError:
        return 0


def newest_token(folder: Path, floor: int = 0) -> int:
    """Return a number that no fencing token of a folder's holders exceeds.

    Args:
        folder: folder of the lease.
        floor: what the result is not below; no holder knew a larger floor.
    """
    newest = newest_generation(folder)
    for generation in range(newest, 0, -1):
        text = read_generation(folder, generation)
        if text is None:
            break
        holder = parse_lease(text).holder
        if holder is not None:
            # Each later holder, whose file a crash has torn, may have added one.
            return max(holder.token, generation, floor) + newest - generation
    return max(newest, floor)


def _generations(folder: Path) -> list[str]:
    """Return the names of the generations' files."""
    return [name for name in os.listdir(folder) if name.isascii() and name.isdecimal()]


def newest_state(folder: Path) -> LeaseState:
    """Return the content of the newest generation's file; a missing one is free."""
    generation = newest_generation(folder)
    if generation:
        return parse_lease(read_generation(folder, generation) or "")
    return LeaseState(True, None)


def is_held(folder: Path) -> bool:
    """Return True if a launch holds the lease of a folder, as far as can be observed."""
    text = newest_state(folder)
    return not text.is_free and not (text.holder is not None and Process().has_died(text.holder))


def free_dead(folder: Path, since: int) -> None:
    """Free the lease of a holder that has died, so that the next launch need not wait.

    The caller knows that all processes of the holder's launch have ended.

    Args:
        folder: folder of the lease.
        since: newest generation before that launch.
    """
    generation = newest_generation(folder)
    text = read_generation(folder, generation) if generation > since else None
    if text is None:
        return
    state = parse_lease(text)
    if not state.is_free and state.holder is not None and Process().has_died(state.holder):
        with suppress(OSError):  # then the next launch waits for some seconds
            _write_head(folder, generation, int(text[:20]) + 1, "free")


def read_generation(folder: Path, generation: int) -> str | None:
    """Return the content of a generation's file; None if there is none.

    Args:
        folder: folder of the lease.
        generation: the generation to read.
    """
    try:
        file = os.open(_file(folder, generation), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # without the stat of a file object
        return os.read(file, _MAX_BYTES).decode(errors="replace")
    finally:
        os.close(file)


def create_generation(folder: Path, generation: int, holder: Holder) -> bool:
    """Create the file of a generation; return False if it already exists.

    Args:
        folder: folder of the lease.
        generation: the generation to create.
        holder: holder of the generation.

    Raises:
        OSError: the file system refuses.
    """
    path = _file(folder, generation)
    temporary = folder / f".{holder.launch}.tmp"
    content = (_head(0, "held") + json.dumps(write_record(holder)) + "\n").encode()
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A network file system may lose the reply and repeat a successful call.
            return os.stat(temporary).st_nlink == 2
        except OSError:  # a file system without links
            return _create_exclusively(path, content)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _create_exclusively(path: Path, content: bytes) -> bool:
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def mark_taken(folder: Path, generation: int, by: Holder) -> None:
    """Append a note to a generation's file, if it exists, that another holder has taken over.

    Args:
        folder: folder of the lease.
        generation: the previous generation.
        by: the new holder.
    """
    with suppress(OSError), open(_file(folder, generation), "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(f"taken by {by}\n".encode())


def _write_head(folder: Path, generation: int, count: int, word: str) -> None:
    """Change the head of a generation's file in place; never replace the file of another holder."""
    with open(_file(folder, generation), "r+b", buffering=0) as file:
        file.write(_head(count, word).encode())
        os.fsync(file.fileno())


def _head(count: int, word: str) -> str:
    return f"{count:020d} {word}\n"


def _file(folder: Path, generation: int) -> Path:
    return folder / f"{generation:08d}"


# ---- acquire, renew, release -------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"fleet: {text}", file=sys.stderr, flush=True)


@dataclass
class _Observation:
    """What has been observed of the newest generation."""

    generation: int
    text: str
    since: float  # when it last changed
    is_alive: bool = False  # whether it has changed while it was observed
    dead_since: float | None = None  # when its process was first found dead
    is_announced: bool = False  # whether the wait was announced


class Lease:
    """The right of one launch at a time to write below a path.

    Args:
        process: this process.
        me: this holder, as others read it.
        times: durations.
        say: called once with a message if the lease must wait for another holder.
        resource: see :class:`Fence`.

    Attributes:
        fence: what other ranks check; :data:`NO_FENCE` before the lease is taken.
        took_over: True if the previous holder had not released it.
    """

    def __init__(
        self,
        process: Process,
        me: Holder,
        times: Times = Times(),  # noqa: B008 - it is frozen
        say: Callable[[str], None] = _say,
        resource: str = "",
    ) -> None:
        self._process = process
        self.me = me
        self.times = times
        self._say = say
        self._resource = resource
        self.fence = NO_FENCE
        self._error: LeaseLost | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = 0
        self.took_over = False

    def sibling(self, resource: str) -> Lease:
        """Return another lease of the same holder, which waits silently; see :class:`Fence`."""
        return Lease(self._process, self.me, self.times, lambda text: None, resource)

    def take(self, folder: Path, floor: int = 0) -> None:
        """Take the lease of a folder, and renew it in a thread from now on.

        Args:
            folder: folder for the lease only; it is created if missing.
            floor: the fencing token will be above it: that of files written with another lease, or
                before the folder was deleted.

        Raises:
            UserError: another launch holds it.
            StorageError: it cannot be written.
        """
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for pause_s in self.steps(folder, floor):
                if pause_s:
                    time.sleep(pause_s)
        self._thread = threading.Thread(target=self._renew_forever, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that the lease is still held.

        Raises:
            LeaseLost: another launch has taken it over.
        """
        if self._error is not None:
            raise self._error
        self.fence.check()

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeaseLost: another launch has taken the lease over.
            OSError: the file system refuses.
        """
        assert self.fence.generation
        self.fence.check()
        self._count += 1
        _write_head(self.fence.folder, self.fence.generation, self._count, "held")

    def release(self) -> None:
        """Release the lease, so that another launch need not wait."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.fence.generation:
            with suppress(OSError, LeaseLost):  # then the next launch waits until it is stale
                self.fence.check()
                _write_head(self.fence.folder, self.fence.generation, self._count + 1, "free")
            self.fence = NO_FENCE

    def abandon(self) -> None:
        """Leave the lease unreleased, so that the next launch takes it over as from a dead one."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.fence = NO_FENCE

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.release()
        else:
            # Ranks of this launch may still run: the next launch finds this process dead and waits.
            self._ended.set()

    def _renew_forever(self) -> None:
        while not self._ended.wait(self.times.renew):
            try:
                self.renew()
            except LeaseLost as error:
                self._error = error
                return
            except OSError:  # a slow file server: try again next time, or the lease goes stale
                continue

    # ---- the steps of acquiring ----

    def steps(self, folder: Path, floor: int = 0) -> Iterator[float]:
        """Take the lease step by step; yield the seconds to wait before the next step.

        Other processes may do anything between two steps, for any time.

        Args:
            folder: folder of the lease.
            floor: the fencing token will be above it.

        Raises:
            UserError: another launch holds it.
            OSError: it cannot be written.
        """
        began = self._process.now()
        seen = _Observation(0, "", self._process.now())
        while True:
            newest = retry_transient(partial(newest_generation, folder))
            yield 0.0
            text = retry_transient(partial(read_generation, folder, newest)) if newest else ""
            if text is None:  # an old file, deleted meanwhile
                yield self.times.poll
                continue
            yield 0.0
            seen = self._observe(seen, newest, text)
            may_create = not newest or self._may_follow(seen, parse_lease(text), began)
            generation = newest + 1
            token = newest_token(folder, floor) + 1 if may_create else 0
            me = replace(self.me, token=token)
            if may_create and create_generation(folder, generation, me):
                yield 0.0
                excess = token - generation
                self.fence = Fence(folder, generation, me.launch, self._resource, excess)
                mark_taken(folder, newest, self.me)
                yield 0.0
                if newest_generation(folder) == self.fence.generation:
                    self.took_over = bool(newest) and not parse_lease(text).is_free
                    _remove_old(folder, self.fence.generation)
                    return
                self.fence = NO_FENCE
            # Also if the next generation exists: a file server may list it only seconds later.
            yield self.times.poll

    def _observe(self, seen: _Observation, newest: int, text: str) -> _Observation:
        now = self._process.now()
        if newest != seen.generation:
            return _Observation(newest, text, now, is_announced=seen.is_announced)
        if text != seen.text:
            return replace(seen, text=text, since=now, is_alive=True)
        return seen

    def _may_follow(self, seen: _Observation, text: LeaseState, began: float) -> bool:
        """Return True if the lease may be taken from its holder now.

        Raises:
            UserError: its holder, or its job, is alive.
        """
        holder = text.holder
        now = self._process.now()
        if text.is_free:
            return True
        if holder is not None and holder.is_of_job(self.me) and holder.restarts < self.me.restarts:
            return True
        if holder is not None and self._process.has_died(holder):
            seen.dead_since = now if seen.dead_since is None else seen.dead_since
            return now - seen.dead_since >= self.times.dying
        seen.dead_since = None
        waited = now - began
        unchanged = now - seen.since
        if seen.is_alive and waited >= self.times.patience:
            raise UserError(
                f"another launch is running in this folder{_in_brackets(holder)}; wait until it "
                "ends, or choose another output"
            )
        if waited >= self.times.patience and not seen.is_announced:
            seen.is_announced = True
            by = "" if holder is None else f" by another launch ({holder})"
            self._say(
                f"the folder is held{by}; it is taken over if there is no sign of life for "
                f"{self.times.stale:.0f} s"
            )
        return unchanged >= self.times.stale and not self._is_known(holder)

    def _is_known(self, holder: Holder | None) -> bool:
        """Return False if the batch system does not know the job of an unresponsive holder.

        Raises:
            UserError: it does know the job.
        """
        if holder is None or holder.is_of_job(self.me) or not self._process.knows_job(holder):
            return False
        raise UserError(
            f"another launch is running in this folder{_in_brackets(holder)}: it has shown no sign "
            f"of life for {self.times.stale:.0f} s, but {holder.system} still knows its job; end "
            "the job, or choose another output"
        )


def _in_brackets(holder: Holder | None) -> str:
    if holder is None:
        return ""
    return f" ({holder})"


def _remove_old(folder: Path, generation: int) -> None:
    """Delete the files of old generations."""
    for name in _generations(folder):
        if int(name) <= generation - _KEPT:
            (folder / name).unlink(missing_ok=True)
