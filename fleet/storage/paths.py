"""Every file name of a run, and the one way in which its files are written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fleet.errors import StorageError
from fleet.units import format_size

# Every file above and below, what a killed launch has left of one (`.tmp`), and the runs inside `replay`.
_WRITTEN = re.compile(
    r"(replay/[^/]+/)?(\.fleet-run|\.fleet-lock|spec\.yaml|profile\.json|events\.jsonl|results\.csv|bad_samples\.csv|report\.html"
    r"|logs/rank-\d+\.log|decoded\.h5|models/[^/]+/(history\.csv|(last|previous|best)\.h5|best\.keras|failure\.json)"
    r"|jobs/[^/]+|tensorboard/[^/]+/events\.out\.tfevents\.[^/]+|(models/[^/]+/)?\.[^/]+\.tmp(\.[^/]+)?)")


@dataclass(frozen=True)
class RunPaths:
    """The files of one run.

    Args:
        root: the run's folder.
    """

    root: Path

    @property
    def decoded(self) -> Path:
        """The decoded images, where the spec asks to decode once."""
        return self.root / "decoded.h5"

    @property
    def marker(self) -> Path:
        """A file that says: FLEET wrote this folder, so FLEET may delete it."""
        return self.root / ".fleet-run"

    @property
    def lock(self) -> Path:
        """A file that rank 0 holds, so that no other launch works here at the same time."""
        return self.root / ".fleet-lock"

    @property
    def spec(self) -> Path:
        """The spec as it was given, with its defaults left out."""
        return self.root / "spec.yaml"

    @property
    def profile(self) -> Path:
        """The measured rates."""
        return self.root / "profile.json"

    @property
    def events(self) -> Path:
        """Every decision and epoch, a JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def results(self) -> Path:
        """A row a network."""
        return self.root / "results.csv"

    @property
    def report(self) -> Path:
        """The run to look at."""
        return self.root / "report.html"

    @property
    def bad_samples(self) -> Path:
        """The samples that could not be read."""
        return self.root / "bad_samples.csv"

    @property
    def jobs(self) -> Path:
        """The folder of the batch jobs; what they print is there, under names that the batch system gives."""
        return self.root / "jobs"

    @property
    def job_script(self) -> Path:
        """What a batch system was handed in."""
        return self.jobs / "job.sh"

    @property
    def stops(self) -> Path:
        """Every job, why it stopped and what came next, a JSON object a line."""
        return self.jobs / "stops.jsonl"

    @property
    def jobs_lock(self) -> Path:
        """The same for the jobs of a chain, of which each waits for the one before."""
        return self.jobs / ".lock"

    def log(self, rank: int) -> Path:
        """What one rank logs."""
        return self.root / "logs" / f"rank-{rank:03d}.log"

    @property
    def models(self) -> Path:
        """The folders of all networks."""
        return self.root / "models"

    def model(self, name: str) -> Path:
        """The folder of one network."""
        return self.models / name

    def history(self, name: str) -> Path:
        """A row an epoch."""
        return self.model(name) / "history.csv"

    def last(self, name: str) -> Path:
        """The newest checkpoint."""
        return self.model(name) / "last.h5"

    def previous(self, name: str) -> Path:
        """The checkpoint before the newest one, which takes its place where that is damaged."""
        return self.model(name) / "previous.h5"

    def all_previous(self) -> list[Path]:
        """The checkpoints before the newest ones, of all networks."""
        return list(self.models.glob("*/previous.h5"))

    def best(self, name: str) -> Path:
        """The checkpoint of the best epoch so far."""
        return self.model(name) / "best.h5"

    def exported(self, name: str) -> Path:
        """The best network, for plain Keras; written when it is final."""
        return self.model(name) / "best.keras"

    def failure(self, name: str) -> Path:
        """Why a network failed; only of those that did."""
        return self.model(name) / "failure.json"

    def tensorboard(self, name: str) -> Path:
        """TensorBoard's folder for one network."""
        return self.root / "tensorboard" / name

    def replay(self, name: str) -> Path:
        """The run that trains one network alone again."""
        return self.root / "replay" / name

    def foreign(self) -> list[Path]:
        """The files in the run's folder that FLEET did not write."""
        return sorted(path for path in self.root.rglob("*") if (path.is_symlink() or not path.is_dir())
                      and not _WRITTEN.fullmatch(path.relative_to(self.root).as_posix()))

    @property
    def segment_name(self) -> str:
        """A name for shared memory that no other run has."""
        return f"fleet-{os.getuid()}-{zlib.crc32(str(self.root.resolve()).encode()):08x}"


# What the file system says of a name rather than of itself.
_OF_THE_NAME = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP}
_ADVICE = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EROFS: "make it writable",
           errno.EACCES: "make it writable", errno.EPERM: "make it writable"}


STDOUT = Path("standard output")  # for messages; a batch log may lie on the disk that is full


@contextmanager
def storing(path: Path, wanted: int = 0, kind: type[OSError] = OSError) -> Iterator[None]:
    """Write a file inside, and say what helps where the file system refuses.

    Args:
        wanted: bytes that are to be written, where that is known.
        kind: of the errors that are meant, where files are read inside as well.

    Raises:
        StorageError: the file system refused.
    """
    try:
        yield
    except kind as error:
        raise StorageError(_explain(path, wanted, error)) from error


def is_of_the_name(error: StorageError) -> bool:
    """Whether what is wrong is the name that was asked for, and not the state of the disk."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OF_THE_NAME


def _explain(path: Path, wanted: int, error: OSError) -> str:
    # Libraries put whole stories into their errors; their number is enough.
    why = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
    sizes = [f"{format_size(wanted)} wanted"] * bool(wanted)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        sizes += [f"{format_size(free)} free" for free in _free(path)]
    shown = f" ({', '.join(sizes)})" if sizes else ""
    advice = "" if error.errno in _OF_THE_NAME else (
        f"; what was saved before is whole: {_ADVICE.get(error.errno or 0, 'mend that')}, and the same command goes on")
    return f"{path} cannot be written: {why}{shown}{advice}"


def _free(path: Path) -> list[int]:
    """Free bytes where a file should be, if the file system says so."""
    try:
        return [shutil.disk_usage(path.parent).free]
    except OSError:
        return []


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Write a file that never half exists: to a temporary name, to the disk, then renamed.

    An exception inside leaves the old file as it was.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storing(path), _vanishing(temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def replace_by(path: Path, write: Callable[[Path], None], wanted: int = 0, previous: Path | None = None) -> None:
    """The same for a library that wants a name rather than a file; the suffix is kept.

    Args:
        wanted: bytes that are to be written, where that is known.
        previous: the name that the old file gets, once the new one is whole.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    with storing(path, wanted), _vanishing(temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)


@contextmanager
def _vanishing(temporary: Path) -> Iterator[None]:
    """Leave nothing of a temporary file, as far as the file system lets us."""
    try:
        yield
    finally:
        with suppress(OSError):  # what went wrong before says more
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    with replacing(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")
