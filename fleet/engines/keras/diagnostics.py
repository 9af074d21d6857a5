"""Examine TensorFlow and Horovod on this node, for ``fleet doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.spec.model import one_line
from fleet.units import pluralize

_BUILD = (
    "HOROVOD_WITH_MPI=1 pip install --no-cache-dir --no-build-isolation --force-reinstall "
    "--no-deps horovod"
)


def find_problems(gpus: Sequence[str], exchange: str) -> list[tuple[str, str]]:
    """Return problems of TensorFlow and Horovod with their remedies.

    See :attr:`fleet.spec.engines.EngineInfo.problems`.

    Args:
        gpus: names of the GPUs of this node.
        exchange: ``resources.exchange`` of the spec.
    """
    try:
        import tensorflow as tf

        import fleet.engines.keras.engine  # noqa: F401 - as much as the run itself
        from fleet.engines.keras.exchange import find_horovod
    except Exception as error:  # a library that does not fit raises what it likes
        return [
            (
                f"TensorFlow cannot be imported: {one_line(error)[:200]}",
                "install it on every node: pip install 'tensorflow[and-cuda]==2.18.*', or load its "
                "module",
            )
        ]
    seen = len(tf.config.list_physical_devices("GPU"))
    return list(problems_from(tf.__version__, seen, find_horovod()[1], gpus, exchange))


def problems_from(
    tensorflow: str, seen: int, horovod: str, gpus: Sequence[str], exchange: str
) -> Iterator[tuple[str, str]]:
    """Yield the problems that follow from facts about this node.

    Args:
        tensorflow: its version.
        seen: number of GPUs that it sees.
        horovod: ``ready``, ``missing``, or why it cannot be used.
        gpus: names of the GPUs of this node.
        exchange: ``resources.exchange`` of the spec.
    """
    if gpus and not seen:
        yield (
            f"{pluralize(len(gpus), 'GPU')} shown, but TensorFlow {tensorflow} sees none",
            "it needs the CUDA libraries: pip install 'tensorflow[and-cuda]==2.18.*', or load its "
            "module",
        )
    elif horovod not in ("ready", "missing") and exchange != "mpi":
        yield (
            f"Horovod does not fit TensorFlow {tensorflow}: {horovod}",
            f"build it again: {_BUILD}; or set resources.exchange: mpi",
        )
    elif horovod == "missing" and (exchange == "horovod" or (exchange == "auto" and seen)):
        yield (
            "Horovod is not installed",
            f"{_BUILD}; or set resources.exchange: mpi, which is slower",
        )
