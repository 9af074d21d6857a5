"""How a launch shares its run with other launches: a hook, which by default shares nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Self

from fleet.control.effects import EndRequested, LeaseGranted
from fleet.hooks import find_hook
from fleet.runtime.startup.folder import take_folder
from fleet.spec import Spec
from fleet.storage.lease import Fence, Lease
from fleet.storage.paths import RunPaths

if TYPE_CHECKING:  # which imports many modules
    from fleet.runtime.resume import Resumed
    from fleet.runtime.startup.launch import PreparedLaunch


class RunSharing:
    """The part of a run that a launch holds; this class, the default, holds all of it.

    A companion derives a class for launches with ``--share-run``.

    Attributes:
        has_others: whether other launches were active when this one started; None if it holds the
            whole run.
        elsewhere: networks that the launch does not hold when it starts, and that have not ended
            or have epochs that no log has.
    """

    has_others: bool | None = None
    elsewhere: frozenset[str] = frozenset()

    @staticmethod
    def check_spec(spec: Spec, option: str) -> None:
        """Refuse a spec that launches of this kind cannot train.

        Args:
            spec: the spec.
            option: the option that the user gave, for the message.
        """

    @staticmethod
    def enter_folder(paths: RunPaths, fresh: bool, lease: Lease | None) -> None:
        """Acquire a run's folder at the start of a launch; see :func:`take_folder`."""
        take_folder(paths, fresh, lease)

    @classmethod
    def join(
        cls,
        launch: PreparedLaunch,
        lease: Lease | None,
        resumed: Resumed,
    ) -> Self:
        """Join the launches of a run.

        Args:
            launch: the prepared launch.
            lease: the lease of this process; None in tests.
            resumed: what earlier launches have left.
        """
        return cls()

    def start(self, sync_log: Callable[[], None]) -> None:
        """Begin to request leases.

        Args:
            sync_log: writes the events of this launch to the disk.
        """

    def poll(
        self, now_s: float, training: Collection[str], ends: bool
    ) -> list[LeaseGranted | EndRequested]:
        """Check the leases and the networks that are held.

        Args:
            now_s: the time by the coordinator's clock.
            training: the networks that have a group.
            ends: whether the launch is about to end.

        Returns:
            Inputs for the controller.
        """
        return []

    def fence_of(self, network: str) -> Fence | None:
        """Return the fence of a network that is held; None if that of the launch covers it."""
        return None

    def check(self) -> None:
        """Check that this launch still holds its networks.

        Raises:
            LeaseLost: another launch has taken one over.
        """

    def close(self, may_write: bool = False) -> None:
        """Release all networks, and read what other launches have made of theirs.

        Args:
            may_write: whether ranks that do not answer may still write.
        """


def find_run_sharing(shares_run: bool) -> type[RunSharing]:
    """Return how launches share their run.

    Args:
        shares_run: whether the launch was started with ``--share-run``.

    Raises:
        UserError: the companion for such launches is not installed.
    """
    if not shares_run:
        return RunSharing
    sharing: type[RunSharing] = find_hook("shared run", required_by="--share-run")
    return sharing
