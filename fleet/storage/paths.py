"""Name the files of a run, and find files in its folder that do not belong to it."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from preprocess.transient_errors import retry_transient

# all files that FLEET writes, also for each run inside `replay`, and temporary files of killed
# launches (`.tmp`)
_WRITTEN = re.compile(
    r"(replay/[^/]+/)?(\.fleet-run|\.fleet-lock|\.fleet-(jobs-)?lease/[^/]+|\.fleet-leases/[^/]+/[^/]+|spec\.yaml|profile\.json|events\.jsonl|results\.csv|ensembles\.csv|(sample|standardized|skipped)\.json|data\.npz"
    r"|bad_samples\.csv|report\.html|events/[^/]+\.jsonl|logs/([^/]+/)?rank-\d+\.log|decoded\.h5|models/[^/]+/(history\.csv|(first|last|previous)\.h5|best\.\w+|files/[^/]+|(export|failure|test|deaths)\.json|(validation|test)\.npz)"
    r"|export/(results|history)\.(csv|parquet)|track/.+|logs/([^/]+/)?track\.log|jobs/[^/]+|mailbox/[^/]+|training/[^/]+|tensorboard/[^/]+/events\.out\.tfevents\.[^/]+|(models/[^/]+/)?\.[^/]+\.tmp(\.[^/]+)?)"
)

# splits for whose samples the outputs of finished networks are saved
PARTS = ("validation", "test")


class _RunFile:
    """A file or folder of a run, by its path relative to the run's folder."""

    def __init__(self, relative_path: str) -> None:
        self._relative_path = relative_path

    def __get__(self, run: RunPaths, owner: type) -> Path:
        return run.root / self._relative_path


class _NetworkFile:
    """A file of a network, by its path relative to the folder of the network.

    It is a function from the name of the network to the path.
    """

    def __init__(self, relative_path: str) -> None:
        self._relative_path = relative_path

    def __get__(self, run: RunPaths, owner: type) -> Callable[[str], Path]:
        return lambda name: run.models / name / self._relative_path


