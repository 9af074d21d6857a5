"""Train several networks of equal architecture as one program.

The weights of each network become a row of a matrix, and its buffers parts of stacked ones, where
its module and its optimizer see them as before. So a network can be saved, evaluated alone or leave
between any two steps. :mod:`fleet.engines.torch.fused_program` computes gradients for all networks
from one copy of a batch, :mod:`fleet.engines.torch.fused_optimizer` updates all weights.

The first step is computed by each network alone as well. If the numbers differ, something of the
module was not recorded, and the networks are not fused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleet.engines.base import INDEX, WIDTH, Rows, select_readable, split_batches
from fleet.engines.fusing import CannotFuse, FusedResult
from fleet.engines.steps import MAX_STEPS, StepBatches, StepCapabilities
from fleet.engines.torch import devices
from fleet.engines.torch.flat_parameters import targets_to_device, to_device
from fleet.engines.torch.fused_optimizer import FusedOptimizer
from fleet.engines.torch.fused_program import Program, ProgramTotals, Stacked
from fleet.engines.torch.network import TorchNetwork
from fleet.engines.torch.recording import Batch
from fleet.engines.torch.steps import mix_seed
from preprocess.user_code import exclusive_generators, running_user_code

# Relative difference of gradients that is rounding, by precision.
_TOLERANCES = {"float32": 1e-3, "mixed_bfloat16": 0.1, "mixed_float16": 0.05}

# Programs, or why there is none, by what they depend on; networks of a run come and go.
Programs = dict[Any, Program | CannotFuse]


class FusedNetworks:
    """Networks of equal architecture on one rank; see :class:`fleet.engines.fusing.Fused`.

    Args:
        networks: the networks, each alone in its group.
        programs: programs of networks of this architecture; new ones are added.

    Raises:
        CannotFuse: the networks cannot be trained as one program.
    """

    def __init__(self, networks: Sequence[TorchNetwork], programs: Programs) -> None:
        self._networks = networks
        self._steps = [network.steps for network in networks]
        self._programs = programs
        self._is_checked = False
        first = self._steps[0]
        self._device = first.device
        _check_equal(networks)
        flats = [steps.flat for steps in self._steps]
        count = len(networks)
        self._weights = torch.zeros(count, len(flats[0].weights), device=self._device)
        self._buffers = torch.zeros(count, len(flats[0].buffer), device=self._device)
        for flat, weights, buffer in zip(flats, self._weights, self._buffers, strict=True):
            flat.move(weights, buffer)
        width = len(flats[0].weights)
        self._gradients = self._buffers[:, :width]
        self._trained = list(flats[0].parameters)
        self._gradient_views = self._split(self._gradients)
        self._untrained = {
            name: torch.stack([dict(_untrained(network))[name].detach() for network in networks])
            for name, _ in _untrained(networks[0])
        }
        for index, network in enumerate(networks):
            for name, tensor in _untrained(network):
                tensor.data = self._untrained[name][index]
        self._stacked: Stacked = {
            **dict(zip(self._trained, self._split(self._weights), strict=True)),
            **self._untrained,
        }
        self._optimizer = FusedOptimizer(
            [steps.updates for steps in self._steps],
            self._weights,
            self._gradients,
            self._untrained,
        )
        self._width = len(first.flat.totals)

    def _split(self, matrix: Tensor) -> list[Tensor]:
        """Return a view (networks, ...) per trained parameter of a matrix (networks, n)."""
        flat = self._steps[0].flat
        return [
            matrix[:, first:last].view(len(matrix), *parameter.shape)
            for (first, last), parameter in zip(flat.bounds, flat.parameters.values(), strict=True)
        ]

    @property
    def capabilities(self) -> StepCapabilities:
        """How the networks take steps together."""
        is_queued = devices.is_gpu(self._device)
        takes_several = not self._steps[0].sample.varying
        return StepCapabilities(
            MAX_STEPS if takes_several else 1, can_overlap=is_queued, lengths="any"
        )

    def begin_steps(self, batches: StepBatches) -> Callable[[], FusedResult]:
        """Take steps, or queue them; see :meth:`fleet.engines.fusing.Fused.begin_steps`."""
        local_rows, sizes, _, _ = batches
        is_queued = devices.is_gpu(self._device)
        totals = torch.zeros(len(sizes), len(self._networks), self._width, pin_memory=is_queued)
        for rows, size, step_totals in zip(
            split_batches(local_rows, sizes), sizes, totals, strict=True
        ):
            self._step(select_readable(rows), size, step_totals)
        end = torch.accelerator.current_stream().record_event() if is_queued else None

        def wait() -> FusedResult:
            if end is not None:
                end.synchronize()
            return FusedResult(totals.double().numpy(), time.perf_counter())

        return wait

    def _step(self, rows: Rows, size: int, totals: Tensor) -> None:
        """Take or queue a step; a batch without readable samples changes nothing.

        Args:
            rows: readable rows of the batch.
            size: number of rows of the batch, including unreadable ones.
            totals: (networks, 6 + metrics), overwritten when the step has been computed.
        """
        count = len(rows[1])
        if not count:
            return
        batch = self._batch(rows)
        try:
            program = self._program(batch, is_training=True)
        except CannotFuse:
            if not self._is_checked:
                raise
            self._step_alone(rows, size, totals)
            return
        scales = self._scales(size)
        seeds = [mix_seed(steps.seed, steps.updates.steps, 0) for steps in self._steps]
        if not self._is_checked:
            self._check(program, batch, rows, size, scales, seeds)
            self._is_checked = True
        if program.is_random:
            program.generators.seed(seeds)
        computed = program(self._stacked, scales, batch)
        unused = self._store(computed)
        self._optimizer.step(size / count, unused)
        self._write(totals, computed, count)

    def _step_alone(self, rows: Rows, size: int, totals: Tensor) -> None:
        """Take a step of each network alone, for a batch whose size cannot be recorded."""
        self._optimizer.write_counts()
        for steps, row in zip(self._steps, totals, strict=True):
            steps.step_alone(rows, size, False, row)
        self._optimizer.read_counts()

    def _scales(self, size: int) -> Tensor:
        """Return (networks,) factors of the losses that are differentiated."""
        return torch.tensor(
            [steps.updates.loss_scale / size for steps in self._steps], device=self._device
        )

    def _store(self, computed: ProgramTotals) -> list[int]:
        """Store gradients; returns the indices of parameters without one."""
        pairs = list(zip(self._gradient_views, computed.gradients, strict=True))
        torch._foreach_copy_(
            [view for view, gradient in pairs if gradient is not None],
            [gradient for _, gradient in pairs if gradient is not None],
        )
        unused = [index for index, (_, gradient) in enumerate(pairs) if gradient is None]
        for index in unused:
            self._gradient_views[index].zero_()
        return unused

    def _write(self, totals: Tensor, computed: ProgramTotals, count: int) -> None:
        """Write the totals of a batch of some rows; those of a GPU are written later."""
        sums = [computed.loss.float(), computed.correct.float()]
        head = torch.stack(sums, dim=1)
        if computed.metric_totals is not None:
            totals[:, WIDTH:].copy_(computed.metric_totals, non_blocking=True)
        totals[:, :2].copy_(head, non_blocking=True)
        totals[:, INDEX["count"]] = count

    def _batch(self, rows: Rows) -> Batch:
        """Copy rows to the device."""
        return Batch(
            self._steps[0].samples(rows[0]),
            targets_to_device(rows[1], self._device),
            to_device(np.array(rows[2]), self._device) if len(rows) > 2 else None,
        )

    def _program(self, batch: Batch, is_training: bool) -> Program:
        key = (is_training, len(self._networks), batch.shapes)
        program = self._programs.get(key)
        if isinstance(program, CannotFuse):
            raise program
        if program is None:
            steps = self._steps[0]
            trained = self._trained if is_training else ()
            # A recording runs once, which changes buffers.
            copies = {
                **{name: tensor.clone() for name, tensor in self._untrained.items()},
                **dict(zip(self._trained, self._split(self._weights.clone()), strict=True)),
            }
            try:
                with running_user_code(steps.code), exclusive_generators():
                    program = Program(steps, len(self._networks), copies, trained, batch)
            except CannotFuse as failure:
                self._programs[key] = failure
                raise
            self._programs[key] = program
        return program

    def _check(
        self,
        program: Program,
        batch: Batch,
        rows: Rows,
        size: int,
        scales: Tensor,
        seeds: Sequence[int],
    ) -> None:
        """Check that the program computes what each network computes alone; changes nothing.

        Raises:
            CannotFuse: it does not.
        """
        before = {name: tensor.clone() for name, tensor in self._untrained.items()}
        alone = []
        for steps in self._steps:
            steps.take_gradients(rows, size)
            alone.append(steps.flat.gradients.clone())
        after = {name: tensor.clone() for name, tensor in self._untrained.items()}
        self._restore(before)
        program.generators.seed(seeds)
        self._store(program(self._stacked, scales, batch))
        tolerance = _TOLERANCES[self._steps[0].precision]
        for expected, gradients in zip(alone, self._gradients, strict=True):
            if not _agree(expected, gradients, tolerance):
                raise CannotFuse("fused, it computes other gradients than alone")
        for name, expected in after.items():
            if not _agree(expected, self._untrained[name], tolerance):
                raise CannotFuse(f"fused, it computes another {name} than alone")
        self._restore(before)

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self._untrained.items():
            tensor.copy_(values[name])

    def evaluate(self, *rows: np.ndarray) -> np.ndarray:
        """Return the totals of each network; see :meth:`fleet.engines.fusing.Fused.evaluate`."""
        totals = torch.zeros(len(self._networks), self._width)
        readable_rows = select_readable(rows)
        if len(readable_rows[1]):
            batch = self._batch(readable_rows)
            program = self._program(batch, is_training=False)
            for steps in self._steps:
                steps.evaluation_calls += 1
            if program.is_random:
                program.generators.seed(
                    [
                        mix_seed(steps.seed + steps.evaluation_calls, steps.updates.steps, 0)
                        for steps in self._steps
                    ]
                )
            scales = torch.ones(len(self._networks), device=self._device)
            computed = program(self._evaluated, scales, batch)
            self._write(totals, computed, len(readable_rows[1]))
            if devices.is_gpu(self._device):
                torch.accelerator.synchronize()
        return totals.double().numpy()

    @property
    def _evaluated(self) -> Stacked:
        """The weights and buffers with which networks are evaluated: running means, if kept."""
        if self._optimizer.average is None:
            return self._stacked
        return {
            **self._stacked,
            **dict(zip(self._trained, self._split(self._optimizer.average), strict=True)),
            **self._optimizer.statistics,
        }

    def synchronize(self) -> None:
        """Prepare the networks for being saved or evaluated one by one."""
        self._optimizer.write_counts()

    def release(self) -> None:
        """Give each network its own memory."""
        self._optimizer.release()
        for steps, network in zip(self._steps, self._networks, strict=True):
            flat = steps.flat
            flat.move(torch.empty_like(flat.weights), torch.empty_like(flat.buffer))
            for _, tensor in _untrained(network):
                tensor.data = tensor.data.clone()


def _untrained(network: TorchNetwork) -> list[tuple[str, Tensor]]:
    """Return the buffers of a module and its parameters that are not trained, by name."""
    trained = network.steps.flat.parameters
    return [
        *(pair for pair in network.module.named_parameters() if pair[0] not in trained),
        *network.module.named_buffers(),
    ]


def _check_equal(networks: Sequence[TorchNetwork]) -> None:
    """Check that networks can be stacked.

    Raises:
        CannotFuse: they differ, or train in a way that is not recorded.
    """
    first = networks[0]
    if first.steps.own_step is not None:
        raise CannotFuse("train.step computes its loss")
    if first.steps.transforms_batches:
        raise CannotFuse("train.batch_transforms depend on its seed")
    if first.steps.compiled is not None:
        raise CannotFuse("train.compile compiles it alone")
    if any(hook for part in first.module.modules() for hook in _hooks(part)):
        raise CannotFuse("it has hooks")

    def description(network: TorchNetwork) -> Any:
        updates = network.steps.updates
        return (
            {name: tensor.shape for name, tensor in network.steps.flat.parameters.items()},
            {name: tensor.shape for name, tensor in _untrained(network)},
            network.steps.precision,
            updates.accumulate,
            updates.average is None,
        )

    if any(description(network) != description(first) for network in networks):
        raise CannotFuse("its parameters, buffers or precision differ between networks")


def _hooks(part: torch.nn.Module) -> list[Any]:
    return [*part._backward_hooks, *part._backward_pre_hooks]


def _agree(expected: Tensor, computed: Tensor, tolerance: float) -> bool:
    """Return True if values are equal up to rounding."""
    if not expected.is_floating_point():
        return bool((expected == computed).all())
    if not expected.numel():
        return True
    largest = float(expected.abs().nan_to_num(posinf=0.0).max())
    return torch.allclose(
        expected, computed, rtol=tolerance, atol=tolerance * largest + 1e-7, equal_nan=True
    )
