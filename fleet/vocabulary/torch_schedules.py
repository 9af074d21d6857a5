"""Describe the classes of ``torch.optim.lr_scheduler`` by their arguments; PyTorch computes them.

They begin with the learning rate ``initial_learning_rate``, also written ``lr``, by default that of
the optimizer.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

# Name and kind of each argument; then its default, unless it is required.
_ARGUMENTS = {
    "StepLR": "step_size float; gamma float 0.1",
    "MultiStepLR": "milestones numbers; gamma float 0.1",
    "ConstantLR": "factor float 0.3333333333333333; total_iters float 5",
    "LinearLR": "start_factor float 0.3333333333333333; end_factor float 1.0; total_iters float 5",
    "ExponentialLR": "gamma float",
    "CosineAnnealingLR": "T_max float; eta_min float 0.0",
    "CosineAnnealingWarmRestarts": "T_0 float; T_mult float 1; eta_min float 0.0",
    "PolynomialLR": "total_iters float 5; power float 1.0",
    "CyclicLR": "base_lr float; max_lr float; step_size_up float 2000; step_size_down float null; "
    'mode str "triangular"; gamma float 1.0; cycle_momentum bool true; base_momentum float 0.8; '
    "max_momentum float 0.9",
    "OneCycleLR": "max_lr float; total_steps float null; epochs float null; "
    'steps_per_epoch float null; pct_start float 0.3; anneal_strategy str "cos"; '
    "cycle_momentum bool true; base_momentum float 0.85; max_momentum float 0.95; "
    "div_factor float 25.0; final_div_factor float 10000.0; three_phase bool false",
    "LambdaLR": "lr_lambda str",
    "MultiplicativeLR": "lr_lambda str",
    "SequentialLR": "schedulers list; milestones numbers",
    "ChainedScheduler": "schedulers list",
}
_KINDS = {"numbers": "Sequence[float]"}


def _described(arguments: str) -> Callable[..., float]:
    """Return a function with these arguments, which is not meant to be called."""

    def compute(step: float, **_: object) -> float:
        raise NotImplementedError

    parameters = [inspect.Parameter("step", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for argument in (*arguments.split("; "), "initial_learning_rate float null"):
        name, kind, *default = argument.split()
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=json.loads(default[0]) if default else inspect.Parameter.empty,
                annotation=_KINDS.get(kind, kind),
            )
        )
    compute.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return compute


TORCH_PREFIX = r"^(torch\.optim\.)?lr_scheduler\.|^torch\.optim\.lr_scheduler:"


def without_module(settings: Any) -> Any:
    """Return the settings of a schedule with the plain name of a class of PyTorch.

    >>> without_module({"name": "torch.optim.lr_scheduler.StepLR", "step_size": 3})
    {'name': 'StepLR', 'step_size': 3}
    """
    if not isinstance(settings, Mapping):
        return settings
    plain = dict(settings)
    if isinstance(plain.get("name"), str):
        plain["name"] = re.sub(TORCH_PREFIX, "", plain["name"])
    if isinstance(plain.get("schedulers"), list):
        plain["schedulers"] = [without_module(part) for part in plain["schedulers"]]
    return plain


TORCH_SCHEDULES: dict[str, Callable[..., float]] = {
    name: _described(arguments) for name, arguments in _ARGUMENTS.items()
}
