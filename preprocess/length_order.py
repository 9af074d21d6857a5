"""An order of samples of unequal length in which batches of any size need little padding.

The samples are sorted by length, and the sorted sequence is cut into *runs*, which are shuffled;
each is read from short to long or from long to short. A batch is a part of a run, or of two where
it lies across their border, so its rows have almost the same length. Networks with different
batches share the order. Runs begin at multiples of 128, so that batches of 8, 16, 32, 64 and 128
rows never lie across a border; others pay for the few that do.

Padding of a batch cannot be less than in the sorted sequence. ``benchmarks/padding.py`` measures
both.
"""

from __future__ import annotations

import numpy as np

ALIGNED = 128  # samples; runs begin at multiples of it
_JITTER = 0.02  # largest relative change of a length before sorting
_RUNS = 8  # of an epoch, unless that makes runs too short or too long
_SHORTEST_RUN = 512  # samples; shorter runs have more borders
_LONGEST_RUN = 4096


def run_size(samples: int) -> int:
    """Return the number of samples of a run, a multiple of 128.

    >>> run_size(1000), run_size(10000), run_size(10**6)
    (512, 1280, 4096)
    """
    size = ALIGNED * round(samples / _RUNS / ALIGNED)
    return int(np.clip(size, _SHORTEST_RUN, _LONGEST_RUN))


def sort_by_length(order: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sort samples by their length, changed at random by up to a fiftieth.

    So other samples meet in each epoch.

    Args:
        order: (n,) samples; those of one length stay in this order if none is changed.
        lengths: (samples,) the length of each sample of the source.
        rng: draws the changes.
    """
    changed = lengths[order] * (1 + _JITTER * (2 * rng.random(len(order)) - 1))
    return order[np.argsort(changed, kind="stable")]


def shuffle_runs(count: int, size: int, rng: np.random.Generator) -> list[range]:
    """Return the runs of a sequence in random order, each forward or backward.

    Args:
        count: number of elements of the sequence.
        size: number of elements of a run; the last may be shorter.
        rng: draws order and directions.
    """
    runs = [range(first, min(first + size, count)) for first in range(0, count, size)]
    is_backward = rng.random(len(runs)) < 0.5
    return [
        runs[number][::-1] if is_backward[number] else runs[number]
        for number in rng.permutation(len(runs)).tolist()
    ]


def order_by_length(order: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a permutation in which samples of like length lie together; see the module.

    The longest samples beyond a multiple of 128 come last, so that all runs are aligned.

    Args:
        order: (n,) a random permutation.
        lengths: (samples,) the length of each sample.
        rng: draws changes of lengths, the order of the runs and their directions.
    """
    ascending = sort_by_length(order, lengths, rng)
    aligned = len(order) // ALIGNED * ALIGNED
    parts = shuffle_runs(aligned, run_size(len(order)), rng)
    parts.append(range(aligned, len(order)))
    return ascending[np.concatenate([np.asarray(part, np.int64) for part in parts])]


def padding_share(lengths: np.ndarray, order: np.ndarray, batch: int) -> float:
    """Return the share of padding in batches that are cut to their longest row.

    Args:
        lengths: (samples,) the length of each sample.
        order: (n,) the samples of an epoch in order.
        batch: number of samples of a batch; the last may have fewer.

    >>> padding_share(np.array([1, 4, 4, 3]), np.array([0, 1, 2, 3]), 2)
    0.25
    """
    ordered = lengths[order]
    starts = np.arange(0, len(ordered), batch)
    rows = np.diff(np.append(starts, len(ordered)))
    padded = int((np.maximum.reduceat(ordered, starts) * rows).sum())
    return 1 - int(ordered.sum()) / max(padded, 1)
