"""The keys of a search and of pruning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from fleet.errors import UserError
from fleet.plugins import load_named
from fleet.spec.fields import (
    IMPORT_PATH,
    NO_FLAG,
    AboveZero,
    Duration,
    OneOf,
    Positive,
    default_text,
)
from fleet.spec.old_keys import new_prune_key
from fleet.vocabulary.measures import UP, direction_of
from preprocess.user_code import UserCode

Mode: TypeAlias = Literal["maximize", "minimize"]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

MAX_TRIALS = 10_000  # of one entry; more are a typo, as in a count


@dataclass(frozen=True, config=_STRICT)
class Budget:
    """The budget of a search. Once it is spent, no more networks are proposed or resumed."""

    epochs: Positive | None = Field(
        default=None, description=("Number of epochs over all networks of the entry.")
    )
    gpu_hours: AboveZero | None = Field(
        default=None, description=("GPU hours over all networks of the entry.")
    )

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.epochs is None and self.gpu_hours is None:
            raise ValueError("needs `epochs:` or `gpu_hours:`, or both")
        return self


# Objectives besides losses and metrics, and what is better.
NETWORK_OBJECTIVES: Mapping[str, Mode] = {
    "parameters": "minimize",
    "rate": "maximize",
    "epochs": "minimize",
    "seconds": "minimize",
}


@dataclass(frozen=True, config=_STRICT)
class Objective:
    """A quantity that a search maximizes or minimizes."""

    value: str = Field(
        description=(
            "Quantity to optimize: loss, accuracy or a metric in the network's best epoch, with "
            "val_ in front for validation data; or parameters (number of weights), rate (samples/s "
            "on one GPU), epochs or seconds (training time). The first objective must be a loss, "
            "an accuracy or a metric."
        )
    )
    mode: Mode | None = Field(
        default=None,
        description=("Whether to maximize or minimize it. Only needed for your own metrics."),
    )

    @property
    def sense(self) -> Mode | None:
        """Whether the objective is maximized or minimized; None if unknown."""
        if self.mode is not None or self.value in NETWORK_OBJECTIVES:
            return self.mode or NETWORK_OBJECTIVES[self.value]
        direction = direction_of(self.value)
        if direction is None:
            return None
        if direction == UP:
            return "maximize"
        return "minimize"


@dataclass(frozen=True, config=_STRICT)
class Search:
    """A search: what proposes the networks of an entry, and how many."""

    sampler: str = Field(
        default="random",
        description=(
            "What proposes values from the space: random, grid (all combinations, in order), or "
            "the import path of your own class. Its module may be next to the spec."
        ),
    )
    max_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), NO_FLAG] | None = Field(
        default=None,
        description=(
            f"Maximum number of trials; {MAX_TRIALS} by default. Either it or `budget` must be "
            f"given, "
            "except for grid, which ends by itself."
        ),
    )
    budget: Budget | None = Field(
        default=None,
        description=(
            "Budget of all networks of the entry together, in addition to `max_trials`. Networks "
            "proposed before it is spent go on."
        ),
    )
    max_concurrent: Positive | Literal["auto"] = Field(
        default="auto",
        description=(
            "Maximum number of active networks (neither finished nor paused) of the entry. auto: "
            "as many as there are trainers, and at least two more than train, so that the next one "
            "is known before GPUs become free."
        ),
    )
    objectives: tuple[Objective, ...] = Field(
        default=(),
        description=(
            "Objectives, if there is more than `train.stopping.monitor`. The first one replaces "
            "it: it decides which epoch is the best, and networks are reported and pruned by it. "
            "The sampler is told all values."
        ),
    )
    warm_start: tuple[str, ...] = Field(
        default=(),
        description=(
            "Folders of earlier runs. Their results are passed to the sampler before its first "
            "proposal, as far as the values fit the space."
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description=("Further arguments of the sampler, by name.")
    )
    seed: Annotated[int, Field(ge=0), NO_FLAG] = Field(
        default=0, description=("Seed of the sampler's random choices.")
    )
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        default=60.0,
        json_schema_extra=default_text("1min"),
        description=(
            "Time limit for one call of the sampler. Meanwhile networks keep training; a network "
            "at the end of an epoch waits for the answer. A sampler that takes longer is not "
            "called again in this launch."
        ),
    )

    @model_validator(mode="after")
    def _ends(self) -> Search:
        if self.max_trials is None and self.budget is None and self.sampler != "grid":
            raise ValueError("needs an end: `max_trials:` or a `budget:`")
        places = [os.path.normpath(run) for run in self.warm_start]
        if len(set(places)) < len(places):
            twice = next(
                run
                for run, path in zip(self.warm_start, places, strict=True)
                if places.count(path) > 1
            )
            raise ValueError(f"warm_start: {twice} is named twice; name each run once")
        return self

    @property
    def limit(self) -> int:
        """The largest number of trials."""
        if self.max_trials is None:
            return MAX_TRIALS
        return self.max_trials


@plain_dataclass(frozen=True)
class PruningRule:
    """The description of a pruning rule.

    Args:
        name: as specs call it.
        make: makes the rule of a run from (:class:`Prune`, the most epochs that a network may
            train, a seed): a class or function that gives a :class:`fleet.search.pruning.Pruner`,
            or its import path. In the table the path is relative to :mod:`fleet.search`, and begins
            with a dot.
        help: what it does, in a sentence without a full stop.
        reads: the keys of `prune` that mean something to it.
        compares: whether it compares networks, so that all must monitor the same.
        obeys: whether what the class of a search answers is done as well.
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
            "asha",
            ".pruning:make_asha",
            "at min_epochs · factor^k epochs only the best 1/factor of the networks that reached "
            "it continue",
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
            "networks worse than the median of the others after as many epochs are pruned",
            ("min_epochs", "min_trials", "synchronous"),
        ),
        PruningRule(
            "learning_curve",
            ".curves:Curves",
            "networks whose learning curve, extrapolated as a power law, ends below the best "
            "finished network are pruned",
            ("min_epochs", "min_trials"),
        ),
        PruningRule(
            "searcher",
            ".pruning:NoPruning",
            "only a sampler prunes its own networks",
            compares=False,
        ),
        PruningRule(
            "none",
            ".pruning:NoPruning",
            "nothing is pruned, whatever a sampler answers",
            compares=False,
            obeys=False,
        ),
    )
}


