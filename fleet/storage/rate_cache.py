"""Rates that were measured before, kept for later runs: a file of the user's, for all runs on all machines.

``$XDG_CACHE_HOME/fleet/rates.json``, or ``~/.cache/fleet/rates.json``, is one object: for each key
(:func:`fleet.storage.identity.speed_identity`) the group sizes, and for each of these a :class:`KnownRate`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from fleet.errors import StorageError
from fleet.storage.files import WriteThrottle, write_json
from fleet.storage.json_lines import read_json_object
from scheduler.base import StepTime
from scheduler.elastic.analyzer import Timed


@dataclass(frozen=True)
class KnownRate:
    """A rate, and where it comes from.

    Attributes:
        rate: samples/s of the whole group.
        spread: standard deviation of the durations of steps, as a share of their mean.
        steps: that were timed.
        at: when, in seconds since the epoch of Unix.
        machine: where: the name of the host, and its hardware.
        how: ``measured`` before a run on samples made up, or ``trained`` by a run.
        network: whose rate it was; others of the same key have the same.
        timed: steps of several global batches, where the policy chooses the batch.
        parameters: of the network, beside these.
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


KnownRates: TypeAlias = Mapping[str, Mapping[int, KnownRate]]  # key -> group size -> rate


SHARING = (
    "sharing"  # with this word begins the key of what networks train together that share a GPU
)


def cache_path() -> Path:
    """Where measured rates are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fleet" / "rates.json"


def read_cache(path: Path) -> dict[str, dict[int, KnownRate]]:
    """The rates known from before; what is damaged is left out, and so are the bare numbers of 0.1.0."""
    known_rates: dict[str, dict[int, KnownRate]] = {}
    for key, sizes in (read_json_object(path) or {}).items():
        if isinstance(sizes, dict):
            rates = {
                int(gpus): rate
                for gpus, entry in sizes.items()
                if gpus.isdecimal() and (rate := _read(entry)) is not None
            }
        else:
            rates = {}
        if rates:
            known_rates[key] = rates
    return known_rates


@cache
def _rate_adapter() -> TypeAdapter[KnownRate]:
    return TypeAdapter(KnownRate)


def _read(entry: object) -> KnownRate | None:
    try:
        rate = _rate_adapter().validate_python(entry)
    except ValidationError:
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
    """The rates that a launch knows from before, and those that it finds out.

    Args:
        path: of the cache.
        remeasure: start from nothing, and replace what the cache has of the networks that are measured.
    """

    def __init__(self, path: Path, remeasure: bool = False) -> None:
        self.path = path
        self._remeasure = remeasure
        self.rates: KnownRates = {} if remeasure else read_cache(path)
        self._new: dict[str, dict[int, KnownRate]] = {}
        self._in_doubt: set[str] = set()  # keys of which the cache has a rate that proved wrong
        # since it was written
        self._pacing = WriteThrottle()
        self._changes = 0

    def add(self, key: str, gpus: int, rate: KnownRate) -> None:
        """A rate was measured, or learned."""
        self._new.setdefault(key, {})[gpus] = rate
        self._changes += 1

    def correct(self, key: str, gpus: int, rate: KnownRate) -> None:
        """A rate proved wrong; so the others of its network are in doubt: only what training showed is kept."""
        self._in_doubt.add(key)
        trained = {
            size: known_rate
            for size, known_rate in self._new.get(key, {}).items()
            if known_rate.how == rate.how
        }
        self._new[key] = {**trained, gpus: rate}
        self._changes += 1

    def write_if_due(self) -> None:
        """Keep what was found out, if that has waited long enough: it may be the rates of thousands of networks."""
        if self._pacing.is_due(self._changes):
            self.write()

    def write(self) -> None:
        """Keep what was found out for later runs, beside what others have kept meanwhile; a cache may fail silently."""
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
                    key: {
                        str(gpus): dataclasses.asdict(rate) for gpus, rate in sorted(rates.items())
                    }
                    for key, rates in cached.items()
                },
            )


def sharing_key(engine: str, hardware: str) -> str:
    """The key of what networks train together that share a GPU, as times of one: by their number, not by GPUs."""
    return f"{SHARING} {engine} {hardware}"


def beside_steps_key(engine: str, hardware: str) -> str:
    """The key of what the newest launch took beside steps, in seconds: 1 to begin, 2 to form a group, 3 an epoch."""
    return f"beside steps {engine} {hardware}"


def alone_key(key: str) -> str:
    """The key under which it is kept that a network has run out of memory beside others on a GPU."""
    return f"alone {key}"


def rates_of(known_rates: KnownRates) -> dict[str, dict[int, float]]:
    """The rates alone."""
    return {
        key: {gpus: rate.rate for gpus, rate in rates.items()} for key, rates in known_rates.items()
    }


def timings(known_rates: KnownRates) -> dict[str, Timed]:
    """The steps that were timed of networks whose batch the policy chooses."""
    return {
        key: Timed(
            {gpus: rate.timed for gpus, rate in rates.items() if rate.timed},
            max(rate.parameters for rate in rates.values()),
        )
        for key, rates in known_rates.items()
        if any(rate.timed for rate in rates.values())
    }
