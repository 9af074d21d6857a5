"""Run a small ensemble with one fault at a random moment, and repeat the command until all is done.

The seed of a case decides everything except how fast the machine is.
"""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from fleet.api import mpirun
from fleet.domain.events import EpochEnded, GroupFailed, GroupStarted, LaunchEnded
from fleet.errors import CheckpointError
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import find_newest, read_state
from fleet.storage.event_log import events_of, read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.places import ON_ONE_MACHINE, ROOT

KILLS = ("trainer, outlived", "trainer", "preprocessor", "coordinator", "all ranks")
FAULTS = (*KILLS, "stopped for 3 s", "disk full", "checkpoint damaged", "source file gone")
TENSORFLOW_FAULTS = (
    "trainer, outlived",
    "trainer",
    "all ranks",
    "stopped for 3 s",
    "checkpoint damaged",
)
MOST_LAUNCHES = 6
SAMPLES, CLASSES, DISK_BYTES = 120, 3, 2**22
TRAINED = 108  # of them; a tenth is for validation


class InvariantViolated(Exception):
    """An invariant does not hold, or a launch hangs."""


@dataclass(frozen=True)
class Case:
    """One case: an ensemble and a fault.

    Attributes:
        after_epochs: epochs of all networks before the fault.
        moment_s: seconds from then to the fault.
        outlives: whether ranks are started under ULFM.
    """

    seed: int
    engine: str
    fault: str
    trainers: int
    preprocessors: int
    policy: str
    every: str | None
    epochs: int
    after_epochs: int
    moment_s: float
    outlives: bool
    patience_s: float

    @classmethod
    def draw(cls, seed, engine="numpy", fault=None):
        """Draw a case from its seed; every ninth case has the same fault."""
        rng = random.Random(seed)
        is_numpy = engine == "numpy"
        kinds = FAULTS if is_numpy else TENSORFLOW_FAULTS
        fault = fault or kinds[seed % len(kinds)]
        trainers = rng.choice((2, 3))
        if fault == "preprocessor":
            preprocessors = 2
        elif is_numpy:
            preprocessors = rng.choice((1, 2))
        else:
            preprocessors = 1
        return cls(
            seed,
            engine,
            fault,
            trainers=trainers,
            preprocessors=preprocessors,
            policy=rng.choice(("global", "adaptive", "local")),
            every=rng.choice((None, "0.2s")),
            epochs=10,
            after_epochs=rng.randrange(24),
            moment_s=rng.uniform(0, 0.15),
            outlives=fault == "trainer, outlived" or (fault != "trainer" and rng.random() < 0.5),
            patience_s=60 if is_numpy else 180,
        )

    @property
    def ranks(self):
        return self.trainers + self.preprocessors


@dataclass
class Outcome:
    """The outcome of a case.

    Attributes:
        statuses: exit statuses of all launches, in order.
        twice: number of samples that were trained more than once.
        pause_s: seconds from a rank's death to the next step of its group; None if no group
            outlived a rank.
        violation: the invariant that does not hold; empty if the case passed.
    """

    case: Case
    statuses: list[int] = field(default_factory=list)
    twice: int = 0
    pause_s: float | None = None
    failed: dict[str, str] = field(default_factory=dict)
    violation: str = ""
    seconds: float = 0.0

    @property
    def outlived(self):
        """Return True if the launch with the fault ran to its end."""
        return len(self.statuses) == 1


