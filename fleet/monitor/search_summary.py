"""Reports of searches: trials, improvements, pruned networks, and lines of descent (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from fleet.domain.events import NetworkAdded
from fleet.domain.network import EpochRecord
from fleet.domain.objectives import objective_values, pareto_front
from fleet.domain.run import RunEpoch, RunState
from fleet.spec import Spec
from fleet.spec.constraints import violated
from fleet.spec.dimensions import Dimension, Range, Space
from fleet.spec.hyperparameters import flatten
from fleet.spec.naming import configuration_name
from fleet.spec.search import Search
from fleet.spec.train import Stopping
from fleet.storage.leaderboard import short_names
from fleet.storage.results import (
    NetworkResult,
    Status,
    common_status,
    network_facts,
    row_violations,
    without_means,
)
from fleet.terminal import brief
from fleet.units import listed
from launch.errors import pluralize

FRONT_TITLE = "Pareto front"
RUNGS_TITLE = "Pruning by epoch"

_MAX_ROWS = 12  # maximum number of rows and names in a table
_BEST = 200  # maximum number of networks in the table of a search


@dataclass(frozen=True)
class SearchTrial:
    """A network of a search, or all repeats of a configuration as one.

    Attributes:
        network: its name; without the repeat.
        number: its number within the search.
        values: values of the keys of the space.
        status: its status.
        epochs: epochs that it has trained.
        value: its best monitored value; of repeats the mean; NaN without any.
        parent: the network whose weights it started from; empty if there is none.
        parent_epoch: the epoch of the parent after which it started.
        begins: epochs trained before it, counted from its earliest ancestor.
        objectives: its value of each of several objectives; NaN if unknown.
        spread: standard deviation of ``value`` over the repeats; NaN for fewer than two.
        repeats: the repeats, the best first.
        violations: by how much it violates each constraint; at most 0 if it meets it, NaN if
            unknown.
    """

    network: str
    number: int
    values: Mapping[str, Any]
    status: Status
    epochs: int
    value: float
    parent: str = ""
    parent_epoch: int = 0
    begins: int = 0
    objectives: tuple[float, ...] = ()
    spread: float = math.nan
    repeats: tuple[SearchTrial, ...] = ()
    violations: tuple[float, ...] = ()

    @property
    def formatted_value(self) -> str:
        """The value, with its spread if it has one."""
        spread = "" if math.isnan(self.spread) else f" ± {self.spread:.2g}"
        return f"{self.value:.4g}{spread}"

    @property
    def is_feasible(self) -> bool:
        """Whether it is not known to violate a constraint."""
        return not _is_violation(self.violations)


@dataclass(frozen=True)
class Improvement:
    """A network that was better than all before, some seconds after the first launch began.

    Repeats of a configuration count as one, with the mean of their best values, once all have ended
    the epoch.
    """

    seconds: float
    network: str
    epoch: int
    value: float


@dataclass(frozen=True)
class SearchReport:
    """The report of a search, or of all networks that were added by commands.

    Attributes:
        entry: name of the entry; empty for added networks.
        monitor: the monitored column.
        is_larger_better: the direction of that column.
        space: the space of the entry.
        trials: its networks in the order of their numbers.
        improvements: each new best value; failed networks are left out, and networks that violate
            constraints.
        searcher: the sampler as the spec names it; empty for added networks.
        objectives: (name, ``maximize`` or ``minimize``), if there are several.
        origins: network -> the network whose weights it started from, in the whole run.
        constraints: the constraints as the spec writes them.
    """

    entry: str
    monitor: str
    is_larger_better: bool
    space: Space
    trials: tuple[SearchTrial, ...]
    improvements: tuple[Improvement, ...]
    searcher: str = ""
    objectives: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, NetworkAdded] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    @cached_property
    def pareto_front(self) -> tuple[SearchTrial, ...]:
        """The networks that no other network dominates, best in the first objective first."""
        candidates = [
            trial
            for trial in self.trials
            if trial.status is not Status.FAILED and trial.objectives and trial.is_feasible
        ]
        return tuple(
            candidates[index]
            for index in pareto_front(
                [trial.objectives for trial in candidates], [mode for _, mode in self.objectives]
            )
        )

    @property
    def title(self) -> str:
        """The title of its section."""
        if self.entry:
            return f"Search of {self.entry}"
        return "Networks added by commands"

    @property
    def best_network(self) -> str:
        """The best network, of repeats the best of the best configuration; empty without any."""
        if not self.improvements:
            return ""
        by_name = {trial.network: trial for trial in self.trials}
        best = by_name[self.improvements[-1].network]
        return best.repeats[0].network if best.repeats else best.network

    @property
    def line_of_descent(self) -> tuple[str, ...]:
        """The best network and its ancestors, youngest first; empty before any value."""
        line = [self.best_network] if self.improvements else []
        while line and line[-1] in self.origins and (parent := self.origins[line[-1]].parent):
            line.append(parent)
        return tuple(line)

    @cached_property
    def ranked(self) -> tuple[SearchTrial, ...]:
        """The networks that have a value, best first; networks that violate constraints last."""
        sign = -1 if self.is_larger_better else 1
        return tuple(
            sorted(
                (trial for trial in self.trials if math.isfinite(trial.value)),
                key=lambda trial: (not trial.is_feasible, sign * trial.value),
            )
        )

    @property
    def summary(self) -> str:
        """The search in a sentence or two."""
        if not self.trials:
            return (
                f"The search of {self.entry} has no networks: its sampler {self.searcher} never "
                "proposed one."
            )
        counts = Counter(str(trial.status) for trial in self.trials)
        text = f"{pluralize(len(self.trials), 'network')}: " + ", ".join(
            f"{number} {status}" for status, number in counts.items()
        )
        repeats = sum(len(trial.repeats) for trial in self.trials)
        if repeats:
            text = f"{text} (trials, with {pluralize(repeats, 'network')})"
        for index, constraint in enumerate(self.constraints):
            number = sum(trial.violations[index] > 0 for trial in self.trials if trial.violations)
            if number:
                text += f"; {number} {'violates' if number == 1 else 'violate'} {constraint}"
        if not self.improvements:
            return text
        line = "".join(
            f", from {parent} after epoch {self.origins[child].parent_epoch}"
            for child, parent in pairwise(self.line_of_descent)
        )
        best = self.improvements[-1]
        if best.network == self.best_network:
            return f"{text}. The best {self.monitor} is {best.value:.4g}, of {best.network}{line}."
        return (
            f"{text}. The best mean {self.monitor} is {best.value:.4g}, of {best.network}; its "
            f"best network is {self.best_network}{line}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the search as a dictionary for JSON."""
        names = [name for name, _ in self.objectives]
        networks = []
        for trial in self.trials:
            network: dict[str, Any] = {
                "name": trial.network,
                "number": trial.number,
                "values": dict(trial.values),
                "status": str(trial.status),
                "epochs": trial.epochs,
                "value": trial.value,
            }
            if trial.parent:
                network |= {"parent": trial.parent, "parent_epoch": trial.parent_epoch}
            if trial.repeats:
                network["spread"] = trial.spread
                network["repeats"] = [
                    {
                        "name": repeat.network,
                        "status": str(repeat.status),
                        "epochs": repeat.epochs,
                        "value": repeat.value,
                    }
                    for repeat in trial.repeats
                ]
            if self.constraints:
                network |= {
                    "violations": dict(zip(self.constraints, trial.violations, strict=False)),
                    "feasible": trial.is_feasible,
                }
            if trial.objectives:
                network["objectives"] = dict(zip(names, trial.objectives, strict=True))
            networks.append(network)
        record: dict[str, Any] = {
            "entry": self.entry,
            "monitor": self.monitor,
            "mode": "max" if self.is_larger_better else "min",
            "networks": networks,
            "best_so_far": self.improvements,
            "best_network": self.best_network,
            "line_of_descent": list(self.line_of_descent),
        }
        if self.constraints:
            record["constraints"] = list(self.constraints)
        if self.objectives:
            record |= {
                "objectives": [{"value": name, "mode": mode} for name, mode in self.objectives],
                "front": [trial.network for trial in self.pareto_front],
            }
        return record


