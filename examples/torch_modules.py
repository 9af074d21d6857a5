"""User-defined modules: `build: torch_modules:net`, with this file beside the spec.

FLEET calls the function with `input_shape` (height, width, channels), `classes`, and the `args` of
the spec. It returns a torch.nn.Module, which is called with float32 (N, C, H, W) and returns one
output per class, without a softmax.
"""

import torch
from torch import nn


def net(input_shape, classes, width=16, depth=2, dropout=0.0):
    """Build a small convolutional network: `depth` stages, each of which halves the image."""
    channels, layers = input_shape[2], []
    for stage in range(depth):
        layers += [
            nn.Conv2d(channels, width << stage, 3, padding=1, bias=False),
            nn.BatchNorm2d(width << stage),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width << stage
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * channels, classes),
    )


class Mixer(nn.Module):
    """An MLP-Mixer: one layer mixes patches, the next one mixes the numbers of each."""

    def __init__(self, input_shape, classes, patch=4, width=32, depth=2):
        super().__init__()
        height, wide, channels = input_shape
        patches = (height // patch) * (wide // patch)
        self.stem = nn.Conv2d(channels, width, patch, stride=patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.among = nn.ModuleList(_two_layers(patches) for _ in range(depth))
        self.within = nn.ModuleList(_two_layers(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        words = self.stem(images).flatten(2).transpose(1, 2)  # (n, patches, width)
        for number, (among, within) in enumerate(zip(self.among, self.within, strict=True)):
            words = words + among(self.norms[2 * number](words).transpose(1, 2)).transpose(1, 2)
            words = words + within(self.norms[2 * number + 1](words))
        return self.head(torch.mean(words, 1))


def _two_layers(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def mixer(input_shape, classes, **args):
    """Build a :class:`Mixer`."""
    return Mixer(input_shape, classes, **args)
