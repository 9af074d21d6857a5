"""Choose ensembles of a run's best networks, and score them."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path

import numpy as np

from fleet.errors import UserError
from fleet.prediction.saved_predictions import Predictions, concatenate, read_predictions
from fleet.prediction.scores import Scores, Truth, quick_score, score
from fleet.spec import Spec
from fleet.spec.naming import configuration_name
from fleet.storage.csv_records import csv_cell
from fleet.storage.files import atomic_write
from fleet.storage.paths import PARTS, RunPaths
from fleet.storage.results import NetworkResult, Status
from fleet.units import listed
from launch.errors import pluralize
from preprocess.target_kinds import TargetKind

log = logging.getLogger("fleet.prediction.ensembles")

_SIZES = (2, 3, 5, 10, 20, 50, 100)  # numbers of best networks that are scored as ensembles
_MAX_NUMBERS = 500_000_000  # numbers in memory to choose networks: 2 GB, and about a minute

GREEDY = "greedy"
ROUNDS = 50  # rounds of greedy selection

TABLE_TITLE = "Ensembles of the best networks"
# The note below a table of ensembles.
TABLE_NOTE = (
    "Each row is the mean prediction of its networks. Its validation scores are optimistic, "
    "because the networks were chosen by the validation data; its test scores are not."
)


@dataclass(frozen=True)
class EnsembleResult:
    """One row of ``ensembles.csv``: some networks, and the scores of their mean prediction.

    Attributes:
        name: ``single``, ``top K`` or ``greedy``.
        members: number of times that each network is included, with folds as one network; the best
            network first.
        samples: number of readable validation samples.
        validation: scores on the validation samples. These have selected the best epochs and
            networks, and the members of ``greedy``, so the scores are better than on new data.
        test: scores on the test data; None without it.
    """

    name: str
    members: dict[str, int]
    samples: int
    validation: Scores
    test: Scores | None


# ---- selection ----------------------------------------------------------------------------------


def find_joinable(spec: Spec, rows: Sequence[NetworkResult]) -> tuple[str, list[Candidate]]:
    """Return the networks of a run that have the input pipeline of its best network.

    Only these can be combined.

    Args:
        spec: spec of the run.
        rows: rows of the run's results, best first.

    Returns:
        The key of their input pipeline, and the networks, best first.
    """
    feeds = {
        name: network.pipeline for network in spec.networks for name in (network.stem, network.name)
    }
    searched = {entry.stem: spec.document.pipeline_of(entry) for entry in spec.searches.values()}

    def feed(row: NetworkResult) -> str:
        """Return the input pipeline of a network; of a trial, the pipeline of its search."""
        if row.name in feeds:
            return feeds[row.name]
        return searched.get(configuration_name(row.name).rpartition("-")[0], "")

    key = feed(rows[0]) if rows else ""
    return key, make_candidates([row for row in rows if feed(row) == key])


@dataclass(frozen=True)
class Candidate:
    """A network that can be combined with others: a single network, or all its folds as one.

    Attributes:
        row: row of the network, or of the mean of its folds.
        parts: rows of the exported networks: the network itself, or one per fold.
    """

    row: NetworkResult
    parts: tuple[NetworkResult, ...]

    @property
    def is_finished(self) -> bool:
        """True if all parts have finished."""
        return all(part.status is Status.FINISHED for part in self.parts)

    @property
    def missing_folds(self) -> str:
        """A phrase about unfinished folds if only some have finished; otherwise empty."""
        finished = sum(part.status is Status.FINISHED for part in self.parts)
        if 0 < finished < len(self.parts):
            return (
                f"only {finished} of the {len(self.parts)} folds of {self.row.name} have finished"
            )
        return ""


def make_candidates(rows: Sequence[NetworkResult]) -> list[Candidate]:
    """Return the networks of a results table, best first, with folds grouped.

    Repeats are networks of their own, ordered by their means.
    """
    remaining = iter(rows)
    return [
        Candidate(row, tuple(islice(remaining, row.folds)) or (row,))
        for row in remaining
        if not row.repeats
    ]


def select_top(candidates: Sequence[Candidate], count: int) -> dict[str, int]:
    """Return the best finished networks of a run, each once.

    Args:
        candidates: networks of the run that can be combined, best first.
        count: number of networks.

    Raises:
        UserError: fewer have finished.
    """
    finished = [candidate.row.name for candidate in candidates if candidate.is_finished]
    if count > len(finished):
        missing_folds = "".join(
            f"; {candidate.missing_folds}" for candidate in candidates if candidate.missing_folds
        )
        if finished:
            problem = (
                f"--top {count}: only {pluralize(len(finished), 'network')} can be combined, "
                "because others have not finished or read other inputs than the best network; use "
                f"--top {len(finished)} to combine all of them"
            )
        else:
            problem = "no network has finished yet"
        raise UserError(problem + missing_folds)
    return dict.fromkeys(finished[:count], 1)


def select_greedy(
    paths: RunPaths, candidates: Sequence[Candidate], semantics: TargetKind
) -> dict[str, int]:
    """Return the best combination of networks, and how often each counts; see :func:`greedy`.

    Args:
        paths: paths of the run.
        candidates: networks of the run that can be combined, best first.
        semantics: what the kind of the targets means.

    Raises:
        UserError: no predictions were saved.
    """
    predictions = _comparable(paths, candidates, semantics)
    if not predictions:
        raise UserError(
            f"{paths.root}: no network has saved predictions for validation samples, which "
            "--select needs; use --top, or run with validation data or folds, and with targets "
            "other than masks"
        )
    return _greedy(predictions)


def _comparable(
    paths: RunPaths, candidates: Sequence[Candidate], semantics: TargetKind
) -> dict[str, Predictions]:
    """Return predictions of finished networks for equal validation samples, best first.

    Networks are excluded if they have saved no predictions, were evaluated on other samples than
    the best network, or would exceed the memory limit.
    """
    predictions: dict[str, Predictions] = {}
    numbers = 0
    for candidate in candidates:
        predicted = _read_validation(paths, candidate, semantics) if candidate.is_finished else None
        if predicted is None or not predicted.values.size:
            continue
        if predictions and not predicted.is_comparable(next(iter(predictions.values()))):
            continue
        numbers += predicted.values.size
        if predictions and numbers > _MAX_NUMBERS:
            log.warning(
                "%s: only the best %d networks are compared, because more do not fit into memory",
                paths.root,
                len(predictions),
            )
            break
        predictions[candidate.row.name] = predicted
    return predictions


def _read_validation(
    paths: RunPaths, candidate: Candidate, semantics: TargetKind
) -> Predictions | None:
    """Return a network's validation predictions; of folds, each for its held-out samples."""
    parts = _read_parts(paths, candidate, PARTS[0], semantics)
    if not parts:
        return None
    return concatenate(parts)


