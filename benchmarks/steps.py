"""Measure the overhead of a training step, with one step per TensorFlow call and with several.

    python benchmarks/steps.py [SPEC] [--networks cnn-1 plain] [--rounds 12] [--batch 512]

One rank trains each network of the spec (default: the digits) on random samples, 16 steps at a
time, in calls of 1, 2, 4, 8 and 16 steps, in turns. The minimum CPU time per step counts. A line is
fitted through these times over calls per step: its slope is the overhead of a call, its intercept
the arithmetic of a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.commands.output import print_json
from fleet.engines.base import Engine
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches, steps_of
from fleet.runtime.startup.data import open_inputs, resolve_with_data
from fleet.runtime.training.rate_measurement import make_samples
from fleet.spec import NetworkSpec, load
from fleet.terminal import print_table
from preprocess.sample import SampleSpec

STEPS, STEPS_PER_CALL = 16, (1, 2, 4, 8, 16)


def step_times(
    engine: Engine, network: NetworkSpec, sample: SampleSpec, rounds: int, size: int
) -> list[float]:
    """Return the CPU milliseconds of a step, for each of :data:`STEPS_PER_CALL`."""
    images, targets = make_samples(sample, STEPS * size)
    trainable = engine.build(network, SingleRankGroup())
    steps = steps_of(trainable, is_alone=True)
    samples = (images, *sample.target.split(targets))
    fastest = [np.inf] * len(STEPS_PER_CALL)
    for _ in range(rounds + 1):  # the first one traces
        for index, count in enumerate(STEPS_PER_CALL):
            began = time.process_time()
            for first in range(0, STEPS * size, count * size):
                rows = slice(first, first + count * size)
                local_rows = tuple(part[rows].copy() for part in samples)
                sizes = [size] * count
                steps.begin_steps(StepBatches(local_rows, sizes, sizes))()
            fastest[index] = min(fastest[index], 1e3 * (time.process_time() - began) / STEPS)
    trainable.close()
    return fastest


def split_times(times: Sequence[float]) -> tuple[float, float]:
    """Return (milliseconds of overhead per call, milliseconds of arithmetic per step)."""
    slope, start = np.polyfit([1 / count for count in STEPS_PER_CALL], times, 1)
    return float(slope), float(start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", nargs="?", default="examples/digits.yaml")
    parser.add_argument("--networks", nargs="+", help="networks to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, help="samples per batch (default: as in the spec)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    spec = load(arguments.spec)
    opened = open_inputs(spec)
    [spec] = resolve_with_data(opened, spec)
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
        ["network", *(f"{count} per call" for count in STEPS_PER_CALL), "call", "arithmetic"],
        [[name, *times, *split_times(times)] for name, times in measured.items()],
        title="CPU ms per step",
    )


if __name__ == "__main__":
    main()
