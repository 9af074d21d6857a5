"""Read a study from a journal or an SQLite database of Optuna.

A study stores its trials and the directions of its objectives, but neither the space nor the
sampler and the pruner. The space is derived from the distributions of the trials' parameters, and
its conditions from the trials in which a parameter is absent.
"""

from __future__ import annotations

import json
import math
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fleet.errors import UserError, short_repr
from fleet.spec.search import MAX_TRIALS, Mode
from fleet.storage.trials_file import FileTrial
from fleet.sweeps.sweep import Metric, Sweep, choices, number_range
from fleet.units import listed
from launch.errors import pluralize

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

KIND = "Optuna study"
_MAX_EPOCHS = 10_000  # of a curve; more reports are steps of training
_NO_NAME = "no-name-"  # precedes the identifier of a study without a name
_MOST_IN_ONE_CONDITION = 2  # parameters on which another one depends

_OUTCOMES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
_MODES: dict[str, Mode] = {"MINIMIZE": "minimize", "MAXIMIZE": "maximize"}


def is_journal(path: Path) -> bool:
    """Return True if the first line of a file is an operation of Optuna's journal."""
    with open(path, "rb") as file:
        line = file.readline(1_000_000)
    try:
        operation = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(operation, dict) and {"op_code", "worker_id"} <= operation.keys()


def is_database(path: Path) -> bool:
    """Return True if a file is an SQLite database with the tables of Optuna."""
    with open(path, "rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return False
    try:
        connection = sqlite3.connect(_read_only(path), uri=True)
        try:
            rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return {("studies",), ("trials",)} <= set(rows)


def read(path: Path, name: str | None = None) -> Sweep:
    """Read a study.

    Args:
        path: a journal, or an SQLite database.
        name: its name, if there are several.

    Raises:
        UserError: Optuna is not installed, the file cannot be read, or it is unclear which study is
            meant.
    """
    study = _load(path, name)
    is_named = not study.study_name.startswith(_NO_NAME)
    sweep = Sweep(KIND, name=study.study_name if is_named else "")
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    unfinished = len(study.get_trials(deepcopy=False)) - len(trials)
    if unfinished:
        have = "has" if unfinished == 1 else "have"
        sweep.leave_out("trials", f"{pluralize(unfinished, 'trial')} {have} not ended")
    _read_space(sweep, trials)
    _read_objectives(sweep, study)
    count = min(MAX_TRIALS, max(1, len(study.get_trials(deepcopy=False))))
    sampler = "tpe" if len(study.directions) == 1 else "nsgaii"
    sweep.search = {"sampler": sampler, "max_trials": count}
    sweep.change("sampler", f"a study does not store it; {sampler}, Optuna's default, is used")
    sweep.change("n_trials", f"a study does not store it; max_trials is {count}, as it has trials")
    if any(trial.state.name == "PRUNED" for trial in trials):
        sweep.leave_out("pruner", "a study does not store it; choose a rule, see `prune`")
    if any(trial.system_attrs.get("constraints") for trial in trials):
        sweep.leave_out(
            "constraints",
            "a study stores their values only, which the prior trials have as violations",
        )
    sweep.trials = list(_prior_trials(sweep, trials, len(study.directions)))
    for key in study.user_attrs:
        if key not in ("run", "objectives"):
            sweep.leave_out(f"user_attrs.{key}", "a spec has no attributes")
    return sweep


# ---- the storage ---------------------------------------------------------------------------------


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _load(path: Path, name: str | None) -> Study:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            f"{path}: a study is read with Optuna, which cannot be imported ({error}): "
            "pip install 'fleet-ensemble[track]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = _storage(path)
            names = optuna.get_all_study_names(storage)
            study = optuna.load_study(study_name=_choose(path, names, name), storage=storage)
            study.get_trials(deepcopy=False)
    except UserError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy or json, for a damaged file
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path} cannot be read as a study of Optuna: {reason[:300]}") from error
    return study


