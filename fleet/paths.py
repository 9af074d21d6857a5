"""Every file name of a run, and the one way in which its files are written."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# Every file above and below, what a killed launch has left of one (`.tmp`), and the runs inside `replay`.
_WRITTEN = re.compile(
    r"(replay/[^/]+/)?(\.fleet-run|spec\.yaml|profile\.json|events\.jsonl|results\.csv|bad_samples\.csv|report\.html"
    r"|logs/rank-\d+\.log|models/[^/]+/(history\.csv|last\.h5|best\.h5|best\.keras|failure\.json)"
    r"|jobs/[^/]+|tensorboard/[^/]+/events\.out\.tfevents\.[^/]+|(models/[^/]+/)?\.[^/]+\.tmp(\.[^/]+)?)")


@dataclass(frozen=True)
class RunPaths:
    """The files of one run.

    Args:
        root: the run's folder.
    """

    root: Path

    @property
    def marker(self) -> Path:
        """A file that says: FLEET wrote this folder, so FLEET may delete it."""
        return self.root / ".fleet-run"

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

    def log(self, rank: int) -> Path:
        """What one rank logs."""
        return self.root / "logs" / f"rank-{rank:03d}.log"

    def model(self, name: str) -> Path:
        """The folder of one network."""
        return self.root / "models" / name

    def history(self, name: str) -> Path:
        """A row an epoch."""
        return self.model(name) / "history.csv"

    def last(self, name: str) -> Path:
        """The newest checkpoint."""
        return self.model(name) / "last.h5"

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


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Write a file that never half exists: to a temporary name, to the disk, then renamed.

    An exception inside leaves the old file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_by(path: Path, write: Callable[[Path], None]) -> None:
    """The same for a library that wants a name rather than a file; the suffix is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        write(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    with replacing(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")
