"""A network of two outputs: the digit in an image, and how much ink it has.

The data gives two targets by name, and the network returns an output for each. Their losses are in
the spec; no step of your own is needed.
"""

from torch import nn


class Network(nn.Module):
    def __init__(self, channels, outputs, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(4 * width),
            nn.ReLU(),
        )
        self.digit = nn.Linear(4 * width, outputs["digit"])
        self.ink = nn.Linear(4 * width, outputs["ink"])

    def forward(self, images):
        features = self.body(images)
        return {"digit": self.digit(features), "ink": self.ink(features)}


def network(input_shape, outputs, width=16):
    """Build a network; ``outputs`` maps the names of targets to numbers of outputs."""
    return Network(input_shape[2], outputs, width)
