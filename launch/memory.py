"""How much memory this machine has left."""

from __future__ import annotations

import os
import re

SHARED = "/dev/shm"


def free_memory() -> int:
    """Bytes of this machine's memory that nobody uses."""
    with open("/proc/meminfo", encoding="ascii") as file:
        match = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    if match:
        return int(match[1]) * 1024
    return 1 << 62


def free_shared_memory() -> int:
    """Bytes that processes of this machine can still share: what the folder for that may hold, and memory has."""
    room = os.statvfs(SHARED)
    return min(room.f_bavail * room.f_frsize, free_memory())
