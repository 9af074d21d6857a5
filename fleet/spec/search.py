"""The keys of a search and of pruning."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import ArgsKwargs

from fleet.errors import UserError
from fleet.plugins import load_named, load_object
from fleet.spec.fields import (
    IMPORT_PATH,
    NO_FLAG,
    AboveZero,
    Duration,
    OrName,
    Positive,
    Repeats,
    named,
)
from fleet.spec.old_keys import new_prune_key
from fleet.spec.section import section
from fleet.vocabulary.measures import UP, direction_by_target
from preprocess.user_code import UserCode

Mode: TypeAlias = Literal["maximize", "minimize"]

MAX_TRIALS = 10_000  # of one entry; a larger number is a typo, as for `count`


@section
class Budget:
    """The budget of a search. Once it is spent, no more networks are proposed or resumed."""

    epochs: Positive | None = None
    """Number of epochs over all networks of the entry."""
    gpu_hours: AboveZero | None = None
    """GPU hours over all networks of the entry."""
    kwh: AboveZero | None = None
    """Energy over all networks of the entry, in kWh; only on machines that count it."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Budget:
        if self.epochs is None and self.gpu_hours is None and self.kwh is None:
            raise ValueError("needs `epochs:`, `gpu_hours:` or `kwh:`")
        return self


# Objectives besides losses and metrics -> which values are better.
NETWORK_OBJECTIVES: Mapping[str, Mode] = {
    "parameters": "minimize",
    "rate": "maximize",
    "epochs": "minimize",
    "seconds": "minimize",
    "energy": "minimize",
}


@section
class Objective:
    """A quantity that a search maximizes or minimizes."""

    value: str
    """Quantity to optimize: loss, accuracy or a metric in the network's best epoch, with val_ in
    front for validation data; or parameters (number of weights), rate (samples/s on one GPU),
    epochs, seconds (training time) or energy (of training, in kJ, on machines that count it). The
    first objective must be a loss, an accuracy or a metric.
    """
    mode: Mode | None = None
    """Whether to maximize or minimize it. Only required for your own metrics."""

    @property
    def sense(self) -> Mode | None:
        """Whether the objective is maximized or minimized; None if unknown."""
        if self.mode is not None or self.value in NETWORK_OBJECTIVES:
            return self.mode or NETWORK_OBJECTIVES[self.value]
        direction = direction_by_target(self.value)
        if direction is None:
            return None
        if direction == UP:
            return "maximize"
        return "minimize"


# Samplers of Optuna with a word of their own -> the class.
OPTUNA_SAMPLERS: Mapping[str, str] = {
    "optuna": "",  # named in the options
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
}
# Further names of Optuna's pruners -> the class in short.
OPTUNA_PRUNERS: Mapping[str, str] = {"none": "nop", "asha": "successivehalving"}
_WORDS = tuple(word for word, sampler in OPTUNA_SAMPLERS.items() if sampler)


