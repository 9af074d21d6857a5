"""The optimizers of Keras: their names in specs, and which parameters each takes.

Keras is not imported for them; a test compares them with the signatures that it has.
"""

from __future__ import annotations

from collections.abc import Iterable

# What every optimizer takes.
COMMON = frozenset({"weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum",
                    "ema_overwrite_frequency"})
_ADAM = ("beta_1", "beta_2", "epsilon")

# class of keras.optimizers -> what it takes beside the common ones, and numbers that it keeps for each parameter
_TABLE: dict[str, tuple[tuple[str, ...], int]] = {
    "SGD": (("momentum", "nesterov"), 0),
    "Adam": ((*_ADAM, "amsgrad"), 2),
    "AdamW": ((*_ADAM, "amsgrad"), 2),
    "Adadelta": (("rho", "epsilon"), 2),
    "Adafactor": (("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step"), 1),
    "Adagrad": (("initial_accumulator_value", "epsilon"), 1),
    "Adamax": (_ADAM, 2),
    "Ftrl": (("learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
              "l2_regularization_strength", "l2_shrinkage_regularization_strength", "beta"), 2),
    "Lamb": (_ADAM, 2),
    "Lion": (("beta_1", "beta_2"), 1),
    "Muon": (("adam_beta_1", "adam_beta_2", "adam_weight_decay", "epsilon", "exclude_layers", "exclude_embeddings",
              "muon_a", "muon_b", "muon_c", "adam_lr_ratio", "momentum", "ns_steps", "nesterov", "rms_rate"), 2),
    "Nadam": (_ADAM, 2),
    "RMSprop": (("rho", "momentum", "epsilon", "centered"), 1),
    "ScheduleFreeAdamW": ((*_ADAM, "warmup_steps"), 3),
}

OPTIMIZERS: dict[str, str] = {name.lower(): name for name in _TABLE}  # as specs write it -> the class


def takes(name: str) -> frozenset[str]:
    """The parameters of an optimizer of Keras, beside its learning rate."""
    return COMMON | frozenset(_TABLE[OPTIMIZERS[name]][0])


def foreign(name: str, given: Iterable[str]) -> list[str]:
    """Which parameters an optimizer does not take; one of the user's own takes ``args`` alone.

    >>> foreign("lion", ["beta_1", "epsilon"]), foreign("my_optimizers:make", ["args"])
    (['epsilon'], [])
    """
    known = frozenset({"args"}) if ":" in name else takes(name)
    return [parameter for parameter in given if parameter not in known]


def slots_of(name: str, has_momentum: bool) -> int:
    """How many numbers an optimizer of Keras keeps for each parameter, without what ``use_ema`` and others add.

    >>> slots_of("sgd", has_momentum=True), slots_of("adam", has_momentum=False)
    (1, 2)
    """
    return _TABLE[OPTIMIZERS[name]][1] + (has_momentum and name in ("sgd", "rmsprop"))
