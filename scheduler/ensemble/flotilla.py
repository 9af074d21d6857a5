"""Choose which networks train together, and on how many GPUs each ([FLEET] Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler.base import Options, RateTable
from scheduler.ensemble.indexed import iter_ascending, raise_slowest
from scheduler.ensemble.rates import (
    Curves,
    all_last_useful,
    curves,
    extend_as_printed,
    useful_curves,
    widest,
)

MANY_SPARE = 1000  # GPUs that are left over, from which raising one at a time takes long
FIRST_COLUMNS = 4096  # GPUs of a group up to which rates are worked out at first
AT_ONCE = 1 << 20  # rates compared in one step


def form_flotilla(
    rates: RateTable, candidates: Iterable[str] | NDArray[np.bool_], gpus: int, options: Options
) -> dict[str, int]:
    """Group networks that can train at one pace, and give each the GPUs for it.

    The network that is fastest on its minimum of GPUs sets the reference rate. While GPUs last, the
    network and count with the closest rate joins, within delta; ties go to fewer GPUs, then to the
    order of the rate table. The remaining GPUs go one by one to the slowest member. If
    ``peak_limited``, only counts are given on which a network is faster than on any fewer; if not,
    rates beyond the measured ones follow the paper literally
    (:func:`~scheduler.ensemble.rates.extend_as_printed`).

    Args:
        rates: the rates of all networks.
        candidates: the names that may join, or a bool mask of shape (networks,).
        gpus: number of GPUs to give.
        options: only ``delta`` and ``peak_limited`` are read.

    Returns:
        Name -> GPUs, in the order of joining; empty when no candidate fits.

    Reference: [FLEET] section 4.3.2, Eq. 3 and Algorithm 2.

    The fastest alone has 40 samples/s; with 12 of it, 52 at most and 28 at
    least may join: c on two GPUs (42), then b on one (30). The spare GPU goes
    to b, the slowest.

    >>> from scheduler.base import Delta, Network
    >>> table = RateTable(100, 4, (Network("a", (40.0, 70.0)), Network("b", (30.0, 55.0)),
    ...                            Network("c", (22.0, 42.0)), Network("d", (5.0, 9.0))))
    >>> form_flotilla(table, "abcd", 5, Options(delta=Delta(12.0, relative=False)))
    {'a': 1, 'c': 2, 'b': 2}
    """
    if isinstance(candidates, np.ndarray):
        rows = np.flatnonzero(candidates)
    else:
        rows = np.array(sorted({rates.rows[name] for name in candidates}), dtype=np.int64)
    if not options.peak_limited:
        return _form(extend_as_printed(rates, gpus), rows, gpus, gpus, options)[0]
    width = max(FIRST_COLUMNS, widest(rates))
    # Add columns until the last one has no effect; on a large cluster most columns have none.
    while True:
        formed, is_cut = _form(rates, rows, gpus, min(width, gpus), options)
        if not is_cut:
            return formed
        width *= 8
        rates = replace(rates, models=tuple(rates.models[row] for row in rows.tolist()))
        rows = np.arange(len(rows))


def _form(
    rates: RateTable, rows: NDArray[np.int64], gpus: int, width: int, options: Options
) -> tuple[dict[str, int], bool]:
    """Return the flotilla of groups of at most ``width`` GPUs, and whether that limit mattered."""
    if options.peak_limited:
        rate_curves = useful_curves(rates, gpus, width)
    else:
        rate_curves = curves(rates, gpus)
    rows = rows[rate_curves.min_gpus[rows] <= gpus]
    if not len(rows):
        return {}, False
    members, limit = _join(rate_curves, rows, gpus, options)
    _give_spare(rate_curves, members, gpus - sum(members.values()), options.peak_limited)
    is_cut = any(
        rate_curves.rate[row, -1] <= limit
        or members.get(row) == 1 + np.flatnonzero(rate_curves.useful[row])[-1]
        for row in rows[all_last_useful(rates, gpus)[rows] > width].tolist()
    )
    return {rate_curves.names[row]: count for row, count in members.items()}, is_cut


def _join(
    rate_curves: Curves, rows: np.ndarray, gpus: int, options: Options
) -> tuple[dict[int, int], float]:
    """Run lines 1 to 11; return row -> GPUs and the highest joining rate."""
    single = rate_curves.rate[rows, rate_curves.min_gpus[rows] - 1]
    fastest = int(rows[np.argmax(single)])
    reference = float(single.max())
    members = {fastest: int(rate_curves.min_gpus[fastest])}
    limit = reference + options.delta.of(reference)
    free = gpus - members[fastest]
    if not free:  # as whenever one GPU becomes free
        return members, limit
    distance, column, pick = _near(rate_curves, rows, reference, options)
    # The free GPUs only become fewer, so a choice that does not fit now never will: one pass over
    # all choices, closest first, finds the same members as a search for each.
    for index in iter_ascending(distance, gpus, pick, column):
        if not free:
            break
        row = int(pick[index])
        count = int(column[index]) + 1
        if count <= free and row not in members:
            members[row] = count
            free -= count
    return members, limit


def _near(
    rate_curves: Curves, rows: np.ndarray, reference: float, options: Options
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all choices within delta of the reference rate: distance, column and row of each."""
    choices = []
    step = max(1, AT_ONCE // rate_curves.rate.shape[1])
    # In blocks, which need little memory even for a million GPUs.
    for block in np.split(rows, range(step, len(rows), step)):
        distance = np.abs(rate_curves.rate[block] - reference)
        pick, column = np.nonzero(
            rate_curves.counts(options.peak_limited)[block]
            & (distance <= options.delta.of(reference))
        )
        choices.append((distance[pick, column], column, block[pick]))
    distance, column, row = map(np.concatenate, zip(*choices, strict=True))
    return distance, column, row


def _raise_together(
    rate_curves: Curves, members: dict[int, int], counts: dict[int, np.ndarray], spare: int
) -> int:
    """Take the first raises at once, up to the highest level that fits; return the GPUs given.

    Rates rise with the counts, so the slowest network is raised in the order of the rates before
    each step, and the steps below a level are exactly the first ones.
    """
    paces = {row: rate_curves.rate[row, counts[row] - 1] for row in members}

    def reached(level: float) -> dict[int, int]:
        places = {row: int(paces[row].searchsorted(level)) for row in members}
        return {
            row: max(count, int(counts[row][min(places[row], len(counts[row]) - 1)]))
            for row, count in members.items()
        }

    before = sum(members.values())
    low = 0.0
    high = 2 * max(float(pace[-1]) for pace in paces.values())
    for _ in range(64):
        middle = (low + high) / 2
        if sum(reached(middle).values()) - before <= spare:
            low = middle
        else:
            high = middle
    members.update(reached(low))
    return sum(members.values()) - before


def _give_spare(
    rate_curves: Curves, members: dict[int, int], spare: int, peak_limited: bool
) -> None:
    """Run lines 12 to 16: raise the counts of the slowest members while GPUs are left."""
    counts = {row: 1 + np.flatnonzero(rate_curves.counts(peak_limited)[row]) for row in members}
    if peak_limited and spare > MANY_SPARE:
        spare -= _raise_together(rate_curves, members, counts, spare)
    raise_slowest(
        members, counts, spare, lambda row: float(rate_curves.rate[row, members[row] - 1])
    )
