"""Ensembles that ask Slurm for the time that costs least, beside the same ones that ask once for the longest."""

import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass

import pytest
import yaml

from fleet.domain.events import EpochEnded
from fleet.jobs.chain import chain_times
from fleet.storage.event_log import events_of
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.fleet.commands.test_walltimes import launch
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
SAMPLES, MOST_EPOCHS = 100, 40
SHARED = [
    "--nodes={nodes}",
    "--ntasks-per-node=1",
]  # four such jobs have room on a node, where ranks sleep
WARN_S = 30


@dataclass(frozen=True)
class Law:
    """What ensembles are drawn from.

    Attributes:
        networks: the least and the most.
        epoch_s: seconds of an epoch of a network; the least and the most.
        least_fall: of the loss in an epoch, below which a network stops; the least and the most, log-uniformly between.
    """

    networks: tuple[int, int]
    epoch_s: tuple[float, float]
    least_fall: tuple[float, float]


SHORT = Law((1, 2), (0.3, 1.0), (0.001, 0.1))
FULL = Law((2, 4), (2.0, 7.0), (0.001, 0.3))
ALONE = Law((1, 1), (4.2, 4.2), (0.001, 0.001))
PAST_S = (
    30,
    30,
    30,
    30,
    400,
)  # that runs of ALONE took, as its record has it: the first request is too short for it


def ensemble(folder, seed, law, epochs=None):
    """Networks that sleep until their loss hardly falls, by a seed; or for so many epochs, whatever their loss."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    expected = {} if epochs is None else {"epochs": epochs}
    models = [
        {"name": f"net{number}", "rates": [SAMPLES / draw.uniform(*law.epoch_s)], **expected}
        for number in range(draw.randint(*law.networks))
    ]
    least_fall = math.exp(draw.uniform(*map(math.log, law.least_fall)))
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
                "max_epochs": MOST_EPOCHS,
                "patience": 2,
                "monitor": "val_loss",
                "min_delta": least_fall,
            },
        },
        schedule={"policy": "adaptive", "rates": str(rates)},
        resources={"engine": "emulated"},
    )
    return {**content, "seed": seed}


@dataclass(frozen=True)
class Came:
    """Of a chain: the minutes that its jobs were expected to ask for and asked for, what they took, and the epochs."""

    expected_min: float
    asked_min: list[float]
    used_min: float
    epochs: dict[str, int]


class Chain:
    """An ensemble that is handed in as a chain of jobs, with ``--walltime auto`` or one request for the longest.

    Args:
        past_s: seconds that chains before it have taken, by the record of its folder.
    """

    def __init__(self, slurm, folder, content, way, past_s=()):
        self.slurm, self.paths, self._way, self._before = (
            slurm,
            RunPaths(folder / "run"),
            way,
            len(past_s),
        )
        site = folder / "site.yaml"
        self._environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
        self._words = [
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

    def came(self):
        """All networks have finished, and no epoch was trained twice."""
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
        return Came(
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
        return json.loads(self.slurm.call(*self._words, *words, **self._environment)).get(
            "walltime"
        )

    def _stops(self):
        lines = read_lines(self.paths.stops) if self.paths.stops.exists() else ()
        return [line for line in lines if line["event"] == "stopped"][self._before :]


WAYS = ("auto", "longest")


def drawn(slurm, folder, seeds, law, way):
    """Chains of ensembles that are drawn."""
    return [
        Chain(slurm, folder / way / str(seed), ensemble(folder / way / str(seed), seed, law), way)
        for seed in seeds
    ]


def handed_in(slurm, chains):
    """Hand all in at once, and wait for the end of the last: what came of each, by way, and after how many minutes."""
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
    return {way: [chain.came() for chain in group] for way, group in chains.items()}, minutes


def check(came):
    """Both ways train the same. What they ask for in the end is up to how fast this machine is, and to Slurm, which may
    warn a job a minute early; so that is not judged, but what they were expected to ask for."""
    assert [entry.epochs for entry in came["auto"]] == [entry.epochs for entry in came["longest"]]
    assert sum(entry.expected_min for entry in came["auto"]) < sum(
        entry.expected_min for entry in came["longest"]
    )


def line(way, came, minutes):
    """A row of a table: all together, and the median of one ensemble with the least and the most."""
    requests = [sum(entry.asked_min) for entry in came]
    used = [entry.used_min for entry in came]
    return (
        f"| {way} | {len(came)} | {sum(len(entry.asked_min) for entry in came)} | {sum(requests):.0f} | "
        f"{sum(entry.expected_min for entry in came):.0f} | {spread(requests)} | {sum(used):.1f} | {spread(used)} | "
        f"{minutes:.1f} |"
    )


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def test_automatic_walltimes_finish_with_the_same_training(slurm, tmp_path):
    slurm.clean()
    chains = {way: drawn(slurm, tmp_path, range(2), SHORT, way) for way in WAYS}
    for way, group in chains.items():
        folder = tmp_path / way / "alone"
        group.append(Chain(slurm, folder, ensemble(folder, 0, ALONE, MOST_EPOCHS), way, PAST_S))
    came, _ = handed_in(slurm, chains)
    check(came)
    assert len(came["auto"][-1].asked_min) > 1


@pytest.mark.long
def test_thirty_ensembles_that_ask_for_what_costs_least(slurm, tmp_path):
    came = {}
    for way in WAYS:
        slurm.clean()
        result, minutes = handed_in(slurm, {way: drawn(slurm, tmp_path, range(30), FULL, way)})
        print(line(way, result[way], minutes))
        came |= result
    shares = [
        sum(entry.asked_min) / sum(second.asked_min)
        for entry, second in zip(*came.values(), strict=True)
    ]
    print(
        f"asked for with auto, of one request: {spread(shares, 2)}; "
        f"less in {sum(share < 1 for share in shares)}, more in {sum(share > 1 for share in shares)}"
    )
    check(came)
