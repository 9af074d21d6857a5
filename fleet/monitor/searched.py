"""What there is to say of a run's searches: what was tried, found, dropped, and came from what (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet.monitor.timeline import Moment
from fleet.spec import ModelEntry, Spec
from fleet.spec.space import Space
from fleet.spec.train import Converge
from fleet.storage.events import EpochEnded, NetworkAdded, NetworkJudged
from fleet.storage.results import NetworkResult, Status
from fleet.storage.state import EpochRecord
from fleet.units import counted

_SHOWN = 12  # rows and names that a table shows


@dataclass(frozen=True)
class Tried:
    """A network that was asked for.

    Attributes:
        values: of the keys of the space.
        value: the best monitored one; NaN where it has none.
        parent: the network from whose weights it began, if there is one.
        parent_epoch: after which epoch of that.
        begins: epochs that were trained before it, from its earliest ancestor on.
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


@dataclass(frozen=True)
class Found:
    """A network was better than all before it, so many seconds after the first launch began."""

    t_s: float
    network: str
    epoch: int
    value: float


@dataclass(frozen=True)
class SearchReport:
    """The search of an entry.

    Attributes:
        monitor: what was judged.
        is_larger_better: of that.
        space: of the entry.
        tried: its networks, in the order of their numbers.
        found: the best so far, each time there was a better one.
    """

    entry: str
    monitor: str
    is_larger_better: bool
    space: Space
    tried: tuple[Tried, ...]
    found: tuple[Found, ...]

    @property
    def ancestry(self) -> tuple[Tried, ...]:
        """The best network and those from which it came, the youngest first; nothing before one has a value."""
        by_name = {one.network: one for one in self.tried}
        line = [by_name[self.found[-1].network]] if self.found else []
        while line and line[-1].parent in by_name:
            line.append(by_name[line[-1].parent])
        return tuple(line)

    @property
    def words(self) -> str:
        """The search in a sentence or two."""
        counts = Counter(str(one.status) for one in self.tried)
        said = f"{counted(len(self.tried), 'network')}: " + ", ".join(f"{number} {status}"
                                                                      for status, number in counts.items())
        if not self.found:
            return said
        best, *ancestors = self.ancestry
        born = [one.parent_epoch for one in self.ancestry]
        line = "".join(f", from {one.network} after epoch {epoch}"
                       for one, epoch in zip(ancestors, born, strict=False))
        return f"{said}. The best {self.monitor} is {self.found[-1].value:.4g}, of {best.network}{line}."

    def numbers(self) -> dict[str, Any]:
        """The search as JSON has it."""
        networks = [{"name": one.network, "number": one.number, "values": dict(one.values), "status": str(one.status),
                     "epochs": one.epochs, "value": one.value,
                     **({"parent": one.parent, "parent_epoch": one.parent_epoch} if one.parent else {})}
                    for one in self.tried]
        best = [{"seconds": found.t_s, "network": found.network, "epoch": found.epoch, "value": found.value}
                for found in self.found]
        return {"entry": self.entry, "monitor": self.monitor, "mode": "max" if self.is_larger_better else "min",
                "networks": networks, "best_so_far": best,
                "line_of_descent": [one.network for one in self.ancestry]}


@dataclass(frozen=True)
class Rung:
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
    def by(self) -> str:
        """Who has dropped networks here."""
        return ", ".join(dict.fromkeys(who for by in self.pruned.values() for who in by))

    def numbers(self) -> dict[str, Any]:
        """The rung as JSON has it."""
        return {"epochs": self.epochs, "came": self.came, "went_on": self.went_on, "paused": list(self.paused),
                "pruned": {name: list(by) for name, by in self.pruned.items()}}


def rungs_of(moments: Iterable[Moment], rows: Sequence[NetworkResult]) -> tuple[Rung, ...]:
    """Where networks were paused and pruned, and by whom; the lowest first."""
    pruned: defaultdict[int, dict[str, tuple[str, ...]]] = defaultdict(dict)
    status, paused = {row.name: row.status for row in rows}, dict[str, int]()
    for moment in moments:
        match moment.event:
            case NetworkJudged(network, epochs, "stop", by) if status.get(network) is Status.PRUNED:
                pruned[epochs][network] = by
            case NetworkJudged(network, epochs, "pause") if status.get(network) is Status.PAUSED:
                paused[network] = epochs
    return tuple(Rung(epochs, sum(row.epochs >= epochs for row in rows), sum(row.epochs > epochs for row in rows),
                      tuple(name for name, at in paused.items() if at == epochs), pruned[epochs])
                 for epochs in sorted({*pruned, *paused.values()}))


