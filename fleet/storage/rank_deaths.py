"""Record which network each rank trains, so that a rank's death can be attributed.

A rank that starts a network writes a marker, a small file in ``training/``, and removes it when it
is done with the network, when it exits, and when a signal ends the launch. So a marker that remains
belongs to a rank that was killed, by the kernel or by code of the network. Surviving ranks of the
same node (:mod:`fleet.runtime.death_detector`) rename its marker, and then no other network is
blamed. If no rank could, a death counts only if all markers of the launch name one network. Rank 0,
if it trains nothing, has a marker without a network: if that remains too, the whole launch was
killed from outside, and no network is blamed.

``deaths.json`` in the folder of a network has the deaths that count. Each records how many epochs
the network had finished; once it finishes another one, the death no longer counts, because the
machine may be at fault.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from fleet.domain.json_record import write_record
from fleet.domain.network import Death
from fleet.errors import StorageError
from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_record
from fleet.storage.paths import RunPaths

_MARK = ".json"
_DIED = ".died.json"


@dataclass(frozen=True)
class _Marker:
    """The marker of a rank: the network that it trains, if any, and its node."""

    network: str = ""
    host: str = "an unknown node"


@dataclass(frozen=True)
class _SavedDeaths:
    """The deaths of a network that count."""

    deaths: list[Death]


class Marker(Protocol):
    """Marks which network a trainer trains."""

    def set(self, network: str = "") -> None:
        """Mark a network that a trainer builds, measures or trains."""

    def clear(self) -> None:
        """Remove the mark."""


class RankMarker:
    """Marks in the run's folder which network a rank trains.

    Training continues if the file system does not answer; then a death is attributed to no network.
    """

    def __init__(self, paths: RunPaths, rank: int, host: str) -> None:
        self._path = _marker_path(paths, rank)
        self._host = host
        self._is_closed = False

    def set(self, network: str = "") -> None:
        """Mark a network that this rank builds, measures or trains; or that it trains none."""
        if self._is_closed:
            return
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            marker = write_record(_Marker(network, self._host))
            self._path.write_text(json.dumps(marker), encoding="utf-8")

    def clear(self) -> None:
        """Remove the marker."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop marking: this rank ends, and its network is not at fault."""
        self._is_closed = True
        self.clear()


class SharedMarker:
    """Marks the network of a rank with several trainers while only one of them has a network.

    With several networks, none is blamed for the death of the rank.
    """

    def __init__(self, marker: RankMarker) -> None:
        self._marker = marker
        self._networks: dict[int, str] = {}
        self._count = 0

    def of_trainer(self) -> Marker:
        """Return the marker of another trainer."""
        self._count += 1
        return _MarkerOfTrainer(self, self._count)

    def update(self, trainer: int, network: str | None) -> None:
        """Mark the network of a trainer; None if it has none."""
        self._networks.pop(trainer, None)
        if network is not None:
            self._networks[trainer] = network
        if len(self._networks) == 1:
            self._marker.set(*self._networks.values())
        else:
            self._marker.clear()


@dataclass(frozen=True)
class _MarkerOfTrainer:
    """The marker of one of several trainers of a rank."""

    shared: SharedMarker
    trainer: int

    def set(self, network: str = "") -> None:
        self.shared.update(self.trainer, network)

    def clear(self) -> None:
        self.shared.update(self.trainer, None)


def claim_death(paths: RunPaths, rank: int) -> str:
    """Mark a rank of this launch as dead; return the network that it trained.

    Only one of the ranks that notice it gets the name; others, and all if it trained nothing, get
    an empty string.

    Args:
        paths: files of the run.
        rank: the rank that has died.
    """
    path = _marker_path(paths, rank)
    network = _read_marker(path).network
    try:
        path.rename(_death_path(path))
    except OSError:
        return ""
    return network


def find_marked(paths: RunPaths) -> frozenset[str]:
    """Return the networks that other launches of a shared run train, or died of."""
    marks = paths.training.glob(f"*{_MARK}")
    return frozenset(
        _read_marker(path).network for path in marks if _launch_of(path) != _prefix(paths)
    )


