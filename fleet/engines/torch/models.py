"""Build modules: families, and user functions.

Every module returns **logits**, or values: the loss applies the softmax itself.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import signal
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fleet.engines.custom import build_custom_model, build_isolated, seeded_generators
from fleet.errors import ModelError
from fleet.spec.layers import Layer, Shape, layers_of
from fleet.spec.model import Architecture, load_function, one_line
from launch.processes import end_with_parent
from preprocess.sample import ImageSpec
from preprocess.target import TargetSpec

_EPSILON = 1.001e-5  # of batch normalisation, as the Keras engine has it
_ROWS = 2  # of a batch that is looked at
_NOISES = (0.1, 1.0) * 8  # on weights, which would take logits out of the range of probabilities
# Of whole numbers, of which 0 may stand for none; quantities are drawn
_VALUES = {torch.float32: (1,), torch.int64: (1, 0)}
_COUNTING_S = 10.0  # for a module without values to be built
# standard deviation of a normal distribution truncated at two standard deviations
_CUT = 0.87962566103423978


class Built(NamedTuple):
    """A module, and how to call it.

    Attributes:
        dtype: dtype of its inputs.
        differentiates: True if ``forward`` takes derivatives, so evaluation needs gradients, too.
    """

    module: nn.Module
    dtype: torch.dtype
    differentiates: bool = False


def build_module(
    architecture: Architecture,
    image: ImageSpec,
    target: TargetSpec,
    seed: int,
    is_scaled: bool = False,
) -> Built:
    """Build a network that returns logits, or values, on the host.

    Args:
        architecture: what to build. A user function is called as
            ``function(input_shape=..., classes=..., **args)``, or with ``outputs`` instead of
            ``classes``.
        image: its input, as it travels.
        target: target of a sample.
        seed: equal seeds give equal initial weights.
        is_scaled: True if inputs are scaled, hence float32.

    Returns:
        A module from (n, channels, height, width), or (n, ...), to (n, outputs), or for masks
        (n, classes, height, width).

    Raises:
        UserError: the description is wrong: a missing function, a wrong argument, an image too
            small.
        ModelError: a user function raised, or returned something else.
    """
    if architecture.kind == "family":
        with _seeded(seed):
            layers = layers_of(
                architecture.settings, image.shape, target.outputs, target.kind == "mask"
            )
            return Built(nn.Sequential(OrderedDict(_modules(layers, image.shape))), torch.float32)

    def build(seed: int) -> Built:
        with _seeded(seed):
            module = build_custom_model(
                architecture, image.shape, target.outputs, nn.Module, "torch.nn.Module"
            ).float()
            return _check_module(architecture.target, module, image, target, is_scaled)

    built = build_isolated(
        architecture.target, partial(build, seed), lambda built: built.module.parameters()
    )
    check_self_contained(architecture.target, built, image.shape, lambda: build(seed + 1).module)
    return built


def count_parameters(
    architecture: Architecture, shape: tuple[int, ...], classes: int, seed: int
) -> int:
    """Count the parameters of a network, if possible without allocating them.

    Args:
        architecture: what to build.
        shape: shape of a sample.
        classes: number of classes, labels or values.
        seed: seed of the network.
    """
    load_function(architecture.target)

    def without_values() -> int:
        with _seeded(seed), torch.device("meta"):
            module = build_custom_model(architecture, shape, classes, nn.Module, "torch.nn.Module")
            return count_module_parameters(module)

    counted = _count_in_subprocess(without_values)
    if counted is not None:
        return counted
    with _seeded(seed):  # it wants values, is made of lazy modules, or says why when it is built
        module = build_custom_model(
            architecture, shape, classes, nn.Module, "torch.nn.Module"
        ).float()
        image = ImageSpec(shape, "float32")
        _call_on_samples(architecture.target, module, image, [torch.float32, torch.int64])
        return count_module_parameters(module)


def _count_in_subprocess(count: Callable[[], int]) -> int | None:
    """Return what a function counts in a subprocess; None if it fails there, or takes long.

    A module's code may keep tensors that it creates, such as a table of positions. Meta tensors
    kept there would break the module that is built afterwards.
    """
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            end_with_parent()
            torch.set_num_threads(1)  # there are no other threads in a child
            os.write(writes, b"%d" % count())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        is_over, *_ = select.select([pipe], [], [], _COUNTING_S)
        counted = pipe.read() if is_over else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if counted:
        return int(counted)
    return None


def count_module_parameters(module: nn.Module) -> int:
    """Count a module's parameters and its floating-point statistics."""
    tensors = [
        *module.parameters(),
        *(tensor for tensor in module.buffers() if tensor.is_floating_point()),
    ]
    return sum(tensor.numel() for tensor in tensors)


