"""Record what a module computes for a batch as a list of tensor operations.

``make_fx`` records it, with its backward pass. Calling the list computes the same bits, without the
Python code of modules and without an autograd graph.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fleet.engines.torch.models import Samples
from fleet.engines.torch.precision import autocasting
from fleet.engines.torch.steps import TorchSteps, single_row_statistics

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class CannotRecord(Exception):
    """A module cannot be recorded; the text is the reason, for users."""


class Batch(NamedTuple):
    """The rows of a batch on the device.

    Attributes:
        samples: (n, ...) readable samples, as the stream carries them; of several inputs, by name.
        targets: (n, ...); of several targets, by name.
        weights: (n,); None if all rows count alike.
    """

    samples: Samples
    targets: Tensor | Mapping[str, Tensor]
    weights: Tensor | None

    @property
    def shapes(self) -> Any:
        """What a recording depends on."""
        return tuple(map(_shape, self))

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        tensors: list[Tensor] = []
        for part in self:
            if isinstance(part, Mapping):
                tensors += part.values()
            elif part is not None:
                tensors.append(part)
        return tensors

    def clone(self) -> Batch:
        """Return a batch of the same rows in other memory."""
        return Batch(*map(_clone, self))


def _shape(value: Any) -> Any:
    """Return what a recording depends on of a part of a batch."""
    if isinstance(value, Mapping):
        return tuple((name, _shape(part)) for name, part in value.items())
    return None if value is None else (tuple(value.shape), value.dtype)


def _clone(value: Any) -> Any:
    """Return a copy of a part of a batch."""
    if isinstance(value, Mapping):
        return {name: _clone(part) for name, part in value.items()}
    return None if value is None else value.clone()


@contextmanager
def recording(exported: nn.Module, is_training: bool, batch: Batch) -> Iterator[None]:
    """Prepare a module for being recorded inside the context, in training or in evaluation.

    Args:
        exported: the module; it has an attribute ``module``.
        is_training: True to record training.
        batch: the batch for which it is recorded.

    Raises:
        CannotRecord: a recording would not do what the module does.
    """
    is_single = isinstance(batch.targets, Tensor) and len(batch.targets) == 1
    before = _PythonState.of(exported)
    exported.train(is_training)
    try:
        with (
            warnings.catch_warnings(),
            single_row_statistics(exported) if is_single else nullcontext(),
            torch.set_grad_enabled(is_training),
        ):
            yield
    except CannotRecord:
        raise
    except Exception as error:
        raise CannotRecord(_describe(error)) from error
    finally:
        changed = before.differs(exported)
        before.restore_attributes()
        exported.train()
    if changed:
        raise CannotRecord(changed)


def record(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """Return the operations of a function for some tensors, inside :func:`recording`."""
    return make_fx(lambda *args: function(*args))(*arguments)


def outputs_with(steps: TorchSteps, tensors: Mapping[str, Tensor], samples: Samples) -> Tensor:
    """Return the outputs of a network's module with other parameters and buffers, by name."""
    with autocasting(steps.precision, steps.device):
        outputs: Tensor = functional_call(
            steps.exported,
            {f"module.{name}": tensor for name, tensor in tensors.items()},
            (samples,),
        )
    return outputs


def is_random(node: Node) -> bool:
    """Return True if a node draws random numbers; attention does only with dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    values = dict(zip((argument.name for argument in arguments), node.args, strict=False))
    defaults = {argument.name: argument.default_value for argument in arguments}
    return bool({**defaults, **values, **node.kwargs}.get("dropout_p", 1.0))


def simplify(graph_module: GraphModule) -> None:
    """Remove operations without effect."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    # Operations that change a tensor, such as running statistics, are kept.
    graph.eliminate_dead_code()
    graph_module.recompile()


class _PartState(NamedTuple):
    """What a part of a module has beside its parameters and parts."""

    part: nn.Module
    name: str
    attributes: Mapping[str, Any]
    buffers: Mapping[str, Tensor | None]

    @classmethod
    def of(cls, name: str, part: nn.Module) -> _PartState:
        return cls(part, name, dict(vars(part)), dict(part._buffers))

    def changed(self) -> str:
        """Return the name of an attribute that has changed; empty if none has."""
        now = _PartState.of(self.name, self.part)
        before = {**self.attributes, **self.buffers}
        for key, value in {**now.attributes, **now.buffers}.items():
            if key != "training" and not _is_same(before.get(key), value):
                return f"{self.name}.{key}".lstrip(".").removeprefix("module.")
        return ""

    def restore(self) -> None:
        """Set the attributes to what they were."""
        vars(self.part).clear()
        vars(self.part).update(self.attributes)
        self.part._buffers.update(self.buffers)


def _is_same(before: Any, now: Any) -> bool:
    """Return True if an attribute is the same, or one that is not compared."""
    if isinstance(before, Tensor) or isinstance(now, Tensor):
        return before is now
    comparable = bool | int | float | str | None
    return not (isinstance(before, comparable) and isinstance(now, comparable)) or before == now


class _PythonState(NamedTuple):
    """What a module may change in Python, which a recording would miss."""

    parts: Sequence[_PartState]
    random_state: Any
    numpy_state: Any

    @classmethod
    def of(cls, module: nn.Module) -> _PythonState:
        state: Any = np.random.get_state()
        parts = [_PartState.of(name, part) for name, part in module.named_modules()]
        return cls(parts, random.getstate(), (bytes(state[1]), *state[2:]))

    def differs(self, module: nn.Module) -> str:
        """Return how the state of a module has changed; empty if it has not."""
        changed = next(filter(None, (part.changed() for part in self.parts)), "")
        if changed:
            return f"its forward changes the attribute {changed}"
        now = _PythonState.of(module)
        if self.random_state != now.random_state or self.numpy_state != now.numpy_state:
            return "its forward draws random numbers of Python or NumPy"
        return ""

    def restore_attributes(self) -> None:
        """Set the attributes of all parts to what they were."""
        for part in self.parts:
            part.restore()


def _describe(error: Exception) -> str:
    """Return why a module cannot be recorded, in one line."""
    text = " ".join(str(error).split())
    if "data-dependent control flow" in text or ".item()" in text:
        return "its forward depends on values of tensors, such as by if, while or item()"
    first = text.split(". ")[0][:200]
    return f"{type(error).__name__}: {first}"