@dataclass(frozen=True)
class RungReport:
    """The decisions about networks after a number of epochs at which some were paused or pruned.

    Attributes:
        epochs: the number of epochs.
        came: number of networks that have trained at least as many epochs.
        went_on: number of networks that have trained more epochs.
        paused: networks that are paused after these epochs now.
        pruned: network that was pruned after these epochs -> the rules that pruned it.
    """

    epochs: int
    came: int
    went_on: int
    paused: tuple[str, ...]
    pruned: Mapping[str, tuple[str, ...]]


def make_rung_reports(run: RunState, rows: Sequence[NetworkResult]) -> tuple[RungReport, ...]:
    """Return the epochs after which networks were paused or pruned, lowest first."""
    # A network pruned by a command may have finished its current epoch first.
    named = {row.name: row for row in rows}
    pruned = defaultdict[int, dict[str, tuple[str, ...]]](dict)
    for name, verdict in run.verdicts["stop"].items():
        if name in named and named[name].status is Status.PRUNED:
            pruned[named[name].epochs][name] = verdict.by
    paused = {
        name: named[name].epochs
        for name in run.verdicts["pause"]
        if name in named and named[name].status is Status.PAUSED
    }
    networks = without_means(rows)
    return tuple(
        RungReport(
            epochs,
            sum(row.epochs >= epochs for row in networks),
            sum(row.epochs > epochs for row in networks),
            tuple(name for name, at in paused.items() if at == epochs),
            pruned[epochs],
        )
        for epochs in sorted({*pruned, *paused.values()})
    )


