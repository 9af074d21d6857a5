"""A PyTorch module in training: its steps, evaluation, state and export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fleet.comm.protocols import Group
from fleet.engines.base import (
    Arrays,
    EpochProgress,
    Rows,
    StepResult,
    StepTotals,
    check_arrays,
    select_readable,
    with_indices,
)
from fleet.engines.custom import runs_user_code
from fleet.engines.own_step import LOSS
from fleet.engines.steps import StepBatches, StepCapabilities, UserSteps
from fleet.engines.torch import devices
from fleet.engines.torch.export import load, write
from fleet.engines.torch.flat_parameters import (
    as_tensor,
    samples_to_device,
    targets_to_device,
    to_arrays,
)
from fleet.engines.torch.losses import check_losses
from fleet.engines.torch.models import activation_bytes, call_module, count_module_parameters
from fleet.engines.torch.own_step import TorchStep, unchanged_buffers
from fleet.engines.torch.pretrained import load_pretrained
from fleet.engines.torch.steps import TorchSteps
from fleet.errors import ModelError
from preprocess.base import INPUT
from preprocess.sample import RecordSpec
from preprocess.user_code import UserCode, exclusive_generators

_ROWS = 2  # rows of the samples on which memory is estimated


@dataclass(eq=False)
class TorchNetwork:
    """A module in training, on one rank of its group.

    Attributes:
        note_of: returns the note beside the exported weights.
        code: user code that computes a part of a step.
        sample_inputs: inputs of :meth:`check_learns`, for :meth:`try_export`.
    """

    module: nn.Module
    steps: TorchSteps
    note_of: Callable[[], Mapping[str, Any]]
    code: UserCode | None
    sample_inputs: np.ndarray | None = None

    @property
    def capabilities(self) -> StepCapabilities:  # noqa: D102 - see SupportsSteps
        return self.steps.capabilities

    def begin_steps(self, batches: StepBatches) -> Callable[[], StepResult]:  # noqa: D102
        return self.steps.begin(batches)

    def evaluate(self, *rows: np.ndarray) -> StepTotals:  # noqa: D102
        return self.predict(*rows)[0]

    @property
    def user_steps(self) -> UserSteps | None:
        """See :class:`fleet.engines.steps.UserSteps`."""
        step = self.steps.own_step
        if step is None:
            return None
        return UserSteps(
            step.returns_accuracy,
            self.steps.exported.predicts,
            self.steps.begin,
            self._evaluate_by_user,
        )

    @runs_user_code
    def _evaluate_by_user(self, rows: Rows, indices: np.ndarray) -> StepTotals:
        steps = self.steps
        assert steps.own_step is not None
        readable_rows = select_readable(with_indices(rows, indices))
        steps.evaluation_calls += 1
        if not len(readable_rows[1]):
            return StepTotals()
        with steps.seeded_generators(steps.evaluation_calls), self.evaluation_mode():
            steps.write_own_totals(steps.own_step, readable_rows, False, False)
        return steps.flat.read_totals()

    @runs_user_code
    def predict(self, *rows: np.ndarray) -> tuple[StepTotals, np.ndarray]:  # noqa: D102
        valid = rows[-1] >= 0
        steps = self.steps
        steps.evaluation_calls += 1
        with steps.seeded_generators(steps.evaluation_calls), self.evaluation_mode():
            outputs = steps.outputs(rows[0])
            if valid.all():
                readable_outputs = outputs
            else:
                readable_outputs = outputs[torch.from_numpy(valid).to(self.steps.device)]
            if steps.own_step is not None:
                return StepTotals(), outputs.cpu().numpy()
            steps.write_totals(
                readable_outputs,
                select_readable(rows)[1:],
                self.steps.measures.losses.evaluation,
                False,
            )
        return self.steps.flat.read_totals(), outputs.cpu().numpy()

    @runs_user_code
    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:  # noqa: D102
        return self.steps.measures.metrics.scores(metric_totals)

    def average_statistics(self) -> None:
        """Average the floating-point buffers, which each rank updates from its own rows.

        These are the running means and variances of batch normalization.
        """
        group = self.steps.exchange.group
        buffers = [
            *(statistic for statistic in self.module.buffers() if statistic.is_floating_point()),
            *self.steps.updates.statistics.values(),
        ]
        if group.size == 1 or not buffers:
            return
        values = [statistic.detach().cpu().double().reshape(-1).numpy() for statistic in buffers]
        flat = np.concatenate(values)
        group.sum(flat)
        ends = np.cumsum([len(statistic) for statistic in values])[:-1]
        for buffer, mean in zip(buffers, np.split(flat / group.size, ends), strict=True):
            buffer.copy_(torch.from_numpy(mean).view(buffer.shape))

    @runs_user_code
    def learning_rate(self) -> float:  # noqa: D102
        return self.steps.updates.learning_rate()

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self.steps.updates.scale_learning_rate(factor)

    @runs_user_code
    def begin_epoch(self, progress: EpochProgress) -> None:  # noqa: D102 - see SupportsEpochs
        self.steps.updates.begin_epoch(progress)

    @runs_user_code
    def state(self) -> dict[str, np.ndarray]:
        """Return weights and buffers by the module's own names, and the optimizer's state.

        Random numbers in a step follow from the seed, the step and the rank, so they need no state.
        """
        return {
            **to_arrays(self._named()),
            "optimizer/iterations": np.array(self.steps.updates.steps, np.int64),
        }

    @runs_user_code
    def load(self, arrays: Arrays) -> None:  # noqa: D102
        updates = self.steps.updates
        # A checkpoint of FLEET 0.2 has no running means of statistics; they begin with the
        # statistics.
        arrays = {
            **{
                f"optimizer/average/{name}": arrays[f"model/{name}"]
                for name in updates.statistics
                if f"model/{name}" in arrays
            },
            **arrays,
        }
        steps = int(arrays.get("optimizer/iterations", 0))
        of_optimizer = updates.upgraded(
            {
                name.removeprefix("optimizer/"): array
                for name, array in arrays.items()
                if name.startswith("optimizer/")
            },
            steps,
        )
        arrays = {
            **{name: array for name, array in arrays.items() if name.startswith("model/")},
            **{f"optimizer/{name}": array for name, array in of_optimizer.items()},
        }
        named = self._named()
        check_arrays(
            {**{name: tensor.shape for name, tensor in named.items()}, "optimizer/iterations": ()},
            arrays,
        )
        with torch.no_grad():
            for name, tensor in self._named_weights().items():
                tensor.copy_(as_tensor(arrays[name]))
            updates.load(of_optimizer, steps)

    def _named_weights(self) -> dict[str, Tensor]:
        return {f"model/{name}": tensor for name, tensor in self.module.state_dict().items()}

    def _named(self) -> dict[str, Tensor]:
        return {
            **self._named_weights(),
            **{
                f"optimizer/{name}": tensor for name, tensor in self.steps.updates.tensors().items()
            },
        }

    @runs_user_code
    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:  # noqa: D102
        load_pretrained(self.module, file, skip)

    @runs_user_code
    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the weights as safetensors by the module's own names, and a note beside them."""
        self.load(arrays)
        with self.evaluation_mode():
            write(
                to_arrays(self.module.state_dict()),
                self.note_of(),
                path,
                self.steps.exported.files,
            )

    @runs_user_code
    def count_parameters(self) -> int:  # noqa: D102 - see SupportsInspection
        return count_module_parameters(self.module)

    @runs_user_code
    def row_bytes(self) -> int | None:  # noqa: D102
        try:
            return activation_bytes(self.module, partial(_zeros_outputs, self.steps), _ROWS)
        finally:
            self.steps.flat.restore_weights()

    @runs_user_code
    def try_export(self, folder: Path) -> str:  # noqa: D102
        path = folder / "best.safetensors"
        self.export(self.state(), path)
        loaded, note = load(path)
        if not self.steps.exported.predicts:
            return _requirement(note)
        inputs = self.sample_inputs
        if inputs is None or self.steps.sample.deferred_input is not None:
            inputs = self.steps.sample.input.random_inputs(np.random.default_rng(0), 2)
        with self.evaluation_mode():
            expected, repeated = (
                _compute_seeded(lambda: self.steps.outputs(inputs).cpu()) for _ in range(2)
            )
            reloaded = _compute_seeded(
                lambda: loaded(samples_to_device(inputs, torch.device("cpu")))
            )
        tolerance = 1e-3 if self.steps.precision == "float32" else 5e-2
        # Modules that use other random generators than PyTorch's cannot be compared.
        if _agree(expected, repeated, tolerance) and not _agree(expected, reloaded, tolerance):
            raise ModelError(
                "the exported best.safetensors returns other outputs than the network, because the "
                "module uses a tensor that is neither a parameter nor a buffer; register it with "
                "register_buffer"
            )
        return _requirement(note)

    @runs_user_code
    def check_learns(self, inputs: np.ndarray, targets: np.ndarray) -> None:  # noqa: D102
        target_tensor = targets_to_device(np.array(targets), self.steps.device)
        self.steps.flat.zero_gradients()
        self.sample_inputs = np.array(inputs[:2])
        if self.steps.own_step is not None:
            _check_user_step(self.steps, self.steps.own_step, (inputs, targets))
            return
        outputs = self.steps.outputs(inputs)
        if not bool(outputs.isfinite().all()):
            raise ModelError(
                "the untrained model returns NaN or infinity for samples of the data; check its "
                "initial weights and the scale of its inputs"
            )
        check_losses(self.steps.measures.losses, outputs.detach(), target_tensor)
        if outputs.requires_grad:  # with random slopes, even a head of zero weights has gradients
            generator = torch.Generator().manual_seed(0)
            outputs.backward(torch.randn(outputs.shape, generator=generator).to(self.steps.device))
        self.steps.flat.restore_weights()
        if not bool(self.steps.flat.gradients.any()):
            raise ModelError(
                "the outputs of the model depend on no trainable weight, so it cannot learn"
            )

    def regroup(self, group: Group) -> None:  # noqa: D102
        self.steps.regroup(group)

    def close(self) -> None:  # noqa: D102
        self.steps.exchange.close()
        devices.release_memory(self.steps.device)

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluate inside the context, with running means of weights and statistics, if kept."""
        means = self.steps.updates.means()
        before = [tensor.clone() for tensor, _ in means]
        self.module.eval()
        try:
            with torch.no_grad():
                for tensor, mean in means:
                    tensor.copy_(mean)
                yield
        finally:
            self.module.train()
            self.steps.flat.restore_weights()
            for (tensor, _), value in zip(means, before, strict=True):
                tensor.copy_(value)


def _zeros_outputs(steps: TorchSteps) -> Any:
    """Return what a network computes for some samples of zeros."""
    sample = steps.sample
    zeros = {
        name: torch.zeros(_ROWS, *array.shape, device=steps.device)
        for name, array in sample.input.arrays.items()
    }
    if isinstance(sample.input, RecordSpec) and sample.input.collate:
        rows_of_data = sample.input.random_inputs(np.random.default_rng(0), _ROWS)
        zeros = {
            name: torch.from_numpy(rows_of_data[name].copy()).to(steps.device) for name in zeros
        }
    inputs = steps.exported.prepare(zeros if sample.parts else zeros[INPUT])
    module = steps.exported.module
    if steps.own_step is None:
        return call_module(module, inputs)
    random = np.random.default_rng(0)
    targets = sample.target.split(sample.target.random_targets(random, _ROWS))
    rows = (np.zeros(_ROWS), np.arange(_ROWS), *targets)
    batch = steps.own_step.batch_of(inputs, rows, steps.device)
    return steps.own_step.user_step(module, batch, True, steps.own_step.rounds[0])


def _check_user_step(steps: TorchSteps, step: TorchStep, rows: Rows) -> None:
    """Check on samples of the data that losses are finite and depend on weights."""
    with steps.seeded_generators(), unchanged_buffers(steps.exported.module):
        for optimizer in step.rounds:
            losses = steps.write_own_totals(step, with_indices(rows, None), True, False, optimizer)
            for name, loss in losses.items():
                _check_user_loss(steps, step, name, loss)
    steps.flat.restore_weights()


def _check_user_loss(steps: TorchSteps, step: TorchStep, name: str, loss: Tensor) -> None:
    """Check that a loss of a step is finite and depends on the weights that it trains."""
    noun = "loss" if name == LOSS else f"loss {name!r}"
    if not bool(loss.isfinite()):
        raise step.user_step.error(
            f"returned a {noun} of {loss.item()} for samples of the data; it should be finite"
        )
    parameters = list(steps.flat.parameters.values())
    indices = steps.parts.get(name, range(len(parameters)))
    gradients = torch.autograd.grad(
        loss, [parameters[index] for index in indices], retain_graph=True, allow_unused=True
    )
    if not any(gradient is not None and bool(gradient.any()) for gradient in gradients):
        raise step.user_step.error(
            f"returned a {noun} that does not depend on the weights that it trains, so the "
            "network cannot learn"
        )


def _requirement(note: Mapping[str, Any]) -> str:
    """Return what loading an export needs, as one line; empty if nothing."""
    if "build" in note:
        return f"loading best.safetensors requires the module {note['build'].partition(':')[0]}"
    return ""


def _compute_seeded(compute: Callable[[], Tensor]) -> Tensor:
    """Return the result of a function, with the same random numbers each time."""
    with exclusive_generators(), torch.random.fork_rng():
        torch.manual_seed(0)
        return compute()


def _agree(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Return True if outputs are equal up to rounding."""
    atol = tolerance * max(1.0, float(first.abs().max()))
    return torch.allclose(first, second, rtol=tolerance, atol=atol, equal_nan=True)
