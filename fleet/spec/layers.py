"""The layers of a family's networks, and what they cost, counted without building a network.

Only convolutions and dense layers are walked through, with the channels that are normalised beside them: all else has
no parameters, and takes about the same share of the time for all networks of a family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fleet.spec import model
from preprocess.sample import SampleSpec

Pixels: TypeAlias = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Layer:
    """A convolution, or a dense layer, which is one of side 1 at one place.

    Attributes:
        side: of the square filters.
        inputs, outputs: channels, or features.
        places: how many it is computed at.
        has_bias: whether each output has a bias.
        normalised: channels that are normalised right before or after it.
    """

    side: int
    inputs: int
    outputs: int
    places: int = 1
    has_bias: bool = True
    normalised: int = 0

    @property
    def weights(self) -> int:
        """Those of its filters."""
        return self.side ** 2 * self.inputs * self.outputs


def count_parameters(settings: model.Settings, input_shape: tuple[int, ...], classes: int) -> int:
    """Count a network's parameters, trainable or not, as Keras' ``count_params`` does.

    Args:
        settings: of a family.
        input_shape: height, width (pixels) and channels of an image; any shape for ``softmax``.
        classes: number of classes.

    Returns:
        The number of parameters; batch normalisation has four a channel.

    Raises:
        UserError: the image is too small for the network.

    A 3x3 convolution of 2 filters on 1 channel has 18 + 2 parameters; 4x4 pixels are then
    pooled to 2x2, so that a classifier of 3 classes has 2 * 2 * 2 * 3 + 3:

    >>> count_parameters(model.CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    47
    """
    # a normalised channel has a scale, a shift, and the moving mean and variance
    norm = 0 if isinstance(settings, model.Softmax) or settings.norm == "none" else 4
    return sum(layer.weights + layer.has_bias * layer.outputs + norm * layer.normalised
               for layer in layers_of(settings, input_shape, classes))


def count_for(settings: model.Settings, sample: SampleSpec) -> int:
    """The parameters of a network of a family for such samples; for masks, ``softmax`` looks at each pixel by itself.

    Raises:
        UserError: the image is too small for the network.
    """
    shape = sample.image.shape[-1:] if sample.target.kind == "mask" else sample.image.shape
    return count_parameters(settings, shape, sample.classes)


def count_operations(settings: model.Settings, input_shape: tuple[int, ...], classes: int) -> int:
    """Count the multiplications of one sample's way through a network.

    They say how fast a network trains beside others of its family, before any has trained.

    Args:
        settings, input_shape, classes: as in :func:`count_parameters`.

    Raises:
        UserError: the image is too small for the network.

    A 3x3 convolution of 2 filters on 4x4 pixels of 1 channel takes 288; then they are pooled to 2x2, so that a
    classifier of 3 classes takes 24:

    >>> count_operations(model.CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    312
    """
    return sum(layer.weights * layer.places for layer in layers_of(settings, input_shape, classes))


def layers_of(settings: model.Settings, input_shape: tuple[int, ...], classes: int) -> Iterator[Layer]:
    """The layers of a network, from its input to its classes.

    Raises:
        UserError: the image is too small for the network.
    """
    model.check_input(settings, input_shape)
    if isinstance(settings, model.ResNet):
        return _resnet(settings, input_shape, classes)
    if isinstance(settings, model.DenseNet):
        return _densenet(settings, input_shape, classes)
    if isinstance(settings, model.CNN):
        return _cnn(settings, input_shape, classes)
    return iter([Layer(1, math.prod(input_shape), classes)])


def _resnet(settings: model.ResNet, input_shape: tuple[int, ...], classes: int) -> Iterator[Layer]:
    def conv(side: int, inputs: int, outputs: int) -> Layer:  # always with a bias, as keras.applications has
        return Layer(side, inputs, outputs, math.prod(pixels), normalised=outputs)

    bottleneck = model.has_bottlenecks(settings, input_shape)
    side, pixels, left = _stem(settings, input_shape)
    yield conv(side, input_shape[2], settings.width)
    pixels, channels = left, settings.width
    for stage, count in enumerate(settings.blocks):
        inner = settings.width * 2 ** stage
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            shrinks = block == 0 and stage > 0
            pixels = _halved(pixels) if shrinks else pixels
            if shrinks or channels != outer:  # the shape changes: a projection
                yield conv(1, channels, outer)
            if bottleneck:
                yield from (conv(1, channels, inner), conv(3, inner, inner), conv(1, inner, outer))
            else:
                yield from (conv(3, channels, inner), conv(3, inner, outer))
            channels = outer
    yield Layer(1, channels, classes)


def _densenet(settings: model.DenseNet, input_shape: tuple[int, ...], classes: int) -> Iterator[Layer]:
    def conv(side: int, inputs: int, outputs: int, normalised: int) -> Layer:
        has_bias = settings.norm == "none"  # batch normalisation brings its own shift
        return Layer(side, inputs, outputs, math.prod(pixels), has_bias, normalised)

    growth, channels = settings.growth, 2 * settings.growth
    side, pixels, left = _stem(settings, input_shape)
    yield conv(side, input_shape[2], channels, channels)
    pixels = left
    for block, layers in enumerate(settings.blocks):
        if block > 0:  # the transition
            kept = model.compressed(channels, settings.compression)
            yield conv(1, channels, kept, channels)
            pixels, channels = _halved(pixels), kept
        for _ in range(layers):
            yield conv(1, channels, 4 * growth, channels)
            yield conv(3, 4 * growth, growth, 4 * growth)
            channels += growth
    yield Layer(1, channels, classes, normalised=channels)


def _cnn(settings: model.CNN, input_shape: tuple[int, ...], classes: int) -> Iterator[Layer]:
    height, width, channels = input_shape  # check_input has seen to it
    for filters in settings.filters:
        yield Layer(settings.kernel, channels, filters, height * width, normalised=filters)
        height, width, channels = height // 2, width // 2, filters
    features = height * width * channels
    for units in (*settings.dense, classes):
        yield Layer(1, features, units)
        features = units


def _stem(settings: model.ResNet | model.DenseNet, input_shape: tuple[int, ...]) -> tuple[int, Pixels, Pixels]:
    """The side of the first convolution, the pixels that it is computed at, and those that it leaves to the others."""
    pixels = input_shape[0], input_shape[1]
    if not model.large_stem(settings, input_shape):
        return 3, pixels, pixels
    return 7, _halved(pixels), _halved(_halved(pixels))


def _halved(pixels: Pixels) -> Pixels:
    return -(-pixels[0] // 2), -(-pixels[1] // 2)
