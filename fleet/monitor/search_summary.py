"""What there is to say of a run's searches: what was tried, found, dropped, and came from what (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fleet.domain.events import NetworkAdded
from fleet.domain.network import EpochRecord
from fleet.domain.objectives import objective_values, pareto_front
from fleet.domain.run import RunState
from fleet.spec import Spec
from fleet.spec.hyperparameters import flatten
from fleet.spec.search import Search
from fleet.spec.space import Dimension, Range, Space
from fleet.spec.train import Stopping
from fleet.storage.results import NetworkResult, Status, short_names, without_fold_means
from fleet.terminal import brief
from fleet.units import listed, pluralize

_SHOWN = 12  # rows and names that a table shows
_BEST = 200  # networks that the table of a search has


@dataclass(frozen=True)
class SearchTrial:
    """A network that was asked for.

    Attributes:
        values: of the keys of the space.
        value: the best monitored one; NaN where it has none.
        parent: the network from whose weights it began, if there is one.
        parent_epoch: after which epoch of that.
        begins: epochs that were trained before it, from its earliest ancestor on.
        objectives: what it has come to in each, where there are several; NaN where that is not known.
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


@dataclass(frozen=True)
class Improvement:
    """A network was better than all before it, so many seconds after the first launch began."""

    seconds: float
    network: str
    epoch: int
    value: float


@dataclass(frozen=True)
class SearchReport:
    """The search of an entry, or all networks that were added from outside.

    Attributes:
        entry: its name; empty for networks from outside.
        monitor: what was judged.
        is_larger_better: of that.
        space: of the entry.
        trials: its networks, in the order of their numbers.
        improvements: the best so far, each time there was a better one; of networks that have not failed.
        searcher: who asks, as the spec names it; empty for networks from outside.
        objectives: the name of each, and ``maximize`` or ``minimize``, where there are several.
    """

    entry: str
    monitor: str
    is_larger_better: bool
    space: Space
    trials: tuple[SearchTrial, ...]
    improvements: tuple[Improvement, ...]
    searcher: str = ""
    objectives: tuple[tuple[str, str], ...] = ()

    @cached_property
    def pareto_front(self) -> tuple[SearchTrial, ...]:
        """The networks that none surpasses, of several objectives; the best in the first one first."""
        having = [one for one in self.trials if one.status is not Status.FAILED and one.objectives]
        return tuple(
            having[place]
            for place in pareto_front(
                [one.objectives for one in having], [mode for _, mode in self.objectives]
            )
        )

    @property
    def title(self) -> str:
        """What it is about."""
        if self.entry:
            return f"The search of {self.entry}"
        return "The networks that were added"

    @property
    def ancestry(self) -> tuple[SearchTrial, ...]:
        """The best network and those from which it came, the youngest first; nothing before one has a value."""
        by_name = {one.network: one for one in self.trials}
        line = [by_name[self.improvements[-1].network]] if self.improvements else []
        while line and line[-1].parent in by_name:
            line.append(by_name[line[-1].parent])
        return tuple(line)

    @cached_property
    def ranked(self) -> tuple[SearchTrial, ...]:
        """The networks that have a value, the best first."""
        return tuple(
            sorted(
                (one for one in self.trials if math.isfinite(one.value)),
                key=lambda one: one.value,
                reverse=self.is_larger_better,
            )
        )

    @property
    def summary(self) -> str:
        """The search in a sentence or two."""
        if not self.trials:
            return (
                f"The search of {self.entry} has no networks: whenever its searcher {self.searcher} was asked for "
                "one, it answered None."
            )
        counts = Counter(str(one.status) for one in self.trials)
        said = f"{pluralize(len(self.trials), 'network')}: " + ", ".join(
            f"{number} {status}" for status, number in counts.items()
        )
        if not self.improvements:
            return said
        best, *ancestors = self.ancestry
        born = [one.parent_epoch for one in self.ancestry]
        line = "".join(
            f", from {one.network} after epoch {epoch}"
            for one, epoch in zip(ancestors, born, strict=False)
        )
        return f"{said}. The best {self.monitor} is {self.improvements[-1].value:.4g}, of {best.network}{line}."

    def as_dict(self) -> dict[str, Any]:
        """The search as JSON has it."""
        names = [name for name, _ in self.objectives]
        networks = [
            {
                "name": one.network,
                "number": one.number,
                "values": dict(one.values),
                "status": str(one.status),
                "epochs": one.epochs,
                "value": one.value,
                **({"parent": one.parent, "parent_epoch": one.parent_epoch} if one.parent else {}),
                **(
                    {"objectives": dict(zip(names, one.objectives, strict=True))}
                    if one.objectives
                    else {}
                ),
            }
            for one in self.trials
        ]
        return {
            "entry": self.entry,
            "monitor": self.monitor,
            "mode": "max" if self.is_larger_better else "min",
            "networks": networks,
            "best_so_far": self.improvements,
            "line_of_descent": [one.network for one in self.ancestry],
            **(
                {
                    "objectives": [{"value": name, "mode": mode} for name, mode in self.objectives],
                    "front": [one.network for one in self.pareto_front],
                }
                if self.objectives
                else {}
            ),
        }


