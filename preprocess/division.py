"""Which samples of a source are held out, and in which fold each is: at random, or, once that is known, as it was.

A sample that a run has trained on never judges its networks, nor the other way round, whatever samples have come and
gone since: those that are known stay where they were, and new ones are divided among themselves.
"""

from __future__ import annotations

import numpy as np

from preprocess.base import (
    FOLDS,
    SPLIT,
    TEST_SPLIT,
    ClassSource,
    InputError,
    Source,
    counted,
    rng_for,
)


def taken(
    source: Source,
    fraction: float,
    seed: int,
    part: str = "validation",
    known: np.ndarray | None = None,
) -> np.ndarray:
    """Choose the samples that are held out, at random, the same fraction of each class.

    A class of two samples or more has at least one on either side. A source may say otherwise, by arrays of integers:
    ``strata`` are divided instead of classes, and the samples of one of its ``groups`` stay together, whatever their
    classes. Samples with other targets than classes are divided as one class.

    Args:
        source: the samples.
        fraction: between 0 and 1, of the samples that are held out.
        seed: of the choice.
        part: what they are for: ``validation`` or ``test``, which are chosen independently.
        known: (len(source),) integers, of samples that have been divided before: 1 held out, 0 not, -1 a new one, of
            which the fraction is held out, spread over the classes.

    Returns:
        (len(source),) bool.

    Raises:
        InputError: the fraction is not between 0 and 1, no class has two samples, or groups, or nothing is left on one
            side.
    """
    if not 0 < fraction < 1:
        raise InputError(f"{part}: {fraction} is not a fraction between 0 and 1 (nor a path)")
    rng = rng_for(seed, TEST_SPLIT if part == "test" else SPLIT)
    groups = groups_of(source)
    if known is not None and (known >= 0).any():
        return _taken_of_new(source, fraction, rng, part, _of_known_groups(known, groups))
    found = np.zeros(len(source), bool)
    for members in strata_of(source):
        unit, order = _units(members, groups, rng)
        sizes = np.bincount(unit)
        count = (
            int(np.searchsorted(np.cumsum(sizes[order]), max(round(fraction * len(members)), 1)))
            + 1
        )
        found[members[np.isin(unit, order[: min(count, len(sizes) - 1)])]] = True
    if not found.any():
        if groups is not None:
            why = "all samples are in one group"
        elif isinstance(source, ClassSource):
            why = "no class has two"
        else:
            why = "there is only one"
        raise InputError(
            f"{part}: {fraction} of {counted(len(source), 'sample')} is none, because {why}"
        )
    return found


def _taken_of_new(
    source: Source, fraction: float, rng: np.random.Generator, part: str, known: np.ndarray
) -> np.ndarray:
    """The samples that were held out, and the fraction of the new ones: of each stratum, and of all."""
    found = known == 1
    groups = groups_of(source)
    strata = [new for members in strata_of(source) if len(new := members[known[members] < 0])]
    shares = np.array([fraction * len(new) for new in strata])
    counts = np.floor(shares).astype(int)
    ahead = np.argsort(
        -(shares - counts), kind="stable"
    )  # those that rounding down takes most from get one more
    counts[ahead[: round(shares.sum()) - counts.sum()]] += 1
    for new, count in zip(strata, counts.tolist(), strict=True):
        unit, order = _units(new, groups, rng)
        fits = np.cumsum(np.bincount(unit)[order]) <= count
        found[new[np.isin(unit, order[fits])]] = True
    if found.all() or not found.any():
        side = "trained on" if found.all() else f"left for {part}"
        raise InputError(
            f"{part}: of the samples that there are now none is {side}: all that were have gone; start "
            "over with --fresh"
        )
    return found


def fold_of(source: Source, folds: int, seed: int, known: np.ndarray | None = None) -> np.ndarray:
    """Divide a source into folds of nearly equal size, at random, each with nearly the same share of each class.

    Strata and groups are those of :func:`taken`.

    Args:
        folds: how many, at least 2.
        seed: of the choice.
        known: (len(source),) the folds of samples that have been divided before, -1 of a new one.

    Returns:
        (len(source),) int64, the fold of each sample.

    Raises:
        InputError: there are fewer samples, or groups, than folds.
    """
    rng = rng_for(seed, FOLDS)
    groups = groups_of(source)
    units = len(source) if groups is None else len(np.unique(groups))
    if units < folds:
        what = counted(units, "sample" if groups is None else "group")
        raise InputError(
            f"data.folds: {folds} folds of {what}; there should be at least one for each"
        )
    if known is None:
        fold = np.full(len(source), -1)
    else:
        fold = _of_known_groups(known, groups).astype(np.int64)
    held = np.bincount(fold[fold >= 0], minlength=folds)
    dealt = 0
    if groups is not None:
        _deal_groups(fold, groups, held, rng)
        return fold
    turn = np.argsort(held, kind="stable")  # those with the fewest samples first
    for members in strata_of(source):  # dealt in turn, so that folds differ by one sample at most
        new = members[fold[members] < 0]
        fold[rng.permutation(new)] = turn[(dealt + np.arange(len(new))) % folds]
        dealt += len(new)
    empty = np.setdiff1d(np.arange(folds), fold)
    if empty.size:
        raise InputError(
            f"data.folds: all samples of fold {empty[0]} have gone; start over with --fresh"
        )
    return fold


def _deal_groups(
    fold: np.ndarray, groups: np.ndarray, held: np.ndarray, rng: np.random.Generator
) -> None:
    """The largest new groups first, each to the fold that has the fewest samples."""
    new = np.flatnonzero(fold < 0)
    unit = np.unique(groups[new], return_inverse=True)[1]
    sizes = np.bincount(unit)
    order = rng.permutation(len(sizes))
    fold_of_unit = np.zeros(len(sizes), np.int64)
    for number in order[np.argsort(-sizes[order], kind="stable")]:
        fold_of_unit[number] = smallest = int(np.argmin(held))
        held[smallest] += sizes[number]
    fold[new] = fold_of_unit[unit]


def _of_known_groups(known: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Where samples were, and new ones of a group where the others of it were."""
    if groups is None:
        return known
    unit = np.unique(groups, return_inverse=True)[1]
    of_group = np.full(unit.max(initial=-1) + 1, -1)
    of_group[unit[known >= 0]] = known[known >= 0]
    return np.where(known < 0, of_group[unit], known)


def _units(
    members: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """What stays together: the unit of each of some samples, and all units in random order."""
    if groups is None:
        unit = np.arange(len(members))
    else:
        unit = np.unique(groups[members], return_inverse=True)[1]
    return unit, rng.permutation(unit.max(initial=-1) + 1)


def groups_of(source: Source) -> np.ndarray | None:
    """The group of each sample, where some must stay together."""
    found = getattr(source, "groups", None)
    if found is None:
        return None
    return np.asarray(found)


def strata_of(source: Source) -> list[np.ndarray]:
    """The samples of each stratum, or of each class; all of them where groups must stay together."""
    if groups_of(source) is not None:  # a group may have samples of several classes
        return [np.arange(len(source))]
    strata: np.ndarray | None = getattr(source, "strata", None)
    if strata is None:
        if not isinstance(source, ClassSource):
            return [np.arange(len(source))]
        return [np.flatnonzero(source.labels == label) for label in range(len(source.classes))]
    return [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
