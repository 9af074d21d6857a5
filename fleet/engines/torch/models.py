"""Build modules: families, and user functions.

Every module returns **logits**, or values: the loss applies the softmax itself.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fleet.engines.custom import (
    build_custom_model,
    build_isolated,
    check_output_shape,
    find_activation,
    probabilities_error,
    seeded_generators,
)
from fleet.engines.torch.collation import Collation
from fleet.engines.torch.loaded_files import recording_loads
from fleet.errors import FleetError, ModelError
from fleet.spec.layers import Layer, Shape, layers_of
from fleet.spec.model import Architecture, InputShape, load_function, one_line
from launch.processes import end_with_parent
from preprocess.base import INPUT
from preprocess.record_target import RecordTarget, record_of
from preprocess.sample import ArraySpec, InputSpec, RecordSpec
from preprocess.target import ModelOutputs, TargetSpec
from preprocess.user_code import exclusive_generators

_EPSILON = 1.001e-5  # epsilon of batch normalization, equal to the Keras engine's
_ROWS = 2  # rows of a trial batch
_MAX_CANDIDATES = 64  # combinations of dtypes of several inputs that are tried
_COUNTING_S = 10.0  # maximum time to build a module on the meta device
# Standard deviation of a normal distribution truncated at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978


# Of an input; of several, by name.
InputDtype: TypeAlias = torch.dtype | dict[str, torch.dtype]
Samples: TypeAlias = torch.Tensor | dict[str, torch.Tensor]


def call_module(module: Callable[..., Any], samples: Samples) -> Any:
    """Call a module with its input, or with several by keyword."""
    if isinstance(samples, Mapping):
        return module(**samples)
    if isinstance(samples, tuple):  # of the user's collate
        return module(*samples)
    return module(samples)


def outputs_by_target(returned: Any, target: RecordTarget) -> dict[str, torch.Tensor]:
    """Return what a module returned for each of several targets by name.

    Args:
        returned: a tuple in the order of the targets, or a mapping by their names.
        target: the targets.

    Raises:
        ModelError: it is something else, or lacks a target.
    """
    names = tuple(target.parts)
    listed = ", ".join(names)
    if isinstance(returned, Mapping):
        outputs = dict(returned)
    elif isinstance(returned, tuple | list):
        keys = getattr(returned, "_fields", ())
        outputs = dict(zip(keys if set(names) <= set(keys) else names, returned, strict=False))
        if not keys and len(returned) != len(names):
            raise ModelError(
                f"the module returns {len(returned)} outputs, and there are {len(names)} targets; "
                f"it should return one for each, in this order: {listed}"
            )
    elif isinstance(returned, torch.Tensor) and len(names) == 1:
        outputs = {names[0]: returned}
    else:
        raise ModelError(
            f"the module returns a {type(returned).__name__}; it should return an output for each "
            f"target, as a tuple in this order, or as a mapping by name: {listed}"
        )
    for name in names:
        if not isinstance(outputs.get(name), torch.Tensor):
            kind = "nothing" if outputs.get(name) is None else f"a {type(outputs[name]).__name__}"
            raise ModelError(
                f"the module returns {kind} for the target {name}; it returns "
                f"{', '.join(map(str, outputs))}, and should return a tensor for each of {listed}"
            )
    return {name: outputs[name] for name in names}


def join_outputs(returned: Any, target: RecordTarget) -> torch.Tensor:
    """Return the outputs for several targets side by side, (n, total) float32.

    Args:
        returned: what a module returned; of a mask, (n, classes, height, width).
        target: the targets.

    Raises:
        ModelError: it is something else.
    """
    columns = []
    for name, output in outputs_by_target(returned, target).items():
        if target.parts[name].semantics.is_of_pixels:
            output = output.movedim(1, -1)
        columns.append(output.float().flatten(1))
    return torch.cat(columns, 1)


class Built(NamedTuple):
    """A built module, and how to call it.

    Attributes:
        dtype: dtype of its input; of several, by name.
        differentiates: True if ``forward`` takes derivatives, so even evaluation needs gradients.
        predicts: True if it returns one tensor of predictions of the target.
        files: path of each file that the function loads, as it writes it -> its absolute path.
    """

    module: nn.Module
    dtype: InputDtype
    differentiates: bool = False
    predicts: bool = True
    files: Mapping[str, Path] = MappingProxyType({})


def build_module(
    architecture: Architecture,
    image: InputSpec,
    target: TargetSpec,
    seed: int,
    is_scaled: bool | Mapping[str, bool] = False,
    has_own_step: bool = False,
    copies: Mapping[str, Path] | None = None,
) -> Built:
    """Build a network that returns logits, or values, on the host.

    Args:
        architecture: what to build. A user function is called as
            ``function(input_shape=..., classes=..., **args)``, or with ``outputs`` instead of
            ``classes``.
        image: shape and type of its input, or of several, as they travel. A module of several
            inputs is called with them by keyword.
        target: target of a sample.
        seed: equal seeds give equal initial weights.
        is_scaled: True if inputs are scaled, hence float32; of several, by name.
        has_own_step: True if a step of the user calls the module, which may then return anything.
        copies: path of a file that the function loads, as it writes it -> the copy to load instead.

    Returns:
        A module from (n, channels, height, width), or (n, ...), to (n, outputs), or for masks
        (n, classes, height, width); of several targets, to a tuple or mapping of these.

    Raises:
        UserError: the description is wrong: a function is missing, an argument is wrong, or images
            are too small.
        ModelError: a user function raised, or returned something else.
    """
    if architecture.kind == "family":
        with seeded(seed):
            layers = layers_of(
                architecture.settings, image.shape, target.outputs, target.semantics.is_of_pixels
            )
            return Built(nn.Sequential(OrderedDict(_modules(layers, image.shape))), torch.float32)

    is_collated = isinstance(image, RecordSpec) and bool(image.collate)

    def build(seed: int) -> Built:
        with seeded(seed):
            module = build_custom_model(
                architecture, _shape_of(image), target.model_outputs, nn.Module, "torch.nn.Module"
            ).float()
            _choose_output(architecture, module)
            if is_collated:
                assert isinstance(image, RecordSpec)
                return _check_collated(architecture.target, module, image, target, has_own_step)
            check = _try_module if has_own_step else _check_module
            return check(architecture.target, module, image, target, is_scaled)

    with recording_loads(copies) as files:
        built = build_isolated(
            architecture.target, partial(build, seed), lambda built: built.module.parameters()
        )
        if built.predicts and not is_collated:
            check_self_contained(
                architecture.target, built, image, target, lambda: build(seed + 1).module
            )
    return built._replace(files=files)


def _shape_of(image: InputSpec) -> InputShape:
    if isinstance(image, RecordSpec):
        return {name: array.shape for name, array in image.fields}
    return image.shape


def count_parameters(
    architecture: Architecture, shape: InputShape, classes: ModelOutputs, seed: int
) -> int:
    """Count the parameters of a network, if possible without allocating them.

    Args:
        architecture: what to build.
        shape: shape of a sample; of several inputs, by name.
        classes: number of classes, labels or values; of several targets, by name.
        seed: seed of the network.
    """
    load_function(architecture.target)

    def count_on_meta_device() -> int:
        with seeded(seed), torch.device("meta"):
            module = build_custom_model(architecture, shape, classes, nn.Module, "torch.nn.Module")
            return count_module_parameters(module)

    count = _count_in_subprocess(count_on_meta_device)
    if count is not None:
        return count
    with seeded(seed):  # the module needs values, has lazy parameters, or cannot be built
        module = build_custom_model(
            architecture, shape, classes, nn.Module, "torch.nn.Module"
        ).float()
        _choose_output(architecture, module)
        image: InputSpec
        if isinstance(shape, dict):
            image = RecordSpec.of(
                {name: ArraySpec(part, "float32") for name, part in shape.items()}
            )
        else:
            image = ArraySpec(shape, "float32")
        dtypes = {name: [torch.float32, torch.int64] for name in image.arrays}
        _call_on_samples(architecture.target, module, image, dtypes, _first_tensor(module))
        return count_module_parameters(module)


def _count_in_subprocess(count: Callable[[], int]) -> int | None:
    """Return the result of a count in a subprocess; None if it fails there, or takes long.

    A module's code may cache tensors that it creates, such as a table of positions. Cached meta
    tensors would break the module that is built afterwards.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def send_count() -> None:
        with suppress(BaseException):  # the module is built later, and its error is reported then
            end_with_parent()
            torch.set_num_threads(1)  # a child has no other threads
            sender.send(count())

    child = context.Process(target=send_count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # warns of a fork in a threaded process
        child.start()
    sender.close()
    try:
        return int(receiver.recv()) if receiver.poll(_COUNTING_S) else None
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


def count_module_parameters(module: nn.Module) -> int:
    """Count a module's parameters and its floating-point statistics."""
    tensors = [
        *module.parameters(),
        *(tensor for tensor in module.buffers() if tensor.is_floating_point()),
    ]
    return sum(tensor.numel() for tensor in tensors)


def activation_bytes(module: nn.Module, call: Callable[[], Any], rows: int) -> int | None:
    """Return the bytes per row that a forward pass saves for the backward pass.

    This is the size of the saved tensors, plus twice the largest of them for gradients.

    Args:
        module: the module.
        call: calls it on some rows, in evaluation mode, and returns its outputs.
        rows: number of these rows.

    Returns:
        The bytes; None if the pass saves nothing.
    """
    sizes: dict[int, int] = {}
    weight_storages = {
        weight.untyped_storage().data_ptr() for weight in (*module.parameters(), *module.buffers())
    }

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            sizes[storage.data_ptr()] = storage.nbytes() // rows
        return tensor.detach()  # an output that refers to itself would never be freed

    was_training = module.training
    outputs = []
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            module.eval()
            outputs.append(call())  # saved tensors stay alive, so that addresses are unique
    finally:
        module.train(was_training)
    if sizes:
        return sum(sizes.values()) + 2 * max(sizes.values())
    return None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make all random numbers deterministic, and restore all generators."""
    # The lock is acquired first: fork_rng restores PyTorch's generator after seeded_generators.
    with exclusive_generators(), torch.random.fork_rng(), seeded_generators(seed):
        yield


# --- families ------------------------------------------------------------------------------


def _modules(layers: Iterable[Layer], shape: Shape) -> dict[str, nn.Module]:
    """Return the modules of layers, by name.

    Args:
        layers: descriptions of the layers.
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
    # Total padding of width and height, and its part on the left and on top.
    pads = [max((-(-length // stride) - 1) * stride + side - length, 0) for length in shape[1::-1]]
    first = [length // 2 for length in pads] if layer.pad is None else [layer.pad] * 2
    is_even = layer.pad is not None or not any(length % 2 for length in pads)
    conv = _initialized(
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
    if is_even:
        return conv
    pad_left, pad_top = first
    width, height = pads
    return nn.Sequential(
        nn.ZeroPad2d((pad_left, width - pad_left, pad_top, height - pad_top)), conv
    )


def _dense(layer: Layer, shape: Shape) -> nn.Module:
    if len(shape) == 3:  # for masks, apply it to each pixel
        return _initialized(nn.Conv2d(shape[2], layer.outputs, 1), layer.start)
    return _initialized(nn.Linear(shape[0], layer.outputs), layer.start)


def _norm(_: Layer, shape: Shape) -> nn.Module:
    if len(shape) == 1:
        return nn.BatchNorm1d(shape[0], eps=_EPSILON)
    return nn.BatchNorm2d(shape[2], eps=_EPSILON)


_MODULES: dict[str, Callable[[Layer, Shape], nn.Module]] = {
    "conv": _conv,
    "dense": _dense,
    "add": _Add,
    "concat": _Concat,
    "norm": _norm,
    "relu": lambda *_: nn.ReLU(),
    "max_pool": lambda layer, _: nn.MaxPool2d(layer.side, layer.stride, layer.pad or 0),
    "mean_pool": lambda layer, _: nn.AvgPool2d(layer.side, layer.stride),
    "average": lambda *_: _Average(),
    "flatten": lambda *_: nn.Flatten(),
    "dropout": lambda layer, _: nn.Dropout(layer.share),
}


def _initialized(layer: nn.Conv2d | nn.Linear, start: str) -> nn.Module:
    """Return the layer, initialized as in the Keras engine."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if start == "glorot_uniform":
        nn.init.xavier_uniform_(layer.weight)
    elif start == "zeros":
        nn.init.zeros_(layer.weight)
    else:
        deviation = (
            math.sqrt(2 / nn.init._calculate_correct_fan(layer.weight, "fan_in")) / _TRUNCATED_STD
        )
        nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return layer


# --- user functions ------------------------------------------------------------------------


def _check_module(
    name: str,
    module: nn.Module,
    image: InputSpec,
    target: TargetSpec,
    is_scaled: bool | Mapping[str, bool],
) -> Built:
    """Try a module on two samples, which also creates its lazy parameters."""
    _check_state(name, module)
    dtypes = _input_dtypes(image, is_scaled)
    if target.parts:
        return _check_several(name, module, image, record_of(target), dtypes)
    values, dtype, differentiates = _call_on_samples(name, module, image, dtypes)
    *axes, classes = target.output_shape
    check_output_shape(name, values.shape, (classes, *axes))
    if not target.semantics.is_numeric:
        weights = dict(module.named_parameters())

        def noisy_outputs(deviation: float) -> np.ndarray:
            noisy = {
                key: weight + deviation * torch.randn_like(weight)
                for key, weight in weights.items()
            }

            def call(*arguments: torch.Tensor, **keywords: torch.Tensor) -> Any:
                return torch.func.functional_call(module, noisy, arguments, keywords)

            return _call_on_samples(name, module, image, _as_lists(dtype), call)[0].numpy()

        activation = find_activation(
            values.movedim(1, -1).numpy(), target.semantics.has_label_sets, noisy_outputs
        )
        if activation:
            raise probabilities_error(name, "module", activation)
    return Built(module, dtype, differentiates)


def _check_several(
    name: str,
    module: nn.Module,
    image: InputSpec,
    target: RecordTarget,
    dtypes: Mapping[str, Sequence[torch.dtype]],
    has_own_step: bool = False,
) -> Built:
    """Try a module of several targets on two samples; see :func:`_check_module`."""

    def checked(*arguments: torch.Tensor, **keywords: torch.Tensor) -> torch.Tensor:
        return _join_checked(name, module(*arguments, **keywords), target)

    values, dtype, differentiates = _call_on_samples(name, module, image, dtypes, checked)
    if has_own_step:
        return Built(module, dtype, differentiates)
    weights = dict(module.named_parameters())

    def noisy_outputs(deviation: float, part: str) -> np.ndarray:
        noisy = {
            key: weight + deviation * torch.randn_like(weight) for key, weight in weights.items()
        }

        def call(*arguments: torch.Tensor, **keywords: torch.Tensor) -> torch.Tensor:
            returned = torch.func.functional_call(module, noisy, arguments, keywords)
            return join_outputs(returned, target)

        joined = _call_on_samples(name, module, image, _as_lists(dtype), call)[0].numpy()
        outputs: np.ndarray = target.split_outputs(joined)[part]
        return outputs

    for part, outputs in target.split_outputs(values.numpy()).items():
        semantics = target.parts[part].semantics
        if semantics.is_numeric:
            continue
        activation = find_activation(
            outputs, semantics.has_label_sets, partial(noisy_outputs, part=part)
        )
        if activation:
            raise probabilities_error(f"{name}, for the target {part},", "module", activation)
    return Built(module, dtype, differentiates)


def _join_checked(name: str, returned: Any, target: RecordTarget) -> torch.Tensor:
    """Return the outputs for several targets side by side, after checking their shapes."""
    for part, output in outputs_by_target(returned, target).items():
        *axes, classes = target.parts[part].output_shape
        check_output_shape(f"{name}, for the target {part},", output.shape, (classes, *axes))
    return join_outputs(returned, target)


def _first_tensor(module: nn.Module) -> Callable[..., Any]:
    """Return a call of a module that returns a tensor if it returns several."""

    def call(*arguments: torch.Tensor, **keywords: torch.Tensor) -> Any:
        returned = module(*arguments, **keywords)
        tensors = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        return tensors[0] if tensors else returned

    return call


def _try_module(
    name: str,
    module: nn.Module,
    image: InputSpec,
    target: TargetSpec,
    is_scaled: bool | Mapping[str, bool],
) -> Built:
    """Try a module that a step of the user calls; it need not return predictions."""
    _check_state(name, module)
    dtypes = _input_dtypes(image, is_scaled)
    try:
        if target.parts:
            return _check_several(name, module, image, record_of(target), dtypes, True)
        values, dtype, differentiates = _call_on_samples(name, module, image, dtypes)
    except ModelError:
        first = {key: candidates[0] for key, candidates in dtypes.items()}
        return Built(
            module, first if isinstance(image, RecordSpec) else first[INPUT], predicts=False
        )
    *axes, classes = target.output_shape
    return Built(module, dtype, differentiates, values.shape == (_ROWS, classes, *axes))


def _check_collated(
    name: str, module: nn.Module, record: RecordSpec, target: TargetSpec, has_own_step: bool
) -> Built:
    """Try a module on what a function of the user makes of samples, if there are examples."""
    _check_state(name, module)
    dtypes = {
        key: torch.int64 if np.dtype(array.dtype).kind in "iu" else torch.float32
        for key, array in record.fields
    }
    built = Built(module, dtypes, predicts=not has_own_step)
    collation = Collation.of(record)
    if record.examples is None or collation is None:  # an export, for example
        return built
    rows = record.random_inputs(np.random.default_rng(0), _ROWS)
    samples = {key: torch.from_numpy(rows[key].copy()).to(dtype) for key, dtype in dtypes.items()}
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            returned = call_module(module, collation(samples))
    except FleetError:
        raise
    except Exception as error:
        if has_own_step:
            return built
        raise ModelError(
            f"{name}: the module fails for what {record.collate} returns: {one_line(error)}"
        ) from error
    finally:
        module.train(was_training)
    if target.parts:
        try:
            _join_checked(name, returned, record_of(target))
        except ModelError:
            if has_own_step:
                return built
            raise
        return built._replace(predicts=True)
    *axes, classes = target.output_shape
    if isinstance(returned, torch.Tensor) and returned.shape == (_ROWS, classes, *axes):
        return built._replace(predicts=True)
    if has_own_step:
        return built
    if not isinstance(returned, torch.Tensor):
        raise ModelError(f"{name}: {describe_outputs(returned)}")
    check_output_shape(name, returned.shape, (classes, *axes))
    return built


def _check_state(name: str, module: nn.Module) -> None:
    wrong = [
        key for key, value in module.state_dict().items() if not isinstance(value, torch.Tensor)
    ]
    if wrong:
        raise ModelError(
            f"{name}: {wrong[0]} in the state_dict of the module is not a tensor, so it cannot be "
            "saved"
        )


def _input_dtypes(
    image: InputSpec, is_scaled: bool | Mapping[str, bool]
) -> dict[str, list[torch.dtype]]:
    """Return the dtypes in which a module may take each input, the preferred one first."""
    dtypes = {}
    for name, array in image.arrays.items():
        scaled = is_scaled if isinstance(is_scaled, bool) else is_scaled[name]
        dtypes[name] = [torch.float32]
        if len(array.shape) != 3 and not scaled and np.dtype(array.dtype).kind in "iu":
            dtypes[name] = [torch.int64, torch.float32]
    return dtypes


def _as_lists(dtype: InputDtype) -> dict[str, list[torch.dtype]]:
    """Return the only dtype of each input."""
    if isinstance(dtype, torch.dtype):
        return {INPUT: [dtype]}
    return {name: [only] for name, only in dtype.items()}


def _call_on_samples(
    name: str,
    module: nn.Module,
    image: InputSpec,
    dtypes: Mapping[str, Sequence[torch.dtype]],
    call: Callable[..., Any] | None = None,
) -> tuple[torch.Tensor, InputDtype, bool]:
    """Call a module on two samples, of the first dtype that it accepts.

    Args:
        name: name of the function, for messages.
        module: module to call.
        image: shape and type of its input, or of several.
        dtypes: dtypes to try, by input.
        call: calls the module; by default it is called directly.

    Returns:
        The output as float32, the dtype, and True if the module needs gradients.

    Raises:
        ModelError: the module fails on such samples, or does not return a tensor.
    """
    was_training = module.training
    error = Exception()
    candidates = list(itertools.islice(_candidates(image, dtypes), _MAX_CANDIDATES))
    for samples, with_gradients in itertools.product(candidates, (False, True)):
        try:
            module.eval()  # do not chain calls: a custom train() may return None
            with torch.set_grad_enabled(with_gradients):
                output = call_module(call or module, samples)
        except ModelError:
            raise
        except Exception as caught:
            error = caught
            continue
        finally:
            module.train(was_training)
        if not isinstance(output, torch.Tensor):
            raise ModelError(f"{name}: {describe_outputs(output)}")
        if isinstance(samples, torch.Tensor):
            return output.detach().float(), samples.dtype, with_gradients
        dtype_of = {key: tensor.dtype for key, tensor in samples.items()}
        return output.detach().float(), dtype_of, with_gradients
    raise ModelError(
        f"{name}: the module fails on {_describe_samples(candidates[-1])}: {one_line(error)}"
    ) from error


def _candidates(image: InputSpec, dtypes: Mapping[str, Sequence[torch.dtype]]) -> Iterator[Samples]:
    """Yield samples of all combinations of dtypes, the preferred ones first."""
    choices = [
        [samples for dtype in dtypes[name] for samples in _samples_of(array, dtype)]
        for name, array in image.arrays.items()
    ]
    for chosen in itertools.product(*choices):
        if isinstance(image, RecordSpec):
            yield dict(zip(image.arrays, chosen, strict=True))
        else:
            yield chosen[0]


def _describe_samples(samples: Samples) -> str:
    """Return a phrase such as ``images of 2x3x32x32``."""
    if not isinstance(samples, torch.Tensor):
        shapes = [f"{name} {'x'.join(map(str, part.shape))}" for name, part in samples.items()]
        return f"samples of {', '.join(shapes)}, called by keyword"
    noun = "images of " if samples.dim() == 4 else "samples of "
    return f"{noun}{'x'.join(map(str, samples.shape))}"


def _samples(image: InputSpec, dtype: InputDtype) -> Samples:
    """Return two samples in the layout that modules take; see :func:`_samples_of`."""
    return next(_candidates(image, _as_lists(dtype)))


def _choose_output(architecture: Architecture, module: nn.Module) -> None:
    """Let a module that returns several outputs return the one that the spec names."""
    if architecture.output is None:
        return

    def choose(_: nn.Module, __: Any, returned: Any) -> Any:
        if isinstance(returned, torch.Tensor):  # it returns others in training only
            return returned
        chosen = _pick(returned, architecture.output)
        if not isinstance(chosen, torch.Tensor):
            raise ModelError(
                f"{architecture.target}: no output {architecture.output!r}; "
                f"{describe_outputs(returned)}"
            )
        return chosen

    module.register_forward_hook(choose)


def _pick(returned: Any, output: str | int | None) -> Any:
    """Return an output by its key, attribute or position; None if there is none."""
    if isinstance(returned, Mapping):
        return returned.get(output)
    if isinstance(output, str):
        return getattr(returned, output, None)
    if isinstance(returned, tuple | list) and output is not None and output < len(returned):
        return returned[output]
    return None


def describe_outputs(returned: Any) -> str:
    """Describe what a module returned instead of a tensor, and how to choose an output of it."""
    if isinstance(returned, Mapping):
        kind = "mapping"
        names = list(returned)
    elif isinstance(returned, tuple | list):
        kind = type(returned).__name__
        names = list(getattr(returned, "_fields", range(len(returned))))
    else:
        return (
            f"the module returns a {type(returned).__name__}; it should return one tensor, because "
            "samples have one target"
        )
    listed = ", ".join(map(str, names))
    return (
        f"the module returns a {kind} of outputs, {listed}; name one of them by `output:` beside "
        f"`build:`, such as output: {names[0] if names else 0}, or use train.step"
    )


def _samples_of(array: ArraySpec, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return trial batches in the layout that modules take, with channels first.

    Args:
        array: shape of a sample, and values of whole numbers in the data.
        dtype: dtype of the samples; floats are random.

    Returns:
        Two random samples of floats, or of whole numbers of the data; if none are known, samples of
        1 and of 0, which may be padding.
    """
    shape = array.shape
    channels_first = (shape[2], *shape[:2]) if len(shape) == 3 else shape
    if dtype.is_floating_point:
        return [torch.empty(_ROWS, *channels_first).uniform_(-1, 1)]
    if array.values:
        values = torch.tensor(array.values, dtype=dtype)
        return [values[torch.randint(len(values), (_ROWS, *channels_first))]]
    return [torch.full((_ROWS, *channels_first), value, dtype=dtype) for value in (1, 0)]


class _ForeignTensorMode(TorchDispatchMode):
    """Records tensors that a module computes with but neither owns nor creates.

    Attributes:
        tensors: the recorded tensors.
    """

    def __init__(self, module: nn.Module, samples: Samples) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self._references: list[torch.Tensor] = []  # keeps tensors alive, so addresses are unique
        self._storages: set[int] = set()
        self._add([*tree_leaves(samples), *module.parameters(), *module.buffers()])

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
    except NotImplementedError:  # a sparse tensor
        return id(tensor)


def check_self_contained(
    name: str,
    built: Built,
    image: InputSpec,
    target: TargetSpec,
    build: Callable[[], nn.Module],
) -> None:
    """Check that a module's outputs depend only on its parameters and buffers.

    Layers in a plain Python list are not parameters: they would be neither trained nor saved. Other
    tensors are allowed if the function creates equal tensors again.

    Args:
        name: name of the function, for messages.
        built: the module.
        image: shape and type of its input, or of several.
        target: target of a sample.
        build: builds the module again, from another seed.

    Raises:
        ModelError: the outputs depend on other tensors.
    """
    module, dtype, differentiates, *_ = built
    was_training = module.training
    with seeded(0):
        samples = _samples(image, dtype)
    foreign = _ForeignTensorMode(module, samples)
    module.eval()
    try:
        with torch.set_grad_enabled(differentiates), seeded(0), foreign:
            copies = tree_map(torch.clone, samples)  # a module may write into its inputs
            expected = _joined(call_module(module, copies), target)
    finally:
        module.train(was_training)
    if any(tensor.requires_grad for tensor in foreign.tensors):
        raise ModelError(
            f"{name}: the module uses weights that are not among its parameters"
            f"{_describe_holder(module, foreign.tensors)}, so they are neither trained nor saved; "
            "keep layers in nn.ModuleList or nn.ModuleDict, and single weights as nn.Parameter"
        )
    if not foreign.tensors:
        return
    rebuilt = build()
    rebuilt.load_state_dict(module.state_dict())
    rebuilt.eval()
    with torch.set_grad_enabled(differentiates), seeded(0):
        outputs = _joined(call_module(rebuilt, samples), target)
    if not torch.allclose(expected, outputs, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ModelError(
            f"{name}: the module uses a tensor that is neither a parameter nor a buffer"
            f"{_describe_holder(module, foreign.tensors)}, and a rebuilt module has another one; "
            "register it with register_buffer"
        )


def _joined(returned: Any, target: TargetSpec) -> Any:
    """Return what a module returned as one tensor, also for several targets."""
    return join_outputs(returned, record_of(target)) if target.parts else returned


def _describe_holder(module: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Return the attribute that holds tensors, as `` (layers of Net)``; empty if unknown."""
    storages = {_storage_id(tensor) for tensor in tensors}
    for owner in module.modules():
        for name, value in vars(owner).items():
            if not name.startswith("_") and any(
                _storage_id(tensor) in storages for tensor in _tensors_in(value)
            ):
                return f" ({name} of {type(owner).__name__})"
    return ""


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an attribute, also in its containers and modules."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, nn.Module):
            yield from chain(leaf.parameters(), leaf.buffers())
        elif isinstance(leaf, torch.Tensor):
            yield leaf
