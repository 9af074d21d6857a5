"""Describe each engine without loading it, so that specs can be checked against it.

An engine itself may take seconds to import, and stands far above a spec;
:mod:`fleet.engines.registry` makes it from its row. Its name is looked up here and compared nowhere
else; an :class:`EngineInfo` of one's own, which a spec names by its import path, does all that one
of the table does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from fleet.errors import UserError
from fleet.plugins import load_named
from fleet.vocabulary.measures import LOSSES, METRICS, MeasureWord, canonical_name
from fleet.vocabulary.optimizers import OPTIMIZERS, OptimizerWord
from fleet.vocabulary.schedules import SCHEDULES, is_schedule

Word = TypeVar("Word")
Table: TypeAlias = Mapping[str, Word] | tuple[str, ...] | None
Make = Callable[
    ..., Any
]  # of (fleet.engines.base.EngineContext) -> fleet.engines.base.Engine, which a spec knows nothing of


def float32_bytes(parameters: int, slots: int) -> int:
    """Count the bytes of weights and optimizer slots in float32.

    >>> float32_bytes(1000, slots=2)
    12000
    """
    return 4 * parameters * (1 + slots)


@dataclass(frozen=True)
class Words:
    """The names that an engine accepts in a spec, with what is known about each.

    Attributes:
        optimizers: by name, in lower case.
        schedules: by name; functions of a step and their arguments, which give a learning rate.
        losses, metrics: by name, in snake case.
    """

    optimizers: Mapping[str, OptimizerWord]
    schedules: Mapping[str, Callable[..., float]]
    losses: Mapping[str, MeasureWord]
    metrics: Mapping[str, MeasureWord]


@dataclass(frozen=True)
class Known:
    """The parts of ``train`` that an engine supports; None stands for everything in Keras.

    Attributes:
        optimizers, schedules, losses, metrics: names of Keras' words (:mod:`fleet.vocabulary`), in
            the form of its tables; or the engine's own tables, as in :class:`Words`.
        precisions: of ``train.precision``.
        own: whether it takes functions of the user's own in their place, under import paths.
        accumulates: whether it averages the gradients of several steps.
        compiles: whether XLA can compile its steps.
        starts: whether networks can begin with weights of a file, and keep some of them as they
            are; its trainables are then :class:`fleet.engines.base.SupportsPretrained`.
    """

    optimizers: Table[OptimizerWord] = None
    schedules: Table[Callable[..., float]] = None
    losses: Table[MeasureWord] = None
    metrics: Table[MeasureWord] = None
    precisions: tuple[str, ...] | None = None
    own: bool = True
    accumulates: bool = True
    compiles: bool = True
    starts: bool = False


@dataclass(frozen=True)
class EngineInfo:
    """The description of an engine.

    Args:
        name: as specs call it.
        make: makes the engine of a trainer from a :class:`fleet.engines.base.EngineContext`: a
            function, or its import path. In the table the path is relative to :mod:`fleet.engines`,
            and begins with a dot: engines import specs, so a spec names no module of theirs. The
            registry, which stands there, completes it.
        help: what it does, in a line.
        families: that it can build; None for all, those of ``applications`` too. What a ``build:``
            function gives is between that function and the engine.
        applications: the package whose functions build networks that a spec may name beside
            families; nothing where there is none.
        knows: what it knows of optimizers, learning rate schedules, losses and metrics; for others
            a network fails.
        uses_gpus: whether each of its ranks wants a GPU.
        unwanted: packages that it imports where they are installed, and can do without: it is
            loaded faster so.
        exports: whether the networks that finish are written as files for use without FLEET.
        suffix: of these files.
        learns: whether networks get better; otherwise they train for the epochs that the rates file
            gives them.
        finishes: whether its networks crop and mirror samples themselves
            (:mod:`preprocess.deferred_augmentation`).
        needs_rates: whether it can only train at rates that are known, so that ``schedule.rates``
            must be given.
        checkpoint_bytes: (parameters, slots) -> bytes of a checkpoint's arrays; slots are the
            numbers that the optimizer keeps for each parameter.
        count_parameters: of a network that is of no family: (architecture, input shape, classes,
            seed) -> how many; a function, or its import path as for ``make``; None where nobody can
            tell before it is built.
        join: makes one of several exported networks: (files, weight of each, kind of the targets)
            -> :class:`fleet.engines.base.ExportedEnsemble`; a function, or its import path as for
            ``make``. None where an export cannot be loaded again.
        to_onnx: writes an exported network as ONNX: (its file, the file to write); a function, or
            its import path as for ``make``. None where nothing can.
        own_arrays: the last parts (after a slash) of the names of those arrays of a state that a
            network keeps when it begins with the state of another: its learning rate is its own,
            and it is random in its own way.
        no_memory: words in the errors of its library, or in the names of their types, that tell too
            little memory from other failures.
        library: the package without which it trains nothing; empty where it needs none.
        extra: of this project's package, that installs it; for messages.
        build_s: seconds in which a network is built and its first step is made ready, for
            rehearsals.
        problems: what ``fleet doctor`` finds wrong with the libraries that it stands on, on one
            node: (the GPUs that a rank is shown, ``resources.exchange``) -> pairs of what would go
            wrong and what to do about it; a function, or its import path as for ``make``. None
            where there is nothing to look at.
    """

    name: str
    make: str | Make
    help: str = ""
    families: frozenset[str] | None = None
    applications: str = "keras.applications"
    knows: Known = Known()  # noqa: RUF009 - frozen
    uses_gpus: bool = False
    unwanted: tuple[str, ...] = ()
    exports: bool = False
    suffix: str = ".keras"
    learns: bool = True
    finishes: bool = False
    needs_rates: bool = False
    checkpoint_bytes: Callable[[int, int], int] = float32_bytes
    count_parameters: str | Callable[..., int] | None = None
    join: str | Callable[..., Any] | None = None
    to_onnx: str | Callable[..., Any] | None = None
    own_arrays: tuple[str, ...] = ("learning_rate", "seed_generator_state")
    no_memory: tuple[str, ...] = ()
    library: str = ""
    extra: str = ""
    build_s: float = 0.0
    problems: str | Callable[[Sequence[str], str], list[tuple[str, str]]] | None = None

    @cached_property
    def words(self) -> Words:
        """The names that it accepts."""
        return Words(
            **{
                kind: _table(getattr(self.knows, kind), of_keras)
                for kind, (of_keras, *_) in _TABLES.items()
            }
        )


def _table(names: Table[Word], of_keras: Mapping[str, Word]) -> Mapping[str, Word]:
    if names is None:
        return of_keras
    if isinstance(names, Mapping):
        return names
    return {name: of_keras[name] for name in names}


# kind of words -> those of Keras, how a name is written, and what stands behind it
_TABLES: dict[str, tuple[Mapping[str, Any], Callable[[str], str], Callable[[Any], bool]]] = {
    "optimizers": (OPTIMIZERS, str.lower, lambda word: isinstance(word, OptimizerWord)),
    "schedules": (SCHEDULES, str, is_schedule),
    "losses": (LOSSES, canonical_name, lambda word: isinstance(word, MeasureWord)),
    "metrics": (METRICS, canonical_name, lambda word: isinstance(word, MeasureWord)),
}


ENGINES: dict[str, EngineInfo] = {
    engine.name: engine
    for engine in (
        EngineInfo(
            "keras",
            ".keras.engine:KerasEngine",
            "Keras on TensorFlow",
            knows=Known(starts=True),
            uses_gpus=True,
            exports=True,
            finishes=True,
            join=".keras.ensemble_model:EnsembleModel",
            to_onnx=".keras.ensemble_model:to_onnx",
            no_memory=("ResourceExhaustedError",),
            problems=".keras.diagnostics:find_problems",
            library="tensorflow",
            extra="run",
            build_s=8.0,  # between a small CNN's and a ResNet's
            # Keras plots galleries with the one and wraps models for the other: a quarter of what
            # its import takes.
            unwanted=("matplotlib", "sklearn"),
            count_parameters=".keras.models:count_keras_parameters",
        ),
        EngineInfo(
            "torch",
            ".torch.engine:TorchEngine",
            "PyTorch, which trains plain modules",
            families=frozenset({"cnn", "densenet", "resnet", "softmax"}),
            applications="",
            uses_gpus=True,
            build_s=1.0,
            problems=".torch.diagnostics:find_problems",
            exports=True,
            suffix=".safetensors",
            finishes=True,
            library="torch",
            extra="torch",
            join=".torch.ensemble_model:EnsembleModule",
            to_onnx=".torch.export:to_onnx",
            no_memory=("OutOfMemoryError", "CUDA out of memory", "DefaultCPUAllocator"),
            knows=Known(
                optimizers=("sgd", "adam", "adamw", "rmsprop", "nadam"),
                precisions=("float32", "mixed_bfloat16"),
                compiles=False,
                starts=True,
                metrics=tuple(
                    name
                    for name, word in sorted(METRICS.items())
                    if not word.needs
                    and name
                    not in (
                        "binary_io_u",
                        "concordance_correlation",
                        "one_hot_mean_io_u",
                        "pearson_correlation",
                    )
                ),
            ),
            count_parameters=".torch.models:count_parameters",
        ),
        EngineInfo(
            "numpy",
            ".softmax:make",
            "softmax regression without TensorFlow, to try things with",
            families=frozenset({"softmax"}),
            finishes=True,
            count_parameters=".softmax:count_parameters",
            knows=Known(
                optimizers={
                    "sgd": OptimizerWord(frozenset({"momentum"}), 0, slot_of_momentum=True)
                },
                schedules=(),
                losses=(),
                own=False,
                accumulates=False,
                precisions=("float32",),
                compiles=False,
                metrics=("accuracy", "mean_absolute_error", "mean_squared_error"),
            ),
            checkpoint_bytes=lambda parameters, slots: 8 * parameters * 2,
        ),  # float64, always with a velocity
        EngineInfo(
            "emulated",
            ".emulated:EmulatedEngine",
            "ranks sleep for as long as training would take, at rates that are known",
            learns=False,
            finishes=True,
            needs_rates=True,
            knows=Known(starts=True),
            count_parameters=".keras.models:count_keras_parameters",
        ),
    )
}


def find_engine(name: str) -> EngineInfo:
    """Find the engine with a name or an import path ``module:engine``.

    Raises:
        UserError: there is none.

    >>> find_engine("numpy").families
    frozenset({'softmax'})
    """
    if name in ENGINES:
        return ENGINES[name]
    engine = load_named(name, "engine", sorted(ENGINES), "engine")
    if not isinstance(engine, EngineInfo):
        raise UserError(
            f"engine {name!r} is of type {type(engine).__name__}; it should be an EngineInfo"
        )
    for kind, (of_keras, written, is_word) in _TABLES.items():
        names = getattr(engine.knows, kind) or ()
        wrong = [
            word
            for word in names
            if not (
                written(word) == word and is_word(names[word])
                if isinstance(names, Mapping)
                else word in of_keras
            )
        ]
        if wrong:
            raise UserError(
                f"engine {name!r} knows {kind} that are none: {', '.join(map(repr, wrong))}; names "
                f"of "
                "fleet.vocabulary, or a table as in fleet.spec.engines.Words"
            )
    return replace(engine, name=name)
