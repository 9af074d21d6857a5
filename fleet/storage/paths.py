"""Every file name of a run, and the one way in which its files are written."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

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
