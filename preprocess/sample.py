"""The spec of one sample, for the stream, the engines and the checkpoints.

Rank 0 infers it once (:mod:`preprocess.probe`) and sends it to all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import INPUT
from preprocess.scaling import along_row, scale_into
from preprocess.target import TargetSpec, class_target

FLOAT32_LIMIT = 4096  # ratio of mean to deviation from which on float32 is too coarse
_VALUES = 256  # of whole numbers that are remembered
CROP_BYTES = 16  # of the crop in a row of deferred augmentation


def wire_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers travel: floats as float32, booleans as uint8.

    It is always in the byte order of this machine.
    """
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind == "f":
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of a sample's input: an image, or any other array of numbers.

    Attributes:
        shape: (height, width, channels) of an image; any shape of other inputs.
        dtype: the name of a NumPy dtype.
        values: some values of whole numbers in the data, such as tokens, for made-up inputs; empty
            if unknown, and for images of bytes.
    """

    shape: tuple[int, ...]
    dtype: str
    values: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, image: np.ndarray) -> ArraySpec:
        """Return the spec of an array as it travels: floats as float32."""
        dtype = wire_dtype(image.dtype)
        values: tuple[int, ...] = ()
        if dtype.kind in "iu" and not (image.ndim == 3 and dtype == np.uint8):
            values = tuple(np.unique(image)[:_VALUES].tolist())
        return cls(image.shape, str(dtype), values)

    def as_float64(self) -> ArraySpec:
        """Return the same spec with float64 instead of float32."""
        if self.dtype == "float32":
            return replace(self, dtype="float64")
        return self

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def random_inputs(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Draw random inputs that networks of such data accept.

        Whole numbers may be tokens or categories, so values of the data are drawn, or if they are
        unknown, 0 and 1; for images, 0 to 255.

        Returns:
            (rows, ...) of this dtype.
        """
        shape = (rows, *self.shape)
        if np.issubdtype(self.dtype, np.integer):
            values = self.values or range(256 if len(self.shape) == 3 else 2)
            return random.choice(np.array(values), shape).astype(self.dtype)
        return random.random(shape, np.float32)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of a sample by name: only this one."""
        return {INPUT: self}

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape)) or 'a number,'} {self.dtype}"


def mask_of(name: str) -> str:
    """Return the name of the input that tells where a padded input has numbers."""
    return f"{name}_mask"


@dataclass(frozen=True)
class RecordSpec:
    """The arrays of a sample of several inputs, which travel as one row of a structured array.

    Attributes:
        fields: the name and the spec of each array, in order.
        padded: the arrays that are padded at the end of rows; NAME_mask is 1 where they are not.
        varying: those of them of which batches can be cut to their longest row.
        collate: the function of the user that makes the inputs of a network of a batch; empty
            without one.
        examples: (k,) some rows of the data, because made-up ones would not suit that function;
            None without it.

    >>> print(RecordSpec.of({"image": ArraySpec((2, 2, 1), "uint8"), "age": ArraySpec((1,), "f4")}))
    image: 2 x 2 x 1 uint8, age: 1 f4
    """

    fields: tuple[tuple[str, ArraySpec], ...]
    padded: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    collate: str = ""
    examples: np.ndarray | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, arrays: Mapping[str, ArraySpec]) -> RecordSpec:
        """Return the spec of a record of named arrays."""
        return cls(tuple(arrays.items()))

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of a sample by name."""
        return dict(self.fields)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row beside its fields: it has none."""
        return ()

    @cached_property
    def dtype(self) -> np.dtype:
        """The dtype of a row, whose fields are the arrays."""
        return np.dtype(
            [(name, array.dtype, array.shape) for name, array in self.fields], align=True
        )

    @property
    def size(self) -> int:
        """The number of elements of all arrays."""
        return sum(array.size for _, array in self.fields)

    @property
    def nbytes(self) -> int:
        """The size of a row in bytes."""
        return self.dtype.itemsize

    def as_float64(self) -> RecordSpec:
        """Return the same spec with float64 instead of float32."""
        fields = tuple((name, array.as_float64()) for name, array in self.fields)
        return replace(self, fields=fields)

    def random_inputs(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Draw random rows, (rows,) of :attr:`dtype`; see :meth:`ArraySpec.random_inputs`."""
        if self.examples is not None:
            chosen = self.examples[random.integers(0, len(self.examples), rows)]
            return chosen.astype(self.dtype)
        inputs = np.zeros(rows, self.dtype)
        for name, array in self.fields:
            inputs[name] = array.random_inputs(random, rows)
        for name in self.padded:
            limit = self.arrays[name].shape[0]
            lengths = random.integers(1, limit + 1, rows)
            is_padding = np.arange(limit) >= lengths[:, None]
            inputs[name][is_padding] = 0
            inputs[mask_of(name)] = ~is_padding
        return inputs

    def __str__(self) -> str:
        return ", ".join(f"{name}: {array}" for name, array in self.fields)


