"""What TensorFlow and Horovod say of themselves on this node, for ``fleet doctor``."""

from __future__ import annotations

from dataclasses import dataclass


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
        return Libraries(problem=_line(error))
    return Libraries(tf.__version__, "", len(tf.config.list_physical_devices("GPU")), _horovod())


def _horovod() -> str:
    try:
        import horovod.tensorflow as horovod
    except ModuleNotFoundError as error:
        return "missing" if (error.name or "").split(".")[0] == "horovod" else _line(error)
    except Exception as error:
        return _line(error)
    return "ready" if horovod.mpi_built() else "it is built without MPI"


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
