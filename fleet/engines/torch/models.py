"""Modules from their descriptions: families, and functions of one's own.

Every module gives **logits**, or values: the loss takes the softmax itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fleet.engines.own import generators_kept, own_model
from fleet.errors import ModelError
from fleet.spec import model as families
from fleet.spec.model import Architecture, one_line
from preprocess.sample import ImageSpec
from preprocess.target import TargetSpec

_EPSILON = 1.001e-5  # of batch normalisation, as the Keras engine has it
_ROWS = 2  # of a batch that is looked at
_CUT = 0.87962566103423978  # standard deviation of a normal distribution that is cut off at two of its own


class Built(NamedTuple):
    """A module, and the type of what it is called with."""

    module: nn.Module
    dtype: torch.dtype


def build_module(architecture: Architecture, image: ImageSpec, target: TargetSpec, seed: int,
                 is_scaled: bool = False) -> Built:
    """Build a network that gives logits, or values; on the host.

    Args:
        architecture: what to build. A function of one's own is called as
            ``function(input_shape=..., classes=..., **args)``, or with ``outputs`` instead of ``classes``.
        image: what it takes, as it travels.
        seed: the same seed gives the same first weights.
        is_scaled: whether inputs are scaled, so that they are float32.

    Returns:
        A module from (n, channels, height, width), or (n, ...), to (n, outputs), or for masks (n, classes, height,
        width).

    Raises:
        UserError: the description is wrong: no such function, a wrong argument, an image too small.
        ModelError: a function of one's own raised, or returned something else than such a module.
    """
    with _seeded(seed):
        if architecture.kind == "family":
            return Built(_family(architecture, image.shape, target), torch.float32)
        module = own_model(architecture, image.shape, target.outputs, nn.Module, "torch.nn.Module").float()
        return Built(module, _checked(architecture.target, module, image, target, is_scaled))


def count_parameters(architecture: Architecture, shape: tuple[int, ...], classes: int, seed: int) -> int:
    """The parameters of a network, trained or not, without taking the memory for them where that is possible."""
    try:
        with _seeded(seed), torch.device("meta"):
            return parameters_in(own_model(architecture, shape, classes, nn.Module, "torch.nn.Module"))
    except Exception:  # it wants values, is made of lazy modules, or says why when it is built
        with _seeded(seed):
            module = own_model(architecture, shape, classes, nn.Module, "torch.nn.Module").float()
            _on_samples(architecture.target, module, ImageSpec(shape, "float32"), [torch.float32, torch.int64])
            return parameters_in(module)


def parameters_in(module: nn.Module) -> int:
    """Numbers of a module that training changes: parameters, and the statistics of batch normalisation."""
    kept = [*module.parameters(), *(one for one in module.buffers() if one.is_floating_point())]
    return sum(one.numel() for one in kept)


def kept_bytes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
    """Bytes for each row of a batch that the forward pass of a step keeps for the backward pass.

    These are the tensors that it keeps, each once, and twice the largest of them: its gradient, and the one that is
    computed from that.

    Args:
        shape: of a row, as the module takes it.

    Returns:
        None where nothing is kept.
    """
    kept: dict[int, int] = {}
    own = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // _ROWS
        return tensor

    device = next(module.parameters()).device
    rows = torch.zeros(_ROWS, *shape, dtype=dtype, device=device)
    was_training, held = module.training, []
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            held.append(module.eval()(rows))  # what is kept stays where it is, and no address is used twice
    finally:
        module.train(was_training)
    return sum(kept.values()) + 2 * max(kept.values()) if kept else None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make everything random deterministic, and give all generators back as they were."""
    with generators_kept(), torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield


# --- families ------------------------------------------------------------------------------


