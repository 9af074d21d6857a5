"""The identity of data, by which a run notices changes and finds each sample again.

A source may return the ids of its samples by a method ``sample_ids()``. Of any other source, the
names and targets are hashed, and what its method ``fingerprint()`` returns, if it has one. The work
is bounded, however large the data is: up to ``FULL_READ_BYTES`` all content is read, above that a
fixed selection. Where data lies, and when it was written, does not matter.
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

from launch.errors import InputError, encode_name, pluralize
from preprocess.base import (
    Source,
    UnreadableSample,
    as_input,
    flatten_rows,
    format_exception,
)
from preprocess.target import Request, TargetSpec, is_mask, plain_targets, target_of
from preprocess.target_kinds import Kind

FULL_READ_BYTES = 256 << 20  # up to so many bytes of data, all content is read
FULL_READ_FILES = 10_000  # up to so many files
CONTENT_SAMPLES = 1000  # samples of larger data whose content is read
EDGE_BYTES = 4096  # bytes read at either end of such a file
SIZED_FILES = 200_000  # files whose sizes are read; of more, a fixed selection
_MAX_NAMES = 2_000_000  # samples of a custom source whose names are hashed
NOT_READ = 0  # the hash of content that was not read

# The hashes of a sample beside its name, and how a difference is described.
_KINDS_OF_CHANGE = {
    "size": "content",
    "content": "content",
    "target": "targets",
    "mask size": "masks",
    "mask content": "masks",
    "weight": "weights",
}


@dataclass(frozen=True)
class SampleIds:
    """The ids of the samples of a split.

    Attributes:
        names: (n,) uint64, hashes of their names relative to the data; or of their inputs, if rows
            have no names.
        hashes: by the keys of ``_KINDS_OF_CHANGE``: (n,) uint64, ``NOT_READ`` if not inspected.
        unit: the noun for a sample: file, row, and so on.
        by_content: True if ``names`` are hashes of inputs.
        facts: name -> text about all samples.
        classes: the names of ``labels``; empty if targets are not classes.
        labels: (n,) int32; empty if targets are not classes.
        requested_target: the ``data.target`` of the spec; empty if the source says its targets.
    """

    names: np.ndarray
    hashes: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit: str = "sample"
    by_content: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    requested_target: str = ""

    def select(self, rows: np.ndarray) -> SampleIds:
        """Return the ids of the samples ``rows``, (m,) integers."""
        return replace(
            self,
            names=self.names[rows],
            hashes={name: values[rows] for name, values in self.hashes.items()},
            labels=self.labels[rows] if len(self.labels) else self.labels,
        )

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        state = hashlib.sha256(
            json.dumps([self.unit, self.by_content, dict(self.facts), self.classes]).encode()
        )
        for array in (
            self.names,
            self.labels,
            *(self.hashes[name] for name in sorted(self.hashes)),
        ):
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()[:16]


@dataclass(frozen=True)
class Fingerprint:
    """The identity of a data set, and how a run has divided it.

    Attributes:
        splits: the samples of each: ``train`` before any are held out; ``validation`` and ``test``
            if they are other data. ``train:1`` and so on are further targets of the same samples.
        division: the settings by which samples were divided.
        sides: (samples of ``train``,) int8: 0 training, 1 validation, 2 test, -1 unknown.
        folds: (samples of ``train``,) int16: the fold of each, -1 for none; empty without folds.
        test_path: the path of separate test data; empty if there is none, or a share.
    """

    splits: Mapping[str, SampleIds]
    division: str = ""
    sides: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    folds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    test_path: str = ""

    @property
    def digest(self) -> str:
        """A hash of the data that does not depend on its division."""
        return hashlib.sha256(
            "".join(f"{name}\0{ids.digest}\n" for name, ids in sorted(self.splits.items())).encode()
        ).hexdigest()[:16]

    def find_previous(
        self, train: SampleIds, division: str, has_groups: bool = False
    ) -> PreviousDivision:
        """Return the earlier side and fold of each sample, matched by name.

        Nothing is returned if samples are now divided by other settings.

        Args:
            train: the current samples.
            division: the current settings.
            has_groups: True if some samples stay together; a new row then belongs with its group
                and replaces no removed one.
        """
        if division != self.division or "train" not in self.splits:
            return PreviousDivision()
        before = self.splits["train"]
        if np.array_equal(before.names, train.names):
            matches = np.arange(len(train.names))
        else:
            matches = match_samples(before, train, with_edited=not has_groups)
        return PreviousDivision(
            *(
                np.where(matches >= 0, values[matches], -1) if len(values) else None
                for values in (self.sides, self.folds)
            )
        )


@dataclass(frozen=True)
class PreviousDivision:
    """The earlier side and fold of each sample of ``train``; None if unknown.

    Attributes:
        sides: (n,) as in :class:`Fingerprint`, -1 if new.
        folds: (n,) as in :class:`Fingerprint`, -1 if new.
    """

    sides: np.ndarray | None = None
    folds: np.ndarray | None = None


# ---- taking it ---------------------------------------------------------------------------------


def identify_samples(source: Source, path: str = "") -> SampleIds:
    """Return the ids of a source's samples, without their targets.

    Args:
        source: the samples.
        path: the path of the data, which is removed from names.

    Raises:
        InputError: the user's source raises.
    """
    method: Callable[[], SampleIds] | None = getattr(source, "sample_ids", None)
    if method is not None:
        return method()
    fingerprint: Callable[[], Any] | None = getattr(source, "fingerprint", None)
    if path:
        places = {path, os.path.abspath(path), os.path.realpath(path)}
    else:
        places = set()
    try:
        facts = {}
        if fingerprint is not None:
            facts["fingerprint"] = str(fingerprint())
        if len(source) > _MAX_NAMES:
            names = number_samples(len(source))
        else:
            names = hash_each(
                _strip_path(str(source.name(index)), places) for index in range(len(source))
            )
    except Exception as error:  # the user's class may raise anything
        raise InputError(
            f"{type(source).__name__}: its samples cannot be identified: {format_exception(error)}"
        ) from error
    return SampleIds(names, facts=facts)


def _strip_path(name: str, places: Iterable[str]) -> str:
    return next((name[len(path) :] for path in places if name.startswith(path)), name)


def add_target_ids(marks: SampleIds, source: Source, requested_target: Request) -> SampleIds:
    """Add targets and weights to the ids of samples.

    Args:
        marks: the ids without targets.
        source: has been checked (:mod:`preprocess.target_checks`).
        requested_target: the ``data.target`` of the spec.
    """
    marks = replace(
        marks, requested_target="" if requested_target is None else str(requested_target)
    )
    seen = dict(marks.hashes)
    target = target_of(source)
    weights = getattr(source, "weights", None)
    if weights is not None:
        seen["weight"] = hash_rows(np.asarray(weights))
    if target.semantics.is_scalar and target.names:
        return replace(
            marks,
            hashes=seen,
            classes=tuple(map(str, target.names)),
            labels=np.asarray(plain_targets(source)).astype(np.int32),
        )
    masks: HashableMasks | None = getattr(source, "masks", None)
    if is_mask(source):
        if masks is not None:
            hashes = masks.hashes(marks.names).items()
            seen |= {f"mask {name}": values for name, values in hashes}
    elif not target.parts:
        seen["target"] = hash_rows(np.asarray(plain_targets(source)))
    for name, part in target.parts.items():
        if not part.semantics.is_of_pixels:
            seen[f"target {name}"] = _hash_named(np.asarray(plain_targets(source)[name]), part)
    facts = {
        f"{part.kind}s{f' {name}' if target.parts else ''}": f"{part.outputs} {part.names}"
        for name, part in target.by_name.items()
    }
    return replace(marks, hashes=seen, facts={**marks.facts, **facts})


def _hash_named(targets: np.ndarray, target: TargetSpec) -> np.ndarray:
    """Hash one of several targets of each sample, (n,): classes by their names."""
    if target.semantics.is_scalar and target.names:
        return hash_each(target.names)[targets.astype(np.int64)]
    return hash_rows(targets)


class HashableMasks(Protocol):
    """Masks that can hash themselves."""

    def hashes(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Hash masks, as :func:`hash_files` does files.

        Args:
            keys: (n,) uint64, the names of the samples.
        """


