"""A generative adversarial network of dense layers (Goodfellow et al., 2014).

Two networks, each with its optimizer. The step is called once for each of them, so that the
generator meets the discriminator that has just been trained.
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus


def network(input_shape, units=64, noise=16):
    height, width, channels = input_shape
    pixels = height * width * channels
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(
                nn.Linear(noise, units), nn.LeakyReLU(0.2), nn.Linear(units, pixels), nn.Tanh()
            ),
            "discriminator": nn.Sequential(
                nn.Linear(pixels, units), nn.LeakyReLU(0.2), nn.Linear(units, 1)
            ),
        }
    )
    model.noise = noise
    return model


def optimizers(model):
    """Return the optimizers in the order in which they step."""
    return {
        name: torch.optim.Adam(model[name].parameters(), lr=2e-4, betas=(0.5, 0.999))
        for name in ("discriminator", "generator")
    }


def step(model, batch, training, optimizer):
    """Return the losses of both networks, or only that of the optimizer that steps next."""
    real = batch["input"].flatten(1)
    fake = model["generator"](torch.randn(len(real), model.noise, device=real.device))
    losses = {}
    if optimizer != "generator":
        of_real = model["discriminator"](real)[:, 0]
        of_fake = model["discriminator"](fake.detach())[:, 0]
        losses["discriminator"] = (softplus(-of_real) + softplus(of_fake)) / 2
        losses["told_apart"] = ((of_real > 0).float() + (of_fake < 0).float()) / 2
    if optimizer != "discriminator":
        scores = model["discriminator"](fake)[:, 0]
        losses["generator"] = binary_cross_entropy_with_logits(
            scores, torch.ones_like(scores), reduction="none"
        )
    return losses
