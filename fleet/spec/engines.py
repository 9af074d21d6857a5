"""Describe each engine without loading it, so that specs can be checked against it.

An engine may take seconds to import, and it imports specs; :mod:`fleet.engines.registry` makes it
from its description. No other module compares names of engines. A spec can name your own
:class:`EngineInfo` by its import path, which works like the ones in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from fleet.errors import UserError
from fleet.plugins import load_named
from fleet.vocabulary.measures import LOSSES, METRICS, MeasureWord, canonical_name
from fleet.vocabulary.optimizers import COMMON, OPTIMIZERS, OptimizerWord
from fleet.vocabulary.schedules import SCHEDULES, is_schedule
from fleet.vocabulary.torch_measures import TORCH_LOSSES, TORCH_METRICS
from fleet.vocabulary.torch_optimizers import ARGUMENTS, TORCH_OPTIMIZERS, UNUSABLE
from fleet.vocabulary.torch_schedules import TORCH_SCHEDULES

Word = TypeVar("Word")
Table: TypeAlias = Mapping[str, Word] | tuple[str, ...] | None
# (fleet.engines.base.EngineContext) -> fleet.engines.base.Engine, which a spec does not import.
Make = Callable[..., Any]


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
        optimizers: name in lower case -> description.
        schedules: name -> function of a step and its arguments that returns a learning rate.
        losses, metrics: name in snake case -> description.
    """

    optimizers: Mapping[str, OptimizerWord]
    schedules: Mapping[str, Callable[..., float]]
    losses: Mapping[str, MeasureWord]
    metrics: Mapping[str, MeasureWord]


@dataclass(frozen=True)
class Known:
    """The parts of ``train`` that an engine supports; None stands for everything in Keras.

    Attributes:
        optimizers, schedules, losses, metrics: names of :mod:`fleet.vocabulary`, written as in its
            tables; or tables of the engine's own, as in :class:`Words`.
        precisions: values of ``train.precision``.
        own: whether the engine accepts import paths of custom functions instead of names.
        own_optimizers_take: keys of ``train.optimizer`` that go with such an optimizer, besides
            ``name`` and ``learning_rate``.
        unusable_optimizers: name of an optimizer of the library -> why it cannot be used; what can
            be used instead.
        accumulates: whether it averages the gradients of several steps.
        compiles: whether XLA can compile its steps.
        own_steps: whether it accepts a function of the user as a training step.
        several_optimizers: whether such a step may have several optimizers.
        compiles_modules: whether ``torch.compile`` can compile its modules.
        starts: whether networks can start from the weights of a file and freeze some of them; its
            trainables are then :class:`fleet.engines.base.SupportsPretrained`.
        batch_transforms: whether networks train on the batches of
            :mod:`fleet.engines.batch_transforms`.
        fuses: whether equal networks can train as one; the engine is then
            :class:`fleet.engines.fusing.SupportsFusing`.
    """

    optimizers: Table[OptimizerWord] = None
    schedules: Table[Callable[..., float]] = None
    losses: Table[MeasureWord] = None
    metrics: Table[MeasureWord] = None
    precisions: tuple[str, ...] | None = None
    own: bool = True
    own_optimizers_take: frozenset[str] = frozenset({"args"})
    unusable_optimizers: Mapping[str, str] = field(default_factory=dict)
    accumulates: bool = True
    compiles: bool = True
    own_steps: bool = False
    several_optimizers: bool = False
    compiles_modules: bool = False
    starts: bool = False
    batch_transforms: bool = False
    fuses: bool = False


@dataclass(frozen=True)
class EngineInfo:
    """The description of an engine.

    Args:
        name: the name in specs.
        make: makes the engine of a trainer from a :class:`fleet.engines.base.EngineContext`: a
            function, or its import path. In the table the path begins with a dot and is relative to
            :mod:`fleet.engines`, whose registry completes it: engines import specs, so specs name
            no module of theirs.
        help: what the engine does, in one line.
        families: the families that it can build; None for all, including the functions of
            ``applications``. It need not build the result of a ``build:`` function.
        applications: the package with functions that a spec may name besides families; empty for
            none.
        knows: the optimizers, learning rate schedules, losses and metrics that it supports; a
            network with others fails.
        uses_gpus: whether each of its ranks uses a GPU.
        outputs_first: whether losses and metrics of the user take (outputs, targets), as in its
            library, if their parameters do not tell; else (targets, outputs).
        unwanted: packages that the library imports if they are installed, but does not need;
            blocking them makes it load faster.
        exports: whether finished networks are exported as files for use without FLEET.
        suffix: the suffix of these files.
        learns: whether networks improve; otherwise they train for the epochs in the rates file.
        finishes: whether its networks crop and flip samples themselves
            (:mod:`preprocess.deferred_augmentation`).
        joins_inputs: whether its families take samples of several inputs.
        takes_records: whether its networks take samples of several inputs.
        collates: whether it calls ``data.collate``.
        had_keras_optimizers: whether its optimizers were those of Keras in FLEET 0.2.
        takes_several_targets: whether its networks predict several targets.
        needs_rates: whether it can train only at known rates, so that ``schedule.rates`` is
            required.
        checkpoint_bytes: (parameters, slots) -> bytes of a checkpoint's arrays; slots are the
            values that the optimizer stores for each parameter.
        count_parameters: counts the parameters of a network that is not of a family: (architecture,
            input shape, classes, seed) -> count; a function, or its import path as for ``make``.
            None if only building the network would tell.
        join: joins several exported networks: (files, weight of each, kind of the targets, or a
            :class:`preprocess.record_target.RecordTarget` of several) ->
            :class:`fleet.engines.base.ExportedEnsemble`; a function, or its import path as for
            ``make``. None if an export cannot be loaded again.
        to_onnx: writes an exported network as ONNX: (its file, the file to write); a function, or
            its import path as for ``make``. None if the engine cannot.
        own_arrays: the last parts (after a slash) of the names of arrays that a network does not
            copy when it starts from the state of another one, such as its learning rate.
        no_memory: words in the errors of its library, or in the names of their types, that mean
            that memory ran out.
        library: the package that it needs to train; empty for none.
        extra: the extra of this project's package that installs the library; for messages.
        build_s: seconds to build a network and prepare its first step, for dry runs.
        problems: finds what is wrong with the engine's libraries on one node, for ``fleet doctor``:
            (the GPUs visible to a rank, ``resources.exchange``) -> pairs of a problem and its fix;
            a function, or its import path as for ``make``. None if there is nothing to check.
    """

    name: str
    make: str | Make
    help: str = ""
    families: frozenset[str] | None = None
    applications: str = "keras.applications"
    knows: Known = Known()  # noqa: RUF009 - frozen
    uses_gpus: bool = False
    outputs_first: bool = False
    unwanted: tuple[str, ...] = ()
    exports: bool = False
    suffix: str = ".keras"
    learns: bool = True
    finishes: bool = False
    joins_inputs: bool = False
    takes_records: bool = False
    collates: bool = False
    had_keras_optimizers: bool = False
    takes_several_targets: bool = False
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
        """The names that the engine accepts."""
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


