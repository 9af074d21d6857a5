"""What is learned of the rates, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fleet.domain.json_record import Kind, Milli, OmitDefault, Places, Tenths
from scheduler.base import StepTime


class RatesGiven(Kind, word="rates"):
    """Rates were read from a file, so none are measured; follows :class:`Started`.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs.
    """

    rates: Mapping[str, tuple[float, ...]]


class SharingLearned(Kind, word="sharing"):
    """Training has shown what networks that share a GPU train together, or has shown it anew, or earlier runs have.

    Attributes:
        speedups: how many times as many samples/s as one 1, 2, ... networks train together, as far as is known.
        slots: how many networks may share a GPU in this launch.
        device: what they share: GPU, or what takes its place.
        bound: what keeps more from sharing one, where that would pay or may: ``ranks`` that were not started, or
            ``per_device``; empty where nothing does.
    """

    speedups: tuple[float, ...]
    slots: Annotated[int, OmitDefault] = 1
    device: Annotated[str, OmitDefault] = "GPU"
    bound: Annotated[str, OmitDefault] = ""


class SupplyFound(Kind, word="supply"):
    """The input gives another number of samples/s than the present plan counted on, by more than a quarter.

    Attributes:
        supply_samples_per_s: that each network is given at most.
        demand_samples_per_s: that the fastest network could take, on as many GPUs as make it fastest; 0 where nobody
            knows.
    """

    supply_samples_per_s: Tenths
    demand_samples_per_s: Tenths

    @property
    def words(self) -> str:
        """It in a line."""
        gives = f"the input gives {self.supply_samples_per_s:.0f} samples/s"
        if not self.demand_samples_per_s:
            return gives
        rates = f"{gives}, the fastest network could take {self.demand_samples_per_s:.0f}"
        if self.supply_samples_per_s >= self.demand_samples_per_s:
            return f"{rates}: it holds no network back"
        return f"{rates}: no network is given devices that would only wait for it"


class RateMeasured(Kind, word="measured"):
    """A network's rate on a group of some size was measured, or could not be.

    Attributes:
        rate: samples/s of the whole group; 0 if it could not be measured.
        seconds: how long the measurement took.
        done, total: measurements so far, and in all.
        reason: why it could not be measured; empty if it was.
        spread: standard deviation of the durations of its steps, as a share of their mean.
        steps: that were timed.
        timed: the steps of several global batches, where the policy chooses the batch.
        parameters: of the network, beside these.
    """

    network: str
    gpus: int
    rate: Milli
    seconds: Milli
    done: int
    total: int
    reason: Annotated[str, OmitDefault] = ""
    spread: Annotated[float, Places(4), OmitDefault] = 0.0
    steps: Annotated[int, OmitDefault] = 0
    timed: Annotated[tuple[StepTime, ...], OmitDefault] = ()
    parameters: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class RememberedRate:
    """A rate that an earlier launch has found out; see :class:`fleet.storage.rate_cache.KnownRate`.

    Attributes:
        age_s: how old it was, in seconds, when this launch began.
    """

    gpus: int
    rate: Milli
    spread: float
    age_s: float
    machine: str
    how: str


class RatesRemembered(Kind, word="cached"):
    """Rates of earlier launches are used; follows :class:`Started`.

    Attributes:
        cache: the file that has them.
        rates: network -> what is known of it.
    """

    cache: str
    rates: Mapping[str, tuple[RememberedRate, ...]]


class RateOff(Kind, word="rate_off"):
    """A network trains at another rate than it was taken to, by more than a quarter.

    Attributes:
        expected, rate: samples/s of the whole group: by which it was decided, and of its training steps.
        spread: standard deviation of the durations of these steps, as a share of their mean.
        steps: that were timed.
        corrected: whether the cache of rates has it now; a rates file stays as it is.
    """

    network: str
    gpus: int
    expected: Milli
    rate: Milli
    spread: Annotated[float, Places(4)]
    steps: int
    corrected: bool


class Profiled(Kind, word="profiled"):
    """All rates are known because they were measured, in this launch or an earlier one.

    Attributes:
        measurements: how many were made in this launch.
        seconds: how long they took in all.
        rates: network -> samples/s on 1, 2, ... GPUs.
    """

    measurements: int
    seconds: Milli
    rates: Mapping[str, tuple[float, ...]]


class RateLearned(Kind, word="learned"):
    """Training has shown how fast a network is on a group of some size; again as more steps make it surer.

    Attributes:
        rate: samples/s of the whole group.
        spread: standard deviation of the durations of its steps, as a share of their mean.
        steps: that were timed.
    """

    network: str
    gpus: int
    rate: Milli
    spread: Annotated[float, Places(4)]
    steps: int


class RatesEstimated(Kind, word="estimated"):
    """The rates by which the next plan was made, where they are learned in training: shown, remembered or guessed.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs, of all that are not over and whose rates are others than before.
        seen: how many networks training or an earlier run has shown; without any, rates only compare networks.
    """

    rates: Mapping[str, tuple[float, ...]]
    seen: int
