"""Which keys of a spec the parameters of another tool set.

A parameter with an evident name, such as ``lr``, sets the key of ``train`` that it stands for, if
all its values are valid there. Its name counts in any case, with dashes for underscores, and below
a section such as ``optimizer``. All others stay arguments of the network under their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet.errors import UserError
from fleet.spec.conditions import dependency_order, meets
from fleet.spec.engine_keys import find_unknown_words
from fleet.spec.engines import EngineInfo, find_engine
from fleet.spec.origin import is_below
from fleet.spec.space import override, space_of
from fleet.spec.train import Optimizer, Train
from fleet.storage.trials_file import FileTrial
from fleet.sweeps.sweep import Sweep, within
from launch.errors import did_you_mean

OPTIMIZER = "train.optimizer.name"

# Key of a spec -> names of the parameters that evidently set it.
EVIDENT: Mapping[str, tuple[str, ...]] = {
    "train.optimizer.learning_rate": (
        "learning_rate",
        "lr",
        "base_lr",
        "init_lr",
        "initial_lr",
        "initial_learning_rate",
        "base_learning_rate",
    ),
    OPTIMIZER: ("optimizer", "optim", "optimizer_name", "optimizer_type"),
    "train.optimizer.momentum": ("momentum", "sgd_momentum"),
    "train.optimizer.nesterov": ("nesterov",),
    "train.optimizer.weight_decay": ("weight_decay", "wd"),
    "train.optimizer.beta_1": ("beta_1", "beta1", "adam_beta1", "adam_beta_1"),
    "train.optimizer.beta_2": ("beta_2", "beta2", "adam_beta2", "adam_beta_2"),
    "train.optimizer.epsilon": ("epsilon", "adam_epsilon"),
    "train.optimizer.rho": ("rho",),
    "train.optimizer.clipnorm": ("clipnorm",),
    "train.optimizer.clipvalue": ("clipvalue",),
    "train.optimizer.global_clipnorm": ("global_clipnorm", "max_grad_norm", "gradient_clip_norm"),
    "train.batch.size": ("batch_size", "global_batch_size", "train_batch_size", "batchsize"),
    "train.stopping.max_epochs": ("epochs", "max_epochs", "num_epochs", "n_epochs", "nb_epochs"),
    "train.stopping.patience": ("patience", "early_stopping_patience"),
    "train.label_smoothing": ("label_smoothing",),
}
_KEY_OF = {name: key for key, names in EVIDENT.items() for name in names}
_SECTIONS = frozenset(
    "optimizer optim optimizer_config opt train training trainer hparams hyperparameters params "
    "config".split()
)
_OF_OPTIMIZER = frozenset({"optimizer", "optim", "optimizer_config", "opt"})

_TRAIN = TypeAdapter(Train)


def parse_mapping(text: str) -> tuple[str, str]:
    """Read ``OLD=NEW`` of a command line.

    Raises:
        ValueError: it is something else.
    """
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ValueError("should be OLD=NEW, such as eta=train.optimizer.learning_rate")
    return old, new


def with_spec_keys(sweep: Sweep, chosen: Mapping[str, str]) -> Sweep:
    """Return a sweep whose parameters have the keys of a spec.

    Args:
        sweep: the sweep, with the names of the other tool.
        chosen: name -> key, for parameters whose keys the user chooses.

    Raises:
        UserError: a chosen name or key does not exist, or a key is chosen twice.
    """
    names = [*sweep.space, *sweep.fixed]
    keys = _keys_of(sweep, names, chosen)
    renamed = replace(
        sweep,
        space={keys[name]: _renamed(item, keys) for name, item in sweep.space.items()},
        fixed={keys[name]: value for name, value in sweep.fixed.items()},
        trials=[
            replace(
                trial, values={keys.get(name, name): value for name, value in trial.values.items()}
            )
            for trial in sweep.trials
        ],
        changed=[
            *sweep.changed,
        ],
    )
    for name, key in keys.items():
        if name != key and name not in chosen:
            renamed.change(name, f"sets {key}")
    _add_optimizer_conditions(renamed)
    _drop_fixed_conditions(renamed)
    order = dependency_order(space_of(renamed.space))
    renamed.trials = [_without_unused(renamed, order, trial) for trial in renamed.trials]
    return renamed


def _renamed(dimension: Any, keys: Mapping[str, str]) -> Any:
    """Return a dimension whose conditions name the keys of a spec."""
    if isinstance(dimension, Mapping) and "when" in dimension:
        when = {keys.get(name, name): value for name, value in dimension["when"].items()}
        return {**dimension, "when": when}
    return dimension


# ---- keys ----------------------------------------------------------------------------------------


def _keys_of(sweep: Sweep, names: list[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return parameter -> key of a spec."""
    for name, key in chosen.items():
        if name not in names:
            raise UserError(
                f"--map {name}={key}: there is no parameter {name!r}{did_you_mean(name, names)}; "
                f"there are {', '.join(names)}"
            )
        if key.startswith("train.") and not _is_train_key(key):
            raise UserError(f"--map {name}={key}: {key} is no key of a spec; see docs/spec.md")
    keys: dict[str, str] = dict(chosen)
    for name in names:
        if name not in keys:
            keys[name] = _key_of(sweep, name, keys)
    duplicates = [key for key in keys.values() if list(keys.values()).count(key) > 1]
    if duplicates:
        both = [name for name in names if keys[name] == duplicates[0]]
        raise UserError(f"--map: {' and '.join(both)} both set {duplicates[0]}; map one elsewhere")
    return {name: keys[name] for name in names}


