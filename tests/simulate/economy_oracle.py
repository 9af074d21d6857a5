"""Nothing is done twice for nothing, and nothing is kept that is no longer needed.

- Launches that share a run write its table no more often than they say.
- A checkpoint is written once, and rank 0 reads no weights.
- Samples that are stored in memory are prepared once on each node; so are those for validation.
- Communicators of groups are freed.
- Under a quota, a network's own previous checkpoint is deleted before those of others.
- A network that has finished, or failed for good, gets no devices again.
- A launch trains nothing if the one before said that all is done.
- A node is released once its trainers are idle.
- The supply in the log is that of the preprocessors which produce.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fleet.errors import ExitStatus
from fleet.storage import results
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status
from tests.simulate import kernel as k
from tests.simulate.cases import Case
from tests.simulate.cluster import Launch

# Reads of a stored sample in a launch and on a node: its shape, examples, and the store. Each fold
# reads its shape and examples, and each preprocessor measures how long a sample takes.
_MOST_READS = 5
# Kinds of faults after which there is more to do.
_UNDOING = {
    "damage",
    "lose best",
    "commands",
    "give verdict",
    "crash storage",
    "crash storage in write",
    "bad searchers",
}
_TABLE_S = 1.4  # between two tables of a launch that shares its run
VALIDATION = "sample of 20, seed 2,"  # how Numbered names those for validation


class EconomyOracle:
    """Watches what launches do more often than needed.

    Args:
        object_to: is called with what is wrong.
    """

    def __init__(self, case: Case, paths: RunPaths, object_to: Callable[[str], None]) -> None:
        self._case = case
        self._paths = paths
        self._object_to = object_to
        self._states: dict[tuple[k.Process, str], tuple[int, int, int]] = {}
        self._reads: Counter[tuple[Any, Any, str, int]] = Counter()
        self._idle: dict[k.Process, set[int]] = {}  # devices that wait for work
        self._table_s: dict[k.Process, float] = {}  # when it last wrote the table of results
        self._throughput: dict[k.Process, dict[int, float]] = {}
        self._writing: dict[k.Process, str] = {}
        self._over: dict[str, str] = {}  # network -> how it has ended
        self._passing: set[str] = set()  # networks that failed for a reason that may pass
        self._skipped: set[str] = set()
        self._trained: set[str] = set()  # networks of which the log has epochs
        self._restarted: set[str] = set()  # networks of which no checkpoint remains
        self._grouped: set[tuple[k.Process, str]] = set()
        # networks that fell back, and have no group since -> whether they remain finished
        self._fallen_back: dict[str, bool] = {}
        self._trainers: set[k.Process] = set()
        self._is_done = False  # whether a launch has said so
        data = case.content["data"]
        self._is_prompt = set(case.kinds) <= {"signal", "kill all", "kill rank"}
        self._folds = data.get("folds", 1)
        preprocessors = case.content.get("resources", {}).get("preprocessors", "auto")
        self._measuring = 0 if preprocessors == "auto" else preprocessors
        self._has_preprocessors = (
            case.ranks_per_node > 1
            and case.content["schedule"].get("policy") != "baseline"
            and data["source"] != "tests.sources:unvalidated"
        )
        self._is_stored = (
            data.get("cache") == "memory"
            and "shared_memory" not in data
            and not set(case.kinds) - {"signal", "kill all"}
            and not any("data" in model for model in case.content["models"])
            and case.content["resources"]["preprocessors"] in (1, 2, 3)
        )

    def begin(self, launch: Launch) -> None:
        """Watch the ranks of a launch."""
        for rank in launch.ranks:
            rank.on_end.append(partial(self._end, rank))

    def _end(self, process: k.Process) -> None:
        """Check what a rank leaves that exits by itself."""
        is_trainer = process in self._trainers
        if is_trainer and process.has_returned and process.mpi.open_groups[process] > 0:
            self._object_to(f"{process} exits with communicators of groups that it has left")

    # ---- checkpoints ----

    def begins_part(self, process: k.Process, name: str) -> None:
        """A rank trains an epoch from a position on."""
        self._trainers.add(process)
        self._states.pop((process, name), None)

    def saves(self, process: k.Process, name: str, state: Any) -> None:
        """A rank writes a checkpoint."""
        self._writing[process] = name

    def saved(self, process: k.Process, name: str, state: Any) -> None:
        """A rank has written a checkpoint."""
        self._writing.pop(process, None)
        reached = state.epoch, state.position, bool(state.final)
        if self._states.get((process, name)) == reached:
            self._object_to(f"{process} saves {name} at {reached} again")
        self._states[process, name] = reached

    def reads_arrays(self, process: k.Process, path: Path) -> None:
        """A rank reads the weights in a checkpoint."""
        job = process.mpi
        if job is None or len(job.processes) == 1:
            return
        trains = self._case.content["resources"]["preprocessors"] in (0, "auto")
        # Rank 0 copies the weights that a network inherits, or makes a whole checkpoint the newest.
        copies = any("search" in model for model in self._case.content["models"])
        copies |= bool({"commands", "damage"} & set(self._case.kinds))
        if job.processes[0] is process and not trains and not copies:
            self._object_to(f"{process} reads the weights in {path}")

    def did(self, process: k.Process | None, call: str, path: str) -> None:
        """A process has changed a file."""
        if process is None or call != "unlink" or not path.endswith("/previous.h5"):
            return
        name = self._writing.get(process)
        if name is None or str(self._paths.previous(name)) == path:
            return
        if self._paths.previous(name).exists() and self._paths.last(name).exists():
            self._object_to(f"{process} deletes {path} to save {name}, whose own remains")

    def is_idle(self, process: k.Process, devices: Iterable[int], is_idle: bool) -> None:
        """Rank 0 has heard that trainers wait for work, or has given them some."""
        idle = self._idle.setdefault(process, set())
        (idle.update if is_idle else idle.difference_update)(devices)

    def wrote_table(self, process: k.Process, at_s: float) -> None:
        """Rank 0 has written the table of results after a change of the run."""
        seconds = at_s - self._table_s.get(process, -math.inf)
        self._table_s[process] = at_s
        if self._case.side_by_side > 1 and self._is_prompt and seconds < _TABLE_S:
            self._object_to(f"{process} writes the table again after {seconds:.1f} s")

    def left_table(self, process: k.Process, networks: int) -> None:
        """Rank 0 has not written the table of results after a change of the run."""
        if self._case.side_by_side == 1 and networks <= results._FEW:
            self._object_to(f"{process} does not write the table of {networks} networks")

    # ---- samples ----

    def reads_sample(self, process: k.Process, source: str, index: int) -> None:
        """A rank reads a sample of a source."""
        if not self._is_stored or process.mpi is None:
            return
        if process in self._trainers and self._has_preprocessors and source == VALIDATION:
            self._object_to(f"{process} prepares {source} {index}, which its node has")
        key = (process.mpi, process.node, source, index)
        self._reads[key] += 1
        if self._reads[key] == _MOST_READS * self._folds + self._measuring + 1:
            self._object_to(f"{source} {index} is read again and again on {process.node.name}")

    def throughput(self, process: k.Process, rank: int, samples_per_s: float) -> None:
        """A preprocessor has reported its rate."""
        self._throughput.setdefault(process, {})[rank] = samples_per_s

    # ---- events ----

    def logged(self, process: k.Process, record: Mapping[str, Any]) -> None:
        """Rank 0 logs an event."""
        event = record["event"]
        if event == "epoch":
            self._trained.add(record["network"])
        elif event == "fell_back":
            self._restarted.discard(record["network"])
            if (process, record["network"]) not in self._grouped:  # else its group reports it
                self._fallen_back[record["network"]] = bool(record.get("finished"))
        elif event == "group":
            if self._is_done:
                self._object_to(f"{record['network']} gets devices after a launch that did all")
            self._grouped.add((process, record["network"]))
            self._fallen_back.pop(record["network"], None)
        if event == "group" and record["network"] in self._over:
            name = record["network"]
            self._object_to(f"{name} gets devices again, though it had {self._over[name]}")
        elif event == "failed" and record.get("may_pass"):
            self._passing.add(record["network"])
        elif event == "start":
            limit = self._case.content["resources"].get("networks_per_gpu", 1)
            if limit != "auto" and record.get("slots", 1) > limit:
                self._object_to(f"more than {limit} networks may share a GPU: {record}")
            self._check_slots(process, limit, record)
        elif event == "nodes_left" and not self._case.fault_tolerant:
            if busy := set(record["devices"]) - self._idle.get(process, set()):
                self._object_to(f"a node is released while devices {busy} are busy: {record}")
        elif event == "bad_sample":
            self._skipped.add(record["name"])
        elif event == "stream":  # later ones follow other reports
            rates = self._throughput.pop(process, {})
            chosen = [rates[rank] for rank in sorted(rates)][: record["preprocessors"]]
            supply = record["supply_samples_per_s"]
            if len(rates) == record["of"] and not math.isclose(
                supply, sum(chosen), rel_tol=0.02, abs_tol=0.2
            ):
                self._object_to(f"the supply is {supply}, but preprocessors give {chosen}")

    def _check_slots(self, process: k.Process, limit: Any, record: Mapping[str, Any]) -> None:
        """Check that networks share a core only if a node has fewer cores than trainers."""
        is_shared = isinstance(limit, int) and limit > 1
        if not is_shared or self._case.content["resources"]["engine"] != "numpy":
            return
        nodes, cores = self._case.nodes, self._case.cores
        if not cores or nodes > 1:
            return
        trainers = record["trainers"]
        devices = max(min(cores, trainers), math.ceil(trainers / limit))
        slots = math.ceil(trainers / devices)
        actual = record.get("slots", 1), record.get("fills", False)
        if actual != (slots, slots > 1):
            self._object_to(f"{slots} of {trainers} trainers may share a core: {record}")

    def damaged(self, name: str, remaining: tuple[int, int]) -> None:
        """Allow that a network is trained again, and expect a report if nothing of it remains."""
        self._over.pop(name, None)
        if name in self._trained and remaining == (0, 0):
            self._restarted.add(name)

    def storage_crashed(self) -> None:
        """Allow that networks are trained again."""
        self._over.clear()

    def ended(self, rows: Iterable[NetworkResult], status: int | None) -> None:
        """A launch has ended in order, which leaves these results."""
        if self._case.side_by_side > 1:
            return
        self._is_done = status == ExitStatus.OK and not _UNDOING & set(self._case.kinds)
        if self._restarted:
            self._object_to(f"no event tells that {self._restarted} start over")
        for row in rows:
            if row.status is Status.FINISHED:
                self._over[row.name] = "finished"
                if not self._fallen_back.get(row.name, True):
                    self._object_to(f"{row.name} fell back by the log, but remains finished")
            elif row.status is Status.FAILED and row.name not in self._passing:
                self._over[row.name] = "failed"
        path = self._paths.unreadable_samples
        listed = path.read_text() if path.exists() else ""
        missing = [name for name in self._skipped if name not in listed]
        if missing:
            self._object_to(f"{path.name} lacks {missing}")