@section
class Search:
    """A search: what proposes the networks of an entry, and how many."""

    sampler: str = Field(
        default="random",
        description=(
            "What proposes values from the space: random, grid (all combinations, in order), a "
            f"sampler of Optuna ({', '.join(_WORDS)}; or optuna with any of its samplers in "
            "`options`), or the import path of your own class. Its module may be next to the spec."
        ),
    )
    max_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), NO_FLAG] | None = Field(
        default=None,
        description=(
            f"Maximum number of trials; {MAX_TRIALS} by default. Either it or `budget` is "
            "required, except for grid, which ends by itself."
        ),
    )
    budget: Budget | None = None
    """Budget of all networks of the entry together, in addition to `max_trials`. Networks that were
    proposed before it is spent continue.
    """
    repeats: Repeats = 1
    """Number of networks that are trained with the values of each trial, with different seeds. The
    sampler receives their mean, and they are pruned together. `max_trials` and `max_concurrent`
    count trials; a budget counts all networks.
    """
    max_concurrent: Positive | Literal["auto"] = "auto"
    """Maximum number of active trials (neither finished nor paused) of the entry. auto: as many
    networks as there are trainers, and at least two more than are training, so that the next
    network is ready before GPUs become free.
    """
    objectives: tuple[Objective, ...] = ()
    """Objectives, if you optimize more than `train.stopping.monitor`. The first objective replaces
    the monitor: it decides which epoch is the best, and networks are reported and pruned by it. The
    sampler receives the values of all objectives.
    """
    constraints: tuple[str, ...] = ()
    """Conditions that a network should meet: NAME <= NUMBER, or with >=, < or >. NAME is what an
    objective may name. Reports leave out networks that violate one when they name the best. tpe,
    gp, nsgaii and your own class with a parameter `violations` of `tell` avoid such networks.
    """
    warm_start: tuple[str, ...] = ()
    """Folders of earlier runs, and files of trials that `fleet import` wrote. Before its first
    proposal the sampler receives their results whose values lie in the space. A relative path is
    relative to the current folder or, if nothing is there, to the folder of the spec.
    """
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the sampler, by name. For a sampler of Optuna also `pruner` and
    `pruner_options`.
    """
    seed: Annotated[int, Field(ge=0), NO_FLAG] = 0
    """Seed of the sampler's random choices."""
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        default=60.0, json_schema_extra={"default": "1min"}
    )
    """Time limit for one call of the sampler. Networks keep training during the call; a network at
    the end of an epoch waits for the answer. A sampler that takes longer is not called again in
    this launch.
    """

    @model_validator(mode="before")
    @classmethod
    def _move_constraints(cls, data: Any) -> Any:
        """Take the constraints from the options of a sampler of Optuna."""
        keys = data.kwargs if isinstance(data, ArgsKwargs) else data
        if not isinstance(keys, Mapping) or keys.get("sampler") not in [*OPTUNA_SAMPLERS]:
            return data
        options = keys.get("options")
        if not isinstance(options, Mapping) or "constraints" not in options:
            return data
        if "constraints" in keys:
            raise ValueError("needs `constraints:` or `options: {constraints: [...]}`, not both")
        remaining = {key: value for key, value in options.items() if key != "constraints"}
        return {**keys, "options": remaining, "constraints": options["constraints"]}

    @model_validator(mode="after")
    def _check_end(self) -> Search:
        if self.max_trials is None and self.budget is None and self.sampler != "grid":
            raise ValueError("needs a limit: `max_trials:` or a `budget:`")
        folders = [os.path.normpath(run) for run in self.warm_start]
        if len(set(folders)) < len(folders):
            duplicate = next(
                run
                for run, path in zip(self.warm_start, folders, strict=True)
                if folders.count(path) > 1
            )
            raise ValueError(f"warm_start: {duplicate} is listed twice; list each run once")
        return self

    @property
    def limit(self) -> int:
        """The largest number of trials."""
        if self.max_trials is None:
            return MAX_TRIALS
        return self.max_trials

    @property
    def prunes(self) -> bool:
        """Whether its sampler may prune networks itself."""
        if self.sampler in OPTUNA_SAMPLERS:
            return "pruner" in self.options
        return ":" in self.sampler


@dataclass(frozen=True)
class PruningRule:
    """The description of a pruning rule.

    Args:
        name: the name in specs.
        make: makes the pruner of a run from (:class:`Prune`, the largest number of epochs of a
            network, a seed): a class or function that returns a
            :class:`fleet.search.pruning.Pruner`, or its import path. In the table the path begins
            with a dot and is relative to :mod:`fleet.search`.
        help: what it does, in a sentence without a period.
        reads: the keys of `prune` that it reads.
        compares: whether it compares networks, so that all must have the same monitor.
        obeys: whether decisions of a sampler are carried out as well.

    A rule of your own also reads ``options``, further arguments of ``make`` by name.
    """

    name: str
    make: str | Callable[[Prune, int, int], Any]
    help: str = ""
    reads: tuple[str, ...] = ()
    compares: bool = True
    obeys: bool = True


RULES: Mapping[str, PruningRule] = {
    rule.name: rule
    for rule in (
        PruningRule(
            "auto",
            ".evidence:Evidence",
            "at growing numbers of epochs (rungs) as many of the best networks continue as the "
            "measured rank correlation with later rungs demands",
            ("min_epochs", "on_fail"),
        ),
        PruningRule(
            "asha",
            ".pruning:make_asha",
            "after min_epochs · factor^k epochs (a rung) only the best 1/factor of the networks "
            "that reached the rung continue",
            ("min_epochs", "factor", "on_fail", "synchronous"),
        ),
        PruningRule(
            "hyperband",
            ".pruning:make_hyperband",
            "asha in several brackets, each of which starts pruning later than the previous one",
            ("min_epochs", "factor", "on_fail", "synchronous"),
        ),
        PruningRule(
            "median",
            ".pruning:Median",
            "networks that are worse than the median of the others after the same number of epochs "
            "are pruned",
            ("min_epochs", "min_trials", "synchronous"),
        ),
        PruningRule(
            "learning_curve",
            ".curves:Curves",
            "networks whose learning curve, extrapolated by a power law, would end worse than the "
            "best finished network are pruned",
            ("min_epochs", "min_trials"),
        ),
        PruningRule(
            "searcher",
            ".pruning:NoPruning",
            "only samplers prune, each its own networks",
            compares=False,
        ),
        PruningRule(
            "none",
            ".pruning:NoPruning",
            "no network is pruned, and decisions of samplers are ignored",
            compares=False,
            obeys=False,
        ),
    )
}


