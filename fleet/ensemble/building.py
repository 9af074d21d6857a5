"""Who builds a network, and since when: a function of a user's may never come back (pure).

A trainer interrupts what takes too long by itself, as far as Python can be interrupted there. One that has not said
anything some seconds after that, or after the launch was to end, is deaf: nobody waits for it any longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.spec import NetworkSpec

DEAF_S = 10.0  # for a trainer to say that it has interrupted itself, or to come back before the launch ends


@dataclass(frozen=True)
class Building:
    """Some devices that build a network together.

    Attributes:
        until_s: when building may take no longer, on the clock of the ensemble.
        is_recruit: whether it is one device alone, which is to join a group that trains.
    """

    network: NetworkSpec
    devices: tuple[int, ...]
    until_s: float
    is_recruit: bool


class Buildings:
    """All that is being built."""

    def __init__(self) -> None:
        self._by_device: dict[int, Building] = {}  # of the first of its devices

    def begin(self, network: NetworkSpec, devices: Sequence[int], now_s: float, is_recruit: bool = False) -> None:
        """Devices have been told to build a network."""
        self._by_device[devices[0]] = Building(network, tuple(devices), now_s + network.train.build_timeout, is_recruit)

    def end_of(self, device: int) -> None:
        """The first of some devices has said that all of them have built the network."""
        self._by_device.pop(device, None)

    def end(self, network: str, gpus: int | None = None) -> None:
        """A network's group, or one that measures it on so many devices, is past building it."""
        self._keep(building for building in self._by_device.values() if building.network.name != network
                   or building.is_recruit or gpus not in (None, len(building.devices)))

    def lose(self, devices: Iterable[int]) -> None:
        """Some devices are no more: those that built with them are dealt with otherwise."""
        lost = set(devices)
        self._keep(building for building in self._by_device.values() if not lost.intersection(building.devices))

    def _keep(self, buildings: Iterable[Building]) -> None:
        self._by_device = {building.devices[0]: building for building in buildings}

    def deaf(self, now_s: float, ends_s: float) -> list[Building]:
        """Those that nobody waits for any longer.

        Args:
            ends_s: when the launch was to end; infinity if it goes on.
        """
        return [building for building in self._by_device.values() if now_s >= min(building.until_s, ends_s) + DEAF_S]

    def wakes_s(self, ends_s: float) -> float:
        """When the next of them is deaf; infinity where nothing is built."""
        return min((min(building.until_s, ends_s) + DEAF_S for building in self._by_device.values()),
                   default=float("inf"))
