"""Model families and the description of one network, without importing an engine.

A family is a frozen dataclass of settings that a search may vary. They determine the number of
parameters and the smallest image, so a spec is checked and an ensemble is listed without loading
TensorFlow. :mod:`fleet.engines.keras.models` builds the layers.

The families are the residual networks of He et al. (Deep Residual Learning for Image Recognition,
CVPR 2016), the dense networks of Huang et al. (Densely Connected Convolutional Networks, CVPR
2017), a plain convolutional network, a multilayer perceptron, and softmax regression as a baseline.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fleet.errors import FleetError, UserError
from fleet.plugins import load_object
from fleet.spec.engines import EngineInfo
from fleet.spec.section import section
from fleet.vocabulary.foreign_names import did_you_mean_name
from launch.errors import did_you_mean, pluralize
from preprocess.import_path import import_function
from preprocess.user_code import UserCode

# Strict, since pydantic would otherwise read `true` as the number 1.
Count = Annotated[int, Field(strict=True, ge=1)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]
Dropout = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
Norm = Literal["batch", "none"]
Stem = Literal["imagenet", "small", "auto"]

APPLICATIONS = EngineInfo.applications

# Pixels: the ImageNet stem and four stages reduce 96 pixels to three, and 32 pixels to one.
SMALL_BELOW = 96


@section
class ResNet:
    """A residual network. The defaults are ResNet-50 on large images."""

    blocks: Counts = (3, 4, 6, 3)
    """Number of residual blocks in each stage. Each stage but the first halves the image and
    doubles the width.
    """
    width: Count = 64
    """Number of filters in the first stage; of the inner convolutions if blocks are bottlenecks."""
    bottleneck: Annotated[bool, Field(strict=True)] | Literal["auto"] = "auto"
    """true: blocks are bottlenecks (1x1, 3x3 and 1x1 convolutions, with four times as many outer
    filters). false: blocks are two 3x3 convolutions. auto: bottlenecks if the stem is imagenet, as
    in the paper.
    """
    stem: Stem = "auto"
    """First layers. imagenet: a 7x7 convolution with stride 2, then pooling. small: one 3x3
    convolution. auto: small for images below 96 pixels.
    """
    norm: Norm = "batch"
    """Batch normalization after every convolution, or none."""
    dropout: Dropout = 0.0
    """Dropout rate before the classifier."""


@section
class DenseNet:
    """A dense network. The defaults are DenseNet-121."""

    blocks: Counts = (6, 12, 24, 16)
    """Number of layers in each dense block. A transition between two blocks halves the image."""
    growth: Count = 32
    """Number of feature maps that each layer adds; the stem has twice as many."""
    compression: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5
    """Share of the feature maps that a transition keeps."""
    stem: Stem = "auto"
    """First layers. imagenet: a 7x7 convolution with stride 2, then pooling. small: one 3x3
    convolution. auto: small for images below 96 pixels.
    """
    norm: Norm = "batch"
    """Batch normalization before every activation, or none."""
    dropout: Dropout = 0.0
    """Dropout rate before the classifier."""


@section
class CNN:
    """A plain convolutional network."""

    filters: Counts = (32, 64)
    """Number of filters of each convolution. Each is followed by pooling that halves the image."""
    dense: tuple[Count, ...] = (128,)
    """Number of units of each hidden layer between the convolutions and the classifier."""
    kernel: Count = 3
    """Kernel size of the convolutions, in pixels."""
    norm: Norm = "batch"
    """Batch normalization after every convolution, or none."""
    dropout: Dropout = 0.0
    """Dropout rate after each hidden layer."""


@section
class MLP:
    """A multilayer perceptron, for rows of a table and other arrays of any shape."""

    hidden: Counts = (64, 64)
    """Number of units of each hidden layer."""
    norm: Norm = "none"
    """Batch normalization after every hidden layer, or none."""
    dropout: Dropout = 0.0
    """Dropout rate after each hidden layer."""


@section
class Softmax:
    """Multinomial logistic regression on all numbers of a sample, as a baseline."""


Settings = ResNet | DenseNet | CNN | MLP | Softmax
# The shape of a sample; of several inputs, their shapes by name.
InputShape = tuple[int, ...] | dict[str, tuple[int, ...]]
FAMILIES: dict[str, type[Settings]] = {
    "resnet": ResNet,
    "densenet": DenseNet,
    "cnn": CNN,
    "mlp": MLP,
    "softmax": Softmax,
}


# --- one network ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Architecture:
    """A network to build: a family, an application of the engine, or a custom function.

    Two descriptions are equal if they build the same network: the defaults of a family may be
    given or left out.

    Attributes:
        target: ``resnet``, ``MobileNetV2`` or ``my_models:build``.
        args: the family's settings or the function's keyword arguments, as JSON values.
        output: the output of a custom network that is trained, by name or position, if it returns
            several.

    Raises:
        UserError: ``args`` has a value that JSON cannot represent.
        pydantic.ValidationError: ``args`` are not settings of the family.

    >>> with_default = Architecture("resnet", {"blocks": (2, 2), "width": 64})
    >>> Architecture("resnet", {"blocks": [2, 2]}) == with_default
    True
    >>> Architecture("my_models:build", {"depth": 4}).kind
    'import'
    """

    target: str
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    output: str | int | None = None

    def __post_init__(self) -> None:
        try:
            _ = self.key
        except TypeError as error:
            raise UserError(
                f"arguments of {self.target}: {error}; use numbers, text, lists and mappings"
            ) from None

    @property
    def kind(self) -> Literal["family", "application", "import"]:
        """The kind of target; import paths contain a colon."""
        if ":" in self.target:
            return "import"
        if self.target in FAMILIES:
            return "family"
        return "application"

    @cached_property
    def settings(self) -> Settings:
        """The family's settings, with defaults filled in."""
        return FAMILIES[self.target](**self.args)

    @cached_property
    def key(self) -> str:
        """The network as one line of JSON, the same for equal networks."""
        if self.kind == "family":
            args: Mapping[str, Any] = dataclasses.asdict(self.settings)
        else:
            args = self.args
        chosen = {} if self.output is None else {"output": self.output}
        return json.dumps({"target": self.target, "args": args, **chosen}, sort_keys=True)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Architecture):
            return self.key == other.key
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


