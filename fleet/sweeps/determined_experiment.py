"""Read the YAML of a Determined experiment.

The bounds of ``log`` are exponents of its base, and all bounds are included:
https://docs.determined.ai/reference/training/experiment-config-reference.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fleet.errors import UserError, short_repr
from fleet.sweeps.sweep import (
    Metric,
    Sweep,
    check_count,
    check_list,
    check_mapping,
    check_number,
    check_word,
    choices,
    number_range,
    rounded,
)

KIND = "Determined experiment"
GUESSED_TRIALS = 100
_MOST_EPOCHS = 10**9
_MOST_GRID_VALUES = 10_000
_TYPES = ("const", "int", "double", "log", "categorical")
_SEARCHERS = (
    "single",
    "random",
    "grid",
    "asha",
    "adaptive_asha",
    "async_halving",
    "adaptive_simple",
    "adaptive",
)
_HALVING = {
    "asha": "asha",
    "async_halving": "asha",
    "adaptive_asha": "hyperband",
    "adaptive_simple": "hyperband",
    "adaptive": "hyperband",
}
_MAX_RUNGS = 5  # Determined's default

_UNSAID = {
    "entrypoint": "a run trains the networks of the spec; use `build: module:function`",
    "checkpoint_storage": "a run writes its checkpoints to its folder, `output`",
    "min_validation_period": "networks are validated at the end of every epoch",
    "min_checkpoint_period": "checkpoints are written as `checkpoint` says",
    "checkpoint_policy": "checkpoints are written as `checkpoint` says",
    "perform_initial_validation": "networks are validated at the end of every epoch",
    "max_restarts": "`retries` is the number of retries after transient errors only",
    "environment": "a run starts in the environment of mpirun",
    "bind_mounts": "a run starts in the environment of mpirun",
    "data": "data of a spec has other keys; see `data`",
    "labels": "a run has no labels",
    "workspace": "a run has no workspace",
    "project": "a run has no project",
    "optimizations": "several GPUs of a network always average their gradients",
    "profiling": "rates are measured as `profile` says",
    "scheduling_unit": "progress is counted in epochs",
    "slurm": "`fleet submit` has the options of the batch system",
    "pbs": "`fleet submit` has the options of the batch system",
}


def is_experiment(content: Mapping[str, Any]) -> bool:
    """Return True if a YAML file is a Determined experiment."""
    return "searcher" in content


def read(content: Mapping[str, Any]) -> Sweep:
    """Read an experiment.

    Args:
        content: the content of its YAML file.

    Raises:
        UserError: something is missing or malformed; the message begins with the key.
    """
    sweep = Sweep(KIND, name=str(content.get("name") or ""))
    searcher = check_mapping("searcher", content["searcher"])
    method = check_word("searcher.name", searcher.get("name"), _SEARCHERS)
    parameters = check_mapping("hyperparameters", content.get("hyperparameters") or {})
    _add_all(sweep, "hyperparameters", parameters, "", is_grid=method == "grid")
    _read_searcher(sweep, searcher, method, _records(content, sweep))
    sweep.description = str(content.get("description") or "")
    for key, item in content.items():
        if key == "resources":
            _read_resources(sweep, check_mapping(key, item))
        elif key == "reproducibility":
            _read_reproducibility(sweep, check_mapping(key, item))
        elif key not in ("name", "description", "searcher", "hyperparameters", "records_per_epoch"):
            sweep.leave_out(key, _UNSAID.get(key, "unknown key of an experiment"))
    return sweep


# ---- hyperparameters -----------------------------------------------------------------------------


def _add_all(
    sweep: Sweep, key: str, content: Mapping[str, Any], prefix: str, is_grid: bool
) -> None:
    """Add hyperparameters, also nested ones, under dotted names."""
    for name, item in content.items():
        below = f"{key}.{name}"
        if not isinstance(item, Mapping):
            sweep.add(f"{prefix}{name}", choices([item]))
        elif isinstance(item.get("type"), str) and item["type"] in _TYPES:
            sweep.add(f"{prefix}{name}", _dimension(sweep, below, item, is_grid))
        elif isinstance(item.get("type"), str) and {"minval", "maxval", "vals"} & item.keys():
            raise UserError(
                f"{below}.type: {short_repr(item['type'])} is unknown; it should be one of "
                f"{', '.join(_TYPES)}"
            )
        else:
            _add_all(sweep, below, check_mapping(below, item), f"{prefix}{name}.", is_grid)


def _dimension(sweep: Sweep, key: str, item: Mapping[str, Any], is_grid: bool) -> Any:
    kind = item["type"]
    if kind == "const":
        if "val" not in item:
            raise UserError(f"{key}.val: a constant should have a value")
        return choices([item["val"]])
    if kind == "categorical":
        return choices(check_list(f"{key}.vals", item.get("vals")))
    low, high = (check_number(f"{key}.{bound}", item.get(bound)) for bound in ("minval", "maxval"))
    if low > high:
        raise UserError(f"{key}.minval: {low} should not be above maxval: {high}")
    if kind == "int" and not (float(low).is_integer() and float(high).is_integer()):
        raise UserError(f"{key}: int should have whole numbers as bounds, not {low} and {high}")
    base = check_number(f"{key}.base", item.get("base", 10)) if kind == "log" else None
    if is_grid:
        if "count" not in item:
            raise UserError(f"{key}.count: a grid needs it, the number of values of the range")
        count = check_count(f"{key}.count", item.get("count"), _MOST_GRID_VALUES + 1)
        if count > _MOST_GRID_VALUES:
            raise UserError(f"{key}.count: it should be at most {_MOST_GRID_VALUES}")
        return choices(_grid_values(key, kind, low, high, count, base))
    if base is not None:
        low, high = _power(key, base, low), _power(key, base, high)
        sweep.change(
            key,
            f"minval and maxval are exponents of {base:g}: values are between {low:.6g} and "
            f"{high:.6g}",
        )
        return number_range(key, low, high, log=True)
    return number_range(key, low, high, integer=kind == "int")


def _grid_values(
    key: str, kind: str, low: float, high: float, count: int, base: float | None
) -> list[Any]:
    """Return evenly spaced values between two bounds, or their center if there is one value."""
    if kind == "int":
        count = min(count, int(high - low) + 1)
    if count == 1:
        points = [(low + high) / 2]
    else:
        points = [low + number * (high - low) / (count - 1) for number in range(count)]
    if base is not None:
        return [_power(key, base, point) for point in points]
    if kind == "int":
        return [math.floor(point + 0.5) for point in points]
    return [rounded(point) for point in points]


def _power(key: str, base: float, exponent: float) -> float:
    if base <= 0:
        raise UserError(f"{key}.base: {base} should be above 0")
    try:
        return rounded(float(base) ** exponent)
    except OverflowError:
        raise UserError(
            f"{key}: {base}**{exponent} is too large; minval and maxval are exponents"
        ) from None


# ---- searcher ------------------------------------------------------------------------------------


def _records(content: Mapping[str, Any], sweep: Sweep) -> tuple[int, int] | None:
    """Return the records of an epoch and of a batch; None if one is unknown."""
    records = content.get("records_per_epoch")
    batch = sweep.fixed.get("global_batch_size")
    if records and type(batch) is int and batch > 0:
        return check_count("records_per_epoch", records, _MOST_EPOCHS), batch
    return None


def _read_searcher(
    sweep: Sweep, searcher: Mapping[str, Any], method: str, records: tuple[int, int] | None
) -> None:
    metric = searcher.get("metric")
    if metric is not None:
        if not isinstance(metric, str) or not metric:
            raise UserError(f"searcher.metric: {short_repr(metric)} should be the name of a metric")
        smaller = searcher.get("smaller_is_better", True)
        if not isinstance(smaller, bool):
            raise UserError(
                f"searcher.smaller_is_better: {short_repr(smaller)} should be true or false"
            )
        # Searchers compare validation metrics only.
        name = metric if metric.startswith("val") else f"val_{metric}"
        sweep.metrics.append(Metric(name, "minimize" if smaller else "maximize"))
    length, epochs = _epochs(sweep, searcher, records)
    if epochs is not None:
        sweep.stopping["max_epochs"] = epochs
    if method == "single":
        if sweep.space:
            sweep.search = {"sampler": "random", "max_trials": 1}
    elif method == "grid":
        sweep.search = {"sampler": "grid"}
    else:
        sweep.search = {"sampler": "random"}
        if "max_trials" in searcher:
            sweep.search["max_trials"] = check_count("searcher.max_trials", searcher["max_trials"])
        else:
            sweep.limit_trials("searcher.max_trials", GUESSED_TRIALS)
    if sweep.search is not None and searcher.get("max_concurrent_trials"):
        sweep.search["max_concurrent"] = check_count(
            "searcher.max_concurrent_trials", searcher["max_concurrent_trials"]
        )
    if method in _HALVING:
        _read_halving(sweep, searcher, method, length, epochs)
    read_keys = {
        "name",
        "metric",
        "smaller_is_better",
        "max_length",
        "max_time",
        "time_metric",
        "max_trials",
        "max_concurrent_trials",
        *(_HALVING_KEYS if method in _HALVING else ()),
    }
    for key in searcher:
        if key not in read_keys:
            sweep.leave_out(f"searcher.{key}", "a spec has nothing like it")


_HALVING_KEYS = ("divisor", "mode", "max_rungs", "num_rungs", "stop_once")


def _read_halving(
    sweep: Sweep, searcher: Mapping[str, Any], method: str, length: int | None, epochs: int | None
) -> None:
    """Read asha, whose first rung is at max_length / divisor**(num_rungs - 1).

    Args:
        sweep: where the rule is set.
        searcher: the searcher.
        method: its name.
        length: the length of the longest trial in the unit of the searcher; None if unknown.
        epochs: the same in epochs.
    """
    rule = _HALVING[method]
    if rule == "hyperband":
        mode = check_word(
            "searcher.mode",
            searcher.get("mode", "standard"),
            ("aggressive", "standard", "conservative"),
        )
        if mode == "aggressive":  # one bracket
            rule = "asha"
        else:
            sweep.change("searcher.mode", f"{mode}: hyperband chooses the number of brackets")
    divisor = check_number("searcher.divisor", searcher.get("divisor", 4))
    if divisor <= 1:
        raise UserError(f"searcher.divisor: {divisor} should be above 1")
    factor = max(2, round(divisor))
    if factor != divisor:
        sweep.change(
            "searcher.divisor", f"{divisor} becomes factor: {factor}, the nearest whole number"
        )
    word = "num_rungs" if "num_rungs" in searcher else "max_rungs"
    rungs = check_count(f"searcher.{word}", searcher.get(word, _MAX_RUNGS), 64)
    min_epochs = 1
    if length is not None:
        if _HALVING[method] == "hyperband":  # no more rungs than a trial and all trials allow
            trials = (sweep.search or {}).get("max_trials", GUESSED_TRIALS)
            rungs = min(
                rungs, *(int(math.log(n) / math.log(divisor)) + 1 for n in (length, trials))
            )
        min_epochs = max(1, int((epochs or 1) / divisor ** (rungs - 1)))
    on_fail = "stop" if searcher.get("stop_once") is True else "pause"
    sweep.prune = {"rule": rule, "min_epochs": min_epochs, "factor": factor, "on_fail": on_fail}


def _epochs(
    sweep: Sweep, searcher: Mapping[str, Any], records: tuple[int, int] | None
) -> tuple[int | None, int | None]:
    """Return the length of the longest trial in its unit, and in epochs; None if unknown."""
    length = searcher.get("max_length")
    if length is None and "max_time" in searcher:
        count = check_count("searcher.max_time", searcher["max_time"], _MOST_EPOCHS)
        unit = str(searcher.get("time_metric", "")).rpartition(".")[2].rstrip("s").lower()
        if unit != "epoch":
            sweep.change(
                "searcher.max_time",
                f"a unit of {searcher.get('time_metric')} is taken as an epoch",
            )
        return count, count
    if length is None:
        return None, None
    if not isinstance(length, Mapping):
        sweep.change("searcher.max_length", "its unit is taken as an epoch")
        count = check_count("searcher.max_length", length, _MOST_EPOCHS)
        return count, count
    if len(length) != 1 or not length.keys() <= {"epochs", "batches", "records"}:
        raise UserError(
            f"searcher.max_length: {short_repr(dict(length))} should be a number of epochs, "
            "batches or records"
        )
    [(unit, number)] = length.items()
    count = check_count(f"searcher.max_length.{unit}", number, _MOST_EPOCHS)
    if unit == "epochs":
        return count, count
    if records is None:
        sweep.leave_out(
            f"searcher.max_length.{unit}",
            "the length of an epoch is unknown without records_per_epoch and a constant "
            "global_batch_size; set train.stopping.max_epochs",
        )
        return count, None
    per_epoch, batch = records
    samples = count * batch if unit == "batches" else count
    epochs = max(1, math.ceil(samples / per_epoch))
    sweep.change(
        f"searcher.max_length.{unit}", f"{count} {unit} are {samples / per_epoch:.6g} epochs"
    )
    return count, epochs


# ---- other sections ------------------------------------------------------------------------------


def _read_resources(sweep: Sweep, content: Mapping[str, Any]) -> None:
    for key, item in content.items():
        if key == "slots_per_trial" and item:
            sweep.entry["gpus"] = check_count(f"resources.{key}", item)
        else:
            sweep.leave_out(f"resources.{key}", "the batch system places the launch")


def _read_reproducibility(sweep: Sweep, content: Mapping[str, Any]) -> None:
    for key, item in content.items():
        if key == "experiment_seed" and type(item) is int and item >= 0:
            sweep.seed = item
        else:
            sweep.leave_out(f"reproducibility.{key}", "a spec has only `seed`")