@dataclass(frozen=True)
class RunPaths:
    """The files of one run.

    Args:
        root: the run's folder.
        launch: name of one of several concurrent launches; empty for a launch that works alone.
    """

    root: Path
    launch: str = ""

    decoded = _RunFile("decoded.h5")  # the decoded images of ``data.cache: file``
    # An empty file that marks a folder as written by FLEET, so that ``--fresh`` may delete it.
    marker = _RunFile(".fleet-run")
    # The folder of the lease (:mod:`fleet.storage.lease`) that lets one launch at a time work here.
    lease = _RunFile(".fleet-lease")
    # The folder of the leases of single networks, if several launches work at a time.
    network_leases = _RunFile(".fleet-leases")
    mailbox = _RunFile("mailbox")  # the folder of commands to the running launch
    spec = _RunFile("spec.yaml")  # the spec of the run, without defaults
    profile = _RunFile("profile.json")  # the measured rates
    results = _RunFile("results.csv")  # the table of results: one row per network
    # The scores of ensembles of the best networks: one row per way to combine them.
    ensembles = _RunFile("ensembles.csv")
    sample = _RunFile("sample.json")  # shapes and types of inputs and outputs
    # The fingerprint of the data, and how it is split (:mod:`preprocess.fingerprint`).
    data = _RunFile("data.npz")
    report = _RunFile("report.html")  # the report as an HTML page
    exports = _RunFile("export")  # the folder of the tables that were exported
    # The means and standard deviations by which networks standardize their inputs.
    standardized = _RunFile("standardized.json")
    unreadable_samples = _RunFile("bad_samples.csv")  # the samples that could not be read
    # The folder of the batch jobs: their script, their output, and why each of them stopped.
    jobs = _RunFile("jobs")
    job_script = _RunFile("jobs/job.sh")  # the script that was submitted to the batch system
    # When and why each launch of the jobs stopped, and what followed: one JSON object per line.
    stops = _RunFile("jobs/stops.jsonl")
    # How several jobs share the run: which runs are harvested, and within which limits.
    harvest = _RunFile("jobs/harvest.json")
    # Each harvest job that was submitted, cancelled, started or ended: one JSON object per line.
    harvest_log = _RunFile("jobs/harvest.jsonl")
    # An empty file that is touched regularly while the run's next jobs must wait
    # (``fleet evict``).
    eviction_marker = _RunFile("jobs/making-room")
    # A placeholder that reserves disk space for the last lines of a job, should the disk fill up.
    reserved_space = _RunFile("jobs/.last-room")
    # The folder of the lease that lets one job of a chain at a time work.
    jobs_lease = _RunFile(".fleet-jobs-lease")
    models = _RunFile("models")  # the folders of all networks
    training = _RunFile("training")  # the folder in which each rank marks the network it trains
    skipped = _RunFile("skipped.json")  # the names of the networks that launches leave out

    # Files of one network, as functions of its name:
    model = _NetworkFile("")  # the folder of one network
    history = _NetworkFile("history.csv")  # the history of a network: one row per epoch
    first = _NetworkFile("first.h5")  # the checkpoint from which a network with a parent begins
    last = _NetworkFile("last.h5")  # the newest checkpoint
    # the checkpoint before the newest one, which replaces it if that is damaged
    previous = _NetworkFile("previous.h5")
    best = _NetworkFile("best.h5")  # the checkpoint of the best epoch so far
    export_note = _NetworkFile("export.json")  # the file that records which epoch was exported
    # the test result of a finished network, if there is test data
    test_result = _NetworkFile("test.json")
    # the reason why a network failed; only failed networks have this file
    failure = _NetworkFile("failure.json")
    # the record of ranks that died while they trained a network
    deaths = _NetworkFile("deaths.json")

    def network_lease(self, name: str) -> Path:
        """Return the folder of the lease that lets one launch at a time train a network."""
        return self.network_leases / name

    @property
    def events(self) -> Path:
        """The event log of a launch: every decision and every epoch, one JSON object per line."""
        if self.launch:
            return self.root / "events" / f"{self.launch}.jsonl"
        return self.root / "events.jsonl"

    def event_logs(self) -> list[Path]:
        """Return the event logs of all launches: single launches first, then by name."""
        alone = RunPaths(self.root).events
        shared = retry_transient(lambda: sorted(self.root.glob("events/*.jsonl")))
        return [*([alone] if alone.is_file() else []), *shared]

    @property
    def track_log(self) -> Path:
        """The log of the process that writes the run for trackers."""
        return self.root / "logs" / self.launch / "track.log"

    def harvest_script(self, nodes: int) -> Path:
        """Return the script of a harvest job with a number of nodes."""
        return self.jobs / f"harvest-{nodes}.sh"

    def log(self, rank: int) -> Path:
        """Return the log of one rank."""
        return self.root / "logs" / self.launch / f"rank-{rank:03d}.log"

    def all_previous(self) -> list[Path]:
        """Return the previous checkpoints of all networks."""
        return list(self.models.glob("*/previous.h5"))

    def all_predictions(self) -> list[Path]:
        """Return the saved predictions of all networks."""
        return [path for part in PARTS for path in self.models.glob(f"*/{part}.npz")]

    def exported(self, name: str, suffix: str) -> Path:
        """Return the export of a network's best epoch, in its engine's format."""
        return self.model(name) / f"best{suffix}"

    def predictions(self, name: str, part: str) -> Path:
        """Return the outputs of a finished network for a split: ``validation`` or ``test``."""
        return self.model(name) / f"{part}.npz"

    def tensorboard(self, name: str) -> Path:
        """Return TensorBoard's folder for one network."""
        return self.root / "tensorboard" / name

    def replay(self, name: str) -> Path:
        """Return the folder of the run that trains one network again, alone (``--replay``)."""
        return self.root / "replay" / name

    def foreign_files(self) -> list[Path]:
        """Return the files in the run's folder that FLEET did not write."""
        return sorted(
            path
            for path in self.root.rglob("*")
            if (path.is_symlink() or not path.is_dir())
            and not _WRITTEN.fullmatch(path.relative_to(self.root).as_posix())
        )

    @property
    def segment_name(self) -> str:
        """A name for shared memory, unique among runs and concurrent launches."""
        if self.launch:
            identity = f"{self.root.resolve()}\0{self.launch}"
        else:
            identity = str(self.root.resolve())
        return f"fleet-{os.getuid()}-{zlib.crc32(os.fsencode(identity)):08x}"
