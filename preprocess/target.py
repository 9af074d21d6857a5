"""The target of a sample, which travels beside its input, with its weight.

:mod:`preprocess.target_kinds` says what each kind of target means. A source
(:class:`preprocess.base.Source`) describes its targets so:

- Classes need only ``labels`` and ``classes``.
- Any other kind is an attribute ``target``, a :class:`TargetSpec`; ``labels`` and ``classes`` are
  then not used. The targets of all samples are an array ``targets``, which may be memory-mapped:
  (n, labels) of 0 and 1, (n, values) or (n,) numbers. Masks are read one at a time instead, by
  ``read_target(index)``: (height, width) integers, as large as the image that ``read(index)``
  returns; it may raise :class:`preprocess.base.UnreadableSample`.
- If a source has an array of targets but cannot tell their kind, the spec says it in
  ``data.target``. A function that opens a source receives it as its argument ``target``, a
  :class:`TargetWish`, if it has such a parameter.
- A source of several targets has an attribute ``targets`` that maps their names to such arrays, and
  if it can tell their kinds an attribute ``target``, a
  :class:`preprocess.record_target.RecordTarget`. Of one of them, ``read_target(index)`` may return
  the mask.
- A source of any kind may have ``weights``, (n,) numbers from 0: how much each sample counts in the
  loss.

Between ranks, targets are one array of dtype :attr:`TargetSpec.wire`. Classes without weights are
plain int64, and -1 marks an unusable sample. Everything else is records of a target and a weight,
and a weight below 0 is that mark. Several targets are the fields of ``target``. Only
:class:`TargetSpec`, its subclass and :class:`TargetReader` depend on this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeAlias, cast

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import ClassSource, Source, UnreadableSample, first_duplicate
from preprocess.target_kinds import KINDS, UNDECIDED, AnyKind, Kind, TargetKind

UNUSABLE = -1  # the label, or the weight, of a sample that cannot be used
TARGET = "target"  # the name of a target that the source gives no name


# The outputs that a network is built with: their number; of several targets, by name.
ModelOutputs: TypeAlias = int | dict[str, int]


@dataclass(frozen=True)
class TargetSpec:
    """The target of one sample.

    Attributes:
        kind: class, multilabel, value, mask or none.
        outputs: the number of classes, labels or values: the outputs of a network.
        names: the names of the classes, labels or values; may be empty.
        size: the size of a mask that is ready for a network, (height, width) in pixels; None if not
            known yet.
        weighted: True if the source weights its samples.
        ignore: the value of mask pixels that are ignored, any integer; None if there are none.
        center: the mean of each value, about which sums of squares are computed; may be empty.

    >>> TargetSpec("value", 2).wire
    dtype([('target', '<f4', (2,)), ('weight', '<f4')], align=True)
    """

    kind: AnyKind
    outputs: int
    names: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    weighted: bool = False
    ignore: int | None = None
    center: tuple[float, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"target: kind {self.kind!r}; it should be one of {', '.join(KINDS)}")
        minimum = self.semantics.min_outputs
        if self.outputs < minimum:
            raise ValueError(
                f"target: {self.kind} with {pluralize(self.outputs, 'output')}; at least {minimum}"
            )
        if self.names and len(self.names) != self.outputs:
            raise ValueError(
                f"target: {pluralize(len(self.names), 'name')} for "
                f"{pluralize(self.outputs, 'output')}"
            )
        twice = first_duplicate(self.names)
        if twice:
            raise ValueError(f"target: two outputs are named {twice!r}; names must differ")

    @property
    def semantics(self) -> TargetKind:
        """What the kind means."""
        return KINDS[self.kind]

    @property
    def parts(self) -> dict[str, TargetSpec]:
        """Each target by name, if there are several; empty for one."""
        return {}

    @property
    def by_name(self) -> dict[str, TargetSpec]:
        """Each target by name."""
        return self.parts or {TARGET: self}

    @property
    def mask(self) -> TargetSpec | None:
        """The target that is a mask; None if there is none."""
        return next(
            (target for target in self.by_name.values() if target.semantics.is_of_pixels), None
        )

    def masks_in(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the masks of targets as they travel, a view; None if there are none.

        Args:
            targets: (n,) of dtype :attr:`wire`.
        """
        if not self.semantics.is_of_pixels:
            return None
        masks: np.ndarray = targets["target"]
        for name, target in self.parts.items():
            if target.semantics.is_of_pixels:
                return masks[name]
        return masks

    @property
    def model_outputs(self) -> ModelOutputs:
        """The number of outputs that networks are built with; of several targets by name."""
        return self.outputs

    def with_size(self, size: tuple[int, int] | None) -> Self:
        """Return the spec with another size of its mask."""
        return replace(self, size=size)

    def without_names(self) -> Self:
        """Return the spec without the names of its outputs, if it is one target."""
        return replace(self, names=())

    def with_center(self, targets: Any) -> Self:
        """Return the spec with the mean of each value.

        Args:
            targets: the targets of all samples, as :func:`plain_targets` returns them.
        """
        if not (self.semantics.is_numeric and self.semantics.exists):
            return self
        center = np.mean(targets, axis=0, dtype=np.float64)
        return replace(self, center=tuple(center.ravel().tolist()))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's target."""
        return self.semantics.shape(self.outputs, self.size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's outputs for one sample; classes of pixels are last."""
        if self.semantics.is_of_pixels:
            return (*self.shape, self.outputs)
        return (self.outputs,)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of one sample's target as it travels."""
        return self.semantics.dtype(self.outputs)

    @property
    def void(self) -> int:
        """The value of ignored mask pixels, such as pixels that a crop adds to an image.

        >>> TargetSpec("mask", 3).void, TargetSpec("mask", 1000).void
        (255, -1)
        """
        if self.dtype == np.uint8:
            return 255
        return -1

    @property
    def is_plain(self) -> bool:
        """True if targets travel as labels alone."""
        return self.semantics.is_scalar and not self.weighted

    @cached_property
    def wire(self) -> np.dtype:
        """The dtype in which targets travel: int64, or records of ``target`` and ``weight``."""
        if self.is_plain:
            return np.dtype(np.int64)
        return np.dtype([("target", self.dtype, self.shape), ("weight", np.float32)], align=True)

    @property
    def nbytes(self) -> int:
        """The size of one sample's target as it travels, in bytes."""
        return self.wire.itemsize

    def is_usable(self, targets: np.ndarray) -> np.ndarray:
        """Return which samples can be used, (n,) bool.

        Args:
            targets: (n,) of dtype :attr:`wire`.
        """
        return (targets if self.is_plain else targets["weight"]) >= 0

    def mark_unusable(self, targets: np.ndarray, position: int) -> None:
        """Mark one sample as unusable.

        Args:
            targets: (n,) of dtype :attr:`wire`, modified.
            position: the position of the sample.
        """
        targets[position] = np.zeros((), self.wire)
        (targets if self.is_plain else targets["weight"])[position] = UNUSABLE

    def split(self, targets: np.ndarray) -> tuple[np.ndarray, ...]:
        """Split targets as they are sent into targets and weights, which are views.

        Args:
            targets: (n,) of dtype :attr:`wire`.

        Returns:
            The targets (n, ...) and, except for classes without weights, their weights (n,)
            float32. For an unusable sample the weight is below 0, or the label if there are no
            weights.
        """
        if self.is_plain:
            return (targets,)
        return (targets["target"], targets["weight"])

    def random_targets(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Draw random targets, (rows,) of dtype :attr:`wire`."""
        values = self.semantics.draw(random, (rows, *self.shape), self.outputs)
        if self.is_plain:
            return values
        targets = np.ones(rows, self.wire)
        targets["target"] = values
        return targets

    def identity(self) -> dict[str, Any]:
        """Return what a network depends on beside :attr:`outputs`; {} for plain classes."""
        if self.is_plain:
            return {}
        size = {}
        if self.semantics.is_of_pixels:
            size = {"size": self.shape, "ignore": self.ignore}
        return {"target": {"kind": self.kind, "weighted": self.weighted, **size}}

    def __str__(self) -> str:
        if not self.semantics.exists:
            return "no targets"
        return f"{self.outputs} {self.semantics.nouns[self.outputs != 1]}"

    @property
    def after_samples(self) -> str:
        """The target as it follows the shape of samples, "10 samples of 8 x 8 uint8 ...".

        >>> TargetSpec("class", 3).after_samples, TargetSpec("value", 1).after_samples
        ('in 3 classes', 'each with 1 value')
        """
        semantics = self.semantics
        is_class = semantics.has_classes and not semantics.is_of_pixels
        return f"{'in' if is_class else semantics.preposition} {self}"


def class_target(classes: int | Sequence[str], weighted: bool = False) -> TargetSpec:
    """Return the spec of one class per sample, from the number or names of the classes.

    >>> str(class_target(("cat", "dog")))
    '2 classes'
    """
    if isinstance(classes, int):
        return TargetSpec("class", classes, weighted=weighted)
    return TargetSpec("class", len(classes), tuple(classes), weighted=weighted)


@dataclass(frozen=True)
class TargetWish:
    """The ``data.target`` of a spec: targets of a source that cannot tell their kind.

    Attributes:
        kind: class, multilabel, value, mask or none.
        outputs: the number of classes, labels or values; None to infer it from the targets.
        names: the names of the classes, labels or values; may be empty.
        ignore: the value of mask pixels that are ignored.
    """

    kind: Kind
    outputs: int | None = None
    names: tuple[str, ...] = ()
    ignore: int | None = None

    @property
    def semantics(self) -> TargetKind:
        """What the kind means."""
        return KINDS[self.kind]

    def check(self, target: TargetSpec) -> None:
        """Check that a source's own target is what was requested.

        Raises:
            InputError: it is not.
        """
        outputs = len(self.names) or self.outputs
        if target.kind != self.kind or outputs not in (None, target.outputs):
            raise InputError(
                f"data.target: {self.kind}{'' if outputs is None else f' with {outputs}'}, but "
                f"the source has targets of kind {target.kind}: {target}; remove it, or request "
                "these"
            )

    def spec_of(self, source: Source) -> TargetSpec:
        """Return the spec of a source's ``targets``, or ``labels``.

        Raises:
            InputError: the source has no targets of this kind, or they do not show the number of
            outputs.
        """
        outputs = len(self.names) or self.outputs or self._infer_outputs(source)
        if outputs is None:
            raise InputError(
                f"data.target: {self.kind}: the number of classes is unknown; it should be "
                f"{{kind: {self.kind}, outputs: NUMBER}}"
            )
        try:
            return TargetSpec(self.kind, outputs, self.names, ignore=self.ignore)
        except ValueError as error:
            raise InputError(f"data.{error}") from error

    def _infer_outputs(self, source: Source) -> int | None:
        if self.semantics.is_of_pixels:
            return len(getattr(source, "classes", ())) or None
        return self.semantics.outputs_of(np.asanyarray(find_targets(source)))


# The targets that a spec requests; of several, by name.
Request: TypeAlias = TargetWish | Mapping[str, TargetWish] | None


def requested_semantics(request: TargetWish | None) -> TargetKind:
    """Return what the kind in ``data.target`` means; without a request it is undecided."""
    return UNDECIDED if request is None else request.semantics


def find_targets(source: Source) -> Any:
    """Return the array of a source's targets, ``targets`` or ``labels``.

    Raises:
        InputError: it has none.
    """
    for name in ("targets", "labels"):
        targets = getattr(source, name, None)
        if targets is not None:
            return targets
    raise InputError(
        f"data.target: the source ({type(source).__name__}) has neither targets nor labels"
    )


def target_of(source: Source) -> TargetSpec:
    """Return the spec of a source's targets; the size of masks may still be None."""
    target: TargetSpec | None = getattr(source, "target", None)
    weighted = getattr(source, "weights", None) is not None
    if target is None:
        return class_target(tuple(cast(ClassSource, source).classes), weighted)
    return replace(target, weighted=weighted)


def is_mask(source: Source) -> bool:
    """Return True if a source's targets are masks, which are transformed with their images."""
    target: TargetSpec | None = getattr(source, "target", None)
    return target is not None and target.semantics.is_of_pixels


def plain_targets(source: Source) -> Any:
    """Return the targets of all samples, (n, ...), as the source has them; None for masks.

    Of several targets, all but masks, by name.
    """
    target: TargetSpec | None = getattr(source, "target", None)
    if target is None:
        return cast(ClassSource, source).labels
    if target.semantics.is_of_pixels and not target.parts:
        return None
    return source.targets  # type: ignore[attr-defined]


class TargetReader:
    """Writes the targets of a source's samples as they travel.

    Args:
        source: has been checked (:mod:`preprocess.target_checks`).
        spec: the spec of the targets.
    """

    def __init__(self, source: Source, spec: TargetSpec) -> None:
        self._source = source
        self.spec = spec
        self._is_plain = spec.is_plain
        self._weights: np.ndarray | None = getattr(source, "weights", None)
        self._values = plain_targets(source)
        self._mask = spec.mask
        self._mask_name = next(
            (name for name, target in spec.parts.items() if target.semantics.is_of_pixels), ""
        )

    def write(
        self, targets: np.ndarray, position: int, index: int, mask: np.ndarray | None = None
    ) -> None:
        """Write a sample's target and weight.

        Args:
            targets: (k,) of dtype :attr:`TargetSpec.wire`, modified.
            position: in ``targets``.
            index: the index of the sample.
            mask: (height, width), the transformed mask; None for other targets.

        Raises:
            UnreadableSample: the mask has another size than the others, or a pixel of no class.
        """
        if self._is_plain:
            targets[position] = self._values[index]
            return
        if self.spec.parts:
            fields = targets["target"]
            for name, values in self._values.items():
                fields[name][position] = values[index]
            if mask is not None:
                fields[self._mask_name][position] = self._checked(mask, index)
        elif mask is None:
            targets[position]["target"] = self._values[index]
        else:
            targets[position]["target"] = self._checked(mask, index)
        targets[position]["weight"] = 1.0 if self._weights is None else self._weights[index]

    def write_all(
        self,
        targets: np.ndarray,
        positions: np.ndarray,
        indices: np.ndarray,
        masks: np.ndarray | None = None,
    ) -> None:
        """Write the targets of several samples; see :meth:`write`.

        Args:
            targets: (k,) of dtype :attr:`TargetSpec.wire`, modified.
            positions: (m,) integers, in ``targets``.
            indices: (m,) integers, the samples.
            masks: (m, height, width); None for other targets.
        """
        if self._is_plain and isinstance(self._values, np.ndarray):
            targets[positions] = self._values[indices]
            return
        if self.spec.parts and masks is None:
            for name, values in self._values.items():
                field = targets["target"][name]
                field[positions] = np.asarray(values[indices]).reshape(-1, *field.shape[1:])
            weights = 1.0 if self._weights is None else self._weights[indices]
            targets["weight"][positions] = weights
            return
        for row, (position, index) in enumerate(
            zip(positions.tolist(), indices.tolist(), strict=True)
        ):
            self.write(targets, position, index, None if masks is None else masks[row])

    def _checked(self, mask: np.ndarray, index: int) -> np.ndarray:
        spec = self._mask
        assert spec is not None
        if mask.shape != spec.shape:
            raise UnreadableSample(
                self._source.name(index),
                f"its mask is {_format_size(mask.shape)}; the others are "
                f"{_format_size(spec.shape)}",
            )
        if mask.dtype != spec.dtype:  # from a user's transform
            _check_classes(mask, self._source.name(index), spec, spec.void)
        return mask


def read_mask(source: Source, index: int, spec: TargetSpec) -> np.ndarray:
    """Read the mask of a sample; ignored pixels become ``spec.void``.

    Returns:
        (height, width) of ``spec.dtype``.

    Raises:
        UnreadableSample: it cannot be read, is not (height, width) integers, or has a pixel of no
            class.
    """
    pixels = np.asarray(source.read_target(index))  # type: ignore[attr-defined]
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 or pixels.dtype.kind not in "iub":
        raise UnreadableSample(
            source.name(index),
            f"its mask is {_format_size(pixels.shape)} of {pixels.dtype}; it should be (height, "
            "width) of integers, a class for each pixel",
        )
    _check_classes(pixels, source.name(index), spec, spec.ignore)
    mask = pixels.astype(spec.dtype)
    if spec.ignore is not None:
        mask[pixels == spec.ignore] = spec.void
    return mask


def _check_classes(mask: np.ndarray, name: str, spec: TargetSpec, ignore: int | None) -> None:
    wrong = (mask < 0) | (mask >= spec.outputs)
    if ignore is not None:
        wrong &= mask != ignore
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise UnreadableSample(
            name,
            f"its mask has {mask[row, column]} in row {row}, column {column}, not one of the "
            f"{spec.outputs} classes, 0 to {spec.outputs - 1}",
        )


def _format_size(shape: Sequence[int]) -> str:
    if shape:
        return " x ".join(map(str, shape))
    return "a number"
