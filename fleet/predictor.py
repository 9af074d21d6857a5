"""Load the best exported networks of a run as one ensemble, predict from new inputs, save it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fleet.engines.registry import load_ensemble
from fleet.errors import UserError
from fleet.prediction.ensembles import GREEDY, Candidate, find_joinable, select_greedy, select_top
from fleet.prediction.sample_file import read_columns, read_sample
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.storage.run_spec import load_run_spec
from preprocess.base import INPUT, Source
from preprocess.padding import Pad, measure_lengths
from preprocess.record_pipeline import AnyPipeline, make_pipeline
from preprocess.record_target import record_of
from preprocess.records import (
    AnyTransforms,
    RecordTransforms,
    find_inputs,
    parse_record_transforms,
)
from preprocess.sample import ArraySpec, mask_of
from preprocess.sources.files import NamedFiles, NamedRows
from preprocess.sources.image_folder import describe_unread
from preprocess.sources.new_arrays import NewArrays, is_array_file
from preprocess.sources.table import Columns, NewRows
from preprocess.target import TargetSpec
from preprocess.target_kinds import TargetKind
from preprocess.transforms import Transform
from preprocess.transforms.decoding import Decode
from preprocess.views import WithoutTargets

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
        members = _members(paths, candidates, self.sample.target.semantics, top, select)
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
        target = self.sample.target
        self._ensemble = load_ensemble(
            self._spec,
            list(files.values()),
            list(self.weights.values()),
            record_of(target) if target.parts else target.kind,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, labels or values; numbers if they are unnamed.

        Those of several targets follow each other, with the names of their targets.
        """
        target = self.sample.target
        if target.parts:
            return tuple(
                f"{name} {output}" for name in target.parts for output in self.names_of(name)
            )
        if target.names:
            return target.names
        if target.semantics.is_numeric and len(self._target_columns) == target.outputs:
            return self._target_columns
        return tuple(map(str, range(target.outputs)))

    def names_of(self, target: str) -> tuple[str, ...]:
        """Return the names of the outputs of one of several targets by its name."""
        part = self.sample.target.by_name[target]
        return part.names or tuple(map(str, range(part.outputs)))

    @property
    def target_column(self) -> str | None:
        """Column of a table that held the classes; None for other targets."""
        columns = self._target_columns
        if self.sample.target.semantics.is_scalar and len(columns) == 1:
            return columns[0]
        return None

    def predict(
        self, inputs: np.ndarray | Mapping[str, np.ndarray]
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Predict from prepared inputs, such as :meth:`prepare` yields.

        Args:
            inputs: (n, ...) inputs with the shape of :attr:`sample`; images have values of 0 to
                255. Of several inputs, such arrays by name, or (n,) records of them. Inputs of
                unequal length are sequences of n arrays; longer ones are cut. Of networks that were
                trained on a table of numbers also a data frame with its columns.

        Returns:
            (n, classes) probabilities that sum to 1, (n, labels) probabilities of labels, (n,
            values), or for masks (n, height, width, classes), all float32. Of several targets, such
            arrays by name.

        Raises:
            UserError: the inputs have another shape, or one is missing.
        """
        if self._columns is not None and self._columns.inputs and hasattr(inputs, "columns"):
            inputs = self._of_frame(inputs)
        if isinstance(inputs, Mapping):
            inputs = self._joined(self._padded(inputs))
        inputs = np.asarray(inputs)
        if self.sample.parts and inputs.dtype.names != tuple(self.sample.parts):
            raise UserError(
                f"the inputs are an array of shape {inputs.shape}; these networks take several "
                f"inputs by name: {self.sample.input}"
            )
        if inputs.shape[1:] != self.sample.input.shape:
            raise UserError(
                f"the inputs have shape {inputs.shape}; these networks take (n, "
                f"{', '.join(map(str, self.sample.input.shape))})"
            )
        predicted = self._ensemble.predict(inputs)
        if not self.sample.target.parts:
            return predicted
        return record_of(self.sample.target).split_outputs(predicted)

    def _of_frame(self, frame: Any) -> np.ndarray:
        """Return the rows of a data frame, by the names of the columns of the run's table."""
        assert self._columns is not None
        missing = [name for name in self._columns.inputs if name not in frame.columns]
        if missing:
            raise UserError(
                f"the data frame has no column {missing[0]!r}; these networks take the columns "
                f"{', '.join(self._columns.inputs)}"
            )
        return np.asarray(frame[list(self._columns.inputs)], self.sample.input.dtype)

    @property
    def _pads(self) -> tuple[Pad, ...]:
        """How the inputs of unequal length are padded."""
        settings = self._spec.data_by_pipeline[self._feed].pad
        shapes = {name: array.shape for name, array in self.sample.input.arrays.items()}
        return tuple(
            Pad(name, shapes[name][0], pad.value, name in self.sample.varying)
            for name, pad in settings.items()
        )

    @property
    def _data_names(self) -> list[str]:
        """The names of the inputs that data has, without masks of padding."""
        masks = {mask_of(pad.name) for pad in self._pads}
        return [name for name in self.sample.input.arrays if name not in masks]

    def _padded(self, inputs: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Return named inputs with padding and masks, unless they have masks."""
        padded = dict(inputs)
        for pad in self._pads:
            if pad.name not in inputs or mask_of(pad.name) in inputs:
                continue
            rows = [pad.apply(np.asarray(row)) for row in inputs[pad.name]]
            self._warn_of_cut(pad, np.array([len(row) for row in inputs[pad.name]]))
            for name, parts in zip(
                (pad.name, mask_of(pad.name)), zip(*rows, strict=True), strict=True
            ):
                padded[name] = np.stack(parts)
        return padded

    def _warn_of_cut(self, pad: Pad, lengths: np.ndarray) -> None:
        count = int(np.count_nonzero(lengths > pad.to))
        if count:
            log.warning(
                "%s: %d of %d samples are longer than %d, which these networks take, and cut",
                pad.name,
                count,
                len(lengths),
                pad.to,
            )

    def _joined(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return named inputs as one array: records, if there are several."""
        arrays = self.sample.input.arrays
        wrong = [f"lack {name}" for name in arrays if name not in inputs]
        wrong += [f"have {name}" for name in inputs if name not in arrays]
        if wrong:
            raise UserError(f"the inputs {wrong[0]}; these networks take {self.sample.input}")
        named = {name: _converted(name, inputs[name], array) for name, array in arrays.items()}
        if not self.sample.parts:
            return named[INPUT]
        lengths = {name: len(array) for name, array in named.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"the inputs have different numbers of rows: {listed}")
        records = np.zeros(max(lengths.values()), self.sample.input.dtype)
        for name, array in named.items():
            records[name] = array
        return records

    def is_table(self, file: str | Path) -> bool:
        """Return True if a file is read as a table of features or, like in the run, of files."""
        if self._columns is None or Path(file).suffix == ".npy" or self._holds_arrays(file):
            return False
        return (
            bool(self._columns.inputs and not self._columns.is_paths)
            or Path(file).suffix.lower() in _TABLES
        )

    def predict_files(
        self, files: Sequence[str | Path]
    ) -> tuple[list[str], np.ndarray | dict[str, np.ndarray]]:
        """Predict from files: images, folders, tables, or arrays with one input per row.

        The columns of a table may have any order, and may include other columns. A table of numbers
        without a header has only the features, in the order in which the run was trained. Arrays
        are in ``.npy``, ``.npz`` or HDF5 files, or a folder of ``.npy`` files; of several inputs,
        each has the name that it has in the data of the run, or the name of the input.

        Returns:
            The name of each input, and the result of :meth:`predict` for all inputs.

        Raises:
            InputError, UserError: a file cannot be read, or does not fit these networks.
        """
        names = []
        predicted: list[Any] = []
        for batch_names, inputs in self.prepare(files):
            names += batch_names
            predicted.append(self.predict(inputs))
        if not names:
            raise UserError("no inputs to predict from; name images, tables or .npy files")
        if not self.sample.target.parts:
            return names, np.concatenate(predicted)
        return names, {
            name: np.concatenate([batch[name] for batch in predicted])
            for name in self.sample.target.parts
        }

    def prepare(self, files: Sequence[str | Path]) -> Iterator[tuple[list[str], np.ndarray]]:
        """Read files like :meth:`predict_files`, and transform them like validation samples.

        Returns:
            Batches of names and inputs (n, ...).

        Raises:
            InputError, UserError: a file cannot be read, or does not fit these networks.
        """
        for source in self._sources(files):
            pipeline = self._pipeline(source)
            lengths = measure_lengths(source, [pad.name for pad in self._pads])
            for pad in self._pads:
                self._warn_of_cut(pad, lengths[pad.name])
            for first in range(0, len(source), _BATCH):
                batch = range(first, min(first + _BATCH, len(source)))
                inputs, targets = pipeline.empty(len(batch))
                for error in pipeline.load(batch, 0, inputs, targets, training=False):
                    raise UserError(str(error)) from error
                yield [source.name(index) for index in batch], inputs

    def _pipeline(self, source: Source) -> AnyPipeline:
        """Return the pipeline that prepares inputs like validation samples."""
        target = TargetSpec("none", 0)
        sample = replace(self.sample, classes=0, target=target)
        parts = {
            name: replace(part, classes=0, target=target)
            for name, part in self.sample.parts.items()
        }
        return make_pipeline(
            WithoutTargets(source),
            self._transforms(source),
            self._spec.seed,
            replace(sample, parts=parts),
        )

    def _sources(
        self, files: Sequence[str | Path]
    ) -> Iterator[NamedFiles | NamedRows | NewArrays | NewRows]:
        """Yield the sources of files; consecutive images are one source."""
        for is_single, group in groupby(files, self._is_single):
            if not is_single:
                source = NamedFiles(list(group))
                unread = describe_unread(source)
                if unread:
                    log.warning("%s", unread)
                yield source
                continue
            for file in group:
                yield self._source_of(file)

    def _is_single(self, file: str | Path) -> bool:
        """Return True if a file is a source of its own: a table or arrays, but no image."""
        is_rows = Path(file).suffix == ".npy" or self._holds_arrays(file)
        return bool(self.sample.parts) or is_rows or self.is_table(file)

    def _holds_arrays(self, file: str | Path) -> bool:
        """Return True for a file of named arrays, and for a folder of them for several inputs."""
        return is_array_file(file) and (bool(self.sample.parts) or not Path(file).is_dir())

    def _source_of(self, file: str | Path) -> NamedRows | NewArrays | NewRows:
        if self._holds_arrays(file):
            return NewArrays(file, self._array_names())
        is_whole = not self.sample.parts or Path(file).suffix.lower() in _TABLES
        if self._columns is not None and is_whole and self.is_table(file):
            return NewRows(str(file), self._columns, self.sample.input.size)
        if not self.sample.parts:
            return NamedRows(file)
        if Path(file).suffix == ".npy" and self._data_names == [INPUT]:
            return NamedRows(file)
        listed = ", ".join(self._data_names)
        table = ""
        if self._columns is not None:
            table = f"a table with the columns {', '.join(self._columns.inputs)}, or "
        raise UserError(
            f"{file} gives no samples of several inputs ({listed}), which these networks take; "
            f"name {table}an .npz or HDF5 file with these arrays"
        )

    def _array_names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that the array of each input may have in a file."""
        in_data = self._spec.data_by_pipeline[self._feed].options.get("inputs")
        if self._data_names == [INPUT]:
            named = (in_data,) if isinstance(in_data, str) else ()
            return {INPUT: (*named, INPUT, "x", "images")}
        names: dict[str, tuple[str, ...]] = {}
        for name in self._data_names:
            of_data = in_data.get(name) if isinstance(in_data, Mapping) else None
            names[name] = (of_data, name) if isinstance(of_data, str) else (name,)
        return names

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

    def _transforms(self, source: Source) -> AnyTransforms:
        """Return the transforms of the run; images are decoded even if its data were arrays."""
        data = self._spec.data_by_pipeline[self._feed]
        transforms = parse_record_transforms(data.transforms, source, data.together, self._pads)
        if isinstance(transforms, RecordTransforms):
            described = data.transforms if isinstance(data.transforms, Mapping) else {}
            fields = dict(transforms.fields)
            for name, is_file in find_inputs(source).items():
                if is_file:
                    items = fields[name] if name in described else ()
                    fields[name] = self._with_decoding(items, source, name)
            return replace(transforms, fields=tuple(fields.items()))
        if isinstance(source, NamedFiles):
            return self._with_decoding(transforms, source, INPUT)
        return transforms

    def _with_decoding(
        self, transforms: tuple[Transform, ...], source: Source, name: str
    ) -> tuple[Transform, ...]:
        if transforms and isinstance(transforms[0], Decode):
            return transforms
        shape = self.sample.input.arrays[name].shape
        if len(shape) != 3 or shape[2] not in (1, 3):
            of_input = "" if name == INPUT else f" for the input {name}"
            raise UserError(
                f"{source.name(0)}: these networks take {self.sample.input.arrays[name]}"
                f"{of_input}, not images; name .npy files with such rows"
            )
        return (Decode("L" if shape[2] == 1 else "RGB"), *transforms)


def _load_pyfunc(path: str) -> Predictor:
    """Load the best network of an exported run; MLflow calls this, and then ``predict``.

    Args:
        path: folder with the files of the run that the network needs.
    """
    return Predictor(path)


def _converted(name: str, values: np.ndarray, expected: ArraySpec) -> np.ndarray:
    """Return the rows of an input in the type that networks take.

    Raises:
        UserError: they have another shape, or other numbers.
    """
    values = np.asarray(values)
    if values.shape[1:] != expected.shape or not values.ndim:
        raise UserError(
            f"the input {name} has shape {values.shape}; these networks take (n, "
            f"{', '.join(map(str, expected.shape))})"
        )
    with np.errstate(invalid="ignore"):
        converted = values.astype(expected.dtype)
    if np.issubdtype(expected.dtype, np.integer) and not np.array_equal(converted, values):
        raise UserError(
            f"the input {name} has numbers that are not {expected.dtype}, which these networks take"
        )
    return converted


def _members(
    paths: RunPaths,
    candidates: Sequence[Candidate],
    semantics: TargetKind,
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
    return select_greedy(paths, candidates, semantics)