def searches_of(spec: Spec, moments: Sequence[Moment], rows: Sequence[NetworkResult]) -> tuple[SearchReport, ...]:
    """The searches of a run.

    Args:
        moments: of all launches, on one clock.
        rows: the table of results.
    """
    added: defaultdict[str, dict[str, NetworkAdded]] = defaultdict(dict)
    ends: defaultdict[str, list[tuple[float, int, EpochRecord]]] = defaultdict(list)
    for place, moment in enumerate(moments):
        match moment.event:
            case NetworkAdded(network, entry) if entry:
                added[entry][network] = moment.event
            case EpochEnded(network, record):
                ends[network].append((moment.t_s, place, record))
    entries = {entry.stem: entry for entry in spec.searches.values()}
    table = {row.name: row for row in rows}
    return tuple(_report(entry, entries[entry], spec, networks, ends, table)
                 for entry, networks in added.items() if entry in entries)


def _report(name: str, entry: ModelEntry, spec: Spec, added: Mapping[str, NetworkAdded],
            ends: Mapping[str, Sequence[tuple[float, int, EpochRecord]]], table: Mapping[str, NetworkResult]
            ) -> SearchReport:
    mine = sorted((t_s, place, network, record) for network in added for t_s, place, record in ends.get(network, ()))
    converge = _converge(spec, entry, [record for *_, record in mine])
    found, best = list[Found](), dict[str, float]()
    for t_s, _, network, record in mine:
        value = record.value(converge.watched)
        if not math.isfinite(value):
            continue
        if not found or converge.sign * value > converge.sign * found[-1].value:
            found.append(Found(t_s, network, record.epoch, value))
        if network not in best or converge.sign * value > converge.sign * best[network]:
            best[network] = value
    tried = [_tried(one, table.get(one.network), best.get(one.network, math.nan))
             for one in sorted(added.values(), key=lambda one: one.number)]
    return SearchReport(name, converge.watched, converge.sign > 0, entry.space or {}, tuple(_placed(tried)),
                        tuple(found))


def _converge(spec: Spec, entry: ModelEntry, records: Sequence[EpochRecord]) -> Converge:
    """What the networks of an entry monitor: as the spec says, or else as the data has decided."""
    own = entry.train.get("converge") or {}
    converge = replace(spec.document.train.converge,
                       **{key: own[key] for key in ("monitor", "direction") if key in own})
    if converge.monitor is None and records and all(math.isnan(record.val_accuracy) for record in records):
        return replace(converge, monitor="val_loss")
    return converge


def _tried(added: NetworkAdded, row: NetworkResult | None, value: float) -> Tried:
    status = Status.FAILED if added.wrong else Status.WAITING if row is None else row.status
    return Tried(added.network, added.number, added.values, status, 0 if row is None else row.epochs, value,
                 added.parent, added.parent_epoch)


def _placed(tried: Iterable[Tried]) -> Iterator[Tried]:
    """With the epochs before each; a parent has a smaller number than its children."""
    begins: dict[str, int] = {}
    for one in tried:
        begins[one.network] = begins.get(one.parent, 0) + one.parent_epoch
        yield replace(one, begins=begins[one.network])


# ---- tables ------------------------------------------------------------------------------------


def table_of_found(search: SearchReport) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: the best so far, the newest first."""
    return (["after s", "network", "epoch", f"best {search.monitor}"],
            [[round(found.t_s, 1), found.network, found.epoch, f"{found.value:.4g}"]
             for found in search.found[:-_SHOWN - 1:-1]])


def table_of_rungs(rungs: Sequence[Rung]) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: what became of networks where some were paused or pruned."""
    return (["epochs", "came", "went on", "paused", "pruned", "by", "which"],
            [[rung.epochs, rung.came, rung.went_on, len(rung.paused), len(rung.pruned), rung.by,
              _named([*rung.pruned, *rung.paused])] for rung in rungs])


def _named(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