def make_search_reports(
    spec: Spec, run: RunState, rows: Sequence[NetworkResult]
) -> tuple[SearchReport, ...]:
    """Return the searches of a run, and finally the networks that were added by commands, if any.

    Args:
        spec: the spec of the run.
        run: its state.
        rows: the table of results.
    """
    added: defaultdict[str, dict[str, NetworkAdded]] = defaultdict(dict)
    for network, addition in run.added.items():
        added[addition.entry][network] = addition
    make_report = partial(_report, spec, run, {row.name: row for row in rows})
    entries = {entry.stem: entry for entry in spec.searches.values()}
    reports = [
        make_report(
            name, networks, entries[name].space, entries[name].train_overrides, entries[name].search
        )
        for name, networks in added.items()
        if name in entries
    ]
    reports += [
        make_report(name, {}, {}, {}, entries[name].search)
        for name, search in run.searches.items()
        if name in entries
        and search.asks
        and all(addition.answer is None for addition in search.asks)
    ]
    unsearched = added.get("")
    if unsearched:
        values = _differing_settings(
            {name: _entry_settings(run.added_entries.get(name, {})) for name in unsearched}
        )
        numbered = {
            name: replace(addition, number=number, values={**values[name], **addition.values})
            for number, (name, addition) in enumerate(unsearched.items())
        }
        trains = [
            train
            for name in unsearched
            if isinstance(train := run.added_entries.get(name, {}).get("train"), Mapping)
        ]
        space = _space_of([addition.values for addition in numbered.values()])
        reports.append(make_report("", numbered, space, trains[0] if trains else {}))
    return tuple(reports)


def _entry_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an entry by dotted names, without its name and number of networks."""
    return dict(
        flatten(
            "",
            {
                key: part
                for key, part in entry.items()
                if key not in ("name", "count", "seed", "repeats")
            },
        )
    )


def _differing_settings(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each network the settings that differ between networks."""
    keys = dict.fromkeys(key for settings in values.values() for key in settings)
    differ = [
        key for key in keys if len({repr(settings.get(key)) for settings in values.values()}) > 1
    ]
    return {
        name: {key: settings[key] for key in differ if key in settings}
        for name, settings in values.items()
    }


def _space_of(values: Sequence[Mapping[str, Any]]) -> Space:
    """Return ranges and choices that contain all these values.

    >>> _space_of([{"rate": 0.5, "kernel": "a"}, {"rate": 0.7, "kernel": "b"}])["kernel"]
    ('a', 'b')
    >>> _space_of([{"rate": 0.001}, {"rate": 0.5}])["rate"].log
    True
    """
    space: Space = {}
    for key in dict.fromkeys(key for row in values for key in row):
        column = [row[key] for row in values if key in row]
        if all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in column
        ) and min(column) < max(column):
            space[key] = Range(
                min(column),
                max(column),
                log=min(column) > 0 and max(column) >= 100 * min(column),
                integer=all(isinstance(value, int) for value in column),
            )
        else:
            space[key] = tuple({repr(value): value for value in column}.values())
    return space


