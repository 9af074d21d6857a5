"""Train one PyTorch module on one rank of its group.

Each rank sums the losses of its own rows and divides by the rows of the *global* batch; the
exchange sums over the ranks; a later correction accounts for unreadable rows. So uneven shares are
exact, and a rank without rows contributes zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fleet.comm.protocols import Group
from fleet.engines.base import (
    Arrays,
    Rows,
    StepResult,
    StepTotals,
    check_arrays,
    pack_rows,
    select_readable,
    split_batches,
)
from fleet.engines.custom import running_user_code, runs_user_code
from fleet.engines.measures import Measures
from fleet.engines.torch.deferred_augmentation import augment_deferred
from fleet.engines.torch.exchange import Exchange
from fleet.engines.torch.export import Exported, load, write
from fleet.engines.torch.flat_parameters import FlatParameters, as_tensor, to_arrays, to_device
from fleet.engines.torch.losses import check_losses
from fleet.engines.torch.models import activation_bytes, count_module_parameters
from fleet.engines.torch.optimizer import FlatOptimizer
from fleet.engines.torch.pretrained import load_pretrained
from fleet.errors import ModelError
from preprocess.sample import SampleSpec
from preprocess.user_code import UserCode, exclusive_generators, seed_host_generators


class TorchNetwork:
    """A module in training, on one rank of its group.

    Args:
        flat: parameters of the module.
        updates: optimizer of the parameters.
        dtype: dtype of the module's inputs.
        exchange_of: creates the exchange of a group; a network may move between groups.
        seed: seed of all random numbers in steps.
        is_mixed: True to compute with bfloat16 where it is safe.
        note: returns the note beside the exported weights.
        code: user code that computes a part of a step.
        differentiates: True if ``forward`` takes derivatives.
    """

    def __init__(
        self,
        module: nn.Module,
        flat: FlatParameters,
        updates: FlatOptimizer,
        sample: SampleSpec,
        dtype: torch.dtype,
        measures: Measures,
        exchange_of: Callable[[Group], Exchange],
        group: Group,
        seed: int,
        is_mixed: bool,
        note: Callable[[], Mapping[str, Any]],
        code: UserCode | None = None,
        differentiates: bool = False,
    ) -> None:
        self.code = code
        self._evaluation_calls = 0  # calls of the network since its last step
        self.module = module
        self._flat = flat
        self._updates = updates
        self._sample = sample
        if sample.affine is None:
            scale = None
        else:
            scale = (sample.affine.multiplier, sample.affine.offset)
        is_mask = sample.target.kind == "mask"
        self._exported = Exported(module, dtype, scale, is_mask, differentiates)
        self._exported.to(flat.weights.device)
        self._sample_images: np.ndarray | None = None  # images of check_learns, for try_export
        self._dtype = dtype
        self._measures = measures
        self._exchange_of = exchange_of
        self._exchange = exchange_of(group)
        self._seed = seed
        self._is_mixed = is_mixed
        self._is_new = True
        self._device = flat.weights.device
        self._note_of = note
        module.train()

    # ---- methods that the trainer calls ----

    def step(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        weights: np.ndarray | None = None,
    ) -> StepTotals:
        return self._step(pack_rows(images, targets, weights), size, stop)

    def _step(self, rows: Rows, size: int, stop: bool) -> StepTotals:
        with running_user_code(self.code, quick=True):
            return self._step_and_exchange(rows, size, stop)

    def _step_and_exchange(self, rows: Rows, size: int, stop: bool) -> StepTotals:
        local_rows = select_readable(rows)
        unused = list[int]()
        error: BaseException | None = None
        try:
            if len(local_rows[1]):
                unused = self._compute(local_rows, size, stop)
            else:
                self._flat.write_empty_totals(stop, failed=False)
        except BaseException as caught:  # even an exit: the other ranks wait for this rank's part
            error = caught
            self._flat.write_empty_totals(stop, failed=True)
        self._exchange.finish(self._flat)
        total = self._flat.read_totals()
        total.raise_failure(error)
        if total.count:  # a batch without readable samples changes nothing
            if self._exchange.group.size > 1:
                unused = self._flat.find_unused()
            self._updates.step(size / total.count, unused)
        return total

    def can_stride(self) -> bool:  # noqa: D102 - see SupportsMultiStep
        return type(self._exchange) is Exchange

    def stride(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        weights: np.ndarray | None = None,
    ) -> list[StepTotals]:
        batches = split_batches(pack_rows(images, targets, weights), sizes)
        return [self._step(rows, size, False) for rows, size in zip(batches, sizes, strict=True)]

    def evaluate(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> StepTotals:
        return self.predict(images, targets, weights)[0]

    @runs_user_code
    def predict(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> tuple[StepTotals, np.ndarray]:
        valid = (targets if weights is None else weights) >= 0
        self._evaluation_calls += 1
        with self._seeded_generators(self._evaluation_calls), self.evaluation_mode():
            outputs = self._outputs(images)
            if valid.all():
                readable_outputs = outputs
            else:
                readable_outputs = outputs[torch.from_numpy(valid).to(self._device)]
            local_rows = select_readable(pack_rows(images, targets, weights))[1:]
            self._write_totals(
                readable_outputs, local_rows, self._measures.losses.evaluation, False
            )
        return self._flat.read_totals(), outputs.cpu().numpy()

    @runs_user_code
    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:  # noqa: D102
        return self._measures.metrics.scores(metric_totals)

    def average_statistics(self) -> None:
        """Average the floating-point buffers, which each rank updates from its own rows.

        These are the running means and variances of batch normalization.
        """
        group = self._exchange.group
        buffers = [
            *(statistic for statistic in self.module.buffers() if statistic.is_floating_point()),
            *self._updates.statistics.values(),
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
        return self._updates.learning_rate()

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self._updates.scale_learning_rate(factor)

    @runs_user_code
    def state(self) -> dict[str, np.ndarray]:
        """Return weights and buffers by the module's own names, and the optimizer's state.

        Random numbers in a step follow from the seed, the step and the rank, so they need no state.
        """
        return {
            **to_arrays(self._named()),
            "optimizer/iterations": np.array(self._updates.steps, np.int64),
        }

    @runs_user_code
    def load(self, arrays: Arrays) -> None:  # noqa: D102
        # A checkpoint of FLEET 0.2 has no running means of statistics; they begin with the
        # statistics.
        arrays = {
            **{
                f"optimizer/average/{name}": arrays[f"model/{name}"]
                for name in self._updates.statistics
                if f"model/{name}" in arrays
            },
            **arrays,
        }
        named = self._named()
        check_arrays(
            {**{name: tensor.shape for name, tensor in named.items()}, "optimizer/iterations": ()},
            arrays,
        )
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(as_tensor(arrays[name]))
        self._updates.steps = int(arrays["optimizer/iterations"])

    def _named(self) -> dict[str, Tensor]:
        return {
            **{f"model/{name}": tensor for name, tensor in self.module.state_dict().items()},
            **{f"optimizer/{name}": tensor for name, tensor in self._updates.tensors().items()},
        }

    @runs_user_code
    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:  # noqa: D102
        load_pretrained(self.module, file, skip)

    @runs_user_code
    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the weights as safetensors by the module's own names, and a note beside them."""
        self.load(arrays)
        with self.evaluation_mode():
            write(to_arrays(self.module.state_dict()), self._note_of(), path)

    @runs_user_code
    def count_parameters(self) -> int:  # noqa: D102 - see SupportsInspection
        return count_module_parameters(self.module)

    @runs_user_code
    def row_bytes(self) -> int | None:  # noqa: D102
        shape = self._sample.image.shape
        try:
            return activation_bytes(
                self.module, (*shape[2:], *shape[:2]) if len(shape) == 3 else shape, self._dtype
            )
        finally:
            self._flat.restore_weights()

    @runs_user_code
    def try_export(self, folder: Path) -> str:  # noqa: D102
        path = folder / "best.safetensors"
        self.export(self.state(), path)
        loaded, note = load(path)
        images = self._sample_images
        if images is None or self._sample.deferred_input is not None:
            images = self._sample.image.random_inputs(np.random.default_rng(0), 2)
        with self.evaluation_mode():
            expected, repeated = (
                _compute_seeded(lambda: self._outputs(images).cpu()) for _ in range(2)
            )
            reloaded = _compute_seeded(lambda: loaded(torch.from_numpy(images)))
        tolerance = 5e-2 if self._is_mixed else 1e-3
        # Modules that use other random generators than PyTorch's cannot be compared.
        if _agree(expected, repeated, tolerance) and not _agree(expected, reloaded, tolerance):
            raise ModelError(
                "the exported best.safetensors returns other outputs than the network, because the "
                "module uses a tensor that is neither a parameter nor a buffer; register it with "
                "register_buffer"
            )
        if "build" in note:
            return f"loading best.safetensors requires the module {note['build'].partition(':')[0]}"
        return ""

    @runs_user_code
    def check_learns(self, images: np.ndarray, targets: np.ndarray) -> None:  # noqa: D102
        target_tensor = torch.from_numpy(np.array(targets)).to(self._device)
        self._flat.zero_gradients()
        self._sample_images = np.array(images[:2])
        outputs = self._outputs(images)
        if not bool(outputs.isfinite().all()):
            raise ModelError(
                "the untrained model returns NaN or infinity for samples of the data; check its "
                "initial weights and the scale of its inputs"
            )
        check_losses(self._measures.losses, outputs.detach(), target_tensor)
        if outputs.requires_grad:  # with random slopes, even a head of zero weights has gradients
            generator = torch.Generator().manual_seed(0)
            outputs.backward(torch.randn(outputs.shape, generator=generator).to(self._device))
        self._flat.restore_weights()
        if not bool(self._flat.gradients.any()):
            raise ModelError(
                "the outputs of the model depend on no trainable weight, so it cannot learn"
            )

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._exchange.close()
        self._exchange = self._exchange_of(group)

    def close(self) -> None:  # noqa: D102
        self._exchange.close()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # for other processes on the GPU

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluate inside the context, with running means of weights and statistics, if kept."""
        means = self._updates.means()
        before = [tensor.clone() for tensor, _ in means]
        self.module.eval()
        try:
            with torch.no_grad():
                for tensor, mean in means:
                    tensor.copy_(mean)
                yield
        finally:
            self.module.train()
            self._flat.restore_weights()
            for (tensor, _), value in zip(means, before, strict=True):
                tensor.copy_(value)

    # ---- computation ----

    def _compute(self, local_rows: Rows, size: int, stop: bool) -> list[int]:
        """Compute this rank's share of the gradient of the mean loss, and of the totals.

        Returns:
            The indices of parameters without a gradient on this rank.
        """
        in_place = self._exchange.in_place or self._device.type == "cpu"
        if in_place:  # on a GPU, separate gradients are faster
            self._flat.zero_gradients()
        else:
            self._flat.detach_gradients()
        self._exchange.begin(self._flat)
        self._evaluation_calls = 0
        with self._seeded_generators():
            with _single_row_statistics(self.module) if len(local_rows[0]) == 1 else nullcontext():
                outputs = self._outputs(local_rows[0])
            loss = self._write_totals(outputs, local_rows[1:], self._measures.losses.training, stop)
            (loss / size).backward()
        if self._is_new:
            self._flat.check_parameters(self.module)
            self._is_new = False
        if in_place:
            self._flat.check_gradients()
            unused = self._flat.find_untouched()
        else:
            unused = self._flat.gather_gradients()
        self._flat.restore_weights()
        if self._exchange.group.size > 1:
            self._flat.flag_unused(unused)
        return unused

    @contextmanager
    def _seeded_generators(self, call: int = 0) -> Iterator[None]:
        """Seed all generators from the network's seed, its step and this rank.

        Args:
            call: number of the call since the last step; 0 for the next step.
        """
        seed = mix_seed(self._seed + call, self._updates.steps, self._exchange.group.rank)
        with exclusive_generators():
            torch.default_generator.manual_seed(seed)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(seed)
            if self.code is not None:
                seed_host_generators(seed)
            yield

    def _outputs(self, images: np.ndarray) -> Tensor:
        """Return logits or values, float32; for masks with classes last, as a view."""
        samples = to_device(images, self._device)
        if samples.ndim == 2:  # packed rows, unlike the images of try_export
            samples = augment_deferred(samples, self._sample)
        with self._precision():
            outputs: Tensor = self._exported(samples)
        return outputs

    def _write_totals(
        self,
        outputs: Tensor,
        local_rows: Rows,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        stop: bool,
    ) -> Tensor:
        """Write the totals of readable rows, and return their summed loss, a scalar."""
        targets = to_device(np.ascontiguousarray(local_rows[0]), self._device)
        losses = loss_of(outputs, targets)
        if len(local_rows) > 1:
            losses = losses * to_device(np.array(local_rows[1]), self._device)
        loss = losses.sum()
        with torch.no_grad():
            correct = self._measures.losses.correct(outputs, targets).sum(dtype=torch.float32)
            metric_totals = self._measures.metrics.sums(outputs.detach(), targets)
            self._flat.write_totals(loss.detach(), correct, len(local_rows[0]), stop, metric_totals)
        return loss

    def _precision(self) -> AbstractContextManager[object]:
        if self._is_mixed:
            return torch.autocast(self._device.type, torch.bfloat16)
        return nullcontext()


class AsyncNetwork(TorchNetwork):
    """A module whose steps are queued on a GPU if its group has one rank."""

    def begin(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        stop: bool = False,
        weights: np.ndarray | None = None,
    ) -> Callable[[], StepResult]:
        if not self.can_stride():
            sums = [self.step(images, targets, sizes[0], stop, weights)]
            return lambda: StepResult(sums, time.perf_counter())
        local_rows = pack_rows(images, targets, weights)
        totals = torch.zeros(
            len(sizes), len(self._flat.totals), pin_memory=self._device.type == "cuda"
        )
        for rows, size, step_totals in zip(
            split_batches(local_rows, sizes), sizes, totals, strict=True
        ):
            self._queue_step(select_readable(rows), size, step_totals)
        end = torch.cuda.Event() if self._device.type == "cuda" else None
        if end is not None:
            end.record()

        def wait() -> StepResult:
            if end is not None:
                end.synchronize()
            return StepResult(
                [StepTotals.unpack(row) for row in totals.tolist()], time.perf_counter()
            )

        return wait

    def _queue_step(self, local_rows: Rows, size: int, totals: torch.Tensor) -> None:
        """Queue a step; a batch without readable samples changes nothing.

        Args:
            local_rows: readable rows of the batch.
            size: number of rows of the batch, including unreadable ones.
            totals: (6 + metrics,), overwritten when the step has been computed.
        """
        if len(local_rows[1]):
            with running_user_code(self.code, quick=True):
                unused = self._compute(local_rows, size, False)
                self._updates.step(size / len(local_rows[1]), unused)
            totals.copy_(self._flat.totals, non_blocking=True)


@contextmanager
def _single_row_statistics(module: nn.Module) -> Iterator[None]:
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


def _compute_seeded(compute: Callable[[], Tensor]) -> Tensor:
    """Return the result of a function, with the same random numbers each time."""
    with exclusive_generators(), torch.random.fork_rng():
        torch.manual_seed(0)
        return compute()


def _agree(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Return True if outputs are equal up to rounding."""
    atol = tolerance * max(1.0, float(first.abs().max()))
    return torch.allclose(first, second, rtol=tolerance, atol=atol, equal_nan=True)


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
