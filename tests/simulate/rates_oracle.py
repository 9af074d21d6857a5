"""What a run learns of rates: it is logged when it changes, stored, and read by the next launch.

- Rates are measured before training if the spec asks for it, and else learned from training.
- A rate that is logged as learned is one that a group has shown alone on its GPUs. It is logged
  again only once many more steps have confirmed it.
- The log tells the rates of each plan, and the speedups of sharing, whenever they change.
- A rates file that is far from what groups show is reported.
- A searcher whose networks are bounded in their rate receives the rate of the file.
- Cached rates name the GPUs that a driver lists, and the device that the spec asks for.
- Once a launch has ended, the cache of rates and the profile have what it has learned; what was
  measured is not measured again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulate import disk as d
from tests.simulate import kernel as k
from tests.simulate.features import FILES, SHARED
from tests.simulate.scenarios import MOST_SAMPLES_PER_S

_SURER = 4  # times as many steps confirm a learned rate
_CLOSE = 2e-3  # relative difference of two numbers, one of which was rounded
_FAR = 2.5  # factor by which a rate of a file is certainly wrong
_MANY_STEPS = 30


@dataclass
class _Learned:
    """What a launch has logged of rates."""

    observed: list[tuple[str, str, float, int]] = field(default_factory=list)
    steps: dict[tuple[str, str], int] = field(default_factory=dict)
    estimated: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, Any] = field(default_factory=dict)  # estimates of groups on more nodes
    planned: dict[str, Any] = field(default_factory=dict)
    sharing: Any = None
    newest: tuple[str, float] | None = None  # shape and rate that the cache must have
    profiled: Mapping[str, Any] = field(default_factory=dict)
    measured: set[tuple[str, int]] = field(default_factory=set)
    wrong: list[tuple[int, float]] = field(default_factory=list)  # GPUs and rates
    reported: list[tuple[int, float]] = field(default_factory=list)


class RatesOracle:
    """Watches what launches log and store of rates.

    Args:
        content: the spec.
        cache: the file of rates for later runs.
        profile: the file of rates of this run.
        gpus: name of the GPUs that a driver lists.
        is_alone: whether launches follow one another, on a disk without faults.
        object_to: is called with what is wrong.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        cache: Path,
        profile: Path,
        gpus: str,
        is_alone: bool,
        object_to: Callable[[str], None],
    ) -> None:
        self._content = content
        self._cache = cache
        self._profile = profile
        device = content["resources"].get("device", "auto")
        self._hardware = f"GPUs {gpus}".strip() + ("" if device == "auto" else f", {device}")
        self._is_alone = is_alone
        self._object_to = object_to
        self._launches: dict[str, _Learned] = {}
        self._measured: dict[tuple[str, int], str] = {}  # network and GPUs -> the launch
        models = content["models"]
        elastic = [isinstance(model["train"]["batch"]["size"], list) for model in models]
        when = content.get("profile", {}).get("when")
        self._must_measure = when == "offline" or all(elastic)
        self._may_measure = when == "offline" or any(elastic)
        self._file = self._rates_of_file()
        searches = [model["search"] for model in models if "search" in model]
        self._limits = [text for search in searches for text in search.get("constraints", ())]

    def _rates_of_file(self) -> dict[str, list[float]]:
        """Return the rates of the file that the spec names, if groups show others."""
        name = str(self._content["schedule"].get("rates", "")).removeprefix(f"{SHARED}/")
        resources = self._content["resources"]
        if (
            name != "rates.json"
            or resources["engine"] != "numpy"
            or "networks_per_gpu" in resources
        ):
            return {}
        return {model["name"]: model["rates"] for model in FILES[name]["models"]}

    def storage_crashed(self) -> None:
        """Allow that rates are measured again."""
        self._measured.clear()

    # ---- what rank 0 reports ----

    def observed(self, process: k.Process, name: str, shape: Any, observed: Any) -> None:
        """A group has shown a rate."""
        gpus = shape.gpus
        if not observed.rate:
            return
        learned = self._of(process)
        if observed.networks_per_gpu == 1:
            learned.observed.append((name, str(shape), observed.rate, observed.steps))
        rates = self._file.get(name)
        if rates is None or len(rates) < gpus or observed.steps < _MANY_STEPS:
            return
        factor = observed.rate / rates[gpus - 1]
        if not 1 / _FAR < factor < _FAR:
            learned.wrong.append((gpus, observed.rate))

    def planned(self, process: k.Process, rates: Mapping[str, Any]) -> None:
        """A launch has planned with these rates of networks that have not ended."""
        self._of(process).planned = dict(rates)

    def limited(self, table: Any, limited: Any) -> None:
        """A policy is given a table that was made from another one."""
        if limited.models is not table.models and limited.models != table.models:
            self._object_to("a policy is given outdated rates")

    def decided(self, process: k.Process) -> None:
        """All effects of a decision were carried out."""
        learned = self._of(process)
        for name, rates in learned.planned.items():
            if not _are_close(learned.estimated.get(name, ()), rates):
                self._object_to(
                    f"a plan has the rates {rates} of {name}; the log has "
                    f"{learned.estimated.get(name)}"
                )
        learned.planned = {}

    def logged(self, process: k.Process, record: Mapping[str, Any]) -> None:
        """A launch logs an event."""
        log = _LOGGED.get(record["event"])
        if log is not None:
            log(self, self._of(process), process, record)

    def _learned(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        name, rate, steps = (record[key] for key in ("network", "rate", "steps"))
        shape = _shape(record)
        if self._must_measure:
            self._object_to(f"the rate of {name} was learned, though rates should be measured")
        if steps < _SURER * learned.steps.get((name, shape), 0):
            self._object_to(f"the rate of {name} was logged again after few steps: {record}")
        if not any(
            (name, shape, steps) == (*seen[:2], seen[3]) and _is_close(rate, seen[2])
            for seen in learned.observed
        ):
            self._object_to(f"no group has shown this rate alone on its GPUs: {record}")
        learned.steps[name, shape] = steps
        learned.newest = shape, rate

    def _measured_rate(
        self, learned: _Learned, process: k.Process, record: Mapping[str, Any]
    ) -> None:
        name, gpus, rate = record["network"], record["gpus"], record["rate"]
        if not self._may_measure:
            self._object_to(f"the rate of {name} was measured, though it should be learned")
        if not rate:
            return
        before = self._measured.get((name, gpus))
        if before is not None and before != process.label:
            self._object_to(f"launch {before} had measured {name} on {gpus} GPUs: {record}")
        learned.measured.add((name, gpus))
        learned.newest = str(gpus), rate

    def _profiled(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        learned.profiled = record["rates"]
        if self._is_alone:
            self._measured.update(dict.fromkeys(learned.measured, process.label))

    def _estimated(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        spread = record.get("spread_rates", {})
        for name, rates in record["rates"].items():
            before = learned.estimated.get(name), learned.spread.get(name)
            if before == (rates, spread.get(name)):
                self._object_to(f"the rates of {name} were logged again: {record}")
            learned.spread.pop(name, None)
        learned.estimated.update(record["rates"])
        learned.spread.update(spread)

    def _sharing(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        content = {key: value for key, value in record.items() if key != "t_s"}
        if learned.sharing == content:
            self._object_to(f"the speedups of sharing were logged again: {record}")
        learned.sharing = content

    def _tell(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        """Check that a searcher receives the rate of the file, and no other."""
        violations, rates = record.get("violations"), self._file.get(record["entry"])
        if record["call"] != "tell" or not violations or not rates:
            return
        if self._limits == [f"rate <= {MOST_SAMPLES_PER_S}"] and not _is_close(
            violations[0], rates[0] - MOST_SAMPLES_PER_S
        ):
            self._object_to(f"the file has a rate of {rates[0]} of a network: {record}")

    def _rate_off(self, learned: _Learned, process: k.Process, record: Mapping[str, Any]) -> None:
        learned.reported.append((record["gpus"], record["rate"]))
        if record["corrected"]:
            learned.newest = _shape(record), record["rate"]

    def _of(self, process: k.Process) -> _Learned:
        return self._launches.setdefault(process.label, _Learned())

    # ---- after a launch ----

    def check(self, label: str) -> None:
        """Check the files after a launch that has ended in order.

        Args:
            label: the label of its rank 0.
        """
        learned = self._launches.get(label)
        if learned is None or not self._is_alone:
            return
        for gpus, rate in learned.wrong:
            if not any(gpus == size and 0.5 < rate / off < 2 for size, off in learned.reported):
                self._object_to(f"a rate of {rate} on {gpus} GPUs is far from the rates file")
        entries = [sizes for sizes in _read(self._cache).values() if isinstance(sizes, dict)]
        for rate in (rate for sizes in entries for rate in sizes.values()):
            if not rate["machine"].endswith(self._hardware):
                self._object_to(f"a rate was measured on {self._hardware}; the cache has {rate}")
        if learned.newest is not None:
            shape, rate = learned.newest
            cached = [shapes[shape]["rate"] for shapes in entries if shape in shapes]
            if not any(_is_close(rate, value) for value in cached):
                self._object_to(f"the cache has {cached} on {shape} GPUs, but not {rate}")
        if learned.sharing is not None:
            for number, speedup in enumerate(learned.sharing["speedups"][1:], start=2):
                cached = [sizes[str(number)]["rate"] for sizes in entries if str(number) in sizes]
                if not any(math.isclose(speedup, value, rel_tol=0.02) for value in cached):
                    self._object_to(f"the cache lacks the speedup {speedup} of {number}: {cached}")
        self._check_profile(learned)

    def _check_profile(self, learned: _Learned) -> None:
        models = {model["name"]: model for model in _read(self._profile).get("models", ())}
        for name, rates in learned.profiled.items():
            if name not in models or not _are_close(models[name]["rates"], rates):
                self._object_to(f"{name} was measured as {rates}; the profile has {models}")
        names = {name for name, *_ in learned.observed}
        if not learned.profiled and names and names >= learned.estimated.keys() > set():
            missing = {name for name, _ in learned.steps} & learned.estimated.keys() - models.keys()
            if missing:
                self._object_to(f"the profile lacks {missing}, whose rates were learned")


_LOGGED: dict[str, Callable[..., None]] = {
    "learned": RatesOracle._learned,
    "measured": RatesOracle._measured_rate,
    "profiled": RatesOracle._profiled,
    "estimated": RatesOracle._estimated,
    "sharing": RatesOracle._sharing,
    "rate_off": RatesOracle._rate_off,
    "search": RatesOracle._tell,
}


def _shape(record: Mapping[str, Any]) -> str:
    """Return what a logged rate belongs to, as the cache names it."""
    return f"{record['gpus']} {record.get('span', '')}".rstrip()


def _read(path: Path) -> dict[str, Any]:
    try:
        with d.real_open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=_CLOSE, abs_tol=2e-3)


def _are_close(values: Any, expected: Any) -> bool:
    return len(values) == len(expected) and all(map(_is_close, values, expected))
