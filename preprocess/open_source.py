"""Open a source by its name or import path, and check what it returns."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import (
    ClassSource,
    Source,
    first_duplicate,
    format_exception,
    normalize_name,
    printable,
)
from preprocess.import_path import import_function, import_own
from preprocess.record_target import check_target_name, parse_each
from preprocess.sources.dataset import DatasetSource, describe_misuse, is_dataset
from preprocess.sources.table import columns_of
from preprocess.sources.targets import parse_targets
from preprocess.target import Request, TargetSpec, TargetWish
from preprocess.target_checks import check_weights, checked_labels, checked_target
from preprocess.user_code import UserCode
from preprocess.views import (
    MaskPart,
    Relabeled,
    TargetPart,
    WithParts,
    join_targets,
    split_targets,
    with_requested_targets,
)

# name -> module:function, which takes (path, **options) and returns training samples, validation
# samples or None, and optionally test samples or None; a path with a default may be omitted
SOURCES: dict[str, str] = {
    "image_folder": "preprocess.sources.image_folder:open_image_folder",
    "hdf5": "preprocess.sources.hdf5:open_hdf5",
    "tfrecord": "preprocess.sources.tfrecord:open_tfrecord",
    "webdataset": "preprocess.sources.webdataset:open_webdataset",
    "npz": "preprocess.sources.arrays:open_npz",
    "npy": "preprocess.sources.arrays:open_npy",
    "table": "preprocess.sources.table:open_table",
    "huggingface": "preprocess.sources.huggingface:open_huggingface",
    "builtin:digits": "preprocess.sources.digits:open_digits",
    "builtin:noise": "preprocess.sources.noise:open_noise",
}

# Sources whose data need no targets if `data.target` is none; others ignore theirs.
_WITHOUT_TARGETS = ("image_folder", "npz", "npy", "table")
# Sources that can give several targets by name.
_WITH_SEVERAL_TARGETS = ("hdf5", "huggingface", "npy", "npz", "table", "webdataset")

Opened = tuple[Source, Source | None, Source | None]  # training, validation and test samples
Opener = Callable[..., Opened]


def open_with_features(
    source: str,
    path: str | None,
    options: Mapping[str, Any],
    target: Request,
    features: Sequence[str],
) -> tuple[Opener, Opened]:
    """Open a path; return the opener of further paths, with a table's features by name."""
    opener: Opener = partial(_open_at, source, copy.deepcopy(dict(options)), target)
    opened = opener(path)
    columns = columns_of(opened[0])
    if columns is None or columns.is_paths or columns.parts:
        return opener, opened
    names = columns.inputs
    if sorted(features) == sorted(columns.inputs):
        names = tuple(features)
    opener = partial(_open_at, source, {**options, "inputs": names}, target)
    if names != columns.inputs:
        opened = opener(path)
    return opener, opened


def _open_at(source: str, options: Mapping[str, Any], target: Request, path: str | None) -> Opened:
    """Open a path and check targets and weights of all its splits.

    Targets get the requested kind if the sources do not say what they have.
    """
    is_builtin = source in SOURCES
    code = UserCode()
    with code.running():
        function = _find_opener(source, options, path)
    has_targets = not isinstance(target, TargetWish) or target.semantics.exists
    can_lack_targets = not is_builtin or source in _WITHOUT_TARGETS
    takes_several = not is_builtin or source in _WITH_SEVERAL_TARGETS
    extra: dict[str, Any] = {}
    if (
        target is not None
        and _wants_target(function)
        and (has_targets or can_lack_targets)
        and (takes_several or isinstance(target, TargetWish))
    ):
        extra = {"target": target}
    try:
        with code.running():
            result = function(path, **options, **extra)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's function may raise anything, and exit
        if is_builtin:
            raise
        raise InputError(
            f"{source} failed for path {path!r} and options {dict(options)}: "
            f"{format_exception(error)}"
        ) from error
    if not (isinstance(result, tuple) and len(result) in (2, 3)):
        result = (result,)
    candidates = (*result, None, None)[:3]
    if not is_builtin:
        candidates = tuple(_from_dataset(candidate, target, source) for candidate in candidates)
    for position, candidate in enumerate(candidates):
        is_missing = candidate is None and position > 0
        if not (is_builtin or is_missing or _is_source(candidate, target)):
            raise InputError(
                f"{source} returned {type(candidate).__name__}, not a source, which has len(), "
                "labels, classes, read(index), name(index) and order(seed, epoch); or, for "
                "targets of another kind, target and targets instead of labels and classes; and "
                "not a Dataset of PyTorch, which has len() and samples (input, target) by index"
            )
    # Errors name a custom source itself, and the path of a built-in one.
    if is_builtin:
        origin = str(path)
    else:
        origin = f"{source}{f' of {path}' if path else ''}"
    if not is_builtin and has_targets:
        candidates = tuple(
            None if candidate is None else _with_parsed_targets(candidate, target, origin)
            for candidate in candidates
        )
    if target is not None and (not extra or not has_targets):
        candidates = tuple(
            None if candidate is None else with_requested_targets(candidate, target)
            for candidate in candidates
        )
    return cast(
        Opened,
        tuple(
            None if candidate is None else _check_source(candidate, origin + name)
            for candidate, name in zip(candidates, ("", ", validation", ", test"), strict=True)
        ),
    )


def _from_dataset(candidate: Any, target: Request, origin: str) -> Any:
    """Return the source of a map-style dataset; other objects as they are.

    Raises:
        InputError: it is a dataset or loader whose samples have no index.
    """
    if isinstance(candidate, Source):
        return candidate
    misuse = describe_misuse(candidate, origin)
    if misuse:
        raise InputError(misuse)
    if is_dataset(candidate):
        return DatasetSource(candidate, target, origin)
    return candidate


