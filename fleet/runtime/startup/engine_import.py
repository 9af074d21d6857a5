"""Import of an engine while rank 0 reads the data: TensorFlow takes seconds.

Rank 0 announces which ranks will train, and with which engine, as soon as it has read the spec.
These ranks import the engine in a thread while they wait for rank 0. A rank that will not train
imports nothing.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleet.comm.protocols import World
from fleet.comm.roles import Roles
from fleet.domain.run import RunState
from fleet.engines.registry import import_engine
from fleet.spec import NetworkSpec, Spec
from fleet.spec.engines import ENGINES
from preprocess.user_code import import_user_module, restoring_process

log = logging.getLogger("fleet.runtime.startup.engine_import")


@dataclass(frozen=True)
class ImportPlan:
    """An engine that can be imported early, and the ranks that will train.

    Attributes:
        engine: the engine's name; empty for a custom engine, whose imports are unknown.
        ranks: the ranks that will train.
    """

    engine: str = ""
    ranks: frozenset[int] = frozenset()


def plan_import(spec: Spec, roles: Roles, run: RunState) -> ImportPlan:
    """Plan the import of an engine from the networks that are unfinished.

    Args:
        run: the state that earlier launches have left.
    """
    unfinished = [network for network in spec.networks if not run.status_of(network.name).is_final]
    ranks = frozenset(find_busy_trainers(unfinished, roles, bool(spec.searches)))
    return ImportPlan(spec.engine.name if spec.engine.name in ENGINES else "", ranks)


def find_busy_trainers(
    networks: Iterable[NetworkSpec], roles: Roles, grows: bool = False, networks_per_gpu: int = 1
) -> tuple[int, ...]:
    """Return the first trainers, as many as these networks can use at the same time.

    Policies assign devices in this order. A trainer that gets work nevertheless loads its engine
    then.

    Args:
        grows: whether searches will add networks.
        networks_per_gpu: number of networks that are known to train faster on a shared GPU.
    """
    slots = roles.slots if roles.fills else networks_per_gpu
    trainers = tuple(
        rank
        for rank in roles.trainers
        if roles.local_index(rank) // roles.physical_gpus_per_node < slots
    )
    if grows:
        return trainers
    return trainers[
        : sum(min(network.max_gpus or len(trainers), len(trainers)) for network in networks)
    ]


class Announcement:
    """Rank 0's announcement of what to import, made exactly once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_sent = False

    def send(self, import_plan: ImportPlan) -> None:
        """Announce once; collective, with :meth:`EngineImport.receive`."""
        if not self._is_sent:
            self._is_sent = True
            self._world.broadcast_value(import_plan)


class EngineImport:
    """The import of an engine in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def receive(self, world: World) -> None:
        """Receive rank 0's announcement and start importing if needed; collective."""
        no_plan: ImportPlan | None = None
        plan = world.broadcast_value(no_plan)
        if world.rank in plan.ranks and plan.engine:
            self._thread = threading.Thread(target=_import, args=(plan.engine,), name="loading")
            self._thread.start()

    def finish(self) -> None:
        """Wait for the import; its errors are raised when the engine is made."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def unpack(self, packed: bytes) -> Any:
        """Unpickle an object of rank 0, importing missing modules safely.

        A user's module may import TensorFlow, too, and two threads that import a package with
        circular imports may see it half imported. So it is imported after the thread has finished.
        """
        with restoring_process():
            return _Unpickler(packed, self).load()


class _Unpickler(pickle.Unpickler):
    """An unpickler that waits for the engine's import before it imports a module."""

    def __init__(self, packed: bytes, loading: EngineImport) -> None:
        super().__init__(io.BytesIO(packed))
        self._loading = loading

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of a module."""
        if module not in sys.modules:
            self._loading.finish()
            import_user_module(module)
        return super().find_class(module, name)


def _import(engine: str) -> None:
    try:
        import_engine(ENGINES[engine])
    except Exception:  # it is raised again when the engine is made
        log.info("%s could not be imported early", engine, exc_info=True)
