"""What data is known by: so that data which has changed is noticed, and each sample found again under its name.

A source says what its samples are known by in a method ``sample_marks()``; of any other, names and targets are taken,
and what its method ``fingerprint()`` says, where it has one. What is looked at has a bound, however large the data is:
of up to ``WHOLE`` bytes all content, of more a fixed sample. Where data lies, and when it was written, do not count.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol, get_args
from zipfile import BadZipFile

import numpy as np

from preprocess.base import (
    InputError,
    Source,
    UnreadableSample,
    counted,
    encoded,
    in_one_line,
    read_input,
)
from preprocess.target import Kind, TargetWish, is_mask, plain_targets, target_of

WHOLE = 256 << 20  # bytes of data all of which is read
FILES = 10_000  # files that are opened for it
LOOKED_AT = 1000  # samples of larger data whose content is looked at
EDGE = 4096  # bytes of a file, at either end, that are read of such a sample
SIZED = 200_000  # files whose sizes are asked for; of more, those of a fixed sample
_NAMED = 2_000_000  # samples of a source of the user's own that are asked for their names
UNSEEN = 0  # in place of what was not looked at

# What a sample is known by beside its name, and what is said where it differs.
_WORDS = {
    "size": "content",
    "content": "content",
    "target": "targets",
    "mask size": "masks",
    "mask content": "masks",
    "weight": "weights",
}


@dataclass(frozen=True)
class SampleIds:
    """What the samples of a part of the data are known by.

    Attributes:
        names: (n,) uint64: of what they are called, relative to where the data lies; or of their inputs, where rows
            have no names.
        seen: by the names of ``_WORDS``: (n,) uint64, ``UNSEEN`` where that was not looked at.
        unit: what a sample is called: file, row, ...
        by_content: whether ``names`` are of their inputs.
        facts: about all samples, in words.
        classes: whose numbers are ``labels``; empty where targets are none.
        labels: (n,) int32; empty where targets are no classes.
        wish: what a spec asks for as their targets; empty where it takes what the source says.
    """

    names: np.ndarray
    seen: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit: str = "sample"
    by_content: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    wish: str = ""

    def some(self, rows: np.ndarray) -> SampleIds:
        """Those of some samples."""
        return replace(
            self,
            names=self.names[rows],
            seen={name: one[rows] for name, one in self.seen.items()},
            labels=self.labels[rows] if len(self.labels) else self.labels,
        )

    @property
    def digest(self) -> str:
        """Of all of it."""
        found = hashlib.sha256(
            json.dumps([self.unit, self.by_content, dict(self.facts), self.classes]).encode()
        )
        for array in (self.names, self.labels, *(self.seen[name] for name in sorted(self.seen))):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class Fingerprint:
    """What a data set is known by, and how a run has divided it.

    Attributes:
        parts: the samples of each: ``train`` before any are taken from it, ``validation`` and ``test`` where they are
            others; behind a colon the number of further targets of the same samples.
        division: how samples were divided, as settings say it.
        sides: (samples of ``train``,) int8: 0 is trained on, 1 validates, 2 tests, -1 nobody knows.
        folds: (samples of ``train``,) int16: the fold of each, -1 of none; empty without folds.
        tests: where test data of its own is asked for; empty where there is none, or a share.
    """

    parts: Mapping[str, SampleIds]
    division: str = ""
    sides: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    folds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    tests: str = ""

    @property
    def digest(self) -> str:
        """Of the data, however it is divided."""
        return hashlib.sha256(
            "".join(
                f"{name}\0{part.digest}\n" for name, part in sorted(self.parts.items())
            ).encode()
        ).hexdigest()[:16]

    def sides_of(self, train: SampleIds, division: str, has_groups: bool = False) -> Known:
        """Where samples were, found by their names; nothing where they are to be divided otherwise now.

        Args:
            train: the samples that there are now.
            has_groups: whether some of them stay together; a new row then belongs with its group, and stands for none
                that has gone.
        """
        if division != self.division or "train" not in self.parts:
            return Known()
        before = self.parts["train"]
        if np.array_equal(before.names, train.names):
            place = np.arange(len(train.names))
        else:
            place = found_again(before, train, with_edited=not has_groups)
        return Known(
            *(
                np.where(place >= 0, known[place], -1) if len(known) else None
                for known in (self.sides, self.folds)
            )
        )


@dataclass(frozen=True)
class Known:
    """Where the samples of ``train`` were, each -1 that is new; None where nothing is known.

    Attributes:
        sides, folds: as of :class:`Fingerprint`.
    """

    sides: np.ndarray | None = None
    folds: np.ndarray | None = None


# ---- taking it ---------------------------------------------------------------------------------


def marks_of(source: Source, path: str = "") -> SampleIds:
    """What the samples of a source are known by, without their targets.

    Args:
        path: where the data lies, which is no part of any name.
    """
    own: Callable[[], SampleIds] | None = getattr(source, "sample_marks", None)
    if own is not None:
        return own()
    said: Callable[[], Any] | None = getattr(source, "fingerprint", None)
    if path:
        places = {path, os.path.abspath(path), os.path.realpath(path)}
    else:
        places = set()
    try:
        facts = {} if said is None else {"fingerprint": str(said())}
        if len(source) > _NAMED:
            names = by_number(len(source))
        else:
            names = hashed(
                _without(str(source.name(index)), places) for index in range(len(source))
            )
    except Exception as error:  # the user's class may raise anything
        raise InputError(
            f"{type(source).__name__}: its samples cannot be told apart: {in_one_line(error)}"
        ) from error
    return SampleIds(names, facts=facts)


def _without(name: str, places: Iterable[str]) -> str:
    return next((name[len(place) :] for place in places if name.startswith(place)), name)


def with_targets(marks: SampleIds, source: Source, wish: TargetWish | None) -> SampleIds:
    """What the samples are known by, with their targets and weights.

    Args:
        source: has been checked (:mod:`preprocess.target_checks`).
        wish: what a spec asks for as its targets.
    """
    marks = replace(marks, wish="" if wish is None else str(wish))
    seen = dict(marks.seen)
    target = target_of(source)
    weights = getattr(source, "weights", None)
    if weights is not None:
        seen["weight"] = of_rows(np.asarray(weights))
    if target.kind == "class" and target.names:
        return replace(
            marks,
            seen=seen,
            classes=tuple(map(str, target.names)),
            labels=np.asarray(plain_targets(source)).astype(np.int32),
        )
    masks: ReadsMarked | None = getattr(source, "masks", None)
    if is_mask(source):
        seen |= (
            {}
            if masks is None
            else {f"mask {name}": one for name, one in masks.seen(marks.names).items()}
        )
    else:
        seen["target"] = of_rows(np.asarray(plain_targets(source)))
    return replace(
        marks,
        seen=seen,
        facts={**marks.facts, f"{target.kind}s": f"{target.outputs} {target.names}"},
    )


class ReadsMarked(Protocol):
    """Masks that say what they are known by."""

    def seen(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """As :func:`seen_of_files`.

        Args:
            keys: (n,) the names of the samples.
        """


def of(content: bytes | np.ndarray | str) -> int:
    """A number for some content, which other content hardly has.

    >>> of("a") == of(b"a") != of("b")
    True
    """
    if isinstance(content, str):
        content = encoded(content)
    if isinstance(content, np.ndarray):
        content = f"{content.dtype}{content.shape}".encode() + content.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1


def hashed(contents: Iterable[bytes | np.ndarray | str]) -> np.ndarray:
    """(n,) uint64; see :func:`of`."""
    return np.fromiter(map(of, contents), np.uint64)


def of_rows(rows: np.ndarray) -> np.ndarray:
    """A number for each row of an array, (n,) uint64."""
    if rows.dtype.kind == "O":
        return hashed(map(str, rows.tolist()))
    rows = np.ascontiguousarray(rows)
    return hashed(memoryview(row).tobytes() for row in rows.reshape(len(rows), -1))


def by_number(count: int) -> np.ndarray:
    """Names of samples that are known by their places alone."""
    return np.arange(1, count + 1, dtype=np.uint64)


def looked_at(count: int, most: int = LOOKED_AT) -> np.ndarray:
    """The samples that are looked at where not all are: they stay the same when a few are added at the end.

    >>> looked_at(3), looked_at(5, most=2)
    (array([0, 1, 2]), array([0, 4]))
    """
    return np.arange(0, count, 1 << max(0, (-(-count // most) - 1).bit_length()))


def marks_by_reading(
    source: Source, nbytes: int, unit: str, names: np.ndarray | None = None
) -> SampleIds:
    """What samples without files of their own are known by: their inputs, or, if these are large, some of them.

    Args:
        nbytes: of all inputs.
        unit: what a sample is called.
        names: where samples have some; otherwise small ones are known by their inputs, and large ones by their places.
    """
    count = len(source)
    if nbytes <= WHOLE:
        contents = hashed(_input(source, index) for index in range(count))
        if names is None:
            return SampleIds(contents, unit=unit, by_content=True)
        return SampleIds(names, {"content": contents}, unit)
    content = np.full(count, UNSEEN, np.uint64)
    rows = looked_at(count)
    content[rows] = hashed(_input(source, index) for index in rows.tolist())
    return SampleIds(by_number(count) if names is None else names, {"content": content}, unit)


def described(rows: Any) -> str:
    """Of what shape and type the rows of an array are."""
    return f"{tuple(rows.shape[1:])} {rows.dtype}"


def _input(source: Source, index: int) -> bytes | np.ndarray:
    try:
        return read_input(source, index)
    except UnreadableSample:
        return b""


def marks_of_files(names: Sequence[str], paths: Sequence[str]) -> SampleIds:
    """What samples are known by that are a file each.

    Args:
        names: of the samples, relative to where the data lies.
        paths: of their files.
    """
    keys = hashed(names)
    return SampleIds(keys, seen_of_files(keys, paths), "file")


def seen_of_files(keys: np.ndarray, paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Sizes and contents of files: of few and small ones of all, otherwise of those whose names hash lowest.

    So the same files are looked at when others are added.
    """
    count = len(paths)
    size = np.full(count, UNSEEN, np.uint64)
    content = np.full(count, UNSEEN, np.uint64)
    lowest = np.argsort(keys, kind="stable")
    asked = lowest[:SIZED]
    size[asked] = _of_each(_size, [paths[row] for row in asked.tolist()])
    is_whole = count <= FILES and int(size.sum()) <= WHOLE
    read = np.arange(count) if is_whole else lowest[:LOOKED_AT]
    content[read] = _of_each(_whole if is_whole else _edges, [paths[row] for row in read.tolist()])
    return {"size": size, "content": content}


