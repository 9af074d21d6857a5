"""The best networks of a run as one: loaded from what was exported, used on new inputs, written as one network."""

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
from fleet.spec import Spec
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.storage.run_spec import load_run_spec
from preprocess.base import Source, UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.sample import SampleSpec
from preprocess.sources.files import NamedFiles, NamedRows
from preprocess.sources.image_folder import describe_unread
from preprocess.sources.table import Columns, NewRows
from preprocess.transforms import Transform, parse_transforms
from preprocess.transforms.decoding import Decode

log = logging.getLogger("fleet.predictor")

_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_AT_ONCE = 256  # inputs that are held


class Predictor:
    """The mean of what finished networks of a run predict.

    Args:
        run: the run's folder.
        top: join so many, the best of its table of results; 1 where nothing is said. In a run with
            folds a network is the mean of those of its folds.
        select: ``greedy``: join those that go together best on the validation samples, each perhaps
            several times (Caruana et al., ICML 2004).

    Raises:
        UserError: there is no such run, too few of its networks have finished, nothing is kept to
            choose them by, or they cannot be loaded.

    Attributes:
        weights: network -> its share of the mean; they add up to 1. With folds, those of the folds.
        folds: network -> those of its folds; empty in a run without folds.
        sample: what is predicted from what: the shape and the type of an input, and the kind and
            the names of targets.
    """

    def __init__(
        self, run: str | Path, top: int | None = None, select: Literal["greedy"] | None = None
    ) -> None:
        paths = RunPaths(Path(run))
        rows = read_results(run)
        self._spec = load_run_spec(paths)
        self._feed, candidates = find_joinable(self._spec, rows)
        self.sample = read_sample(paths, self._feed)
        self._columns = _columns_of(paths, self._spec, self._feed, self.sample)
        if self._columns is None:
            self._target_columns: tuple[str, ...] = ()
        else:
            self._target_columns = self._columns.targets
        members = _members(paths, candidates, self.sample.target.kind, top, select)
        parts = {
            candidate.row.name: [part.name for part in candidate.parts]
            for candidate in candidates
            if candidate.row.name in members
        }
        self.folds = {name: tuple(parts[name]) for name in members if len(parts[name]) > 1}
        self.weights = {
            part: times / sum(members.values()) / len(parts[name])
            for name, times in members.items()
            for part in parts[name]
        }
        partly = [candidate.missing_folds for candidate in candidates if candidate.missing_folds]
        if partly:
            log.warning(
                "%s: %s%s; a network is joined once all of its folds have",
                paths.root,
                ", ".join(partly[:5]),
                ", ..." if len(partly) > 5 else "",
            )
        files = {name: paths.exported(name, self._spec.engine.suffix) for name in self.weights}
        for name, file in files.items():
            if self._spec.engine.join is not None and not file.is_file():
                raise UserError(f"{file} is not there: {name} was not exported")
        self._joined = load_ensemble(
            self._spec, list(files.values()), list(self.weights.values()), self.sample.target.kind
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the outputs are called: the classes, labels or values, by their columns; or else their numbers."""
        target = self.sample.target
        columns = self._target_columns
        if target.kind == "value" and len(columns) == target.outputs:
            of_values = columns
        else:
            of_values = ()
        return target.names or of_values or tuple(map(str, range(target.outputs)))

    @property
    def target_column(self) -> str | None:
        """The column of a table in which the classes stood; None where targets were something else."""
        columns = self._target_columns
        if self.sample.target.kind == "class" and len(columns) == 1:
            return columns[0]
        return None

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Predict from inputs that are prepared: as :meth:`prepare` gives them.

        Args:
            images: (n, ...) of the shape of :attr:`sample`; images of 0 to 255.

        Returns:
            (n, classes) probabilities that add up to 1, (n, labels) one for each label, (n,
            values), or for masks (n, height, width, classes), all float32.

        Raises:
            UserError: they are of another shape.
        """
        images = np.asarray(images)
        if images.shape[1:] != self.sample.image.shape:
            raise UserError(
                f"inputs of shape {images.shape}; these networks take (n, "
                f"{', '.join(map(str, self.sample.image.shape))})"
            )
        return self._joined.predict(images)

    def is_table(self, file: str | Path) -> bool:
        """Return True if a file is read as a table: one of features, or a list of files where the run has learned from one."""
        if self._columns is None or Path(file).suffix == ".npy":
            return False
        return (
            bool(self._columns.inputs and not self._columns.is_paths)
            or Path(file).suffix.lower() in _TABLES
        )

    def predict_files(self, files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
        """Predict from files: images, folders of images, tables, or ``.npy`` arrays whose rows are inputs.

        The columns of a table stand in any order, beside others. A table of numbers without a
        header has the features alone, in the order in which the run has learned from them.

        Returns:
            The name of each input, and what :meth:`predict` gives for all of them.

        Raises:
            InputError, UserError: one cannot be read, or is no input for these networks.
        """
        names = []
        predicted = []
        for batch_names, images in self.prepare(files):
            names += batch_names
            predicted.append(self.predict(images))
        if not names:
            raise UserError("no image is named")
        return names, np.concatenate(predicted)

    def prepare(self, files: Sequence[str | Path]) -> Iterator[tuple[list[str], np.ndarray]]:
        """Read files as :meth:`predict_files` does, and do to them what the run does to its validation samples.

        Returns:
            Names and inputs (n, ...), some at a time.

        Raises:
            InputError, UserError: one cannot be read, or is no input for these networks.
        """
        for source in self._sources(files):
            pipeline = Pipeline(source, self._transforms(source), self._spec.seed, self.sample)
            for first in range(0, len(source), _AT_ONCE):
                part = range(first, min(first + _AT_ONCE, len(source)))
                try:
                    images = [
                        pipeline.augment_checked(
                            pipeline.prepare(index), index, 0, training=False
                        ).image
                        for index in part
                    ]
                except UnreadableSample as error:
                    raise UserError(str(error)) from error
                yield [source.name(index) for index in part], np.stack(images)

    def _sources(self, files: Sequence[str | Path]) -> Iterator[NamedFiles | NamedRows | NewRows]:
        """Files one after another; images that stand together are one source."""
        for is_single, together in groupby(
            files, lambda file: self.is_table(file) or Path(file).suffix == ".npy"
        ):
            if not is_single:
                source = NamedFiles(list(together))
                unread = describe_unread(source)
                if unread:
                    log.warning("%s", unread)
                yield source
                continue
            for file in together:
                if self._columns is not None and self.is_table(file):
                    yield NewRows(str(file), self._columns, self.sample.image.size)
                else:
                    yield NamedRows(file)

    def save(self, path: str | Path) -> None:
        """Write the networks as one, for use without FLEET.

        Of Keras it is a ``.keras`` file that plain Keras loads; of PyTorch a ``.safetensors`` file
        with the weights of all, and a ``.json`` file that describes them. The result takes and
        returns what :meth:`predict` does.

        Raises:
            UserError: the name has another ending.
            StorageError: it cannot be written there.
        """
        if Path(path).suffix != (suffix := self._spec.engine.suffix):
            raise UserError(f"{path}: its name should end in {suffix}")
        self._joined.save(Path(path))

    def _transforms(self, source: Source) -> tuple[Transform, ...]:
        transforms = parse_transforms(self._spec.data_by_pipeline[self._feed].transforms)
        if isinstance(source, NamedRows | NewRows) or (
            transforms and isinstance(transforms[0], Decode)
        ):
            return transforms
        shape = self.sample.image.shape
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise UserError(
                f"{source.name(0)}: these networks take {self.sample.image} and no images; name .npy files "
                "of such rows"
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
            raise UserError(f"--top {count}: it should be at least 1")
        return select_top(candidates, 1 if count is None else count)
    if count is not None:
        raise UserError("--top and --select exclude each other")
    if select != GREEDY:
        raise UserError(f"--select {select}: it should be {GREEDY}")
    return select_greedy(paths, candidates, kind)


def _columns_of(paths: RunPaths, spec: Spec, feed: str, sample: SampleSpec) -> Columns | None:
    """Return the columns of a table of new inputs; None if networks do not take rows.

    The names of inputs are open where nobody has kept them: in a run of an earlier version, and for
    arrays.
    """
    columns = read_columns(paths)
    if columns is not None or len(sample.image.shape) != 1:
        return columns
    if spec.data_by_pipeline[feed].source != "table":
        return Columns((), False, ())
    options = spec.data_by_pipeline[feed].options
    inputs, targets = (
        (column,) if isinstance(column, str) else tuple(column)
        for column in (options.get("inputs") or (), options.get("targets", "target"))
    )
    return Columns(
        inputs,
        False,
        targets,
        options.get("weights"),
        options.get("split"),
        options.get("group"),
        options.get("stratify"),
        delimiter=options.get("delimiter"),
    )
