"""Searches whose launches are repeatedly killed at random moments.

The seed of a case decides the search, and when and how each launch is killed. Afterwards the log
must describe one search: a searcher that gets all calls again gives the same answers, a pruner that
gets all epochs again gives the same verdicts, every proposed network ends, and no network repeats
more than one epoch per kill.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fleet.domain import events as ev
from fleet.domain.timeline import replay_log
from fleet.search.calls import replay
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Verdict, make_searcher
from fleet.spec import load
from fleet.storage.event_log import events_of, read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.chaos.faults import InvariantViolated
from tests.mpi.conftest import Launcher, await_end, kill, rank_process, spec
from tests.places import ROOT

RANKS, EPOCHS, KILLS, MOST_LAUNCHES, PATIENCE_S = 4, 9, 5, 9, 90.0
RATE = "train.optimizer.learning_rate"
SPACE = {RATE: {"low": 1e-4, "high": 1.0, "log": True}, "train.batch.size": [4, 6, 12]}
TPE = {"sampler": "tpe", "max_trials": 18}
SEARCHES = {  # name -> its search and its pruner
    "TPE + ASHA (pause)": (TPE, {"rule": "asha", "min_epochs": 1, "factor": 3}),
    "PBT": (
        {
            "sampler": "pbt_searcher:Searcher",
            "max_trials": 16,
            "max_concurrent": 6,
            "options": {"population": 6, "every": 2},
        },
        {},
    ),
    "median": ({"sampler": "random", "max_trials": 18}, {"rule": "median", "min_trials": 3}),
    "TPE + auto": (TPE, {"rule": "auto"}),
    "TPE + ASHA (stop)": (TPE, {"rule": "asha", "min_epochs": 1, "factor": 3, "on_fail": "stop"}),
}
WAYS = ("all ranks", "coordinator", "one rank")


@dataclass
class SearchCase:
    """The outcome of a case.

    Attributes:
        kills: how each launch was killed.
        decisions: number of calls and verdicts of the whole run.
        again: number of epochs that were trained a second time.
        violation: the invariant that does not hold; empty if the case passed.
    """

    seed: int
    search: str
    kills: list[str] = field(default_factory=list)
    decisions: int = 0
    again: int = 0
    seconds: float = 0.0
    violation: str = ""


def carry_out(seed):
    """Run a case; keep its folder if an invariant does not hold."""
    case, began = SearchCase(seed, list(SEARCHES)[seed % len(SEARCHES)]), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-search-{seed}-"))
    try:
        _Trial(folder, case).run()
        shutil.rmtree(folder)
    except InvariantViolated as error:
        case.violation = f"{error}; see {folder}"
    case.seconds = time.monotonic() - began
    return case


class _Trial:
    def __init__(self, folder, case):
        self._case, self._draw, self._launcher = case, random.Random(case.seed), Launcher(folder)
        search, prune = SEARCHES[case.search]
        shutil.copy(ROOT / "examples/pbt_searcher.py", folder)
        self._content = spec(
            folder,
            [{"family": "softmax", "name": "net", "gpus": 1, "space": SPACE, "search": search}],
            samples=120,
            source="slow",
            prune=prune,
            train={"stopping": {"max_epochs": EPOCHS}},
        )
        self._paths = RunPaths(folder / "run")

    def run(self):
        """Kill launches, let the last one run to its end, and check the result."""
        for launch in range(MOST_LAUNCHES):
            if self._launch(is_killed=launch < KILLS):
                break
        else:
            raise InvariantViolated(f"not done after {MOST_LAUNCHES} launches")
        self._check_calls()
        self._check_verdicts()
        self._check_networks()

    def _launch(self, is_killed):
        """Run a launch and return True if it ended the run."""
        kill_at = None
        if is_killed:
            kill_at = len(events_of(self._paths.events, ev.EpochEnded)) + self._draw.randrange(12)
        moment_s, way = self._draw.uniform(0, 0.3), self._draw.choice(WAYS)
        process, seen, size = self._launcher.start(RANKS, self._content), time.monotonic(), None
        while process.poll() is None:
            time.sleep(0.02)
            epochs = events_of(self._paths.events, ev.EpochEnded)
            previous = size
            size = self._paths.events.stat().st_size if self._paths.events.exists() else 0
            if size != previous:
                seen = time.monotonic()
            if time.monotonic() > seen + PATIENCE_S:
                kill(process)
                raise InvariantViolated(f"no event for {PATIENCE_S:.0f} s")
            if kill_at is not None and len(epochs) > kill_at:
                time.sleep(moment_s)
                self._kill(process, way)
                kill_at = None
        await_end(process)
        process.communicate()
        return process.returncode == 0 and bool(events_of(self._paths.events, ev.LaunchEnded))

    def _kill(self, process, way):
        if process.poll() is not None:
            return
        self._case.kills.append(way)
        if way == "all ranks":
            kill(process)
            return
        rank = 0 if way == "coordinator" else self._draw.randrange(1, RANKS)
        try:
            os.kill(rank_process(process.pid, rank), signal.SIGKILL)
        except (LookupError, OSError):  # it has ended by itself
            self._case.kills.pop()

    # ---- what always holds ----

    def _check_calls(self):
        """Each call is logged once, and a searcher that gets them again gives the same answers."""
        calls = events_of(self._paths.events, ev.SearcherCalled)
        self._case.decisions += len(calls)
        if failed := events_of(self._paths.events, ev.SearcherFailed) + events_of(
            self._paths.events, ev.ReplayDiffered
        ):
            raise InvariantViolated(f"the searcher behaved differently: {failed}")
        once = Counter(
            (call.call, call.number, call.epoch)
            for call in calls
            if call.call != "resume" and call.answer is not None
        )
        if twice := [call for call, count in once.items() if count > 1]:
            raise InvariantViolated(f"calls that were made twice: {twice}")
        parsed = load(str(self._paths.spec))
        entry = parsed.document.models[0]
        sampler = entry.search.sampler
        if ":" in sampler:
            sampler = f"examples.{sampler}"
        searcher = make_searcher(
            sampler, entry.space, entry.search.seed, "maximize", entry.search.options
        )
        if difference := replay(
            searcher, replay_log(read_events(self._paths.events)).search("net").calls
        ):
            raise InvariantViolated(difference)

    def _events(self):
        return [event for _, event in read_events(self._paths.events)]

    def _check_verdicts(self):
        """A pruner that gets all epochs in the order of the log gives the logged verdicts."""
        prune = load(str(self._paths.spec)).document.prune
        pruner, best, seen = make_pruner(prune, EPOCHS, seed=5), {}, Counter()
        verdicts, logged = [], []
        for event in self._events():
            match event:
                case ev.EpochEnded(name, record) if record.epoch == seen[name] + 1:
                    seen[name] += 1
                    best[name] = max(best.get(name, 0.0), record.val_accuracy)
                    verdict = pruner.add(name, record.epoch, best[name], record.epoch == EPOCHS)
                    if verdict is not Verdict.GO_ON:
                        verdicts.append((name, record.epoch, verdict.value))
                case ev.NetworkVerdict(name, epochs, verdict, by):
                    self._case.decisions += 1
                    if (
                        by == (prune.rule,)
                        and verdict != Verdict.GO_ON
                        and seen[name] == epochs
                        and (name, epochs, verdict) in verdicts
                    ):
                        logged.append((name, epochs, verdict))
                    if verdict == Verdict.GO_ON:
                        pruner.let_go_on(name)
                    elif verdict == Verdict.STOP:
                        pruner.leave(name)
                case ev.NetworkFinished(name):
                    pruner.let_go_on(name)
                    pruner.leave(name)
        if Counter(verdicts) != Counter(logged):
            raise InvariantViolated(
                f"other verdicts than logged: {Counter(verdicts) - Counter(logged)} and "
                f"{Counter(logged) - Counter(verdicts)}"
            )

    def _check_networks(self):
        """All networks are in the table and ended; none repeated more than one epoch per kill."""
        proposed = {
            call.network
            for call in events_of(self._paths.events, ev.SearcherCalled)
            if call.call == "ask" and call.answer is not None
        }
        rows = {row.name: row for row in read_results(self._paths.root)}
        if set(rows) != proposed:
            raise InvariantViolated(
                f"networks missing from the table or never proposed: {sorted(set(rows) ^ proposed)}"
            )
        if bad := {
            name: str(row.status)
            for name, row in rows.items()
            if row.status not in ("finished", "pruned")
        }:
            raise InvariantViolated(f"neither finished nor pruned: {bad}")
        if bad := [
            name for name, row in rows.items() if row.status == "finished" and row.epochs != EPOCHS
        ]:
            raise InvariantViolated(f"finished without all epochs: {bad}")
        trained = Counter(
            (event.network, event.record.epoch)
            for event in events_of(self._paths.events, ev.EpochEnded)
        )
        again = Counter()
        for (name, _), count in trained.items():
            again[name] += count - 1
        self._case.again = sum(again.values())
        excess = {name: count for name, count in again.items() if count > len(self._case.kills)}
        if excess:
            raise InvariantViolated(
                f"more than one epoch trained again per kill ({len(self._case.kills)} kills): "
                f"{excess}"
            )
