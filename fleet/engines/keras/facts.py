"""What TensorFlow and Horovod say of themselves on this node, for ``fleet doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.spec.model import one_line
from fleet.units import counted


@dataclass(frozen=True)
class Libraries:
    """What there is for the Keras engine.

    Args:
        tensorflow: its version; nothing where it cannot be imported.
        problem: why it cannot.
        gpus: that it sees.
        horovod: ``ready``, ``missing``, or why it cannot be used.
    """

    tensorflow: str = ""
    problem: str = ""
    gpus: int = 0
    horovod: str = "missing"


def libraries() -> Libraries:
    """Import both and look; takes seconds."""
    try:
        import tensorflow as tf

        import fleet.engines.keras.engine  # noqa: F401 - as much as the run itself
    except Exception as error:  # a library that does not fit raises what it likes
        return Libraries(problem=one_line(error)[:200])
    return Libraries(tf.__version__, "", len(tf.config.list_physical_devices("GPU")), _horovod())


def problems(gpus: Sequence[str], exchange: str) -> list[tuple[str, str]]:
    """What would go wrong with TensorFlow and Horovod; see :attr:`fleet.spec.engines.EngineInfo.problems`."""
    return list(problems_of(libraries(), gpus, exchange))


def problems_of(found: Libraries, gpus: Sequence[str], exchange: str) -> Iterator[tuple[str, str]]:
    """The same, of what was found."""
    if found.problem:
        yield (f"TensorFlow cannot be imported: {found.problem}",
               "install it on every node: pip install 'tensorflow[and-cuda]==2.18.*', or load its module")
        return
    if gpus and not found.gpus:
        yield (f"{counted(len(gpus), 'GPU')} shown, but TensorFlow {found.tensorflow} sees none",
               "it needs the CUDA libraries: pip install 'tensorflow[and-cuda]==2.18.*', or load its module")
    build = "HOROVOD_WITH_MPI=1 pip install --no-cache-dir --no-build-isolation --force-reinstall --no-deps horovod"
    if found.horovod not in ("ready", "missing") and exchange != "mpi":
        yield (f"Horovod does not fit TensorFlow {found.tensorflow}: {found.horovod}",
               f"build it again: {build}; or set resources.exchange: mpi")
    elif found.horovod == "missing" and (exchange == "horovod" or (exchange == "auto" and found.gpus)):
        yield "Horovod is not installed", f"{build}; or set resources.exchange: mpi, which is slower"


def _horovod() -> str:
    try:
        import horovod.tensorflow as horovod
    except ModuleNotFoundError as error:
        return "missing" if (error.name or "").split(".")[0] == "horovod" else one_line(error)[:200]
    except Exception as error:
        return one_line(error)[:200]
    return "ready" if horovod.mpi_built() else "it is built without MPI"
