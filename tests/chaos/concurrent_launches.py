"""Launches share one folder; some are killed, and some are stopped for longer than their lease.

Each case is drawn from its seed: two launches that share four networks, and three faults in
sequence. After each fault another launch starts. A stopped launch continues later, finds that its
networks were taken over, and ends.
"""

import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fleet.domain.events import EpochEnded
from fleet.storage.event_log import read_run
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.chaos.faults import InvariantViolated
from tests.mpi.conftest import Launcher, kill, send_all, spec

NAMES, EPOCHS, LAUNCHES, FAULTS = ("a", "b", "c", "d"), 8, 2, 3
LEASE_S, PATIENCE_S = 2.0, 180.0


@dataclass
class ConcurrentCase:
    """The outcome of a case.

    Attributes:
        faults: the kinds of faults, in order.
        again: number of epochs that were trained a second time.
        violation: the invariant that does not hold; empty if the case passed.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    again: int = 0
    seconds: float = 0.0
    violation: str = ""


def carry_out(seed):
    """Run a case; keep its folder if an invariant does not hold."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-concurrent-{seed}-"))
    case, began = ConcurrentCase(seed), time.monotonic()
    trial = _Trial(folder, case)
    try:
        trial.run()
    except InvariantViolated as error:
        case.violation = f"{error}; see {folder}"
    finally:
        trial.close()
    case.seconds = time.monotonic() - began
    if not case.violation:
        shutil.rmtree(folder)
    return case


class _Trial:
    def __init__(self, folder, case):
        self._case, self._draw, self._launcher = case, random.Random(case.seed), Launcher(folder)
        self._content = spec(
            folder,
            [{"family": "softmax", "name": name} for name in NAMES],
            samples=200,
            source="slow",
            train={"stopping": {"max_epochs": EPOCHS}},
        )
        self._paths = RunPaths(folder / "run")
        self._launches, self._over = [], []

    def run(self):
        """Start launches, inject faults, and check the result."""
        for _ in range(LAUNCHES):
            self._start()
        for _ in range(FAULTS):
            time.sleep(self._draw.uniform(1, 5))
            self._inject_fault()
        self._wait(
            lambda: all(process.poll() is not None for process in [*self._launches, *self._over]),
            "end",
        )
        if any(process.returncode for process in self._launches):
            self._start()  # every launch that had not been killed had lost a lease
            self._wait(lambda: self._launches[-1].poll() is not None, "end")
        self._check()

    def close(self):
        """Kill the remaining processes."""
        for process in [*self._launches, *self._over]:
            if process.poll() is None:
                kill(process)
            process.communicate()

    def _start(self):
        self._launches.append(
            self._launcher.start(
                2,
                self._content,
                "--share-run",
                "--idle-timeout",
                "60s",
                environment={"FLEET_LEASE": f"{LEASE_S}s"},
            )
        )

    def _inject_fault(self):
        alive = [process for process in self._launches if process.poll() is None]
        if not alive:
            return
        process, fault = self._draw.choice(alive), self._draw.choice(("kill", "stop"))
        self._case.faults.append(fault)
        self._launches.remove(process)
        self._over.append(process)
        if fault == "kill":
            kill(process)
        else:
            send_all(process, signal.SIGSTOP)
            time.sleep(LEASE_S * self._draw.uniform(0.5, 3))
            send_all(process, signal.SIGCONT)
        self._start()

    def _wait(self, condition, description):
        until = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > until:
                raise InvariantViolated(f"no {description} after {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def _check(self):
        epochs = [
            (event.network, event.record.epoch)
            for _, event in read_run(self._paths)
            if isinstance(event, EpochEnded)
        ]
        self._case.again = len(epochs) - len(set(epochs))
        if missing := {(name, epoch + 1) for name in NAMES for epoch in range(EPOCHS)} - set(
            epochs
        ):
            raise InvariantViolated(f"epochs missing in all logs: {sorted(missing)}")
        if self._case.again > len(self._case.faults):
            raise InvariantViolated(
                f"{self._case.again} epochs were trained again after {len(self._case.faults)} "
                "faults"
            )
        wrong = {
            row.name: (str(row.status), row.epochs)
            for row in read_results(self._paths.root)
            if (row.status, row.epochs) != ("finished", EPOCHS)
        }
        if wrong:
            raise InvariantViolated(f"results.csv: {wrong}")
        if foreign := self._paths.foreign_files():
            raise InvariantViolated(f"unexpected files: {foreign}")