def _of_each(function: Callable[[str], int], paths: Sequence[str]) -> np.ndarray:
    """What a function says of each file; file servers answer several questions at a time."""
    pieces = [paths[start : start + 64] for start in range(0, len(paths), 64)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda piece: list(map(function, piece)), pieces)
        return np.array([number for piece in found for number in piece], np.uint64)


def _size(path: str) -> int:
    """One more than the bytes of a file; ``UNSEEN`` of one that is not there."""
    try:
        return os.stat(path).st_size + 1
    except OSError:
        return UNSEEN


def _whole(path: str) -> int:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return of(file.read())
    return UNSEEN


def _edges(path: str) -> int:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        head = file.read(EDGE)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(len(head), end - EDGE))
        return of(head + file.read(EDGE))
    return UNSEEN


# ---- comparing ---------------------------------------------------------------------------------


def found_again(before: SampleIds, now: SampleIds, with_edited: bool = True) -> np.ndarray:
    """Which sample of before each one is now.

    Samples of one name are told apart by their order. Where rows are known by their inputs, as many as have gone from
    between two others, and as many as have come there, are taken for the same rows with other inputs; and a new row
    that is like one of before stands for that.

    Args:
        with_edited: whether to look for rows with other inputs.

    Returns:
        (samples now,) places among those of before, -1 of a new one.
    """
    old, new = (
        {key: row for row, key in enumerate(_told_apart(marks.names))} for marks in (before, now)
    )
    place = np.array([old.get(key, -1) for key in new], np.int64).reshape(len(new))
    if not (before.by_content and now.by_content) or (place >= 0).all():
        return place
    gone = np.ones(len(old), bool)
    gone[place[place >= 0]] = False
    last = first = 0  # the places after the latest sample that was found, before and now
    for row in [*np.flatnonzero(place >= 0).tolist(), len(place)]:
        there = len(gone) if row == len(place) else int(place[row])
        if there >= last:
            left = last + np.flatnonzero(gone[last:there])
            if with_edited and len(left) == row - first:
                place[first:row] = left
            last = there + 1
        first = row + 1
    like = {name: row for row, name in enumerate(before.names.tolist())}
    for row in np.flatnonzero(place < 0).tolist():
        place[row] = like.get(int(now.names[row]), -1)
    return place


