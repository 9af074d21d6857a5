"""The stream, plans, rounds, and what groups do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fleet.domain.json_record import Flat, Kind, Micro, OmitDefault, Tenths
from fleet.domain.network import EpochRecord


class CacheChosen(Kind, word="cache"):
    """What becomes of decoded samples in this launch (``data.cache``); follows :class:`Started`.

    Attributes:
        cache: none, memory or file.
        asked: what the spec says: one of these, or auto.
        why: in words.
        nbytes: that they take, on each node in memory, or on the disk; 0 where none are kept.
        shuffle: ``network`` if each network draws the order of its samples by its own epochs, so that no schedule
            changes it; ``stream`` if it is that of the stream's epochs, or of a ring's.
    """

    cache: str
    asked: str
    why: str
    nbytes: int
    shuffle: str

    @property
    def words(self) -> str:
        """It in a line."""
        said = {
            "memory": "decoded samples stay in memory",
            "file": "samples are decoded once, into a file",
        }
        return f"{said.get(self.cache, 'samples are prepared anew in every epoch')}: {self.why}"

    @property
    def is_passing(self) -> bool:
        """Whether the file is the run's own business, to be deleted when all is done."""
        return self.cache == "file" and self.asked == "auto"


class StreamStarted(Kind, word="stream"):
    """The preprocessors begin to produce samples; or go on without one that has held the others up.

    Attributes:
        preprocessors: how many produce.
        of: how many there are.
        pace: ``shared`` if groups read the same epochs in step, ``own`` if each group goes at its own pace.
        kept: whether samples are decoded in the first epoch and kept from then on.
        supply_samples_per_s: how many samples/s those preprocessors produce together.
        demand_samples_per_s: how many samples/s the fastest network takes; 0 as long as nobody knows.
        bottleneck: ``input`` or ``training``; empty as long as nobody knows.
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
    """A network in a plan, with how many devices it should have and which.

    Attributes:
        batch: of the epochs that it begins, where the policy chooses it; else 0.
    """

    name: str
    gpus: int
    devices: tuple[int, ...]
    batch: Annotated[int, OmitDefault] = 0


class Planned(Kind, word="plan"):
    """The policy wants another assignment than before.

    Attributes:
        members: the networks that should train now; those that are not named should not.
        scheduling_s: seconds that the policy took since the previous plan; it is also asked when it wants no change.
    """

    members: tuple[PlannedGroup, ...]
    scheduling_s: Micro


class RoundStarted(Kind, word="round"):
    """A round begins: groups start, and every other group is about to stop.

    Attributes:
        round: counted from 1 in each launch.
        members: the networks that start.
    """

    round: int
    members: tuple[str, ...]


class GroupStarted(Kind, word="group"):
    """A group of devices was told to train a network.

    Attributes:
        devices: the master's first.
        stream_epoch: the first epoch of the stream that it may read, or of the network's own count if each has one.
    """

    network: str
    devices: tuple[int, ...]
    stream_epoch: int
    round: int


class GroupChanged(Kind, word="regroup"):
    """A group goes on with other devices.

    Attributes:
        before: the devices that it had.
        devices: the devices that it has now, the master's first.
        position: samples of the epoch that it had consumed.
        seconds: for which it stood still.
    """

    network: str
    before: tuple[int, ...]
    devices: tuple[int, ...]
    position: int
    seconds: Micro


class EpochEnded(Kind, word="epoch"):
    """A network has finished an epoch.

    The epochs that a killed launch had saved and not logged follow the next launch's start, and what a struck group
    had saved comes before its :class:`GroupFailed`.

    Attributes:
        record: the epoch in the network's history; its fields are keys of the event.
        blocked_s: seconds for which checkpoints kept training waiting.
        missed: chunks of a ring that were of use, that a node of the group held, and that another had let go; none
            where an epoch was logged later than it ended.
        parameters: of the network; in the first epoch after it was built, where its engine can tell.
    """

    network: str
    record: Annotated[EpochRecord, Flat]
    blocked_s: Micro = 0.0
    missed: Annotated[int, OmitDefault] = 0
    parameters: Annotated[int, OmitDefault] = 0


class GroupStopped(Kind, word="stopped"):
    """A group has stopped: its network is saved, its devices are free.

    Attributes:
        checkpoint_s: seconds until the last checkpoint was on disk.
        export_s: seconds that the export of a finished network took after that.
    """

    network: str
    checkpoint_s: Micro
    export_s: Micro = 0.0


class Estimated(Kind, word="eta"):
    """How long the run will go on, by all that is known so far: a range.

    Attributes:
        low_s, high_s: seconds from now, if networks stop as early as their convergence rules allow, and if they train
            as many epochs as they may.
        networks: that are not done yet, and those that searches may yet ask for.
    """

    low_s: Tenths
    high_s: Tenths
    networks: int