def activation_bytes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
    """Return the bytes per row that a forward pass keeps for the backward pass.

    These are the tensors that it saves, each once, and twice the largest of them: its gradient, and
    the next one.

    Args:
        module: module to call.
        shape: shape of a row, as the module takes it.
        dtype: dtype of a row.

    Returns:
        None if nothing is kept.
    """
    sizes: dict[int, int] = {}
    own_storages = {
        weight.untyped_storage().data_ptr() for weight in (*module.parameters(), *module.buffers())
    }

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own_storages:
            sizes[storage.data_ptr()] = storage.nbytes() // _ROWS
        return tensor.detach()  # an output that keeps itself would never be freed

    device = next(module.parameters()).device
    rows = torch.zeros(_ROWS, *shape, dtype=dtype, device=device)
    was_training = module.training
    outputs = []
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module.eval()
            outputs.append(module(rows))  # what is kept stays where it is: no address is used twice
    finally:
        module.train(was_training)
    if sizes:
        return sum(sizes.values()) + 2 * max(sizes.values())
    return None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make all random numbers deterministic, and restore all generators."""
    with torch.random.fork_rng(), seeded_generators(seed):
        yield


# --- families ------------------------------------------------------------------------------


def _modules(layers: Iterable[Layer], shape: Shape) -> dict[str, nn.Module]:
    """Return the modules of layers, by name.

    Args:
        layers: descriptions of layers.
        shape: shape of the first layer's input.
    """
    modules = {}
    for layer in layers:
        modules[layer.name] = _MODULES[layer.kind](layer, shape)
        shape = layer.after(shape)
    return modules


class _Add(nn.Module):
    """The sum of a branch and a shortcut."""

    def __init__(self, layer: Layer, shape: Shape) -> None:
        super().__init__()
        self.branch, self.shortcut = (
            nn.Sequential(*_modules(part, shape).values())
            for part in (layer.branch, layer.shortcut)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.shortcut(images) + self.branch(images)
        return total


class _Concat(nn.Module):
    """The input and the output of a branch, concatenated."""

    def __init__(self, layer: Layer, shape: Shape) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_modules(layer.branch, shape).values())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([images, self.branch(images)], 1)


class _Average(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def _conv(layer: Layer, shape: Shape) -> nn.Module:
    """Return a convolution padded as in Keras, with an output as large or half as large."""
    side = layer.side
    stride = layer.stride
    outputs = layer.outputs
    pads = [
        max((-(-length // stride) - 1) * stride + side - length, 0) for length in shape[1::-1]
    ]  # of width and height
    first = [length // 2 for length in pads] if layer.pad is None else [layer.pad] * 2
    is_even = layer.pad is not None or not any(length % 2 for length in pads)
    conv = _scaled(
        nn.Conv2d(
            shape[2],
            outputs,
            side,
            stride,
            (first[1], first[0]) if is_even else 0,
            bias=layer.has_bias,
        ),
        layer.start,
    )
    more = [
        padding
        for length, all_ in zip(first, pads, strict=True)
        for padding in (length, all_ - length)
    ]  # left, right, ...
    if is_even:
        return conv
    return nn.Sequential(nn.ZeroPad2d(tuple(more)), conv)


def _dense(layer: Layer, shape: Shape) -> nn.Module:
    if len(shape) == 3:  # each pixel by itself
        return _scaled(nn.Conv2d(shape[2], layer.outputs, 1), layer.start)
    return _scaled(nn.Linear(shape[0], layer.outputs), layer.start)


_MODULES: dict[str, Callable[[Layer, Shape], nn.Module]] = {
    "conv": _conv,
    "dense": _dense,
    "add": _Add,
    "concat": _Concat,
    "norm": lambda _, shape: nn.BatchNorm2d(shape[2], eps=_EPSILON),
    "relu": lambda *_: nn.ReLU(),
    "max_pool": lambda one, _: nn.MaxPool2d(one.side, one.stride, one.pad or 0),
    "mean_pool": lambda one, _: nn.AvgPool2d(one.side, one.stride),
    "average": lambda *_: _Average(),
    "flatten": lambda *_: nn.Flatten(),
    "dropout": lambda one, _: nn.Dropout(one.share),
}


def _scaled(layer: nn.Conv2d | nn.Linear, start: str) -> nn.Module:
    """Initialize a layer as the Keras engine does."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if start == "glorot_uniform":
        nn.init.xavier_uniform_(layer.weight)
    elif start == "zeros":
        nn.init.zeros_(layer.weight)
    else:
        deviation = math.sqrt(2 / nn.init._calculate_correct_fan(layer.weight, "fan_in")) / _CUT
        nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return layer