@dataclass(frozen=True)
class RungReport:
    """What became of the networks that have trained so many epochs, where some were paused or pruned.

    Attributes:
        came: networks that have trained as many.
        went_on: those that have trained more.
        paused: those that stand here now.
        pruned: those that were dropped here, each with who dropped it.
    """

    epochs: int
    came: int
    went_on: int
    paused: tuple[str, ...]
    pruned: Mapping[str, tuple[str, ...]]

    @property
    def pruned_by(self) -> str:
        """Who has dropped networks here."""
        return ", ".join(dict.fromkeys(who for by in self.pruned.values() for who in by))


def make_rung_reports(run: RunState, rows: Sequence[NetworkResult]) -> tuple[RungReport, ...]:
    """Where networks were paused and pruned, and by whom; the lowest first."""
    # One that was judged from outside may have ended the epoch that it was in.
    named = {row.name: row for row in rows}
    pruned = defaultdict[int, dict[str, tuple[str, ...]]](dict)
    for name, judged in run.verdicts["stop"].items():
        if name in named and named[name].status is Status.PRUNED:
            pruned[named[name].epochs][name] = judged.by
    paused = {
        name: named[name].epochs
        for name in run.verdicts["pause"]
        if name in named and named[name].status is Status.PAUSED
    }
    networks = without_fold_means(rows)
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
    """The searches of a run; at last the networks that others have added, if there are any.

    Args:
        rows: the table of results.
    """
    added: defaultdict[str, dict[str, NetworkAdded]] = defaultdict(dict)
    for network, one in run.added.items():
        added[one.entry][network] = one
    ends: defaultdict[str, list[tuple[float, int, EpochRecord]]] = defaultdict(list)
    for place, epoch in enumerate(run.epochs):
        ends[epoch.network].append((epoch.t_s, place, epoch.record))
    entries = {entry.stem: entry for entry in spec.searches.values()}
    table = {row.name: row for row in rows}
    found = [
        _report(
            entry,
            entries[entry].space or {},
            entries[entry].train_overrides,
            spec,
            networks,
            ends,
            table,
        )
        for entry, networks in added.items()
        if entry in entries
    ]
    found += [
        _report(entry, {}, {}, spec, {}, ends, table)
        for entry, search in run.searches.items()
        if entry in entries and search.asks and all(one.answer is None for one in search.asks)
    ]
    found = [
        _with_objectives(one, search, run, table)
        for one in found
        if (search := entries[one.entry].search) is not None
    ]
    outside = added.get("")
    if outside:
        values = _that_differ(
            {name: _entry_settings(run.added_entries.get(name, {})) for name in outside}
        )
        numbered = {
            name: replace(one, number=number, values={**values[name], **one.values})
            for number, (name, one) in enumerate(outside.items())
        }
        trains = [
            train
            for name in outside
            if isinstance(train := run.added_entries.get(name, {}).get("train"), Mapping)
        ]
        space = _space_of([one.values for one in numbered.values()])
        found.append(_report("", space, trains[0] if trains else {}, spec, numbered, ends, table))
    return tuple(found)


