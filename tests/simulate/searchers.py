"""Searchers that misbehave, at random, in all ways that a program can."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.simulate import kernel as k

RATE = "train.optimizer.learning_rate"


def _kernel() -> Any:
    kernel = k.active()
    assert kernel is not None
    return kernel


class Unreliable:
    """Proposes random values, and sometimes does something wrong instead.

    Args:
        faults: some of :data:`tests.simulate.cases.SEARCHER_FAULTS`.
        share: share of the calls in which one of them happens.
        inherits: whether some networks start from the weights of earlier ones.
        pauses: whether it pauses and resumes networks.
    """

    def __init__(
        self,
        space: Any,
        seed: int,
        mode: str,
        faults: Any = (),
        share: float = 0.2,
        inherits: bool = False,
        pauses: bool = False,
    ) -> None:
        self._range = space[RATE]
        self._faults = list(faults)
        self._share = share
        self._inherits = inherits
        self._pauses = pauses
        self._random = random.Random(seed)
        self._values: dict[int, dict[str, Any]] = {}
        self._reported: list[int] = []
        self._paused: list[int] = []
        may_fail = "fail to start" in self._faults and _kernel().process.label != "observer"
        if may_fail and self._unseeded() < 0.2:
            _kernel().counts["searcher: fail to start"] += 1
            raise RuntimeError("the searcher is not in the mood")

    def _unseeded(self) -> float:
        """Return a random number that differs between two launches."""
        return _kernel().random.random()

    def _fault(self) -> str:
        """Choose what goes wrong in a call; empty if nothing does."""
        if not self._faults or self._random.random() >= self._share:
            return ""
        fault: str = self._random.choice(self._faults)
        kernel = _kernel()
        kernel.counts[f"searcher: {fault}"] += 1
        if fault == "raise":
            raise RuntimeError("the searcher is out of ideas")
        if fault == "exit":
            raise SystemExit(3)
        if fault in ("hang", "slow"):
            time.sleep(100.0 if fault == "hang" else self._random.uniform(0, 3))
        if fault == "forget":  # answers differ when the calls are repeated
            self._random.seed(self._unseeded())
        return fault

    def ask(self, number: int) -> Any:
        """Propose the values of a network."""
        fault = self._fault()
        if fault == "none":
            return None
        if fault == "nonsense":
            return self._random.choice(([0.1], {}, {RATE: "fast"}, {RATE: 0.1, "other": 1}))
        if fault == "repeat" and self._values:
            return dict(self._random.choice(list(self._values.values())))
        value = self._range.at(self._random.random())
        wrong = {"nan": float("nan"), "outside": 1e6}
        values: dict[str, Any] = {RATE: wrong.get(fault, value)}
        if self._inherits and self._reported and self._random.random() < 0.7:
            values["parent"] = self._random.choice(self._reported)
        self._values[number] = {RATE: values[RATE]}
        return values

    def report(self, number: int, epoch: int, value: float) -> Any:
        """Judge a network."""
        self._reported.append(number)
        fault = self._fault()
        if fault in ("nonsense", "outside", "nan"):
            return {"nonsense": "perhaps", "outside": 7, "nan": float("nan")}[fault]
        drawn = self._random.random()
        if self._pauses and drawn < 0.3:
            self._paused.append(number)
            return "pause"
        return "stop" if drawn > 0.9 else "go_on"

    def resume(self) -> Any:
        """Choose a network that it has paused."""
        fault = self._fault()
        if fault in ("nonsense", "outside"):
            return {"nonsense": "n0", "outside": 1234}[fault]
        if self._paused and self._random.random() < 0.5:
            return self._paused.pop(0)
        return None

    def tell(self, number: int, outcome: str, value: Any) -> Any:
        """Take note of the end of a network."""
        self._fault()
        if number in self._paused:
            self._paused.remove(number)