# --- a function of one's own ---------------------------------------------------------------


def _check_module(
    name: str, module: nn.Module, image: ImageSpec, target: TargetSpec, is_scaled: bool
) -> Built:
    """Try a module on two samples, which also creates its lazy parameters."""
    wrong = [
        key for key, value in module.state_dict().items() if not isinstance(value, torch.Tensor)
    ]
    if wrong:
        raise ModelError(
            f"{name}: its state holds {wrong[0]}, which is no tensor and cannot be saved"
        )
    is_whole = len(image.shape) != 3 and not is_scaled and np.dtype(image.dtype).kind in "iu"
    values, dtype, differentiates = _call_on_samples(
        name, module, image, [torch.int64, torch.float32] if is_whole else [torch.float32]
    )
    if target.kind == "mask":
        shape = (target.outputs, *target.shape)
    else:
        shape = (target.outputs,)
    if tuple(values.shape) != (2, *shape):
        raise ModelError(
            f"{name} gives outputs of shape {(None, *values.shape[1:])}, not {(None, *shape)}"
        )
    _refuse_probabilities(name, module, values, dtype, image, target)
    return Built(module, dtype, differentiates)


def _call_on_samples(
    name: str,
    module: nn.Module,
    image: ImageSpec,
    dtypes: list[torch.dtype],
    call: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.dtype, bool]:
    """Call a module on two samples, of the first dtype that it takes.

    Args:
        name: name of the function, for messages.
        module: module to call.
        image: its input.
        dtypes: dtypes to try.
        call: calls the module; by default it is called directly.

    Returns:
        The output, the dtype, and whether the module needs gradients.

    Raises:
        ModelError: it cannot take such samples, or returns no tensor.
    """
    was_training = module.training
    error = Exception()
    candidates = [
        _samples(image.shape, dtype, value) for dtype in dtypes for value in _VALUES[dtype]
    ]
    for samples, with_gradients in itertools.product(candidates, (False, True)):
        try:
            module.eval()  # a train() of the user's own may return nothing
            with torch.set_grad_enabled(with_gradients):
                output = (call or module)(samples)
        except Exception as caught:
            error = caught
            continue
        finally:
            module.train(was_training)
        if not isinstance(output, torch.Tensor):
            raise ModelError(
                f"{name} gives a {type(output).__name__}; samples have one target, so it should "
                "give one tensor"
            )
        return output.detach().float(), samples.dtype, with_gradients
    noun = "images of " if len(image.shape) == 3 else "samples of "
    raise ModelError(
        f"{name} cannot take {noun}{'x'.join(map(str, samples.shape))}: {one_line(error)}"
    ) from error


def _samples(shape: Shape, dtype: torch.dtype, value: int = 1) -> torch.Tensor:
    """Return two samples as a module is called with them.

    Args:
        shape: (height, width, channels), or another shape.
        dtype: dtype of the samples.
        value: value of integers.
    """
    channels_first = (shape[2], *shape[:2]) if len(shape) == 3 else shape
    if dtype.is_floating_point:
        return torch.empty(2, *channels_first).uniform_(-1, 1)
    return torch.full((2, *channels_first), value, dtype=dtype)


class _ForeignTensorMode(TorchDispatchMode):
    """Records tensors that a module computes with but neither owns nor creates.

    Attributes:
        tensors: the recorded tensors.
    """

    def __init__(self, module: nn.Module, samples: torch.Tensor) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self._references: list[torch.Tensor] = []  # so that no address is used twice
        self._storages: set[int] = set()
        self._add([samples, *module.parameters(), *module.buffers()])

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inputs = [
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        ]
        foreign = [tensor for tensor in inputs if _storage_id(tensor) not in self._storages]
        self.tensors += foreign
        outputs = function(*args, **(kwargs or {}))
        self._add(
            [
                *foreign,
                *(tensor for tensor in tree_leaves(outputs) if isinstance(tensor, torch.Tensor)),
            ]
        )
        return outputs

    def _add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._references.append(tensor)
            self._storages.add(_storage_id(tensor))


