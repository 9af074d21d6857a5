"""A simulated file system over a real folder in memory.

The folder of a run is shared by all nodes; ``/dev/shm`` and ``/tmp`` belong to a node. Contents are
real files, so libraries can read them. What a process has written survives its death. A crash of
its node may lose or tear whatever it has not synced, and a crash of the storage also undoes changes
of folders that have not reached the disk, in any order. Calls may be slow or fail, the folder may
have a quota, and a listing on another node may lag behind: it lacks new names, and has old ones.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import os
import posixpath
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulate import kernel as k

WRITEBACK_S = 30.0  # after this time the kernel has written contents to the disk
COMMIT_S = 5.0  # after this time a change of a folder is on the disk without a sync
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_TAKE_SPACE = {"write", "open", "mkdir", "link", "fsync"}
_LOCAL = ("/dev/shm", "/tmp", "/proc/driver")
# Code may lie there, too.
_CODE = (f"{Path(__file__).parents[2]}/", f"{sys.prefix}/", f"{sys.base_prefix}/")

_real: dict[str, Any] = {
    name: getattr(os, name)
    for name in (
        "open",
        "close",
        "write",
        "fsync",
        "replace",
        "rename",
        "link",
        "unlink",
        "remove",
        "mkdir",
        "rmdir",
        "listdir",
        "scandir",
        "stat",
        "lstat",
        "utime",
        "statvfs",
    )
}
real_open = io.open
_real_flock = fcntl.flock


@dataclass
class Faults:
    """How a disk misbehaves.

    Attributes:
        errors: error numbers and their probabilities, for each call that changes something.
        reads: the same for calls that read.
        slow: probability that a call is slow.
        slow_s: longest duration of a slow call.
        lag_s: longest time until another node's listing shows a new name.
        until_s: errors end at this time.
        fills: (from, to) times at which the disk is full.
        quotas: (from, to, bytes): how many bytes more a run may take in this time.
        refused: a call that always fails; empty for none.
    """

    errors: dict[int, float] = field(default_factory=dict)
    reads: dict[int, float] = field(default_factory=dict)
    slow: float = 0.0
    slow_s: float = 0.0
    lag_s: float = 0.0
    until_s: float = 0.0
    fills: Sequence[tuple[float, float]] = ()
    quotas: Sequence[tuple[float, float, int]] = ()
    refused: str = ""


@dataclass(eq=False)
class _File:
    """What is known of a file's content on the disk; None if it was never synced."""

    synced: bytes | None
    written_s: float = 0.0
    nodes: set[k.Node] = field(default_factory=set)


@dataclass(eq=False)
class _Change:
    """A change of folders that a crash of the storage can undo."""

    at_s: float
    entries: tuple[str, ...]
    undo: Callable[[], object]