def _read_test(paths: RunPaths, candidate: Candidate, semantics: TargetKind) -> Predictions | None:
    """Return a network's test predictions; of folds, their mean."""
    parts = _read_parts(paths, candidate, PARTS[1], semantics)
    if not parts or not all(part.is_comparable(parts[0]) for part in parts):
        return None
    mean = np.mean([part.values for part in parts], axis=0, dtype=np.float64)
    return replace(parts[0], values=mean)


def _read_parts(
    paths: RunPaths, candidate: Candidate, part: str, semantics: TargetKind
) -> Sequence[Predictions]:
    """Return the predictions of a network, or of each fold; empty if some are missing."""
    read = [read_predictions(paths, row.name, part, semantics) for row in candidate.parts]
    available = [predicted for predicted in read if predicted is not None]
    return available if len(available) == len(read) else ()


def _greedy(predictions: Mapping[str, Predictions]) -> dict[str, int]:
    names = list(predictions)
    truth = next(iter(predictions.values())).truth
    counts = greedy([predicted.values for predicted in predictions.values()], truth)
    return {names[index]: counts[index] for index in sorted(counts)}


def greedy(predictions: Sequence[np.ndarray], truth: Truth, rounds: int = ROUNDS) -> dict[int, int]:
    """Choose networks with the best mean prediction by greedy ensemble selection.

    This is ensemble selection with replacement (Caruana et al., ICML 2004, section 2). Each round
    adds the network, possibly again, that improves the mean of the selection most. The best prefix
    of the sequence is returned, the shortest among equal prefixes. A mean is better if it has a
    higher accuracy, or the same accuracy and a smaller loss. Ties go to networks that were already
    chosen, then to the first network.

    Args:
        predictions: (n, outputs) predictions of each network, best network first.
        truth: truth of the same n samples.
        rounds: number of networks to choose before the best prefix is taken.

    Returns:
        Index of each network of the best prefix -> number of times that it is included, in the
        order of selection.

    >>> from preprocess.target_kinds import KINDS
    >>> truth = Truth(KINDS["class"], np.array([0, 1]))
    >>> greedy([np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([[0.4, 0.6], [0.1, 0.9]])], truth)
    {0: 1, 1: 1}
    """
    total = np.zeros(predictions[0].shape, np.float64)
    path: list[int] = []
    best = (0.0, np.inf)
    best_length = 0
    for length in range(1, rounds + 1):
        best_candidate = min(
            (_order((total + predicted) / length, truth), index not in path, index)
            for index, predicted in enumerate(predictions)
        )
        order = best_candidate[0]
        index = best_candidate[2]
        path.append(index)
        total += predictions[index]
        if not best_length or order < best:
            best = order
            best_length = length
    return dict(Counter(path[:best_length]))


