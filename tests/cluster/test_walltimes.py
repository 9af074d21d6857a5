"""Runs that request walltimes automatically on a real Slurm, compared with one long request."""

import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass

import pytest
import yaml

from fleet.companions.chains.chain import chain_times
from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.fleet.companions.test_walltimes import launch
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
SAMPLES, MAX_EPOCHS = 100, 40
SHARED = ["--nodes={nodes}", "--ntasks-per-node=1"]  # four jobs fit on a node, as ranks only sleep
WARN_S = 30


@dataclass(frozen=True)
class EnsembleRanges:
    """The ranges from which ensembles are draw_chains.

    Attributes:
        networks: minimum and maximum number of networks.
        epoch_s: minimum and maximum duration of a network's epoch.
        min_delta: minimum and maximum of the stopping rule's ``min_delta``, log-uniform.
    """

    networks: tuple[int, int]
    epoch_s: tuple[float, float]
    min_delta: tuple[float, float]


SHORT = EnsembleRanges((1, 2), (0.3, 1.0), (0.001, 0.1))
FULL = EnsembleRanges((2, 4), (2.0, 7.0), (0.001, 0.3))
ALONE = EnsembleRanges((1, 1), (4.2, 4.2), (0.001, 0.001))
# Durations of recorded runs of ALONE: the first request is too short for the last one.
PAST_S = (30, 30, 30, 30, 400)