def _for(setting: str) -> str:
    """Name the rules that read a key; other rules reject it."""
    *names, last = [name for name, rule in RULES.items() if setting in rule.reads]
    return f"Only for {', '.join(names) + ' and ' if names else ''}{last}."


RuleName = Annotated[str, OneOf(lambda: [{"enum": list(RULES)}, IMPORT_PATH])]


@dataclass(frozen=True, config=_STRICT)
class Prune:
    """The rule by which networks of the run are paused or pruned before they finish."""

    rule: RuleName = Field(
        default="searcher",
        description=(
            "Pruning rule, or the import path of your own. "
            + " ".join(f"{name}: {rule.help}." for name, rule in RULES.items())
            + " If the sampler also decides, the stricter decision holds."
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
            "One in `factor` networks continues at each rung, and the next rung is `factor` times "
            "as far. " + _for("factor")
        ),
    )
    on_fail: Literal["pause", "stop"] = Field(
        default="pause",
        description=(
            "What happens to a network that is not among the best at a rung. pause: it is paused, "
            "and resumes if it is among the best later. stop: it is pruned. " + _for("on_fail")
        ),
    )
    synchronous: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description=(
            "false: networks are compared as they reach a rung. true: they wait until all networks "
            "have reached it, so that the winners do not depend on speed. " + _for("synchronous")
        ),
    )
    min_trials: Positive = Field(
        default=5,
        description=(
            "Number of other networks that must have reached an epoch before one is pruned there; "
            "for learning_curve, that must have finished. " + _for("min_trials")
        ),
    )


_KEYS = tuple(field.name for field in dataclass_fields(Prune) if field.name != "rule")


def find_rule(name: str) -> PruningRule:
    """Find the pruning rule with a name or an import path ``module:rule``.

    Returns:
        The rule, under that name. A class or a function of a user's own reads all keys.

    Raises:
        UserError: there is none.

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
            f"class "
            "with the arguments (prune, most_epochs, seed)"
        )
    return PruningRule(name, rule, reads=_KEYS)