def _key_of(sweep: Sweep, name: str, taken_keys: Mapping[str, str]) -> str:
    """Return the key that a parameter sets."""
    key = evident_key(name)
    if key is not None and key not in taken_keys.values():
        problem = _problem_of(key, sweep)
        values = list(_samples(sweep, name))
        reason = next(filter(None, (problem(value) for value in values)), None)
        if reason is None:
            return key
        sweep.change(name, f"stays an argument of the network: {key}: {reason}")
    if name.startswith("train.") and not _is_train_key(name):
        return name.replace(".", "_")  # otherwise, it would be an unknown setting of training
    names = (*sweep.space, *sweep.fixed)
    if any(parent != name and is_below(name, parent) for parent in names):
        return name.replace(".", "_")  # a value of the other one cannot have parts
    return name


def evident_key(name: str) -> str | None:
    """Return the key of a spec that a parameter evidently sets; None if there is none.

    >>> evident_key("LR"), evident_key("optimizer.lr"), evident_key("optimizer.name")
    ('train.optimizer.learning_rate', 'train.optimizer.learning_rate', 'train.optimizer.name')
    >>> evident_key("decoder.lr"), evident_key("train.batch.size")
    (None, 'train.batch.size')
    """
    if _is_train_key(name):
        return name
    *sections, last = name.lower().replace("-", "_").replace(" ", "_").split(".")
    if not set(sections) <= _SECTIONS:
        return None
    if sections and sections[-1] in _OF_OPTIMIZER and last in ("name", "type"):
        return OPTIMIZER
    return _KEY_OF.get(last)


def _is_train_key(name: str) -> bool:
    """Return True if a dotted name is a key of ``train``."""
    first, *path = name.split(".")
    if first != "train" or not path:
        return False
    section: Any = Train()
    for step in path:
        if not is_dataclass(section):
            break  # below a schedule or another mapping
        if step not in {item.name for item in fields(section)}:
            return False
        section = getattr(section, step)
    return True


def _samples(sweep: Sweep, name: str) -> Iterator[Any]:
    """Yield the values of a parameter that decide whether it fits a key."""
    if name in sweep.fixed:
        yield sweep.fixed[name]
        return
    dimension = sweep.space[name]
    if isinstance(dimension, Mapping) and "choices" not in dimension:
        yield from (dimension["low"], dimension["high"])
    elif isinstance(dimension, Mapping):
        yield from dimension["choices"]
    else:
        yield from dimension


