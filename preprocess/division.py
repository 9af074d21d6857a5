"""Divide samples into held-out sets and folds: at random, or as an earlier launch did.

A sample that a run has trained on is never used to score its networks, nor the other way round,
even if samples are added or removed: known samples keep their side, and only new ones are divided.
"""

from __future__ import annotations

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import FOLDS, SPLIT, TEST_SPLIT, ClassSource, Source, rng_for
from preprocess.target import TargetSpec
from preprocess.views import split_targets


def draw_held_out(
    source: Source,
    fraction: float,
    seed: int,
    split: str = "validation",
    previous: np.ndarray | None = None,
) -> np.ndarray:
    """Choose the held-out samples at random, the same fraction of each class.

    A class of two samples or more has at least one on either side. A source may have attributes of
    integers, (n,): ``strata`` are divided instead of classes, and samples of one of its ``groups``
    stay together, whatever their classes. Samples with other targets than classes are divided as
    one class; with several targets, by the first one of classes.

    Args:
        source: the samples.
        fraction: the fraction of the samples to hold out, between 0 and 1.
        seed: the seed of the choice.
        split: ``validation`` or ``test``, which are chosen independently.
        previous: (n,) integers, the side of each sample in an earlier launch: 1 held out, 0 not, -1
            new. Of the new ones the fraction is held out, spread over the classes.

    Returns:
        (n,) bool, True if held out.

    Raises:
        InputError: the fraction is not between 0 and 1, no class has two samples or groups, or one
            side would be empty.
    """
    if not 0 < fraction < 1:
        raise InputError(f"{split}: {fraction} is not a fraction between 0 and 1 (nor a path)")
    rng = rng_for(seed, TEST_SPLIT if split == "test" else SPLIT)
    groups = groups_of(source)
    if previous is not None and (previous >= 0).any():
        return _draw_from_new(source, fraction, rng, split, _extend_to_groups(previous, groups))
    is_held_out = np.zeros(len(source), bool)
    for members in strata_of(source):
        unit, order = _shuffle_units(members, groups, rng)
        sizes = np.bincount(unit)
        samples = max(round(fraction * len(members)), 1)
        units = int(np.searchsorted(np.cumsum(sizes[order]), samples)) + 1
        units = min(units, len(sizes) - 1)
        is_held_out[members[np.isin(unit, order[:units])]] = True
    if not is_held_out.any():
        if groups is not None:
            reason = "all samples are in one group"
        elif _with_classes(source) is not None:
            reason = "no class has two samples"
        else:
            reason = "there is only one sample"
        raise InputError(
            f"{split}: {fraction} of {pluralize(len(source), 'sample')} holds out no sample, "
            f"because {reason}"
        )
    return is_held_out


def _draw_from_new(
    source: Source, fraction: float, rng: np.random.Generator, split: str, previous: np.ndarray
) -> np.ndarray:
    """Keep the sides of known samples; hold out the fraction of the new ones."""
    is_held_out = previous == 1
    groups = groups_of(source)
    strata = [new for members in strata_of(source) if len(new := members[previous[members] < 0])]
    shares = np.array([fraction * len(new) for new in strata])
    counts = np.floor(shares).astype(int)
    # strata that lose most by rounding down get one more
    ahead = np.argsort(-(shares - counts), kind="stable")
    counts[ahead[: round(shares.sum()) - counts.sum()]] += 1
    for new, count in zip(strata, counts.tolist(), strict=True):
        unit, order = _shuffle_units(new, groups, rng)
        fits = np.cumsum(np.bincount(unit)[order]) <= count
        is_held_out[new[np.isin(unit, order[fits])]] = True
    if is_held_out.all() or not is_held_out.any():
        role = f"held out for {split}"
        if is_held_out.all():
            role = "used for training"
        raise InputError(
            f"{split}: every sample that was {role} has been removed; start over with --fresh"
        )
    return is_held_out


