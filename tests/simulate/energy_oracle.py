"""What networks use of energy is what their trainers have spent on them.

Each trainer has a counter of its own, whose watts are constant in virtual time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleet.storage.results import NetworkResult
from tests.simulate import kernel as k

_REPORTS_S = 60.0  # a death loses no more than what was spent between two reports,
_STEPS_S = 3.0  # and during two steps
_SLACK_S = 1e-3  # of calls around a reading


class EnergyOracle:
    """Compares the log and the table with the time that trainers have spent.

    Args:
        watts: what each trainer takes.
        object_to: is called with what is wrong.
    """

    def __init__(self, watts: float, object_to: Callable[[str], None]) -> None:
        self._watts = watts
        self._object_to = object_to
        self._stepped_s: dict[k.Process, float] = {}
        self._min_joules: defaultdict[str, float] = defaultdict(float)
        self._max_joules: defaultdict[str, float] = defaultdict(float)
        self._logged: Counter[str] = Counter()

    def steps(self, process: k.Process, at_s: float) -> None:
        """A rank takes its part in a step."""
        self._stepped_s[process] = at_s

    def trained(
        self, process: k.Process, name: str, began_s: float, ended_s: float, failed: bool
    ) -> None:
        """A rank has trained a network, or has died meanwhile.

        Args:
            failed: whether its training was ended by an error.
        """
        counted_s = ended_s
        if not process.is_alive:
            counted_s -= _REPORTS_S + _STEPS_S
        elif not failed:  # what it writes in the end is not counted
            counted_s = self._stepped_s.get(process, began_s)
        self._min_joules[name] += self._watts * max(0.0, counted_s - began_s - _SLACK_S)
        self._max_joules[name] += self._watts * (ended_s - began_s + _SLACK_S)

    def logged(self, record: Mapping[str, Any]) -> None:
        """Rank 0 logs an event."""
        if record["event"] == "energy":
            self._logged[record["network"]] += record["joules"]

    def check(self, rows: Iterable[NetworkResult]) -> None:
        """Compare after a launch that has ended in order."""
        for row in rows:
            lowest, highest = self._min_joules[row.name], self._max_joules[row.name]
            joules = self._logged[row.name]
            if not lowest <= joules <= highest:
                self._object_to(f"{row.name} has used {joules} J, not {lowest} to {highest}")
            if not math.isclose(joules, 1000 * (row.energy_kj or 0.0), rel_tol=1e-3, abs_tol=1.0):
                self._object_to(f"{row.name} has {row.energy_kj} kJ in the results, not {joules} J")