def _told_apart(names: np.ndarray) -> Iterator[tuple[int, int]]:
    times: Counter[int] = Counter()
    for name in names.tolist():
        yield name, times[name]
        times[name] += 1


def differences(before: Fingerprint, now: Fingerprint) -> dict[str, list[str]]:
    """What has changed, in words, by the names of the parts; nothing of those that are as they were."""
    found = {}
    for name in dict.fromkeys([*before.parts, *now.parts]):
        part, _, further = name.partition(":")
        if further or (
            part == "test" and before.tests != now.tests
        ):  # other data is asked for: that is no change
            continue
        one = before.parts.get(name)
        other = now.parts.get(name)
        if one is None or other is None:
            found[name] = [
                f"there is no {part} data any more" if other is None else f"the {part} data is new"
            ]
        elif one.wish == other.wish:
            found[name] = _differences(one, other)
        else:  # another network is the first of the spec: its targets are none of these
            found[name] = _differences(_about(one, False), _about(other, False))
    old = _by_wish(before)
    for wish, (name, marks) in _by_wish(now).items():
        was, one = old.get(wish, ("", None))
        if one is not None and {was, name} != {"train"}:  # these have been looked at as a whole
            found[f"train:{wish}"] = _differences(
                _about(one, True), _about(marks, True), is_further=True
            )
    return {name: words for name, words in found.items() if words}


