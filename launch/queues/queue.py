"""What is asked of a batch system's queue, whichever it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class QueuedJob(NamedTuple):
    """A job of this user's.

    Attributes:
        name: of the job.
        nodes: that it has, or asks for; 0 where its system does not say.
        runs: whether it does, or waits.
    """

    id: str
    name: str
    nodes: int
    runs: bool


@dataclass(frozen=True)
class Queue:
    """The queue of a batch system, by its commands; each raises InputError where the system does not answer.

    Args:
        own_jobs: the jobs of this user that have one of some names, and wait or run.
        idle_nodes: how many nodes of a queue (the default one, for None) have no job.
        cancel: takes a job back that waits, by its id.
        options: with which a submission names a queue, the short one first.
    """

    own_jobs: Callable[[Sequence[str]], list[QueuedJob]]
    idle_nodes: Callable[[str | None], int]
    cancel: Callable[[str], None]
    options: tuple[str, ...]

    def queue_of(self, options: Sequence[str]) -> str | None:
        """Return the queue that options of a submission name, or None."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument(*self.options, dest="queue", nargs="?")
        queue: str | None = parser.parse_known_args(options)[0].queue
        return queue