def ensemble(folder, seed, ranges, epochs=None):
    """Return a spec of emulated networks that train until their loss stalls, or for ``epochs``."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    expected = {} if epochs is None else {"epochs": epochs}
    models = [
        {"name": f"net{number}", "rates": [SAMPLES / draw.uniform(*ranges.epoch_s)], **expected}
        for number in range(draw.randint(*ranges.networks))
    ]
    min_delta = math.exp(draw.uniform(*map(math.log, ranges.min_delta)))
    rates = folder / "rates.json"
    rates.write_text(
        json.dumps({"samples_per_epoch": SAMPLES, "gpus_per_node": 1, "models": models})
    )
    content = spec(
        folder,
        [{"family": "softmax", "name": model["name"]} for model in models],
        data={
            "source": "builtin:noise",
            "path": None,
            "options": {"samples": SAMPLES, "validation": 20},
            "transforms": [],
            "cache": "memory",
        },
        train={
            "batch": {"size": 10},
            "optimizer": {"name": "adam"},
            "stopping": {
                "max_epochs": MAX_EPOCHS,
                "patience": 2,
                "monitor": "val_loss",
                "min_delta": min_delta,
            },
        },
        schedule={"policy": "adaptive", "rates": str(rates)},
        resources={"engine": "emulated"},
    )
    return {**content, "seed": seed}


@dataclass(frozen=True)
class ChainOutcome:
    """The outcome of a chain.

    Attributes:
        expected_min: minutes that its jobs were expected to request together.
        requested_min: minutes that each job requested.
        used_min: minutes that the jobs ran together.
        epochs: network -> trained epochs.
    """

    expected_min: float
    requested_min: list[float]
    used_min: float
    epochs: dict[str, int]


class Chain:
    """An ensemble submitted as a chain of jobs.

    Args:
        slurm: the cluster.
        folder: for the spec and the run.
        content: the content of the spec.
        way: ``auto`` for ``--walltime auto``, ``longest`` for one long request.
        past_s: durations in seconds of earlier chains, written into the folder's record.
    """

    def __init__(self, slurm, folder, content, way, past_s=()):
        self.slurm = slurm
        self.paths = RunPaths(folder / "run")
        self._way = way
        self._past_jobs = len(past_s)
        site = folder / "site.yaml"
        self._environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
        self._command = [
            sys.executable,
            "-m",
            "fleet",
            "submit",
            str(Launcher(folder).write(content)),
            f"--site={site}",
            "--nodes=1",
            f"--warn={WARN_S}s",
            "--chain",
            "--json",
        ]
        site.write_text(yaml.safe_dump({"system": "slurm", "ranks": 2, "resources": SHARED}))
        if past_s:
            self.paths.jobs.mkdir(parents=True)
            self.paths.marker.touch()
            lines = [
                line
                for number, seconds in enumerate(past_s)
                for line in launch(1000 * number, seconds, 0)
            ]
            self.paths.stops.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def submit(self):
        if self._way == "auto":
            self._numbers = self._call("--walltime=auto")
            self._requests = self._numbers["requests_s"]
        else:
            self._numbers = self._call("--walltime=auto", "--dry-run")
            self._requests = [self._numbers["single_s"]]
            self._call(f"--walltime={self._requests[0]:g}s")

    def is_over(self):
        stops = self._stops()
        return bool(stops) and stops[-1]["next"] is None

    def outcome(self):
        """Return the outcome; all networks must have finished without a repeated epoch."""
        assert {str(row.status) for row in read_results(self.paths.root)} == {"finished"}, (
            self.report()
        )
        epochs = [
            (event.network, event.record.epoch)
            for event in events_of(self.paths.events, EpochEnded)
        ]
        assert len(epochs) == len(set(epochs))
        last = len(self._requests) - 1
        requested = [self._requests[min(number, last)] / 60 for number in range(len(self._stops()))]
        expected = self._numbers["asked_s" if self._way == "auto" else "single_asked_s"] / 60
        return ChainOutcome(
            expected,
            requested,
            chain_times(self.paths.stops).finished[-1] / 60,
            {
                name: max(epoch for network, epoch in epochs if network == name)
                for name, _ in epochs
            },
        )

    def report(self):
        return "\n".join(
            file.read_text(errors="replace")[-2000:] for file in sorted(self.paths.jobs.glob("*"))
        )

    def _call(self, *words):
        return json.loads(self.slurm.call(*self._command, *words, **self._environment)).get(
            "walltime"
        )

    def _stops(self):
        lines = read_lines(self.paths.stops) if self.paths.stops.exists() else ()
        return [line for line in lines if line["event"] == "stopped"][self._past_jobs :]


WAYS = ("auto", "longest")


def draw_chains(slurm, folder, seeds, ranges, way):
    """Return a chain of an ensemble for each seed."""
    return [
        Chain(
            slurm, folder / way / str(seed), ensemble(folder / way / str(seed), seed, ranges), way
        )
        for seed in seeds
    ]


def run_chains(slurm, chains):
    """Submit all chains and wait for the last one; return outcomes by way, and the minutes."""
    every = [chain for group in chains.values() for chain in group]
    began = time.time()
    for chain in every:
        chain.submit()
    slurm.wait_until(
        "all chains are over",
        lambda: all(chain.is_over() for chain in every),
        lambda: "\n".join(chain.report() for chain in every if not chain.is_over()),
        1800,
    )
    minutes = (time.time() - began) / 60
    return {way: [chain.outcome() for chain in group] for way, group in chains.items()}, minutes


def check(outcomes):
    """Check that both ways train the same, and that automatic walltimes are expected to be shorter.

    The actual requests depend on this machine and on Slurm, which may warn a job a minute early.
    """
    assert [entry.epochs for entry in outcomes["auto"]] == [
        entry.epochs for entry in outcomes["longest"]
    ]
    assert sum(entry.expected_min for entry in outcomes["auto"]) < sum(
        entry.expected_min for entry in outcomes["longest"]
    )


def line(way, outcomes, minutes):
    """Return a row of a table: totals, and the median, minimum and maximum of an ensemble."""
    requests = [sum(entry.requested_min) for entry in outcomes]
    used = [entry.used_min for entry in outcomes]
    return (
        f"| {way} | {len(outcomes)} | {sum(len(entry.requested_min) for entry in outcomes)} | "
        f"{sum(requests):.0f} | {sum(entry.expected_min for entry in outcomes):.0f} | "
        f"{spread(requests)} | {sum(used):.1f} | {spread(used)} | {minutes:.1f} |"
    )


def spread(values, digits=1):
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def test_automatic_walltimes_finish_with_the_same_training(slurm, tmp_path):
    slurm.clean()
    chains = {way: draw_chains(slurm, tmp_path, range(2), SHORT, way) for way in WAYS}
    for way, group in chains.items():
        folder = tmp_path / way / "alone"
        group.append(Chain(slurm, folder, ensemble(folder, 0, ALONE, MAX_EPOCHS), way, PAST_S))
    outcomes, _ = run_chains(slurm, chains)
    check(outcomes)
    assert len(outcomes["auto"][-1].requested_min) > 1


@pytest.mark.long
def test_automatic_walltimes_of_thirty_ensembles_cost_less(slurm, tmp_path):
    outcomes = {}
    for way in WAYS:
        slurm.clean()
        result, minutes = run_chains(
            slurm, {way: draw_chains(slurm, tmp_path, range(30), FULL, way)}
        )
        print(line(way, result[way], minutes))
        outcomes |= result
    shares = [
        sum(entry.requested_min) / sum(second.requested_min)
        for entry, second in zip(*outcomes.values(), strict=True)
    ]
    print(
        f"requested with auto, relative to one request: {spread(shares, 2)}; less in "
        f"{sum(share < 1 for share in shares)}, more in {sum(share > 1 for share in shares)}"
    )
    check(outcomes)