def _order(predicted: np.ndarray, truth: Truth) -> tuple[float, float]:
    """Return a sort key, smaller is better; differences within rounding are ties."""
    accuracy, loss = quick_score(predicted, truth)
    return (0.0 if math.isnan(accuracy) else -round(accuracy, 9)), round(loss, 9)


# ---- scores -------------------------------------------------------------------------------------


def score_ensembles(
    paths: RunPaths, candidates: Sequence[Candidate], semantics: TargetKind
) -> list[EnsembleResult]:
    """Score the best network, ensembles of the best few, and the greedy choice.

    Args:
        paths: paths of the run.
        candidates: networks of the run that can be combined, best first.
        semantics: what the kind of the targets means.

    Returns:
        The scores; empty if fewer than two networks can be compared.
    """
    predictions = _comparable(paths, candidates, semantics)
    if len(predictions) < 2:
        return []
    names = list(predictions)
    ensembles = {"single": dict.fromkeys(names[:1], 1)}
    ensembles |= {
        f"top {size}": dict.fromkeys(names[:size], 1) for size in _SIZES if size <= len(names)
    }
    ensembles[GREEDY] = _greedy(predictions)
    test_predictions = {}
    for candidate in candidates:
        if candidate.row.name in predictions:
            test = _read_test(paths, candidate, semantics)
            if test is not None:
                test_predictions[candidate.row.name] = test
    truth = next(iter(predictions.values())).truth
    results = []
    for name, members in ensembles.items():
        validation = _score(predictions, members)
        test_scores = None
        if members.keys() <= test_predictions.keys():
            test_scores = _score(test_predictions, members)
        results.append(EnsembleResult(name, members, len(truth.targets), validation, test_scores))
    return results


def _score(predictions: Mapping[str, Predictions], members: Mapping[str, int]) -> Scores:
    first = predictions[next(iter(members))]
    total = np.zeros(first.values.shape, np.float64)
    for name, count in members.items():
        total += count * predictions[name].values
    return score(total / sum(members.values()), first.truth)


# ---- the table ----------------------------------------------------------------------------------

_SCORES = [field.name for field in fields(Scores)]


def write_ensembles(paths: RunPaths, rows: Sequence[EnsembleResult]) -> None:
    """Write ``ensembles.csv``.

    Args:
        paths: paths of the run.
        rows: rows of the table.

    Raises:
        StorageError: the file cannot be written.
    """
    with atomic_write(paths.ensembles) as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "name",
                "members",
                "samples",
                *(f"{prefix}_{name}" for prefix in ("val", "test") for name in _SCORES),
            ]
        )
        for row in rows:
            values = [
                getattr(scores, name, None)
                for scores in (row.validation, row.test)
                for name in _SCORES
            ]
            writer.writerow(map(csv_cell, [row.name, row.members, row.samples, *values]))


def read_ensembles(run: str | Path) -> list[EnsembleResult]:
    """Return the scores of a run's ensembles; empty if they have not been written.

    Args:
        run: folder of the run.

    Raises:
        UserError: the table is damaged.
    """
    path = RunPaths(Path(run)).ensembles
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [_parse(row) for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is not a table of ensembles: {error}; delete it") from None


def _parse(row: Mapping[str, str]) -> EnsembleResult:
    validation, test = (
        Scores(*(float(row[f"{prefix}_{name}"] or math.nan) for name in _SCORES))
        for prefix in ("val", "test")
    )
    return EnsembleResult(
        row["name"],
        json.loads(row["members"]),
        int(row["samples"]),
        validation,
        None if all(map(math.isnan, asdict(test).values())) else test,
    )


_HEADERS = {
    "acc": "accuracy",
    "log loss": "log_loss",
    "calibration error": "calibration_error",
    "squared error": "squared_error",
}


def make_table(rows: Sequence[EnsembleResult]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows to print, without empty columns."""
    values = {
        f"{prefix} {header}": [getattr(getattr(row, part), name, math.nan) for row in rows]
        for prefix, part in (("val", "validation"), ("test", "test"))
        for header, name in _HEADERS.items()
    }
    columns = {
        header: numbers for header, numbers in values.items() if not all(map(math.isnan, numbers))
    }
    lines = [
        [
            row.name,
            *(
                "" if math.isnan(numbers[index]) else f"{numbers[index]:.4f}"
                for numbers in columns.values()
            ),
            _listed(row.members),
        ]
        for index, row in enumerate(rows)
    ]
    return ["networks", *columns, "which"], lines


def _listed(members: Mapping[str, int]) -> str:
    """Return the members as one line.

    >>> _listed({"a": 2, "b": 1})
    '2 x a, b'
    """
    return listed(
        [name if count == 1 else f"{count} x {name}" for name, count in members.items()], 8
    )
