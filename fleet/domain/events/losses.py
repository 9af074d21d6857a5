"""What is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fleet.domain.record import OmitDefault


@dataclass(frozen=True)
class RankLost:
    """A rank has died, and the others go on.

    Attributes:
        device: the device on which it trained; None if it was a preprocessor.
    """

    word: ClassVar[str] = "lost"
    rank: int
    device: int | None


@dataclass(frozen=True)
class GroupStruck:
    """A group that lost a rank has let go of its network, which goes back to its last checkpoint.

    Attributes:
        epochs: how many are finished in that checkpoint.
        position: samples of the next epoch that are consumed in it.
        reason: why the network is done by that checkpoint; empty where it is not.
        again: whether it was done, and by that checkpoint is not.
    """

    word: ClassVar[str] = "struck"
    network: str
    epochs: int
    position: int
    reason: Annotated[str, OmitDefault] = ""
    again: Annotated[bool, OmitDefault] = False


@dataclass(frozen=True)
class BadSample:
    """A sample could not be read and is skipped; written once for each.

    Attributes:
        training: whether it belongs to the training set.
    """

    word: ClassVar[str] = "bad_sample"
    name: str
    reason: str
    training: bool
