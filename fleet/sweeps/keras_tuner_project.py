"""Read the folder of a Keras Tuner project: ``oracle.json``, and ``trial_*/trial.json``.

The class of a tuner is not stored; what its oracle stores besides tells Hyperband and Bayesian
optimization from the others.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.errors import UserError, short_repr
from fleet.spec.search import MAX_TRIALS, Mode
from fleet.storage.files import map_in_threads
from fleet.storage.trials_file import FileTrial
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
from launch.errors import pluralize

KIND = "Keras Tuner project"
_OF_TUNER = "tuner/"  # parameters by which Hyperband controls its trials
_OUTCOMES = {"COMPLETED": "finished", "FAILED": "failed", "INVALID": "failed"}
_MODES: dict[str, Mode] = {"min": "minimize", "max": "maximize"}
_MOST_STEPS = 10_000


def is_project(path: Path) -> bool:
    """Return True if a folder is a project of Keras Tuner."""
    return (path / "oracle.json").is_file()


def read(path: Path) -> Sweep:
    """Read a project.

    Args:
        path: its folder.

    Raises:
        UserError: a file cannot be read; the message names it.
    """
    oracle = _read_json(path / "oracle.json")
    sweep = Sweep(KIND, name=path.resolve().name)
    config = check_mapping("oracle.json: hyperparameters", oracle.get("hyperparameters"))
    defaults = _read_space(sweep, config)
    records = map_in_threads(_read_json, sorted(path.glob("trial_*/trial.json")))
    _read_objective(sweep, records)
    _read_oracle(sweep, oracle, len(records))
    _read_trials(sweep, records, defaults, oracle.get("max_epochs"))
    return sweep


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is no JSON; it should be a file of Keras Tuner") from None
    return check_mapping(path.name, content)


# ---- the space -----------------------------------------------------------------------------------


def _read_space(sweep: Sweep, config: Mapping[str, Any]) -> dict[str, Any]:
    """Read hyperparameters; one that several conditions create is used under any of them.

    Returns:
        The defaults of the unconditional ones.
    """
    dimensions: dict[str, Any] = {}
    for number, item in enumerate(check_list("space", config.get("space") or [])):
        entry = check_mapping(f"space.{number}", item)
        content = check_mapping(f"space.{number}.config", entry.get("config"))
        name = content.get("name")
        if not isinstance(name, str) or not name:
            raise UserError(f"space.{number}.config.name: {short_repr(name)} should be a name")
        if name.startswith(_OF_TUNER):
            continue
        kind = check_word(
            f"{name}.class_name",
            entry.get("class_name"),
            ("Int", "Float", "Choice", "Boolean", "Fixed"),
        )
        when = _conditions(name, content.get("conditions") or [])
        if name in dimensions:
            dimensions[name] = _either(sweep, name, dimensions[name], (kind, content, when))
        else:
            dimensions[name] = (kind, content, when)
    for name, (kind, content, when) in dimensions.items():
        sweep.add(name, _dimension(sweep, name, kind, content, when))
    return {
        name: _default(kind, content)
        for name, (kind, content, when) in dimensions.items()
        if not when
    }


def _default(kind: str, content: Mapping[str, Any]) -> Any:
    """Return the default of a hyperparameter."""
    if kind == "Fixed":
        return content.get("value")
    if content.get("default") is not None:
        return content["default"]
    return {"Boolean": False, "Choice": (content.get("values") or [None])[0]}.get(
        kind, content.get("min_value")
    )


def _conditions(name: str, content: Any) -> dict[str, Any]:
    when: dict[str, Any] = {}
    for item in content:
        condition = check_mapping(f"{name}.conditions", item)
        check_word(f"{name}.conditions", condition.get("class_name"), ("Parent",))
        config = check_mapping(f"{name}.conditions", condition.get("config"))
        parent = config.get("name")
        if not isinstance(parent, str):
            raise UserError(f"{name}.conditions: {short_repr(parent)} should be a name")
        values = check_list(f"{name}.conditions.values", config.get("values"))
        when[parent] = values[0] if len(values) == 1 else values
    return when


def _either(sweep: Sweep, name: str, first: Any, second: Any) -> Any:
    """Return a hyperparameter that two conditions create."""
    kind, content, when = first
    if not when or not second[2]:
        return (kind, content, {})
    if when.keys() == second[2].keys() and len(when) == 1:
        [(parent, values)] = when.items()
        more = second[2][parent]
        merged = [*_as_list(values), *(item for item in _as_list(more) if item not in values)]
        return (kind, content, {parent: merged})
    sweep.leave_out(f"{name}.conditions", "it has several; only the first one counts")
    return first


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _dimension(
    sweep: Sweep, name: str, kind: str, content: Mapping[str, Any], when: Mapping[str, Any]
) -> Any:
    if kind == "Fixed":
        return choices([content.get("value")], when)
    if kind == "Boolean":
        return choices([False, True], when)
    if kind == "Choice":
        return choices(check_list(f"{name}.values", content.get("values")), when)
    low = check_number(f"{name}.min_value", content.get("min_value"))
    high = check_number(f"{name}.max_value", content.get("max_value"))
    if low > high:
        raise UserError(f"{name}.min_value: {low} should not be above max_value: {high}")
    sampling = str(content.get("sampling") or "linear").lower()
    check_word(f"{name}.sampling", sampling, ("linear", "log", "reverse_log"))
    integer = kind == "Int"
    step = content.get("step")
    if step is not None and check_number(f"{name}.step", step) <= 0:
        raise UserError(f"{name}.step: {step} should be above 0")
    if sampling != "linear" and step is not None:
        return choices(_geometric(name, sampling, low, high, step, integer), when)
    if sampling == "reverse_log":
        sweep.leave_out(f"{name}.sampling", "reverse_log: values are drawn uniformly")
    if step is not None and (low + step > high or (integer and step == 1)):
        if low + step > high:
            high = low
        step = None
    return number_range(
        name, low, high, log=sampling == "log", integer=integer, step=step, when=when
    )


def _geometric(
    name: str, sampling: str, low: float, high: float, step: float, integer: bool
) -> list[Any]:
    """Return the values of logarithmic sampling, in which a step is a factor."""
    if low <= 0 or step <= 1:
        raise UserError(f"{name}: {sampling} should have min_value above 0 and step above 1")
    # As the library counts them, with its allowance for rounding.
    count = int(math.log(high / low, step) + 1e-8) + 1
    if count > _MOST_STEPS:
        raise UserError(f"{name}.step: {count} values; it should be at most {_MOST_STEPS}")
    values = [rounded(low * step**power) for power in range(count)]
    if sampling == "reverse_log":
        values = [rounded(high + low - value) for value in values]
    return [int(value) if integer else value for value in values]


# ---- the search ----------------------------------------------------------------------------------


def _read_oracle(sweep: Sweep, oracle: Mapping[str, Any], trials: int) -> None:
    seed = oracle.get("seed")
    if type(seed) is int and seed >= 0:
        sweep.seed = seed
    sweep.search = {"sampler": "random"}
    if "hyperband_iterations" in oracle:
        factor = check_number("oracle.json: factor", oracle.get("factor", 3))
        sweep.prune = {
            "rule": "hyperband",
            "min_epochs": check_count("oracle.json: min_epochs", oracle.get("min_epochs", 1)),
            "factor": max(2, round(factor)),
        }
        sweep.stopping["max_epochs"] = check_count(
            "oracle.json: max_epochs", oracle.get("max_epochs", 100)
        )
        sweep.change("tuner", "Hyperband's sizes of brackets are chosen by the rule hyperband")
    elif {"alpha", "beta", "num_initial_points"} <= oracle.keys():
        sweep.search["sampler"] = "tpe"
        sweep.change("tuner", "BayesianOptimization is a Gaussian process; tpe is used")
    else:
        sweep.change("tuner", "its class is not stored; random is used")
    count = min(MAX_TRIALS, max(1, trials))
    sweep.search["max_trials"] = count
    sweep.change("max_trials", f"it is not stored; it is {count}, as the project has trials")
    sweep.leave_out("hypermodel", "a project does not store it; use `build: module:function`")


def _read_objective(sweep: Sweep, records: list[dict[str, Any]]) -> None:
    """Find the objective: the metric of a trial whose best value is the trial's score."""
    votes = Counter[tuple[str, str]]()
    for record in records:
        score = record.get("score")
        for name, metric in _metrics(record).items():
            direction = str(metric.get("direction"))
            values = [value for _, value in _observations(metric)]
            if direction not in _MODES or not values or not isinstance(score, int | float):
                continue
            best = max(values) if direction == "max" else min(values)
            if math.isclose(best, score, rel_tol=1e-9):
                votes[name, direction] += 1
    if not votes:
        sweep.leave_out("objective", "it is not stored, and no trial has a score that tells it")
        return
    most_votes = max(votes.values())
    # Of metrics with the same values, one of validation data is the more likely objective.
    candidates = sorted(
        (pair for pair, count in votes.items() if count == most_votes),
        key=lambda pair: (not pair[0].startswith("val_"), pair[0]),
    )
    name, direction = candidates[0]
    sweep.metrics.append(Metric(name, _MODES[direction]))
    sweep.change("objective", f"it is not stored; {name} is the metric that equals the scores")


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    metrics = record.get("metrics")
    if not isinstance(metrics, Mapping) or not isinstance(metrics.get("metrics"), Mapping):
        return {}
    return {
        name: metric for name, metric in metrics["metrics"].items() if isinstance(metric, Mapping)
    }


