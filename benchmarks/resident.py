"""Measure the memory of the ranks of a run, as the kernel counts it.

RSS counts a page for every process that has touched it; PSS divides it by their number. So the PSS
of all ranks together is the memory that they use.
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
        processes: Number of processes that have mapped the window.
        window: Size of the window.
        window_rss, window_pss: RSS and PSS of the window.
        rss, pss: RSS and PSS of everything.
    """

    processes: int
    window: int
    window_rss: int
    window_pss: int
    rss: int
    pss: int


def resident(root: int, window: re.Pattern[str]) -> Resident:
    """Return the memory of a process and its descendants.

    Args:
        root: The id of the process.
        window: Matches the path of the mapping that counts as the window.
    """
    processes = mapped = window_rss = window_pss = rss = pss = 0
    for process in descendants(root):
        try:
            lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
        except OSError:  # the process has ended
            continue
        of_window = {"Size": 0, "Rss": 0, "Pss": 0}
        total = dict(of_window)
        inside = False
        for line in lines:
            if _MAPPING.match(line):
                inside = window.search(line) is not None
            elif match := _SIZES.match(line):
                size = 1024 * int(match[2])
                total[match[1]] += size
                if inside:
                    of_window[match[1]] += size
        if of_window["Size"]:
            processes += 1
            mapped = of_window["Size"]
            window_rss += of_window["Rss"]
            window_pss += of_window["Pss"]
            rss += total["Rss"]
            pss += total["Pss"]
    return Resident(processes, mapped, window_rss, window_pss, rss, pss)


def descendants(process: int) -> Iterator[int]:
    """Yield the id of a process and of all its descendants."""
    yield process
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))
    except OSError:  # the process has ended
        return
