"""Try networks in a process without MPI: build each, take a step, export it.

:func:`main` receives a :class:`SmokeTestRequest` through a pipe whose file descriptor is its
argument, and sends back each stage that it begins and the result of each network. User functions
may exit, crash or hang here; the last message tells the parent which stage was running
(:mod:`fleet.checks.trials`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import (
    Engine,
    SupportsInspection,
    SupportsLearningCheck,
    SupportsPretrained,
    Trainable,
    collect_warnings,
)
from fleet.engines.batch_transforms import BatchTransforms
from fleet.engines.failure_reason import describe_failure
from fleet.engines.registry import count_parameters, make_engine
from fleet.engines.steps import StepBatches, steps_of
from fleet.errors import ModelError, SettingError, UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.fit_checks import too_large, training_bytes
from fleet.units import format_size
from launch.processes import end_with_parent
from preprocess.sample import SampleSpec
from scheduler.base import RateTable

_ROWS = 2  # rows of a step: few, because the machine may have no GPU


@dataclass(frozen=True)
class SmokeTestRequest:
    """The networks to try.

    Attributes:
        networks: indices among the networks of the spec.
        rates: training rates, if the spec names a file.
        steps: True to take a training step.
        memory: bytes that a network may take here; larger ones are not built.
        samples: some inputs and targets of each input pipeline, as they travel; zeros replace
            missing ones.
    """

    spec: Spec
    sample: SampleSpec
    networks: tuple[int, ...]
    rates: RateTable | None
    steps: bool
    memory: int
    samples: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass
class SmokeTestResult:
    """The result for one network so far.

    Attributes:
        network: index among the networks of the spec.
        problem: why it cannot be trained; empty if it can.
        setting: keys of the setting that causes the problem, if any.
        parameters: number of parameters; None if unknown.
        memory: estimated bytes on a GPU that trains it; None if unknown.
        notes: remarks for the user.
        warnings: warnings of the engine while building (:class:`fleet.errors.NetworkWarning`).
    """

    network: int
    problem: str = ""
    setting: tuple[str, ...] = ()
    parameters: int | None = None
    memory: int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _SmokeTest:
    """The test of one network."""

    network: NetworkSpec
    request: SmokeTestRequest
    send: Callable[..., None]
    trial: SmokeTestResult

    def run(self, engine: Engine, row_bytes: dict[str, int | None]) -> None:
        """Run all stages.

        Args:
            engine: engine that builds the network.
            row_bytes: step key -> bytes that a step holds per row. A network whose key is present
                takes no step.
        """
        spec = self.request.spec
        network = self.network
        self._begin("building")
        self.trial.parameters = count_parameters(network, spec, self.request.sample)
        if not spec.engine.learns or not self._fits_here():
            return
        with contextlib.closing(engine.build(network, SingleRankGroup())) as trainable:
            start = network.train.initial_weights
            if start and not network.parent and isinstance(trainable, SupportsPretrained):
                trainable.load_pretrained(Path(start.file), start.skip)
            key = _step_key(network)
            if key not in row_bytes:
                row_bytes[key] = self._step(trainable)
            self._measure(trainable, row_bytes[key])
            if (
                spec.engine.exports
                and network.architecture.kind == "import"
                and isinstance(trainable, SupportsInspection)
            ):
                self._begin("the export")
                with tempfile.TemporaryDirectory(prefix="fleet-check-") as folder:
                    note = trainable.try_export(Path(folder))
                    if note:
                        self.trial.notes += (note,)

    def _begin(self, stage: str) -> None:
        self.send(stage=stage, network=self.trial.network)

    def _fits_here(self) -> bool:
        """Return True if this machine has the memory to build the network."""
        parameters = self.trial.parameters
        if parameters is None:
            return True
        self.trial.memory = memory = training_bytes(parameters, self.network, self.request.spec)
        problem = too_large(parameters, self.network, self.request.spec)
        if problem:
            raise ModelError(problem)
        if memory > self.request.memory:
            self.trial.notes += (
                f"not built: it needs {format_size(memory)}, but this machine has "
                f"{format_size(self.request.memory)} of free memory",
            )
        return memory <= self.request.memory

    def _step(self, trainable: Trainable) -> int | None:
        """Take a step if requested, check that it can learn, and return its bytes per row."""
        self._begin("a training step")
        if self.request.steps:
            sample = self.request.sample.for_pipeline(self.network.pipeline)
            array = sample.wire
            target = sample.target
            inputs, targets = self.request.samples.get(self.network.pipeline) or (
                np.zeros((_ROWS, *array.shape), array.dtype),
                target.random_targets(np.random.default_rng(0), _ROWS),
            )
            steps = steps_of(trainable, is_alone=True)
            inputs = steps.capabilities.cut(inputs, sample.varying)
            rows = (inputs, *target.split(targets))
            if isinstance(trainable, SupportsLearningCheck):
                trainable.check_learns(*rows[:2])
            transforms = BatchTransforms.of(
                self.network.train.batch_transforms,
                self.request.sample.for_pipeline(self.network.pipeline, self.network.fold),
                self.network.seed,
            )
            if transforms is not None:
                inputs, targets = transforms(inputs, targets, epoch=0, step=0)
                rows = (inputs, targets["target"], targets["weight"])
            size = min(_ROWS, len(inputs), self.network.train.batch.bounds[0])
            batches = StepBatches(tuple(part[:size] for part in rows), [size], [size])
            steps.begin_steps(batches)()
        try:
            if isinstance(trainable, SupportsInspection):
                return trainable.row_bytes()
            return None
        except Exception:  # no step was requested, and it would have failed
            return None

    def _measure(self, trainable: Trainable, row_bytes: int | None) -> None:
        network = self.network
        if isinstance(trainable, SupportsInspection):
            self.trial.parameters = trainable.count_parameters()
        parameters = self.trial.parameters
        if parameters is not None:
            rows = -(-network.global_batch(network.min_gpus) // network.min_gpus)
            self.trial.memory = training_bytes(parameters, network, self.request.spec) + rows * (
                row_bytes or 0
            )


def main() -> None:
    """Serve one request from the parent process."""
    # End with the parent process, even if user code hangs (Linux).
    end_with_parent()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)  # processes started by user code would hold it open
    _try_all(pipe.recv(), pipe)
    os._exit(0)  # do not wait for threads that user code has started


def _try_all(request: SmokeTestRequest, pipe: Connection) -> None:
    def send(**message: Any) -> None:
        pipe.send(message)

    send(stage="starting")
    engine = None
    if request.spec.engine.learns:
        try:
            engine = make_engine(request.spec, request.sample, request.rates, 0, 1)
        except ImportError as error:
            send(missing=describe_failure(error))
            return
        except UserError as error:
            send(unusable=str(error))
            return
    row_bytes: dict[str, int | None] = {}
    for index in request.networks:
        trial = SmokeTestResult(index)
        _try(_SmokeTest(request.spec.networks[index], request, send, trial), engine, row_bytes)
        send(trial=trial)


def _try(test: _SmokeTest, engine: Engine | None, row_bytes: dict[str, int | None]) -> None:
    trial = test.trial
    with collect_warnings() as messages:
        try:
            # An engine that does not learn is None; run() does not use it.
            test.run(engine, row_bytes)  # type: ignore[arg-type]
        except SettingError as error:
            trial.problem = str(error)
            trial.setting = error.setting
        except BaseException as error:  # a user's function may raise anything
            trial.problem = describe_failure(error) + _explain_lengths(test)
    trial.warnings = tuple(messages)


def _explain_lengths(test: _SmokeTest) -> str:
    """Explain that rows of batches differ in length; empty if they do not."""
    varying = test.request.sample.for_pipeline(test.network.pipeline).varying
    if not varying:
        return ""
    return (
        f" (batches of {', '.join(varying)} are cut to their longest row; for networks that need "
        "rows of one length, write data.pad: {NAME: {to: NUMBER}})"
    )


def _step_key(network: NetworkSpec) -> str:
    """Return a key that is equal for networks whose steps differ only in numbers."""
    optimizer = dataclasses.replace(network.train.optimizer, learning_rate=1.0)
    settings = {
        **dataclasses.asdict(network.train),
        "optimizer": dataclasses.asdict(optimizer),
        "stopping": None,
    }
    return json.dumps([network.architecture.key, network.pipeline, settings], sort_keys=True)