def _report(
    spec: Spec,
    run: RunState,
    table: Mapping[str, NetworkResult],
    name: str,
    added: Mapping[str, NetworkAdded],
    space: Space | None,
    train: Mapping[str, Any],
    search: Search | None = None,
) -> SearchReport:
    epochs = sorted(
        (epoch for epoch in run.epochs if epoch.network in added), key=attrgetter("t_s")
    )
    stopping = _stopping(spec, train, [epoch.record for epoch in epochs])
    violations = {
        network: row_violations(row, search, run)
        for network in added
        if search is not None and (row := table.get(network)) is not None
    }
    failed = {name for name in added if name in table and table[name].status is Status.FAILED}
    repeats = _repeats_of(added)
    violating = {name for name, numbers in violations.items() if _is_violation(numbers)}
    for name_of_all, of_configuration in repeats.items():
        counted = [
            violations[network]
            for network in of_configuration
            if network in violations and network not in failed
        ]
        if _is_violation(_means(counted)):
            violating.add(name_of_all)
    last_epochs = {
        row.name: row.epochs
        for row in table.values()
        if row.status in (Status.FINISHED, Status.PRUNED)
    }
    improvements, best = _improvements(epochs, stopping, failed, repeats, violating, last_epochs)
    is_larger_better = stopping.sign > 0
    objectives: list[tuple[str, str]] = []
    if search is not None and len(search.objectives) > 1:
        objectives = [(objective.value, str(objective.sense)) for objective in search.objectives]
        objectives[0] = (objectives[0][0], "maximize" if is_larger_better else "minimize")
    names = [objective for objective, _ in objectives]
    constraints = () if search is None else search.constraints
    reported = run.objective_values if names else {}
    trials: dict[str, SearchTrial] = {}
    # A parent has a smaller number than its children.
    for addition in sorted(added.values(), key=attrgetter("number")):
        network = addition.network
        row = table.get(network)
        parent = trials.get(addition.parent)
        # Its searcher may not have received them yet.
        values = reported.get(network) or objective_values(
            names, row, {} if row is None else network_facts(row, run)
        )
        trials[network] = SearchTrial(
            network,
            addition.number,
            addition.values,
            _status(addition, row),
            0 if row is None else row.epochs,
            best.get(network, math.nan),
            addition.parent,
            addition.parent_epoch,
            addition.parent_epoch + (0 if parent is None else parent.begins),
            values,
            violations=violations.get(network, ()),
        )
    for name_of_all, of_configuration in repeats.items():
        merged = [trials[network] for network in of_configuration]
        trials[of_configuration[0]] = _merge(name_of_all, merged, stopping.sign)
        for network in of_configuration[1:]:
            del trials[network]
    return SearchReport(
        name,
        stopping.metric,
        is_larger_better,
        space or {},
        tuple(trials.values()),
        tuple(improvements),
        "" if search is None else search.sampler,
        tuple(objectives),
        run.added,
        constraints,
    )


def _repeats_of(added: Mapping[str, NetworkAdded]) -> dict[str, list[str]]:
    """Return the networks of each configuration that is repeated."""
    repeats: defaultdict[str, list[str]] = defaultdict(list)
    for network, addition in added.items():
        if addition.repeat is not None:
            repeats[configuration_name(network)].append(network)
    return dict(repeats)


def _improvements(
    epochs: Sequence[RunEpoch],
    stopping: Stopping,
    failed: Collection[str],
    repeats: Mapping[str, Sequence[str]],
    violating: Collection[str],
    last_epochs: Mapping[str, int],
) -> tuple[list[Improvement], dict[str, float]]:
    """Return each new best value, and the best value of each network.

    Args:
        epochs: the epochs in the order of their times.
        stopping: decides which value is better.
        failed: networks that have failed.
        repeats: configuration -> its networks, if there are several.
        violating: networks and configurations that violate constraints.
        last_epochs: ended network -> its number of epochs, with the last of which it counts.
    """
    configurations = {name: stem for stem, names in repeats.items() for name in names}
    improvements = list[Improvement]()
    best = dict[str, float]()
    ended = Counter[str]()
    for epoch in epochs:
        network = epoch.network
        value = epoch.record.value(stopping.metric)
        ended[network] = max(ended[network], epoch.record.epoch)
        if not math.isfinite(value):
            continue
        if network not in best or stopping.sign * value > stopping.sign * best[network]:
            best[network] = value
        if network in failed:
            continue
        subject = configurations.get(network, network)
        if subject in repeats:
            counted = [name for name in repeats[subject] if name not in failed]
            if any(
                name not in best
                or ended[name] < min(epoch.record.epoch, last_epochs.get(name, math.inf))
                for name in counted
            ):
                continue
            value = fmean(best[name] for name in counted)
        if subject in violating:
            continue
        if not improvements or stopping.sign * value > stopping.sign * improvements[-1].value:
            improvements.append(Improvement(epoch.t_s, subject, epoch.record.epoch, value))
    return improvements, best