InputSpec: TypeAlias = ArraySpec | RecordSpec


def named_arrays(inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of rows by name, as views.

    Args:
        inputs: (n, ...) rows of one array, or (n,) records of several.

    >>> list(named_arrays(np.zeros(2, [("image", "u1", (2, 2)), ("age", "f4")])))
    ['image', 'age']
    >>> list(named_arrays(np.zeros((2, 3))))
    ['input']
    """
    if inputs.dtype.names is None:
        return {INPUT: inputs}
    return {name: inputs[name] for name in inputs.dtype.names}


def cut_rows(inputs: np.ndarray, lengths: Mapping[str, int]) -> np.ndarray:
    """Return records whose padded inputs are cut, as a view.

    The view has rows of the same size, with shorter fields in them, so that nothing is copied, and
    ``cut.view(inputs.dtype)`` are the whole rows again.

    Args:
        inputs: (n,) records.
        lengths: padded input -> its new length, which is also that of its mask.

    >>> rows = np.zeros(2, [("x", "f4", (5,)), ("x_mask", "u1", (5,))])
    >>> cut_rows(rows, {"x": 3})["x_mask"].shape
    (2, 3)
    """
    limits = {**lengths, **{mask_of(name): length for name, length in lengths.items()}}
    fields = inputs.dtype.fields
    assert fields is not None
    formats = []
    for name, (dtype, *_) in fields.items():
        shape = dtype.shape
        if name in limits:
            shape = (min(limits[name], shape[0]), *shape[1:])
        formats.append((dtype.base, shape))
    dtype = np.dtype(
        {
            "names": list(fields),
            "formats": formats,
            "offsets": [offset for _, offset, *_ in fields.values()],
            "itemsize": inputs.dtype.itemsize,
        }
    )
    return inputs.view(dtype)


def longest_rows(inputs: np.ndarray, names: Sequence[str]) -> dict[str, int]:
    """Return the length of the longest row of padded inputs, at least 1.

    Args:
        inputs: (n,) records, with the masks of the inputs.
        names: the inputs.

    >>> rows = np.zeros(2, [("x", "f4", (5,)), ("x_mask", "u1", (5,))])
    >>> rows["x_mask"][1, :3] = 1
    >>> longest_rows(rows, ["x"])
    {'x': 3}
    """
    return {
        name: max(1, int(np.count_nonzero(inputs[mask_of(name)].any(axis=0)))) for name in names
    }


def round_length(length: int) -> int:
    """Round a length up to one of four sizes from each power of two to the next.

    Engines that compile a graph for each shape then compile few of them.

    >>> [round_length(length) for length in (1, 7, 8, 17, 21, 100, 128, 129)]
    [4, 8, 8, 20, 24, 112, 128, 160]
    """
    octave = 1 << max((length - 1).bit_length() - 1, 4)
    step = octave // 4
    return -(-length // step) * step


@dataclass(frozen=True)
class Affine:
    """(x / unit - mean) / std as ``x * multiplier + offset``, one rounding each, on any engine.

    Attributes:
        mean: one number, or one per channel.
        std: one number, or one per channel.
        unit: the divisor applied to numbers first; 255 for images of bytes.
        precise: True to compute in float64, because float32 cannot tell the numbers apart.

    >>> Affine(mean=0.5, std=0.5).apply(np.array([[[0], [255]]], np.uint8)).ravel()
    array([-1.,  1.], dtype=float32)
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    unit: float = 255.0
    precise: bool = field(default=False, repr=False)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the computation; the result is float32."""
        return np.dtype(np.float64 if self.precise else np.float32)

    @property
    def precision(self) -> float:
        """The largest ratio of mean to standard deviation, which float32 loses."""
        ratios = np.abs(np.asarray(self.mean) / np.asarray(self.std))
        return float(np.max(ratios, initial=0.0))

    @cached_property
    def multiplier(self) -> np.ndarray:
        """A scalar or (channels,), of :attr:`dtype`."""
        std = np.asarray(self.std, np.float64)
        return (1 / (self.unit * std)).astype(self.dtype)

    @cached_property
    def offset(self) -> np.ndarray:
        """A scalar or (channels,), of :attr:`dtype`."""
        mean = np.asarray(self.mean, np.float64)
        std = np.asarray(self.std, np.float64)
        return (-mean / std).astype(self.dtype)

    def split_shift(self) -> tuple[np.ndarray, Affine]:
        """Split into a shift, to subtract in float64, and the rest, for float32.

        Returns:
            The shift, a scalar or (channels,) float64 that float32 holds exactly; and the rest.
        """
        mean = np.asarray(self.mean, np.float64)
        shift = (mean * self.unit).astype(np.float32).astype(np.float64)
        remainder = (mean - shift / self.unit).tolist()
        return shift, replace(
            self, mean=tuple(remainder) if isinstance(remainder, list) else remainder, precise=False
        )

    def check(self, channels: int) -> None:
        """Check that it fits inputs with ``channels`` channels.

        Raises:
            InputError: it has numbers for another number of channels.
        """
        numbers = np.broadcast(self.multiplier, self.offset).size
        if numbers not in (1, channels):
            raise InputError(
                f"scale: {numbers} numbers, one for each channel, but samples have {channels} "
                f"channels"
            )

    def along_row(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Repeat multiplier and offset for ``width`` pixels; see :mod:`preprocess.scaling`."""
        return along_row(self.multiplier, self.offset, width)

    def apply(self, inputs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Scale inputs to float32.

        Args:
            inputs: (..., height, width, channels), or another shape with the channels last.
            out: an array of the same shape, float32, to write into; None for a new array.
        """
        scaled = np.empty(inputs.shape, np.float32) if out is None else out
        if self.precise:
            np.copyto(scaled, inputs * self.multiplier + self.offset, casting="same_kind")
            return scaled
        scale_into(scaled, inputs, self.multiplier, self.offset)
        return scaled


@dataclass(frozen=True)
class SampleSpec:
    """The spec of what networks take and of their targets.

    Attributes:
        input: an input after the transforms, as networks take it.
        classes: the number of classes, labels or values: the outputs of a network.
        affine: the scaling that trainers apply to inputs first; None if there is none.
        stored: an input up to the first random transform, in a stored sample set.
        target: the target of a sample; a class by default.
        folds: the affine of each fold's networks, if they differ.
        per_pipeline: the specs of input pipelines that differ, by their keys.
        deferred_input: an input before deferred augmentation; None without.
        parts: the spec of each input by name, if there are several: its array, its affine (those
            of this object are None) and its stored array.
    """

    input: InputSpec
    classes: int
    affine: Affine | None = None
    stored: InputSpec | None = None
    target: TargetSpec = None  # type: ignore[assignment]  # filled in below
    folds: tuple[Affine, ...] = ()
    per_pipeline: Mapping[str, SampleSpec] = field(default_factory=dict, hash=False)
    deferred_input: ArraySpec | None = None
    parts: Mapping[str, SampleSpec] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.target is None:
            object.__setattr__(self, "target", class_target(self.classes))

    @classmethod
    def of_parts(
        cls,
        parts: Mapping[str, SampleSpec],
        target: TargetSpec,
        padded: tuple[str, ...] = (),
        varying: tuple[str, ...] = (),
    ) -> SampleSpec:
        """Return the spec of samples of several inputs.

        Args:
            parts: the spec of each input, in order.
            target: the target of a sample.
            padded, varying: see :class:`RecordSpec`.
        """
        stored = None
        if all(part.stored is not None for part in parts.values()):
            stored = RecordSpec(
                tuple((name, cast(ArraySpec, part.stored)) for name, part in parts.items())
            )
        return cls(
            RecordSpec(
                tuple((name, cast(ArraySpec, part.input)) for name, part in parts.items()),
                padded,
                varying,
            ),
            target.outputs,
            None,
            stored,
            target,
            parts=dict(parts),
        )

    def with_parts(self, parts: Mapping[str, SampleSpec]) -> SampleSpec:
        """Return the spec with others of its inputs."""
        changed = SampleSpec.of_parts(parts, self.target)
        assert isinstance(self.input, RecordSpec)
        assert isinstance(changed.input, RecordSpec)
        record = replace(self.input, fields=changed.input.fields)
        return replace(self, input=record, stored=changed.stored, parts=changed.parts)

    def with_collation(self, path: str, examples: np.ndarray) -> SampleSpec:
        """Return the spec of samples of which a function of the user makes inputs of networks.

        Args:
            path: the import path of the function.
            examples: (k,) some samples.

        Raises:
            InputError: samples have a single input.
        """
        if not isinstance(self.input, RecordSpec):
            raise InputError(
                "collate: samples have one input of one length, which needs no function; name the "
                "inputs of the source, or pad those of unequal length (data.pad)"
            )
        return replace(self, input=replace(self.input, collate=path, examples=examples))

    def with_stored(self, stored: InputSpec) -> SampleSpec:
        """Return the spec with what is stored of a sample."""
        if not self.parts:
            return replace(self, stored=stored)
        return self.with_parts(
            {name: replace(part, stored=stored.arrays[name]) for name, part in self.parts.items()}
        )

    @property
    def by_input(self) -> Mapping[str, SampleSpec]:
        """The spec of each input by name; of a single one, this object."""
        return self.parts or {INPUT: self}

    @property
    def input_shape(self) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        """The shape of an input; of several, their shapes by name."""
        if not self.parts:
            return self.input.shape
        return {name: part.input.shape for name, part in self.parts.items()}

    @property
    def varying(self) -> tuple[str, ...]:
        """The inputs of which batches can be cut to their longest row; see :class:`RecordSpec`."""
        return self.input.varying if isinstance(self.input, RecordSpec) else ()

    @property
    def joined_shape(self) -> tuple[int, ...]:
        """The shape of an input; of several, that of all their numbers in one row."""
        return (self.input.size,) if self.parts else self.input.shape

    def scale(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return rows as networks take them, by input.

        Args:
            inputs: (n, ...) rows as they travel.
        """
        return {
            name: array if part.affine is None else part.affine.apply(array)
            for (name, part), array in zip(
                self.by_input.items(), named_arrays(inputs).values(), strict=True
            )
        }

    def for_pipeline(self, pipeline: str, fold: int | None = None) -> SampleSpec:
        """Return the spec for networks of an input pipeline, or of one fold of it.

        Args:
            pipeline: its key.
            fold: the fold of the network; None without folds.
        """
        return self.per_pipeline.get(pipeline, self)._for_fold(fold)

    def _for_fold(self, fold: int | None) -> SampleSpec:
        if fold is None:
            return self
        if self.parts:
            return self.with_parts(
                {name: part._for_fold(fold) for name, part in self.parts.items()}
            )
        if self.folds:
            return replace(self, affine=self.folds[fold], folds=())
        return self

    def as_float64(self) -> SampleSpec:
        """Return the same spec with float64 instead of float32."""
        if self.parts:
            return self.with_parts({name: part.as_float64() for name, part in self.parts.items()})
        stored = self.stored
        if stored is not None:
            stored = stored.as_float64()
        return replace(self, input=self.input.as_float64(), stored=stored)

    @property
    def image(self) -> InputSpec:
        """The input, by the name that engines of 0.2.0 use."""
        return self.input

    @property
    def wire(self) -> InputSpec:
        """The spec of an input as it travels to trainers: a row of bytes if deferred."""
        if self.deferred_input is None:
            return self.input
        return ArraySpec((self.deferred_input.nbytes + CROP_BYTES,), "uint8")

    @property
    def stored_target(self) -> TargetSpec:
        """The target of a stored sample: a mask then has the size of its image."""
        if not self.target.semantics.is_of_pixels or self.stored is None:
            return self.target
        if self.parts:
            return next(
                part.stored_target
                for part in self.parts.values()
                if part.target.semantics.is_of_pixels
            )
        height, width = self.stored.shape[:2]
        return self.target.with_size((height, width))

    def identity(self) -> dict[str, Any]:
        """Return all that a network depends on, as fingerprints of checkpoints use it."""
        if self.parts:
            return {
                "inputs": {name: part._input_identity() for name, part in self.parts.items()},
                "classes": self.classes,
                **self.target.identity(),
            }
        identity = self._input_identity()
        affine = identity.pop("affine")
        return {**identity, "classes": self.classes, "affine": affine, **self.target.identity()}

    def _input_identity(self) -> dict[str, Any]:
        """Return what a network depends on of an input."""
        affine: dict[str, Any] | None = None
        if self.affine is not None:
            affine = {"mean": self.affine.mean, "std": self.affine.std}
            if self.affine.unit != 255:
                affine["unit"] = self.affine.unit
            if self.affine.precise:
                affine["precise"] = True
        return {"shape": self.input.shape, "dtype": self.input.dtype, "affine": affine}
