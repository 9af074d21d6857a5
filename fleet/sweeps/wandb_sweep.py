"""Read the YAML of a W&B sweep.

Distributions are those of https://docs.wandb.ai/models/sweeps/sweep-config-keys: the bounds of
``log_uniform`` are exponents of e, those of ``log_uniform_values`` are values, and ``q`` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fleet.errors import UserError, short_repr
from fleet.spec.search import Mode
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

KIND = "W&B sweep"
GUESSED_TRIALS = 100
_CUT = 4.0  # standard deviations of a normal distribution on each side of a range
_MODES: dict[str, Mode] = {"minimize": "minimize", "maximize": "maximize"}
_MOST_GRID_VALUES = 10_000

_UNSAID = {
    "program": "a run trains the networks of the spec; no program is started for each of them",
    "command": "a run trains the networks of the spec; no command is started for each of them",
    "job": "no job is started for each network",
    "image_uri": "no image is started for each network",
    "project": "wandb sync chooses it for the offline runs that `trackers: [wandb]` writes",
    "entity": "wandb sync chooses it for the offline runs that `trackers: [wandb]` writes",
    "controller": "rank 0 of the launch controls the search",
    "scheduler": "rank 0 of the launch controls the search",
}


def is_sweep(content: Mapping[str, Any]) -> bool:
    """Return True if a YAML file is a W&B sweep."""
    return "method" in content and "searcher" not in content


def read(content: Mapping[str, Any]) -> Sweep:
    """Read a sweep.

    Args:
        content: the content of its YAML file.

    Raises:
        UserError: something is missing or malformed; the message begins with the key.
    """
    sweep = Sweep(KIND, name=str(content.get("name") or ""))
    method = check_word("method", content["method"], ("grid", "random", "bayes", "custom"))
    _Parameters(sweep, is_grid=method == "grid").add_all(
        "parameters", content.get("parameters"), ""
    )
    sweep.search = {"sampler": _sampler(sweep, method)}
    if "run_cap" in content:
        sweep.search["max_trials"] = check_count("run_cap", content["run_cap"])
    elif method != "grid":
        sweep.limit_trials("run_cap", GUESSED_TRIALS)
    _read_metrics(sweep, content)
    if content.get("early_terminate") is not None:
        _read_early_terminate(sweep, check_mapping("early_terminate", content["early_terminate"]))
    sweep.description = str(content.get("description") or "")
    read_keys = {"method", "parameters", "run_cap", "metric", "metrics", "early_terminate", "name"}
    for key in content:
        if key not in read_keys | {"description", "apiVersion", "kind"}:
            sweep.leave_out(key, _UNSAID.get(key, "unknown key of a sweep"))
    return sweep


def _sampler(sweep: Sweep, method: str) -> str:
    if method == "bayes":
        sweep.change("method", "bayes is a Gaussian process; tpe is used (gp needs PyTorch)")
        return "tpe"
    if method == "custom":
        sweep.leave_out("method", "custom is decided by `scheduler`; random is used")
        return "random"
    return method


def _read_metrics(sweep: Sweep, content: Mapping[str, Any]) -> None:
    if "metrics" in content:
        items = list(enumerate(check_list("metrics", content["metrics"])))
        metrics = [(f"metrics.{number}", item) for number, item in items]
    elif content.get("metric") is not None:
        metrics = [("metric", content["metric"])]
    else:
        metrics = []
    for key, item in metrics:
        metric = check_mapping(key, item)
        name = metric.get("name")
        if not isinstance(name, str) or not name:
            raise UserError(f"{key}.name: {short_repr(name)} should be the name of a metric")
        goal = check_word(f"{key}.goal", metric.get("goal", "minimize"), tuple(_MODES))
        sweep.metrics.append(Metric(name, _MODES[goal]))
        if "target" in metric:
            sweep.leave_out(
                f"{key}.target",
                "no value ends a whole search; train.stopping.stop_at ends a network at a value",
            )
        for word in sorted(set(metric) - {"name", "goal", "target"}):
            sweep.leave_out(f"{key}.{word}", "failed networks have no value")


def _read_early_terminate(sweep: Sweep, content: Mapping[str, Any]) -> None:
    """Read Hyperband, which stops runs as asha does, without its brackets.

    Its bands are max_iter / eta**i for i from 1 to s, or min_iter · eta**i.
    """
    key = "early_terminate"
    check_word(f"{key}.type", content.get("type"), ("hyperband",))
    eta = check_number(f"{key}.eta", content.get("eta", 3))
    if eta <= 1:
        raise UserError(f"{key}.eta: {eta} should be above 1")
    factor = max(2, round(eta))
    if factor != eta:
        sweep.change(f"{key}.eta", f"{eta} becomes factor: {factor}, the nearest whole number")
    if "max_iter" in content:
        max_iter = check_count(f"{key}.max_iter", content["max_iter"])
        count = check_number(f"{key}.s", content.get("s"))
        bands = [int(max_iter / eta**power) for power in range(1, int(min(count, 64)) + 1)]
        bands = [band for band in bands if band >= 1]
        if not bands:
            raise UserError(f"{key}.s: {content['s']} leaves no band below max_iter: {max_iter}")
        min_epochs = min(bands)
        sweep.stopping["max_epochs"] = max_iter
        sweep.change(f"{key}.max_iter", "an iteration is taken as an epoch of train.stopping")
    elif "min_iter" in content:
        min_epochs = check_count(f"{key}.min_iter", content["min_iter"])
        sweep.change(f"{key}.min_iter", "an iteration is taken as an epoch")
    else:
        raise UserError(f"{key}: it should have min_iter, or max_iter and s")
    sweep.prune = {
        "rule": "asha",
        "min_epochs": min_epochs,
        "factor": factor,
        "on_fail": "stop",
    }
    if content.get("strict") is False:
        sweep.leave_out(f"{key}.strict", "asha compares the epochs of its rungs only")
    for word in sorted(set(content) - {"type", "eta", "max_iter", "min_iter", "s", "strict"}):
        sweep.leave_out(f"{key}.{word}", "unknown key of early_terminate")


class _Parameters:
    """Reads the parameters of a sweep.

    Args:
        sweep: where they are added.
        is_grid: whether the sweep is a grid.
    """

    def __init__(self, sweep: Sweep, is_grid: bool) -> None:
        self._sweep = sweep
        self._is_grid = is_grid

    def add_all(self, key: str, content: Any, prefix: str) -> None:
        """Add parameters, also nested ones, under dotted names.

        Args:
            key: the key of ``parameters``, for messages.
            content: its value.
            prefix: what precedes the names.
        """
        parameters = check_mapping(key, content)
        if not parameters:
            raise UserError(f"{key}: it should have at least one parameter")
        for name, item in parameters.items():
            below = f"{key}.{name}"
            if not isinstance(item, Mapping):
                raise UserError(
                    f"{below}: {short_repr(item)} should be a mapping, such as {{value: NUMBER}}"
                )
            parameter = check_mapping(below, item)
            if "parameters" in parameter:
                self.add_all(f"{below}.parameters", parameter["parameters"], f"{prefix}{name}.")
            else:
                self._sweep.add(f"{prefix}{name}", self._dimension(below, parameter))

    def _dimension(self, key: str, parameter: Mapping[str, Any]) -> Any:
        """Return the choices or the range of a parameter."""
        distribution = parameter.get("distribution") or _implied(key, parameter)
        if not isinstance(distribution, str) or distribution not in _READERS:
            read_keys = ", ".join(_READERS)
            raise UserError(
                f"{key}.distribution: {short_repr(distribution)} is unknown; it should be one of "
                f"{read_keys}"
            )
        if self._is_grid and distribution == "q_uniform":
            return self._grid_values(key, parameter)
        if self._is_grid and distribution not in _GRID:
            raise UserError(
                f"{key}.distribution: {distribution} has no grid; it should be one of "
                f"{', '.join(_GRID)}"
            )
        keys, read_it = _READERS[distribution]
        for word in sorted(set(parameter) - {*keys, "distribution"}):
            self._sweep.leave_out(f"{key}.{word}", f"{distribution} does not read it")
        return read_it(self._sweep, key, parameter)

    def _grid_values(self, key: str, parameter: Mapping[str, Any]) -> Any:
        """Return the values of q_uniform in a grid, which W&B counts from min to below max."""
        low, high = _bounds(key, parameter)
        step = _quantum(key, parameter)
        count = math.ceil(rounded((high - low) / step))
        if count > _MOST_GRID_VALUES:
            raise UserError(f"{key}.q: {count} values; it should be at most {_MOST_GRID_VALUES}")
        values = [rounded(low + number * step) for number in range(count)]
        if float(low).is_integer() and float(step).is_integer():
            return choices([int(value) for value in values])
        return choices(values)


def _implied(key: str, parameter: Mapping[str, Any]) -> str:
    """Return the distribution of a parameter that does not name it."""
    if "value" in parameter:
        return "constant"
    if "probabilities" in parameter:
        return "categorical_w_probabilities"
    if "values" in parameter:
        return "categorical"
    if "min" in parameter and "max" in parameter:
        if all(type(parameter[bound]) is int for bound in ("min", "max")):
            return "int_uniform"
        return "uniform"
    raise UserError(
        f"{key}: it should have value, values, min and max, parameters, or a distribution"
    )


def _bounds(key: str, parameter: Mapping[str, Any]) -> tuple[float, float]:
    low, high = (check_number(f"{key}.{bound}", parameter.get(bound)) for bound in ("min", "max"))
    if low > high:
        raise UserError(f"{key}.min: {low} should not be above max: {high}")
    return low, high


def _quantum(key: str, parameter: Mapping[str, Any]) -> float:
    quantum = check_number(f"{key}.q", parameter.get("q", 1))
    if quantum <= 0:
        raise UserError(f"{key}.q: {quantum} should be above 0")
    return quantum


def _exponential(key: str, exponent: float) -> float:
    try:
        return rounded(math.exp(exponent))
    except OverflowError:
        raise UserError(f"{key}: e**{exponent} is too large; bounds are exponents of e") from None


def _powers(sweep: Sweep, key: str, low: float, high: float) -> tuple[float, float]:
    """Return the values whose natural logarithms are the bounds, and note them."""
    low, high = _exponential(key, low), _exponential(key, high)
    sweep.change(
        f"{key}.distribution",
        f"the bounds are exponents of e: values are between {low:.6g} and {high:.6g}",
    )
    return low, high


def _constant(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    if "value" not in parameter:
        raise UserError(f"{key}: constant should have a value")
    return choices([parameter["value"]])


def _categorical(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    return choices(check_list(f"{key}.values", parameter.get("values")))


def _weighted(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    values = check_list(f"{key}.values", parameter.get("values"))
    weights = [
        check_number(f"{key}.probabilities", weight)
        for weight in check_list(f"{key}.probabilities", parameter.get("probabilities"))
    ]
    if len(weights) != len(values) or min(weights) < 0 or not sum(weights) > 0:
        raise UserError(
            f"{key}.probabilities: {short_repr(weights)} should have a number of at least 0 for "
            f"each of {len(values)} values"
        )
    possible = [pair for pair in zip(values, weights, strict=True) if pair[1]]
    if len(possible) < len(values):
        sweep.change(f"{key}.probabilities", "values of probability 0 are no choices")
    return choices([value for value, _ in possible], weights=[weight for _, weight in possible])


def _int_uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    low, high = _bounds(key, parameter)
    if low != int(low) or high != int(high):
        raise UserError(f"{key}: int_uniform should have whole numbers, not {low} and {high}")
    return number_range(key, low, high, integer=True)


def _uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    return number_range(key, *_bounds(key, parameter))


def _log_uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    return number_range(key, *_powers(sweep, key, *_bounds(key, parameter)), log=True)


def _log_uniform_values(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    return number_range(key, *_bounds(key, parameter), log=True)


def _inv_log_uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    # The logarithm of 1/x is uniform between the bounds, so that of x is between their negatives.
    low, high = _bounds(key, parameter)
    return number_range(key, *_powers(sweep, key, -high, -low), log=True)


def _q_uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    quantum = _quantum(key, parameter)
    return _quantized(sweep, key, *_bounds(key, parameter), quantum)


def _q_log_uniform(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    low, high = _powers(sweep, key, *_bounds(key, parameter))
    return _quantized(sweep, key, low, high, _quantum(key, parameter), log=True)


def _q_log_uniform_values(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    low, high = _bounds(key, parameter)
    if low <= 0:
        raise UserError(f"{key}.min: {low} should be above 0 for a logarithmic distribution")
    return _quantized(sweep, key, low, high, _quantum(key, parameter), log=True)


def _normal(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    mean, deviation = _moments(sweep, key, parameter)
    low, high = (rounded(mean + side * deviation) for side in (-_CUT, _CUT))
    return number_range(key, low, high, prior=_prior(mean, deviation, high - low))


def _q_normal(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    mean, deviation = _moments(sweep, key, parameter)
    low, high = mean - _CUT * deviation, mean + _CUT * deviation
    return _quantized(sweep, key, low, high, _quantum(key, parameter), moments=(mean, deviation))


def _log_normal(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    mean, deviation = _moments(sweep, key, parameter)
    low, high = mean - _CUT * deviation, mean + _CUT * deviation
    prior = _prior(_exponential(key, mean), deviation, high - low)
    return number_range(key, _exponential(key, low), _exponential(key, high), log=True, prior=prior)


def _q_log_normal(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    mean, deviation = _moments(sweep, key, parameter)
    low, high = (_exponential(key, mean + side * deviation) for side in (-_CUT, _CUT))
    moments = (_exponential(key, mean), deviation)
    return _quantized(sweep, key, low, high, _quantum(key, parameter), log=True, moments=moments)


def _beta(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    _note_beta(sweep, key, parameter)
    return number_range(key, 0.0, 1.0)


def _q_beta(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> Any:
    _note_beta(sweep, key, parameter)
    return _quantized(sweep, key, 0.0, 1.0, _quantum(key, parameter))


def _note_beta(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> None:
    shapes = [check_number(f"{key}.{shape}", parameter.get(shape, 1)) for shape in ("a", "b")]
    if min(shapes) <= 0:
        raise UserError(f"{key}: a and b of a beta distribution should be above 0")
    if shapes != [1, 1]:
        sweep.leave_out(f"{key}.distribution", "beta: values are uniform between 0 and 1")


def _moments(sweep: Sweep, key: str, parameter: Mapping[str, Any]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a normal distribution."""
    mean = check_number(f"{key}.mu", parameter.get("mu", 0))
    deviation = check_number(f"{key}.sigma", parameter.get("sigma", 1))
    if deviation < 0:
        raise UserError(f"{key}.sigma: {deviation} should be at least 0")
    sweep.change(
        f"{key}.distribution",
        f"a range has bounds: they are {_CUT:g} standard deviations from the mean",
    )
    return mean, deviation