def _with_objectives(
    found: SearchReport, search: Search, run: RunState, table: Mapping[str, NetworkResult]
) -> SearchReport:
    """A report with who asks, and with what networks have come to where several objectives count."""
    found = replace(found, searcher=search.sampler)
    if len(search.objectives) < 2:
        return found
    names = [objective.value for objective in search.objectives]
    first = "maximize" if found.is_larger_better else "minimize"
    return replace(
        found,
        objectives=(
            (names[0], first),
            *((one.value, str(one.sense)) for one in search.objectives[1:]),
        ),
        trials=tuple(
            replace(
                one,
                objectives=run.objective_values.get(one.network)
                or _come_to(names, table.get(one.network), run),
            )
            for one in found.trials
        ),
    )


def _come_to(names: Sequence[str], row: NetworkResult | None, run: RunState) -> tuple[float, ...]:
    """What a network has come to by now, of which no searcher was told."""
    return objective_values(names, row, {} if row is None else network_facts(row, run))


def network_facts(row: NetworkResult, run: RunState) -> dict[str, float | None]:
    """What is known of a network beside its epochs, by the names of :data:`fleet.spec.search.NETWORK_OBJECTIVES`."""
    rates = run.launch.rates.get(row.name) if run.launch is not None else None
    return {
        "parameters": row.parameters,
        "rate": row.metrics.get("rate", rates[0] if rates else None),
        "epochs": row.epochs or None,
        "seconds": row.seconds or None,
    }


def _entry_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry says, by dotted names; nothing of its own name."""
    return dict(
        flatten(
            "", {key: part for key, part in entry.items() if key not in ("name", "count", "seed")}
        )
    )


def _that_differ(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each network the values in which not all are alike."""
    keys = dict.fromkeys(key for one in values.values() for key in one)
    differ = [key for key in keys if len({repr(one.get(key)) for one in values.values()}) > 1]
    return {name: {key: one[key] for key in differ if key in one} for name, one in values.items()}


def _space_of(values: Sequence[Mapping[str, Any]]) -> Space:
    """Ranges and choices that hold all these values.

    >>> _space_of([{"rate": 0.001, "kernel": "a"}, {"rate": 0.5, "kernel": "b"}])
    {'rate': Range(low=0.001, high=0.5, log=True, integer=False), 'kernel': ('a', 'b')}
    """
    space: dict[str, Range | tuple[Any, ...]] = {}
    for key in dict.fromkeys(key for one in values for key in one):
        own = [one[key] for one in values if key in one]
        if all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in own
        ) and min(own) < max(own):
            space[key] = Range(
                min(own),
                max(own),
                log=min(own) > 0 and max(own) >= 100 * min(own),
                integer=all(isinstance(value, int) for value in own),
            )
        else:
            space[key] = tuple({repr(value): value for value in own}.values())
    return space


