"""The interface of a batch system's queue."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class QueuedJob(NamedTuple):
    """A job of this user.

    Attributes:
        name: the name of the job.
        nodes: number of nodes that it has or requests; 0 if unknown.
        runs: True if the job runs, False if it waits.
    """

    id: str
    name: str
    nodes: int
    runs: bool


@dataclass(frozen=True)
class Queue:
    """The commands of a batch system's queue; each raises InputError if the system does not answer.

    Args:
        own_jobs: returns the waiting and running jobs of this user with one of some names.
        idle_nodes: returns the number of nodes of a queue (None: the default one) without a job.
        cancel: cancels a waiting job by its id.
        options: the options by which a submission names a queue, the short one first.
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
