"""Measure Python's share of a training step, and what several steps per call save.

    python benchmarks/steps.py [SPEC] [--engine keras torch] [--networks softmax] [--rounds 12]
        [--batch 512] [--json]

One rank trains each network of the spec (default: the digits) on random samples, 32 steps at a
time, in calls of 1 to 32 steps, in turns. The minimum CPU time of a step counts.

- keras: TensorFlow computes in threads of its own, so Python's part is the CPU time of the main
  thread.
- torch: "recorded" are steps as FLEET takes them after a while, "modules" those before, by the
  code of modules, autograd and ``torch.optim``. A program of TorchScript calls the same kernels
  without Python; what a step takes beyond it is Python's part.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fleet.comm.single_rank import SingleRankGroup
from fleet.commands.output import print_json
from fleet.engines.base import Rows
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches, steps_of
from fleet.runtime.startup.data import open_inputs, resolve_with_data
from fleet.runtime.training.rate_measurement import make_samples
from fleet.spec import NetworkSpec, Spec, parse
from fleet.terminal import print_table
from preprocess.sample import SampleSpec

STEPS, STEPS_PER_CALL = 32, (1, 2, 4, 8, 16, 32)

# CPU microseconds of a step, and Python's part of it, if known.
Times = dict[str, tuple[float, float | None]]


def shortest_times(
    rounds: int, sides: Mapping[str, Callable[[], Any]]
) -> dict[str, tuple[float, float]]:
    """Return the minimum CPU time of a step of each side, and of its main thread, in turns.

    Args:
        rounds: number of turns.
        sides: functions that take :data:`STEPS` steps, by name.
    """
    times = dict.fromkeys(sides, (np.inf, np.inf))
    for _ in range(rounds + 1):  # the first one traces
        for name, take in sides.items():
            began = time.process_time()
            thread_began = time.thread_time()
            take()
            thread_us = 1e6 * (time.thread_time() - thread_began) / STEPS
            cpu_us = 1e6 * (time.process_time() - began) / STEPS
            times[name] = min(times[name][0], cpu_us), min(times[name][1], thread_us)
    return times


def take_steps(steps: Any, samples: Rows, size: int, count: int) -> None:
    """Take :data:`STEPS` steps, a number of them per call."""
    for first in range(0, STEPS * size, count * size):
        rows = tuple(part[first : first + count * size].copy() for part in samples)
        sizes = [size] * count
        steps.begin_steps(StepBatches(rows, sizes, sizes))()


def keras_times(trainable: Any, samples: Rows, size: int, rounds: int) -> Times:
    """Return the times of steps of Keras on TensorFlow, by the number of steps per call."""
    steps = steps_of(trainable, is_alone=True)

    def taking(count: int) -> Callable[[], None]:
        return lambda: take_steps(steps, samples, size, count)

    return {
        **shortest_times(rounds, {f"{count} per call": taking(count) for count in STEPS_PER_CALL})
    }


def torch_times(build: Callable[[], Any], samples: Rows, size: int, rounds: int) -> Times:
    """Return the times of steps of PyTorch by modules, by recordings, and without Python."""
    from fleet.engines.torch.recorded_steps import RecordedSteps, Recording

    plain = build()
    recorded = build()
    plain.steps.recorded = None
    plain.steps.updates.flat_optimizer.is_used = False
    recorded.steps.recorded = RecordedSteps(recorded.steps, Recording, after=1)
    take_steps(recorded, samples, size, STEPS)
    [recording] = recorded.steps.recorded.recordings.values()
    if recording is None:
        raise SystemExit("this network cannot be recorded")
    sides: dict[str, Callable[[], Any]] = {
        "modules": lambda: take_steps(plain, samples, size, STEPS),
        "recorded": lambda: take_steps(recorded, samples, size, STEPS),
    }
    kernels = without_python(recorded.steps, recording, samples, size)
    if kernels is not None:
        sides["kernels"] = kernels
    times = shortest_times(rounds, sides)
    plain.close()
    recorded.close()
    floor = times["kernels"][0] if kernels is not None else None
    return {name: (cpu, None if floor is None else cpu - floor) for name, (cpu, _) in times.items()}


def without_python(
    steps: Any, recording: Any, samples: Rows, size: int
) -> Callable[[], None] | None:
    """Return a function that calls the kernels of :data:`STEPS` steps by TorchScript.

    Returns:
        None if TorchScript does not know one of the kernels, such as the gradient of a convolution.
    """
    import torch

    inputs, targets, *weights = (torch.from_numpy(part[:size].copy()) for part in samples)
    batch = [inputs, targets, *weights]
    flat = steps.flat
    rule = steps.updates.flat_optimizer.rule

    def step(*arguments: torch.Tensor) -> Any:
        sums, *gradients = recording.graph(*arguments)
        flat.gradients.zero_()
        for view, gradient in zip(flat.gradient_views, gradients, strict=True):
            view.add_(gradient)
        if rule is not None:
            rule.step(flat.gradients)
        return sums

    arguments = (*recording.state(), *batch)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.jit.trace(step, arguments, check_trace=False)
        except RuntimeError:
            return None

    def take() -> None:
        with torch.no_grad():
            for _ in range(STEPS):
                program(*arguments)

    return take


def measure(
    spec: Spec, network: NetworkSpec, sample: SampleSpec, size: int, rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each way in which an engine takes the steps of a network."""
    engine = make_engine(spec, sample, None, 0, 4)
    images, targets = make_samples(sample, STEPS * size)
    samples = (images, *sample.target.split(targets))

    def build() -> Any:
        return engine.build(network, SingleRankGroup())

    if spec.resources.engine == "torch":
        times = torch_times(build, samples, size, rounds)
    else:
        trainable = build()
        times = keras_times(trainable, samples, size, rounds)
        trainable.close()
    return [
        {
            "engine": spec.resources.engine,
            "network": network.name,
            "batch": size,
            "steps": way,
            "cpu_us": round(cpu, 1),
            "python_us": None if python is None else round(python, 1),
            "share": None if python is None else round(python / cpu, 3),
        }
        for way, (cpu, python) in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", nargs="?", default="examples/digits.yaml")
    parser.add_argument("--engine", choices=("keras", "torch"), help="(default: the spec's)")
    parser.add_argument("--networks", nargs="+", help="networks to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, help="samples per batch (default: as in the spec)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    content = yaml.safe_load(Path(arguments.spec).read_text())
    if arguments.engine is not None:
        content.setdefault("resources", {})["engine"] = arguments.engine
    spec = parse(content)
    opened = open_inputs(spec)
    [spec] = resolve_with_data(opened, spec)
    rows = [
        row
        for network in spec.networks
        if arguments.networks is None or network.name in arguments.networks
        for row in measure(
            spec,
            network,
            opened.sample,
            arguments.batch or network.largest_batch(1),
            arguments.rounds,
        )
    ]
    if arguments.json:
        print_json(rows)
        return
    print_table(
        ["network", "batch", "steps", "CPU, us", "Python's part, us", "share"],
        [list(row.values())[1:] for row in rows],
        title="CPU time of a step",
    )


if __name__ == "__main__":
    main()
