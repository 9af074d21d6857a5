"""Sum a step over the ranks of a group: by MPI, by PyTorch's process groups, or not at all.

MPI sums the whole buffer after the backward pass. A PyTorch process group (NCCL on GPUs, xccl
on Intel's, else gloo) sums it in parts, each as soon as the backward pass has computed it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from fleet.comm.protocols import Group
from fleet.engines.base import check_peers
from fleet.engines.torch.flat_parameters import FlatParameters
from fleet.errors import ModelError, UserError

_MIN_BUCKET = 2**22  # minimum size in bytes of a bucket that is sent during the backward pass
_POLL_S = 2e-5
_TIMEOUT = timedelta(days=7)  # long, because ranks may wait for samples, and MPI detects deaths
NAMES = ("auto", "mpi", "library")
GPU_EXCHANGES = ("cuda", "xpu")  # devices between which process groups sum without the host


class Exchange:
    """Sums the gradients and totals of a group in place; does nothing for a single rank.

    Attributes:
        in_place: True if the exchange reads gradients during the backward pass, so they must stay
            in the buffer.
    """

    in_place = False

    def __init__(self, group: Group) -> None:
        self.group = group

    def begin(self, flat: FlatParameters) -> None:
        """Prepare for a backward pass."""

    def finish(self, flat: FlatParameters) -> None:
        """Sum the completed buffers of all ranks, and wait for the result."""

    def close(self) -> None:
        """Leave the group."""


class MpiExchange(Exchange):
    """Sums by one MPI reduction of the buffer per step; a GPU's buffer is copied to the host."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._host: torch.Tensor | None = None

    def finish(self, flat: FlatParameters) -> None:  # noqa: D102 - see Exchange
        buffer = flat.buffer
        if buffer.device.type == "cpu":
            self.group.sum(buffer.numpy())
            return
        if self._host is None:
            self._host = torch.empty(buffer.shape, pin_memory=True)
        self._host.copy_(buffer)
        self.group.sum(self._host.numpy())
        buffer.copy_(self._host)


class TorchExchange(Exchange):
    """Sums by a PyTorch process group; its ranks rendezvous through a file in the run's folder."""

    in_place = True

    def __init__(self, group: Group, device: torch.device, folder: Path) -> None:
        super().__init__(group)
        check_peers(group)
        name = group.broadcast_value(uuid.uuid4().hex if group.is_master else None)
        self._file = (folder / f".exchange-{name}.tmp").absolute()
        self._backend = _backend(device, str(self._file), group)
        self._hooks: list[Any] = []
        self._in_flight: list[Any] = []
        self._buckets: list[tuple[torch.Tensor, int]] = []
        self._pending_counts: list[int] = []
        self._final_parts: list[torch.Tensor] = []
        self._flat: FlatParameters | None = None
        self._ready: set[int] = set()  # indices of parameters whose gradients are ready
        # True if buckets are sent during the backward pass; None before the first pass.
        self._overlaps: bool | None = None

    def begin(self, flat: FlatParameters) -> None:  # noqa: D102 - see Exchange
        self._watch(flat)
        self._pending_counts = [count for _, count in self._buckets]
        self._ready.clear()

    def _watch(self, flat: FlatParameters) -> None:
        """Register hooks on gradients, if there are several buckets."""
        if self._flat is flat:
            return
        self._flat = flat
        parts = flat.split_gradients(_MIN_BUCKET)
        # The last part, which is first in the buffer, is complete only when the pass ends.
        self._buckets = [(flat.buffer[first:last], count) for first, last, count in parts[:-1]]
        if self._buckets:
            self._final_parts = [flat.buffer[: parts[-1][1]], flat.buffer[len(flat.gradients) :]]
        else:
            self._final_parts = [flat.buffer]
        owners = [bucket for bucket, (_, _, count) in enumerate(parts) for _ in range(count)]
        named = zip(reversed(flat.parameters.items()), owners, strict=True)
        for index, ((name, parameter), bucket) in enumerate(named):
            if bucket < len(self._buckets):
                hook = self._make_hook(index, bucket, name)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _make_hook(self, index: int, bucket: int, name: str) -> Callable[[torch.Tensor], None]:
        """Return a hook to call when the gradient of a parameter is ready.

        Reentrant checkpointing runs several backward passes in one, each of which may add to a
        gradient. The first pass detects this; it sends no bucket early.
        """

        def mark_ready(_: torch.Tensor) -> None:
            if index in self._ready:
                if bucket < len(self._in_flight):
                    raise ModelError(
                        f"a nested backward pass changed the gradient of {name} after it had been "
                        "sent; call torch.utils.checkpoint with use_reentrant=False, or set "
                        "resources.exchange: mpi"
                    )
                self._overlaps = False
                return
            self._ready.add(index)
            self._pending_counts[bucket] -= 1
            # All ranks send buckets in the same order.
            while (
                self._overlaps
                and len(self._in_flight) < len(self._buckets)
                and self._pending_counts[len(self._in_flight)] <= 0
            ):
                self._send(self._buckets[len(self._in_flight)][0])

        return mark_ready

    def _send(self, part: torch.Tensor) -> None:
        self._in_flight.append(self._backend.allreduce([part]))

    def finish(self, flat: FlatParameters) -> None:  # noqa: D102
        self._watch(flat)  # this rank may have no rows
        if self._overlaps is None and self._ready:
            self._overlaps = True
        for part, _ in self._buckets[len(self._in_flight) :]:
            self._send(part)
        for part in self._final_parts:
            self._send(part)
        reductions = self._in_flight
        self._in_flight = []
        for work in reductions:
            while not work.is_completed():
                self.group.sleep(_POLL_S)
                self.group.check()
            with self.group.raising_group_failed():
                work.wait()

    def close(self) -> None:  # noqa: D102
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        with suppress(Exception):  # the group may have failed
            self._backend.abort()
        if self.group.is_master:
            self._file.unlink(missing_ok=True)


def _backend(device: torch.device, file: str, group: Group) -> Any:
    from torch import distributed

    store = distributed.FileStore(file, group.size)
    if device.type == "cuda":  # also AMD's, whose library takes the place of NCCL
        return distributed.ProcessGroupNCCL(store, group.rank, group.size, _TIMEOUT)
    if device.type == "xpu":
        options = distributed.ProcessGroupXCCL.Options()
        options._timeout = _TIMEOUT
        return distributed.ProcessGroupXCCL(store, group.rank, group.size, options)
    return distributed.ProcessGroupGloo(store, group.rank, group.size, _TIMEOUT)


def exchange_name(setting: str, device: torch.device) -> str:
    """Return the exchange for a spec's ``resources.exchange``: ``mpi`` or ``library``.

    Args:
        setting: value of the key.
        device: device of this rank.

    Raises:
        UserError: the engine does not support this exchange.
    """
    if setting not in NAMES:
        raise UserError(
            f"resources.exchange: the torch engine does not support {setting}; use "
            f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
        )
    if setting == "auto":
        if device.type in GPU_EXCHANGES:
            return "library"
        return "mpi"
    return setting