def _by_wish(found: Fingerprint) -> dict[str, tuple[str, SampleIds]]:
    """The targets of the training samples, by what a spec asks for, each with the name of its part."""
    return {
        marks.wish: (name, marks)
        for name, marks in found.parts.items()
        if name.partition(":")[0] == "train"
    }


def _about(marks: SampleIds, is_of_targets: bool) -> SampleIds:
    """What of the marks is about targets, or all else."""
    wanted = {name for name in (*marks.seen, *marks.facts) if _is_of_targets(name) == is_of_targets}
    found = replace(
        marks,
        seen={name: one for name, one in marks.seen.items() if name in wanted},
        facts={name: fact for name, fact in marks.facts.items() if name in wanted},
    )
    if is_of_targets:
        return found
    return replace(found, classes=(), labels=np.empty(0, np.int32))


def _is_of_targets(name: str) -> bool:
    """Whether what is seen of samples, or a fact about all of them, is about their targets."""
    return _WORDS.get(name) in ("targets", "masks") or name in {
        f"{kind}s" for kind in get_args(Kind)
    }


def _differences(before: SampleIds, now: SampleIds, is_further: bool = False) -> list[str]:
    if before.digest == now.digest:  # as a rule: to find each sample again takes long
        return []
    place = found_again(before, now)
    kept = place >= 0
    units = f"{now.unit}s"
    words = []
    for fact in dict.fromkeys([*before.facts, *now.facts]):
        old, new = (marks.facts.get(fact, "none") for marks in (before, now))
        words += [f"{fact}: {old} -> {new}"] if old != new else []
    if before.classes != now.classes:
        words.append(f"classes: {', '.join(before.classes)} -> {', '.join(now.classes)}")
    if not is_further:
        words += _more_and_fewer(before, now, place)
        if (np.diff(place[_firsts(place)]) < 0).any():
            words.append(f"another order of {units}")
    looks = [
        (word, before.seen[name][place[kept]], now.seen[name][kept])
        for name, word in _WORDS.items()
        if name in before.seen and name in now.seen
    ]
    if before.by_content and now.by_content:
        looks.append(("content", before.names[place[kept]], now.names[kept]))
    if len(before.labels) and len(now.labels):
        numbers = {name: number for number, name in enumerate(now.classes)}
        same = np.array([numbers.get(name, -1) for name in before.classes])
        looks.append(("classes", same[before.labels[place[kept]]], now.labels[kept]))
    for word in dict.fromkeys(word for word, *_ in looks):
        differs = np.zeros(int(kept.sum()), bool)
        for other, one, two in looks:
            if other == word:
                differs |= (one != two) & ((one != UNSEEN) & (two != UNSEEN) | (word == "classes"))
        if differs.any():
            words.append(
                f"{word} of {differs.sum()} of {counted(len(before.names), now.unit)} "
                f"{'differs' if word == 'content' else 'differ'}"
            )
    return words


