"""Record what several equal modules compute for one batch as one program.

``torch.func`` stacks the parameters of K modules and vectorizes their forward pass over them;
``make_fx`` records it, with its backward pass, as a list of tensor operations. Calling that list
takes K times fewer launches than K modules do, and none of the Python code of a module, an autograd
graph or a vectorizing map. [HFTA] Wang et al., Horizontally Fused Training Array, MLSys 2021, fuses
operators one by one, which needs a rule for each of them.

Random numbers are drawn for each network from its own generator, as it would alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.fx import GraphModule, Node

from fleet.engines.fusing import CannotFuse
from fleet.engines.torch import devices
from fleet.engines.torch.recording import (
    Batch,
    CannotRecord,
    is_random,
    outputs_with,
    record,
    recording,
    simplify,
)
from fleet.engines.torch.steps import TorchSteps

# Tensors of several networks by name: (networks, ...).
Stacked = Mapping[str, Tensor]


class ProgramTotals(NamedTuple):
    """What a program returns.

    Attributes:
        loss, correct: (networks,) sums over rows.
        metric_totals: (networks, metrics); None without metrics.
        gradients: (networks, ...) of each trained parameter; None if the loss does not depend on
            it. Empty in evaluation.
    """

    loss: Tensor
    correct: Tensor
    metric_totals: Tensor | None
    gradients: Sequence[Tensor | None] = ()


class Generators:
    """A random generator for each network.

    Args:
        device: the device of the networks.
        count: number of networks.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.by_network = [torch.Generator(device) for _ in range(count)]

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the generators of all networks."""
        for generator, seed in zip(self.by_network, seeds, strict=True):
            generator.manual_seed(seed)


class _Draw(nn.Module):
    """An operation that draws random numbers, for one network after another.

    Args:
        operation: the operation, of a vectorized program.
        generators: draw for each network.
        layout: size and strides of what a network alone fills, in the order of its memory.
    """

    def __init__(
        self,
        operation: Callable[..., Any],
        generators: Generators,
        layout: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        super().__init__()
        self._fill = _FILLS[operation]
        self._is_in_place = operation is torch.ops.aten.bernoulli_.float
        self._generators = generators
        self._layout = layout

    def forward(self, first: Any, *args: Any, **options: Any) -> Tensor:
        if isinstance(first, Tensor):
            options = {"dtype": first.dtype, "device": first.device}
        kind = {key: options.get(key) for key in ("dtype", "device")}
        drawn = []
        for generator in self._generators.by_network:
            values = torch.empty_strided(*self._layout, **kind)
            drawn.append(self._fill(values, *args, generator=generator))
        stacked = torch.stack(drawn)
        if self._is_in_place:
            return first.copy_(stacked)
        return stacked


def _fill_bernoulli(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return values.bernoulli_(share, generator=generator)


def _fill_uniform(values: Tensor, generator: torch.Generator) -> Tensor:
    return values.uniform_(generator=generator)


def _fill_normal(values: Tensor, generator: torch.Generator) -> Tensor:
    return values.normal_(generator=generator)


_FILLS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.bernoulli_.float: _fill_bernoulli,
    torch.ops.aten.bernoulli.p: _fill_bernoulli,
    torch.ops.aten.rand.default: _fill_uniform,
    torch.ops.aten.rand_like.default: _fill_uniform,
    torch.ops.aten.randn.default: _fill_normal,
    torch.ops.aten.randn_like.default: _fill_normal,
}


class _Dropout(nn.Module):
    """``native_dropout``, which draws from the global generator of a GPU."""

    def __init__(self, generators: Generators) -> None:
        super().__init__()
        self._generators = generators

    def forward(self, values: Tensor, share: float, train: bool | None) -> tuple[Tensor, Tensor]:
        module = devices.module_of(values.device)
        shared = module.default_generators[values.device.index or 0]
        before = shared.get_state()
        parts = []
        for value, generator in zip(values, self._generators.by_network, strict=True):
            shared.set_state(generator.get_state())
            parts.append(torch.native_dropout(value, share, train))
            generator.set_state(shared.get_state())
        shared.set_state(before)
        outputs, masks = zip(*parts, strict=True)
        return torch.stack(outputs), torch.stack(masks)


class Program:
    """What some networks compute for batches of one size, in training or in evaluation.

    Args:
        steps: one of the networks, whose code is recorded.
        count: number of networks.
        stacked: parameters and buffers of all networks, by their names in the module.
        trained: names of the parameters that are trained; empty in evaluation.
        batch: a batch.

    Raises:
        CannotFuse: the module cannot be recorded, or not as one for all networks.
    """

    def __init__(
        self,
        steps: TorchSteps,
        count: int,
        stacked: Stacked,
        trained: Sequence[str],
        batch: Batch,
    ) -> None:
        self.generators = Generators(steps.device, count)
        self._trained = trained
        self._has_metrics = False
        # Metrics that cannot be recorded are computed from outputs, one network after another.
        self._returns_outputs = (
            isinstance(batch.targets, Tensor) and steps.measures.metrics.width > 0
        )
        self._used: list[bool] = []
        self._steps = steps
        scales = torch.ones(count, device=steps.device)
        try:
            with recording(steps.exported, bool(trained), batch):
                # Operations without a rule for several networks are computed one after another.
                warnings.filterwarnings("ignore", "There is a performance drop")
                self._graph = record(self._compute_all, dict(stacked), scales, *batch)
                self.is_random = any(map(is_random, self._graph.graph.nodes))
                if self.is_random:
                    first = {name: tensor[0].clone() for name, tensor in stacked.items()}
                    self._replace_draws(record(self._compute, first, batch), count)
        except CannotRecord as error:
            raise CannotFuse(str(error)) from error
        simplify(self._graph)

    def _compute(self, tensors: dict[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the sums of a network: loss, correct, and metric totals."""
        steps = self._steps
        losses = steps.measures.losses
        outputs = outputs_with(steps, tensors, batch.samples)
        sums = steps.sums(
            outputs,
            batch.targets,
            batch.weights,
            losses.training if self._trained else losses.evaluation,
            has_metrics=not self._returns_outputs,
        )
        if self._returns_outputs:
            return sums.loss, sums.correct, outputs
        self._has_metrics = sums.metric_totals is not None
        return tuple(part for part in sums if part is not None)

    def _compute_all(
        self, tensors: dict[str, Tensor], scales: Tensor, samples: Any, targets: Any, weights: Any
    ) -> list[Tensor]:
        """Return the sums of all networks, and the gradients that there are."""
        leaves = dict(tensors)
        for name in self._trained:
            leaves[name] = tensors[name].detach().requires_grad_()
        loss, *parts = vmap(self._compute, in_dims=(0, None), randomness="different")(
            leaves, Batch(samples, targets, weights)
        )
        gradients: Sequence[Tensor | None] = ()
        if self._trained:
            gradients = torch.autograd.grad(
                (loss * scales).sum(),
                [leaves[name] for name in self._trained],
                allow_unused=True,
            )
        self._used = [gradient is not None for gradient in gradients]
        return [
            loss.detach(),
            *(part.detach() for part in parts),
            *(gradient for gradient in gradients if gradient is not None),
        ]

    def _replace_draws(self, alone: GraphModule, count: int) -> None:
        """Let each network draw its own random numbers, as it does alone.

        Args:
            alone: what one network computes.
            count: number of networks.
        """
        graph = self._graph.graph
        drawing = [node for node in graph.nodes if is_random(node)]
        drawing_alone = [node for node in alone.graph.nodes if is_random(node)]
        if len(drawing) != len(drawing_alone):
            raise CannotRecord("it draws random numbers that depend on the other networks")
        for number, (node, node_alone) in enumerate(zip(drawing, drawing_alone, strict=True)):
            draw: nn.Module
            if node.target is torch.ops.aten.native_dropout.default:
                draw = _Dropout(self.generators)
            elif node.target in _FILLS:
                layout = _layout(node_alone)
                if list(_layout(node)[0]) != [count, *layout[0]]:
                    raise CannotRecord("it draws random numbers that depend on the other networks")
                draw = _Draw(node.target, self.generators, layout)
            else:
                raise CannotRecord(f"it draws random numbers by {node.target}")
            name = f"draw_{number}"
            self._graph.add_submodule(name, draw)
            with graph.inserting_before(node):
                new = graph.call_module(name, node.args, node.kwargs)
            node.replace_all_uses_with(new)
            graph.erase_node(node)

    def __call__(self, stacked: Stacked, scales: Tensor, batch: Batch) -> ProgramTotals:
        """Compute the totals of a batch and, in training, the gradients.

        Args:
            stacked: as the program was recorded with; running statistics change.
            scales: (networks,) factor of the loss that is differentiated.
            batch: a batch of the same size.
        """
        with torch.no_grad():
            loss, correct, *parts = self._graph(dict(stacked), scales, *batch)
        metric_totals = None
        if self._returns_outputs:
            sums = self._steps.measures.metrics.sums
            metric_totals = torch.stack([sums(outputs, batch.targets) for outputs in parts.pop(0)])
        elif self._has_metrics:
            metric_totals = parts.pop(0)
        present = iter(parts)
        return ProgramTotals(
            loss,
            correct,
            metric_totals,
            [next(present) if is_used else None for is_used in self._used],
        )


def _layout(node: Node) -> tuple[Sequence[int], Sequence[int]]:
    """Return the size and the strides of the tensor that an operation returns."""
    drawn = node.meta["tensor_meta"]
    return tuple(drawn.shape), tuple(drawn.stride)
