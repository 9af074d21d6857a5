"""Events of the stream, plans, rounds and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fleet.domain.json_record import Flat, JsonRecord, Micro, OmitDefault, Tenths
from fleet.domain.network import EpochRecord


class CacheChosen(JsonRecord, word="cache"):
    """How decoded samples are stored (``data.cache``); follows :class:`LaunchStarted`.

    Attributes:
        cache: none, memory or file.
        asked: the value in the spec: one of these, or auto.
        why: the reason, in words.
        nbytes: their size, on each node in memory or on disk; 0 if none are stored.
        shuffle: ``network`` if each network draws its sample order by its own epochs, whatever the
            schedule; ``stream`` if the order is that of the stream's epochs, or of a ring.
    """

    cache: str
    asked: str
    why: str
    nbytes: int
    shuffle: str

    @property
    def summary(self) -> str:
        """The event in one line."""
        texts = {
            "memory": "decoded samples stay in memory",
            "file": "samples are decoded once, into a file",
        }
        return f"{texts.get(self.cache, 'samples are prepared anew in every epoch')}: {self.why}"

    @property
    def is_temporary(self) -> bool:
        """Whether the file belongs to the run, and is deleted at its end."""
        return self.cache == "file" and self.asked == "auto"


class StreamStarted(JsonRecord, word="stream"):
    """Preprocessors begin to produce samples, or continue without one that slowed the others down.

    Attributes:
        preprocessors: number that produce.
        of: number of preprocessors.
        pace: ``shared`` if groups read the same epochs in step, ``own`` if each has its own pace.
        kept: whether samples are decoded in the first epoch and stored from then on.
        supply_samples_per_s: samples/s of these preprocessors together.
        demand_samples_per_s: samples/s that the fastest network takes; 0 while unknown.
        bottleneck: ``input`` or ``training``; empty while unknown.
    """

    preprocessors: int
    of: int
    policy: str
    pace: str
    kept: bool
    supply_samples_per_s: Tenths
    demand_samples_per_s: Tenths
    bottleneck: str


@dataclass(frozen=True)
class PlannedGroup:
    """A network in a plan, with its devices.

    Attributes:
        batch: global batch of the epochs that it begins, if the policy chooses it; else 0.
    """

    name: str
    gpus: int
    devices: tuple[int, ...]
    batch: Annotated[int, OmitDefault] = 0


class PlanChanged(JsonRecord, word="plan"):
    """The policy returned a different plan.

    Attributes:
        members: the networks that should train now; others should not.
        scheduling_s: seconds of the policy since the previous change, with calls that changed
            nothing.
    """

    members: tuple[PlannedGroup, ...]
    scheduling_s: Micro


class RoundStarted(JsonRecord, word="round"):
    """A round begins: groups start, and every other group is about to stop.

    Attributes:
        round: counted from 1 in each launch.
        members: the networks that start.
    """

    round: int
    members: tuple[str, ...]


class GroupStarted(JsonRecord, word="group"):
    """A group of devices was started to train a network.

    Attributes:
        devices: the master's first.
        stream_epoch: the first epoch of the stream that it may read, or of the network's own count.
    """

    network: str
    devices: tuple[int, ...]
    stream_epoch: int
    round: int


class GroupChanged(JsonRecord, word="regroup"):
    """A group continues with other devices.

    Attributes:
        before: its previous devices.
        devices: its new devices, the master's first.
        position: samples of the epoch that it had consumed.
        seconds: duration of its pause.
    """

    network: str
    before: tuple[int, ...]
    devices: tuple[int, ...]
    position: int
    seconds: Micro


class EnergyUsed(JsonRecord, word="energy"):
    """A rank has used energy to train a network, also for epochs that are lost later.

    Attributes:
        joules: since its previous event.
    """

    network: str
    joules: Micro


class EpochEnded(JsonRecord, word="epoch"):
    """A network has finished an epoch.

    Epochs that a killed launch had saved but not logged follow the start of the next launch. Epochs
    that a failed group had saved come before its :class:`GroupFailed`.

    Attributes:
        record: the epoch in the network's history; its fields are keys of the event.
        blocked_s: seconds for which checkpoints blocked training.
        missed: useful chunks of a ring on a node of the group that another node had dropped; 0 for
            epochs that were logged late.
        parameters: number of parameters, in the first epoch after building, if known.
    """

    network: str
    record: Annotated[EpochRecord, Flat]
    blocked_s: Micro = 0.0
    missed: Annotated[int, OmitDefault] = 0
    parameters: Annotated[int, OmitDefault] = 0


class GroupStopped(JsonRecord, word="stopped"):
    """A group has stopped: its network is saved, its devices are free.

    Attributes:
        checkpoint_s: seconds until the last checkpoint was on disk.
        export_s: seconds of the export of a finished network after that.
    """

    network: str
    checkpoint_s: Micro
    export_s: Micro = 0.0


class TimeLeftEstimated(JsonRecord, word="eta"):
    """The estimated time left of the run: a range.

    Attributes:
        low_s, high_s: seconds from now, if networks stop as early as their rules allow, and if they
            train all their epochs.
        networks: networks that have not ended or that searches may still propose.
    """

    low_s: Tenths
    high_s: Tenths
    networks: int