class Disk:
    """The file systems of a cluster.

    Args:
        root: a folder in memory, for everything.

    Attributes:
        watch: is called with each call that a process has completed: its name, the path, and what
            was written.
        on_crash: is called after each crash of a node or of the storage.
    """

    def __init__(self, kernel: k.Kernel, root: Path, faults: Faults) -> None:
        self.kernel = kernel
        self.root = root
        self.shared = root / "shared"
        self.faults = faults
        self._files: dict[int, _File] = {}
        self._changes: deque[_Change] = deque()
        self._new: dict[str, tuple[float, k.Node]] = {}
        self._removed: dict[str, dict[str, tuple[float, k.Node]]] = {}
        self._limits: dict[float, int] = {}
        self._backups = 0
        self.watch: Callable[[str, str, bytes], None] | None = None
        self.on_crash: Callable[[], None] = lambda: None
        shutil.rmtree(root, ignore_errors=True)
        self.shared.mkdir(parents=True)
        (root / "backups").mkdir()

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.root, ignore_errors=True)

    # ---- paths ----

    def real_path(self, path: Any, folder: int | None = None) -> str | None:
        """Return the real path of a simulated file; None if it is not simulated."""
        if isinstance(path, int):
            return self.path_of(path)
        text = os.fspath(path)
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        if folder is not None and not text.startswith("/"):
            base = self.path_of(folder)
            return None if base is None else posixpath.join(base, text)
        if not text.startswith("/"):
            return None
        text = posixpath.normpath(text)
        root = str(self.root)
        if text == root or text.startswith(root + "/"):
            return text
        if text.startswith(_CODE):
            return None
        process = self.kernel.process
        for local in _LOCAL:
            if text == local or text.startswith(local + "/"):
                assert process is not None
                base = f"{root}/{process.node.name}-{process.node.boot}{local}"
                os.makedirs(base, exist_ok=True) if not os.path.isdir(base) else None
                return base + text[len(local) :]
        return None

    def path_of(self, descriptor: int) -> str | None:
        """Return the path of an open file below the root."""
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return None
        return path if path.startswith(str(self.root)) else None

    def _is_shared(self, path: str) -> bool:
        return path.startswith(str(self.shared))

    # ---- faults ----

    def before(self, call: str, path: str, changes: bool, size: int = 0) -> None:
        """Let a call take time, and perhaps fail.

        Args:
            call: what it does.
            path: its file.
            changes: whether it changes something.
            size: bytes that it writes.

        Raises:
            OSError: it fails.
        """
        kernel = self.kernel
        kernel.check_alive()
        if not self._is_shared(path):
            return
        faults = self.faults
        random = kernel.random
        if changes:
            kernel.reach("write")
        if faults.slow and random.random() < faults.slow:
            kernel.counts["slow call"] += 1
            slowness = kernel.process.slowness  # which does not slow the disk down further
            kernel.sleep(random.uniform(0, faults.slow_s) / slowness, f"a slow {call}")
        else:
            kernel.pause()
        is_full = any(begin <= kernel.now < end for begin, end in faults.fills)
        if changes and is_full and call in _TAKE_SPACE:
            kernel.counts["ENOSPC"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if changes and call in _TAKE_SPACE and self._exceeds_quota(size):
            kernel.counts["EDQUOT by quota"] += 1
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        if call == faults.refused:
            kernel.counts["refused call"] += 1
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        if kernel.now >= faults.until_s:
            return
        for number, probability in (faults.errors if changes else faults.reads).items():
            if number in _NO_SPACE and call not in _TAKE_SPACE:
                continue
            if random.random() < probability:
                kernel.counts[errno.errorcode[number]] += 1
                kernel.note(repr(kernel.process), f"{call} {path}: {errno.errorcode[number]}")
                raise OSError(number, os.strerror(number), path)

    def _exceeds_quota(self, size: int) -> bool:
        """Return True if the files take more than a quota allows; deleting some helps."""
        now = self.kernel.now
        for begin, end, spare in self.faults.quotas:
            if begin <= now < end:
                used = sum(
                    _real["lstat"](f"{folder}/{name}").st_size + 4096
                    for folder, folders, names in os.walk(self.shared)
                    for name in names
                )
                limit = self._limits.setdefault(begin, used + spare)
                if used + max(size, 1) > limit:
                    return True
        return False

    def did(self, call: str, path: str, data: bytes = b"") -> None:
        """Report a completed call."""
        if self.watch is not None and self._is_shared(path):
            self.watch(call, path, data)

    # ---- contents ----

    def opened_for_writing(self, descriptor: int, is_new: bool) -> None:
        """Record that a file may differ from what is on the disk."""
        number = os.fstat(descriptor).st_ino
        file = self._files.get(number)
        if file is None or is_new:
            synced = None if is_new else Path(f"/proc/self/fd/{descriptor}").read_bytes()
            file = self._files[number] = _File(synced)
        assert self.kernel.process is not None
        file.nodes.add(self.kernel.process.node)
        file.written_s = self.kernel.now

    def written(self, descriptor: int) -> None:
        """Record that a file's content has changed."""
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is None:
            return
        if self.kernel.now > file.written_s + WRITEBACK_S and file.nodes:
            file.synced = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        file.written_s = self.kernel.now
        assert self.kernel.process is not None
        file.nodes.add(self.kernel.process.node)

    def synced(self, descriptor: int) -> None:
        """Record that a file's content is on the disk."""
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is not None:
            file.synced = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            file.nodes.clear()

    # ---- folders ----

    def changed(self, entries: tuple[str, ...], undo: Callable[[], object]) -> None:
        """Record a change of folders."""
        if not all(map(self._is_shared, entries)):
            return
        now = self.kernel.now
        while self._changes and self._changes[0].at_s <= now - COMMIT_S:
            self._changes.popleft()
        self._changes.append(_Change(now, entries, undo))
        process = self.kernel.process
        if process is not None:
            for entry in entries:
                self._new[entry] = (now, process.node)

    def removed(self, path: str) -> None:
        """Record that a name was removed, which listings on other nodes may still show."""
        process = self.kernel.process
        if process is not None and self.faults.lag_s:
            folder, name = posixpath.split(path)
            self._removed.setdefault(folder, {})[name] = (self.kernel.now, process.node)

    def still_listed(self, folder: str, names: Sequence[str]) -> list[str]:
        """Return names that were removed from a folder and that this node still lists."""
        process = self.kernel.process
        removed = self._removed.get(folder)
        if not removed or process is None:
            return []
        stale = [
            name
            for name, (at_s, node) in removed.items()
            if node is not process.node
            and name not in names
            and self.kernel.now < at_s + self._lag_s(f"{folder}/{name}")
        ]
        self.kernel.counts["stale name"] += len(stale)
        return stale

    def _lag_s(self, path: str) -> float:
        """Return how long another node's listing of a name lags behind."""
        name = path.removeprefix(str(self.root))  # the same in whatever folder a seed is replayed
        return (zlib.crc32(name.encode()) % 1000) / 1000 * self.faults.lag_s

    def backup(self, path: str) -> str | None:
        """Link a file that is about to lose its name; None if there is none."""
        self._backups += 1
        link = f"{self.root}/backups/{self._backups}"
        try:
            _real["link"](path, link)
        except OSError:
            return None
        return link

    def is_listed(self, path: str) -> bool:
        """Return False if this node does not list a new name yet."""
        new = self._new.get(path)
        process = self.kernel.process
        if new is None or process is None or not self.faults.lag_s:
            return True
        at_s, node = new
        if node is process.node:
            return True
        if self.kernel.now < at_s + self._lag_s(path):
            self.kernel.counts["unlisted name"] += 1
            return False
        return True

    def synced_folder(self, path: str) -> None:
        """Record that the names in a folder are on the disk."""
        self._changes = deque(
            change
            for change in self._changes
            if not any(posixpath.dirname(entry) == path for entry in change.entries)
        )

    # ---- crashes ----

    def crash_node(self, node: k.Node) -> None:
        """Lose or tear what a node has written and not synced; all its processes have ended."""
        self._lose(lambda file: node in file.nodes)
        self.on_crash()

    def crash_storage(self) -> None:
        """Lose what was not synced by anyone, and undo changes of folders."""
        random = self.kernel.random
        now = self.kernel.now
        changed_later: set[str] = set()
        for change in reversed(self._changes):
            undoes = change.at_s > now - COMMIT_S and random.random() < 0.5
            if undoes and changed_later.isdisjoint(change.entries):
                with contextlib.suppress(OSError):
                    change.undo()
                self.kernel.counts["undone change"] += 1
            else:
                changed_later.update(change.entries)
        self._changes.clear()
        self._lose(lambda file: bool(file.nodes))
        self.on_crash()

    def _lose(self, is_lost: Callable[[_File], bool]) -> None:
        random = self.kernel.random
        recent_s = self.kernel.now - WRITEBACK_S
        unsynced = {
            number: file
            for number, file in self._files.items()
            if is_lost(file) and file.written_s >= recent_s
        }
        if not unsynced:
            return
        for folder, _, names in os.walk(self.shared):
            for name in sorted(names):
                path = f"{folder}/{name}"
                file = unsynced.get(_real["stat"](path).st_ino)
                if file is None:
                    continue
                content = Path(path).read_bytes()
                before = file.synced or b""
                choice = random.randrange(3)
                if choice == 0 and file.synced is not None:
                    content = before
                elif choice <= 1:
                    shortest = len(before) if content.startswith(before) else 0
                    content = content[: random.randint(shortest, len(content))]
                self.kernel.counts["lost or torn file"] += 1
                self.kernel.note("disk", f"crash: {path}: outcome {choice}, {len(content)} bytes")
                Path(path).write_bytes(content)
                file.synced = content
                file.nodes.clear()


DISK: Disk | None = None


def _active(path: Any, folder: int | None = None) -> tuple[Disk, str] | None:
    """Return the disk and the real path, if a simulated process uses a simulated file."""
    if DISK is None or k.active() is None:
        return None
    real_path = DISK.real_path(path, folder)
    return None if real_path is None else (DISK, real_path)


class SimulatedFile(io.FileIO):
    """A file whose calls may fail, and that writes nothing after its process has ended."""

    def __init__(self, descriptor: int, mode: str, path: str, disk: Disk) -> None:
        super().__init__(descriptor, mode, closefd=False)
        self._path = path
        self._disk = disk
        assert disk.kernel.process is not None
        self._process = disk.kernel.process
        self._is_closed = False
        self.name = path

    def write(self, data: Any) -> int:
        if not self._process.is_alive:
            return len(memoryview(data).cast("B"))  # flushed by the garbage collector
        if k.active() is not None:
            try:
                self._disk.before("write", self._path, True, memoryview(data).nbytes)
            except OSError as error:
                view = memoryview(data).cast("B")
                if error.errno in _NO_SPACE:  # a part fits; the next call fails
                    data = view[: self._disk.kernel.random.randrange(max(1, len(view)))]
                if error.errno not in _NO_SPACE or not data:
                    raise
            if self._disk._is_shared(self._path):
                self._disk.written(self.fileno())
        written = super().write(data) or 0
        if k.active() is not None:
            self._disk.did("write", self._path, bytes(data))
        return written

    def readinto(self, buffer: Any) -> int:
        if k.active() is not None:
            self._disk.before("read", self._path, False)
        return super().readinto(buffer) or 0

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        descriptor = super().fileno()
        super().close()
        if descriptor in self._process.descriptors:
            self._process.descriptors.discard(descriptor)
            _real["close"](descriptor)

    def __del__(self) -> None:
        self.close()


_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


def _open(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    active = _active(file)
    if active is None:
        return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    disk, path = active
    kind = next(letter for letter in mode if letter in "rwax")
    updates = "+" in mode
    raw_mode = kind + ("+" if updates else "")
    if isinstance(file, int):
        descriptor = file
    else:
        flags = _FLAGS[kind] | os.O_CLOEXEC
        if updates:
            flags = flags & ~os.O_WRONLY | os.O_RDWR
        descriptor = opener(file, flags) if opener else _os_open(file, flags, 0o666)
    raw = SimulatedFile(
        descriptor, "r+" if kind in "wax" and updates else _plain(raw_mode), path, disk
    )
    if kind == "a":
        raw.seek(0, os.SEEK_END)
    binary = "b" in mode
    if buffering == 0:
        return raw
    buffer: Any
    if updates:
        buffer = io.BufferedRandom(raw)
    elif kind == "r":
        buffer = io.BufferedReader(raw)
    else:
        buffer = io.BufferedWriter(raw)
    if binary:
        return buffer
    text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, buffering == 1)
    text.mode = mode
    return text


def _plain(mode: str) -> str:
    """Return the mode for a descriptor that is open already: never create or truncate again."""
    return {"r": "r", "r+": "r+", "w": "w", "a": "a", "x": "w"}[mode]


def _os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    active = _active(path, dir_fd)
    if active is None:
        descriptor = _real["open"](path, flags, mode, dir_fd=dir_fd)
        kernel = k.active()
        if kernel is not None:
            kernel.process.descriptors.add(descriptor)
        return descriptor
    disk, real_path = active
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    disk.before("open", real_path, writes and bool(flags & os.O_CREAT))
    is_new = bool(flags & os.O_CREAT) and not os.path.lexists(real_path)
    descriptor = _real["open"](real_path, flags, mode)
    disk.kernel.process.descriptors.add(descriptor)
    if is_new:
        disk.changed((real_path,), lambda: _real["unlink"](real_path))
        disk.did("create", real_path)
    if writes and disk._is_shared(real_path):
        disk.opened_for_writing(descriptor, is_new)
    return descriptor


def _os_close(descriptor: int) -> None:
    kernel = k.active()
    if kernel is not None:
        process = kernel.process
        if not process.is_alive and descriptor not in process.descriptors:
            raise k.Killed
        process.descriptors.discard(descriptor)
    _real["close"](descriptor)


def _os_write(descriptor: int, data: Any) -> int:
    active = _active(descriptor)
    if active is not None:
        active[0].before("write", active[1], True, memoryview(data).nbytes)
    return _real["write"](descriptor, data)


def _fsync(descriptor: Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    active = _active(number)
    if active is None:
        if k.active() is None:
            _real["fsync"](number)
        return
    disk, real_path = active
    disk.before("fsync", real_path, True)
    if os.path.isdir(real_path):
        disk.synced_folder(real_path)
    else:
        disk.synced(number)


def _rename(
    source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
) -> None:
    active = _active(source, src_dir_fd)
    target_active = _active(target, dst_dir_fd)
    if active is None or target_active is None:
        _real["replace"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        return
    disk, old = active
    new = target_active[1]
    disk.before("rename", new, True)
    if not os.path.lexists(old):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
    backup = disk.backup(new)
    _real["replace"](old, new)

    def undo() -> None:
        _real["rename"](new, old)
        if backup is not None:
            _real["rename"](backup, new)

    disk.changed((old, new), undo)
    disk.removed(old)
    disk.did("rename", old)
    disk.did("rename", new)


def _link(source: Any, target: Any, **options: Any) -> None:
    active = _active(target)
    if active is None:
        _real["link"](source, target, **options)
        return
    disk, new = active
    disk.before("link", new, True)
    _real["link"](disk.real_path(source), new)
    disk.changed((new,), lambda: _real["unlink"](new))
    disk.did("link", new)


def _unlink(path: Any, *, dir_fd: int | None = None) -> None:
    active = _active(path, dir_fd)
    if active is None:
        _real["unlink"](path, dir_fd=dir_fd)
        return
    disk, real_path = active
    disk.before("unlink", real_path, True)
    backup = disk.backup(real_path)
    _real["unlink"](real_path)
    if backup is not None:
        disk.changed((real_path,), lambda: _real["rename"](backup, real_path))
    disk.removed(real_path)
    disk.did("unlink", real_path)


def _mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    active = _active(path, dir_fd)
    if active is None:
        _real["mkdir"](path, mode, dir_fd=dir_fd)
        return
    disk, real_path = active
    disk.before("mkdir", real_path, True)
    _real["mkdir"](real_path, mode)
    disk.changed((real_path,), lambda: _real["rmdir"](real_path))
    disk.did("mkdir", real_path)


def _rmdir(path: Any, *, dir_fd: int | None = None) -> None:
    active = _active(path, dir_fd)
    if active is None:
        _real["rmdir"](path, dir_fd=dir_fd)
        return
    disk, real_path = active
    disk.before("rmdir", real_path, True)
    _real["rmdir"](real_path)
    disk.changed((real_path,), lambda: _real["mkdir"](real_path))
    disk.did("rmdir", real_path)


def _listdir(path: Any = ".") -> list[str]:
    active = _active(path)
    if active is None:
        return _real["listdir"](path)
    disk, real_path = active
    disk.before("list", real_path, False)
    disk.did("list", real_path)
    names = [
        name
        for name in sorted(_real["listdir"](real_path))
        if disk.is_listed(f"{real_path}/{name}")
    ]
    names += disk.still_listed(real_path, names)
    disk.kernel.random.shuffle(names)
    return names


class _StaleEntry:
    """An entry of a folder that another node has just removed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = posixpath.basename(path)

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return False

    is_symlink = is_dir

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path)


class _Entries:
    """What ``os.scandir`` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _scandir(path: Any = ".") -> Any:
    active = _active(path)
    if active is None:
        return _real["scandir"](path)
    disk, real_path = active
    disk.before("list", real_path, False)
    with _real["scandir"](path if isinstance(path, int) else real_path) as entries:
        listed: list[Any] = [
            entry for entry in entries if disk.is_listed(f"{real_path}/{entry.name}")
        ]
    names = [entry.name for entry in listed]
    listed += map(
        _StaleEntry, (f"{real_path}/{name}" for name in disk.still_listed(real_path, names))
    )
    listed.sort(key=lambda entry: entry.name)
    disk.kernel.random.shuffle(listed)
    return _Entries(listed)


def _stat(name: str) -> Callable[..., Any]:
    original = _real[name]

    def stat(path: Any, *, dir_fd: int | None = None, **options: Any) -> Any:
        active = None if isinstance(path, int) else _active(path, dir_fd)
        if active is None:
            return original(path, dir_fd=dir_fd, **options)
        active[0].kernel.check_alive()
        return original(active[1], **options)

    return stat


def _statvfs(path: Any) -> Any:
    if k.active() is None:
        return _real["statvfs"](path)
    return os.statvfs_result((4096, 4096, 2**24, 2**24, 2**24, 2**20, 2**20, 2**20, 0, 255))


def _utime(path: Any, times: Any = None, *, ns: Any = None, **options: Any) -> None:
    active = None if isinstance(path, int) else _active(path)
    if active is None:
        if ns is not None:
            _real["utime"](path, ns=ns, **options)
        else:
            _real["utime"](path, times, **options)
        return
    disk, real_path = active
    disk.before("utime", real_path, True)
    if times is None and ns is None:
        now = k.WALL_S + disk.kernel.now
        times = (now, now)
    if ns is not None:
        _real["utime"](real_path, ns=ns)
    else:
        _real["utime"](real_path, times)


def _flock(descriptor: Any, operation: int) -> None:
    kernel = k.active()
    if kernel is None:
        _real_flock(descriptor, operation)
        return
    if operation & fcntl.LOCK_UN:
        _real_flock(descriptor, operation)
        return
    while True:
        try:
            _real_flock(descriptor, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
        kernel.sleep(kernel.random.uniform(1e-4, 2e-3), "a file lock")


def install() -> None:
    """Replace the functions of the standard library; before FLEET is imported."""
    builtins.open = io.open = _open
    os.open = _os_open
    os.close = _os_close
    os.write = _os_write
    os.fsync = os.fdatasync = _fsync
    os.replace = os.rename = _rename
    os.link = _link
    os.unlink = os.remove = _unlink
    os.mkdir = _mkdir
    os.rmdir = _rmdir
    os.listdir = _listdir
    os.scandir = _scandir
    os.stat = _stat("stat")
    os.lstat = _stat("lstat")
    os.statvfs = _statvfs
    os.utime = _utime
    fcntl.flock = _flock


@contextlib.contextmanager
def mounted(disk: Disk) -> Iterator[Disk]:
    """Let the replaced functions use a disk."""
    global DISK
    DISK = disk
    try:
        yield disk
    finally:
        DISK = None
        disk.remove()