def _prior(around: float, deviation: float, width: float) -> dict[str, float] | None:
    """Return the prior of a range for a normal distribution; None for a single value.

    Args:
        around: the mean, as a value of the range.
        deviation: the standard deviation, of the logarithm in a logarithmic range.
        width: the width of the range, of the logarithm in a logarithmic range.
    """
    if width <= 0:
        return None
    return {"around": rounded(around), "spread": rounded(min(1.0, deviation / width))}


def _quantized(
    sweep: Sweep,
    key: str,
    low: float,
    high: float,
    quantum: float,
    log: bool = False,
    moments: tuple[float, float] | None = None,
) -> Any:
    """Return the range of a number that W&B rounds to multiples of a quantum.

    Args:
        sweep: where notes are added.
        key: the key of the parameter.
        low, high: the bounds before they are rounded.
        quantum: the quantum.
        log: whether the logarithm is drawn.
        moments: mean and standard deviation of a normal distribution, the mean as a value.
    """
    low, high = (rounded(round(bound / quantum) * quantum) for bound in (low, high))
    if log and low <= 0:
        low = quantum
        sweep.change(f"{key}.q", f"a logarithmic range begins above 0, at {low}")
    if low >= high:
        return choices([int(low) if float(quantum).is_integer() else low])
    prior = None
    if moments is not None:
        around = min(max(rounded(round(moments[0] / quantum) * quantum), low), high)
        if log:
            width = math.log(high + quantum / 2) - math.log(low - quantum / 2)
        else:
            width = high - low + quantum
        prior = _prior(around, moments[1], width)
    integer = float(quantum).is_integer()
    if log and quantum != 1:
        sweep.leave_out(f"{key}.q", "a logarithmic range has no step")
        return number_range(key, low, high, log=True, integer=integer, prior=prior)
    if moments is None and log:
        sweep.change(f"{key}.q", "the first value is drawn more often, the last one too")
    elif moments is None:
        sweep.change(f"{key}.q", "the first and the last value are as likely as the others")
    step = None if quantum == 1 else quantum
    return number_range(key, low, high, log=log, integer=integer, step=step, prior=prior)


