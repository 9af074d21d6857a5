"""Quantities as people write them: ``2GB``, ``10min``, ``15%``, ``20/s``; all that is read from such text is read here.

A bare number is bytes for a size, seconds for a duration, and a part of one for a share. Where it could mean two
things, as in ``schedule.delta``, it is refused.
"""

from __future__ import annotations

import math
import re

from scheduler.base import Delta
from scheduler.ensemble.pace import Ring, Stream

_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SECONDS = {"": 1, "S": 1, "SEC": 1, "M": 60, "MIN": 60, "H": 3600, "D": 86400}


def _split(value: object, units: dict[str, int], example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"should be written like {example}")
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
    count = float(match[1]) * units.get(match[2].upper(), math.nan) if match else math.nan
    if not math.isfinite(count):
        raise ValueError(f"should be written like {example}")
    return count


def parse_size(value: object) -> int:
    """Bytes from ``2GB``, ``512MiB`` or a plain number.

    >>> parse_size("2GB"), parse_size("1.5 MiB"), parse_size(64)
    (2000000000, 1572864, 64)
    """
    return int(_split(value, _SIZES, "2GB, 512MB or 64MiB"))


def parse_duration(value: object) -> float:
    """Seconds from ``10min``, ``2h``, ``1:30:00`` or a plain number.

    >>> parse_duration("10min"), parse_duration("1:30:00"), parse_duration(5)
    (600.0, 5400.0, 5.0)
    """
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}:[0-9]{2}(:[0-9]{2})?", value.strip()):
        parts = [int(part) for part in value.split(":")]
        return float(sum(part * 60**power for power, part in enumerate(reversed(parts))))
    return _split(value, _SECONDS, "90s, 10min, 2h or 1:30:00")


def parse_share(value: object) -> float:
    """A share of one from ``15%`` or ``0.15``.

    >>> parse_share("15%"), parse_share(0.15)
    (0.15, 0.15)
    """
    if isinstance(value, str) and value.strip().endswith("%"):
        return _split(value.strip()[:-1], {"": 1}, "15% or 0.15") / 100
    return _split(value, {"": 1}, "15% or 0.15")


def parse_delta(value: object) -> Delta:
    """How close rates are to the fastest: a share of it, ``15%``, or samples per second, ``20/s``.

    Raises:
        ValueError: it is neither. A bare number is neither: it does not say which of the two it is.

    >>> parse_delta("15%"), parse_delta("20/s")
    (Delta(value=0.15, relative=True), Delta(value=20.0, relative=False))
    """
    example = "15% (of the fastest rate) or 20/s (samples per second)"
    text = value.strip() if isinstance(value, str) else ""
    if text.endswith("%"):
        return Delta(_split(text.removesuffix("%"), {"": 1}, example) / 100, relative=True)
    if text.endswith("/s"):
        return Delta(_split(text.removesuffix("/s"), {"": 1}, example), relative=False)
    raise ValueError(f"should be written like {example}")


def parse_stream(text: str) -> Stream:
    """How a shared stream holds networks back: ``free``, ``lockstep``, a number of streams, ``ring`` or ``ring:10%``.

    Raises:
        ValueError: it is none of these, or the window of the ring is not above 0 and at most 100 %.

    >>> parse_stream("4").count, parse_stream("ring:20%").ring
    (4, Ring(shards=50, window=0.2, surplus=4.0))
    """
    if text in _STREAMS:
        return _STREAMS[text]
    name, _, window = text.partition(":")
    if name == "ring":
        return Stream(ring=Ring(window=parse_share(window)))
    if not re.fullmatch("[0-9]{1,6}", text):
        raise ValueError("should be free, lockstep, a number of lockstep streams, ring, or ring:10% (with its window)")
    return Stream(int(text))


_STREAMS = {"free": Stream(), "lockstep": Stream(1), "ring": Stream(ring=Ring())}


def counted(number: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "GPU"), counted(2, "GPU")
    ('1 GPU', '2 GPUs')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """A duration as a person reads it.

    >>> format_duration(5.2), format_duration(75), format_duration(7260)
    ('5.2 s', '1 min 15 s', '2 h 1 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_size(count: float) -> str:
    """Bytes as a person reads them.

    >>> format_size(999), format_size(2_500_000)
    ('999 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # from there on it would be rounded to 1000
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"
