"""Sum a step over the ranks of a group: by MPI, by PyTorch's process groups, or not at all.

MPI sums the whole buffer after the backward pass. A PyTorch process group (NCCL on GPUs, else gloo)
sums it in parts, each as soon as the backward pass has finished it.
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

_PIECE = 2**22  # bytes, at least, that travel while the backward pass runs on
_POLL_S = 2e-5
_LONGEST = timedelta(days=7)  # a rank may wait for samples, and deaths are heard of from MPI
NAMES = ("auto", "mpi", "library")


class Exchange:
    """Sums the gradients and totals of a group in place; this one is for a single rank.

    Attributes:
        in_place: True if it reads gradients during the backward pass, so they must stay in the
            buffer.
    """

    in_place = False

    def __init__(self, group: Group) -> None:
        self.group = group

    def begin(self, flat: FlatParameters) -> None:
        """Prepare for a backward pass."""

    def finish(self, flat: FlatParameters) -> None:
        """Return when the parts of all ranks are summed; this rank's part is complete."""

    def close(self) -> None:
        """Leave the group."""


class MpiExchange(Exchange):
    """One MPI reduction of the whole buffer per step; a GPU's buffer goes through the host."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._host: torch.Tensor | None = None

    def finish(self, flat: FlatParameters) -> None:  # noqa: D102 - Exchange says it
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
    """A PyTorch process group of its own; ranks rendezvous through a file in the run's folder."""

    in_place = True

    def __init__(self, group: Group, device: torch.device, folder: Path) -> None:
        super().__init__(group)
        check_peers(group)
        name = group.broadcast_value(uuid.uuid4().hex if group.is_master else None)
        self._file = (folder / f".exchange-{name}.tmp").absolute()
        self._backend = _backend(device, str(self._file), group)
        self._hooks: list[Any] = []
        self._in_flight: list[Any] = []
        self._pieces: list[tuple[torch.Tensor, int]] = []
        self._pending_counts: list[int] = []
        self._final_parts: list[torch.Tensor] = []
        self._flat: FlatParameters | None = None
        self._ready: set[int] = set()  # places of parameters whose gradients are ready
        self._overlaps: bool | None = None  # whether pieces travel before the pass is over

    def begin(self, flat: FlatParameters) -> None:  # noqa: D102 - Exchange says it
        self._watch(flat)
        self._pending_counts = [count for _, count in self._pieces]
        self._ready.clear()

    def _watch(self, flat: FlatParameters) -> None:
        """Register hooks on gradients, if there is more than one part."""
        if self._flat is flat:
            return
        self._flat = flat
        places = flat.split_gradients(_PIECE)
        # The last piece, the first in the buffer, goes with none: it ends when the pass does.
        self._pieces = [(flat.buffer[first:last], count) for first, last, count in places[:-1]]
        if self._pieces:
            self._final_parts = [flat.buffer[: places[-1][1]], flat.buffer[len(flat.gradients) :]]
        else:
            self._final_parts = [flat.buffer]
        owners = [piece for piece, (_, _, count) in enumerate(places) for _ in range(count)]
        named = zip(reversed(flat.parameters.items()), owners, strict=True)
        for index, ((name, parameter), piece) in enumerate(named):
            if piece < len(self._pieces):
                ready = self._make_hook(index, piece, name)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(ready))

    def _make_hook(self, index: int, piece: int, name: str) -> Callable[[torch.Tensor], None]:
        """Return a hook to call when the gradient of a parameter is ready.

        Reentrant checkpointing runs several backward passes in one, each of which may add to a
        gradient. The first pass detects this; no part is sent early in it.
        """

        def ready(_: torch.Tensor) -> None:
            if index in self._ready:
                if piece < len(self._in_flight):
                    raise ModelError(
                        f"the gradient of {name} was added to after it was sent, by another "
                        "backward pass inside of the step: torch.utils.checkpoint should have "
                        "use_reentrant=False, or the spec resources.exchange: mpi"
                    )
                self._overlaps = False
                return
            self._ready.add(index)
            self._pending_counts[piece] -= 1
            while (
                self._overlaps
                and len(self._in_flight) < len(self._pieces)
                and self._pending_counts[len(self._in_flight)] <= 0
            ):
                self._send(self._pieces[len(self._in_flight)][0])  # in one order on all ranks

        return ready

    def _send(self, part: torch.Tensor) -> None:
        self._in_flight.append(self._backend.allreduce([part]))

    def finish(self, flat: FlatParameters) -> None:  # noqa: D102
        self._watch(flat)  # this rank may have no rows
        if self._overlaps is None and self._ready:
            self._overlaps = True
        for part, _ in self._pieces[len(self._in_flight) :]:
            self._send(part)
        for part in self._final_parts:
            self._send(part)
        under_way = self._in_flight
        self._in_flight = []
        for work in under_way:
            while not work.is_completed():
                self.group.sleep(_POLL_S)
                self.group.check()
            with self.group.raising_group_failed():
                work.wait()

    def close(self) -> None:  # noqa: D102
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        with suppress(Exception):  # of a group that was struck
            self._backend.abort()
        if self.group.is_master:
            self._file.unlink(missing_ok=True)


def _backend(device: torch.device, file: str, group: Group) -> Any:
    from torch import distributed

    store = distributed.FileStore(file, group.size)
    if device.type == "cuda":
        return distributed.ProcessGroupNCCL(store, group.rank, group.size, _LONGEST)
    return distributed.ProcessGroupGloo(store, group.rank, group.size, _LONGEST)


def exchange_name(setting: str, device: torch.device) -> str:
    """Return the exchange for a spec's ``resources.exchange``: ``mpi`` or ``library``.

    Args:
        setting: setting of the spec.
        device: device of this rank.

    Raises:
        UserError: this engine does not have such an exchange.
    """
    if setting not in NAMES:
        raise UserError(
            f"resources.exchange: {setting}: the torch engine does not use it; it should be "
            f"{', '.join(NAMES)}"
        )
    if setting == "auto":
        if device.type == "cuda":
            return "library"
        return "mpi"
    return setting