def _observations(metric: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return the steps of a metric with the mean of its executions."""
    pairs = []
    for item in metric.get("observations") or ():
        values = item.get("value") if isinstance(item, Mapping) else None
        numbers = [
            float(value)
            for value in (values if isinstance(values, list) else ())
            if isinstance(value, int | float)
        ]
        if numbers and type(item.get("step")) is int:
            pairs.append((item["step"], sum(numbers) / len(numbers)))
    return sorted(pairs)


def _read_trials(
    sweep: Sweep, records: list[dict[str, Any]], defaults: Mapping[str, Any], max_epochs: Any
) -> None:
    """Read the trials that have ended.

    A trial stores each metric in its best epoch only, so that it has no curve. It lacks parameters
    that later trials added, for which Keras Tuner takes the defaults. Hyperband continues a trial
    as another one, so one of fewer epochs counts as pruned.
    """
    unfinished = Counter[str]()
    for record in records:
        status = str(record.get("status"))
        if status not in _OUTCOMES:
            unfinished[status] += 1
            continue
        config = check_mapping("trial.json: hyperparameters", record.get("hyperparameters"))
        values = check_mapping("trial.json: values", config.get("values"))
        score = record.get("score")
        outcome = _OUTCOMES[status]
        is_valued = isinstance(score, int | float) and outcome == "finished"
        epochs = values.get(f"{_OF_TUNER}epochs")
        if outcome == "finished" and epochs is not None and epochs != max_epochs:
            outcome = "pruned"
        sweep.trials.append(
            FileTrial(
                f"trial-{record.get('trial_id')}",
                {
                    name: value
                    for name, value in {**defaults, **values}.items()
                    if not name.startswith(_OF_TUNER)
                },
                outcome,  # type: ignore[arg-type]
                (float(score) if is_valued else math.nan,),  # type: ignore[arg-type]
            )
        )
    for status, count in unfinished.items():
        sweep.leave_out("trials", f"{pluralize(count, 'trial')} with the status {status}")
