"""A small network learns from a large one that an earlier run has exported (Hinton et al., 2015).

mpirun -n 3 --oversubscribe python -m fleet.run teacher.yaml
mpirun -n 3 --oversubscribe python -m fleet.run distillation.yaml
"""

import json
import os
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

# The export of a network of teacher.yaml; the note beside it has the arguments of its function.
TEACHER = Path(os.environ.get("TEACHER", "runs/teacher/models/network/best.safetensors"))


def network(input_shape, classes, width=32):
    return nn.Sequential(
        nn.Conv2d(input_shape[2], width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * width, classes),
    )


@cache
def teacher(device):
    """Return the exported network, in evaluation mode."""
    note = json.loads(TEACHER.with_suffix(".json").read_text())
    module = network(tuple(note["input"]["shape"]), note["target"]["outputs"], **note["args"])
    module.load_state_dict(load_file(TEACHER))
    return module.to(device).eval().requires_grad_(False)


def step(model, batch, training, temperature=2.0, share=0.7):
    images, labels = batch["input"], batch["target"]
    logits = model(images)
    with torch.no_grad():
        soft_labels = softmax(teacher(images.device)(images) / temperature, dim=1)
    imitation = kl_div(log_softmax(logits / temperature, dim=1), soft_labels, reduction="none").sum(
        1
    )
    error = cross_entropy(logits, labels, reduction="none")
    return {
        "loss": share * temperature**2 * imitation + (1 - share) * error,
        "imitation": imitation,
        "accuracy": logits.argmax(1) == labels,
    }