def _for(setting: str) -> str:
    """Name the rules that read a key; other rules reject it."""
    *names, last = [name for name, rule in RULES.items() if setting in rule.reads]
    return f"Only for {', '.join(names) + ' and ' if names else ''}{last}."


RuleName = Annotated[str, named(RULES)]


@section
class Prune:
    """The rule by which networks of the run are paused or pruned before they finish."""

    rule: RuleName = Field(
        default="searcher",
        description=(
            "Pruning rule, or the import path of your own. "
            + " ".join(f"{name}: {rule.help}." for name, rule in RULES.items())
            + " If a sampler decides as well, the stricter decision applies."
        ),
    )
    min_epochs: Positive = Field(
        default=1,
        description=(
            "Number of epochs that every network trains before it can be pruned. "
            + _for("min_epochs")
        ),
    )
    factor: Annotated[int, Field(ge=2), NO_FLAG] = Field(
        default=3,
        description=(
            "One in `factor` networks continues at each rung, and the next rung is at `factor` "
            "times as many epochs. " + _for("factor")
        ),
    )
    on_fail: Literal["pause", "stop"] = Field(
        default="pause",
        description=(
            "What happens to a network that is not among the best at a rung. pause: it is paused, "
            "and resumes if it is among the best later on. stop: it is pruned. " + _for("on_fail")
        ),
    )
    synchronous: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description=(
            "false: each network is compared when it reaches a rung. true: networks wait until all "
            "have reached the rung, so that the result does not depend on speed. "
            + _for("synchronous")
        ),
    )
    min_trials: Positive = Field(
        default=5,
        description=(
            "Number of other networks that must have reached an epoch before a network is pruned "
            "there; for learning_curve, number that must have finished. " + _for("min_trials")
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of a rule of your own, by name.",
    )


_KEYS = tuple(field.name for field in dataclass_fields(Prune) if field.name != "rule")


def _with_rule_key(value: Any) -> Any:
    if isinstance(value, str):
        return {"rule": value}
    if not isinstance(value, Mapping | Prune):
        raise ValueError("it should be the name of a rule, or a mapping with the key rule")
    return value


# A rule's name stands for the rule with its defaults.
PruneOrRule = Annotated[
    Prune,
    BeforeValidator(_with_rule_key),
    OrName(
        ({"enum": list(RULES)}, IMPORT_PATH),
        "The rule by which networks of the run are paused or pruned before they finish: its name, "
        "which stands for its defaults, or a mapping.",
    ),
]


def find_rule(name: str) -> PruningRule:
    """Find the pruning rule with a name or an import path ``module:rule``.

    Returns:
        The rule, under that name. A custom class or function reads all keys. Each rule that is not
        built in takes `options`, whether it lists them or not.

    Raises:
        UserError: no rule has this name, or the import path leads to something else.

    >>> find_rule("median").reads
    ('min_epochs', 'min_trials', 'synchronous')
    """
    if name in RULES:
        return RULES[name]
    with UserCode().running():
        rule = load_named(name, "rule", RULES, "rule")
    if isinstance(rule, PruningRule):
        return replace(rule, name=name, reads=tuple(map(new_prune_key, rule.reads)))
    if not callable(rule):
        raise UserError(
            f"rule {name!r} is of type {type(rule).__name__}; it should be a PruningRule, or a "
            "class with the arguments (prune, most_epochs, seed)"
        )
    return PruningRule(name, rule, reads=_KEYS)


def find_wrong_options(rule: PruningRule, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with the options of a rule of your own, and what would be right.

    Args:
        rule: the rule.
        options: further arguments of the function or class that makes it, by name.

    Raises:
        UserError: the function or class cannot be loaded.
    """
    make: Any = rule.make
    with UserCode().running():
        if isinstance(make, str):
            make = load_object(make, "rule")
        try:
            parameters = list(inspect.signature(make).parameters.values())
        except (TypeError, ValueError):  # a class of C code may have no signature
            return None
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    accepted = {parameter.name: parameter.default for parameter in parameters[3:]}
    unknown = [name for name in options if name not in accepted]
    required = [name for name, default in accepted.items() if default is inspect.Parameter.empty]
    missing = [name for name in required if name not in options]
    names = ", ".join(accepted)
    right = f"its options are {names}" if accepted else "it has no options"
    if unknown:
        close = difflib.get_close_matches(unknown[0], accepted, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{rule.name} has no option {unknown[0]!r}", hint + right
    if missing:
        return f"{rule.name} needs the option {missing[0]!r}", right
    return None
