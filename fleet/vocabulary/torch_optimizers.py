"""Describe the optimizers of ``torch.optim``: arguments, default learning rate, size of state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet.vocabulary.optimizers import COMMON, OptimizerWord

# Optimizers that compare several losses of one batch, or need sparse gradients.
UNUSABLE = {
    "lbfgs": "computes the loss of a batch several times in a step; use another optimizer",
    "sparseadam": "needs sparse gradients, which a group of ranks cannot sum; use adam",
}

# On CPUs these compute the same bits with ``foreach``, which is faster there. On GPUs PyTorch
# chooses it itself.
EQUAL_WITH_FOREACH = frozenset(
    {"sgd", "adam", "adamw", "adadelta", "adagrad", "adamax", "rmsprop", "rprop"}
)

# Keras' name of an argument -> PyTorch's.
OF_KERAS = {"beta_1": "betas", "beta_2": "betas", "epsilon": "eps"}


def _word(
    slots: int, takes: str, learning_rate: float = 0.001, slot_of_momentum: bool = False
) -> OptimizerWord:
    return OptimizerWord(
        COMMON | {"groups", "maximize", "foreach"} | frozenset(takes.split()),
        slots,
        slot_of_momentum,
        learning_rate,
    )


_ADAM = "betas eps amsgrad fused"
_KERAS = " ".join(OF_KERAS)  # of the optimizers that FLEET 0.2 had
TORCH_OPTIMIZERS: dict[str, OptimizerWord] = {
    "sgd": _word(0, "momentum dampening nesterov fused", slot_of_momentum=True),
    "adam": _word(2, f"{_ADAM} decoupled_weight_decay {_KERAS}"),
    "adamw": _word(2, f"{_ADAM} {_KERAS}"),
    "adadelta": _word(2, "rho eps", learning_rate=1.0),
    "adafactor": _word(1, "beta2_decay eps d", learning_rate=0.01),
    "adagrad": _word(1, "lr_decay initial_accumulator_value eps fused", learning_rate=0.01),
    "adamax": _word(2, "betas eps", learning_rate=0.002),
    "asgd": _word(1, "lambd alpha t0", learning_rate=0.01),
    "muon": OptimizerWord(
        COMMON
        | {"groups", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn"},
        1,
        learning_rate=0.001,
    ),
    "nadam": _word(
        2, f"betas eps momentum_decay decoupled_weight_decay {_KERAS}", learning_rate=0.002
    ),
    "radam": _word(2, "betas eps decoupled_weight_decay"),
    "rmsprop": _word(
        1,
        "alpha eps momentum centered rho epsilon",
        learning_rate=0.01,
        slot_of_momentum=True,
    ),
    "rprop": OptimizerWord(
        (COMMON - {"weight_decay"}) | {"groups", "etas", "step_sizes", "maximize", "foreach"},
        2,
        learning_rate=0.01,
    ),
}

# All arguments of these optimizers, which an import path may take as well.
ARGUMENTS = frozenset().union(*(word.takes for word in TORCH_OPTIMIZERS.values())) - {
    *OF_KERAS,
    "groups",
    *(COMMON - {"weight_decay"}),
}

# Optimizers that FLEET 0.2 had -> defaults that differ: the argument, PyTorch's, Keras'.
_CHANGED = {
    "sgd": (("learning_rate", 0.001, 0.01),),
    "adam": (("eps", 1e-8, 1e-7), ("learning_rate", 0.001, 0.01)),
    "adamw": (("eps", 1e-8, 1e-7), ("learning_rate", 0.001, 0.01), ("weight_decay", 0.01, 0.004)),
    "nadam": (
        ("eps", 1e-8, 1e-7),
        ("learning_rate", 0.002, 0.01),
        ("momentum_decay", 0.004, 1.0),
    ),
    "rmsprop": (("eps", 1e-8, 1e-7), ("alpha", 0.99, 0.9)),
}
_IN_0_2 = {"eps": "epsilon", "alpha": "rho"}


def changed_arguments(optimizer: Any) -> Iterator[str]:
    """Yield how an optimizer of the engine torch differs from that of FLEET 0.2.

    Args:
        optimizer: the settings, with a learning rate; see :class:`fleet.spec.train.Optimizer`.
    """
    for argument, new, old in _CHANGED.get(optimizer.name, ()):
        value = getattr(optimizer, argument)
        is_given = value is not None or getattr(optimizer, _IN_0_2.get(argument, argument), None)
        if argument == "learning_rate":
            is_given = value != new
        if not is_given:
            yield f"{argument} {new:g}, was {old:g}"
    if optimizer.weight_decay and optimizer.name in _CHANGED and optimizer.name != "adamw":
        yield "weight_decay is added to gradients, was taken off the weights"
