"""Modules that tests fuse, or cannot fuse."""

import math

import numpy as np
import torch
from torch import nn


def normalized(input_shape, classes):
    return nn.Sequential(
        nn.Conv2d(input_shape[2], 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, classes),
    )


class RowTransformer(nn.Module):
    """Attends to the rows of an image."""

    def __init__(self, width, classes):
        super().__init__()
        self.embed = nn.Linear(width, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(16, classes)

    def forward(self, images):
        return self.head(self.encoder(self.embed(images[:, 0])).mean(1))


def transformer(input_shape, classes):
    return RowTransformer(input_shape[1], classes)


class Flat(nn.Module):
    """A layer on all pixels."""

    def __init__(self, features, classes):
        super().__init__()
        self.head = nn.Linear(features, classes)
        self.calls = 0

    def forward(self, images):
        return self.head(images.flatten(1))


class Branching(Flat):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs if outputs.sum() > 0 else 2 * outputs


class Counting(Flat):
    def forward(self, images):
        self.calls += 1
        return super().forward(images) / self.calls


class Shuffling(Flat):
    def forward(self, images):
        return super().forward(images) * (1 + np.random.random())


class Decaying(Flat):
    """Has a buffer that is replaced in each step."""

    def forward(self, images):
        self.factor = 0.9 * self.factor
        return super().forward(images) * self.factor


def branching(input_shape, classes):
    return Branching(math.prod(input_shape), classes)


def counting(input_shape, classes):
    return Counting(math.prod(input_shape), classes)


def shuffling(input_shape, classes):
    return Shuffling(math.prod(input_shape), classes)


def decaying(input_shape, classes):
    module = Decaying(math.prod(input_shape), classes)
    module.register_buffer("factor", torch.ones(()))
    return module