# Kind of names -> the names of Keras, how a name is written, and a check of its description.
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
            knows=Known(starts=True, own_steps=True, batch_transforms=True),
            uses_gpus=True,
            exports=True,
            finishes=True,
            takes_records=True,
            join=".keras.ensemble_model:EnsembleModel",
            to_onnx=".keras.ensemble_model:to_onnx",
            no_memory=("ResourceExhaustedError",),
            problems=".keras.diagnostics:find_problems",
            library="tensorflow",
            extra="keras",
            build_s=8.0,  # between a small CNN's and a ResNet's
            # Keras plots galleries with the first and wraps models for the second; they take a
            # quarter of its import time.
            unwanted=("matplotlib", "sklearn"),
            takes_several_targets=True,
            count_parameters=".keras.models:count_keras_parameters",
        ),
        EngineInfo(
            "torch",
            ".torch.engine:TorchEngine",
            "PyTorch, which trains plain modules",
            had_keras_optimizers=True,
            families=frozenset({"cnn", "densenet", "mlp", "resnet", "softmax"}),
            applications="",
            uses_gpus=True,
            outputs_first=True,
            build_s=1.0,
            problems=".torch.diagnostics:find_problems",
            exports=True,
            suffix=".safetensors",
            finishes=True,
            takes_records=True,
            collates=True,
            library="torch",
            extra="torch",
            join=".torch.ensemble_model:EnsembleModule",
            to_onnx=".torch.export:to_onnx",
            no_memory=("OutOfMemoryError", "CUDA out of memory", "DefaultCPUAllocator"),
            knows=Known(
                optimizers=TORCH_OPTIMIZERS,
                own_optimizers_take=COMMON | ARGUMENTS | {"groups", "args"},
                unusable_optimizers=UNUSABLE,
                schedules={**SCHEDULES, **TORCH_SCHEDULES},
                compiles=False,
                own_steps=True,
                several_optimizers=True,
                compiles_modules=True,
                starts=True,
                batch_transforms=True,
                fuses=True,
                losses={**LOSSES, **TORCH_LOSSES},
                metrics={
                    name: word
                    for name, word in sorted(METRICS.items())
                    if not word.needs
                    and name
                    not in (
                        "binary_io_u",
                        "concordance_correlation",
                        "one_hot_mean_io_u",
                        "pearson_correlation",
                    )
                }
                | TORCH_METRICS,
            ),
            takes_several_targets=True,
            count_parameters=".torch.models:count_parameters",
        ),
        EngineInfo(
            "numpy",
            ".softmax:make",
            "softmax regression without TensorFlow, for experiments",
            families=frozenset({"softmax"}),
            finishes=True,
            joins_inputs=True,
            takes_records=True,
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
            # float64, always with a velocity
            checkpoint_bytes=lambda parameters, slots: 8 * parameters * 2,
        ),
        EngineInfo(
            "emulated",
            ".emulated:EmulatedEngine",
            "ranks sleep for as long as training would take, at known rates",
            learns=False,
            finishes=True,
            takes_records=True,
            needs_rates=True,
            knows=Known(starts=True),
            count_parameters=".keras.models:count_keras_parameters",
        ),
    )
}


def find_engine(name: str) -> EngineInfo:
    """Find the engine with a name or an import path ``module:engine``.

    Raises:
        UserError: no engine has this name, or the import path leads to something else.

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
        if isinstance(names, Mapping):
            wrong = [word for word in names if written(word) != word or not is_word(names[word])]
        else:
            wrong = [word for word in names if word not in of_keras]
        if wrong:
            raise UserError(
                f"engine {name!r} has invalid {kind}: {', '.join(map(repr, wrong))}; they should "
                "be names of fleet.vocabulary, or a table as in fleet.spec.engines.Words"
            )
    return replace(engine, name=name)
