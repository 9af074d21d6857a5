"""Several targets of a sample, by name, such as a price and a kind.

They travel as the fields of one structured array. A network's outputs for them lie side by side in
one array, (n, :attr:`RecordTarget.output_shape`), in the order of the targets; those of masks are
flattened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Self, TypeVar, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import flatten_rows
from preprocess.target import Request, TargetSpec, TargetWish
from preprocess.target_kinds import KINDS, SEVERAL, TargetKind

T = TypeVar("T")

# What a message proposes for the only target of a source.
_PROPOSAL = re.compile(rf"data\.target: ({'|'.join(KINDS)})\b")

# What else a batch holds, and what columns of results are called.
_RESERVED = ("input", "weight", "index", "loss", "val", "test")


def check_target_name(name: object, origin: str) -> None:
    """Check that a target can have a name: in batches, and in columns such as ``val_NAME_loss``.

    Args:
        name: the name.
        origin: where it was found, for the message.

    Raises:
        InputError: it is not an identifier of Python, or is reserved.
    """
    is_name = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
    if not is_name or name in _RESERVED or str(name).startswith(("val_", "test_")):
        raise InputError(
            f"{origin}: a target cannot be named {name!r}; the name of each of several targets "
            f"should be an identifier of Python, and not {', '.join(_RESERVED)}"
        )


@dataclass(frozen=True)
class RecordTarget(TargetSpec):
    """The targets of one sample, if it has several.

    Attributes:
        fields: the name and the spec of each target, in order.

    >>> target = RecordTarget.of({"price": TargetSpec("value", 1), "kind": TargetSpec("class", 3)})
    >>> print(target)
    price: 1 value, kind: 3 classes
    >>> target.wire["target"].names, target.model_outputs
    (('price', 'kind'), {'price': 1, 'kind': 3})
    """

    fields: tuple[tuple[str, TargetSpec], ...] = ()

    @classmethod
    def of(cls, targets: Mapping[str, TargetSpec], weighted: bool = False) -> RecordTarget:
        """Return the spec of several targets.

        Args:
            targets: the spec of each target by name; their weights are those of the sample.
            weighted: True if the source weights its samples.
        """
        fields = tuple((name, replace(target, weighted=False)) for name, target in targets.items())
        outputs = sum(target.outputs for _, target in fields)
        return cls(SEVERAL, outputs, weighted=weighted, fields=fields)

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("target: no targets by name")

    @property
    def parts(self) -> dict[str, TargetSpec]:
        """Each target by name."""
        return dict(self.fields)

    @cached_property
    def semantics(self) -> TargetKind:
        """What the kinds mean together."""
        return SeveralTargets(self)

    @property
    def model_outputs(self) -> dict[str, int]:
        """The number of outputs that networks are built with, by target."""
        return {name: target.outputs for name, target in self.fields}

    def with_size(self, size: tuple[int, int] | None) -> Self:
        """Return the spec with another size of the target that is a mask."""
        return self._with_each(
            lambda _, target: (target.with_size(size) if target.semantics.is_of_pixels else target)
        )

    def without_names(self) -> Self:
        """Return the spec as it is: the parts have names of outputs."""
        return self

    def with_center(self, targets: Any) -> Self:
        """Return the spec with the mean of each value; see :class:`TargetSpec`."""
        return self._with_each(
            lambda name, target: target.with_center(targets[name]) if name in targets else target
        )

    def _with_each(self, change: Any) -> Self:
        fields = tuple((name, change(name, target)) for name, target in self.fields)
        return replace(self, fields=fields)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of targets beside its fields: it has none."""
        return ()

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's outputs for one sample: those for all targets in one row."""
        return (sum(math.prod(target.output_shape) for _, target in self.fields),)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of one row, whose fields are the targets."""
        return np.dtype(
            [(name, target.dtype, target.shape) for name, target in self.fields], align=True
        )

    @property
    def is_plain(self) -> bool:
        """False: each row has a weight, which marks unusable ones."""
        return False

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where the outputs for each target lie in a row: the first, and the one after the last."""
        sizes = [math.prod(target.output_shape) for _, target in self.fields]
        ends = list(accumulate(sizes))
        return {
            name: (end - size, end)
            for (name, _), end, size in zip(self.fields, ends, sizes, strict=True)
        }

    def split_outputs(
        self, outputs: Any, reshape: Callable[[Any, Sequence[int]], Any] = np.reshape
    ) -> dict[str, Any]:
        """Return the outputs, or predictions, for each target by name.

        Args:
            outputs: (n, total), an array or a tensor.
            reshape: reshapes it.
        """
        parts = {}
        for name, target in self.fields:
            first, end = self.places[name]
            part = outputs[:, first:end]
            if target.semantics.is_of_pixels:
                part = reshape(part, (-1, *target.output_shape))
            parts[name] = part
        return parts

    def random_targets(self, random: np.random.Generator, rows: int) -> np.ndarray:
        """Draw random targets, (rows,) of dtype :attr:`wire`."""
        targets = np.ones(rows, self.wire)
        for name, target in self.fields:
            targets["target"][name] = target.semantics.draw(
                random, (rows, *target.shape), target.outputs
            )
        return targets

    def identity(self) -> dict[str, Any]:
        """Return what a network depends on beside the number of all outputs."""
        targets = {
            name: {"kind": target.kind, "outputs": target.outputs, **_size_identity(target)}
            for name, target in self.fields
        }
        return {"target": {"kind": self.kind, "weighted": self.weighted, "targets": targets}}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {target}" for name, target in self.fields)