def _report(
    name: str,
    space: Space,
    train: Mapping[str, Any],
    spec: Spec,
    added: Mapping[str, NetworkAdded],
    ends: Mapping[str, Sequence[tuple[float, int, EpochRecord]]],
    table: Mapping[str, NetworkResult],
) -> SearchReport:
    failed = {
        network for network in added if network in table and table[network].status is Status.FAILED
    }
    mine = sorted(
        (t_s, place, network, record)
        for network in added
        for t_s, place, record in ends.get(network, ())
    )
    converge = _converge(spec, train, [record for *_, record in mine])
    found = list[Improvement]()
    best = dict[str, float]()
    for t_s, _, network, record in mine:
        value = record.value(converge.metric)
        if not math.isfinite(value):
            continue
        if network not in failed and (
            not found or converge.sign * value > converge.sign * found[-1].value
        ):
            found.append(Improvement(t_s, network, record.epoch, value))
        if network not in best or converge.sign * value > converge.sign * best[network]:
            best[network] = value
    tried = [
        _make_trial(one, table.get(one.network), best.get(one.network, math.nan))
        for one in sorted(added.values(), key=lambda one: one.number)
    ]
    return SearchReport(
        name, converge.metric, converge.sign > 0, space, tuple(_placed(tried)), tuple(found)
    )


def _converge(spec: Spec, train: Mapping[str, Any], records: Sequence[EpochRecord]) -> Stopping:
    """What the networks of an entry monitor: as the spec says, or else as the data has decided."""
    own = train.get("stopping") or {}
    converge = replace(
        spec.document.train.stopping,
        **{key: own[key] for key in ("monitor", "direction") if key in own},
    )
    if (
        converge.monitor is None
        and records
        and all(math.isnan(record.val_accuracy) for record in records)
    ):
        return replace(converge, monitor="val_loss")
    return converge


def _make_trial(added: NetworkAdded, row: NetworkResult | None, value: float) -> SearchTrial:
    if added.wrong:
        status = Status.FAILED
    elif row is None:
        status = Status.WAITING
    else:
        status = row.status
    return SearchTrial(
        added.network,
        added.number,
        added.values,
        status,
        0 if row is None else row.epochs,
        value,
        added.parent,
        added.parent_epoch,
    )


def _placed(tried: Iterable[SearchTrial]) -> Iterator[SearchTrial]:
    """With the epochs before each; a parent has a smaller number than its children."""
    begins: dict[str, int] = {}
    for one in tried:
        begins[one.network] = begins.get(one.parent, 0) + one.parent_epoch
        yield replace(one, begins=begins[one.network])


def coordinate_of(value: Any, values: Dimension) -> float | None:
    """Where a value lies: a number of a range where it is, one of some choices at its place; None where it is neither.

    >>> coordinate_of(0.5, Range(0.0, 1.0)), coordinate_of("b", ("a", "b")), coordinate_of("c", ("a", "b"))
    (0.5, 1.0, None)
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
    """Headers and rows: the best so far, the newest first."""
    return (
        ["after s", "network", "epoch", f"best {search.monitor}"],
        [
            [round(found.seconds, 1), found.network, found.epoch, f"{found.value:.4g}"]
            for found in search.improvements[: -_SHOWN - 1 : -1]
        ],
    )


def trials_table(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: what the best networks came to, and with which values."""
    return (
        ["network", "status", search.monitor, *short_names(list(search.space))],
        [
            [
                one.network,
                str(one.status),
                f"{one.value:.4g}",
                *(one.values.get(key) for key in search.space),
            ]
            for one in search.ranked[:_BEST]
        ],
    )


def front_table(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: the networks of the Pareto front, with what they have come to."""
    return (
        [
            "network",
            "status",
            *(f"{name} ({mode[:3]})" for name, mode in search.objectives),
            *short_names(list(search.space)),
        ],
        [
            [
                one.network,
                str(one.status),
                *(f"{value:.6g}" for value in one.objectives),
                *(brief(one.values.get(key, "")) for key in search.space),
            ]
            for one in search.pareto_front
        ],
    )


def rungs_table(rungs: Sequence[RungReport]) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: what became of networks where some were paused or pruned."""
    return (
        ["epochs", "came", "went on", "paused", "pruned", "by", "which"],
        [
            [
                rung.epochs,
                rung.came,
                rung.went_on,
                len(rung.paused),
                len(rung.pruned),
                rung.pruned_by,
                listed([*rung.pruned, *rung.paused], _SHOWN),
            ]
            for rung in rungs
        ],
    )
