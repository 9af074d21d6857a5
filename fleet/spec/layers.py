"""List the layers of a family's networks; engines build them, and costs are counted from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fleet.spec import model
from preprocess.sample import SampleSpec

# The input shape of a layer for one sample: (height, width, channels) or (features,).
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer, described much as in Keras.

    Attributes:
        kind: ``average`` is the mean over all pixels, ``add`` the sum of a branch and a shortcut,
            ``concat`` the concatenation of a branch's input and output.
        name: the name of the layer, unique in its network.
        outputs: number of output channels of a convolution, or of output features.
        side, stride: size and stride of square filters or pooling windows, in pixels.
        pad: pixels of zero padding on each side; None for ``same`` padding.
        has_bias: whether each output has a bias.
        start: the distribution of the initial weights.
        share: the dropout rate.
        branch, shortcut: layers of an ``add`` or ``concat``.
    """

    kind: Literal[
        "conv",
        "dense",
        "norm",
        "relu",
        "max_pool",
        "mean_pool",
        "average",
        "flatten",
        "dropout",
        "add",
        "concat",
    ]
    name: str
    outputs: int = 0
    side: int = 1
    stride: int = 1
    pad: int | None = None
    has_bias: bool = True
    start: Literal["he_normal", "glorot_uniform", "zeros"] = "he_normal"
    share: float = 0.0
    branch: tuple[Layer, ...] = ()
    shortcut: tuple[Layer, ...] = ()

    def after(self, shape: Shape) -> Shape:
        """Return the output shape for an input shape."""
        match self.kind:
            case "conv" | "max_pool" | "mean_pool":
                height, width = map(self._size_after, shape[:2])
                return height, width, self.outputs or shape[2]
            case "dense":
                return *shape[:-1], self.outputs
            case "average":
                return shape[2:]
            case "flatten":
                return (math.prod(shape),)
            case "add":
                return shape_after(self.branch, shape)
            case "concat":
                return *shape[:2], shape[2] + shape_after(self.branch, shape)[2]
        return shape

    def _size_after(self, size: int) -> int:
        """Return the height or width after a convolution or pooling."""
        if self.pad is None:
            return -(-size // self.stride)
        return (size + 2 * self.pad - self.side) // self.stride + 1


def shape_after(layers: Sequence[Layer], shape: Shape) -> Shape:
    """Return the output shape of consecutive layers."""
    for layer in layers:
        shape = layer.after(shape)
    return shape


def count_parameters(settings: model.Settings, input_shape: Shape, classes: int) -> int:
    """Count a network's parameters, trainable or not, as Keras' ``count_params`` does.

    Args:
        settings: the settings of a family.
        input_shape: height, width (pixels) and channels of an image; any shape for ``mlp`` and
            ``softmax``.
        classes: number of classes.

    Returns:
        The number of parameters. Batch normalization has four for each channel: a scale, a shift,
        and the moving mean and variance.

    Raises:
        UserError: the image is too small for the network.

    A 3x3 convolution of 2 filters on 1 channel has 18 + 2 parameters; 4x4 pixels are then
    pooled to 2x2, so that a classifier of 3 classes has 2 * 2 * 2 * 3 + 3:

    >>> count_parameters(model.CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    47
    """
    return sum(
        _parameters(layer, shape)
        for layer, shape in _walk(layers_of(settings, input_shape, classes), input_shape)
    )


def count_for(settings: model.Settings, sample: SampleSpec) -> int:
    """Count the parameters of a family's network for given samples.

    Raises:
        UserError: the image is too small for the network.
    """
    if sample.target.semantics.is_of_pixels:
        shape = sample.input.shape[-1:]
    else:
        shape = sample.joined_shape
    return count_parameters(settings, shape, sample.classes)


def count_operations(settings: model.Settings, input_shape: Shape, classes: int) -> int:
    """Count the multiplications by weights in one sample's forward pass.

    They predict how fast a network trains compared with others of its family: all other work takes
    about the same share of the time for all of them.

    Args:
        settings, input_shape, classes: see :func:`count_parameters`.

    Raises:
        UserError: the image is too small for the network.

    A 3x3 convolution of 2 filters on 4x4 pixels of 1 channel takes 288; then they are pooled to
    2x2, so that a classifier of 3 classes takes 24:

    >>> count_operations(model.CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    312
    """
    return sum(
        _weights(layer, shape) * math.prod(layer.after(shape)[:-1])
        for layer, shape in _walk(layers_of(settings, input_shape, classes), input_shape)
    )


def _walk(layers: Sequence[Layer], shape: Shape) -> Iterator[tuple[Layer, Shape]]:
    """Yield all layers, nested ones included, with their input shapes."""
    for layer in layers:
        yield layer, shape
        yield from _walk(layer.branch, shape)
        yield from _walk(layer.shortcut, shape)
        shape = layer.after(shape)


def _parameters(layer: Layer, shape: Shape) -> int:
    if layer.kind == "norm":
        return 4 * shape[-1]
    return _weights(layer, shape) + layer.has_bias * layer.outputs


def _weights(layer: Layer, shape: Shape) -> int:
    return layer.side**2 * shape[-1] * layer.outputs


# ---- families ------------------------------------------------------------------------------------


def layers_of(
    settings: model.Settings, input_shape: Shape, outputs: int, is_mask: bool = False
) -> tuple[Layer, ...]:
    """Return the layers of a network, from its input to its logits or values.

    Args:
        settings, input_shape: see :func:`count_parameters`.
        outputs: number of classes, labels or values.
        is_mask: whether each pixel has its own outputs; only for the family ``softmax``.

    Raises:
        UserError: the image is too small for the network.
    """
    model.check_input(settings, input_shape)
    last = Layer("dense", "logits", outputs, start="glorot_uniform")
    if isinstance(settings, model.ResNet):
        return *_resnet(settings, input_shape), last
    if isinstance(settings, model.DenseNet):
        return *_densenet(settings, input_shape), last
    if isinstance(settings, model.CNN):
        return *_cnn(settings), last
    if isinstance(settings, model.MLP):
        return *_mlp(settings), last
    if is_mask:
        return (last,)
    return (Layer("flatten", "flatten"), last)


def _resnet(settings: model.ResNet, input_shape: Shape) -> Iterator[Layer]:
    yield from _stem(settings, input_shape, settings.width)
    is_narrow = settings.bottleneck
    if is_narrow == "auto":
        is_narrow = model.large_stem(settings, input_shape)
    channels = settings.width
    for stage, count in enumerate(settings.blocks):
        for block in range(count):
            name = f"stage{stage}_block{block}"
            filters = settings.width * 2**stage
            # The first convolution has the stride, as in keras.applications.
            if block == 0 and stage > 0:
                stride = 2
            else:
                stride = 1
            if is_narrow:
                sizes: tuple[tuple[int, int], ...] = ((filters, 1), (filters, 3), (4 * filters, 1))
            else:
                sizes = ((filters, 3), (filters, 3))
            branch = _conv(settings, f"{name}_1", *sizes[0], stride)
            for number, size in enumerate(sizes[1:], 2):
                branch += [
                    Layer("relu", f"{name}_{number - 1}_relu"),
                    *_conv(settings, f"{name}_{number}", *size, is_last=number == len(sizes)),
                ]
            is_projected = stride > 1 or channels != sizes[-1][0]
            channels = sizes[-1][0]
            if is_projected:
                shortcut = _conv(settings, f"{name}_0", channels, 1, stride)
            else:
                shortcut = []
            yield Layer("add", f"{name}_add", branch=tuple(branch), shortcut=tuple(shortcut))
            yield Layer("relu", f"{name}_out_relu")
    yield from _pooled(settings.dropout)


def _densenet(settings: model.DenseNet, input_shape: Shape) -> Iterator[Layer]:
    def conv(name: str, outputs: int, side: int) -> list[Layer]:
        return [
            *_norm(settings, name),
            Layer("relu", f"{name}_relu"),
            Layer("conv", f"{name}_conv", outputs, side, has_bias=settings.norm == "none"),
        ]

    channels = 2 * settings.growth
    yield from _stem(settings, input_shape, channels, has_bias=settings.norm == "none")
    for block, count in enumerate(settings.blocks):
        if block > 0:  # the transition
            channels = max(1, int(channels * settings.compression))
            yield from conv(f"transition{block}", channels, 1)
            yield Layer("mean_pool", f"transition{block}_pool", side=2, stride=2, pad=0)
        for number in range(count):
            name = f"block{block}_layer{number}"
            yield Layer(
                "concat",
                f"{name}_concat",
                branch=(
                    *conv(f"{name}_1", 4 * settings.growth, 1),
                    *conv(f"{name}_2", settings.growth, 3),
                ),
            )
        channels += count * settings.growth
    yield from (*_norm(settings, "final"), Layer("relu", "final_relu"), *_pooled(settings.dropout))


def _cnn(settings: model.CNN) -> Iterator[Layer]:
    for stage, filters in enumerate(settings.filters):
        yield from (
            *_conv(settings, f"stage{stage}", filters, settings.kernel),
            Layer("relu", f"stage{stage}_relu"),
            Layer("max_pool", f"stage{stage}_pool", side=2, stride=2, pad=0),
        )
    yield Layer("flatten", "flatten")
    yield from _dense(settings.dense, settings.dropout)


def _mlp(settings: model.MLP) -> Iterator[Layer]:
    yield Layer("flatten", "flatten")
    yield from _dense(settings.hidden, settings.dropout, settings.norm == "batch")


def _dense(sizes: Sequence[int], dropout: float, is_normalized: bool = False) -> Iterator[Layer]:
    """Yield hidden layers of these numbers of units."""
    for number, units in enumerate(sizes):
        name = f"dense{number}"
        yield Layer("dense", name, units)
        if is_normalized:
            yield Layer("norm", f"{name}_norm")
        yield Layer("relu", f"{name}_relu")
        yield from _dropout(f"{name}_dropout", dropout)


def _stem(
    settings: model.ResNet | model.DenseNet, input_shape: Shape, filters: int, has_bias: bool = True
) -> Iterator[Layer]:
    large = model.large_stem(settings, input_shape)
    side, stride, pad = (7, 2, 3) if large else (3, 1, None)
    yield from (
        Layer("conv", "stem_conv", filters, side, stride, pad, has_bias),
        *_norm(settings, "stem"),
        Layer("relu", "stem_relu"),
    )
    if large:
        # `same` padding would pad an even image on one side only.
        yield Layer("max_pool", "stem_pool", side=3, stride=2, pad=1)


def _conv(
    settings: model.ResNet | model.CNN,
    name: str,
    outputs: int,
    side: int,
    stride: int = 1,
    is_last: bool = False,
) -> list[Layer]:
    """Return a convolution with its normalization."""
    # Without normalization the variance would double with every block; a branch that starts at
    # zero preserves it (Zhang et al., Fixup Initialization, ICLR 2019).
    start: Literal["zeros", "he_normal"] = (
        "zeros" if is_last and settings.norm == "none" else "he_normal"
    )
    return [
        Layer("conv", f"{name}_conv", outputs, side, stride, start=start),
        *_norm(settings, name),
    ]


def _norm(settings: model.ResNet | model.DenseNet | model.CNN, name: str) -> list[Layer]:
    if settings.norm == "none":
        return []
    return [Layer("norm", f"{name}_norm")]


def _pooled(dropout: float) -> list[Layer]:
    return [Layer("average", "pool"), *_dropout("dropout", dropout)]


def _dropout(name: str, share: float) -> list[Layer]:
    if share:
        return [Layer("dropout", name, share=share)]
    return []