def _with_parsed_targets(source: Source, request: Request, origin: str) -> Source:
    """Return a user's source with several targets by name, whose kinds are known.

    Args:
        source: may have a mapping ``targets`` of names to arrays, and a mapping ``target`` of names
            to specs. Other sources are returned as they are.
        request: the ``data.target``.
        origin: the origin of the source, for messages.

    Raises:
        InputError: the targets are wrong, or their kinds cannot be told.
    """
    values: Any = getattr(source, "targets", None)
    specs: Any = getattr(source, "target", None)
    if isinstance(specs, TargetSpec) or not (
        isinstance(values, Mapping) or isinstance(specs, Mapping)
    ):
        return source
    values = values if isinstance(values, Mapping) else {}
    specs = specs if isinstance(specs, Mapping) else {}
    requests = request if isinstance(request, Mapping) else {}
    masks = [name for name, spec in {**specs, **requests}.items() if spec.semantics.is_of_pixels]
    names = tuple(dict.fromkeys((*values, *specs, *masks)))
    for name in names:
        check_target_name(name, f"{origin}: targets")
    if len(masks) > 1:
        raise InputError(
            f"{origin}: {' and '.join(masks)} are masks; a sample may have one mask among its "
            "targets"
        )

    def parse(name: str, single: TargetWish | None) -> Source:
        spec = specs.get(name)
        if name in masks:
            return MaskPart(source, name, _mask_spec(source, spec, single, f"{origin}, {name}"))
        if name not in values:
            raise InputError(f"{origin}: its targets have no {name!r}, which its target describes")
        array = _target_array(source, values[name], f"{origin}, {name}")
        if spec is not None:
            return TargetPart(source, spec, array)
        parsed = parse_targets(array, single, f"{origin}, {name}", source.name)
        return TargetPart(source, parsed.spec(), parsed.values)

    return WithParts(source, parse_each(names, request, origin, parse))


def _mask_spec(
    source: Source, spec: TargetSpec | None, single: TargetWish | None, origin: str
) -> TargetSpec:
    if spec is not None:
        return spec
    assert single is not None
    if not callable(getattr(source, "read_target", None)):
        raise InputError(f"{origin}: its targets are masks, so it should have read_target(index)")
    return single.spec_of(source)


def _target_array(source: Source, values: Any, origin: str) -> np.ndarray:
    """Return one of several targets of all samples as an array, (n, ...)."""
    try:
        array = np.asanyarray(values)
    except Exception as error:  # the user's class may hold anything
        raise InputError(f"{origin}: not an array: {format_exception(error)}") from error
    if array.shape[:1] != (len(source),):
        raise InputError(
            f"{origin}: an array of shape {array.shape} for {len(source)} samples; it should have "
            "a row for each sample"
        )
    return array


def _find_opener(source: str, options: Mapping[str, Any], path: str | None) -> Callable[..., Any]:
    """Return the function that opens a source, after checking its arguments."""
    if source not in SOURCES:
        if ":" not in source:
            raise InputError(
                f"unknown source {source!r}; there are {', '.join(SOURCES)}, "
                "or an import path module:function"
            )
        return import_function(source, "data source")
    function: Callable[..., Any] = import_own(SOURCES[source])
    path_parameter, *parameters = inspect.signature(function).parameters.values()
    known_options = [parameter for parameter in parameters if parameter.name != "target"]
    for option in options:
        if option not in [parameter.name for parameter in known_options]:
            listed = (
                ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in known_options)
                or "none"
            )
            raise InputError(f"{source}: unknown option {option!r}; its options: {listed}")
    if path is None and path_parameter.default is path_parameter.empty:
        raise InputError(f"{source}: it needs a path")
    return function


def _wants_target(function: Callable[..., Any]) -> bool:
    try:
        return "target" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def _check_source(source: Source, origin: str) -> Source:
    """Check classes and labels; return the source, or a view that normalizes them."""
    target: Any = getattr(source, "target", None)
    if isinstance(target, TargetSpec) and target.parts:
        check_weights(source, origin)
        parts = split_targets(source)
        checked = {name: _check_source(part, f"{origin}, {name}") for name, part in parts.items()}
        return join_targets(source, parts, checked)
    if checked_target(source, origin) is not None:
        return source
    classified = cast(ClassSource, source)
    classes = tuple(printable(str(name)) for name in classified.classes)
    if not classes:
        raise InputError(f"{origin}: no classes; at least two are needed")
    twice = first_duplicate(classes)
    if twice:
        raise InputError(f"{origin}: two classes are named {twice!r}; names must differ")
    twice = first_duplicate(tuple(map(normalize_name, classes)))
    if twice:
        alike = [name for name in classes if normalize_name(name) == twice]
        raise InputError(
            f"{origin}: the classes {alike[0]!a} and {alike[1]!a} are one name in two spellings "
            "(spaces around it, or a decomposed accent); merge them into one class"
        )
    labels = checked_labels(classified, origin)
    if labels is classified.labels and classes == classified.classes:
        return source
    return Relabeled(source, labels, classes)


def _is_source(candidate: Any, target: Request) -> bool:
    """Return True if an object is a source whose targets are known."""
    return isinstance(candidate, Source) and (
        isinstance(candidate, ClassSource)
        or hasattr(candidate, "target")
        or target is not None
        or isinstance(getattr(candidate, "targets", None), Mapping)
    )
