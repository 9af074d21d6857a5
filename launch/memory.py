"""Measure the free memory of this machine."""

from __future__ import annotations

import os
import re

SHARED = "/dev/shm"


def free_memory() -> int:
    """Return the available memory of this machine in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        match = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    if match:
        return int(match[1]) * 1024
    return 1 << 62


def free_shared_memory() -> int:
    """Return the bytes that processes can still share: free in the folder and in memory."""
    room = os.statvfs(SHARED)
    return min(room.f_bavail * room.f_frsize, free_memory())
