"""What a training step of a small network costs beside its arithmetic: one step per call of TensorFlow, and several.

    python benchmarks/steps.py [SPEC] [--networks cnn-1 plain] [--rounds 12] [--batch 512]

A rank alone trains each network of the spec (the digits, if none is named) on samples made up, 16 steps at a time, in
calls of 1, 2, 4, 8 and 16 steps, in turns. The least CPU time of a step counts. What a call costs beside its steps is
the slope of a line through these times over calls per step, and the arithmetic where that line meets 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.commands.output import print_json
from fleet.engines.base import Engine, StepTotals, SupportsAsyncGroupSteps
from fleet.engines.registry import make_engine
from fleet.runtime.inputs import open_inputs, settle
from fleet.runtime.training.rate_measurement import made_up
from fleet.spec import NetworkSpec, load
from fleet.terminal import print_table
from preprocess.sample import SampleSpec

STEPS, AT_ONCE = 16, (1, 2, 4, 8, 16)


def step_times(
    engine: Engine, network: NetworkSpec, sample: SampleSpec, rounds: int, size: int
) -> list[float]:
    """Milliseconds of CPU that a step takes, by how many are taken in a call (:data:`AT_ONCE`)."""
    images, targets = made_up(sample, STEPS * size)
    trainable = engine.build(network, SingleRankGroup())
    assert isinstance(trainable, SupportsAsyncGroupSteps), (
        "benchmarks/steps.py is of the engine keras"
    )
    values, weights = sample.target.split(targets)
    fastest = [np.inf] * len(AT_ONCE)
    for _ in range(rounds + 1):  # the first one traces
        for index, many in enumerate(AT_ONCE):
            began = time.process_time()
            for first in range(0, STEPS * size, many * size):
                rows = slice(first, first + many * size)
                trainable.begin_together(
                    images[rows].copy(),
                    values[rows].copy(),
                    [size] * many,
                    [size] * many,
                    StepTotals(),
                    None if weights is None else weights[rows],
                )()
            fastest[index] = min(fastest[index], 1e3 * (time.process_time() - began) / STEPS)
    trainable.close()
    return fastest


def beside(times: Sequence[float]) -> tuple[float, float]:
    """(Milliseconds of a call beside its steps, milliseconds of a step's arithmetic)."""
    slope, start = np.polyfit([1 / many for many in AT_ONCE], times, 1)
    return float(slope), float(start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", nargs="?", default="examples/digits.yaml")
    parser.add_argument("--networks", nargs="+", help="those that are tried; all, if none is named")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--batch", type=int, help="rows of each; those of the spec, if it is not given"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    spec = load(arguments.spec)
    opened = open_inputs(spec)
    [spec] = settle(opened, spec)
    engine = make_engine(spec, opened.sample, None, 0, 4)
    measured = {
        network.name: step_times(
            engine,
            network,
            opened.sample,
            arguments.rounds,
            arguments.batch or network.largest_batch(1),
        )
        for network in spec.networks
        if arguments.networks is None or network.name in arguments.networks
    }
    if arguments.json:
        print_json(measured)
        return
    print_table(
        ["network", *(f"{many} in a call" for many in AT_ONCE), "a call", "arithmetic"],
        [[name, *times, *beside(times)] for name, times in measured.items()],
        title="CPU ms of a step",
    )


if __name__ == "__main__":
    main()
