"""Samplers and pruners of Optuna (Akiba et al., KDD 2019) as a searcher.

The study is in memory: the log of the run is its storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GridSampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
)
from optuna.trial import Trial, TrialState

from fleet.errors import SearchKeyError, UserError
from fleet.search.optuna_options import build, without_warnings
from fleet.spec.conditions import dependency_order, is_active
from fleet.spec.dimensions import (
    Dimension,
    Member,
    Range,
    Space,
    different,
    key_of_value,
    normal_form,
    values_of,
)
from fleet.spec.drawing import members
from fleet.spec.enumeration import endless_name, size_of
from fleet.spec.model import one_line
from fleet.spec.search import MAX_TRIALS, OPTUNA_SAMPLERS, Mode

optuna.logging.set_verbosity(optuna.logging.WARNING)

_MAX_REPEATED = 20  # draws that repeat an earlier network, before another member is taken
_WITHOUT_CONSTRAINTS = (BruteForceSampler, CmaEsSampler, GridSampler, QMCSampler, RandomSampler)
# Samplers that propose a part of the space only.
_PARTIAL = (BruteForceSampler, GridSampler, PartialFixedSampler)
# Options of samplers with values, or lists of values, of the keys of the space.
_OF_SPACE = ("fixed_params", "search_space", "x0")


class OptunaSearcher:
    """Proposes trials of an Optuna study, and reports their results to it.

    Args:
        word: the sampler in the spec, a key of :data:`fleet.spec.search.OPTUNA_SAMPLERS`.
        space: the space of the search.
        seed: the seed of the sampler.
        mode: ``maximize`` or ``minimize``; a tuple for several objectives.
        options: those of the spec: ``sampler``, ``pruner`` and ``pruner_options``; all others are
            arguments of the sampler.

    Raises:
        SearchKeyError: an option is wrong, or a package is missing.

    Attributes:
        study: the study.
        uses_constraints: whether proposals depend on violations of constraints.
    """

    def __init__(
        self,
        word: str,
        space: Space,
        seed: int,
        mode: Mode | tuple[Mode, ...],
        options: Mapping[str, Any],
    ) -> None:
        self._space = space
        self._seed = seed
        self._modes = [mode] if isinstance(mode, str) else list(mode)
        # in the order in which the sampler chooses values
        self._dimensions = {
            name: _OptunaDimension(name, space[name]) for name in dependency_order(space)
        }
        pruner = self._make_pruner(options)
        self._prunes = pruner is not None
        self.judges = self._prunes  # see fleet.search.searcher.may_judge
        # The first sampler is only tried: it must not draw from the numbers of the second.
        self._try(self._make_sampler(word, options), options)
        sampler = self._make_sampler(word, options)
        self.uses_constraints = not isinstance(
            getattr(sampler, "_base_sampler", sampler), _WITHOUT_CONSTRAINTS
        )
        self.study = optuna.create_study(
            study_name="fleet",  # some pruners hash it
            directions=self._modes,
            sampler=sampler,
            pruner=pruner or NopPruner(),
        )
        # Samplers of a finite set of trials stop the study after the last one, which Optuna allows
        # in its own loop only.
        self.study.stop = self._stop  # type: ignore[method-assign]
        self._is_over = False
        # Combinations of all keys; conditions make some of them equal.
        sizes = [len(dimension.values) or 1 for dimension in self._dimensions.values()]
        self._combinations = min(MAX_TRIALS, math.prod(sizes))
        self._trials: dict[int, Trial] = {}
        self._prior_numbers = set[int]()
        self._proposed = set[str]()
        self._remaining: Iterator[Member] | None = None

    # ---- construction ----

    def _make_pruner(self, options: Mapping[str, Any]) -> BasePruner | None:
        settings = options.get("pruner_options") or {}
        path = ("options", "pruner_options")
        if not isinstance(settings, Mapping):
            raise SearchKeyError(path, repr(settings), "it should be a mapping of its options")
        name = options.get("pruner")
        if name is None:
            if settings:
                raise SearchKeyError(path, "there is no pruner", "add `pruner: NAME`")
            return None
        pruner: BasePruner = build(
            "pruner", name, settings, path, {}, name_path=("options", "pruner")
        )
        if isinstance(pruner, NopPruner):
            return None
        if len(self._modes) > 1:
            raise SearchKeyError(
                ("options", "pruner"),
                "Optuna's pruners judge one objective, and there are several",
                "use a rule of `prune:`, which judges the first one",
            )
        return pruner

    def _make_sampler(self, word: str, options: Mapping[str, Any]) -> BaseSampler:
        settings = {
            key: value
            for key, value in options.items()
            if key not in ("sampler", "pruner", "pruner_options")
        }
        name: Any = OPTUNA_SAMPLERS[word]
        name_path: tuple = ("sampler",)
        if not name:
            name = options.get("sampler", "tpe")
            name_path = ("options", "sampler")
        elif "sampler" in options:
            raise SearchKeyError(
                ("options", "sampler"),
                f"`sampler: {word}` names the sampler",
                "use `sampler: optuna` with this option, or leave it out",
            )
        for key in _OF_SPACE:
            if isinstance(settings.get(key), Mapping):
                settings[key] = self._encoded(settings[key], ("options", key))
        search_space: Mapping[str, Any]
        if isinstance(name, str) and ":" in name:
            search_space = {key: item.distribution for key, item in self._dimensions.items()}
        else:  # Optuna's grid
            search_space = {key: item.values for key, item in self._dimensions.items()}
        context = {"seed": self._seed, "search_space": search_space}
        sampler: BaseSampler = build(
            "sampler", name, settings, ("options",), context, name_path=name_path
        )
        return sampler

    def _encoded(self, values: Mapping[Any, Any], path: tuple) -> dict[str, Any]:
        """Return values, or lists of values, by keys of the space, in the form that Optuna gets."""
        result = {}
        for name, value in values.items():
            if name not in self._dimensions:
                right = f"the keys of the space are {', '.join(self._dimensions)}"
                raise SearchKeyError((*path, name), f"the space has no {name!r}", right)
            is_list = path[-1] == "search_space" and isinstance(value, list)
            try:
                encoded = [*map(self._dimensions[name].encode, value if is_list else [value])]
            except UserError as error:
                raise SearchKeyError((*path, name), str(error)) from error
            result[name] = encoded if is_list else encoded[0]
        return result

    def _try(self, sampler: BaseSampler, options: Mapping[str, Any]) -> None:
        """Ask a sampler once, since many refuse a space or several objectives only then."""
        endless = endless_name(self._space)
        if isinstance(sampler, GridSampler) and "search_space" not in options and endless:
            raise SearchKeyError(
                ("space", endless),
                "Optuna's grid needs lists, ranges of integers, and steps",
                "give the values by `search_space` in the options, or use another sampler",
            )
        study = optuna.create_study(directions=self._modes, sampler=sampler)
        try:
            self._suggest(study.ask())
        except Exception as error:  # samplers raise anything
            name = type(sampler).__name__
            wrong = f"{name} cannot search here: {one_line(error)}"
            raise SearchKeyError(("sampler",), wrong, "use another sampler") from error

    # ---- the protocol of searchers ----

    def ask(self, number: int) -> Member | None:
        """Propose a network that differs from all others; None if there is none left."""
        if self._is_over or len(self._proposed) >= size_of(self._space):
            return None
        is_partial = isinstance(self.study.sampler, _PARTIAL)
        for _ in range(_MAX_REPEATED + is_partial * self._combinations):
            trial = self.study.ask()
            values = self._suggest(trial)
            if self._is_new(values):
                self._trials[number] = trial
                return values
            self.study.tell(trial, state=TrialState.FAIL)
            if self._is_over:
                return None
        if is_partial:
            self._is_over = True
            return None
        if self._remaining is None:
            self._remaining = members(self._space, self._seed)
        values = next(filter(self._is_new, self._remaining))
        self._trials[number] = self._ask_for(values)
        return values

    def add_prior_trial(self, number: int, values: Mapping[str, Any]) -> None:
        """Add a network of an earlier run, or of another searcher of this run."""
        self._trials[number] = self._ask_for(values)
        self._prior_numbers.add(number)
        self._is_new(values)

    def report(self, number: int, epoch: int, value: float) -> str:
        """Return the verdict of the pruner, if there is one."""
        if len(self._modes) > 1 or math.isnan(value):  # a later epoch may have a value
            return "go_on"
        trial = self._trials[number]
        trial.report(value, epoch)
        if self._prunes and trial.should_prune():
            return "stop"
        return "go_on"

    def tell(self, number: int, outcome: str, value: Any, violations: Sequence[float] = ()) -> None:
        """Tell the study how a network ended, and by how much it violates constraints."""
        trial = self._trials.pop(number)
        values = [value] if len(self._modes) == 1 else list(value or ())
        is_measured = all(
            item is not None and not math.isnan(item) for item in (*values, *violations)
        )
        state = TrialState.FAIL
        if outcome == "pruned":
            state = TrialState.PRUNED
        elif outcome == "finished" and values and is_measured:
            state = TrialState.COMPLETE
        if state is not TrialState.FAIL:
            for index, violation in enumerate(violations):
                if not math.isnan(violation):
                    trial.set_constraint(str(index), violation)
        sampler = self.study.sampler
        if number in self._prior_numbers:  # it would look for its own marks
            self.study.sampler = RandomSampler(seed=0)
        is_complete = state is TrialState.COMPLETE
        try:
            with without_warnings():
                self.study.tell(trial, values if is_complete else None, state=state)
        finally:
            self.study.sampler = sampler

    # ---- trials ----

    def _is_new(self, values: Mapping[str, Any]) -> bool:
        """Record values; return False if they were proposed before."""
        key = key_of_value(dict(values))
        is_new = key not in self._proposed
        self._proposed.add(key)
        return is_new

    def _suggest(self, trial: Trial) -> Member:
        """Let the sampler choose the values of a trial: key by key, of the used ones."""
        values: Member = {}
        for name, dimension in self._dimensions.items():
            if is_active(self._space[name], values):
                values[name] = dimension.suggest(trial)
        return {name: values[name] for name in self._space if name in values}

    def _ask_for(self, values: Mapping[str, Any]) -> Trial:
        """Return a trial with these values, about which the sampler is not asked."""
        sampler = self.study.sampler
        fixed = {name: self._dimensions[name].encode(value) for name, value in values.items()}
        with without_warnings():
            self.study.sampler = PartialFixedSampler(fixed, RandomSampler(seed=0))
        try:
            trial = self.study.ask()
            self._suggest(trial)
        finally:
            self.study.sampler = sampler
        return trial

    def _stop(self) -> None:
        self._is_over = True


class _OptunaDimension:
    """A dimension of a space as Optuna sees it.

    Choices that Optuna would confuse or not store (lists, mappings; 1, 1.0 and true) become text.

    Args:
        name: the key.
        dimension: its values.

    Attributes:
        distribution: the distribution of Optuna.
        values: all values in the form that Optuna gets; empty for real numbers.
    """

    def __init__(self, name: str, dimension: Dimension) -> None:
        self._name = name
        self._dimension = dimension
        self._encode: Callable[[Any], Any] = _as_it_is
        self.distribution: BaseDistribution
        if isinstance(dimension, Range):
            low = dimension.low
            high = dimension.high if dimension.step is None else dimension.last
            if dimension.integer:
                step = int(dimension.step or 1)
                self.distribution = IntDistribution(int(low), int(high), dimension.log, step)
            else:
                self.distribution = FloatDistribution(low, high, dimension.log, dimension.step)
            self.values = list(values_of(dimension)) if dimension.is_finite else []
            return
        choices = different(dimension)
        is_plain = all(
            item is None or isinstance(item, bool | int | float | str) for item in choices
        )
        if not is_plain or len(set(choices)) < len(choices):
            self._encode = key_of_value
        self._choices = {self._encode(item): item for item in choices}
        self.values = list(self._choices)
        self.distribution = CategoricalDistribution(self.values)

    def encode(self, value: Any) -> Any:
        """Return a value of the space in the form that Optuna gets.

        Raises:
            UserError: the space does not have it.
        """
        return self._encode(normal_form(self._name, self._dimension, value))

    def suggest(self, trial: Trial) -> Any:
        """Let the sampler choose a value of the space."""
        match self.distribution:
            case FloatDistribution() as real:
                value: Any = trial.suggest_float(
                    self._name, real.low, real.high, step=real.step, log=real.log
                )
            case IntDistribution() as whole:
                value = trial.suggest_int(
                    self._name, whole.low, whole.high, step=whole.step, log=whole.log
                )
            case _:
                value = self._choices[trial.suggest_categorical(self._name, self.values)]
        return normal_form(self._name, self._dimension, value)


def _as_it_is(value: Any) -> Any:
    return value
