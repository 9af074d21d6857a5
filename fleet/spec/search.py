"""The keys of a search: who asks for networks, how many, and by which rule they are dropped."""

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
from fleet.spec.fields import IMPORT_PATH, NO_FLAG, AboveZero, Duration, OneOf, Positive, written_as
from fleet.spec.old_keys import new_prune_key
from fleet.vocabulary.measures import UP, direction_of
from preprocess.user_code import UserCode

Mode: TypeAlias = Literal["maximize", "minimize"]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

MOST_ASKED = 10_000  # by one entry; more are a slip of the keyboard, as in a count


@dataclass(frozen=True, config=_STRICT)
class Budget:
    """What the networks of a search may cost. Once it is spent, no more are asked for or promoted."""

    epochs: Positive | None = Field(
        default=None, description="Number of epochs, over all networks of the entry."
    )
    gpu_hours: AboveZero | None = Field(
        default=None, description=("Hours of GPUs that train them, over all networks of the entry.")
    )

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.epochs is None and self.gpu_hours is None:
            raise ValueError("needs `epochs:` or `gpu_hours:`, or both")
        return self


# What a network may be judged by beside what it learns, and which of it is good.
OF_NETWORKS: Mapping[str, Mode] = {
    "parameters": "minimize",
    "rate": "maximize",
    "epochs": "minimize",
    "seconds": "minimize",
}


@dataclass(frozen=True, config=_STRICT)
class Objective:
    """Something that the networks of a search should be good in."""

    value: str = Field(
        description=(
            "What counts: loss, accuracy or a metric, with val_ before it that of the validation data, in the network's "
            "best epoch; or parameters (how many weights it has), rate (samples/s on one GPU), epochs or seconds (how long "
            "it has trained). The first must be a loss, an accuracy or a metric."
        )
    )
    mode: Mode | None = Field(
        default=None,
        description=(
            "Whether high or low values are good. Without it, as the value says; only a metric of your own needs it."
        ),
    )

    @property
    def sense(self) -> Mode | None:
        """Whether high or low values are good; None where nobody can tell, of a metric of one's own."""
        if self.mode is not None or self.value in OF_NETWORKS:
            return self.mode or OF_NETWORKS[self.value]
        direction = direction_of(self.value)
        if direction is None:
            return None
        if direction == UP:
            return "maximize"
        return "minimize"