def hash64(content: bytes | np.ndarray | str) -> int:
    """Return a 64-bit hash of some content, never 0.

    >>> hash64("a") == hash64(b"a") != hash64("b")
    True
    """
    if isinstance(content, str):
        content = encode_name(content)
    if isinstance(content, np.ndarray):
        content = f"{content.dtype}{content.shape}".encode() + content.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1


def hash_each(contents: Iterable[bytes | np.ndarray | str]) -> np.ndarray:
    """Hash each content, (n,) uint64; see :func:`hash64`."""
    return np.fromiter(map(hash64, contents), np.uint64)


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """Hash each row of an array (n, ...), (n,) uint64."""
    if rows.dtype.kind == "O":
        return hash_each(map(str, rows.tolist()))
    rows = np.ascontiguousarray(rows)
    return hash_each(memoryview(row).tobytes() for row in flatten_rows(rows))


def number_samples(count: int) -> np.ndarray:
    """Return ids for samples that have only positions, (n,) uint64."""
    return np.arange(1, count + 1, dtype=np.uint64)


def select_rows(count: int, limit: int = CONTENT_SAMPLES) -> np.ndarray:
    """Select rows to inspect, (m,) int64; a few rows added at the end change none.

    >>> select_rows(3), select_rows(5, limit=2)
    (array([0, 1, 2]), array([0, 4]))
    """
    share = -(-count // limit)  # rounded up
    step = 1 << max(0, (share - 1).bit_length())
    return np.arange(0, count, step)


def identify_by_content(
    source: Source, nbytes: int, unit: str, names: np.ndarray | None = None
) -> SampleIds:
    """Return the ids of samples that are not files: from all inputs, or some of large ones.

    Args:
        source: the samples.
        nbytes: the size of all inputs, in bytes.
        unit: the noun for a sample.
        names: (n,) uint64, hashes of their names. Without names, small inputs identify samples, and
            positions identify large ones.
    """
    count = len(source)
    if nbytes <= FULL_READ_BYTES:
        contents = hash_each(_input(source, index) for index in range(count))
        if names is None:
            return SampleIds(contents, unit=unit, by_content=True)
        return SampleIds(names, {"content": contents}, unit)
    content = np.full(count, NOT_READ, np.uint64)
    rows = select_rows(count)
    content[rows] = hash_each(_input(source, index) for index in rows.tolist())
    return SampleIds(number_samples(count) if names is None else names, {"content": content}, unit)


def describe_rows(rows: Any) -> str:
    """Format the shape and dtype of an array's rows."""
    return f"{tuple(rows.shape[1:])} {rows.dtype}"


def _input(source: Source, index: int) -> bytes | np.ndarray:
    try:
        content: Any = source.read(index)
        if isinstance(content, Mapping):  # of several inputs
            values = (
                as_input(value, f"data.source: read({index}), {name},")
                for name, value in content.items()
            )
            return hash_each(values).tobytes()
        return as_input(content, f"data.source: read({index})")
    except UnreadableSample:
        return b""


def identify_files(names: Sequence[str], paths: Sequence[str]) -> SampleIds:
    """Return the ids of samples that are files.

    Args:
        names: the names of the samples, relative to the data.
        paths: the paths of their files.
    """
    keys = hash_each(names)
    return SampleIds(keys, hash_files(keys, paths), "file")


def hash_files(keys: np.ndarray, paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Hash sizes and contents of files: of all small sets, else of the lowest name hashes.

    So the same files are inspected when others are added.

    Args:
        keys: (n,) uint64, the hashes of their names.
        paths: the paths of the files.

    Returns:
        ``size`` and ``content``, each (n,) uint64.
    """
    count = len(paths)
    size = np.full(count, NOT_READ, np.uint64)
    content = np.full(count, NOT_READ, np.uint64)
    lowest = np.argsort(keys, kind="stable")
    sized = lowest[:SIZED_FILES]
    size[sized] = _map_files(_file_size, [paths[row] for row in sized.tolist()])
    is_whole = count <= FULL_READ_FILES and int(size.sum()) <= FULL_READ_BYTES
    hash_content: Callable[[str], int] = _hash_edges
    read = lowest[:CONTENT_SAMPLES]
    if is_whole:
        hash_content = _hash_file
        read = np.arange(count)
    content[read] = _map_files(hash_content, [paths[row] for row in read.tolist()])
    return {"size": size, "content": content}


def _map_files(function: Callable[[str], int], paths: Sequence[str]) -> np.ndarray:
    """Apply a function to each file in threads: file servers answer requests in parallel."""
    pieces = [paths[start : start + 64] for start in range(0, len(paths), 64)]
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda piece: list(map(function, piece)), pieces)
        return np.array([number for piece in results for number in piece], np.uint64)


def _file_size(path: str) -> int:
    """Return one more than the bytes of a file; ``NOT_READ`` if it is missing."""
    try:
        return os.stat(path).st_size + 1
    except OSError:
        return NOT_READ


def _hash_file(path: str) -> int:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return hash64(file.read())
    return NOT_READ


def _hash_edges(path: str) -> int:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        head = file.read(EDGE_BYTES)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(len(head), end - EDGE_BYTES))
        return hash64(head + file.read(EDGE_BYTES))
    return NOT_READ


# ---- comparing ---------------------------------------------------------------------------------


def match_samples(before: SampleIds, now: SampleIds, with_edited: bool = True) -> np.ndarray:
    """Match current samples to earlier ones.

    Samples of the same name are distinguished by their order. If rows are identified by their
    inputs, a gap between two matched rows that has as many removed as added rows is taken for
    edited rows; and a new row equal to an earlier one matches it.

    Args:
        before: the earlier samples.
        now: the current samples.
        with_edited: True to also match edited rows.

    Returns:
        (samples now,) int64, indices into ``before``, -1 for a new one.
    """
    old, new = (
        {key: row for row, key in enumerate(_number_duplicates(marks.names))}
        for marks in (before, now)
    )
    matches = np.array([old.get(key, -1) for key in new], np.int64).reshape(len(new))
    if not (before.by_content and now.by_content) or (matches >= 0).all():
        return matches
    is_unmatched = np.ones(len(old), bool)
    is_unmatched[matches[matches >= 0]] = False
    last = first = 0  # one past the latest match, before and now
    for row in [*np.flatnonzero(matches >= 0).tolist(), len(matches)]:
        position = len(is_unmatched)
        if row < len(matches):
            position = int(matches[row])
        if position >= last:
            candidates = last + np.flatnonzero(is_unmatched[last:position])
            if with_edited and len(candidates) == row - first:
                matches[first:row] = candidates
            last = position + 1
        first = row + 1
    like = {name: row for row, name in enumerate(before.names.tolist())}
    for row in np.flatnonzero(matches < 0).tolist():
        matches[row] = like.get(int(now.names[row]), -1)
    return matches


def _number_duplicates(names: np.ndarray) -> Iterator[tuple[int, int]]:
    times: Counter[int] = Counter()
    for name in names.tolist():
        yield name, times[name]
        times[name] += 1


def compare_fingerprints(before: Fingerprint, now: Fingerprint) -> dict[str, list[str]]:
    """Describe what has changed, by split; unchanged splits are omitted."""
    changes = {}
    for name in dict.fromkeys([*before.splits, *now.splits]):
        split, _, further = name.partition(":")
        # other data was requested, which is not a change
        if further or (split == "test" and before.test_path != now.test_path):
            continue
        earlier = before.splits.get(name)
        new = now.splits.get(name)
        if new is None:
            changes[name] = [f"the {split} data has been removed"]
        elif earlier is None:
            changes[name] = [f"the {split} data is new"]
        elif earlier.requested_target == new.requested_target:
            changes[name] = _compare_splits(earlier, new)
        else:  # another network is first in the spec, with other targets
            changes[name] = _compare_splits(
                _select_facts(earlier, False), _select_facts(new, False)
            )
    old = _training_ids_by_target(before)
    for target, (name, marks) in _training_ids_by_target(now).items():
        old_name, earlier = old.get(target, ("", None))
        # these were compared in full above
        if earlier is not None and {old_name, name} != {"train"}:
            changes[f"train:{target}"] = _compare_splits(
                _select_facts(earlier, True), _select_facts(marks, True), is_further=True
            )
    return {name: words for name, words in changes.items() if words}


def _training_ids_by_target(fingerprint: Fingerprint) -> dict[str, tuple[str, SampleIds]]:
    """Return the targets of training samples by requested target, with their split's key."""
    return {
        marks.requested_target: (name, marks)
        for name, marks in fingerprint.splits.items()
        if name.partition(":")[0] == "train"
    }


def _select_facts(marks: SampleIds, is_of_targets: bool) -> SampleIds:
    """Return what ids say about targets, or everything else."""
    chosen = {
        name for name in (*marks.hashes, *marks.facts) if _is_of_targets(name) == is_of_targets
    }
    selected = replace(
        marks,
        hashes={name: values for name, values in marks.hashes.items() if name in chosen},
        facts={name: fact for name, fact in marks.facts.items() if name in chosen},
    )
    if is_of_targets:
        return selected
    return replace(selected, classes=(), labels=np.empty(0, np.int32))


def _is_of_targets(name: str) -> bool:
    """Return True if a hash or fact is about targets."""
    return _KINDS_OF_CHANGE.get(name) in ("targets", "masks") or name in {
        f"{kind}s" for kind in get_args(Kind)
    }


def _compare_splits(before: SampleIds, now: SampleIds, is_further: bool = False) -> list[str]:
    if before.digest == now.digest:  # the usual case; matching samples is slow
        return []
    matches = match_samples(before, now)
    is_matched = matches >= 0
    units = f"{now.unit}s"
    words = []
    for fact in dict.fromkeys([*before.facts, *now.facts]):
        old, new = (marks.facts.get(fact, "none") for marks in (before, now))
        if old != new:
            words.append(f"{fact}: {old} -> {new}")
    if before.classes != now.classes:
        words.append(f"classes: {', '.join(before.classes)} -> {', '.join(now.classes)}")
    if not is_further:
        words += _count_changes(before, now, matches)
        if (np.diff(matches[_first_matches(matches)]) < 0).any():
            words.append(f"another order of {units}")
    comparisons = [
        (word, before.hashes[name][matches[is_matched]], now.hashes[name][is_matched])
        for name, word in _KINDS_OF_CHANGE.items()
        if name in before.hashes and name in now.hashes
    ]
    if before.by_content and now.by_content:
        comparisons.append(("content", before.names[matches[is_matched]], now.names[is_matched]))
    if len(before.labels) and len(now.labels):
        numbers = {name: number for number, name in enumerate(now.classes)}
        same = np.array([numbers.get(name, -1) for name in before.classes])
        comparisons.append(
            ("classes", same[before.labels[matches[is_matched]]], now.labels[is_matched])
        )
    for word in dict.fromkeys(word for word, *_ in comparisons):
        differs = np.zeros(int(is_matched.sum()), bool)
        for word_of, old_hash, new_hash in comparisons:
            if word_of == word:
                differs |= (old_hash != new_hash) & (
                    (old_hash != NOT_READ) & (new_hash != NOT_READ) | (word == "classes")
                )
        if differs.any():
            words.append(
                f"{word} of {differs.sum()} of {pluralize(len(before.names), now.unit)} "
                f"{'differs' if word == 'content' else 'differ'}"
            )
    return words


def _count_changes(before: SampleIds, now: SampleIds, matches: np.ndarray) -> list[str]:
    """Describe how many samples were added and removed, by class if they have one."""
    added = np.ones(len(matches), bool)
    removed = np.ones(len(before.names), bool)
    added[_first_matches(matches)] = False  # a second sample of the same content is new
    removed[matches[matches >= 0]] = False
    if not (added.any() or removed.any()):
        return []
    of_class: dict[str, list[int]] = {}
    for marks, rows, side in ((now, added, 0), (before, removed, 1)):
        if len(marks.labels):
            names = [marks.classes[label] for label in marks.labels[rows].tolist()]
        else:
            names = [""] * int(rows.sum())
        for name, number in Counter(names).items():
            of_class.setdefault(name, [0, 0])[side] = number
    return [
        f"{_format_change(more, fewer, now.unit)}{f' in class {name}' if name else ''}"
        for name, (more, fewer) in sorted(of_class.items())
    ]


def _first_matches(matches: np.ndarray) -> np.ndarray:
    """Return the current samples that match an earlier one first, in their order, (m,)."""
    matched = np.flatnonzero(matches >= 0)
    return np.sort(matched[np.unique(matches[matched], return_index=True)[1]])


def _format_change(more: int, fewer: int, unit: str) -> str:
    if more and fewer:
        return f"{pluralize(more, unit)} more and {fewer} fewer"
    if more:
        return f"{pluralize(more, unit)} more"
    if fewer:
        return f"{pluralize(fewer, unit)} fewer"
    return ""


# ---- keeping it --------------------------------------------------------------------------------


def write_fingerprint(file: IO[bytes], fingerprint: Fingerprint) -> None:
    """Write a fingerprint as an ``.npz`` file."""
    arrays: dict[str, np.ndarray] = {"sides": fingerprint.sides, "folds": fingerprint.folds}
    metadata: dict[str, Any] = {
        "version": 1,
        "division": fingerprint.division,
        "tests": fingerprint.test_path,
        "digest": fingerprint.digest,
        "parts": {},
    }
    for name, marks in fingerprint.splits.items():
        metadata["parts"][name] = {
            "unit": marks.unit,
            "by_content": marks.by_content,
            "facts": dict(marks.facts),
            "wish": marks.requested_target,
            "classes": marks.classes,
            "samples": len(marks.names),
            "seen": sorted(marks.hashes),
        }
        arrays |= {
            f"{name}/names": marks.names,
            f"{name}/labels": marks.labels,
            **{f"{name}/{key}": array for key, array in marks.hashes.items()},
        }
    # an unfinished zip file would raise when Python deletes it
    buffer = io.BytesIO()
    np.savez(buffer, said=np.array(json.dumps(metadata)), **arrays)
    file.write(buffer.getbuffer())


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Read what :func:`write_fingerprint` wrote; None if it is missing or damaged."""
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            metadata = json.loads(str(file["said"]))
            splits = {
                name: SampleIds(
                    file[f"{name}/names"],
                    {key: file[f"{name}/{key}"] for key in record["seen"]},
                    record["unit"],
                    record["by_content"],
                    record["facts"],
                    tuple(record["classes"]),
                    file[f"{name}/labels"],
                    record.get("wish", ""),
                )
                for name, record in metadata["parts"].items()
            }
            return Fingerprint(
                splits,
                metadata["division"],
                file["sides"],
                file["folds"],
                metadata.get("tests", ""),
            )
    except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile):
        return None
