"""Where ranks die: which network each rank trains is in the run's folder, so that a death can be laid to it.

A rank that begins with a network leaves a mark, a small file in ``training/``, and takes it away when it is done with
the network, when it ends by itself, and when a signal tells it that the launch ends. So a mark that is left is of a rank
that vanished without a word: the kernel killed it, or code of the network's did. Ranks of the same node that outlive it
for a moment (:mod:`fleet.runtime.witness`) rename its mark, and then nobody else is to blame. Where no rank could, as
when all of a launch are killed at once, a death counts only if all marks of the launch are of one network: of several
nobody knows which it was, and most likely none.

``deaths.json`` in the folder of a network has the deaths that count. Each names how many epochs the network had finished;
once it has finished another one, a death counts no longer: such a network goes forward, and the machine may be at fault.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from fleet.domain.network import Death, reason_of_deaths
from fleet.errors import StorageError
from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_object
from fleet.storage.paths import RunPaths

_MARK = ".json"
_DIED = ".died.json"


class RankMarker:
    """Says in the run's folder which network a rank is at.

    A file system that does not answer is no reason to end the training: then a death is not laid to anybody.
    """

    def __init__(self, paths: RunPaths, rank: int, host: str) -> None:
        self._path = _marker_path(paths, rank)
        self._host = host
        self._is_closed = False

    def set(self, network: str) -> None:
        """This rank begins with a network: it builds, measures or trains it."""
        if self._is_closed:
            return
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(
                json.dumps({"network": network, "host": self._host}), encoding="utf-8"
            )

    def clear(self) -> None:
        """This rank is done with the network."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """This rank ends, or is told to: what becomes of it from now on is not the network's fault."""
        self._is_closed = True
        self.clear()


def claim_death(paths: RunPaths, rank: int) -> str:
    """Say that a rank of this launch has died; returns what it trained.

    Of the ranks that notice it one is told; the others, and all where it trained nothing, get an empty text.
    """
    path = _marker_path(paths, rank)
    network = _network_at(path)
    try:
        path.rename(_death_path(path))
    except OSError:
        return ""
    return network


class RankDeaths:
    """The deaths of a run.

    Args:
        most: how many of a network make it a failed one.
    """

    def __init__(self, paths: RunPaths, max_deaths: int) -> None:
        self._paths = paths
        self.max_deaths = max_deaths
        self._new: dict[str, list[str]] = defaultdict(list)  # network -> how, of those not kept yet

    def collect(self) -> None:
        """Find out from the marks that dead launches have left where ranks died, and take the marks away.

        Only for a launch that is alone in the folder: the marks of others are those of the living.
        """
        marks = list(self._markers())
        for launch in dict.fromkeys(map(_launch_of, marks)):
            self._attribute([path for path in marks if _launch_of(path) == launch])

    def collect_for(self, name: str) -> None:
        """The same where other launches are at work, and the lease of a network has come to this one."""
        marks = [path for path in self._markers() if _launch_of(path) != _prefix(self._paths)]
        for launch in {_launch_of(path) for path in marks if _network_at(path) == name}:
            self._attribute([path for path in marks if _launch_of(path) == launch], name)

    def _attribute(self, marks: Collection[Path], only: str = "") -> None:
        """Lay what happened to one launch to the networks that are to blame; a launch counts once for each."""
        network_at = {path: _network_at(path) for path in marks}
        died = [path for path in marks if path.name.endswith(_DIED)]
        blamed = died or (marks if len(set(network_at.values())) == 1 else [])
        dead_ranks: dict[str, list[str]] = defaultdict(list)  # network -> the ranks that trained it
        for path in blamed:
            host = (read_json_object(path) or {}).get("host", "an unknown node")
            dead_ranks[network_at[path]].append(f"{_rank_of(path)} on {host}")
        for name, ranks in dead_ranks.items():
            if name and only in ("", name):
                self._new[name].append(f"{' and '.join(ranks)} died")
        for path in marks:
            if only in ("", network_at[path]):
                remove(path)

    def record(self, name: str, death: Death) -> None:
        """Keep that a rank has died, or does not come back, which trains a network.

        Raises:
            StorageError: the disk is full, ...
        """
        self._write(name, [*self._read(name), death])

    def deaths_of(self, name: str, epochs: int) -> list[Death]:
        """The deaths of a network that count.

        Args:
            epochs: that it has finished.

        Raises:
            StorageError: the disk is full, ...
        """
        deaths = self._read(name)
        new = self._new.pop(name, None)
        if new:
            deaths += [Death(how, epochs) for how in new]
            self._write(name, deaths)
        return [death for death in deaths if death.epochs >= epochs]

    def reason(self, deaths: Collection[Death]) -> str:
        """Why a network has failed with which so many ranks died; nothing where they are too few for that."""
        return reason_of_deaths(deaths, self.max_deaths)

    def remove_markers(self, rank: int) -> None:
        """A rank of this launch has died, and the launch goes on and knows what it trained."""
        for path in (_marker_path(self._paths, rank), _death_path(_marker_path(self._paths, rank))):
            with suppress(StorageError):
                remove(path)

    def reset(self, name: str) -> None:
        """Count anew."""
        remove(self._paths.deaths(name))

    def _read(self, name: str) -> list[Death]:
        deaths = (read_json_object(self._paths.deaths(name)) or {}).get("deaths", [])
        try:
            return [
                Death(str(death["how"]), int(death["epochs"]), bool(death.get("is_sure", True)))
                for death in deaths
            ]
        except (TypeError, ValueError, LookupError):  # somebody has written into it
            return []

    def _write(self, name: str, deaths: Collection[Death]) -> None:
        write_json(self._paths.deaths(name), {"deaths": [asdict(death) for death in deaths]})

    def _markers(self) -> Iterator[Path]:
        yield from sorted(self._paths.training.glob(f"*{_MARK}"))


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


def _network_at(path: Path) -> str:
    return str((read_json_object(path) or {}).get("network", ""))
