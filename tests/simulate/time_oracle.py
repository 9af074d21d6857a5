"""How long things may take, in virtual seconds, while nothing delays them.

- A launch stops soon after it was interrupted: groups pause within their epochs.
- Training that a crash may lose is at most as long as ``checkpoint.every`` says.
- A launch waits for the lease of a dead or ended launch only as long as is needed to be sure.
- A launch that trains nothing ends, or starts a network.
- A network that fails for a reason that may pass is tried again after 5, 10, ... seconds.
- Rank 0 exits soon after the others; and on one node after them, if its status is not 0, because
  mpirun takes it for an abort otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.simulate import kernel as k
from tests.simulate.cases import Case
from tests.simulate.cluster import Launch

# Kinds of faults that delay neither ranks nor calls.
_NO_DELAYS = {
    "signal",
    "walltime",
    "clocks",
    "kill rank",
    "kill all",
    "crash node",
    "lazy policy",
    "edit code",
    "damage",
    "give verdict",
    "lose best",
    "ask too much",
}
_PAUSES_WITHIN_S = 1.0
_SAVES_WITHIN_S = 1.0
_STARTS_WITHIN_S = 12.0
_EXITS_WITHIN_S = 1.0
_IDLES_FOR_S = 0.6
_DEATHS_WITHIN_S = 1.0  # after which all ranks know of a death
_DELAYS = 100  # of messages, which may come one after the other
_TOO_LATE = "too little of the walltime"
_BACKOFF_S = 5.0  # before the first retry of a network; then twice as long each time
_LATE_S = 1.5
# A crash of its node may tear the file of a lease that was never renewed; then no launch knows the
# holder.
_RENEWED_S = 3.5


class TimeOracle:
    """Watches how long launches take.

    Args:
        object_to: is called with what is wrong.
    """

    def __init__(self, case: Case, kernel: k.Kernel, object_to: Callable[[str], None]) -> None:
        self._kernel = kernel
        self._object_to = object_to
        self._is_prompt = set(case.kinds) <= _NO_DELAYS and case.slow == 1.0
        self._is_one_node = case.nodes == 1
        self._may_wait = case.side_by_side > 1
        self._every_s = float(case.content["checkpoint"].get("every", math.inf))
        functions = [str(model.get("build")) for model in case.content["models"]]
        self._is_busy = (
            self._is_prompt
            and case.side_by_side == 1
            and not {"lazy policy", "give verdict", "damage", "lose best"} & set(case.kinds)
            and "keep_open" not in case.content
            and not any("search" in model for model in case.content["models"])
            and not any(
                "simulate.models" in function for function in functions if ":s" not in function
            )
            and not any(function.endswith((":hangs", ":shaky")) for function in functions)
        )
        self._slack_s = _DELAYS * case.delay_s + _DEATHS_WITHIN_S * case.fault_tolerant
        # job -> groups that train, since when there is none, and whether it was too late for more
        self._groups: dict[Any, list[Any]] = {}
        self._interrupted_s: dict[Any, float] = {}  # job -> when its log said so
        self._saved_s: dict[tuple[k.Process, str], float] = {}
        self._ended_s: dict[k.Process, float] = {}
        self._retry_s: dict[tuple[Any, str], float] = {}  # when a network is due again
        self._last: k.Process | None = None  # rank 0 of the launch before
        self._is_torn = False  # whether its lease may be unreadable

    def begin(self, launch: Launch) -> None:
        """Watch the ranks of a launch."""
        if self._last is not None:
            ended_s = self._ended_s.get(self._last, self._kernel.now)
            crashed = self._last.status == -9 and self._kernel.counts["node crash"]
            self._is_torn = bool(crashed) and ended_s - self._last.began_s < _RENEWED_S
        self._last = launch.ranks[0]
        for rank in launch.ranks:
            # Before mpirun takes the end for an abort.
            rank.on_end.insert(0, partial(self._end, launch, rank))

    def logged(self, process: k.Process, record: Mapping[str, Any]) -> None:
        """Rank 0 logs an event."""
        now = self._kernel.now
        if record["event"] == "retry" and not record.get("alone"):
            backoff_s = _BACKOFF_S * 2 ** (record["retry"] - 1)
            self._retry_s[process.mpi, record["network"]] = now + backoff_s
        if record["event"] == "group":
            due_s = self._retry_s.pop((process.mpi, record["network"]), now)
            if self._is_prompt and not -_LATE_S < due_s - now < _LATE_S:
                self._object_to(f"{record['network']} is tried again at {now}, not at {due_s}")
        self._count_groups(process, record)
        if record["event"] == "interrupted":
            self._interrupted_s[process.mpi] = now
        if record["event"] != "start" or not self._is_prompt or self._may_wait:
            return
        waited_s = now - process.began_s
        if waited_s > _STARTS_WITHIN_S and not self._is_torn:
            self._object_to(f"{process} starts after {waited_s:.1f} s")

    def _count_groups(self, process: k.Process, record: Mapping[str, Any]) -> None:
        """Check that a launch does not go on long after its last group has stopped."""
        now = self._kernel.now
        event = record["event"]
        state = self._groups.setdefault(process.mpi, [0, math.inf, False])
        if event == "too_late":
            state[2] = True
        elif event == "interrupted" and record["reason"].startswith(_TOO_LATE) and not state[2]:
            self._object_to(f"{process} ends without a word of what it could not start")
        if event in ("group", "interrupted", "end"):
            idle_s = now - state[1]
            if self._is_busy and idle_s > _IDLES_FOR_S + self._slack_s:
                self._object_to(f"{process} has trained nothing for {idle_s:.1f} s")
        if event == "group":
            state[0] += 1
            state[1] = math.inf
        elif event == "stopped":
            state[0] -= 1
            state[1] = math.inf if state[0] else now

    def begins_part(self, process: k.Process, name: str) -> None:
        """A master trains an epoch from a position on."""
        self._saved_s[process, name] = self._kernel.now

    def saved(self, process: k.Process, name: str) -> None:
        """A checkpoint is on the disk."""
        self._saved_s[process, name] = self._kernel.now

    def steps(self, process: k.Process, name: str, is_master: bool) -> None:
        """A rank takes its part in a step."""
        if not self._is_prompt:
            return
        now = self._kernel.now
        interrupted_s = now - self._interrupted_s.get(process.mpi, math.inf)
        if interrupted_s > _PAUSES_WITHIN_S + self._slack_s:
            self._object_to(f"{name} is trained {interrupted_s:.1f} s after the interruption")
        unsaved_s = now - self._saved_s.get((process, name), now)
        if is_master and unsaved_s > self._every_s + _SAVES_WITHIN_S + self._slack_s:
            self._object_to(f"{name} was not saved for {unsaved_s:.1f} s")

    def _end(self, launch: Launch, rank: k.Process) -> None:
        self._ended_s[rank] = now = self._kernel.now
        if not rank.has_returned or launch.is_fault_tolerant or launch.is_ending:
            return
        peers = [peer for peer in launch.ranks if peer is not rank]
        if rank.status and any(peer.is_alive for peer in peers) and self._is_one_node:
            self._object_to(f"{rank} exits with {rank.status} before others: mpirun aborts them")
        if rank is not launch.ranks[0] or not peers or not self._is_prompt:
            return
        if all(peer.has_returned for peer in peers):
            waited_s = now - max(self._ended_s[peer] for peer in peers)
            if waited_s > _EXITS_WITHIN_S + self._slack_s:
                self._object_to(f"{rank} exits {waited_s:.1f} s after the others")
