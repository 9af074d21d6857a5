"""Whole runs with all ranks in one process, which tests may interrupt."""

from fleet.errors import ExitStatus
from fleet.runtime.launch import Ranks
from fleet.runtime.prepare import prepare as prepare_launch
from fleet.runtime.session import Session
from fleet.runtime.start import Request
from tests.fleet.one_process import Launch


def prepare(path, node_of, gpus=None, *, lease=None, announce=lambda ahead: None, name="", ranks=None,
            **asked):
    """What rank 0 prepares for all.

    Args:
        ranks: what they have, by the names of :class:`fleet.runtime.launch.Ranks`.
        asked: by the names of :class:`fleet.runtime.start.Request`.
    """
    return prepare_launch(Request(str(path), **asked), Ranks(node_of, gpus, **(ranks or {})), lease, announce, name)


class Interruption:
    """Comes after the coordinator has asked so many times."""

    def __init__(self, after=None):
        self._left = after

    def reason(self):
        if self._left is None:
            return ""
        self._left -= 1
        return "SIGTERM came" if self._left < 0 else ""

    def seconds_left(self):
        return None


class Signal(Interruption):
    """Comes when a test says so."""

    def __init__(self):
        super().__init__()
        self.has_come = False

    def reason(self):
        return "SIGTERM came" if self.has_come else ""


def launch(path, ranks, after=None, **more):
    prepared = prepare(str(path), [0] * ranks, None, plain=True, **more)
    statuses = {}

    def rank_main(world):
        statuses[world.rank] = Session(world, prepared, Interruption(after)).run()

    assert Launch(ranks, 0).run(rank_main)
    return ExitStatus(statuses[0]), prepared


def launch_in_parts(path, ranks, looks):
    """A run that is interrupted again and again, each time later; returns what its last launch prepared.

    Args:
        looks: of the coordinator, before the first interruption.
    """
    status, launches = ExitStatus.RESUMABLE, 0
    while status is ExitStatus.RESUMABLE:
        launches += 1
        assert launches < 60
        status, prepared = launch(path, ranks, after=looks * launches)
    assert launches > 1
    return prepared
