"""Events of networks: how they end, fail, resume, and what is lost."""

from __future__ import annotations

from typing import Annotated

from fleet.domain.json_record import Flat, JsonRecord, Micro, OmitDefault
from fleet.domain.network import EvaluationResult


class NetworkLeased(JsonRecord, word="taken"):
    """This launch, one of several, has acquired the lease of a network and trains it.

    Attributes:
        generation: generation of the lease.
        epochs: finished epochs of the network.
        position: samples of its next epoch that it has consumed.
        took_over: whether the previous launch had not released the lease.
    """

    network: str
    generation: int
    epochs: int
    position: int
    took_over: bool = False


class NetworkFinished(JsonRecord, word="final"):
    """A network has finished.

    Attributes:
        reason: why, such as ``9 epochs``.
        epochs: its finished epochs.
    """

    network: str
    reason: str
    epochs: int


class NetworkTested(JsonRecord, word="test"):
    """A finished network was evaluated on the test data, as it is exported.

    Attributes:
        tested: the result; its fields are keys of the event.
        seconds: duration.
    """

    network: str
    tested: Annotated[EvaluationResult, Flat]
    seconds: Micro


class NetworkRetried(JsonRecord, word="retry"):
    """A network failed with a transient error, and is tried again.

    Attributes:
        retry: the number of this retry, counted from 1.
        retries: the maximum number of retries.
        alone: whether it ran out of memory on a shared GPU: it is tried once more on GPUs of its
            own, beyond the retries.
    """

    network: str
    reason: str
    retry: int
    retries: int
    alone: Annotated[bool, OmitDefault] = False


class NetworkFailed(JsonRecord, word="failed"):
    """A network failed, and is not tried again in this launch.

    Attributes:
        detail: the traceback, if there is one.
        may_pass: whether the error is transient, so that the next launch tries again.
        deaths: ranks that died while they trained it, if it failed because of them.
    """

    network: str
    reason: str
    detail: str = ""
    may_pass: Annotated[bool, OmitDefault] = False
    deaths: Annotated[int, OmitDefault] = 0


class NetworkRolledBack(JsonRecord, word="fell_back"):
    """The newest checkpoint of a network is damaged or missing.

    It continues from the one before, from the best one, or starts over.

    Attributes:
        damage: what is wrong with the checkpoint.
        epochs: finished epochs of the state with which it continues.
        position: samples of the next epoch that are consumed in that state.
        finished: whether it stays finished: its best checkpoint and its history are whole.
        afresh: whether a user starts it over, so that it is no longer pruned or paused.
    """

    network: str
    damage: str
    epochs: int
    position: int
    finished: Annotated[bool, OmitDefault] = False
    afresh: Annotated[bool, OmitDefault] = False


class ChangesAccepted(JsonRecord, word="accepted"):
    """The code of a network has changed, and a user lets it continue from its checkpoint.

    Attributes:
        files: the changed files; ``args`` and ``build`` stand for those keys of the spec.
        epochs: finished epochs before the change.
    """

    network: str
    files: tuple[str, ...]
    epochs: int


class BestCheckpointDamaged(JsonRecord, word="best_lost"):
    """The best checkpoint of a finished network is damaged, so another epoch was exported."""

    network: str
    damage: str


class NetworkWarned(JsonRecord, word="warning"):
    """An engine ignores part of a network's description; written once per warning."""

    network: str
    warning: str


class RankDied(JsonRecord, word="lost"):
    """A rank has died, and the others continue.

    Attributes:
        device: the device on which it trained; None for a preprocessor.
    """

    rank: int
    device: int | None


class GroupFailed(JsonRecord, word="struck"):
    """A group that lost a rank has released its network, which returns to its last checkpoint.

    Attributes:
        epochs: finished epochs in that checkpoint.
        position: samples of the next epoch that are consumed in it.
        reason: why the network has finished by that checkpoint; empty if it has not.
        again: whether it had finished, but has not by that checkpoint.
    """

    network: str
    epochs: int
    position: int
    reason: Annotated[str, OmitDefault] = ""
    again: Annotated[bool, OmitDefault] = False


class SampleSkipped(JsonRecord, word="bad_sample"):
    """A sample could not be read and is skipped; written once per sample.

    Attributes:
        training: whether it belongs to the training set.
    """

    name: str
    reason: str
    training: bool