def assign_folds(
    source: Source, folds: int, seed: int, previous: np.ndarray | None = None
) -> np.ndarray:
    """Divide a source at random into folds of nearly equal size and class shares.

    Strata and groups are those of :func:`draw_held_out`.

    Args:
        source: the samples.
        folds: the number of folds, at least 2.
        seed: the seed of the choice.
        previous: (n,) integers, the fold of each sample in an earlier launch, -1 if new.

    Returns:
        (n,) int64, the fold of each sample.

    Raises:
        InputError: there are fewer samples, or groups, than folds.
    """
    rng = rng_for(seed, FOLDS)
    groups = groups_of(source)
    unit = "sample"
    units = len(source)
    if groups is not None:
        unit = "group"
        units = len(np.unique(groups))
    if units < folds:
        available = pluralize(units, unit)
        raise InputError(f"data.folds: {folds} folds of {available}; each fold needs at least one")
    if previous is None:
        fold = np.full(len(source), -1)
    else:
        fold = _extend_to_groups(previous, groups).astype(np.int64)
    counts = np.bincount(fold[fold >= 0], minlength=folds)
    dealt = 0
    if groups is not None:
        _deal_groups(fold, groups, counts, rng)
        return fold
    turn = np.argsort(counts, kind="stable")  # folds with the fewest samples first
    for members in strata_of(source):  # in turn, so that folds differ by at most one sample
        new = members[fold[members] < 0]
        fold[rng.permutation(new)] = turn[(dealt + np.arange(len(new))) % folds]
        dealt += len(new)
    empty = np.setdiff1d(np.arange(folds), fold)
    if empty.size:
        raise InputError(
            f"data.folds: every sample of fold {empty[0]} has been removed; start over with --fresh"
        )
    return fold


def _deal_groups(
    fold: np.ndarray, groups: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> None:
    """Assign new groups, the largest first, each to the fold with the fewest samples."""
    new = np.flatnonzero(fold < 0)
    unit = np.unique(groups[new], return_inverse=True)[1]
    sizes = np.bincount(unit)
    order = rng.permutation(len(sizes))
    fold_of_unit = np.zeros(len(sizes), np.int64)
    for number in order[np.argsort(-sizes[order], kind="stable")]:
        fold_of_unit[number] = smallest = int(np.argmin(counts))
        counts[smallest] += sizes[number]
    fold[new] = fold_of_unit[unit]


def _extend_to_groups(previous: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Give new samples of a known group the side of their group, (n,) integers."""
    if groups is None:
        return previous
    unit = np.unique(groups, return_inverse=True)[1]
    of_group = np.full(unit.max(initial=-1) + 1, -1)
    of_group[unit[previous >= 0]] = previous[previous >= 0]
    return np.where(previous < 0, of_group[unit], previous)


def _shuffle_units(
    members: np.ndarray, groups: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit (group or sample) of each member, and all units in random order."""
    if groups is None:
        unit = np.arange(len(members))
    else:
        unit = np.unique(groups[members], return_inverse=True)[1]
    return unit, rng.permutation(unit.max(initial=-1) + 1)


def groups_of(source: Source) -> np.ndarray | None:
    """Return the group of each sample, (n,); None if samples need not stay together."""
    groups = getattr(source, "groups", None)
    if groups is None:
        return None
    return np.asarray(groups)


def strata_of(source: Source) -> list[np.ndarray]:
    """Return the indices of each stratum or class; one stratum if there are groups.

    Of several targets, the classes are those of the first target that has some.
    """
    if groups_of(source) is not None:  # a group may have samples of several classes
        return [np.arange(len(source))]
    strata: np.ndarray | None = getattr(source, "strata", None)
    if strata is None:
        classified = _with_classes(source)
        if classified is None:
            return [np.arange(len(source))]
        labels = np.asarray(classified.labels)
        return [np.flatnonzero(labels == label) for label in range(len(classified.classes))]
    return [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]


def _with_classes(source: Source) -> ClassSource | None:
    """Return a source with its first target of classes; None if it has none."""
    if isinstance(source, ClassSource):
        return source
    target: TargetSpec | None = getattr(source, "target", None)
    if target is None or not target.parts:
        return None
    return next(
        (part for part in split_targets(source).values() if isinstance(part, ClassSource)), None
    )