def check_target(target: str, applications: str = APPLICATIONS) -> None:
    """Check that a name is a family or one of an engine's applications.

    The names are read from the source of the installed package, since importing it may take
    seconds; if it is not installed, every name passes.

    Raises:
        UserError: the name is unknown; the message lists close matches.
    """
    names = application_names(applications)
    if target not in FAMILIES and (names or not applications) and target not in names:
        if applications:
            kinds = f"a family nor a function of {applications}"
            problem = f"{target!r} is neither {kinds}"
        else:
            problem = f"{target!r} is not a family"
        raise UserError(
            f"{problem}{did_you_mean_name(target, [*FAMILIES, *names])}; "
            f"families: {', '.join(FAMILIES)}"
        )


@cache
def application_names(applications: str = APPLICATIONS) -> tuple[str, ...]:
    """List the functions of an engine's applications, such as ``keras.applications``."""
    package, *below = applications.split(".")
    module = importlib.util.find_spec(package) if package else None
    if module is None or module.origin is None:
        return ()
    source = Path(module.origin).parent.joinpath(*below, "__init__.py")
    imports = [
        node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    return tuple(sorted(name for name in names if name[0].isupper()))  # modules are lower case


def load_function(path: str) -> Callable[..., Any]:
    """Import the model function that ``module:function`` names.

    Raises:
        UserError: the module cannot be imported, or does not have the function.

    >>> load_function("math:hypot")(3, 4)
    5.0
    """
    return load_object(path, "model function", import_function)


def check_import(path: str, key: str = "build") -> None:
    """Check that an import path leads to a function.

    The module is imported only if reading it is not enough, since that may import TensorFlow.

    Args:
        path: the import path.
        key: the setting that names it, for messages.

    Raises:
        UserError: the module or the function does not exist, or an import that is necessary to
            tell raises.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script does not
    with UserCode().running():
        _check_import(path, key)


def _check_import(path: str, key: str) -> None:
    module, _, function = path.partition(":")
    if not module or not function.isidentifier():
        raise UserError(f"{path!r} should be written module:function")
    try:
        spec = importlib.util.find_spec(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # parent packages are imported, and may raise anything
        if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(
            f"{error.name}."
        ):
            load_function(path)  # raises with the cause
            return
        spec = None
    if spec is None:
        raise UserError(
            f"{key}: {path}: no module {module!r} in {Path.cwd()} or installed; "
            "put it there or next to the spec, or install it"
        )
    if spec.origin and spec.origin.endswith(".py"):
        names = _top_level_names(Path(spec.origin))
        if names is not None and function not in names and not _is_made_by_importing(path):
            hint = did_you_mean(function, sorted(names))
            raise UserError(f"{key}: {path}: {spec.origin} has no function {function!r}{hint}")


def _is_made_by_importing(path: str) -> bool:
    """Return True if importing a module defines a function that its file does not.

    Raises:
        UserError: importing the module raises, so its functions are unknown.
    """
    try:
        load_function(path)
    except UserError:
        if path.partition(":")[0] not in sys.modules:
            raise
        return False
    return True


def _top_level_names(file: Path) -> set[str] | None:
    """Return the names that a module binds; None if only an import would tell."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            if any(alias.name == "*" for alias in node.names):
                return None
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def arguments_for(
    function: Callable[..., Any],
    architecture: Architecture,
    input_shape: InputShape,
    outputs: int | dict[str, int],
) -> dict[str, Any]:
    """Return the keyword arguments for a custom model function.

    These are ``input_shape``, ``classes`` (or ``outputs``, if the function has that parameter) and
    the arguments of the network. Without targets, ``classes`` is left out unless it is required.

    Args:
        function: the custom function.
        architecture: the description of the network.
        input_shape: the shape of a sample, such as (height, width, channels); of several inputs,
            their shapes by name.
        outputs: number of classes, labels or values, of several targets by name; 0 without targets.
    """
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        names = {}  # type: ignore[assignment]
    if "outputs" in names and "classes" not in names:
        word = "outputs"
    else:
        word = "classes"
    keywords = {"input_shape": input_shape, word: copy.copy(outputs)}
    keywords |= copy.deepcopy(dict(architecture.args))
    is_required = word in names and names[word].default is inspect.Parameter.empty
    if not outputs and word not in architecture.args and not is_required:
        del keywords[word]
    return keywords


def one_line(error: BaseException) -> str:
    """Format an error as ``Type: message`` on one line, without colors.

    >>> one_line(ValueError("\\x1b[1mtwo\\x1b[0m\\nlines"))
    'ValueError: two lines'
    """
    return f"{type(error).__name__}: {' '.join(COLOR.sub('', str(error)).split())}".removesuffix(
        ": "
    )


@contextmanager
def wrapping_errors(
    context: str,
    kind: type[FleetError],
    *setting: str,
    of: tuple[type[Exception], ...] = (Exception,),
) -> Iterator[None]:
    """Convert errors of a library or a user's function to ours.

    Args:
        context: the beginning of the message, which is one line.
        kind: the type of the raised error.
        setting: further arguments of the raised error, such as the keys of a setting
            (:class:`fleet.errors.SettingError`).
        of: the types of the errors to convert; FLEET's own errors pass unchanged.
    """
    try:
        yield
    except FleetError:
        raise
    except of as error:
        raise kind(f"{context} {one_line(error)[:300]}", *setting) from error


COLOR = re.compile(r"\x1b\[[0-9;]*m")  # Keras prints some messages in bold


# --- consequences of the settings ----------------------------------------------------------


def large_stem(settings: ResNet | DenseNet, input_shape: tuple[int, ...]) -> bool:
    """Return True if the network starts with the ImageNet stem for this image shape."""
    if settings.stem == "auto":
        return min(input_shape[:2]) >= SMALL_BELOW
    return settings.stem == "imagenet"


def check_input(settings: Settings, input_shape: tuple[int, ...]) -> None:
    """Check that samples are images that are large enough for the network.

    Args:
        settings: the settings of a family.
        input_shape: height, width (pixels) and channels of an image; any shape for ``mlp`` and
            ``softmax``.

    Raises:
        UserError: the samples are not images, or too small for the network.
    """
    if isinstance(settings, MLP | Softmax):
        return
    if len(input_shape) != 3:
        shape = ", ".join(map(str, input_shape))
        raise UserError(
            f"{type(settings).__name__.lower()} takes images (height, width, channels), not "
            f"samples of shape ({shape}); use the family mlp, or your own function (build:)"
        )
    if isinstance(settings, ResNet):  # strided convolutions round up: one pixel stays one
        return
    if isinstance(settings, CNN):
        halvings = len(settings.filters)
    else:
        halvings = len(settings.blocks) - 1
    side = 2**halvings
    if isinstance(settings, DenseNet) and large_stem(settings, input_shape):
        side = 4 * (side - 1) + 1  # the stem divides by four and rounds up
    if min(input_shape[:2]) < side:
        name = type(settings).__name__.lower()
        raise UserError(
            f"{name} halves the image {pluralize(halvings, 'time')} and needs at least "
            f"{side}x{side} pixels, not {input_shape[0]}x{input_shape[1]}"
        )