def _is_violation(violations: Sequence[float]) -> bool:
    """Return True if a constraint is known to be violated."""
    return any(number > 0 for number in violations)


def _means(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean of each column of several rows."""
    return tuple(map(fmean, zip(*rows, strict=True)))


def _merge(name: str, repeats: Sequence[SearchTrial], sign: int) -> SearchTrial:
    """Return the repeats of a configuration as one trial; failed ones count only if all have."""
    counted = [trial for trial in repeats if trial.status is not Status.FAILED] or repeats
    values = [trial.value for trial in counted]
    ranked = sorted(
        counted, key=lambda trial: -sign * trial.value if math.isfinite(trial.value) else math.inf
    )
    return replace(
        counted[0],
        network=name,
        status=common_status([trial.status for trial in counted]),
        epochs=max(trial.epochs for trial in counted),
        value=fmean(values),
        parent="",
        parent_epoch=0,
        objectives=_means([trial.objectives for trial in counted]),
        violations=_means([trial.violations for trial in counted]),
        spread=stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan,
        repeats=(*ranked, *(trial for trial in repeats if trial not in counted)),
    )


def _status(added: NetworkAdded, row: NetworkResult | None) -> Status:
    if added.wrong:
        return Status.FAILED
    if row is None:
        return Status.WAITING
    return row.status


def _stopping(spec: Spec, train: Mapping[str, Any], records: Sequence[EpochRecord]) -> Stopping:
    """Return the stopping rule of an entry, with the monitor of the spec, or else of the data."""
    settings = train.get("stopping") or {}
    stopping = replace(
        spec.document.train.stopping,
        **{key: settings[key] for key in ("monitor", "direction") if key in settings},
    )
    if (
        stopping.monitor is None
        and records
        and all(math.isnan(record.val_accuracy) for record in records)
    ):
        return replace(stopping, monitor="val_loss")
    return stopping


def coordinate_of(value: Any, values: Dimension) -> float | None:
    """Return a value's position on an axis: a number, or the index of a choice; None if outside.

    >>> coordinate_of(0.5, Range(0.0, 1.0)), coordinate_of("b", ("a", "b"))
    (0.5, 1.0)
    """
    if isinstance(values, Range):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and values.low <= value <= values.high:
            return float(value)
        return None
    choices = list(map(repr, values))
    if repr(value) in choices:
        return float(choices.index(repr(value)))
    return None


# ---- tables ------------------------------------------------------------------------------------


def improvements_table(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: the improvements, newest first."""
    return (
        ["time, s", "network", "epoch", f"best {search.monitor}"],
        [
            [round(best.seconds, 1), best.network, best.epoch, f"{best.value:.4g}"]
            for best in search.improvements[: -_MAX_ROWS - 1 : -1]
        ],
    )


def trials_table(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: the best networks with their values and parameters."""
    return (
        [
            "network",
            "status",
            search.monitor,
            *(["violates"] if search.constraints else []),
            *short_names(list(search.space)),
        ],
        [
            [
                trial.network,
                str(trial.status),
                trial.formatted_value,
                *(
                    [", ".join(violated(search.constraints, trial.violations))]
                    if search.constraints
                    else []
                ),
                *(trial.values.get(key) for key in search.space),
            ]
            for trial in search.ranked[:_BEST]
        ],
    )


def front_table(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: the networks of the Pareto front with their objectives."""
    return (
        [
            "network",
            "status",
            *(f"{name} ({mode[:3]})" for name, mode in search.objectives),
            *short_names(list(search.space)),
        ],
        [
            [
                trial.network,
                str(trial.status),
                *(f"{value:.6g}" for value in trial.objectives),
                *(brief(trial.values.get(key, "")) for key in search.space),
            ]
            for trial in search.pareto_front
        ],
    )


def rungs_table(rungs: Sequence[RungReport]) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: the networks at each epoch where some were paused or pruned."""
    return (
        ["epochs", "reached", "continued", "paused", "pruned", "by", "networks"],
        [
            [
                rung.epochs,
                rung.came,
                rung.went_on,
                len(rung.paused),
                len(rung.pruned),
                ", ".join(dict.fromkeys(chain.from_iterable(rung.pruned.values()))),
                listed([*rung.pruned, *rung.paused], _MAX_ROWS),
            ]
            for rung in rungs
        ],
    )
