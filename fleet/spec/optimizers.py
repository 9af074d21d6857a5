"""The optimizers that a spec may name: which parameters each takes, and how much it keeps.

Names and parameters mean what they mean in Keras; a test compares them with the signatures that it has. What an engine
knows of them says its row (:class:`fleet.spec.engines.Known`).
"""

from __future__ import annotations

from collections.abc import Iterable

# What every optimizer takes.
COMMON = frozenset({"weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum",
                    "ema_overwrite_frequency"})
_ADAM = ("beta_1", "beta_2", "epsilon")

# name -> what it takes beside the common ones, and numbers that it keeps for each parameter
OPTIMIZERS: dict[str, tuple[tuple[str, ...], int]] = {
    "sgd": (("momentum", "nesterov"), 0),
    "adam": ((*_ADAM, "amsgrad"), 2),
    "adamw": ((*_ADAM, "amsgrad"), 2),
    "adadelta": (("rho", "epsilon"), 2),
    "adafactor": (("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step"), 1),
    "adagrad": (("initial_accumulator_value", "epsilon"), 1),
    "adamax": (_ADAM, 2),
    "ftrl": (("learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
              "l2_regularization_strength", "l2_shrinkage_regularization_strength", "beta"), 2),
    "lamb": (_ADAM, 2),
    "lion": (("beta_1", "beta_2"), 1),
    "muon": (("adam_beta_1", "adam_beta_2", "adam_weight_decay", "epsilon", "exclude_layers", "exclude_embeddings",
              "muon_a", "muon_b", "muon_c", "adam_lr_ratio", "momentum", "ns_steps", "nesterov", "rms_rate"), 2),
    "nadam": (_ADAM, 2),
    "rmsprop": (("rho", "momentum", "epsilon", "centered"), 1),
    "schedulefreeadamw": ((*_ADAM, "warmup_steps"), 3),
}


def takes(name: str) -> frozenset[str]:
    """The parameters of a named optimizer, beside its learning rate."""
    return COMMON | frozenset(OPTIMIZERS[name][0])


def foreign(name: str, given: Iterable[str]) -> list[str]:
    """Which parameters an optimizer does not take; one of the user's own takes ``args`` alone.

    >>> foreign("lion", ["beta_1", "epsilon"]), foreign("my_optimizers:make", ["args"])
    (['epsilon'], [])
    """
    known = frozenset({"args"}) if ":" in name else takes(name)
    return [parameter for parameter in given if parameter not in known]


def slots_of(name: str, has_momentum: bool) -> int:
    """How many numbers a named optimizer keeps for each parameter, without what ``use_ema`` and others add.

    >>> slots_of("sgd", has_momentum=True), slots_of("adam", has_momentum=False)
    (1, 2)
    """
    return OPTIMIZERS[name][1] + (has_momentum and name in ("sgd", "rmsprop"))
