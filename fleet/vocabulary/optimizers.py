"""Describe the optimizers of Keras: parameters, default learning rate, size of state."""

from __future__ import annotations

from dataclasses import dataclass

# Arguments of every optimizer.
COMMON = frozenset(
    {
        "weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
    }
)

# An argument of Keras or PyTorch -> the arguments of the other library that mean the same.
SAME_ARGUMENTS = {
    "beta_1": ("betas",),
    "beta_2": ("betas",),
    "betas": ("beta_1", "beta_2"),
    "epsilon": ("eps",),
    "eps": ("epsilon",),
    "rho": ("alpha",),
    "alpha": ("rho",),
    "beta_2_decay": ("beta2_decay",),
    "beta2_decay": ("beta_2_decay",),
    "clip_threshold": ("d",),
    "d": ("clip_threshold",),
}


@dataclass(frozen=True)
class OptimizerWord:
    """An optimizer that a spec may name.

    Attributes:
        takes: keys of ``train.optimizer`` that the optimizer supports, besides ``name`` and
            ``learning_rate``.
        slots: number of values per parameter in its state, without options such as ``use_ema``.
        slot_of_momentum: True if its state has one more value per parameter with momentum.
        learning_rate: default learning rate.
    """

    takes: frozenset[str]
    slots: int
    slot_of_momentum: bool = False
    learning_rate: float = 0.01


def _word(
    slots: int, takes: str, slot_of_momentum: bool = False, learning_rate: float = 0.001
) -> OptimizerWord:
    return OptimizerWord(COMMON | frozenset(takes.split()), slots, slot_of_momentum, learning_rate)


_ADAM = "beta_1 beta_2 epsilon"
OPTIMIZERS: dict[str, OptimizerWord] = {
    "sgd": _word(0, "momentum nesterov", slot_of_momentum=True, learning_rate=0.01),
    "adam": _word(2, f"{_ADAM} amsgrad"),
    "adamw": _word(2, f"{_ADAM} amsgrad"),
    "adadelta": _word(2, "rho epsilon"),
    "adafactor": _word(1, "beta_2_decay epsilon_1 epsilon_2 clip_threshold relative_step"),
    "adagrad": _word(1, "initial_accumulator_value epsilon"),
    "adamax": _word(2, _ADAM),
    "ftrl": _word(
        2,
        "learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength l2_shrinkage_regularization_strength beta",
    ),
    "lamb": _word(2, _ADAM),
    "lion": _word(1, "beta_1 beta_2"),
    "muon": _word(
        2,
        "adam_beta_1 adam_beta_2 adam_weight_decay epsilon exclude_layers exclude_embeddings "
        "muon_a muon_b muon_c adam_lr_ratio momentum ns_steps nesterov rms_rate",
    ),
    "nadam": _word(2, _ADAM),
    "rmsprop": _word(1, "rho momentum epsilon centered", slot_of_momentum=True),
    "schedulefreeadamw": _word(3, f"{_ADAM} warmup_steps", learning_rate=0.0025),
}
