"""What a run's event log says: who trained when, where the time went, and what it should have taken.

The log alone is read, so a run can be looked at while it goes on, after it was killed, and on another machine.
A run that was resumed has several launches; they follow each other here as if nothing had been between them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.units import parse_delta, parse_stream
from scheduler.base import Cluster, Delta, InputError, Network, Options, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.replay import Record, Replay, replay, stints_of
from scheduler.ensemble.simulation import Stint

Event = dict[str, Any]


@dataclass(frozen=True)
class Spent:
    """Where GPU-seconds went; they add up to those of the whole run.

    Attributes:
        training: steps, and validation.
        data: waiting for samples.
        checkpointing: training blocked by a checkpoint.
        moving: groups that have their devices and do not train: they start, change, wait for orders between
            epochs, export a network, or did what a kill undid.
        waiting: devices without a group.
        scheduling, profiling: all devices wait for these.
    """

    training: float
    data: float
    checkpointing: float
    moving: float
    waiting: float
    scheduling: float
    profiling: float

    @property
    def blocked_share(self) -> float:
        """Time for which checkpoints blocked training (copying, waiting for the writer), as a share of training."""
        return self.checkpointing / self.training if self.training else 0.0


@dataclass(frozen=True)
class Account:
    """A run, as its log tells it.

    Attributes:
        seconds: of all launches.
        policy: of the last launch.
        devices: that the last launch had.
        gpus_per_node: of it.
        launches: how many there were.
        stints: who trained when on which devices.
        spent: where the time went.
        costs: what moves cost in this run, as a simulation takes them.
        epoch_s: what passed on average between two epochs of a group that went on as it was.
        replay: the same run simulated; None where rates or epochs are missing.
        time_scale: seconds that a second of training took: not 1 where it was emulated.
    """

    seconds: float
    policy: str
    devices: tuple[int, ...]
    gpus_per_node: int
    launches: int
    stints: tuple[Stint, ...]
    spent: Spent
    costs: Costs
    epoch_s: float
    replay: Replay | None
    time_scale: float

    @property
    def measured_s(self) -> float | None:
        """From the first group to the last."""
        return None if self.replay is None else self.replay.measured_s * self.time_scale

    @property
    def simulated_s(self) -> float | None:
        """What that should have taken."""
        return None if self.replay is None else self.replay.simulated.makespan_s * self.time_scale


def account(events: Iterable[Event]) -> Account | None:
    """Read a run's log, of all its launches.

    Returns:
        None where no launch has come as far as to begin.
    """
    launches = _launches(events)
    if not launches:
        return None
    start = launches[-1][0]
    events = _end_to_end(launches)
    stints = stints_of(_records(events))
    seconds = events[-1]["t_s"]
    costs, epoch_s = _costs(events, is_lockstep=start["stream"] == "lockstep")
    return Account(seconds, start["policy"], tuple(start["devices"]), start["gpus_per_node"], len(launches), stints,
                   _spent(events, stints), costs, epoch_s, _replay(start, events, costs, epoch_s),
                   start["time_scale"])


# ---- the log as one launch ---------------------------------------------------------------------


def _launches(events: Iterable[Event]) -> list[list[Event]]:
    launches: list[list[Event]] = []
    for event in events:
        if event["event"] == "start":
            launches.append([])
        if launches:
            launches[-1].append(event)
    return launches


def _end_to_end(launches: Sequence[Sequence[Event]]) -> list[Event]:
    """All events on one clock.

    A launch that was killed says neither that its groups are gone nor which epochs it saved last: with these the
    next one begins.
    """
    events: list[Event] = []
    for start, *rest in launches:
        now = events[-1]["t_s"] if events else 0.0
        late = list(takewhile(lambda event: event["event"] == "epoch", rest))
        events += [{**event, "t_s": now, "is_late": True} for event in late]
        events += [{"t_s": now, "event": "killed", "network": name} for name in _running(events)]
        events += [{**event, "t_s": now + event["t_s"]} for event in (start, *rest[len(late):])]
    return events


def _running(events: Iterable[Event]) -> set[str]:
    running: set[str] = set()
    for event in events:
        if event["event"] == "group":
            running.add(event["network"])
        elif event["event"] in _ENDS:
            running.discard(event["network"])
    return running


_ENDS = ("stopped", "failed", "retry", "struck", "killed")  # of a group


def _records(events: Sequence[Event]) -> list[Record]:
    """Who had which devices, and when epochs ended."""
    records: list[Record] = []
    running: set[str] = set()
    for event in events:
        kind, name, now = event["event"], event.get("network", ""), event["t_s"]
        if kind in ("group", "regroup"):
            running.add(name)
            records.append(Record(now, "group", name, tuple(event["devices"])))
        elif kind == "epoch" and name in running:
            records.append(Record(now, "epoch", name))
        elif kind in _ENDS and name in running:
            running.remove(name)
            records.append(Record(now, "stopped", name))
    return records


# ---- where the time went -----------------------------------------------------------------------


def _spent(events: Sequence[Event], stints: Sequence[Stint]) -> Spent:
    training = data = checkpointing = scheduling = profiling = total = began = 0.0
    gpus: dict[str, int] = {}
    devices = 0
    for event, after in zip(events, [*events[1:], None], strict=True):
        kind = event["event"]
        if kind == "start":
            began, devices = event["t_s"], len(event["devices"])
        elif kind in ("group", "regroup"):
            gpus[event["network"]] = len(event["devices"])
        elif kind == "epoch":
            took, waited = event["seconds"], event["waited_s"]
            held = _gpu_seconds(stints, event["network"], event["t_s"] - took, event["t_s"])
            training += held * (took - waited) / max(took, 1e-9)
            data += held * waited / max(took, 1e-9)
            checkpointing += event["blocked_s"] * event["gpus"]
        elif kind == "stopped":
            checkpointing += event["checkpoint_s"] * gpus.get(event["network"], 0)
        elif kind == "plan":
            scheduling += event["scheduling_s"] * devices
        elif kind == "profiled":
            profiling += event["seconds"] * devices
        if after is None or after["event"] == "start":
            total += (event["t_s"] - began) * devices
    held = sum((stint.end_s - stint.start_s) * len(stint.devices) for stint in stints)
    moving = max(0.0, held - training - data - checkpointing)
    waiting = max(0.0, total - held - scheduling - profiling)
    return Spent(training, data, checkpointing, moving, waiting, scheduling, profiling)


def _gpu_seconds(stints: Sequence[Stint], network: str, begin: float, end: float) -> float:
    """What a network had of its devices in some time, though it may have changed them."""
    return sum(max(0.0, min(end, stint.end_s) - max(begin, stint.start_s)) * len(stint.devices)
               for stint in stints if stint.name == network)


def _costs(events: Sequence[Event], is_lockstep: bool) -> tuple[Costs, float]:
    """What moves cost on average, and what passed between two epochs of a group that went on as it was.

    In lockstep groups wait for the slowest at an epoch's end: only what passed for that one is a cost.
    """
    forming, stopping, deciding = [], [], []
    between: dict[object, float] = {}
    before: dict[str, Event] = {}  # network -> its event before
    final: set[str] = set()
    for event in events:
        kind, name = event["event"], event.get("network", "")
        last = before.get(name)
        if kind == "epoch" and last is not None and not event.get("is_late"):
            passed = event["t_s"] - event["seconds"] - last["t_s"]
            if last["event"] == "group":
                forming.append(passed)
            elif last["event"] == "epoch":
                which = event["stream_epoch"] if is_lockstep else (name, event["epoch"])
                between[which] = min(passed, between.get(which, passed))
        elif kind == "regroup":
            forming.append(event["seconds"])
        elif kind == "stopped" and name not in final:
            stopping.append(event["checkpoint_s"])
        elif kind == "final":
            final.add(name)
        elif kind == "plan":
            deciding.append(event["scheduling_s"])
        if kind in ("group", "regroup", "epoch", *_ENDS):
            before[name] = event
    return (Costs(checkpoint_s=_mean(stopping), regroup_s=_mean(forming), scheduling_s=_mean(deciding)),
            _mean(list(between.values())))


def _mean(values: Sequence[float]) -> float:
    return max(0.0, statistics.fmean(values)) if values else 0.0


# ---- beside the simulation ---------------------------------------------------------------------


def _replay(start: Event, events: Sequence[Event], costs: Costs, epoch_s: float) -> Replay | None:
    scale = start["time_scale"]
    bounds = start["bounds"]
    told = RateTable(start["samples"], start["gpus_per_node"], tuple(
        Network(name, tuple(rates), min_gpus=bounds[name][0], max_gpus=bounds[name][1])
        for name, rates in (_told(events) or _shown(events, scale)).items() if name in bounds))
    supply = [event["supply_samples_per_s"] for event in events if event["event"] == "stream"]
    stream = parse_stream(start["stream"])
    if stream.count and supply:
        stream = dataclasses.replace(stream, rate=supply[-1] * scale)
    options = start["options"]
    scaled = Costs(**{name: seconds / scale for name, seconds in dataclasses.asdict(costs).items()})
    records = [dataclasses.replace(record, t_s=record.t_s / scale) for record in _records(events)]
    try:
        return replay(records, told, Cluster(tuple(start["devices"]), start["gpus_per_node"]),
                      find_policy(start["policy"]),
                      Options(options["alpha"], _delta(options["delta"]), options["peak_limited"],
                              options["seed"]),
                      scaled, stream, epoch_s / scale)
    except InputError:  # no network has ended an epoch yet, or one has no rates
        return None
    except UserError:  # a policy of the user's own that is not here
        return None


def _delta(text: str) -> Delta:
    """The delta of a log; until 0.1.0 samples/s were written without their unit."""
    return parse_delta(text if text.endswith(("%", "/s")) else f"{text}/s")


def _told(events: Sequence[Event]) -> dict[str, Sequence[float]]:
    """The rates that the policy was told; a launch measures those networks that are not done."""
    rates: dict[str, Sequence[float]] = {}
    for event in events:
        if event["event"] in ("rates", "profiled"):
            rates |= event["rates"]
    return rates


def _shown(events: Sequence[Event], scale: float) -> dict[str, Sequence[float]]:
    """The rates that networks showed, where the policy was told none: then each has one group size only."""
    samples: dict[str, float] = {}
    seconds: dict[str, float] = {}
    gpus: dict[str, int] = {}
    for event in events:
        if event["event"] == "epoch":
            name = event["network"]
            samples[name] = samples.get(name, 0.0) + event["samples"]
            seconds[name] = seconds.get(name, 0.0) + event["seconds"] - event["waited_s"]
            gpus[name] = event["gpus"]
    return {name: [scale * samples[name] / max(seconds[name], 1e-9) * size / most for size in range(1, most + 1)]
            for name, most in gpus.items()}
