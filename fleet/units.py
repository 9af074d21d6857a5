"""Parse and format quantities with units: ``2GB``, ``10min``, ``15%``, ``20/s``.

A bare number means bytes for a size, seconds for a duration, and a fraction for a share. Where it
would be ambiguous, as in ``schedule.pace_tolerance``, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scheduler.base import Delta
from scheduler.ensemble.pace import Ring, Stream

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_CLOCK = r"[0-9]{1,9}:[0-9]{2}(?::[0-9]{2})?"  # minutes and seconds, or hours, minutes and seconds


@dataclass(frozen=True)
class Notation:
    """How a kind of quantity is written: a number and a unit, in any case.

    Args:
        hint: how to write it, for messages.
        examples: examples for the JSON schema.
        units: unit -> factor; bare numbers are allowed if ``""`` is among the units.
        alternative: a regular expression of another form, with its own parser.
    """

    hint: str
    examples: tuple[str, ...]
    units: Mapping[str, int | Fraction]
    alternative: str = ""

    @property
    def has_bare_numbers(self) -> bool:
        """Whether numbers without a unit are allowed."""
        return "" in self.units

    @property
    def pattern(self) -> str:
        """A regular expression of valid text, for JSON Schema."""
        units = "|".join(
            "".join(f"[{char.upper()}{char.lower()}]" if char.isalpha() else char for char in unit)
            for unit in self.units
            if unit
        )
        forms = [
            f"{_NUMBER}\\s*(?:{units}){'?' * self.has_bare_numbers}",
            *filter(None, [self.alternative]),
        ]
        return rf"^\s*(?:{'|'.join(forms)})\s*$"

    def read(self, value: object) -> float:
        """Parse a quantity: the number times its unit, computed exactly (57 % is 0.57).

        Raises:
            ValueError: it is not of this form, or not finite.
        """
        match = re.fullmatch(rf"\s*({_NUMBER})\s*([A-Za-z%/]*)\s*", str(value))
        try:
            return float(Fraction(float(match[1])) * self.units[match[2].upper()])  # type: ignore[index]
        except (TypeError, KeyError, OverflowError):
            raise ValueError(f"should be written like {self.hint}") from None


SIZE = Notation(
    "2GB, 512MB or 64MiB",
    ("2GB", "64MiB"),
    {
        "": 1,
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "TB": 10**12,
        "KIB": 2**10,
        "MIB": 2**20,
        "GIB": 2**30,
        "TIB": 2**40,
    },
)
DURATION = Notation(
    "90s, 10min, 2h or 1:30:00",
    ("10min", "2h", "1:30:00"),
    {"": 1, "S": 1, "SEC": 1, "M": 60, "MIN": 60, "H": 3600, "D": 86400},
    _CLOCK,
)
SHARE = Notation("15% or 0.15", ("15%",), {"": 1, "%": Fraction(1, 100)})
DELTA = Notation(
    "15% (of the fastest rate) or 20/s (samples per second)",
    ("15%", "20/s"),
    {"%": Fraction(1, 100), "/S": 1},
)


def parse_size(value: object) -> int:
    """Return the bytes of ``2GB``, ``512MiB`` or a plain number.

    >>> parse_size("2GB"), parse_size("1.5 MiB"), parse_size(64)
    (2000000000, 1572864, 64)
    """
    return int(SIZE.read(value))


def parse_duration(value: object) -> float:
    """Return the seconds of ``10min``, ``2h``, ``1:30:00`` or a plain number.

    >>> parse_duration("10min"), parse_duration("1:30:00"), parse_duration(5)
    (600.0, 5400.0, 5.0)
    """
    if isinstance(value, str) and re.fullmatch(_CLOCK, value.strip()):
        parts = [int(part) for part in value.split(":")]
        return float(sum(part * 60**power for power, part in enumerate(reversed(parts))))
    return DURATION.read(value)


def parse_share(value: object) -> float:
    """Return the fraction of ``15%`` or ``0.15``.

    >>> parse_share("15%"), parse_share(0.15)
    (0.15, 0.15)
    """
    return SHARE.read(value)


def parse_delta(value: object) -> Delta:
    """Parse a tolerance around the fastest rate: a share, ``15%``, or samples per second, ``20/s``.

    Raises:
        ValueError: it is neither, such as a bare number.

    >>> parse_delta("15%"), parse_delta("20/s")
    (Delta(value=0.15, relative=True), Delta(value=20.0, relative=False))
    """
    return Delta(DELTA.read(value), relative=str(value).rstrip().endswith("%"))


def parse_stream(text: str) -> Stream:
    """Parse a kind of shared stream, which limits how far apart networks may be.

    Args:
        text: ``free``, ``lockstep``, a number of lockstep streams, ``ring``, or ``ring:10%`` with
            the window of the ring.

    Raises:
        ValueError: it is not one of these, or the window is outside 0 to 100 %.

    >>> parse_stream("4").count, parse_stream("ring:20%").ring
    (4, Ring(shards=50, window=0.2, surplus=4.0))
    """
    if text in _STREAMS:
        return _STREAMS[text]
    name, _, window = text.partition(":")
    if name == "ring":
        share = parse_share(window)
        if not 0 < share <= 1:
            raise ValueError("should have a window above 0% and at most 100%, like ring:10%")
        return Stream(ring=Ring(window=share))
    if not re.fullmatch("[0-9]{1,6}", text):
        raise ValueError(
            "should be free, lockstep, a number of lockstep streams, ring, or ring:10% (with its "
            "window)"
        )
    return Stream(int(text))


_STREAMS = {"free": Stream(), "lockstep": Stream(1), "ring": Stream(ring=Ring())}


def listed(names: Sequence[str], limit: int = 3) -> str:
    """Join names with commas, at most ``limit`` of them.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = list(dict.fromkeys(names))
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )


def renaming_notice(old: str, new: str) -> str:
    """Return the notice for an old name that still works.

    >>> renaming_notice("--delta", "--pace-tolerance")
    '--delta is now --pace-tolerance; the old name works in this release only'
    """
    return f"{old} is now {new}; the old name works in this release only"


def about(seconds: float) -> str:
    """Format an estimated duration.

    >>> about(5.2), about(130), about(5400), about(72600)
    ('about 5 s', 'about 2.2 min', 'about 1.5 h', 'about 20 h')
    """
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if seconds >= unit_s:
            amount = seconds / unit_s
            if amount < 10:
                return f"about {amount:.2g} {unit}"
            return f"about {amount:.0f} {unit}"
    return f"about {seconds:.0f} s"


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(5.2), format_duration(75), format_duration(7260)
    ('5.2 s', '1 min 15 s', '2 h 1 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s"
    return f"{minutes // 60} h {minutes % 60} min"


J_PER_KWH = 3.6e6


def kilojoules(joules: float | None) -> float | None:
    """Convert joules to kJ; None stays None."""
    return None if joules is None else joules / 1000


def format_energy(kj: float) -> str:
    """Format an energy.

    >>> format_energy(12.345), format_energy(36000)
    ('12.35 kJ', '10 kWh')
    """
    kwh = 1000 * kj / J_PER_KWH
    return f"{kj:.4g} kJ" if kwh < 1 else f"{kwh:.4g} kWh"


def format_size(count: float) -> str:
    """Format a number of bytes.

    >>> format_size(999), format_size(2_500_000)
    ('999 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # larger values would be rounded to 1000
            return f"{count:.3g} {unit}"
        count /= 1000
    if count < 999.5:
        return f"{count:.3g} TB"
    return f"{count:.0f} TB"