def _storage(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if is_database(path):
        url = f"sqlite:///file:{quote(str(path.absolute()))}?mode=ro&uri=true"
        return RDBStorage(url, skip_table_creation=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _choose(path: Path, names: Sequence[str], name: str | None) -> str:
    """Return the name of a study."""
    if not names:
        raise UserError(f"{path} has no study")
    if name is None and len(names) > 1:
        raise UserError(
            f"{path} has {len(names)} studies; choose one with --study: {listed(sorted(names))}"
        )
    if name is not None and name not in names:
        raise UserError(f"{path} has no study {name!r}; it has {listed(sorted(names))}")
    return names[0] if name is None else name


# ---- the space -----------------------------------------------------------------------------------


def _read_space(sweep: Sweep, trials: Sequence[FrozenTrial]) -> None:
    distributions: dict[str, list[BaseDistribution]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            earlier = distributions.setdefault(name, [])
            if distribution not in earlier:
                earlier.append(distribution)
    if not distributions:
        raise UserError("trials: no trial that has ended has a parameter, so there is no space")
    # Failed trials may lack parameters because they failed before.
    completed = [trial.params for trial in trials if trial.state.name != "FAIL"]
    for name, variants in distributions.items():
        when = _conditions(sweep, name, completed, distributions)
        sweep.add(name, _dimension(sweep, name, variants, when))


def _dimension(
    sweep: Sweep, name: str, variants: Sequence[BaseDistribution], when: Mapping[str, Any]
) -> Any:
    """Return the choices or the range that contain all distributions of a parameter."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if len(variants) > 1:
        sweep.change(name, "trials have several distributions; the space contains all of them")
    first: Any = variants[0]
    if any(type(distribution) is not type(first) for distribution in variants):
        raise UserError(f"{name}: trials have distributions of several types")
    if isinstance(first, CategoricalDistribution):
        values: dict[str, Any] = {}
        for distribution in variants:
            values |= {repr(value): value for value in vars(distribution)["choices"]}
        return choices([_as_choice(value) for value in values.values()], when)
    low = min(distribution.low for distribution in variants)  # type: ignore[attr-defined]
    high = max(distribution.high for distribution in variants)  # type: ignore[attr-defined]
    steps = {distribution.step for distribution in variants}  # type: ignore[attr-defined]
    step = first.step if len(steps) == 1 else None
    log = all(distribution.log for distribution in variants)  # type: ignore[attr-defined]
    integer = isinstance(first, IntDistribution)
    if integer and step == 1:
        step = None
    return number_range(name, low, high, log=log, integer=integer, step=step, when=when)


def _as_choice(value: Any) -> Any:
    """Return a choice as a spec writes it: FLEET exports lists and mappings as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


# ---- conditions ----------------------------------------------------------------------------------


def _conditions(
    sweep: Sweep,
    name: str,
    trials: Sequence[Mapping[str, Any]],
    distributions: Mapping[str, Sequence[BaseDistribution]],
) -> dict[str, Any]:
    """Return the conditions that explain in which trials a parameter is present.

    A condition is on a parameter that all these trials have, and that has only some of its values
    in them; the fewest conditions that exclude all other trials count.
    """
    present = [trial for trial in trials if name in trial]
    absent = [trial for trial in trials if name not in trial]
    if not present or not absent:
        return {}
    candidates = {
        parent: condition
        for parent in sorted(distributions, key=lambda parent: _plausibility(distributions[parent]))
        if parent != name and all(parent in trial for trial in present)
        if (condition := _condition(parent, present, absent, distributions[parent])) is not None
    }
    for count in range(1, _MOST_IN_ONE_CONDITION + 1):
        for parents in combinations(candidates, count):
            if not any(
                all(
                    parent in trial and _meets(trial[parent], candidates[parent])
                    for parent in parents
                )
                for trial in absent
            ):
                when = {parent: candidates[parent] for parent in parents}
                sweep.change(
                    name,
                    f"is absent from {pluralize(len(absent), 'trial')}, hence `when: "
                    f"{short_repr(when)}`",
                )
                return when
    sweep.leave_out(
        name,
        f"is absent from {pluralize(len(absent), 'trial')}, which one or two other parameters do "
        "not explain; all networks have it, and prior trials without it are not used",
    )
    return {}


def _plausibility(distributions: Sequence[BaseDistribution]) -> float:
    """Return a number that is smaller for parameters on which others are likelier to depend."""
    from optuna.distributions import IntDistribution

    first = distributions[0]
    if isinstance(first, IntDistribution):
        return 1.0 + first.high - first.low
    return 0.0


def _condition(
    name: str,
    present: Sequence[Mapping[str, Any]],
    absent: Sequence[Mapping[str, Any]],
    distributions: Sequence[BaseDistribution],
) -> Any:
    """Return a condition on a parameter that holds in some trials.

    It is None if it excludes none of the others, or if the parameter is a real number, which
    separates few trials by chance.
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    inside = [trial[name] for trial in present]
    outside = [trial[name] for trial in absent if name in trial]
    if isinstance(distributions[0], CategoricalDistribution):
        possible = {repr(value): _as_choice(value) for value in inside}
        if not {repr(value) for value in outside} - possible.keys():
            return None
        values = list(possible.values())
        # A list as a value is a list of values of a condition, unless it is in one.
        return values[0] if len(values) == 1 and not isinstance(values[0], list) else values
    if not isinstance(distributions[0], IntDistribution):
        return None
    bounds = {}
    if any(value < min(inside) for value in outside):
        bounds["least"] = min(inside)
    if any(value > max(inside) for value in outside):
        bounds["most"] = max(inside)
    return bounds or None


def _meets(value: Any, condition: Any) -> bool:
    """Return True if a value of a trial meets a condition of :func:`_condition`."""
    value = _as_choice(value)
    if isinstance(condition, Mapping) and condition.keys() <= {"least", "most"}:
        return bool(condition.get("least", -math.inf) <= value <= condition.get("most", math.inf))
    if isinstance(condition, list):
        return any(repr(value) == repr(item) for item in condition)
    return repr(value) == repr(condition)


# ---- objectives and trials -----------------------------------------------------------------------


def _read_objectives(sweep: Sweep, study: Study) -> None:
    names = study.metric_names or study.user_attrs.get("objectives")  # the latter of FLEET
    if not isinstance(names, list) or len(names) != len(study.directions):
        names = [""] * len(study.directions)
    for name, direction in zip(names, study.directions, strict=True):
        sweep.metrics.append(Metric(str(name), _MODES.get(direction.name, "minimize")))


def _prior_trials(
    sweep: Sweep, trials: Sequence[FrozenTrial], objectives: int
) -> Iterator[FileTrial]:
    """Yield the trials that have ended, with a curve of the reported values.

    The first report of the study is of epoch 1, and the smallest distance of two reports is an
    epoch. Between reports values are NaN.
    """
    steps = sorted({step for trial in trials for step in trial.intermediate_values})
    first = steps[0] if steps else 0
    spacing = math.gcd(*(step - first for step in steps)) or 1
    if steps and (steps[-1] - first) // spacing >= _MAX_EPOCHS:
        sweep.leave_out("trials", f"curves are longer than {_MAX_EPOCHS} epochs; values remain")
        steps = []
    elif spacing > 1 or first > 1:
        sweep.change("trials", f"epoch 1 is step {first}, and {spacing} steps are an epoch")
    for trial in trials:
        reported = trial.intermediate_values if steps else {}
        last = max(reported, default=first - spacing)
        curve = tuple(
            float(reported.get(step, math.nan)) for step in range(first, last + 1, spacing)
        )
        yield FileTrial(
            str(trial.user_attrs.get("network", f"trial-{trial.number}")),
            {name: _as_choice(value) for name, value in trial.params.items()},
            _OUTCOMES[trial.state.name],  # type: ignore[arg-type]
            _results(sweep, trial, curve, objectives),
            curve,
            tuple(map(float, trial.system_attrs.get("constraints") or ())),
        )


def _results(
    sweep: Sweep, trial: FrozenTrial, curve: Sequence[float], objectives: int
) -> tuple[float, ...]:
    """Return the value of each objective; of a pruned trial the best that it reported."""
    unknown = (math.nan,) * objectives
    if trial.state.name == "PRUNED":
        reported = [value for value in curve if math.isfinite(value)]
        if not reported:
            return unknown
        best = max(reported) if sweep.metrics[0].mode == "maximize" else min(reported)
        return (best, *unknown[1:])
    if trial.state.name != "COMPLETE" or trial.values is None:
        return unknown
    return tuple(map(float, trial.values))
