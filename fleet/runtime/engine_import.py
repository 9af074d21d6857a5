"""Import of an engine while rank 0 reads the data: TensorFlow takes seconds.

Rank 0 says which ranks will train, and with which engine, as soon as it has read the spec. They
import the engine in a thread and wait for what rank 0 has prepared meanwhile. A rank that will have
nothing to train imports nothing.
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
from fleet.engines.registry import import_engine
from fleet.spec import NetworkSpec, Spec
from fleet.spec.engines import ENGINES
from fleet.storage.paths import RunPaths
from fleet.storage.results import ended_in_table
from preprocess.user_code import import_user_module, restoring_process

log = logging.getLogger("fleet.runtime.engine_import")


@dataclass(frozen=True)
class Ahead:
    """An engine that can be imported early, and the ranks that will train.

    Attributes:
        engine: its name; empty where it is one of the user's own, whose imports are unknown: what
            it imports.
        ranks: that will train.
    """

    engine: str = ""
    ranks: frozenset[int] = frozenset()


def plan_import(spec: Spec, roles: Roles, fresh: bool) -> Ahead:
    """Plan the import of an engine from the unfinished networks in the results table.

    Args:
        fresh: nothing counts that an earlier launch has left.
    """
    done = set[str]() if fresh else ended_in_table(RunPaths(spec.output))
    unfinished = [network for network in spec.networks if network.name not in done]
    ranks = frozenset(busy(unfinished, roles, bool(spec.searches)))
    return Ahead(spec.engine.name if spec.engine.name in ENGINES else "", ranks)


def busy(
    networks: Iterable[NetworkSpec], roles: Roles, grows: bool = False, together: int = 1
) -> tuple[int, ...]:
    """Return the first trainers, as many as these networks can use at once.

    Policies give out devices in this order; should one of the others get work all the same, it
    loads its engine then.

    Args:
        grows: whether further networks are asked for while the run goes on.
        together: networks on a GPU that are known to pay, where only as many share it.
    """
    slots = roles.slots if roles.fills else together
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
        self._is_given = False

    def give(self, ahead: Ahead) -> None:
        """Announce once; collective, with :meth:`EngineImport.hear`."""
        if not self._is_given:
            self._is_given = True
            self._world.broadcast_value(ahead)


class EngineImport:
    """The import of an engine in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def hear(self, world: World) -> None:
        """Receive rank 0's announcement and start importing if needed; collective."""
        no_plan: Ahead | None = None
        ahead = world.broadcast_value(no_plan)
        if world.rank in ahead.ranks and ahead.engine:
            self._thread = threading.Thread(target=_import, args=(ahead.engine,), name="loading")
            self._thread.start()

    def finish(self) -> None:
        """Wait for the import; errors appear again when the engine is made."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def unpack(self, packed: bytes) -> Any:
        """Unpickle an object of rank 0, importing missing modules safely.

        Such a module of the user's may import TensorFlow, too, and two threads that import a
        package with circles find it half made: so it is imported when the thread is done.
        """
        with restoring_process():
            return _Unpickler(packed, self).load()


class _Unpickler(pickle.Unpickler):
    """Unpickles; waits for the import before it imports anything itself."""

    def __init__(self, packed: bytes, loading: EngineImport) -> None:
        super().__init__(io.BytesIO(packed))
        self._loading = loading

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function of a name."""
        if module not in sys.modules:
            self._loading.finish()
            import_user_module(module)
        return super().find_class(module, name)


def _import(engine: str) -> None:
    try:
        import_engine(ENGINES[engine])
    except Exception:  # it says so when it is made
        log.info("%s could not be imported ahead", engine, exc_info=True)
