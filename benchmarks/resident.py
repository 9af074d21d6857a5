"""What the ranks of a run hold in memory, as the kernel counts it.

RSS counts a page for every process that has touched it, PSS divides it by their number: so the PSS of all ranks
together is what the machine has given them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_SIZES = re.compile(r"(Size|Rss|Pss): +(\d+) kB")


@dataclass(frozen=True)
class Resident:
    """Bytes of several processes together.

    Attributes:
        processes: those that have mapped the window.
        window: what was mapped.
        window_rss, window_pss: of it.
        rss, pss: of everything.
    """

    processes: int
    window: int
    window_rss: int
    window_pss: int
    rss: int
    pss: int


def resident(root: int, window: re.Pattern[str]) -> Resident:
    """Look at a process and its descendants.

    Args:
        root: its number.
        window: of the path of the mapping that counts as the window.
    """
    processes = mapped = window_rss = window_pss = rss = pss = 0
    for process in descendants(root):
        try:
            lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
        except OSError:  # it has ended
            continue
        local_part = {"Size": 0, "Rss": 0, "Pss": 0}
        every = dict(local_part)
        inside = False
        for line in lines:
            if _MAPPING.match(line):
                inside = window.search(line) is not None
            elif results := _SIZES.match(line):
                size = 1024 * int(results[2])
                every[results[1]] += size
                if inside:
                    local_part[results[1]] += size
        if local_part["Size"]:
            processes, mapped = processes + 1, local_part["Size"]
            window_rss, window_pss = window_rss + local_part["Rss"], window_pss + local_part["Pss"]
            rss, pss = rss + every["Rss"], pss + every["Pss"]
    return Resident(processes, mapped, window_rss, window_pss, rss, pss)


def descendants(process: int) -> Iterator[int]:
    """Give the number of a process, and those of all that it has started."""
    yield process
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))
    except OSError:  # it has ended
        return
