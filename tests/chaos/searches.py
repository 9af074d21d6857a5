"""Searches whose launches are killed at random moments, again and again.

Each case is drawn from its seed: a search, and when and how each of its launches is killed. Whatever was killed, the
log must tell of one search: a searcher that hears all calls again answers as it did, a rule that hears all epochs again
judges as it did, every network that was asked for comes to an end, and none loses more than an epoch by a kill.
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
from fleet.monitor.timeline import replay_log
from fleet.search.calls import replay
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Verdict, make_searcher
from fleet.spec import load
from fleet.storage.event_log import events_of, read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.chaos.faults import Broken
from tests.mpi.conftest import Launcher, await_end, kill, rank_process, spec
from tests.places import ROOT

RANKS, EPOCHS, KILLS, MOST_LAUNCHES, PATIENCE_S = 4, 9, 5, 9, 90.0
RATE = "train.optimizer.learning_rate"
SPACE = {RATE: {"low": 1e-4, "high": 1.0, "log": True}, "train.batch.size": [4, 6, 12]}
TPE = {"sampler": "optuna_searcher:Searcher", "max_trials": 18, "options": {"sampler": "tpe"}}
SEARCHES = {  # name -> its search and its rule
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
    "TPE + ASHA (stop)": (TPE, {"rule": "asha", "min_epochs": 1, "factor": 3, "on_fail": "stop"}),
}
WAYS = ("all ranks", "coordinator", "one rank")


@dataclass
class SearchCase:
    """What came of a case.

    Attributes:
        kills: in which way each launch was killed that was.
        decisions: calls and judgements of the whole run.
        again: epochs that were trained once more.
        broken: what is wrong; empty after a good end.
    """

    seed: int
    search: str
    kills: list[str] = field(default_factory=list)
    decisions: int = 0
    again: int = 0
    seconds: float = 0.0
    broken: str = ""


def carry_out(seed):
    """Run a case; its folder is left where it was not good."""
    case, began = SearchCase(seed, list(SEARCHES)[seed % len(SEARCHES)]), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-search-{seed}-"))
    try:
        _Trial(folder, case).run()
        shutil.rmtree(folder)
    except Broken as broken:
        case.broken = f"{broken}; see {folder}"
    case.seconds = time.monotonic() - began
    return case


class _Trial:
    def __init__(self, folder, case):
        self._case, self._draw, self._launcher = case, random.Random(case.seed), Launcher(folder)
        search, prune = SEARCHES[case.search]
        for name in ("optuna_searcher.py", "pbt_searcher.py"):
            shutil.copy(ROOT / "examples" / name, folder)
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
        """Kill launches, let the last one come to its end, and look at what came of it."""
        for launch in range(MOST_LAUNCHES):
            if self._launch(is_struck=launch < KILLS):
                break
        else:
            raise Broken(f"not done after {MOST_LAUNCHES} launches")
        self._check_calls()
        self._check_judgements()
        self._check_networks()

    def _launch(self, is_struck):
        """Returns whether the launch has come to the run's end."""
        strike_at = (
            len(events_of(self._paths.events, ev.EpochEnded)) + self._draw.randrange(12)
            if is_struck
            else None
        )
        moment_s, way = self._draw.uniform(0, 0.3), self._draw.choice(WAYS)
        process, seen, trial = self._launcher.start(RANKS, self._content), time.monotonic(), None
        while process.poll() is None:
            time.sleep(0.02)
            epochs = events_of(self._paths.events, ev.EpochEnded)
            if trial != (
                trial := self._paths.events.stat().st_size if self._paths.events.exists() else 0
            ):
                seen = time.monotonic()
            if time.monotonic() > seen + PATIENCE_S:
                kill(process)
                raise Broken(f"no event for {PATIENCE_S:.0f} s")
            if strike_at is not None and len(epochs) > strike_at:
                time.sleep(moment_s)
                self._strike(process, way)
                strike_at = None
        await_end(process)
        process.communicate()
        return process.returncode == 0 and bool(events_of(self._paths.events, ev.LaunchEnded))

    def _strike(self, process, way):
        if process.poll() is not None:
            return
        self._case.kills.append(way)
        if way == "all ranks":
            kill(process)
            return
        try:
            os.kill(
                rank_process(
                    process.pid, 0 if way == "coordinator" else self._draw.randrange(1, RANKS)
                ),
                signal.SIGKILL,
            )
        except (LookupError, OSError):  # it has ended by itself
            self._case.kills.pop()

    # ---- what always holds ----

    def _check_calls(self):
        """The log has each call once, and a searcher that hears all of them again answers as it did."""
        calls = events_of(self._paths.events, ev.SearcherCalled)
        self._case.decisions += len(calls)
        if failed := events_of(self._paths.events, ev.SearcherFailed) + events_of(
            self._paths.events, ev.ReplayDiffered
        ):
            raise Broken(f"the searcher was not as before: {failed}")
        once = Counter(
            (call.call, call.number, call.epoch)
            for call in calls
            if call.call != "resume" and call.answer is not None
        )
        if twice := [call for call, count in once.items() if count > 1]:
            raise Broken(f"calls that were made twice: {twice}")
        parsed = load(str(self._paths.spec))
        entry = parsed.document.models[0]
        searcher = make_searcher(
            entry.search.sampler
            if entry.search.sampler == "random"
            else f"examples.{entry.search.sampler}",
            entry.space,
            entry.search.seed,
            "maximize",
            entry.search.options,
        )
        if difference := replay(
            searcher, replay_log(read_events(self._paths.events)).search("net").calls
        ):
            raise Broken(difference)

    def _events(self):
        return [event for _, event in read_events(self._paths.events)]

    def _check_judgements(self):
        """A rule that hears of all epochs, in the order of the log, judges as was done."""
        prune = load(str(self._paths.spec)).document.prune
        judge, best, seen = make_pruner(prune, EPOCHS, seed=5), {}, Counter()
        judged, done = [], []
        for event in self._events():
            match event:
                case ev.EpochEnded(name, record) if record.epoch == seen[name] + 1:
                    seen[name] += 1
                    best[name] = max(best.get(name, 0.0), record.val_accuracy)
                    verdict = judge.add(name, record.epoch, best[name], record.epoch == EPOCHS)
                    if verdict is not Verdict.GO_ON:
                        judged.append((name, record.epoch, verdict.value))
                case ev.NetworkVerdict(name, epochs, verdict, by):
                    self._case.decisions += 1
                    if (
                        by == (prune.rule,)
                        and verdict != Verdict.GO_ON
                        and seen[name] == epochs
                        and (name, epochs, verdict) in judged
                    ):
                        done.append((name, epochs, verdict))
                    if verdict == Verdict.GO_ON:
                        judge.let_go_on(name)
                    elif verdict == Verdict.STOP:
                        judge.leave(name)
                case ev.NetworkFinished(name):
                    judge.let_go_on(name)
                    judge.leave(name)
        if Counter(judged) != Counter(done):
            raise Broken(
                f"judged otherwise: {Counter(judged) - Counter(done)} and {Counter(done) - Counter(judged)}"
            )

    def _check_networks(self):
        """None is lost, all have ended, and none has trained more than an epoch again for each kill."""
        proposed = {
            call.network
            for call in events_of(self._paths.events, ev.SearcherCalled)
            if call.call == "ask" and call.answer is not None
        }
        rows = {row.name: row for row in read_results(self._paths.root)}
        if set(rows) != proposed:
            raise Broken(
                f"networks that were lost, or that nobody has asked for: {sorted(set(rows) ^ proposed)}"
            )
        if bad := {
            name: str(row.status)
            for name, row in rows.items()
            if row.status not in ("finished", "pruned")
        }:
            raise Broken(f"neither finished nor pruned: {bad}")
        if bad := [
            name for name, row in rows.items() if row.status == "finished" and row.epochs != EPOCHS
        ]:
            raise Broken(f"finished without all epochs: {bad}")
        trained = Counter(
            (event.network, event.record.epoch)
            for event in events_of(self._paths.events, ev.EpochEnded)
        )
        again = Counter()
        for (name, _), count in trained.items():
            again[name] += count - 1
        self._case.again = sum(again.values())
        if more := {name: count for name, count in again.items() if count > len(self._case.kills)}:
            raise Broken(
                f"more than an epoch trained again for each of {len(self._case.kills)} kills: {more}"
            )
