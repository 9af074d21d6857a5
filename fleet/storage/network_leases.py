"""Leases of single networks in a run's folder, which launches hold that share the run.

The lease of the folder then guards entry. A launch that works alone keeps it. One of several holds
it only while it starts, and takes a network only while the folder's lease is free: it takes the
network's lease, checks the folder's, and releases the network if that is held. A launch that wants
to be alone takes the folder's lease first, and then checks for held networks
(:func:`reclaim_networks`). So of two simultaneous launches at least one sees the other.
"""

from __future__ import annotations

from pathlib import Path

from fleet.storage.lease import Holder, Lease, is_held, newest_state, newest_token
from fleet.storage.paths import RunPaths


def read_holders(paths: RunPaths) -> dict[str, Holder | None]:
    """Return the held networks and their holders, dead or alive; None if unreadable."""
    texts = {
        folder.name: newest_state(folder) for folder in sorted(paths.network_leases.glob("*/"))
    }
    return {name: text.holder for name, text in texts.items() if not text.is_free}


def find_held_lease(paths: RunPaths) -> Path | None:
    """Return a lease of a run that a launch holds, as far as can be seen from here."""
    folders = (paths.lease, *sorted(paths.network_leases.glob("*/")))
    return next((folder for folder in folders if is_held(folder)), None)


def reclaim_networks(paths: RunPaths, lease: Lease) -> bool:
    """Take and release each network that was ever held, for a launch that works alone.

    Args:
        paths: files of the run.
        lease: lease of the folder, held by this launch.

    Returns:
        True if a network was taken over from a launch that had not released it.

    Raises:
        UserError: another launch is training one.
    """
    took_over = False
    for folder in sorted(paths.network_leases.glob("*/")):
        network_lease = lease.sibling(f"network {folder.name}")
        network_lease.take(folder, floor=newest_token(paths.lease))
        took_over |= network_lease.took_over
        network_lease.release()
    return took_over