def _storage_id(tensor: torch.Tensor) -> int:
    """Return an identifier of a tensor's storage, shared by its views."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # a sparse one
        return id(tensor)


def check_self_contained(
    name: str, built: Built, shape: Shape, build: Callable[[], nn.Module]
) -> None:
    """Check that a module's outputs depend only on its parameters and buffers.

    Layers in a plain Python list are not parameters: they would be neither trained nor saved. Other
    tensors are allowed if the function creates equal ones again.

    Args:
        name: name of the function, for messages.
        built: the module.
        shape: shape of a sample.
        build: builds the module again, from another seed.

    Raises:
        ModelError: the outputs depend on something else.
    """
    module, dtype, differentiates = built
    was_training = module.training
    with _seeded(0):
        samples = _samples(shape, dtype)
    outside = _ForeignTensorMode(module, samples)
    module.eval()
    try:
        with torch.set_grad_enabled(differentiates), _seeded(0), outside:
            expected = module(samples.clone())  # it may write into them
    finally:
        module.train(was_training)
    if any(tensor.requires_grad for tensor in outside.tensors):
        raise ModelError(
            f"{name}: the module computes with weights that are none of its "
            f"parameters{_describe_holder(module, outside.tensors)}: they would not be trained, "
            "and are not saved; keep layers in nn.ModuleList or nn.ModuleDict, single weights as "
            "nn.Parameter"
        )
    if not outside.tensors:
        return
    again = build()
    again.load_state_dict(module.state_dict())
    again.eval()
    with torch.set_grad_enabled(differentiates), _seeded(0):
        rebuilt = again(samples)
    if not torch.allclose(expected, rebuilt, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ModelError(
            f"{name}: the module holds something that is neither a parameter nor a buffer "
            f"(register_buffer){_describe_holder(module, outside.tensors)}, and its function does "
            "not make it again"
        )


def _describe_holder(module: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Return the attribute that holds tensors, as `` (layers of Net)``; empty if none does."""
    places = {_storage_id(tensor) for tensor in tensors}
    for owner in module.modules():
        for name, value in vars(owner).items():
            if not name.startswith("_") and any(
                _storage_id(tensor) in places for tensor in _tensors_in(value)
            ):
                return f" ({name} of {type(owner).__name__})"
    return ""


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_tensors_in, value.values()))
    elif isinstance(value, list | tuple | set):
        yield from chain.from_iterable(map(_tensors_in, value))


def _refuse_probabilities(
    name: str,
    module: nn.Module,
    values: torch.Tensor,
    dtype: torch.dtype,
    image: ImageSpec,
    target: TargetSpec,
) -> None:
    """Refuse a module whose outputs are probabilities for any weights.

    Args:
        name: name of the function, for messages.
        module: module to check.
        values: its outputs for two samples.
        dtype: dtype of its inputs.
        image: its input.
        target: target of a sample.

    Raises:
        ModelError: the outputs are probabilities.
    """
    if target.kind == "value" or not _are_bounded(values) or values.isnan().any():
        return
    are_shares = bool((values.sum(1) - 1).abs().max() < 1e-2)
    function = "softmax" if are_shares and target.kind != "multilabel" else ""
    if not function and all(map(_are_bounded, _with_other_weights(name, module, image, dtype))):
        function = "sigmoid"
    if function:
        raise ModelError(
            f"{name} gives probabilities, by a {function}; leave it out, so that the module "
            "returns logits"
        )


def _are_bounded(values: torch.Tensor) -> bool:
    return bool(((values >= 0) & (values <= 1) | values.isnan()).all())


def _with_other_weights(
    name: str, module: nn.Module, image: ImageSpec, dtype: torch.dtype
) -> Iterator[torch.Tensor]:
    """Yield the outputs for two samples with noise added to the weights."""
    weights = dict(module.named_parameters())
    for deviation in _NOISES:
        noisy = {
            key: weight + deviation * torch.randn_like(weight) for key, weight in weights.items()
        }
        call = partial(torch.func.functional_call, module, noisy)
        yield _call_on_samples(name, module, image, [dtype], call)[0]