def _size_identity(target: TargetSpec) -> dict[str, Any]:
    """Return what a network depends on of a mask; empty for other targets."""
    if not target.semantics.is_of_pixels:
        return {}
    return {"size": target.size, "ignore": target.ignore}


class SeveralTargets(TargetKind):
    """What several targets mean together: their sum for losses, and no single accuracy.

    Args:
        target: the targets.
    """

    nouns = ("target", "targets")
    plural = "several targets"
    min_outputs = 0
    expected = "what each of them should be"
    activation = "linear"
    default_loss = ""
    loss_text = "the sum of the losses of its targets"
    is_numeric = True

    def __init__(self, target: RecordTarget) -> None:
        self._target = target
        self.is_of_pixels = target.mask is not None  # type: ignore[misc]

    def __eq__(self, value: object) -> bool:
        return isinstance(value, SeveralTargets) and self._target == value._target

    def __hash__(self) -> int:
        return hash(self._target)

    def shape(self, outputs: int, size: tuple[int, int] | None) -> tuple[int, ...]:  # noqa: D102
        return ()

    def dtype(self, outputs: int) -> np.dtype:  # noqa: D102
        return self._target.dtype

    def predictions(self, outputs: np.ndarray) -> np.ndarray:  # noqa: D102
        return np.concatenate(
            [
                flatten_rows(target.semantics.predictions(part))
                for target, part in self._split(outputs)
            ],
            axis=1,
        )

    def is_correct(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        return np.full(len(targets), np.nan)

    def losses(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:  # noqa: D102
        parts = self._target.split_outputs(predicted)
        losses: np.ndarray = np.sum(
            [
                target.semantics.losses(parts[name], targets[name])
                for name, target in self._target.fields
            ],
            axis=0,
        )
        return losses

    def _split(self, outputs: np.ndarray) -> list[tuple[TargetSpec, np.ndarray]]:
        parts = self._target.split_outputs(outputs)
        return [(target, parts[name]) for name, target in self._target.fields]


def record_of(target: TargetSpec) -> RecordTarget:
    """Return a target that is several as such."""
    return cast(RecordTarget, target)


# ---- what a spec requests -----------------------------------------------------------------------


def request_of(request: Request, name: str) -> TargetWish | None:
    """Return what a spec requests of one of several targets."""
    if isinstance(request, Mapping):
        return request.get(name)
    return None


def parse_each(
    names: Iterable[str],
    request: Request,
    origin: str,
    parse: Callable[[str, TargetWish | None], T],
) -> dict[str, T]:
    """Parse each of several targets, and return what comes out by name.

    Args:
        names: the names of the targets.
        request: what the spec requests.
        origin: the origin of the source, for messages.
        parse: parses a target by its name and what the spec requests of it.

    Raises:
        InputError: a target is wrong, or the spec requests one that is missing.
    """
    names = tuple(names)
    check_names_of(request, names, origin)
    parsed = {}
    for name in names:
        try:
            parsed[name] = parse(name, request_of(request, name))
        except InputError as error:
            text = _PROPOSAL.sub(rf"data.target: {{{name}: \1}}", str(error))
            raise InputError(text if name in text else f"target {name}: {text}") from error
    return parsed


def check_request(request: Request, target: TargetSpec) -> None:
    """Check that a source's targets are as requested.

    Raises:
        InputError: they are not.
    """
    if isinstance(request, TargetWish):
        request.check(target)
        return
    for name, single in (request or {}).items():
        try:
            single.check(target.by_name[name])
        except InputError as error:
            text = str(error).removeprefix("data.target: ")
            raise InputError(f"data.target: {name}: {text}") from None


def check_names_of(request: Request, names: tuple[str, ...], origin: str) -> None:
    """Check that each requested target is one of a source's targets.

    Args:
        request: what the spec requests.
        names: the names of the source's targets.
        origin: the origin of the source, for messages.

    Raises:
        InputError: it requests one that is missing, or a single target of several.
    """
    listed = ", ".join(names)
    if isinstance(request, TargetWish):
        example = ", ".join(f"{name}: {request.kind}" for name in names)
        raise InputError(
            f"data.target: {request.kind} is for one target, and {origin} has several ({listed}); "
            f"it should be a mapping by name, like {{{example}}}"
        )
    unknown = [name for name in request or () if name not in names]
    if unknown:
        raise InputError(
            f"data.target: {unknown[0]}: {origin} has no target of this name; it has {listed}"
        )


def single_request(request: Request, origin: str) -> TargetWish | None:
    """Return what a spec requests of a source with one target, without a name.

    Raises:
        InputError: it requests targets by name.
    """
    if not isinstance(request, Mapping):
        return request
    word = next(iter(KINDS))
    raise InputError(
        f"data.target: {', '.join(request)}: {origin} has one target, without a name; it should "
        f"be a kind, like {word}; or name several targets in data.options: targets, like "
        f"[{', '.join(request)}]"
    )
