"""How many parameters a network of a family has, counted without building it."""

from __future__ import annotations

import math

from fleet.spec.model import (
    CNN,
    DenseNet,
    ResNet,
    Settings,
    check_input,
    compressed,
    has_bottlenecks,
    large_stem,
)
from preprocess.sample import SampleSpec


def count_parameters(settings: Settings, input_shape: tuple[int, ...], classes: int) -> int:
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

    >>> count_parameters(CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    47
    """
    check_input(settings, input_shape)
    if isinstance(settings, ResNet):
        return _count_resnet(settings, input_shape, classes)
    if isinstance(settings, DenseNet):
        return _count_densenet(settings, input_shape, classes)
    if isinstance(settings, CNN):
        return _count_cnn(settings, input_shape, classes)
    return (math.prod(input_shape) + 1) * classes


def count_for(settings: Settings, sample: SampleSpec) -> int:
    """The parameters of a network of a family for such samples; for masks, ``softmax`` looks at each pixel by itself.

    Raises:
        UserError: the image is too small for the network.
    """
    shape = sample.image.shape[-1:] if sample.target.kind == "mask" else sample.image.shape
    return count_parameters(settings, shape, sample.classes)


def _count_resnet(settings: ResNet, input_shape: tuple[int, ...], classes: int) -> int:
    norm = _norm_parameters(settings)

    def conv(side: int, inputs: int, outputs: int) -> int:  # always with a bias, as keras.applications has
        return side * side * inputs * outputs + outputs + norm * outputs

    bottleneck = has_bottlenecks(settings, input_shape)
    total = conv(7 if large_stem(settings, input_shape) else 3, input_shape[2], settings.width)
    channels = settings.width
    for stage, count in enumerate(settings.blocks):
        inner = settings.width * 2 ** stage
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            if channels != outer or (block == 0 and stage > 0):  # the shape changes: a projection
                total += conv(1, channels, outer)
            if bottleneck:
                total += conv(1, channels, inner) + conv(3, inner, inner) + conv(1, inner, outer)
            else:
                total += conv(3, channels, inner) + conv(3, inner, outer)
            channels = outer
    return total + channels * classes + classes


def _count_densenet(settings: DenseNet, input_shape: tuple[int, ...], classes: int) -> int:
    norm = _norm_parameters(settings)
    bias = int(settings.norm == "none")  # batch normalisation brings its own shift

    def conv(side: int, inputs: int, outputs: int) -> int:
        return side * side * inputs * outputs + bias * outputs

    growth, channels = settings.growth, 2 * settings.growth
    total = conv(7 if large_stem(settings, input_shape) else 3, input_shape[2], channels) + norm * channels
    for block, layers in enumerate(settings.blocks):
        if block > 0:  # the transition
            kept = compressed(channels, settings.compression)
            total += norm * channels + conv(1, channels, kept)
            channels = kept
        for _ in range(layers):
            total += norm * channels + conv(1, channels, 4 * growth)
            total += norm * 4 * growth + conv(3, 4 * growth, growth)
            channels += growth
    return total + norm * channels + channels * classes + classes


def _count_cnn(settings: CNN, input_shape: tuple[int, ...], classes: int) -> int:
    norm = _norm_parameters(settings)
    height, width, channels = input_shape  # check_input has seen to it
    total = 0
    for filters in settings.filters:
        total += settings.kernel ** 2 * channels * filters + filters + norm * filters
        height, width, channels = height // 2, width // 2, filters
    features = height * width * channels
    for units in (*settings.dense, classes):
        total += features * units + units
        features = units
    return total


def _norm_parameters(settings: ResNet | DenseNet | CNN) -> int:
    # scale, shift, and the moving mean and variance
    return 4 if settings.norm == "batch" else 0
