"""A variational autoencoder (Kingma and Welling, 2014): images without targets.

fleet check vae.yaml
mpirun -n 3 --oversubscribe python -m fleet.run vae.yaml
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


class Autoencoder(nn.Module):
    def __init__(self, pixels, units, latent):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, units), nn.ReLU(), nn.Linear(units, 2 * latent)
        )
        self.decoder = nn.Sequential(nn.Linear(latent, units), nn.ReLU(), nn.Linear(units, pixels))

    def forward(self, images):
        """Return logits of pixels, and mean and log variance of the code."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean
        if self.training:
            code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


def network(input_shape, units=64, latent=8):
    height, width, channels = input_shape
    return Autoencoder(height * width * channels, units, latent)


def step(model, batch, training):
    images = batch["input"]  # (n, channels, height, width) from 0 to 1
    logits, mean, log_variance = model(images)
    pixels = images.flatten(1)
    error = binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(1)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return {"loss": error + divergence, "error": error, "divergence": divergence}
