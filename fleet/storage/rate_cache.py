"""Cache measured rates for later runs: one file per user, for all runs and machines.

``$XDG_CACHE_HOME/fleet/rates.json``, or ``~/.cache/fleet/rates.json``, is one object: for each key
(:func:`fleet.storage.identity.speed_identity`) the shapes of groups, and for each of these a
:class:`KnownRate`. A shape is a number of GPUs, and how they lie on nodes where that may matter:
``4``, ``4 node``, ``8 packed`` or ``4 spread``. A rate of ``4`` belongs to all of these.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fleet.domain.json_record import read_record, write_record
from fleet.errors import StorageError
from fleet.storage.files import WriteThrottle, write_json
from fleet.storage.json_lines import read_json_object
from scheduler.base import GroupShape, StepTime
from scheduler.elastic.analyzer import StepTimings
from scheduler.ensemble.spans import as_shape


@dataclass(frozen=True)
class KnownRate:
    """A rate and its origin.

    Attributes:
        rate: samples/s of the whole group.
        spread: standard deviation of step times, as a fraction of their mean.
        steps: number of timed steps.
        at: when it was measured, in seconds since 1970.
        machine: host name and hardware.
        how: ``measured`` before a run on made-up samples, or ``trained`` during a run.
        network: the network that was measured; networks of the same key share its rate.
        timed: steps of several global batches, if the policy chooses the batch.
        parameters: number of parameters of the network, besides these.
    """

    rate: float
    spread: float
    steps: int
    at: float
    machine: str
    how: str
    network: str
    timed: tuple[StepTime, ...] = ()
    parameters: int = 0


KnownRates: TypeAlias = Mapping[str, Mapping[GroupShape, KnownRate]]  # key -> shape -> rate


SHARING = "sharing"  # first word of keys for the total rates of networks that share a GPU


def cache_path() -> Path:
    """Return the path of the cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fleet" / "rates.json"


def read_cache(path: Path) -> dict[str, dict[GroupShape, KnownRate]]:
    """Return the cached rates, without damaged entries and the bare numbers of 0.1.0."""
    known_rates: dict[str, dict[GroupShape, KnownRate]] = {}
    for key, shapes in (read_json_object(path) or {}).items():
        rates = {}
        for text, entry in shapes.items() if isinstance(shapes, dict) else ():
            try:
                shape = GroupShape.parse(text)
            except ValueError:
                continue
            if (rate := _read(entry)) is not None:
                rates[shape] = rate
        if rates:
            known_rates[key] = rates
    return known_rates


def _read(entry: object) -> KnownRate | None:
    try:
        rate = read_record(KnownRate, entry)
    except ValueError:
        return None
    is_sound = (
        0 < rate.rate < math.inf
        and math.isfinite(rate.spread + rate.at)
        and all(step.batch > 0 and 0 < step.seconds < math.inf for step in rate.timed)
    )
    if is_sound:
        return rate
    return None


class RateBook:
    """The cached rates, and the rates that this launch measures.

    Args:
        path: path of the cache.
        remeasure: True to ignore the cache, and replace its rates of measured networks.
    """

    def __init__(self, path: Path, remeasure: bool = False) -> None:
        self.path = path
        self._remeasure = remeasure
        self.rates: KnownRates = {} if remeasure else read_cache(path)
        self._new: dict[str, dict[GroupShape, KnownRate]] = {}
        self._in_doubt: set[str] = set()  # keys with a cached rate that proved wrong
        self._pacing = WriteThrottle()
        self._changes = 0  # since it was last written

    def add(self, key: str, shape: GroupShape | int, rate: KnownRate) -> None:
        """Add a rate that was measured or learned.

        Args:
            key: key of the network.
            shape: shape of the group, or its number of GPUs.
            rate: the rate to add.
        """
        self._new.setdefault(key, {})[as_shape(shape)] = rate
        self._changes += 1

    def correct(self, key: str, shape: GroupShape | int, rate: KnownRate) -> None:
        """Replace a wrong rate, and drop untrained rates of the same key.

        Args:
            key: key of the network.
            shape: shape of the group, or its number of GPUs.
            rate: the right one.
        """
        self._in_doubt.add(key)
        trained = {
            size: known_rate
            for size, known_rate in self._new.get(key, {}).items()
            if known_rate.how == rate.how
        }
        self._new[key] = {**trained, as_shape(shape): rate}
        self._changes += 1

    def write_if_due(self) -> None:
        """Write new rates if enough time has passed: there may be thousands of networks."""
        if self._pacing.is_due(self._changes):
            self.write()

    def write(self) -> None:
        """Write new rates beside those of other runs; errors of the file system are ignored."""
        if self._changes:
            with self._pacing.writing():
                self._write()
            self._changes = 0

    def _write(self) -> None:
        cached = read_cache(self.path)
        for key, rates in self._new.items():
            cached[key] = {
                **({} if self._remeasure or key in self._in_doubt else cached.get(key, {})),
                **rates,
            }
        with suppress(StorageError):
            write_json(
                self.path,
                {
                    key: {str(shape): write_record(rate) for shape, rate in sorted(rates.items())}
                    for key, rates in cached.items()
                },
            )


def sharing_key(engine: str, hardware: str) -> str:
    """Return the key of measurements on a shared GPU, by number of networks.

    Args:
        engine: name of the engine.
        hardware: hardware of the node.
    """
    return f"{SHARING} {engine} {hardware}"


def beside_steps_key(engine: str, hardware: str) -> str:
    """Return the key of the overheads of the newest launch, in seconds.

    They are 1 the start, 2 forming a group, 3 an epoch.

    Args:
        engine: name of the engine.
        hardware: hardware of the node.
    """
    return f"beside steps {engine} {hardware}"


def alone_key(key: str) -> str:
    """Return the key that records that a network ran out of memory on a shared GPU."""
    return f"alone {key}"


def rates_of(known_rates: KnownRates) -> dict[str, dict[GroupShape, float]]:
    """Return the bare rates."""
    return {
        key: {shape: rate.rate for shape, rate in rates.items()}
        for key, rates in known_rates.items()
    }


def sharing_of(known_rates: KnownRates, key: str) -> dict[int, float]:
    """Return number of networks on a GPU -> their total throughput, by their key."""
    return {shape.gpus: rate.rate for shape, rate in known_rates.get(key, {}).items()}


def timings(known_rates: KnownRates) -> dict[str, StepTimings]:
    """Return the timed steps of networks whose batch the policy chooses."""
    return {
        key: StepTimings(
            {shape.gpus: rate.timed for shape, rate in rates.items() if rate.timed},
            max(rate.parameters for rate in rates.values()),
        )
        for key, rates in known_rates.items()
        if any(rate.timed for rate in rates.values())
    }
