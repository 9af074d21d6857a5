"""The best networks of a run as one: loaded from what was exported, used on new inputs, written as one network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fleet.engines.registry import join_exports
from fleet.errors import UserError
from fleet.prediction.ensembles import GREEDY, chosen, fed_alike, top
from fleet.prediction.sample_file import read_sample
from fleet.spec import Spec, load
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, read_results
from preprocess.base import BadSample, Source
from preprocess.pipeline import Pipeline
from preprocess.sources.files import NamedFiles, NamedRows
from preprocess.transforms import Transform, parse_transforms
from preprocess.transforms.decoding import Decode

_AT_ONCE = 256  # inputs that are held


class Predictor:
    """The mean of what finished networks of a run predict.

    Args:
        run: the run's folder.
        top: join so many, the best of its table of results; 1 where nothing is said.
        select: ``greedy``: join those that go together best on the validation samples, each perhaps several times
            (Caruana et al., ICML 2004).

    Raises:
        UserError: there is no such run, too few of its networks have finished, nothing is kept to choose them by, or
            they cannot be loaded.

    Attributes:
        weights: network -> its share of the mean; they add up to 1.
        sample: what is predicted from what: the shape and the type of an input, and the kind and the names of targets.
    """

    def __init__(self, run: str | Path, top: int | None = None, select: Literal["greedy"] | None = None) -> None:
        paths = RunPaths(Path(run))
        rows = read_results(run)
        self._spec = _spec_of(paths)
        self._feed, rows = fed_alike(self._spec, rows)
        self.sample = read_sample(paths, self._feed)
        members = _members(paths, rows, self.sample.target.kind, top, select)
        self.weights = {name: times / sum(members.values()) for name, times in members.items()}
        for name in self.weights:
            if self._spec.engine.join is not None and not paths.exported(name).is_file():
                raise UserError(f"{paths.exported(name)} is not there: {name} was not exported")
        self._joined = join_exports(self._spec, list(map(paths.exported, self.weights)), list(self.weights.values()),
                                    self.sample.target.kind)

    @property
    def names(self) -> tuple[str, ...]:
        """What the outputs are called: the classes, labels or values; their numbers where they have no names."""
        target = self.sample.target
        return target.names or tuple(map(str, range(target.outputs)))

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Predict from inputs that are prepared: as :meth:`prepare` gives them.

        Args:
            images: (n, ...) of the shape of :attr:`sample`; images of 0 to 255.

        Returns:
            (n, classes) probabilities that add up to 1, (n, labels) one for each label, (n, values), or for masks
            (n, height, width, classes), all float32.

        Raises:
            UserError: they are of another shape.
        """
        images = np.asarray(images)
        if images.shape[1:] != self.sample.image.shape:
            raise UserError(f"inputs of shape {images.shape}; these networks take (n, "
                            f"{', '.join(map(str, self.sample.image.shape))})")
        return self._joined.predict(images)

    def predict_files(self, files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
        """Predict from files: images, folders of images, or ``.npy`` arrays whose rows are inputs.

        Returns:
            The name of each input, and what :meth:`predict` gives for all of them.

        Raises:
            InputError, UserError: one cannot be read, or is no input for these networks.
        """
        names, predicted = [], []
        for found, images in self.prepare(files):
            names += found
            predicted.append(self.predict(images))
        if not names:
            raise UserError("no image is named")
        return names, np.concatenate(predicted)

    def prepare(self, files: Sequence[str | Path]) -> Iterator[tuple[list[str], np.ndarray]]:
        """Read files, and do to them what the run does to its validation samples.

        Returns:
            Names and inputs (n, ...), some at a time.

        Raises:
            InputError, UserError: one cannot be read, or is no input for these networks.
        """
        for source in _sources(files):
            pipeline = Pipeline(source, self._transforms(source), self._spec.seed, self.sample)
            for first in range(0, len(source), _AT_ONCE):
                part = range(first, min(first + _AT_ONCE, len(source)))
                try:
                    images = [pipeline.finish(pipeline.prepare(index), index, 0, training=False).image
                              for index in part]
                except BadSample as error:
                    raise UserError(str(error)) from error
                yield [source.name(index) for index in part], np.stack(images)

    def save(self, path: str | Path) -> None:
        """Write the networks as one, for use without FLEET: a ``.keras`` file that plain Keras loads.

        It takes what :meth:`predict` does, and gives the same.

        Raises:
            UserError: the name has another ending.
            StorageError: it cannot be written there.
        """
        if Path(path).suffix != ".keras":
            raise UserError(f"{path}: its name should end in .keras")
        self._joined.save(Path(path))

    def _transforms(self, source: Source) -> tuple[Transform, ...]:
        transforms = parse_transforms(self._spec.feeds[self._feed].transforms)
        if isinstance(source, NamedRows) or (transforms and isinstance(transforms[0], Decode)):
            return transforms
        shape = self.sample.image.shape
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise UserError(f"{source.name(0)}: these networks take {self.sample.image} and no images; name .npy files "
                            "of such rows")
        return (Decode("L" if shape[2] == 1 else "RGB"), *transforms)


def _members(paths: RunPaths, rows: Sequence[NetworkResult], kind: str, count: int | None, select: str | None
             ) -> dict[str, int]:
    if select is None:
        if count is not None and count < 1:
            raise UserError(f"--top {count}: it should be at least 1")
        return top(rows, 1 if count is None else count)
    if count is not None:
        raise UserError("--top and --select exclude each other")
    if select != GREEDY:
        raise UserError(f"--select {select}: it should be {GREEDY}")
    return chosen(paths, rows, kind)


def _spec_of(paths: RunPaths) -> Spec:
    if not paths.spec.is_file():
        raise UserError(f"{paths.root} has no {paths.spec.name}: it is no run")
    return load(str(paths.spec))


def _sources(files: Sequence[str | Path]) -> Iterator[NamedFiles | NamedRows]:
    """Files one after another; images that stand together are one source."""
    images: list[str | Path] = []
    for file in files:
        if Path(file).suffix == ".npy":
            if images:
                yield NamedFiles(images)
            images = []
            yield NamedRows(file)
        else:
            images.append(file)
    if images:
        yield NamedFiles(images)
