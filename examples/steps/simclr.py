"""Contrastive learning on pairs of views of each image (SimCLR; Chen et al., 2020).

The negatives of an image are the other images on its rank, so the loss is one number for the rows
of a rank.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize


def network(input_shape, width=16, outputs_of_head=16):
    return nn.Sequential(
        nn.Conv2d(input_shape[2], width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, outputs_of_head),
    )


def view(images):
    """Return images that are shifted, brightened and noisy at random."""
    shifts = torch.randint(-2, 3, (2,)).tolist()
    brightness = 1 + 0.4 * (torch.rand(len(images), 1, 1, 1, device=images.device) - 0.5)
    return images.roll(shifts, (2, 3)) * brightness + 0.1 * torch.randn_like(images)


def contrast(first, second, temperature=0.5):
    """Return the NT-Xent loss of two views, (n, numbers) each, a scalar."""
    codes = normalize(torch.cat([first, second]))
    similarity = codes @ codes.T / temperature
    similarity.fill_diagonal_(float("-inf"))
    count = len(first)
    partners = torch.arange(2 * count, device=codes.device).roll(count)
    return cross_entropy(similarity, partners)


def step(model, batch, training):
    images = batch["input"]
    return contrast(model(view(images)), model(view(images)))