def _problem_of(key: str, sweep: Sweep) -> Any:
    """Return a function that says why a value is invalid for a key; None if it is valid."""

    def problem(value: Any) -> str | None:
        if value is None:
            return "a value is null"
        try:
            train = _TRAIN.validate_python(override({}, {key.removeprefix("train."): value}))
        except (ValidationError, UserError) as error:
            if isinstance(error, UserError):
                return str(error)
            return f"{value!r}: {error.errors(include_url=False)[0]['msg']}"
        if key == OPTIMIZER:
            return next((wrong for _, wrong, _ in find_unknown_words(train, _engine())), None)
        if key.startswith("train.optimizer.") and not any(
            _is_setting_of(optimizer, key, value) for optimizer in _optimizers(sweep)
        ):
            return f"{' or '.join(map(str, _optimizers(sweep)))} does not have this setting"
        return None

    return problem


def _engine() -> EngineInfo:
    return find_engine("keras")


def _optimizers(sweep: Sweep) -> list[Any]:
    """Return the optimizers of a sweep, whatever its parameters are named."""
    for name in (*sweep.space, *sweep.fixed):
        if evident_key(name) == OPTIMIZER:
            return list(_samples(sweep, name))
    return [Optimizer().name]


def _is_setting_of(optimizer: Any, key: str, value: Any) -> bool:
    """Return True if an optimizer has a setting."""
    setting = key.removeprefix("train.optimizer.")
    try:
        train = _TRAIN.validate_python(
            {"optimizer": override({"name": optimizer}, {setting: value})}
        )
    except (ValidationError, UserError):
        return False
    return not any(find_unknown_words(train, _engine()))


# ---- conditions ----------------------------------------------------------------------------------


def _add_optimizer_conditions(sweep: Sweep) -> None:
    """Add the condition of settings that only some of the optimizers have."""
    if OPTIMIZER not in sweep.space:
        return
    optimizers = list(_samples(sweep, OPTIMIZER))
    for key in list(sweep.fixed):
        # Another optimizer than that of `train` does not take over its settings.
        if key.startswith("train.optimizer."):
            sweep.space[key] = [sweep.fixed.pop(key)]
    for key, dimension in sweep.space.items():
        if not key.startswith("train.optimizer.") or key == OPTIMIZER:
            continue
        when = dict(dimension.get("when", {})) if isinstance(dimension, Mapping) else {}
        value = next(_samples(sweep, key))
        having = [item for item in optimizers if _is_setting_of(item, key, value)]
        if OPTIMIZER in when or len(having) == len(optimizers):
            continue
        when[OPTIMIZER] = having[0] if len(having) == 1 else having
        sweep.space[key] = (
            {**dimension, "when": when}
            if isinstance(dimension, Mapping)
            else {"choices": dimension, "when": when}
        )
        sweep.change(key, f"is used for {', '.join(map(str, having))} only")


def _drop_fixed_conditions(sweep: Sweep) -> None:
    """Decide the conditions on fixed parameters."""
    for key, dimension in list(sweep.space.items()):
        if not isinstance(dimension, Mapping) or "when" not in dimension:
            continue
        when = dict(dimension["when"])
        if any(not meets(sweep.fixed[name], when[name]) for name in when if name in sweep.fixed):
            del sweep.space[key]
            sweep.change(key, "is never used, since its condition does not hold")
            continue
        remaining = {name: item for name, item in when.items() if name not in sweep.fixed}
        content = {name: item for name, item in dimension.items() if name != "when"}
        if remaining:
            content["when"] = remaining
        elif content.keys() == {"choices"}:
            del sweep.space[key]
            sweep.add(key, content["choices"])
            continue
        sweep.space[key] = content


def _without_unused(sweep: Sweep, order: Sequence[str], trial: FileTrial) -> FileTrial:
    """Return a trial with the values that a member of the space has.

    Args:
        sweep: the sweep, with the keys of a spec.
        order: the keys of its space, each after the keys of its conditions.
        trial: the trial.
    """
    values = dict(trial.values)
    for key, value in sweep.fixed.items():
        if values.get(key) == value:
            del values[key]
    for key in order:
        dimension = sweep.space[key]
        when = dimension.get("when", {}) if isinstance(dimension, Mapping) else {}
        if any(name not in values or not meets(values[name], when[name]) for name in when):
            values.pop(key, None)
        elif key in values:
            values[key] = within(dimension, values[key])
    return replace(trial, values=values)
