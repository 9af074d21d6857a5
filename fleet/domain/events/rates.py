"""Events of training rates, and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fleet.domain.json_record import JsonRecord, Milli, OmitDefault, Tenths, decimals
from scheduler.base import GroupShape, Span, StepTime


class RatesLoaded(JsonRecord, word="rates"):
    """Rates were read from a file, so none are measured; follows :class:`LaunchStarted`.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs.
        spread_rates: network -> the same on GPUs that lie on more nodes than necessary, of networks
            for which the file has them.
    """

    rates: Mapping[str, tuple[float, ...]]
    spread_rates: Annotated[Mapping[str, tuple[float, ...]], OmitDefault] = field(
        default_factory=dict
    )


class SharingLearned(JsonRecord, word="sharing"):
    """The throughput of networks that share a GPU is known, or has changed.

    Attributes:
        speedups: samples/s of 1, 2, ... networks on one GPU, relative to one network.
        slots: networks that may share a GPU in this launch.
        device: what they share: GPU, or its substitute.
        bound: what prevents more networks per GPU, if they would pay: ``ranks`` that were not
            started, or ``per_device``; otherwise empty.
    """

    speedups: tuple[float, ...]
    slots: Annotated[int, OmitDefault] = 1
    device: Annotated[str, OmitDefault] = "GPU"
    bound: Annotated[str, OmitDefault] = ""


class SupplyChanged(JsonRecord, word="supply"):
    """The input rate differs by more than a quarter from what the current plan assumed.

    Attributes:
        supply_samples_per_s: the most that each network receives.
        demand_samples_per_s: what the fastest network could take on its best number of GPUs; 0 if
            unknown.
    """

    supply_samples_per_s: Tenths
    demand_samples_per_s: Tenths

    @property
    def summary(self) -> str:
        """The event in one line."""
        gives = f"the input gives {self.supply_samples_per_s:.0f} samples/s"
        if not self.demand_samples_per_s:
            return gives
        rates = f"{gives}, the fastest network could take {self.demand_samples_per_s:.0f}"
        if self.supply_samples_per_s >= self.demand_samples_per_s:
            return f"{rates}: it holds no network back"
        return f"{rates}: no network gets devices that would only wait for it"


class RateMeasured(JsonRecord, word="measured"):
    """A network's rate on a number of GPUs was measured, or could not be.

    Attributes:
        rate: samples/s of the whole group; 0 if it could not be measured.
        seconds: duration of the measurement.
        done, total: measurements so far, and in all.
        reason: why it could not be measured; empty if it was.
        spread: standard deviation of the step durations, as a share of their mean.
        steps: number of timed steps.
        timed: the steps of several global batches, if the policy chooses the batch.
        parameters: number of parameters of the network, if ``timed`` is not empty.
    """

    network: str
    gpus: int
    rate: Milli
    seconds: Milli
    done: int
    total: int
    reason: Annotated[str, OmitDefault] = ""
    spread: Annotated[float, decimals(4), OmitDefault] = 0.0
    steps: Annotated[int, OmitDefault] = 0
    timed: Annotated[tuple[StepTime, ...], OmitDefault] = ()
    parameters: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class RememberedRate:
    """A rate from an earlier launch; see :class:`fleet.storage.rate_cache.KnownRate`.

    Attributes:
        age_s: its age in seconds when this launch began.
        span: how its GPUs lay; see :class:`scheduler.base.Span`.
    """

    gpus: int
    rate: Milli
    spread: float
    age_s: float
    machine: str
    how: str
    span: Annotated[str, OmitDefault] = ""


class CachedRatesUsed(JsonRecord, word="cached"):
    """Rates of earlier launches are used; follows :class:`LaunchStarted`.

    Attributes:
        cache: the file that has them.
        rates: network -> its rates.
    """

    cache: str
    rates: Mapping[str, tuple[RememberedRate, ...]]


class RateMismatch(JsonRecord, word="rate_off"):
    """A network trains at a rate that differs from the expected one by more than a quarter.

    Attributes:
        expected, rate: samples/s of the whole group: assumed by the plan, and of its training
            steps.
        spread: standard deviation of the step durations, as a share of their mean.
        steps: number of timed steps.
        corrected: whether the cache of rates was corrected; a rates file stays as it is.
        span: how the GPUs lie; see :class:`scheduler.base.Span`.
    """

    network: str
    gpus: int
    expected: Milli
    rate: Milli
    spread: Annotated[float, decimals(4)]
    steps: int
    corrected: bool
    span: Annotated[str, OmitDefault] = ""

    @property
    def shape(self) -> GroupShape:
        """What the rate belongs to."""
        return GroupShape(self.gpus, Span(self.span))


class ProfilingFinished(JsonRecord, word="profiled"):
    """All rates have been measured, in this launch or an earlier one.

    Attributes:
        measurements: number of measurements in this launch.
        seconds: their total duration.
        rates: network -> samples/s on 1, 2, ... GPUs.
    """

    measurements: int
    seconds: Milli
    rates: Mapping[str, tuple[float, ...]]


class RateLearned(JsonRecord, word="learned"):
    """Training has shown the rate of a network; repeated as more steps confirm it.

    Attributes:
        rate: samples/s of the whole group.
        spread: standard deviation of the step durations, as a share of their mean.
        steps: number of timed steps.
        span: how the GPUs lie; see :class:`scheduler.base.Span`.
    """

    network: str
    gpus: int
    rate: Milli
    spread: Annotated[float, decimals(4)]
    steps: int
    span: Annotated[str, OmitDefault] = ""

    @property
    def shape(self) -> GroupShape:
        """What the rate belongs to."""
        return GroupShape(self.gpus, Span(self.span))


class RatesEstimated(JsonRecord, word="estimated"):
    """The rates of the current plan, if learned: observed, cached or estimated.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs, of networks whose rates have changed.
        seen: networks with observed or cached rates; if 0, rates only compare networks.
        spread_rates: network -> the same on GPUs that lie on more nodes than necessary, where that
            is known to differ.
    """

    rates: Mapping[str, tuple[float, ...]]
    seen: int
    spread_rates: Annotated[Mapping[str, tuple[float, ...]], OmitDefault] = field(
        default_factory=dict
    )
