"""A regressor of a photo and a row of numbers in PyTorch."""

import torch
from torch import nn
from torch.nn.functional import relu


class TwoInputs(nn.Module):
    """Joins what a convolution sees in a photo with what a table says."""

    def __init__(self, channels, facts, units):
        super().__init__()
        self.pixels = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
        self.numbers = nn.Linear(facts, units)
        self.joined = nn.Linear(8 + units, units)
        self.head = nn.Linear(units, 1)

    def forward(self, photo, facts):
        features = relu(self.pixels(photo)).mean((2, 3))
        numbers = relu(self.numbers(facts))
        return self.head(relu(self.joined(torch.cat([features, numbers], 1))))


def network(input_shape, outputs=1, units=16):
    """Return a module that is called with its inputs by keyword."""
    return TwoInputs(input_shape["photo"][-1], input_shape["facts"][0], units)
