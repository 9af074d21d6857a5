"""Warn of data that surely hurts training: inputs that nothing scales, and huge targets.

The few samples that are probed anyway are enough, since the numbers concerned are wrong by factors
of a hundred. Networks that may scale their inputs themselves are left out.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleet.runtime.startup.data import Inputs
from fleet.runtime.startup.input_pipelines import InputPipeline
from fleet.spec import NetworkSpec, Spec
from preprocess.base import INPUT
from preprocess.chain import split_scale
from preprocess.records import transforms_by_input
from preprocess.sources.table import columns_of
from preprocess.target import TARGET, TargetSpec, plain_targets, target_of
from preprocess.transforms import Transform
from preprocess.transforms.color import Scale, Standardize

_TARGETS = 100_000  # at most

_LARGE_PIXELS = 32.0  # magnitude of pixels that nothing has scaled
_LARGE_NUMBERS = 100.0  # of other inputs
_APART = 100.0  # ratio of magnitudes of columns
_LARGE_TARGETS = 300.0  # root of the mean square

# Applications of Keras that scale pixels of 0 to 255 themselves.
_SCALING_APPLICATIONS = ("EfficientNet", "MobileNetV3", "ConvNeXt")
# What custom code contains if it may scale its inputs, or looks them up as tokens.
_SCALING_CODE = re.compile(r"255|scal|norm|embedding|preprocess", re.IGNORECASE)


def find_data_warnings(spec: Spec, inputs: Inputs) -> tuple[str, ...]:
    """Return a line for each thing about the data that surely hurts training.

    Args:
        spec: the spec, with networks that represent those of its searches.
        inputs: the opened data, before anything is measured.
    """
    warnings: dict[str, None] = {}
    for key, pipeline in inputs.by_pipeline.items():
        networks = [
            network for network in spec.networks if not inputs.pipelines or network.pipeline == key
        ]
        sensitive = [network for network in networks if _takes_numbers_as_they_are(network)]
        if sensitive:
            are_numbers = all(network.architecture.kind == "family" for network in sensitive)
            warnings |= dict.fromkeys(_input_warnings(pipeline, are_numbers))
        if any(network.train.step is None for network in networks):
            warnings |= dict.fromkeys(_target_warnings(pipeline))
    return tuple(warnings)


def _takes_numbers_as_they_are(network: NetworkSpec) -> bool:
    """Return True if a network surely does not scale its inputs."""
    kind = network.architecture.kind
    if kind == "application":
        return not network.architecture.target.startswith(_SCALING_APPLICATIONS)
    paths = [path for path in network.code_paths if ":" in path]
    return not any(_SCALING_CODE.search(_source_of(path)) for path in paths)


def _source_of(path: str) -> str:
    """Return the code of the module of an import path; a word of scaling if it is unknown."""
    try:
        module = importlib.util.find_spec(path.partition(":")[0])
        assert module is not None
        assert module.origin is not None
        return Path(module.origin).read_text(encoding="utf-8")
    except Exception:  # parent packages are imported, and may raise anything
        return "scale"


# ---- inputs ------------------------------------------------------------------------------------


def _input_warnings(pipeline: InputPipeline, are_numbers: bool) -> Iterator[str]:
    """Yield warnings about the inputs of a pipeline.

    Args:
        pipeline: the pipeline.
        are_numbers: whether whole numbers are surely no tokens or categories.
    """
    table = columns_of(pipeline.data.train)
    names = table.inputs if table is not None and not pipeline.samples["train"].parts else ()
    for name, transforms in transforms_by_input(pipeline.transforms).items():
        values = pipeline.examples[name]
        if values.dtype.kind in "iu" and not are_numbers and not _are_pixels(values):
            continue
        key = "data.transforms" if name == INPUT else f"data.transforms.{name}"
        warning = describe_inputs(values, transforms, names, key)
        if warning:
            yield f"data: {warning}" if name == INPUT else f"data: input {name}: {warning}"


def _are_pixels(values: np.ndarray) -> bool:
    """Return True if samples are images of bytes."""
    return values.dtype == np.uint8 and values.ndim >= 3


def describe_inputs(
    inputs: np.ndarray,
    transforms: Sequence[Transform],
    columns: Sequence[str] = (),
    key: str = "data.transforms",
) -> str:
    """Describe why networks will train badly on such inputs; empty if they will not.

    Args:
        inputs: (n, ...) some inputs before the last scale.
        transforms: the transforms.
        columns: names of the numbers in the last axis; may be empty.
        key: the key of the transforms, for advice.

    >>> describe_inputs(np.array([[0.1, 900], [0.3, 1200]]), (), ("bmi", "income"))[:49]
    'columns differ 4,000 times in size (bmi up to 0.3'
    """
    scale = split_scale(tuple(transforms))[1]
    if isinstance(scale, Standardize):
        return ""
    values = np.abs(inputs.astype(np.float32))
    values[~np.isfinite(values)] = 0
    is_image = values.ndim == 4 or _are_pixels(inputs)
    raw_peak = float(values.max())
    if isinstance(scale, Scale):
        values = np.abs(scale.affine.apply(inputs))
        values[~np.isfinite(values)] = 0
    peak = float(values.max())
    if isinstance(scale, Scale) and not scale.mean and scale.std == 1 and 0 < raw_peak <= 1:
        return (
            f"scale divides by 255, but inputs are at most {raw_peak:g}; leave scale out"
            f"{'' if is_image else ', or use standardize'}"
        )
    if is_image:
        if peak < _LARGE_PIXELS:
            return ""
        return (
            f"images have values up to {_format(peak)}, and no transform scales them; end "
            f"{key} with `scale: true`"
        )
    advice = f"end {key} with `standardize`"
    if isinstance(scale, Scale):
        advice = "use `standardize` instead of `scale`"
    sizes = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1).max(axis=0)
    names = [f"column {number}" for number in range(len(sizes))]
    if len(columns) == len(sizes):
        names = list(columns)
    used = np.flatnonzero(sizes)
    if len(used) > 1:
        low, high = used[np.argmin(sizes[used])], used[np.argmax(sizes[used])]
        ratio = sizes[high] / sizes[low]
        if ratio >= _APART:
            return (
                f"columns differ {_format(ratio)} times in size ({names[low]} up to "
                f"{_format(sizes[low])}, {names[high]} up to {_format(sizes[high])}), and no "
                f"transform makes them alike; {advice}"
            )
    if peak < _LARGE_NUMBERS:
        return ""
    return f"inputs have values up to {_format(peak)}, and no transform scales them; {advice}"


def _format(number: float) -> str:
    """Format a number with two or three digits that count.

    >>> _format(203412), _format(0.63112)
    ('203,000', '0.631')
    """
    return f"{float(f'{number:.3g}'):,g}"


# ---- targets -----------------------------------------------------------------------------------


def _target_warnings(pipeline: InputPipeline) -> Iterator[str]:
    """Yield warnings about the targets of a pipeline."""
    source = pipeline.data.train
    target = pipeline.samples["train"].target
    numbers = plain_targets(source)
    for name, part in target.by_name.items():
        if not part.semantics.is_numeric:
            continue
        values = numbers[name] if target.parts else numbers
        warning = describe_target(values, part)
        if warning:
            yield f"data: {warning}" if name == TARGET else f"data: target {name}: {warning}"


def describe_target(values: Any, target: TargetSpec) -> str:
    """Describe why networks will train badly on such targets; empty if they will not.

    Args:
        values: (n,) or (n, outputs) numbers.
        target: their spec.

    >>> describe_target(np.array([2e5, 3e5]), TargetSpec("value", 1))[:46]
    'the target has values around 255,000, so losse'
    """
    step = max(1, len(values) // _TARGETS)
    numbers = np.asarray(values[::step], np.float64).reshape(-1, target.outputs)
    sizes = np.sqrt(np.nanmean(np.where(np.isfinite(numbers), numbers, np.nan) ** 2, axis=0))
    largest = int(np.nanargmax(sizes))
    size = float(sizes[largest])
    if not size >= _LARGE_TARGETS:
        return ""
    subject = "the target"
    if target.outputs > 1:
        subject = f"the target {target.names[largest] if target.names else largest}"
    return (
        f"{subject} has values around {_format(size)}, so losses are huge; divide it by "
        f"{_format(10 ** np.floor(np.log10(size)))} in the data, or use its logarithm"
    )


# ---- chance ------------------------------------------------------------------------------------


def find_accuracies_of_chance(inputs: Inputs) -> dict[str, float]:
    """Return pipeline key -> the accuracy that its networks may reach by chance.

    Only for samples of one class each.
    """
    accuracies = {}
    for key, pipeline in inputs.by_pipeline.items():
        source = pipeline.data.validation or pipeline.data.train
        target = target_of(source)
        if target.semantics.is_scalar and not target.parts:
            accuracies[key] = accuracy_of_chance(plain_targets(source))
    return accuracies


def accuracy_of_chance(labels: Iterable[int]) -> float:
    """Return the accuracy up to which a network may know only how frequent classes are.

    This is the largest share of a class, plus two standard errors.

    >>> round(accuracy_of_chance([0, 1] * 50), 2)
    0.6
    """
    counts = np.bincount(np.asarray(labels, np.int64))
    share = counts.max() / counts.sum()
    return float(share + 2 * np.sqrt(share * (1 - share) / counts.sum()))