class Trial:
    """Runs one case in a separate folder."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.random = random.Random(-case.seed)
        self.output = folder / "run"
        self.paths = RunPaths(self.output)
        self.steps = folder / "steps"
        self.outcome = Outcome(case)
        self._undo = []
        self._fault_time = None  # wall-clock time
        self._killed = ()  # ranks

    def run(self):
        """Run the case and return its outcome, including any violated invariant."""
        began = time.monotonic()
        self._write_images()
        if self.case.fault == "disk full":
            self.output.mkdir()
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", self.output],
                check=True,
            )
        try:
            self._write_spec()
            self._launch(self._inject_fault)
            while not self._is_over():
                if len(self.outcome.statuses) == MOST_LAUNCHES:
                    raise InvariantViolated(
                        f"not done after {MOST_LAUNCHES} launches: {self.outcome.statuses}"
                    )
                self._launch()
            self._check_results()
            self._account()
            for undo in self._undo:
                undo()
            self._check_replay()
        except InvariantViolated as error:
            self.outcome.violation = str(error)
        finally:
            if self.case.fault == "disk full":
                subprocess.run(["umount", "-l", self.output], check=True)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # ---- the ensemble ----

    def _write_images(self):
        pixels = np.random.default_rng(self.case.seed)
        for number in range(SAMPLES):
            image = pixels.integers(0, 100, (6, 6, 3), np.uint8)
            # Two bright rows show the class.
            image[2 * (number % CLASSES) : 2 * (number % CLASSES) + 2] += 100
            path = self.folder / "images" / f"class-{number % CLASSES}" / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)

    def _write_spec(self):
        case = self.case
        if case.engine == "numpy":
            model = {"family": "softmax"}
        else:
            model = {"family": "cnn", "args": {"filters": [4], "dense": [8], "norm": "none"}}
        models = [
            {**model, "name": "pair", "gpus": 2, "train": {"batch": {"size": 7}}},
            {**model, "name": "one"},
            {**model, "name": "two"},
        ]
        rates = {
            "samples_per_epoch": SAMPLES,
            "gpus_per_node": case.trainers,
            "models": [
                {"name": "pair", "rates": [10.0, 19.0]},
                {"name": "one", "rates": [20.0]},
                {"name": "two", "rates": [19.0]},
            ],
        }
        (self.folder / "rates.json").write_text(json.dumps(rates))
        schedule = {"policy": case.policy}
        # One case in four measures its rates, before or during training.
        if case.seed % 4 or case.engine == "keras":
            schedule["rates"] = str(self.folder / "rates.json")
        spec = {
            "name": "chaos",
            "seed": case.seed,
            "output": str(self.output),
            "data": {
                "source": "image_folder",
                "path": str(self.folder / "images"),
                "validation": 0.1,
                "max_unreadable": "10%",
                "transforms": [
                    "decode",
                    "tests.chaos.sources:linger",
                    {"flip": {"horizontal": True}},
                    {"scale": {"mean": 0.5, "std": 0.5}},
                ],
            },
            "models": models,
            "schedule": schedule,
            "profile": {"when": "offline" if case.seed % 8 else "online"},
            "checkpoint": {"every": case.every} if case.every else {},
            "train": {
                "batch": {"size": 16},
                "stopping": {"max_epochs": case.epochs},
                "optimizer": {"name": "sgd", "learning_rate": 0.02, "momentum": 0.5},
            },
            "resources": {"engine": case.engine, "preprocessors": case.preprocessors},
        }
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(spec))

    # ---- launches ----

    def _start(self, ranks, *arguments, program=("-m", "tests.chaos.job"), outlives=False):
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OMPI_", "PMIX_", "PRTE_"))
        }
        environment = {
            **plain,
            **ON_ONE_MACHINE,
            "TMPDIR": str(self.folder),  # see tests/conftest.py
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "CHAOS_STEPS": str(self.steps),
        }
        with open(self.folder / "output.txt", "ab") as output:
            return subprocess.Popen(
                [*mpirun(ranks, outlives), *program, str(self.folder / "spec.yaml"), *arguments],
                env=environment,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _launch(self, inject=None):
        """Start a launch, inject the fault, and wait for its end; fail if it shows no progress."""
        process = self._start(self.case.ranks, outlives=self.case.outlives)
        sizes, seen, inject_at = None, time.monotonic(), None
        while process.poll() is None:
            time.sleep(0.01)
            now = time.monotonic()
            previous = sizes
            sizes = [
                path.stat().st_size if path.exists() else 0
                for path in (self.paths.events, self.steps, self.folder / "output.txt")
            ]
            if sizes != previous:
                seen = now
            if now - seen > self.case.patience_s:
                self._kill(_ranks_of(process).values())
                process.kill()
                raise InvariantViolated(f"no event for {self.case.patience_s} s")
            if inject and inject_at is None and self._is_fault_due():
                inject_at = now + self.case.moment_s
            if inject and inject_at is not None and now >= inject_at:
                inject(process)
                inject = None
        self.outcome.statuses.append(process.returncode)
        self._check_files()
        for undo in self._undo:
            if self.case.fault == "disk full":
                undo()

    def _is_over(self):
        """Return True if all networks are done: mpirun may end with 0 although all ranks died."""
        log = list(read_events(self.paths.events)) if self.paths.events.exists() else []
        return (
            self.outcome.statuses[-1] in (0, 3)
            and bool(log)
            and isinstance(log[-1].event, LaunchEnded)
        )

    def _is_fault_due(self):
        """Return True once enough epochs have been trained."""
        epochs = events_of(self.paths.events, EpochEnded)
        return (
            bool(events_of(self.paths.events, GroupStarted))
            and len(epochs) >= self.case.after_epochs
        )

    # ---- faults ----

    def _inject_fault(self, process):
        ranks = _ranks_of(process)
        case, fault = self.case, self.case.fault
        trainers = [rank for rank in ranks if rank >= case.preprocessors]
        self._fault_time = time.time()
        if fault in ("trainer", "trainer, outlived"):
            self._killed = (self.random.choice(trainers),) if trainers else ()
            self._kill(ranks[rank] for rank in self._killed)
        elif fault == "preprocessor":
            self._kill([ranks[case.preprocessors - 1]] if case.preprocessors - 1 in ranks else [])
        elif fault == "coordinator":
            self._kill([ranks[0]] if 0 in ranks else [])
        elif fault == "all ranks":
            self._kill(ranks.values())
        elif fault == "stopped for 3 s":
            self._stop(self.random.choice(list(ranks.values()))) if ranks else None
        elif fault == "disk full":
            self._fill_disk()
        elif fault == "checkpoint damaged":
            self._kill(ranks.values())
            process.wait()
            self._damage()
        elif fault == "source file gone":
            self._remove_image()

    @staticmethod
    def _kill(pids):
        for pid in list(pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended by itself
                continue

    @staticmethod
    def _stop(pid):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)

    def _fill_disk(self):
        ballast = self.output / "logs" / "ballast"
        with suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self._undo = [lambda: ballast.unlink(missing_ok=True)]

    def _damage(self):
        files = sorted(self.paths.root.glob("models/*/last.h5"))
        if files:
            path = self.random.choice(files)
            content = bytearray(path.read_bytes())
            for _ in range(8):
                content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
            path.write_bytes(content)

    def _remove_image(self):
        path = self.random.choice(sorted(self.folder.glob("images/*/*.png")))
        hidden = self.folder / path.name
        path.rename(hidden)
        self._undo = [lambda: hidden.rename(path)]

    # ---- what always holds ----

    def _check_files(self):
        """Invariant 5: no file is incomplete; only checkpoints that the test damaged may be."""
        # Names with a dot are temporary files of killed ranks.
        for path in self.paths.root.glob("models/*/[!.]*.h5"):
            try:
                read_state(path)
            except CheckpointError as error:
                if self.case.fault != "checkpoint damaged":
                    raise InvariantViolated(f"{path.name} is damaged: {error}") from None
        if self.paths.results.exists():
            read_results(self.paths.root)
        if foreign := [path for path in self.paths.foreign_files() if path.name != "ballast"]:
            raise InvariantViolated(f"unexpected files: {foreign}")

    def _histories(self):
        return {
            row.name: find_newest(self.paths, row.name, with_arrays=False).history
            for row in read_results(self.paths.root)
            if row.status == "finished"
        }

    def _check_results(self):
        """Every network finished or failed with a reason; epochs had all samples (invariant 1)."""
        rows = read_results(self.paths.root)
        self.outcome.failed = {row.name: row.reason for row in rows if row.status == "failed"}
        if bad := [row.name for row in rows if row.status not in ("finished", "failed")] or any(
            not reason for reason in self.outcome.failed.values()
        ):
            raise InvariantViolated(f"neither finished nor failed for a reason: {bad}")
        missing = 1 if self.case.fault == "source file gone" else 0
        for name, history in self._histories().items():
            if [record.epoch for record in history] != list(range(1, self.case.epochs + 1)):
                raise InvariantViolated(
                    f"{name} has the epochs {[record.epoch for record in history]}"
                )
            if len({record.stream_epoch for record in history}) < len(history):
                raise InvariantViolated(f"{name} has trained on an epoch of the stream twice")
            if wrong := {record.samples for record in history} - set(
                range(TRAINED - missing, TRAINED + 1)
            ):
                raise InvariantViolated(f"{name} has seen {wrong} samples in an epoch")

    def _check_replay(self):
        """Invariant 2: a network that is trained again alone has the same losses."""
        histories = self._histories()
        if not histories:
            return
        name = self.random.choice(sorted(histories))
        process = self._start(
            1, "--replay", str(self.paths.root), "--only", name, program=("-m", "fleet.run")
        )
        try:
            process.wait(20 * self.case.patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise InvariantViolated("the replay hangs") from None
        if process.returncode != 0:
            raise InvariantViolated(f"the replay of {name} ends with {process.returncode}")
        again = find_newest(
            RunPaths(self.paths.replay(name)), name, with_arrays=False
        ).state.history
        # Epochs without the file that was missing for a while cannot be repeated.
        first_short = next(
            (index for index, record in enumerate(histories[name]) if record.samples < TRAINED),
            len(again),
        )
        difference = largest_difference(histories[name][:first_short], again[:first_short])
        if difference > (1e-9 if self.case.engine == "numpy" else 1e-4):
            raise InvariantViolated(f"{name} differs from its replay by {difference:.1e}")

    # ---- what it cost ----

    def _account(self):
        lines = [line.split() for line in self.steps.read_text().splitlines()]
        trained = sum(int(size) for _, _, size in lines)
        saved = sum(TRAINED * len(history) for history in self._histories().values())
        self.outcome.twice = max(0, trained - saved) if not self.outcome.failed else 0
        repeated = [
            (t_s, event.network)
            for t_s, event in read_events(self.paths.events)
            if isinstance(event, GroupFailed)
        ]
        if self._killed and repeated:
            after = [
                float(when)
                for when, rank, _ in lines
                if int(rank) in self._group_members(*repeated[0]) and float(when) > self._fault_time
            ]
            self.outcome.pause_s = min(after) - self._fault_time if after else None

    def _group_members(self, failed_s, network):
        """Return the surviving ranks of the group of the dead rank."""
        groups = [
            event.devices
            for t_s, event in read_events(self.paths.events)
            if isinstance(event, GroupStarted) and event.network == network and t_s < failed_s
        ]
        devices = groups[-1] if groups else ()
        return {device + self.case.preprocessors for device in devices} - set(self._killed)


def _ranks_of(process):
    """Return rank -> process id of the living ranks of a launch."""
    ranks = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[3])
            if session == process.pid:
                variables = (folder / "environ").read_bytes().split(b"\0")
                ranks.update(
                    {
                        int(value.split(b"=")[1]): int(folder.name)
                        for value in variables
                        if value.startswith(b"OMPI_COMM_WORLD_RANK=")
                    }
                )
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
    return ranks
