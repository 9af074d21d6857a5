"""Load user-defined functions that a spec names by import path, for any library."""

from __future__ import annotations

import inspect
import random
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from fleet.errors import ModelError, SettingError, UserError, exit_reason
from fleet.plugins import load_object
from fleet.spec import NetworkSpec, Optimizer, Train
from fleet.spec.by_target import list_losses, list_metrics
from fleet.spec.meant_keys import hint_at_key
from fleet.spec.measures import name_of, parameters_of
from fleet.spec.model import (
    Architecture,
    InputShape,
    arguments_for,
    load_function,
    one_line,
    wrapping_errors,
)
from fleet.vocabulary.schedules import PLATEAU
from fleet.vocabulary.torch_schedules import TORCH_SCHEDULES
from preprocess.target import ModelOutputs
from preprocess.user_code import (
    UserCode,
    exclusive_generators,
    forget,
    running_user_code,
    seed_generators,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_RATE = 0.01  # learning rate of an optimizer function without a default
_NOISES = (0.1, 1.0) * 8  # deviations of noise on weights


def load_custom(path: str, role: str, *key: str) -> Any:
    """Return the object that a setting of ``train`` names by import path.

    Args:
        path: the import path, ``module:name``.
        role: what the object is, for messages.
        key: keys of the setting below ``train``.

    Raises:
        SettingError: the object does not exist.
    """
    try:
        return load_object(path, role)
    except UserError as error:
        raise SettingError(str(error), "train", *key) from error


def make_custom_loss(train: Train, kind: type, **always: Any) -> tuple[Any, dict[str, Any]]:
    """Return a user-defined loss and its arguments; a loss class of the library is instantiated.

    Args:
        train: settings that name the loss.
        kind: base class of the library's losses.
        always: constructor arguments that the user may override.

    Raises:
        SettingError: the loss does not exist or cannot be created.
    """
    assert train.single.loss is not None
    name = name_of(train.single.loss)
    arguments = parameters_of(train.single.loss)
    if train.single.label_smoothing:
        raise SettingError(
            "label_smoothing applies only to built-in losses; smooth the labels in your loss "
            f"{name} instead",
            "train",
            "label_smoothing",
        )
    loss = load_custom(name, "loss", "loss")
    if not callable(loss):
        raise SettingError(
            f"{name} is a {type(loss).__name__}; a loss should be a function or a class",
            "train",
            "loss",
        )
    if not (isinstance(loss, type) and issubclass(loss, kind)):
        return loss, arguments
    with wrapping_errors(f"{name}:", SettingError, "train", "loss"):
        return loss(**{**always, **arguments}), {}


_OF_OUTPUTS = frozenset(
    "out output outputs pred preds predict predicted prediction predictions ypred hat yhat logit "
    "logits score scores prob probs probability probabilities estimate estimated estimates input "
    "inputs".split()
)
_OF_TARGETS = frozenset(
    "target targets tgt label labels true truth ytrue gt wanted expected actual reference".split()
)


def takes_outputs_first(function: Any) -> bool | None:
    """Guess from its parameter names whether a loss or metric takes (outputs, targets).

    Returns:
        False for (targets, outputs); None if the names are ambiguous.

    >>> takes_outputs_first(lambda y_pred, y_true: 0), takes_outputs_first(lambda a, b: 0)
    (True, None)
    """
    try:
        first, second, *_ = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature, or fewer parameters
        return None
    outputs, targets = (
        [bool(words.intersection(name.lower().split("_"))) for name in (first, second)]
        for words in (_OF_OUTPUTS, _OF_TARGETS)
    )
    is_first = (outputs[0] and not outputs[1]) or (targets[1] and not targets[0])
    is_second = (outputs[1] and not outputs[0]) or (targets[0] and not targets[1])
    if is_first == is_second:
        return None
    return is_first


class ArgumentOrder(NamedTuple):
    """The order in which a user-defined loss or metric takes its arguments.

    Attributes:
        outputs_first: True for (outputs, targets), False for (targets, outputs).
        reason: why it is this order; empty if it is fixed.
    """

    outputs_first: bool
    reason: str = ""

    def __str__(self) -> str:
        return "(outputs, targets)" if self.outputs_first else "(targets, outputs)"

    @property
    def is_guessed(self) -> bool:
        """True if the names of the parameters do not tell."""
        return self.reason not in ("", _BY_NAME)

    def as_targets_first(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of (targets, outputs)."""
        if not self.outputs_first:
            return function
        return lambda targets, outputs, **options: function(outputs, targets, **options)


_BY_NAME = "because of its parameter names"


def find_argument_order(
    function: Any, works: Callable[[ArgumentOrder], bool], outputs_first: bool
) -> ArgumentOrder:
    """Find the order of a loss or metric by its parameter names, or else by trying both.

    Args:
        function: the loss or metric.
        works: calls it in an order, and returns True if the result is usable.
        outputs_first: True if the engine's library takes (outputs, targets).
    """
    by_name = takes_outputs_first(function)
    if by_name is not None:
        return ArgumentOrder(by_name, _BY_NAME)
    usual = ArgumentOrder(outputs_first)
    unusual = ArgumentOrder(not outputs_first)
    unclear = "its parameter names are ambiguous, and"
    if works(usual):
        if works(unusual):
            return usual._replace(reason=f"{unclear} both orders work")
        return usual._replace(reason=f"{unclear} the other order fails")
    if works(unusual):
        return unusual._replace(reason=f"{unclear} {usual} fails")
    return usual._replace(reason=f"{unclear} both orders fail")


def with_default_rate(optimizer: Optimizer) -> Optimizer:
    """Return settings that have the default learning rate of a user-defined optimizer.

    Raises:
        SettingError: the function does not exist.
    """
    rate = optimizer.learning_rate
    begins = isinstance(rate, Mapping) and (
        "initial_learning_rate" in rate or rate["name"] not in (*TORCH_SCHEDULES, PLATEAU)
    )
    if begins or isinstance(rate, int | float):
        return optimizer
    function = load_custom(optimizer.name, "optimizer", "optimizer", "name")
    default: Any = None
    # A builtin may have no signature, and the object may not be a function.
    with suppress(TypeError, ValueError, KeyError):
        parameters = inspect.signature(function).parameters
        default = (parameters.get("lr") or parameters["learning_rate"]).default
    if not (isinstance(default, int | float) and default > 0):
        default = _RATE
    if isinstance(rate, Mapping):
        return replace(optimizer, learning_rate={"initial_learning_rate": float(default), **rate})
    return replace(optimizer, learning_rate=float(default))


def make_custom_optimizer(
    settings: Optimizer, kind: type, kind_name: str, make: Callable[[Any], Any]
) -> Any:
    """Return a user-defined optimizer.

    Args:
        settings: settings that name the optimizer.
        kind: base class of the library's optimizers.
        kind_name: name of that class, for messages.
        make: calls the user's function.

    Raises:
        SettingError: the function does not exist, or returns something else.
    """
    function = load_custom(settings.name, "optimizer", "optimizer", "name")
    with wrapping_errors(f"{settings.name} raised", SettingError, "train", "optimizer"):
        optimizer = make(function)
    if not isinstance(optimizer, kind):
        raise SettingError(
            f"{settings.name} returned a {type(optimizer).__name__}; it should return a "
            f"{kind_name}",
            "train",
            "optimizer",
            "name",
        )
    return optimizer


def build_custom_model(
    architecture: Architecture,
    shape: InputShape,
    outputs: ModelOutputs,
    kind: type[T],
    kind_name: str,
) -> T:
    """Build a network with a user-defined function.

    Args:
        architecture: names the function and its arguments.
        shape: shape of an input; of several inputs, their shapes by name.
        outputs: number of outputs; of several targets, by name.
        kind: base class of the library's models.
        kind_name: name of that class, for messages.

    Raises:
        UserError: the function does not exist or does not take such arguments.
        ModelError: it raised, or returned something else.
    """
    name = architecture.target
    function = load_function(architecture.target)
    keywords = arguments_for(function, architecture, shape, outputs)
    try:
        inspect.signature(function).bind(**keywords)
    except (TypeError, ValueError) as error:  # wrong arguments, or a builtin without a signature
        unknown = next((word for word in architecture.args if repr(word) in str(error)), "")
        raise UserError(
            f"{name} does not accept the arguments {', '.join(keywords)}: {error}"
            f"{hint_at_key(unknown) if unknown else ''}"
        ) from error
    try:
        with UserCode().running():
            built = function(**keywords)
    except SystemExit as error:
        raise ModelError(f"{name} did not return a {kind_name}: {exit_reason(error)}") from error
    except Exception as error:  # the user's function may raise anything
        raise ModelError(f"{name} raised {one_line(error)}") from error
    if not isinstance(built, kind):
        raise ModelError(
            f"{name} returned a {type(built).__name__}; it should return a {kind_name}"
        )
    return built


def check_output_shape(name: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Check the shape of a network's outputs.

    Args:
        name: name of the user's function, for messages.
        shape: shape of the outputs for two samples.
        expected: shape of the outputs for one sample.

    Raises:
        ModelError: it is another one.
    """
    if tuple(shape) != (2, *expected):
        raise ModelError(
            f"{name} returns outputs of shape {(None, *shape[1:])}; they should have the shape "
            f"{(None, *expected)}"
        )


def find_activation(
    values: np.ndarray, is_multilabel: bool, noisy_outputs: Callable[[float], np.ndarray]
) -> str:
    """Return the activation in which a network ends: softmax, sigmoid, or none ("").

    Args:
        values: (2, ..., classes) outputs for two samples.
        is_multilabel: True if the probabilities of a sample need not sum to 1.
        noisy_outputs: returns the outputs with noise of some deviation on the weights, which would
            move logits out of the range of probabilities.
    """
    if not _are_bounded(values) or np.isnan(values).any():  # NaN is reported later
        return ""
    if not is_multilabel and np.allclose(values.sum(axis=-1), 1.0, atol=1e-2):
        return "softmax"
    if all(_are_bounded(noisy_outputs(deviation)) for deviation in _NOISES):
        return "sigmoid"
    return ""


def _are_bounded(values: np.ndarray) -> bool:
    return bool(((values >= 0) & (values <= 1) | np.isnan(values)).all())


def probabilities_error(name: str, noun: str, activation: str) -> ModelError:
    """Return the error for a network whose outputs are probabilities.

    Args:
        name: name of the user's function.
        noun: what the library calls a network.
        activation: in which it ends.
    """
    return ModelError(
        f"{name} returns probabilities, from a {activation}; remove it, so that the {noun} returns "
        "logits"
    )


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the random generators of Python and NumPy, and restore them afterwards."""
    with exclusive_generators():
        python = random.getstate()
        numpy = np.random.get_state()
        try:
            seed_generators(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def user_code_of(network: NetworkSpec) -> UserCode | None:
    """Return the user code that runs in a network's steps; None if the spec names none."""
    train = network.train
    rate = train.optimizer.learning_rate
    schedule = str(rate.get("name")) if isinstance(rate, Mapping) else ""
    measures = map(name_of, (*list_losses(train.loss), *list_metrics(train.metrics)))
    names = (*measures, train.optimizer.name, schedule)
    if network.architecture.kind == "import" or train.step or any(":" in name for name in names):
        return UserCode(keeps_rng_state=False)
    return None


def runs_user_code(method: F) -> F:
    """Decorate a method of a network that calls the user code in its attribute ``code``."""

    @wraps(method)
    def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with running_user_code(self.code):
            return method(self, *arguments, **keywords)

    return cast(F, called)


# ---- isolated networks -------------------------------------------------------------------------

# Weights of all live networks of this process, by id.
_WEIGHTS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def build_isolated(
    target: str,
    build: Callable[[], T],
    weights_of: Callable[[T], Iterable[Any]],
) -> T:
    """Build a network with a user function, as in a process that has built no other network.

    A module may keep layers at its top level or in a cache and use them in each network. The second
    network would then start from what the first has learned, so the user's modules are imported
    anew.

    Args:
        target: import path of the function.
        build: calls the function and creates all weights.
        weights_of: returns the weights of what was built.

    Raises:
        ModelError: the network still shares weights with another one.
    """
    for is_last in (False, True):
        load_function(target)
        try:
            built = build()
        except ModelError:
            if is_last or not _WEIGHTS:
                raise
        else:
            weights = {id(weight): weight for weight in weights_of(built)}
            if not any(_WEIGHTS.get(key) is weight for key, weight in weights.items()):
                _WEIGHTS.update(weights)
                return built
        _forget_modules(target)
    raise ModelError(
        f"{target} returns a network that shares weights with another network, even after its "
        "modules have been reimported; create all layers inside the function"
    )


def _forget_modules(target: str) -> None:
    """Reload the module of an import path, and user modules near it, at the next import."""
    names = [target.partition(":")[0]]
    folder = import_folder(target)
    if folder:
        modules = list(sys.modules.items())
        names += [key for key, module in modules if _lies_in(folder, module)]
    forget(names)


def import_folder(target: str) -> Path | None:
    """Return the folder from which the module of an import path was imported; None if unknown."""
    name = target.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return path.parents[name.count(".") + (path.name == "__init__.py")]


def _lies_in(folder: Path, module: ModuleType) -> bool:
    file: str | None = getattr(module, "__file__", None)
    if file is None or not Path(file).is_relative_to(folder):
        return False
    return not any(Path(file).is_relative_to(library) for library in _LIBRARIES)


_LIBRARIES: tuple[str | Path, ...] = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(Path(__file__).parents[2] / name for name in ("fleet", "preprocess", "scheduler", "launch")),
)