def _more_and_fewer(before: SampleIds, now: SampleIds, place: np.ndarray) -> list[str]:
    """How many samples have come and gone, by class where they have one."""
    came = np.ones(len(place), bool)
    gone = np.ones(len(before.names), bool)
    came[_firsts(place)] = False  # a second one of the same content is new
    gone[place[place >= 0]] = False
    if not (came.any() or gone.any()):
        return []
    of_class: dict[str, list[int]] = {}
    for marks, rows, side in ((now, came, 0), (before, gone, 1)):
        if len(marks.labels):
            names = [marks.classes[label] for label in marks.labels[rows].tolist()]
        else:
            names = [""] * int(rows.sum())
        for name, number in Counter(names).items():
            of_class.setdefault(name, [0, 0])[side] = number
    return [
        f"{_so_many(more, fewer, now.unit)}{f' in class {name}' if name else ''}"
        for name, (more, fewer) in sorted(of_class.items())
    ]


def _firsts(place: np.ndarray) -> np.ndarray:
    """The samples now that are the first to stand for one of before, in their order."""
    found = np.flatnonzero(place >= 0)
    return np.sort(found[np.unique(place[found], return_index=True)[1]])


def _so_many(more: int, fewer: int, unit: str) -> str:
    said = [f"{counted(more, unit)} more"] if more else []
    said += [f"{fewer if said else counted(fewer, unit)} fewer"] if fewer else []
    return " and ".join(said)


# ---- keeping it --------------------------------------------------------------------------------


def write_fingerprint(file: IO[bytes], found: Fingerprint) -> None:
    """Write it as an ``.npz`` file."""
    arrays: dict[str, np.ndarray] = {"sides": found.sides, "folds": found.folds}
    said: dict[str, Any] = {
        "version": 1,
        "division": found.division,
        "tests": found.tests,
        "digest": found.digest,
        "parts": {},
    }
    for name, marks in found.parts.items():
        said["parts"][name] = {
            "unit": marks.unit,
            "by_content": marks.by_content,
            "facts": dict(marks.facts),
            "wish": marks.wish,
            "classes": marks.classes,
            "samples": len(marks.names),
            "seen": sorted(marks.seen),
        }
        arrays |= {
            f"{name}/names": marks.names,
            f"{name}/labels": marks.labels,
            **{f"{name}/{one}": array for one, array in marks.seen.items()},
        }
    whole = (
        io.BytesIO()
    )  # a zip file that was not written to its end would complain where Python deletes it
    np.savez(whole, said=np.array(json.dumps(said)), **arrays)
    file.write(whole.getbuffer())


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Read what :func:`write_fingerprint` wrote; None where it is not there, or is damaged."""
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            said = json.loads(str(file["said"]))
            parts = {
                name: SampleIds(
                    file[f"{name}/names"],
                    {one: file[f"{name}/{one}"] for one in part["seen"]},
                    part["unit"],
                    part["by_content"],
                    part["facts"],
                    tuple(part["classes"]),
                    file[f"{name}/labels"],
                    part.get("wish", ""),
                )
                for name, part in said["parts"].items()
            }
            return Fingerprint(
                parts, said["division"], file["sides"], file["folds"], said.get("tests", "")
            )
    except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile):
        return None