_Reader = Callable[[Sweep, str, Mapping[str, Any]], Any]
_MIN_MAX, _MU_SIGMA, _SHAPES = ("min", "max"), ("mu", "sigma"), ("a", "b")

# Distribution -> the keys that it reads, and its reader.
_READERS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "constant": (("value",), _constant),
    "categorical": (("values",), _categorical),
    "categorical_w_probabilities": (("values", "probabilities"), _weighted),
    "int_uniform": (_MIN_MAX, _int_uniform),
    "uniform": (_MIN_MAX, _uniform),
    "q_uniform": ((*_MIN_MAX, "q"), _q_uniform),
    "log_uniform": (_MIN_MAX, _log_uniform),
    "log_uniform_values": (_MIN_MAX, _log_uniform_values),
    "q_log_uniform": ((*_MIN_MAX, "q"), _q_log_uniform),
    "q_log_uniform_values": ((*_MIN_MAX, "q"), _q_log_uniform_values),
    "inv_log_uniform": (_MIN_MAX, _inv_log_uniform),
    "inv_log_uniform_values": (_MIN_MAX, _log_uniform_values),
    "normal": (_MU_SIGMA, _normal),
    "q_normal": ((*_MU_SIGMA, "q"), _q_normal),
    "log_normal": (_MU_SIGMA, _log_normal),
    "q_log_normal": ((*_MU_SIGMA, "q"), _q_log_normal),
    "beta": (_SHAPES, _beta),
    "q_beta": ((*_SHAPES, "q"), _q_beta),
}
_GRID = ("constant", "categorical", "int_uniform", "q_uniform")
