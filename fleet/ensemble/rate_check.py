"""Whether networks train as fast as their rates say (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.domain.events import RateOff
from fleet.domain.network import StepRate
from scheduler.ensemble.online import Observation, is_off


class RateCheck:
    """Compares the rates of training groups with those by which it was decided.

    Args:
        keys: of networks: equal keys train at equal speed, so it is told of one of them.
        is_measured: whether rates come from measurements, of this launch or an earlier one, and not from a file.
    """

    def __init__(self, keys: Mapping[str, str], is_measured: bool) -> None:
        self._keys, self._is_measured = keys, is_measured
        self._told: dict[tuple[str, int], float] = {}  # key and GPUs -> what the rate was said to be

    def compare(self, network: str, gpus: int, step_rate: StepRate, expected: float) -> RateOff | None:
        """Tell of a rate that is off by more than a quarter, once; and again when it has changed by as much.

        Steps of milliseconds differ among each other: a rate that may be off by chance alone is not told of.

        Args:
            step_rate: that the group shows.
            expected: samples/s that it was taken to have.
        """
        rate = step_rate.rate
        place = self._keys.get(network, network), gpus
        before = self._told.get(place, expected)
        if not is_off(Observation(rate, step_rate.spread, step_rate.steps), before):
            return None
        self._told[place] = rate
        return RateOff(network, gpus, expected, rate, step_rate.spread, step_rate.steps, self._is_measured)
