"""Draft a spec from data: its classes, sizes and numbers, with a search to begin with."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import yaml

from fleet.errors import UserError
from fleet.spec.engines import ENGINES
from fleet.spec.schema import Resources
from launch.errors import InputError, did_you_mean, pluralize, printable
from preprocess.base import DataSet, Source, UnreadableImage, UnreadableSample
from preprocess.decode import decode, open_image
from preprocess.files.table import PARQUET, Table, read_table
from preprocess.source import open_data
from preprocess.sources.table import PATH_COLUMNS
from preprocess.splits import parse_split
from preprocess.target import TargetSpec, TargetWish, target_of
from preprocess.target_kinds import Kind

_MAX_NAMES = 6  # of classes in a comment
_SMALL = 1000  # samples of a data set whose division is tried
_MAX_IMAGES = 64  # that are read to describe all
_SIDES = (16, 24, 32, 48, 64, 96, 128, 160, 192, 224)  # of images for a first search, in pixels
_TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".csv.bz2", ".csv.xz", *PARQUET)
_ID = re.compile(
    r"^(index|row|)$|^unnamed|(^|[a-z_ ])id$|Id$|ID$"
)  # names of columns of row numbers
_TARGETS = ("target", "label", "labels", "class", "y")  # columns that are probably the targets
_MAX_CLASSES = 20  # of integers in a table: more are values
_HELD_OUT = 0.1
_SEED = 0
_GRAY = ("L", "1", "LA", "I;16", "I;16B", "I", "F")  # modes of Pillow
_FAMILIES = {"cnn", "mlp"}  # of the drafts
# Learning rates of a first search.
_SGD_RATES = (0.003, 0.3)
_ADAM_RATES = (0.0003, 0.03)


@dataclass(frozen=True)
class Draft:
    """A spec to begin with.

    Attributes:
        data: the lines of its ``data``.
        models: the lines of its ``models``.
        train: the lines of its ``train``.
        summary: what the data is, in a line.
        engine: ``torch`` if networks are of PyTorch; empty for Keras.
        module: the text of a Python file with networks; empty if there is none.
    """

    data: Sequence[str]
    models: Sequence[str]
    train: Sequence[str]
    summary: str
    engine: str = ""
    module: str = ""

    def text(self, name: str, file: str) -> str:
        """Return the YAML of the spec.

        Args:
            name: the name of the run.
            file: the name of the file.
        """
        lines = [
            f"# {self.summary}",
            "#",
            f"#     fleet check {file}      # builds each network, and lists all mistakes",
            f"#     fleet run {file}",
            "",
            f"name: {yaml_text(name)}",
            "data:",
            *_indented(self.data),
            "models:",
            *_indented(self.models),
            "prune: auto                          # pauses networks unlikely to be among the best",
            "train:",
            *_indented(self.train),
        ]
        if self.engine:
            lines += [f"resources: {{engine: {self.engine}}}"]
        return "\n".join(lines) + "\n"


def yaml_text(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def default_engine() -> str:
    """Return the engine to name in a draft; empty if the default engine of a spec will do.

    An engine is named if it is installed and the default one is not.
    """
    default = Resources().engine
    installed = [
        name
        for name, engine in ENGINES.items()
        if engine.library
        and (engine.families is None or engine.families >= _FAMILIES)
        and find_spec(engine.library)
    ]
    if default in installed or not installed:
        return ""
    return installed[0]


# ---- images --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Images:
    """What some images of a data set are like.

    Attributes:
        mode: ``L`` if all are gray, else ``RGB``.
        height, width: median size, in pixels.
        is_uniform: whether all have this size.
        mean, std: of the pixels from 0 to 1, by channel.
    """

    mode: str
    height: int
    width: int
    is_uniform: bool
    mean: list[float]
    std: list[float]

    def __str__(self) -> str:
        size = f"{self.width} x {self.height} pixels"
        colors = "gray" if self.mode == "L" else "RGB"
        return f"{'' if self.is_uniform else 'about '}{size}, {colors}"


def draft_images(path: str, engine: str = "", with_module: bool = False) -> Draft:
    """Draft a search over convolutional networks, for a folder of images by class.

    Args:
        path: the folder.
        engine: ``torch``, or empty for Keras.
        with_module: whether the networks are modules in a file, rather than a family.

    Raises:
        InputError: there are no images by class.
        UserError: the images have masks, or none can be read, or they are too small.
    """
    data = open_data("image_folder", path, None, _SEED)
    target = target_of(data.train)
    if target.semantics.is_of_pixels:
        raise UserError(
            f"{path} holds images with masks, for which you need your own network: begin with "
            "the example of segmentation in docs/targets.md"
        )
    can_divide = _can_divide("image_folder", path, data, {})
    images = _describe_images(path, data.train)
    side = min(images.height, images.width)
    if side < 2:
        raise UserError(f"{path} holds images of {images}, too small for a convolution")
    size = max([width for width in _SIDES if width <= side], default=side)
    if images.is_uniform and side <= size * 1.25:
        shape = [
            f"- random_crop: {{size: [{images.height}, {images.width}], padding: "
            f"{max(1, side // 12)}}}   # shifts the image a little"
        ]
        size = side
    else:
        shape = [
            f"- resize: {{size: {math.ceil(size * 1.125)}}}              # the shorter side",
            f"- random_crop: {{size: [{size}, {size}]}}",
        ]
    lines = [
        "source: image_folder",
        f"path: {yaml_text(path)}",
        *_splits(data, path, "a tenth of each class", can_divide),
        "transforms:",
        *_indented(
            [
                f"- decode: {{mode: {images.mode}}}",
                *shape,
                "# - flip: {horizontal: true}     # if left and right may be swapped",
                f"- scale: {{mean: {images.mean}, std: {images.std}}}   # of these images",
            ]
        ),
    ]
    if with_module:
        models = _search(
            "- build: {module}:cnn", {"width": [16, 32], "depth": _depths(size)}, _SGD_RATES
        )
    else:
        models = _search(
            "- family: cnn", {"filters": _filters(size), "dropout": [0.0, 0.3]}, _SGD_RATES
        )
    return Draft(
        lines,
        models,
        _train(len(data.train), "sgd", can_divide),
        f"{pluralize(len(data.train), 'image')} of {_listed(target)}, {images}",
        engine,
        _CNN_MODULE if with_module else "",
    )


def _describe_images(path: str, source: Source) -> _Images:
    sizes: list[tuple[int, int]] = []
    modes = Counter[bool]()
    pixels: list[np.ndarray] = []
    for index in np.unique(np.linspace(0, len(source) - 1, _MAX_IMAGES).astype(int)):
        try:
            data = source.read(int(index))
            array = decode(data, "RGB")
            modes[open_image(data).mode in _GRAY] += 1
        except (UnreadableSample, UnreadableImage):
            continue  # fleet check counts them
        sizes.append((array.shape[0], array.shape[1]))
        pixels.append(array[:: max(1, array.shape[0] // 64), :: max(1, array.shape[1] // 64)])
    if not sizes:
        raise UserError(f"{path}: no image can be read")
    height, width = (int(np.median([size[axis] for size in sizes])) for axis in (0, 1))
    samples = np.concatenate([array.reshape(-1, 3) for array in pixels]) / 255
    is_gray = not modes[False]
    channels = samples[:, :1] if is_gray else samples
    return _Images(
        "L" if is_gray else "RGB",
        height,
        width,
        len(set(sizes)) == 1,
        [round(float(value), 3) for value in channels.mean(0)],
        [round(max(float(value), 0.01), 3) for value in channels.std(0)],
    )


def _filters(side: int) -> list[list[int]]:
    """Return choices of filters for images of this size, each halving leaving a pixel."""
    choices = [[16, 32], [32, 64], [16, 32, 64], [32, 64, 128]]
    return [choice for choice in choices if 2 ** len(choice) <= side] or [[16]]


def _depths(side: int) -> list[int]:
    return [depth for depth in (2, 3, 4) if 2 ** (depth + 1) <= side] or [1]


# ---- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """The roles of the columns of a table.

    Attributes:
        targets: the column of targets.
        inputs: the columns of features; empty if all others are.
        split: the column with the split of a row; empty if there is none.
        left_out: column -> why it is no feature.
    """

    targets: str
    inputs: list[str]
    split: str
    left_out: Mapping[str, str] = field(default_factory=dict)


def draft_table(
    path: str, targets: str | None = None, engine: str = "", with_module: bool = False
) -> Draft:
    """Draft a search over multilayer perceptrons, for a table of numbers.

    Args:
        path: a CSV or Parquet file.
        targets: the column of targets; by default one with a name such as ``target``, or else the
            last one.
        engine, with_module: see :func:`draft_images`.

    Raises:
        InputError: the table cannot be read.
        UserError: it lacks that column, has no column of numbers, or the targets are all the same.
    """
    if not path.lower().endswith(_TABLES) and not os.path.isdir(path):
        raise UserError(
            f"{path}: fleet new reads tables from CSV and Parquet files; save it as one of these "
            "(docs/data.md lists all sources)"
        )
    table = read_table(path)
    columns = _columns(path, table, targets)
    kind, note = _kind(table, columns.targets)
    options: dict[str, Any] = {"targets": columns.targets}
    if columns.inputs:
        options["inputs"] = columns.inputs
    if columns.split:
        options["split"] = columns.split
    request = TargetWish(kind) if kind else None
    data = open_data("table", path, None, _SEED, options, target=request)
    can_divide = _can_divide("table", path, data, options, request)
    target = target_of(data.train)
    metric = "mean_absolute_error" if target.semantics.is_numeric else ""
    notes = [f"# not a feature: {name} ({reason})" for name, reason in columns.left_out.items()]
    lines = [
        "source: table",
        f"path: {yaml_text(path)}",
        *notes,
        f"options: {yaml_text(options)}",
        *([f"target: {kind:<27} # {note}"] if kind else []),
        *_splits(data, path, "a tenth of the rows", can_divide),
        "transforms: [standardize]          # each column to mean 0 and deviation 1",
    ]
    if with_module:
        models = _search(
            "- build: {module}:mlp", {"width": [32, 64, 128], "depth": [1, 2, 3]}, _ADAM_RATES
        )
    else:
        sizes = [[32], [64], [64, 64], [128, 64]]
        models = _search("- family: mlp", {"hidden": sizes, "dropout": [0.0, 0.2]}, _ADAM_RATES)
    return Draft(
        lines,
        models,
        _train(len(data.train), "adam", can_divide, metric),
        f"{pluralize(len(data.train), 'row')}; target {columns.targets}, {_listed(target)}",
        engine,
        _MLP_MODULE if with_module else "",
    )


def _columns(path: str, table: Table, targets: str | None) -> _Columns:
    names = [name for name in table.columns if name not in table.index]
    if files := [name for name in names if name.lower() in PATH_COLUMNS]:
        raise UserError(
            f"{path}: the column {files[0]} lists files; fleet new reads tables of numbers "
            "(docs/data.md has a spec for tables of files)"
        )
    if len(names) < 2:
        raise UserError(f"{path} has one column, {names[0]}; networks need features and targets")
    if targets is None:
        named = [name for target in _TARGETS for name in names if name.lower() == target]
        targets = (named or names[-1:])[0]
    elif targets not in names:
        raise UserError(
            f"{path} has no column {targets!r}{did_you_mean(targets, names)}; it has "
            f"{', '.join(names)}"
        )
    split = ""
    left_out = {}
    for name in names:
        column = table.columns[name]
        if name == targets:
            continue
        if name.lower() == "split" and all(parse_split(str(cell)) for cell in column):
            split = name
        elif not np.issubdtype(column.dtype, np.number) and not _are_numbers(column[column != ""]):
            left_out[name] = "text"
        elif _numbers_the_rows(name, column):
            left_out[name] = "numbers the rows"
        elif bool(table.missing.get(name, column == "").any()):
            left_out[name] = "cells are missing"
    features = [name for name in names if name not in (targets, split, *left_out)]
    if not features:
        raise UserError(
            f"{path} has no column of numbers besides the targets ({targets}): "
            + ", ".join(f"{name} ({reason})" for name, reason in left_out.items())
        )
    return _Columns(targets, features if left_out else [], split, left_out)


def _numbers_the_rows(name: str, column: np.ndarray) -> bool:
    """Return True if a column counts rows, or has an id for each."""
    cells = column.tolist()
    if len(cells) < 2 or len(set(cells)) < len(cells):
        return False
    if _ID.search(name):
        return True
    try:
        numbers = column.astype(float)
    except ValueError:
        return False
    return numbers[0] in (0, 1) and bool((np.diff(numbers) == 1).all())


def _kind(table: Table, name: str) -> tuple[Kind | None, str]:
    """Return the kind of targets to request, and why; None if the data says it.

    Raises:
        UserError: all targets are the same.
    """
    cells = table.typed_column(name, "targets")
    distinct = len(set(cells.tolist()))
    if distinct == 1:
        raise UserError(
            f"{table.path}: all rows have {cells[0]} in column {name!r}, so there is nothing to "
            "predict; --target names another column"
        )
    if cells.dtype.kind in "iu" and distinct > _MAX_CLASSES:
        return "value", f"{distinct} different integers; write class if they name classes"
    if cells.dtype.kind == "f" and distinct == 2 and np.isin(cells, (0, 1)).all():
        return "class", "0 and 1; write value if they are numbers"
    return None, ""


def _are_numbers(column: np.ndarray) -> bool:
    try:
        column.astype(float)
    except ValueError:
        return False
    return True


# ---- what all drafts have ------------------------------------------------------------------------


def _listed(target: TargetSpec) -> str:
    """Return what a target is, with the names of its classes."""
    if target.semantics.is_numeric or not target.names:
        return str(target)
    names = ", ".join(map(printable, target.names[:_MAX_NAMES]))
    more = len(target.names) - _MAX_NAMES
    return f"{target} ({names}{f' and {more} more' if more > 0 else ''})"


def _can_divide(
    source: str,
    path: str,
    data: DataSet,
    options: Mapping[str, Any],
    target: TargetWish | None = None,
) -> bool:
    """Return False if no tenth can be held out of a data set because it is too small."""
    if data.validation is None and len(data.train) < _SMALL:
        try:
            open_data(source, path, _HELD_OUT, _SEED, options, target=target)
        except InputError:
            return False
    return True


def _splits(data: DataSet, path: str, share: str, can_divide: bool) -> list[str]:
    """Return the lines that hold out samples, unless the data has its own validation split.

    A test split alone would be used for validation; it is kept for the final score instead.
    """
    splits = {}
    if os.path.isdir(path):
        splits = {parse_split(name): name for name in sorted(os.listdir(path))}
    test = splits.get("test")
    if test is not None and "validation" not in splits:
        final = f"test: {yaml_text(os.path.join(path, test))}"
        return [f"validation: 10%                    # {share}", f"{final}   # for the final score"]
    if data.validation is not None:
        return []
    if not can_divide:
        return ["validation: null                   # too few samples to hold some out"]
    return [f"validation: 10%                    # {share}"]


def _search(first: str, space: Mapping[str, Any], rates: tuple[float, float]) -> list[str]:
    """Return the lines of an entry with a search.

    Args:
        first: the line that says what to build.
        space: the choices of its arguments.
        rates: the smallest and the largest learning rate.
    """
    low, high = rates
    return [
        first,
        "  space:                             # each network draws from it",
        *(f"    {name}: {yaml_text(choices)}" for name, choices in space.items()),
        f"    train.optimizer.learning_rate: {{low: {low}, high: {high}, log: true}}",
        "  search: {sampler: random, max_trials: 12}",
    ]


def _train(samples: int, optimizer: str, has_validation: bool, metric: str = "") -> list[str]:
    batch = 2 ** max(2 if samples > 8 else 0, min(6, int(math.log2(max(samples // 20, 1)))))
    momentum = ", momentum: 0.9" if optimizer == "sgd" else ""
    metrics = [f"metrics: [{metric}]"] if metric else []
    monitor = "" if has_validation else ", monitor: loss"
    return [
        f"batch: {{size: {batch}}}",
        f"optimizer: {{name: {optimizer}{momentum}}}",
        *metrics,
        f"stopping: {{max_epochs: 20, patience: 6{monitor}}}",
    ]


_CNN_MODULE = '''"""Networks for {file}.

A function receives the shape of an image (height, width, channels) and the number of classes.
"""

from torch import nn


def cnn(input_shape, classes, width=16, depth=3):
    """Build a convolutional network that returns a logit for each class."""
    channels = input_shape[2]
    layers = []
    for stage in range(depth):
        outputs = width * 2**stage
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)
'''

_MLP_MODULE = '''"""Networks for {file}.

A function receives the shape of a row (features,) and the number of outputs.
"""

from torch import nn


def mlp(input_shape, outputs, width=64, depth=2):
    """Build a multilayer perceptron that returns a value, or a logit, for each output."""
    features = input_shape[0]
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, outputs))
'''