@dataclass(frozen=True, config=_STRICT)
class Search:
    """Who asks for the networks of an entry, and how many."""

    sampler: str = Field(
        default="random",
        description=(
            "Who chooses from the space: random, grid (all combinations, in order), or the import path of a class of your "
            "own. Its module may stand beside the spec."
        ),
    )
    max_trials: Annotated[int, Field(ge=1, le=MOST_ASKED), NO_FLAG] | None = Field(
        default=None,
        description=(
            f"Largest number of networks that are asked for; {MOST_ASKED} without it. Either it or `budget` must be given, "
            "except for grid, which ends by itself."
        ),
    )
    budget: Budget | None = Field(
        default=None,
        description=(
            "What all networks of the entry may cost together, beside `max_trials`. What was asked for by then goes on."
        ),
    )
    max_concurrent: Positive | Literal["auto"] = Field(
        default="auto",
        description=(
            "How many networks of the entry there may be that are neither done nor paused. auto: as many as there are "
            "trainers, and at least two more than train, so that the next one is known before GPUs are free."
        ),
    )
    objectives: tuple[Objective, ...] = Field(
        default=(),
        description=(
            "What counts, if it is not only what `train.stopping.monitor` says. The first takes its place: it decides "
            "which epoch is the best, and networks are reported and pruned by it. Of several, the class is told all."
        ),
    )
    warm_start: tuple[str, ...] = Field(
        default=(),
        description=(
            "Folders of earlier runs. What their networks came to is told to the class before it is asked, as far as their "
            "values fit the space."
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description=("Further arguments of the class, by name.")
    )
    seed: Annotated[int, Field(ge=0), NO_FLAG] = Field(
        default=0, description=("Seed of all that is random in the choice.")
    )
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        default=60.0,
        json_schema_extra=written_as("1min"),
        description=(
            "Time that one call of the class may take. Networks that train go on meanwhile; a network whose "
            "epoch has ended waits for the answer. A class that takes longer is not called again in this launch."
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
                for run, place in zip(self.warm_start, places, strict=True)
                if places.count(place) > 1
            )
            raise ValueError(f"warm_start: {twice} is named twice; name each run once")
        return self

    @property
    def limit(self) -> int:
        """How many networks are asked for at most."""
        if self.max_trials is None:
            return MOST_ASKED
        return self.max_trials


@plain_dataclass(frozen=True)
class PruningRule:
    """A rule by which networks are paused and dropped, and all that others must know of it.

    Args:
        name: as specs call it.
        make: makes the rule of a run from (:class:`Prune`, the most epochs that a network may train, a seed): a class
            or function that gives a :class:`fleet.search.pruning.Pruner`, or its import path. In the table the path is
            relative to :mod:`fleet.search`, and begins with a dot.
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
            "at least · factor^k epochs only the best 1/factor of those that have come there go on",
            ("min_epochs", "factor", "on_fail", "synchronous"),
        ),
        PruningRule(
            "hyperband",
            ".pruning:make_hyperband",
            "asha in several brackets, each of which begins to judge later than the one before",
            ("min_epochs", "factor", "on_fail", "synchronous"),
        ),
        PruningRule(
            "median",
            ".pruning:Median",
            "those that are worse than the median of the others after as many epochs are pruned",
            ("min_epochs", "min_trials", "synchronous"),
        ),
        PruningRule(
            "learning_curve",
            ".curves:Curves",
            "those whose learning curve, continued as a power law, ends below the best network that was trained to "
            "its end are pruned",
            ("min_epochs", "min_trials"),
        ),
        PruningRule(
            "searcher",
            ".pruning:NoPruning",
            "only the class of a search judges its networks",
            compares=False,
        ),
        PruningRule(
            "none",
            ".pruning:NoPruning",
            "nothing is pruned, whatever the class of a search answers",
            compares=False,
            obeys=False,
        ),
    )
}


def _for(setting: str) -> str:
    """Which rules read a key; for others it is a mistake."""
    *others, last = [name for name, rule in RULES.items() if setting in rule.reads]
    return f"Only for {', '.join(others) + ' and ' if others else ''}{last}."


RuleName = Annotated[str, OneOf(lambda: [{"enum": list(RULES)}, IMPORT_PATH])]


@dataclass(frozen=True, config=_STRICT)
class Prune:
    """By which rule networks are paused or dropped before they are done: all networks of the run."""

    rule: RuleName = Field(
        default="searcher",
        description=(
            "The rule, or the import path of your own. "
            + " ".join(f"{name}: {rule.help}." for name, rule in RULES.items())
            + " Where the class of a search judges as well, the stricter answer holds."
        ),
    )
    min_epochs: Positive = Field(
        default=1,
        description=(
            "Number of epochs that every network may train before it is judged. "
            + _for("min_epochs")
        ),
    )
    factor: Annotated[int, Field(ge=2), NO_FLAG] = Field(
        default=3,
        description=(
            "One in so many networks goes on at each rung, and the next rung is so many times as far. "
            + _for("factor")
        ),
    )
    on_fail: Literal["pause", "stop"] = Field(
        default="pause",
        description=(
            "What happens to a network that is not among the best at a rung. pause: it is paused, and resumes if it "
            "is among the best later. stop: it is pruned. " + _for("on_fail")
        ),
    )
    synchronous: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description=(
            "false: networks are compared as they reach a rung. true: they wait until all networks have reached it, so "
            "that the winners do not depend on speed. " + _for("synchronous")
        ),
    )
    min_trials: Positive = Field(
        default=5,
        description=(
            "Number of other networks that must have come as far before one is judged; for learning_curve, to their end. "
            + _for("min_trials")
        ),
    )


_KEYS = tuple(field.name for field in dataclass_fields(Prune) if field.name != "rule")


def find_rule(name: str) -> PruningRule:
    """The rule of a name, or of an import path ``module:rule``.

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
        found = load_named(name, "rule", RULES, "rule")
    if isinstance(found, PruningRule):
        return replace(found, name=name, reads=tuple(map(new_prune_key, found.reads)))
    if not callable(found):
        raise UserError(
            f"rule {name!r} is of type {type(found).__name__}; it should be a PruningRule, or a class that "
            "is made of (prune, most_epochs, seed)"
        )
    return PruningRule(name, found, reads=_KEYS)