class RankDeaths:
    """The deaths of ranks in a run.

    Args:
        paths: files of the run.
        max_deaths: number of deaths that fail a network.
    """

    def __init__(self, paths: RunPaths, max_deaths: int) -> None:
        self._paths = paths
        self.max_deaths = max_deaths
        self._new: dict[str, list[str]] = defaultdict(
            list
        )  # network -> descriptions of unsaved deaths

    def collect(self, name: str = "") -> None:
        """Attribute deaths by the markers of dead launches, and remove the markers.

        Args:
            name: a network whose lease this launch has acquired, and no other; only its deaths are
                attributed, because other markers may belong to living ranks.
        """
        marks = sorted(self._paths.training.glob(f"*{_MARK}"))
        for launch, group in groupby(marks, _launch_of):
            markers = {path: _read_marker(path) for path in group}
            networks = {marker.network for marker in markers.values()}
            if not name or (name in networks and launch != _prefix(self._paths)):
                self._attribute(markers, name)

    def _attribute(self, markers: Mapping[Path, _Marker], only: str) -> None:
        """Attribute deaths in one launch to networks; each counts once per network."""
        died = [path for path in markers if path.name.endswith(_DIED)]
        networks = {marker.network for marker in markers.values()}
        dead_ranks: dict[str, list[str]] = defaultdict(list)  # network -> the ranks that trained it
        for path in died or (markers if len(networks) == 1 else ()):
            marker = markers[path]
            dead_ranks[marker.network].append(f"{_rank_of(path)} on {marker.host}")
        for name, ranks in dead_ranks.items():
            if name and only in ("", name):
                self._new[name].append(f"{' and '.join(ranks)} died")
        for path, marker in markers.items():
            if only in ("", marker.network):
                remove(path)

    def record(self, name: str, death: Death) -> None:
        """Record the death of a rank that trained a network.

        Args:
            name: name of the network.
            death: death of the rank.

        Raises:
            StorageError: the disk is full, ...
        """
        self._write(name, [*self._read(name), death])

    def deaths_of(self, name: str, epochs: int) -> list[Death]:
        """Return the deaths of a network that count.

        Args:
            name: name of the network.
            epochs: number of epochs that it has finished.

        Raises:
            StorageError: the disk is full, ...
        """
        deaths = self._read(name)
        new = self._new.pop(name, None)
        if new:
            deaths += [Death(how, epochs) for how in new]
            self._write(name, deaths)
        return [death for death in deaths if death.epochs >= epochs]

    def remove_markers(self, rank: int) -> None:
        """Remove the markers of a dead rank of this launch."""
        for path in (_marker_path(self._paths, rank), _death_path(_marker_path(self._paths, rank))):
            with suppress(StorageError):
                remove(path)

    def reset(self, name: str) -> None:
        """Forget the deaths of a network."""
        remove(self._paths.deaths(name))

    def _read(self, name: str) -> list[Death]:
        return (read_json_record(self._paths.deaths(name), _SavedDeaths) or _SavedDeaths([])).deaths

    def _write(self, name: str, deaths: list[Death]) -> None:
        write_json(self._paths.deaths(name), write_record(_SavedDeaths(deaths)))


def _marker_path(paths: RunPaths, rank: int) -> Path:
    return paths.training / f"{_prefix(paths)}rank-{rank:03d}{_MARK}"


def _death_path(mark: Path) -> Path:
    return mark.with_name(mark.name.removesuffix(_MARK) + _DIED)


def _prefix(paths: RunPaths) -> str:
    if paths.launch:
        return f"{paths.launch}."
    return ""


def _launch_of(path: Path) -> str:
    return path.name.rpartition("rank-")[0]


def _rank_of(path: Path) -> str:
    number = path.name.rpartition("rank-")[2].partition(".")[0]
    if number.isdecimal():
        return f"rank {int(number)}"
    return "a rank"


def _read_marker(path: Path) -> _Marker:
    return read_json_record(path, _Marker) or _Marker()
