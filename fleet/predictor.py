"""Load the best exported networks of a run as one ensemble, predict from new inputs, save it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from fleet.engines.registry import load_ensemble
from fleet.errors import UserError
from fleet.prediction.ensembles import GREEDY, Candidate, find_joinable, select_greedy, select_top
from fleet.prediction.sample_file import read_columns, read_sample
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.storage.run_spec import load_run_spec
from preprocess.base import Source, UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.sources.files import NamedFiles, NamedRows
from preprocess.sources.image_folder import describe_unread
from preprocess.sources.table import Columns, NewRows
from preprocess.transforms import Transform, parse_transforms
from preprocess.transforms.decoding import Decode

log = logging.getLogger("fleet.predictor")

_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_BATCH = 256  # inputs that are prepared and predicted at a time


class Predictor:
    """The mean prediction of finished networks of a run.

    Args:
        run: folder of the run.
        top: number of best networks in the results to combine; 1 by default. In a run with folds, a
            network is the mean of its folds.
        select: ``greedy`` to combine the networks with the best mean prediction for the validation
            samples, some of them perhaps several times (Caruana et al., ICML 2004).

    Raises:
        UserError: the run does not exist, too few of its networks have finished, no predictions
            were saved to choose them by, or they cannot be loaded.

    Attributes:
        weights: network -> weight in the mean; weights sum to 1. In a run with folds, the weights
            of the folds.
        folds: network -> names of its folds; empty in a run without folds.
        sample: shape and type of an input, and kind and names of the targets.
    """

    def __init__(
        self, run: str | Path, top: int | None = None, select: Literal["greedy"] | None = None
    ) -> None:
        paths = RunPaths(Path(run))
        rows = read_results(run)
        self._spec = load_run_spec(paths)
        self._feed, candidates = find_joinable(self._spec, rows)
        self.sample = read_sample(paths, self._feed)
        if not self.sample.target.semantics.exists:
            raise UserError(
                f"{paths.root}: its networks have no targets (data.target: none), so their outputs "
                "are no predictions; load an export and call it, as docs/training-step.md shows"
            )
        columns = read_columns(paths)
        if columns is None and len(self.sample.input.shape) == 1:
            columns = Columns((), False, ())  # of arrays, which have no names
        self._columns = columns
        self._target_columns = () if columns is None else columns.targets
        members = _members(paths, candidates, self.sample.target.kind, top, select)
        parts = {
            candidate.row.name: [part.name for part in candidate.parts]
            for candidate in candidates
            if candidate.row.name in members
        }
        self.folds = {name: tuple(parts[name]) for name in members if len(parts[name]) > 1}
        self.weights = {
            part: count / sum(members.values()) / len(parts[name])
            for name, count in members.items()
            for part in parts[name]
        }
        missing = [candidate.missing_folds for candidate in candidates if candidate.missing_folds]
        if missing:
            log.warning(
                "%s: %s%s; a network can be combined once all of its folds have finished",
                paths.root,
                ", ".join(missing[:5]),
                ", ..." if len(missing) > 5 else "",
            )
        files = {name: paths.exported(name, self._spec.engine.suffix) for name in self.weights}
        for name, file in files.items():
            if self._spec.engine.join is not None and not file.is_file():
                raise UserError(f"{file} is missing: {name} was not exported")
        self._ensemble = load_ensemble(
            self._spec, list(files.values()), list(self.weights.values()), self.sample.target.kind
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, labels or values; numbers if they are unnamed."""
        target = self.sample.target
        if target.names:
            return target.names
        if target.semantics.is_numeric and len(self._target_columns) == target.outputs:
            return self._target_columns
        return tuple(map(str, range(target.outputs)))

    @property
    def target_column(self) -> str | None:
        """Column of a table that held the classes; None for other targets."""
        columns = self._target_columns
        if self.sample.target.semantics.is_scalar and len(columns) == 1:
            return columns[0]
        return None

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Predict from prepared inputs, such as :meth:`prepare` yields.

        Args:
            inputs: (n, ...) inputs with the shape of :attr:`sample`; images have values of 0 to
                255.

        Returns:
            (n, classes) probabilities that sum to 1, (n, labels) probabilities of labels, (n,
            values), or for masks (n, height, width, classes), all float32.

        Raises:
            UserError: the inputs have another shape.
        """
        inputs = np.asarray(inputs)
        if inputs.shape[1:] != self.sample.input.shape:
            raise UserError(
                f"the inputs have shape {inputs.shape}; these networks take (n, "
                f"{', '.join(map(str, self.sample.input.shape))})"
            )
        return self._ensemble.predict(inputs)

    def is_table(self, file: str | Path) -> bool:
        """Return True if a file is read as a table of features or, like in the run, of files."""
        if self._columns is None or Path(file).suffix == ".npy":
            return False
        return (
            bool(self._columns.inputs and not self._columns.is_paths)
            or Path(file).suffix.lower() in _TABLES
        )

    def predict_files(self, files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
        """Predict from files: images, folders, tables, or ``.npy`` arrays with one input per row.

        The columns of a table may have any order, and may include other columns. A table of numbers
        without a header has only the features, in the order in which the run was trained.

        Returns:
            The name of each input, and the result of :meth:`predict` for all inputs.

        Raises:
            InputError, UserError: a file cannot be read, or does not fit these networks.
        """
        names = []
        predicted = []
        for batch_names, inputs in self.prepare(files):
            names += batch_names
            predicted.append(self.predict(inputs))
        if not names:
            raise UserError("no inputs to predict from; name images, tables or .npy files")
        return names, np.concatenate(predicted)

    def prepare(self, files: Sequence[str | Path]) -> Iterator[tuple[list[str], np.ndarray]]:
        """Read files like :meth:`predict_files`, and transform them like validation samples.

        Returns:
            Batches of names and inputs (n, ...).

        Raises:
            InputError, UserError: a file cannot be read, or does not fit these networks.
        """
        if self.sample.parts:
            raise UserError(
                f"these networks take several inputs ({', '.join(self.sample.parts)}), which "
                "files cannot give yet; call Predictor.predict with records of sample.input.dtype"
            )
        for source in self._sources(files):
            pipeline = Pipeline(source, self._transforms(source), self._spec.seed, self.sample)
            for first in range(0, len(source), _BATCH):
                batch = range(first, min(first + _BATCH, len(source)))
                try:
                    inputs = [
                        pipeline.augment_checked(
                            pipeline.prepare(index), index, 0, training=False
                        ).input
                        for index in batch
                    ]
                except UnreadableSample as error:
                    raise UserError(str(error)) from error
                yield [source.name(index) for index in batch], np.stack(inputs)

    def _sources(self, files: Sequence[str | Path]) -> Iterator[NamedFiles | NamedRows | NewRows]:
        """Yield the sources of files; consecutive images are one source."""
        for is_single, group in groupby(
            files, lambda file: self.is_table(file) or Path(file).suffix == ".npy"
        ):
            if not is_single:
                source = NamedFiles(list(group))
                unread = describe_unread(source)
                if unread:
                    log.warning("%s", unread)
                yield source
                continue
            for file in group:
                if self._columns is not None and self.is_table(file):
                    yield NewRows(str(file), self._columns, self.sample.input.size)
                else:
                    yield NamedRows(file)

    def save(self, path: str | Path) -> None:
        """Write the ensemble as one network, for use without FLEET.

        Keras networks become a ``.keras`` file that plain Keras loads; PyTorch networks become a
        ``.safetensors`` file with all weights and a ``.json`` file that describes them. The network
        has the inputs and outputs of :meth:`predict`.

        Raises:
            UserError: the name has the wrong ending.
            StorageError: the file cannot be written.
        """
        suffix = self._spec.engine.suffix
        if Path(path).suffix != suffix:
            raise UserError(f"{path}: the name of the file should end in {suffix}")
        self._ensemble.save(Path(path))

    def _transforms(self, source: Source) -> tuple[Transform, ...]:
        transforms = parse_transforms(self._spec.data_by_pipeline[self._feed].transforms)
        if isinstance(source, NamedRows | NewRows) or (
            transforms and isinstance(transforms[0], Decode)
        ):
            return transforms
        shape = self.sample.input.shape
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise UserError(
                f"{source.name(0)}: these networks take {self.sample.input}, not images; name .npy "
                "files with such rows"
            )
        return (Decode("L" if shape[2] == 1 else "RGB"), *transforms)


def _members(
    paths: RunPaths,
    candidates: Sequence[Candidate],
    kind: str,
    count: int | None,
    select: str | None,
) -> dict[str, int]:
    if select is None:
        if count is not None and count < 1:
            raise UserError(f"--top {count}: should be at least 1")
        return select_top(candidates, 1 if count is None else count)
    if count is not None:
        raise UserError("--top and --select exclude each other")
    if select != GREEDY:
        raise UserError(f"--select {select}: should be {GREEDY}")
    return select_greedy(paths, candidates, kind)
