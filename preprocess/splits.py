"""The splits of a data set by their usual names, which mean the same in every source."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from launch.errors import InputError, pluralize
from preprocess.base import Source, and_more

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"

_WORDS = {
    TRAIN: r"train(ing|val)?",
    VALIDATION: r"val|valid|validate|validation|dev|development|eval|evaluation",
    TEST: r"test(ing)?|holdout",
}
_PLAIN = ("train", "validation", "val", "test")
_MORE = r"([ _.-]?(set|data|dataset|split|images?|imgs?))?([ _.-]?\d+)?"
_EXACT = {split: re.compile(f"({words}){_MORE}", re.IGNORECASE) for split, words in _WORDS.items()}
_WORD = {split: re.compile(words, re.IGNORECASE) for split, words in _WORDS.items()}


def parse_split(name: str) -> str | None:
    """Return the split that a name stands for, in any case; None if it is not a usual name.

    >>> [parse_split(name) for name in ("Training", "valid", "Holdout", "trains", "cat")]
    ['train', 'validation', 'test', None, None]
    """
    name = name.strip()
    return next((split for split, pattern in _EXACT.items() if pattern.fullmatch(name)), None)


def find_split_word(name: str) -> str | None:
    """Return the split that the first such word of a name stands for; None without one.

    >>> [find_split_word(name) for name in ("a-train.tfrecord-0-of-1", "a_VAL-0.tar", "a.tar")]
    ['train', 'validation', None]
    """
    for word in re.findall(r"[^\W\d_]+", name):
        for split, pattern in _WORD.items():
            if pattern.fullmatch(word):
                return split
    return None


def find_splits(names: Collection[str], location: str) -> dict[str, str]:
    """Find the splits among some names.

    Args:
        names: the names of folders, files, arrays, groups and so on.
        location: where the names are, for messages.

    Returns:
        The name of each split: the plainest if several stand for one, as ``test`` beside ``test2``.

    Raises:
        InputError: two names stand for training or validation data, and neither is plainer.
    """
    splits: dict[str, str] = {}
    for split in (TRAIN, VALIDATION, TEST):
        matches = sorted(name for name in names if parse_split(name) == split)
        plain = [name for name in _PLAIN if name in matches]
        if plain or len(matches) == 1:
            splits[split] = (plain or matches)[0]
        elif matches and split != TEST:
            raise InputError(
                f"{location}: {' and '.join(matches)} are all {split} data; keep one of them here, "
                "and move or rename the others"
            )
    return splits


def choose_held_out(splits: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the names of validation and test data; test data validates if it must.

    >>> choose_held_out({"train": "train", "validation": "val", "test": "test"})
    ('val', 'test')
    >>> choose_held_out({"train": "train", "test": "Testing"})
    ('Testing', None)
    """
    if VALIDATION in splits:
        return splits[VALIDATION], splits.get(TEST)
    return splits.get(TEST), None


def mark_stand_in(validation: Source, name: str, location: str) -> None:
    """Mark validation data that is test data by its name, so that the user is warned.

    Args:
        validation: the source.
        name: the name of its split.
        location: the location of the data, for the warning.
    """
    if parse_split(name) == TEST:
        validation.stand_in_path = location  # type: ignore[attr-defined]


_NUMBERED = re.compile(r"^(.*?)(\d+)-of-(\d+)(.*)$")


def check_numbered(paths: Sequence[str]) -> None:
    """Check that no file of a numbered set, such as ``train-00001-of-00003``, is missing.

    Raises:
        InputError: one is missing.
    """
    sets: dict[tuple[str, str, str], set[int]] = {}
    for path in paths:
        match = _NUMBERED.match(path)
        if match:
            begin, number, total, end = match.groups()
            sets.setdefault((begin, total, end), set()).add(int(number))
    for (begin, total, end), numbers in sets.items():
        first = 0
        if 0 not in numbers and int(total) in numbers:
            first = 1
        missing = sorted(set(range(first, first + int(total))) - numbers)
        if missing:
            raise InputError(
                f"{begin}{missing[0]:0{len(total)}}-of-{total}{end}: file not found"
                f"{and_more(missing)}, but {pluralize(len(numbers), 'file')} of {int(total)} exist"
                "; copy what is missing, or name the files in data.path as "
                "FILE-{00000..00001}-of-... to do without it"
            )
