"""Call a training step of the user, ``train.step``, and read what it returns, for any library.

A step is a function of (model, batch, training). ``batch`` maps names to arrays with rows first. It
returns the loss of each row, or one number for all rows, or a mapping with such a ``loss`` and
other numbers, which become metrics.
"""

from __future__ import annotations

import inspect
import math
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fleet.engines.custom import load_custom
from fleet.engines.failure_reason import is_out_of_memory
from fleet.engines.measures import LossFunctions, Measures
from fleet.errors import FleetError, NetworkWarning, SettingError
from fleet.spec import Train
from fleet.spec.measures import COLUMNS
from fleet.spec.model import one_line
from preprocess.sample import SampleSpec

INPUT = "input"  # the name of a single input, and of a single target below
TARGET = "target"
WEIGHT = "weight"
INDEX = "index"
LOSS = "loss"
ACCURACY = "accuracy"

_PARAMETERS = ("model", "batch", "training")
_OPTIMIZER = "optimizer"  # a fourth parameter
_FLEET_FOLDER = str(Path(__file__).parents[2])


class StepBatch(dict[str, Any]):
    """The batch of a step: inputs, targets, ``weight`` and ``index`` by name."""

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"the batch has no {name!r}; it has {', '.join(self)}")


class OwnStep:
    """The function that ``train.step`` names.

    Args:
        train: settings that name it.

    Attributes:
        path: its import path.
        function: the function.
        alternates: whether it is called once for each optimizer, whose name it takes.

    Raises:
        SettingError: it does not exist, or does not take (model, batch, training).
    """

    def __init__(self, train: Train) -> None:
        assert train.step is not None
        self.path = train.step
        self.function: Callable[..., Any] = load_custom(self.path, "step", "step")
        if not callable(self.function):
            raise self.error(
                f"is a {type(self.function).__name__}; it should be a function of "
                f"({', '.join(_PARAMETERS)})"
            )
        self.alternates = False
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # a builtin without a signature
            return
        self.alternates = train.optimizers is not None and _OPTIMIZER in signature.parameters
        options = {_OPTIMIZER: None} if self.alternates else {}
        try:
            signature.bind(*_PARAMETERS, **options)
        except TypeError as error:
            raise self.error(
                f"is a function of {signature}; it should take ({', '.join(_PARAMETERS)})"
            ) from error

    def __call__(
        self, model: Any, batch: StepBatch, training: bool, optimizer: str | None = None
    ) -> dict[str, Any]:
        """Call the function, and return its numbers by name.

        Args:
            model: the network.
            batch: inputs, targets, weights and indices by name.
            training: False in evaluation.
            optimizer: name of the optimizer that steps next; None if all do, and in evaluation.

        Raises:
            SettingError: it raised, or returned something else.
        """
        with self.locating_errors():
            options = {_OPTIMIZER: optimizer} if self.alternates else {}
            returned = self.function(model, batch, training, **options)
        return self.named(returned, optimizer or LOSS)

    def named(self, returned: Any, name: str = LOSS) -> dict[str, Any]:
        """Return what the function returned as numbers by name.

        Args:
            returned: a mapping, or the loss alone.
            name: name of a loss alone.

        Raises:
            SettingError: a key of a mapping is not text.
        """
        if not isinstance(returned, Mapping):
            return {name: returned}
        wrong = [name for name in returned if not isinstance(name, str)]
        if wrong:
            raise self.error(f"returned a mapping with the key {wrong[0]!r}; keys should be text")
        return dict(returned)

    def check_names(self, names: Sequence[str], losses: Sequence[str] = (LOSS,)) -> None:
        """Check the names of what the function returned.

        Args:
            names: the names.
            losses: names of the losses that it should return.

        Raises:
            SettingError: a loss is missing, or a name is that of another column.
        """
        missing = [name for name in losses if name not in names]
        if missing:
            right = "return the loss of each row, or a mapping with 'loss'"
            if missing != [LOSS]:
                right = f"return a loss for each optimizer: {', '.join(map(repr, losses))}"
            raise self.error(
                f"returned {', '.join(map(repr, names)) or 'nothing'} without {missing[0]!r}; it "
                f"should {right}"
            )
        for name in names:
            if name != LOSS and (name in COLUMNS or name.startswith(("val_", "test_"))):
                raise self.error(
                    f"returned {name!r}, which is the name of another column of the results; "
                    "rename it"
                )

    def shape_error(self, name: str, shape: Sequence[Any] | str, rows: Any) -> SettingError:
        """Return the error for a number of the wrong shape or type.

        Args:
            name: its name in what the function returned.
            shape: its shape, or its type.
            rows: number of rows of the batch.
        """
        if not isinstance(shape, str):
            shape = f"an array of shape {tuple(shape)}"
        return self.error(
            f"returned {shape} as {name!r} for {rows} rows; it should be one number for each row, "
            f"of shape ({rows},), or one number"
        )

    def warn_of_scalar(self) -> None:
        """Warn that the loss is one number for the rows of a rank."""
        warnings.warn(
            f"the step {self.path} returns one loss for all rows of a rank, so the result depends "
            "on the number of ranks that share a batch",
            NetworkWarning,
            stacklevel=2,
        )

    def check_monitor(self, train: Train, names: Sequence[str]) -> None:
        """Check that the monitored quantity is computed.

        Args:
            train: the training settings.
            names: what the function returns.

        Raises:
            SettingError: it is not computed.
        """
        monitor = train.stopping.metric
        if monitor.removeprefix("val_") not in names:
            raise SettingError(
                f"{monitor} is not computed: the step {self.path} returns {', '.join(names)}",
                "train",
                "stopping",
                "monitor",
            )

    def check_sample(self, sample: SampleSpec) -> None:
        """Check that the function can tell inputs from targets in a batch.

        Args:
            sample: inputs and targets of a sample.

        Raises:
            SettingError: an input and a target have the same name.
        """
        both = [name for name in sample.parts if name in sample.target.parts]
        if both:
            raise self.error(
                f"would find two arrays by the name {both[0]!r} in a batch, an input and a target; "
                "rename one of them"
            )

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Add file and line to errors that the function raises."""
        try:
            yield
        except (FleetError, OSError, MemoryError):
            raise
        except Exception as error:  # the user's function may raise anything
            if is_out_of_memory(error):
                raise
            text = one_line(error)
            if isinstance(error, KeyError) and error.args:
                text = f"KeyError: {error.args[0]}"  # its text is a repr
            raise self.error(f"raised {text[:300]}{_describe_position(error)}") from error

    def error(self, problem: str) -> SettingError:
        """Return the error for a problem of the function."""
        return SettingError(f"the step {self.path} {problem}", "train", "step")


def _describe_position(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as `` (FILE, line N)``."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    own_code = (_FLEET_FOLDER + "/fleet/", _FLEET_FOLDER + "/preprocess/")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*own_code, "<", *libraries))
    ]
    if not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


class StepMetrics:
    """The metrics that a step returns, as sums and counts.

    Args:
        names: their names, without the loss and the accuracy.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.width = 2 * len(self.names)

    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:
        """Return the mean of each metric over the samples for which it was returned.

        Args:
            metric_totals: (width,): sum and count of each.
        """
        pairs = np.reshape(np.asarray(metric_totals, np.float64), (-1, 2))
        return {
            name: float(total / count)
            for name, (total, count) in zip(self.names, pairs, strict=True)
            if count
        }


def measures_of(metrics: StepMetrics) -> Measures:
    """Return the measures of a network whose losses a step of the user computes."""
    return Measures(LossFunctions(_no_loss, _no_loss, _no_loss, "", -math.inf), metrics)


def _no_loss(outputs: Any, targets: Any) -> NoReturn:
    raise AssertionError("a step of the user computes the loss")
