"""What becomes of networks, and what is lost on the way."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from fleet.domain.json_record import Kind, Micro, OmitDefault
from fleet.domain.network import Score


class NetworkTaken(Kind, word="taken"):
    """One of several launches has taken the lease of a network, and trains it from now on.

    Attributes:
        generation: of the lease.
        epochs: that the network has finished.
        position: samples of its next epoch that it has consumed.
        took_over: whether the launch that trained it before had not let go.
    """

    network: str
    generation: int
    epochs: int
    position: int
    took_over: bool = False


class NetworkFinished(Kind, word="final"):
    """A network is done.

    Attributes:
        reason: why, such as ``9 epochs``.
        epochs: how many it has finished.
    """

    network: str
    reason: str
    epochs: int


class NetworkTested(Kind, word="test"):
    """A network that is done was judged on the test data, as it is exported.

    Attributes:
        loss, accuracy: means over the samples; null if none could be read.
        samples: that could be read.
        seconds: how long it took.
        metrics: those that its spec asks for, by name.
    """

    network: str
    loss: Score
    accuracy: Score
    samples: int
    seconds: Micro
    metrics: Annotated[dict[str, float | None], OmitDefault] = field(
        default_factory=dict, hash=False
    )


class NetworkRetried(Kind, word="retry"):
    """A network failed for a reason that may pass, and is tried again.

    Attributes:
        retry: the number of this retry, counted from 1.
        retries: how many there may be.
        alone: whether it ran out of memory beside others on its GPU: it is tried again on GPUs that it shares with
            none, once and beyond the retries.
    """

    network: str
    reason: str
    retry: int
    retries: int
    alone: Annotated[bool, OmitDefault] = False


class NetworkFailed(Kind, word="failed"):
    """A network failed, and is not tried again in this launch.

    Attributes:
        detail: the traceback, if there is one.
        may_pass: whether the next launch tries it again.
        deaths: how many ranks died while they trained it, where that is why it failed.
    """

    network: str
    reason: str
    detail: str = ""
    may_pass: Annotated[bool, OmitDefault] = False
    deaths: Annotated[int, OmitDefault] = 0


class NetworkFellBack(Kind, word="fell_back"):
    """A network's newest checkpoint is damaged, or gone.

    It goes on from the one before, from the best one, or starts over.

    Attributes:
        damage: what is wrong with the checkpoint.
        epochs: how many are finished in the state from which it goes on.
        position: samples of the next epoch that are consumed in that state.
        finished: whether it stays finished: the checkpoint of its best epoch, and its table of epochs, are whole.
        afresh: whether somebody has it start over, so that it is neither pruned nor paused any more.
    """

    network: str
    damage: str
    epochs: int
    position: int
    finished: Annotated[bool, OmitDefault] = False
    afresh: Annotated[bool, OmitDefault] = False


class ChangesAccepted(Kind, word="accepted"):
    """The code of a network is not what it was, and training goes on from its checkpoint: somebody has said so.

    Attributes:
        files: that have changed; ``args`` and ``build`` stand for those of the spec.
        epochs: how many were finished before.
    """

    network: str
    files: tuple[str, ...]
    epochs: int


class BestLost(Kind, word="best_lost"):
    """The checkpoint of a finished network's best epoch is damaged, so another epoch was exported."""

    network: str
    damage: str


class NetworkWarned(Kind, word="warning"):
    """What a network's description asks for is not done; written once, of the first network that it is said of."""

    network: str
    warning: str


class RankLost(Kind, word="lost"):
    """A rank has died, and the others go on.

    Attributes:
        device: the device on which it trained; None if it was a preprocessor.
    """

    rank: int
    device: int | None


class GroupFailed(Kind, word="struck"):
    """A group that lost a rank has let go of its network, which goes back to its last checkpoint.

    Attributes:
        epochs: how many are finished in that checkpoint.
        position: samples of the next epoch that are consumed in it.
        reason: why the network is done by that checkpoint; empty where it is not.
        again: whether it was done, and by that checkpoint is not.
    """

    network: str
    epochs: int
    position: int
    reason: Annotated[str, OmitDefault] = ""
    again: Annotated[bool, OmitDefault] = False


class BadSample(Kind, word="bad_sample"):
    """A sample could not be read and is skipped; written once for each.

    Attributes:
        training: whether it belongs to the training set.
    """

    name: str
    reason: str
    training: bool
