"""Record what a module computes for a batch as a list of tensor operations.

``make_fx`` records it, with its backward pass. Calling the list computes the same bits, without the
Python code of modules and without an autograd graph.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
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
    before = _python_state(exported)
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
        exported.train()
    changed = before.differs(exported)
    if changed:
        before.restore_attributes(exported)
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


class _PythonState(NamedTuple):
    """What a module may change beside its tensors, which a recording would miss."""

    attributes: Mapping[str, Any]
    random_state: Any
    numpy_state: Any

    def differs(self, module: nn.Module) -> str:
        """Return how the state of a module has changed; empty if it has not."""
        now = _python_state(module)
        changed = [
            name for name, value in now.attributes.items() if self.attributes.get(name) != value
        ]
        if changed:
            return f"its forward changes the attribute {changed[0]}"
        if self.random_state != now.random_state or self.numpy_state != now.numpy_state:
            return "its forward draws random numbers of Python or NumPy"
        return ""

    def restore_attributes(self, module: nn.Module) -> None:
        """Set the attributes of a module, and of its parts, to what they were."""
        for prefix, part in module.named_modules():
            for key in vars(part):
                name = _attribute_name(prefix, key)
                if name in self.attributes:
                    setattr(part, key, self.attributes[name])


def _python_state(module: nn.Module) -> _PythonState:
    attributes = {
        _attribute_name(prefix, key): value
        for prefix, part in module.named_modules()
        for key, value in vars(part).items()
        if key != "training" and isinstance(value, bool | int | float | str)
    }
    state: Any = np.random.get_state()
    return _PythonState(attributes, random.getstate(), (bytes(state[1]), *state[2:]))


def _attribute_name(prefix: str, key: str) -> str:
    """Return the name of an attribute of a part of a network, for users."""
    return f"{prefix}.{key}".lstrip(".").removeprefix("module.")


def _describe(error: Exception) -> str:
    """Return why a module cannot be recorded, in one line."""
    text = " ".join(str(error).split())
    if "data-dependent control flow" in text or ".item()" in text:
        return "its forward depends on values of tensors, such as by if, while or item()"
    first = text.split(". ")[0][:200]
    return f"{type(error).__name__}: {first}"