def _family(architecture: Architecture, shape: tuple[int, ...], target: TargetSpec) -> nn.Module:
    settings = architecture.settings
    families.check_input(settings, shape)
    if isinstance(settings, families.ResNet):
        return _ResNet(settings, shape, target.outputs)
    if isinstance(settings, families.CNN):
        return _cnn(settings, shape, target.outputs)
    if target.kind == "mask":  # each pixel by itself
        return nn.Sequential(_scaled(nn.Conv2d(shape[2], target.outputs, 1), "glorot"))
    return nn.Sequential(nn.Flatten(), _dense(math.prod(shape), target.outputs))


def _cnn(settings: families.CNN, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    height, width, channels = shape
    layers: list[nn.Module] = []
    for filters in settings.filters:
        layers += [*_conv(channels, filters, settings.kernel, 1, (height, width), settings.norm), nn.ReLU(),
                   nn.MaxPool2d(2)]
        height, width, channels = height // 2, width // 2, filters
    layers.append(nn.Flatten())
    features = height * width * channels
    for units in settings.dense:
        layers += [_scaled(nn.Linear(features, units)), nn.ReLU()]
        layers += [nn.Dropout(settings.dropout)] if settings.dropout else []
        features = units
    return nn.Sequential(*layers, _dense(features, outputs))


class _ResNet(nn.Module):
    def __init__(self, settings: families.ResNet, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        side, width, channels = (shape[0], shape[1]), settings.width, shape[2]
        large, norm = families.large_stem(settings, shape), settings.norm
        if large:
            conv = _scaled(nn.Conv2d(channels, width, 7, stride=2, padding=3))
            side = ((side[0] + 3) // 4, (side[1] + 3) // 4)
        else:
            conv = _scaled(nn.Conv2d(channels, width, 3, padding=1))
        pool = [nn.MaxPool2d(3, stride=2, padding=1)] if large else []
        self.stem = nn.Sequential(conv, *_norm(width, norm), nn.ReLU(), *pool)
        blocks, channels = [], width
        for stage, count in enumerate(settings.blocks):
            for block in range(count):
                stride = 2 if block == 0 and stage > 0 else 1
                made = _Block(channels, width * 2**stage, stride, side, norm, families.has_bottlenecks(settings, shape))
                blocks.append(made)
                side, channels = made.side, made.outputs
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(settings.dropout) if settings.dropout else nn.Identity()
        self.logits = _dense(channels, outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(images)).mean((2, 3))
        found: torch.Tensor = self.logits(self.dropout(features))
        return found


class _Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 ones, beside a shortcut; the first has the stride."""

    def __init__(self, inputs: int, filters: int, stride: int, side: tuple[int, int], norm: str, is_narrow: bool
                 ) -> None:
        super().__init__()
        self.outputs = 4 * filters if is_narrow else filters
        self.side = (-(-side[0] // stride), -(-side[1] // stride))
        if is_narrow:
            self.branch = nn.Sequential(*_conv(inputs, filters, 1, stride, side, norm), nn.ReLU(),
                                        *_conv(filters, filters, 3, 1, self.side, norm), nn.ReLU(),
                                        *_conv(filters, self.outputs, 1, 1, self.side, norm, last=True))
        else:
            self.branch = nn.Sequential(*_conv(inputs, filters, 3, stride, side, norm), nn.ReLU(),
                                        *_conv(filters, filters, 3, 1, self.side, norm, last=True))
        is_projected = stride > 1 or inputs != self.outputs
        self.shortcut = nn.Sequential(*_conv(inputs, self.outputs, 1, stride, side, norm)) if is_projected else (
            nn.Identity())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(images) + self.branch(images))


def _conv(inputs: int, filters: int, kernel: int, stride: int, side: tuple[int, int], norm: str,
          last: bool = False) -> list[nn.Module]:
    """A convolution whose output is as large as its input, or half as large, padded as Keras pads."""
    height, width = (max((-(-one // stride) - 1) * stride + kernel - one, 0) for one in side)
    pads = (width // 2, width - width // 2, height // 2, height - height // 2)  # left, right, top, bottom
    is_even = pads[0] == pads[1] and pads[2] == pads[3]
    conv = nn.Conv2d(inputs, filters, kernel, stride, padding=(pads[2], pads[0]) if is_even else 0)
    # A branch that starts at zero keeps the variance, which would double with every block (Fixup, ICLR 2019).
    scaled = _scaled(conv, "zeros" if last and norm == "none" else "he")
    return [*([] if is_even else [nn.ZeroPad2d(pads)]), scaled, *_norm(filters, norm)]


def _norm(channels: int, norm: str) -> list[nn.Module]:
    return [] if norm == "none" else [nn.BatchNorm2d(channels, eps=_EPSILON)]


def _dense(inputs: int, outputs: int) -> nn.Module:
    return _scaled(nn.Linear(inputs, outputs), "glorot")


def _scaled(layer: nn.Conv2d | nn.Linear, by: str = "he") -> nn.Module:
    """A layer with the first weights that the Keras engine gives it."""
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    if by == "glorot":
        nn.init.xavier_uniform_(layer.weight)
    elif by == "zeros":
        nn.init.zeros_(layer.weight)
    else:
        deviation = math.sqrt(2 / nn.init._calculate_correct_fan(layer.weight, "fan_in")) / _CUT
        nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return layer


# --- a function of one's own ---------------------------------------------------------------


def _checked(name: str, module: nn.Module, image: ImageSpec, target: TargetSpec, is_scaled: bool) -> torch.dtype:
    """Try a module on two samples, which also makes its lazy parameters; returns the type of what it takes."""
    if wrong := [key for key, value in module.state_dict().items() if not isinstance(value, torch.Tensor)]:
        raise ModelError(f"{name}: its state holds {wrong[0]}, which is no tensor and cannot be saved")
    is_whole = len(image.shape) != 3 and not is_scaled and np.dtype(image.dtype).kind in "iu"
    values, dtype = _on_samples(name, module, image, [torch.int64, torch.float32] if is_whole else [torch.float32])
    wanted = (target.outputs, *target.shape) if target.kind == "mask" else (target.outputs,)
    if tuple(values.shape) != (2, *wanted):
        raise ModelError(f"{name} gives outputs of shape {(None, *values.shape[1:])}, not {(None, *wanted)}")
    _refuse_probabilities(name, module, values, target)
    return dtype


def _on_samples(name: str, module: nn.Module, image: ImageSpec, dtypes: list[torch.dtype]
                ) -> tuple[torch.Tensor, torch.dtype]:
    """What a module gives for two samples, of the first type that it takes.

    Raises:
        ModelError: it cannot take such samples, or gives no tensor.
    """
    height_first = image.shape if len(image.shape) != 3 else (image.shape[2], *image.shape[:2])
    was_training, error = module.training, Exception()
    for dtype in dtypes:  # numbers of things, which embeddings take, or quantities
        samples = torch.empty(2, *height_first).uniform_(-1, 1) if dtype.is_floating_point else torch.zeros(
            2, *height_first, dtype=dtype)
        try:
            with torch.no_grad():
                found = module.eval()(samples)
        except Exception as caught:
            error = caught
            continue
        finally:
            module.train(was_training)
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"{name} gives a {type(found).__name__}; samples have one target, so it should give one "
                             "tensor")
        return found.float(), dtype
    what = "images of " if len(image.shape) == 3 else "samples of "
    raise ModelError(f"{name} cannot take {what}{'x'.join(map(str, (2, *height_first)))}: {one_line(error)}") from error


def _refuse_probabilities(name: str, module: nn.Module, values: torch.Tensor, target: TargetSpec) -> None:
    if target.kind == "value":
        return
    last = list(module.modules())[-1]
    if target.kind == "multilabel":
        found = "sigmoid" if isinstance(last, nn.Sigmoid) else ""
    else:
        are_shares = bool((values >= 0).all()) and bool((values.sum(1) - 1).abs().max() < 1e-2)
        found = "softmax" if are_shares else ""
    if found:
        raise ModelError(f"{name} gives probabilities, by a {found}; leave it out, so that the module returns logits")
