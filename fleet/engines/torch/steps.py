"""Train a PyTorch module step by step, on one rank of its group.

Each rank sums the losses of its own rows and divides by the rows of the *global* batch; the
exchange sums over the ranks; a later correction accounts for unreadable rows. So uneven shares are
exact, and a rank without rows contributes zeros. On a GPU the steps of a single rank are queued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fleet.comm.protocols import Group
from fleet.engines.base import (
    INDEX,
    WIDTH,
    Rows,
    StepResult,
    StepTotals,
    select_readable,
    split_batches,
    with_indices,
)
from fleet.engines.measures import Measures
from fleet.engines.own_step import LOSS
from fleet.engines.several_targets import LossOfTargets
from fleet.engines.steps import MAX_STEPS, StepBatches, StepCapabilities, finished
from fleet.engines.torch import devices
from fleet.engines.torch.deferred_augmentation import augment_deferred
from fleet.engines.torch.exchange import Exchange
from fleet.engines.torch.export import Exported
from fleet.engines.torch.flat_parameters import (
    FlatParameters,
    samples_to_device,
    targets_to_device,
    to_device,
)
from fleet.engines.torch.losses import OPS
from fleet.engines.torch.models import Samples
from fleet.engines.torch.optimizer import ModuleOptimizer
from fleet.engines.torch.own_step import TorchStep
from fleet.engines.torch.precision import autocasting
from preprocess.sample import SampleSpec
from preprocess.user_code import (
    UserCode,
    exclusive_generators,
    running_user_code,
    seed_host_generators,
)


class BatchSums(NamedTuple):
    """The sums of the rows of a batch.

    Attributes:
        loss: summed loss, a scalar that can be differentiated.
        correct: number of correct rows, a scalar.
        metric_totals: (metrics,); None without metrics.
    """

    loss: Tensor
    correct: Tensor
    metric_totals: Tensor | None


class TakesRecordedSteps(Protocol):
    """See :class:`fleet.engines.torch.recorded_steps.RecordedSteps`."""

    def take(
        self, local_rows: Rows, sizes: Sequence[int], stop: bool, totals: Sequence[Tensor]
    ) -> None:
        """Take steps, by recordings where there are any."""


@dataclass(eq=False)
class TorchSteps:
    """The steps of a module, in one group after another.

    Attributes:
        exported: calls the module on samples as they travel.
        flat: parameters of the module.
        updates: optimizer of the parameters.
        exchange_of: creates the exchange of a group.
        exchange: exchange of the present group.
        seed: seed of all random numbers in steps.
        precision: ``train.precision`` of the network.
        code: user code that computes a part of a step.
        own_step: a step of the user, instead of the loss of ``measures``; None without one.
        parts: indices of the parameters of each optimizer, by its name; empty if there is one.
        compiled: calls the module in training, if it is compiled.
        evaluation_calls: calls of the network since its last step.
        is_new: True before the first step.
        transforms_batches: True if batches of training are those of
            :mod:`fleet.engines.batch_transforms`.
        recorded: takes steps of a group of one rank without Python's part; None if it cannot.
    """

    exported: Exported
    flat: FlatParameters
    updates: ModuleOptimizer
    sample: SampleSpec
    measures: Measures
    exchange_of: Callable[[Group], Exchange]
    exchange: Exchange
    seed: int
    precision: str
    code: UserCode | None
    own_step: TorchStep | None = None
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    compiled: Callable[..., Tensor] | None = None
    evaluation_calls: int = 0
    is_new: bool = True
    transforms_batches: bool = False
    recorded: TakesRecordedSteps | None = None

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self.flat.weights.device

    @property
    def capabilities(self) -> StepCapabilities:
        """See :class:`fleet.engines.steps.SupportsSteps`."""
        takes_several = self.exchange.group.size == 1 and not self.sample.varying
        return StepCapabilities(
            MAX_STEPS if takes_several else 1,
            can_overlap=devices.is_gpu(self.device),
            lengths="any" if self.compiled is None else "few",
        )

    def regroup(self, group: Group) -> None:
        """Move to another group."""
        self.exchange.close()
        self.exchange = self.exchange_of(group)

    def begin(
        self, batches: StepBatches, indices: np.ndarray | None = None
    ) -> Callable[[], StepResult]:
        """Take steps, or queue them; see :meth:`fleet.engines.steps.SupportsSteps.begin_steps`.

        Args:
            batches: the batches.
            indices: (rows,) int64, rows of the samples in the data set, for a step of the user.
        """
        local_rows, sizes, _, flags = batches
        if self.own_step is not None:
            local_rows = with_indices(local_rows, indices)
        if self.exchange.group.size > 1:
            total = self._step_together(select_readable(local_rows), sizes[0], flags.stop)
            return finished([total])
        is_queued = devices.is_gpu(self.device)
        totals = torch.zeros(len(sizes), len(self.flat.totals), pin_memory=is_queued)
        totals[:, INDEX["stop"]] = flags.stop
        with running_user_code(self.code, quick=True):
            if self.recorded is not None:
                self.recorded.take(local_rows, sizes, flags.stop, totals.unbind())
            else:
                for rows, size, step_totals in zip(
                    split_batches(local_rows, sizes), sizes, totals, strict=True
                ):
                    self.step_alone(select_readable(rows), size, flags.stop, step_totals)
        end = torch.accelerator.current_stream().record_event() if is_queued else None

        def wait() -> StepResult:
            if end is not None:
                end.synchronize()
            sums = [StepTotals.unpack(row) for row in totals.tolist()]
            return StepResult(sums, time.perf_counter())

        return wait

    def step_alone(self, local_rows: Rows, size: int, stop: bool, totals: Tensor) -> None:
        """Take or queue a step; a batch without readable samples changes nothing.

        Args:
            local_rows: readable rows of the batch.
            size: number of rows of the batch, including unreadable ones.
            stop: True to stop after the step.
            totals: (6 + metrics,), overwritten when the step has been computed.
        """
        if not len(local_rows[1]):
            return
        correction = size / len(local_rows[1])
        *firsts, last = self._rounds
        earlier = []
        for optimizer in firsts:
            unused = self._compute(local_rows, size, stop, optimizer)
            self.updates.step_part(correction, unused)
            earlier.append(self.flat.totals.clone())
        unused = self._compute(local_rows, size, stop, last)
        self.updates.step(correction, unused)
        self._add_rounds(earlier)
        totals.copy_(self.flat.totals, non_blocking=True)

    @property
    def _rounds(self) -> tuple[str | None, ...]:
        """The optimizers that step one after another; None for all."""
        return (None,) if self.own_step is None else self.own_step.rounds

    def _add_rounds(self, earlier: Sequence[Tensor]) -> None:
        """Add sums of earlier rounds of a step, (6 + metrics,) each, to the current totals."""
        for totals in earlier:
            totals[INDEX["count"] : WIDTH] = 0
            self.flat.totals.add_(totals)

    def _step_together(self, local_rows: Rows, size: int, stop: bool) -> StepTotals:
        """Take a step with the other ranks of the group, and return its totals."""
        *firsts, last = self._rounds
        earlier = []
        for optimizer in firsts:
            self._take_round(local_rows, size, stop, optimizer, self.updates.step_part)
            earlier.append(self.flat.totals.clone())
        total = self._take_round(local_rows, size, stop, last, self.updates.step)
        if not earlier:
            return total
        self._add_rounds(earlier)
        return self.flat.read_totals()

    def _take_round(
        self,
        local_rows: Rows,
        size: int,
        stop: bool,
        optimizer: str | None,
        update: Callable[[float, list[int]], None],
    ) -> StepTotals:
        """Compute, exchange and apply gradients once, and return the totals of all ranks.

        Args:
            local_rows: readable rows of this rank.
            size: number of rows of the global batch.
            stop: True if this rank asks the group to stop.
            optimizer: the optimizer that steps; None for all.
            update: applies the gradients: (correction, indices of unused parameters).
        """
        error: BaseException | None = None
        with running_user_code(self.code, quick=True):
            try:
                if len(local_rows[1]):
                    self._compute(local_rows, size, stop, optimizer)
                else:
                    self.flat.write_empty_totals(stop, failed=False)
            except BaseException as caught:  # even an exit: the other ranks wait for this one
                error = caught
                self.flat.write_empty_totals(stop, failed=True)
            self.exchange.finish(self.flat)
            total = self.flat.read_totals()
            total.raise_failure(error)
            if total.count:  # a batch without readable samples changes nothing
                update(size / total.count, self.flat.find_unused())
        return total

    def _compute(
        self, local_rows: Rows, size: int, stop: bool, optimizer: str | None = None
    ) -> list[int]:
        """Compute this rank's share of the gradient of the mean loss, and of the totals.

        Args:
            local_rows: readable rows of this rank, at least one.
            size: number of rows of the global batch.
            stop: True if this rank asks the group to stop.
            optimizer: the optimizer that steps next; None for all.

        Returns:
            The indices of parameters without a gradient on this rank.
        """
        in_place = bool(self.parts) or self.exchange.in_place or self.device.type == "cpu"
        if in_place:  # on a GPU, separate gradients are faster
            self.flat.zero_gradients()
        else:
            self.flat.detach_gradients()
        self.exchange.begin(self.flat)
        self.evaluation_calls = 0
        with self.seeded_generators():
            with (
                single_row_statistics(self.exported.module)
                if len(local_rows[0]) == 1
                else nullcontext()
            ):
                if self.own_step is not None:
                    losses = self.write_own_totals(self.own_step, local_rows, True, stop, optimizer)
                else:
                    outputs = self.outputs(local_rows[0], self.transforms_batches)
                    loss = self.write_totals(
                        outputs, local_rows[1:], self.measures.losses.training, stop
                    )
                    losses = {LOSS: loss}
            if self.parts:
                unused = self._differentiate(losses, size)
            else:
                self.updates.scaled(losses[LOSS] / size).backward()
        if self.is_new:
            self.flat.check_parameters(self.exported.module)
            self.is_new = False
        if self.parts:
            pass  # gradients have been written
        elif in_place:
            self.flat.check_gradients()
            unused = self.flat.find_untouched()
        else:
            unused = self.flat.gather_gradients()
        self.flat.restore_weights()
        if self.exchange.group.size > 1:
            self.flat.flag_unused(unused)
        return unused

    def take_gradients(self, rows: Rows, size: int) -> None:
        """Compute the gradients of the next step on one rank, without a step.

        Args:
            rows: readable rows of the batch, at least one.
            size: number of rows of the batch, including unreadable ones.
        """
        with running_user_code(self.code, quick=True):
            self._compute(rows, size, stop=False)

    def _differentiate(self, losses: Mapping[str, Tensor], size: int) -> list[int]:
        """Write the gradient of each loss by the parameters of its optimizer.

        Args:
            losses: summed loss by the name of its optimizer.
            size: number of rows of the global batch.

        Returns:
            The indices of parameters without a gradient.
        """
        parameters = list(self.flat.parameters.values())
        unused = set(range(len(parameters)))
        for name, loss in losses.items():
            indices = self.parts[name]
            gradients = torch.autograd.grad(
                self.updates.scaled(loss / size),
                [parameters[index] for index in indices],
                retain_graph=len(losses) > 1,
                allow_unused=True,
            )
            for index, gradient in zip(indices, gradients, strict=True):
                if gradient is not None:
                    self.flat.gradient_views[index].copy_(gradient)
                    unused.discard(index)
        return sorted(unused)

    @contextmanager
    def seeded_generators(self, call: int = 0) -> Iterator[None]:
        """Seed all generators from the network's seed, its step and this rank.

        Args:
            call: number of the call since the last step; 0 for the next step.
        """
        seed = mix_seed(self.seed + call, self.updates.steps, self.exchange.group.rank)
        with exclusive_generators():
            torch.default_generator.manual_seed(seed)
            devices.seed(self.device, seed)
            if self.code is not None:
                seed_host_generators(seed)
            yield

    def outputs(self, inputs: np.ndarray, is_scaled: bool = False) -> Tensor:
        """Return logits or values, float32; for masks with classes last, as a view."""
        return self.outputs_of(self.samples(inputs), is_scaled)

    def outputs_of(self, samples: Samples, is_scaled: bool = False) -> Tensor:
        """Return the outputs for samples on the device, as :meth:`outputs` does."""
        call: Callable[..., Tensor] = self.exported
        if self.compiled is not None and self.exported.module.training:
            call = self.compiled
        with autocasting(self.precision, self.device):
            return call(samples, is_scaled)

    def samples(self, inputs: np.ndarray) -> Samples:
        """Return samples on the device, as the stream carries them."""
        return self.augmented(samples_to_device(inputs, self.device))

    def augmented(self, samples: Samples) -> Samples:
        """Return samples on the device after the transforms that were left to it."""
        if (
            isinstance(samples, Tensor) and samples.ndim == 2
        ):  # packed rows, unlike the inputs of try_export
            samples = augment_deferred(samples, self.sample)
        return samples

    def write_own_totals(
        self,
        own_step: TorchStep,
        local_rows: Rows,
        training: bool,
        stop: bool,
        optimizer: str | None = None,
    ) -> Mapping[str, Tensor]:
        """Write the totals that a step of the user computes, and return its summed losses.

        Args:
            own_step: the step.
            local_rows: readable rows, with their rows in the data set after the inputs.
            training: False in evaluation.
            stop: True if this rank asks the group to stop.
            optimizer: the optimizer that steps next; None for all.
        """
        inputs = self.exported.prepare(self.samples(local_rows[0]))
        batch = own_step.batch_of(inputs, local_rows, self.device)
        with autocasting(self.precision, self.device):
            sums = own_step.sums(self.exported.module, batch, training, optimizer)
        self.flat.write_totals(
            sums.loss.detach(), sums.correct, len(local_rows[1]), stop, sums.metric_totals
        )
        return sums.losses

    def write_totals(
        self,
        outputs: Tensor,
        local_rows: Rows,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        stop: bool,
    ) -> Tensor:
        """Write the totals of readable rows, and return their summed loss, a scalar."""
        targets = targets_to_device(local_rows[0], self.device)
        weights = None
        if len(local_rows) > 1:
            weights = to_device(np.array(local_rows[1]), self.device)
        sums = self.sums(outputs, targets, weights, loss_of)
        self.flat.write_totals(
            sums.loss.detach(), sums.correct, len(local_rows[0]), stop, sums.metric_totals
        )
        return sums.loss

    def sums(
        self,
        outputs: Tensor,
        targets: Tensor | Mapping[str, Tensor],
        weights: Tensor | None,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        has_metrics: bool = True,
    ) -> BatchSums:
        """Return the sums of readable rows from the outputs of the module.

        Args:
            outputs: (n, ...) logits or values.
            targets: (n, ...); of several targets, by name.
            weights: (n,) of the rows; None if all count alike.
            loss_of: returns the loss of each row.
            has_metrics: False to leave out the metrics.
        """
        if isinstance(targets, Mapping):
            assert isinstance(loss_of, LossOfTargets)
            assert weights is not None
            return self._sums_of_targets(outputs, targets, weights, loss_of)
        losses = loss_of(outputs, targets)
        if weights is not None:
            losses = losses * weights
        loss = losses.sum()
        with torch.no_grad():
            if self.transforms_batches:
                targets = OPS.most_likely(targets, self.sample.target)
            correct = self.measures.losses.correct(outputs, targets).sum(dtype=torch.float32)
            metric_totals = None
            if has_metrics:
                metric_totals = self.measures.metrics.sums(outputs.detach(), targets)
        return BatchSums(loss, correct, metric_totals)

    def _sums_of_targets(
        self,
        outputs: Tensor,
        targets: Mapping[str, Tensor],
        weights: Tensor,
        loss_of: LossOfTargets,
    ) -> BatchSums:
        """Return the sums of several targets; see :meth:`sums`."""
        by_target = {
            name: (losses * weights).sum()
            for name, losses in loss_of.by_target(outputs, targets).items()
        }
        loss = loss_of.total(by_target)
        with torch.no_grad():
            metric_totals = self.measures.metrics.sums(
                outputs.detach(),
                targets,
                {name: value.detach() for name, value in by_target.items()},
                torch.sum,
                weights.new_tensor(len(weights)),
            )
        return BatchSums(loss, weights.new_zeros(()), metric_totals)


@contextmanager
def single_row_statistics(module: nn.Module) -> Iterator[None]:
    """Use running statistics in batch normalization of a single number per channel."""
    switched: list[nn.Module] = []

    def use_running_statistics(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if norm.training and inputs[0].numel() == inputs[0].shape[1]:
            norm.training = False
            switched.append(norm)

    hooks = [
        layer.register_forward_pre_hook(use_running_statistics)
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm in switched:
            norm.training = True


def mix_seed(seed: int, step: int, rank: int) -> int:
    """Return a seed for a step on a rank, decorrelated from its neighbors (SplitMix64).

    Args:
        seed: seed of the network.
        step: number of the step.
        rank: rank in the group.
    """
    mask = 2**64 - 1
    state = (seed + step * 0x9E3779B97F4A7C15 + rank * 0xD1B54A32D192ED03) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) & mask
    return state
