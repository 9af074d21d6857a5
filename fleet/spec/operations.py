"""How many multiplications a network of a family takes for a sample, counted without building it.

They say how fast a network trains beside others of its family, before any has trained. Only convolutions and dense
layers count, and only their multiplications: what else a step does is about the same share for all of a family.
"""

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


def count_operations(settings: Settings, input_shape: tuple[int, ...], classes: int) -> int:
    """Count the multiplications of one sample's way through a network.

    Args:
        settings: of a family.
        input_shape: height, width (pixels) and channels of an image; any shape for ``softmax``.
        classes: number of classes.

    Raises:
        UserError: the image is too small for the network.

    A 3x3 convolution of 2 filters on 4x4 pixels of 1 channel takes 288; then they are pooled to 2x2, so that a
    classifier of 3 classes takes 24:

    >>> count_operations(CNN(filters=(2,), dense=(), norm="none"), (4, 4, 1), classes=3)
    312
    """
    check_input(settings, input_shape)
    if isinstance(settings, ResNet):
        return _count_resnet(settings, input_shape, classes)
    if isinstance(settings, DenseNet):
        return _count_densenet(settings, input_shape, classes)
    if isinstance(settings, CNN):
        return _count_cnn(settings, input_shape, classes)
    return math.prod(input_shape) * classes


def _count_resnet(settings: ResNet, input_shape: tuple[int, ...], classes: int) -> int:
    bottleneck = has_bottlenecks(settings, input_shape)
    total, pixels = _stem(large_stem(settings, input_shape), input_shape, settings.width)
    channels = settings.width
    for stage, count in enumerate(settings.blocks):
        inner = settings.width * 2 ** stage
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            if block == 0 and stage > 0:
                pixels = _halved(pixels)
            if channels != outer or (block == 0 and stage > 0):
                total += _area(pixels) * channels * outer
            if bottleneck:
                total += _area(pixels) * (channels * inner + 9 * inner * inner + inner * outer)
            else:
                total += _area(pixels) * 9 * (channels * inner + inner * outer)
            channels = outer
    return total + channels * classes


def _count_densenet(settings: DenseNet, input_shape: tuple[int, ...], classes: int) -> int:
    growth, channels = settings.growth, 2 * settings.growth
    total, pixels = _stem(large_stem(settings, input_shape), input_shape, channels)
    for block, layers in enumerate(settings.blocks):
        if block > 0:
            kept = compressed(channels, settings.compression)
            total += _area(pixels) * channels * kept
            pixels, channels = _halved(pixels), kept
        for _ in range(layers):
            total += _area(pixels) * (channels * 4 * growth + 9 * 4 * growth * growth)
            channels += growth
    return total + channels * classes


def _count_cnn(settings: CNN, input_shape: tuple[int, ...], classes: int) -> int:
    height, width, channels = input_shape
    total = 0
    for filters in settings.filters:
        total += settings.kernel ** 2 * channels * filters * height * width
        height, width, channels = height // 2, width // 2, filters
    features = height * width * channels
    for units in (*settings.dense, classes):
        total += features * units
        features = units
    return total


def _stem(is_large: bool, input_shape: tuple[int, ...], filters: int) -> tuple[int, tuple[int, int]]:
    """The multiplications of the first layers, and the size of what they leave."""
    pixels = input_shape[0], input_shape[1]
    if not is_large:
        return _area(pixels) * 9 * input_shape[2] * filters, pixels
    pixels = _halved(pixels)
    return _area(pixels) * 49 * input_shape[2] * filters, _halved(pixels)


def _halved(pixels: tuple[int, int]) -> tuple[int, int]:
    return -(-pixels[0] // 2), -(-pixels[1] // 2)


def _area(pixels: tuple[int, int]) -> int:
    return pixels[0] * pixels[1]
