"""Examine TensorFlow and Horovod on this node, for ``fleet doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.spec.model import one_line
from launch.errors import pluralize

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

        import fleet.engines.keras.engine  # noqa: F401 - imports everything that a run imports
        from fleet.engines.keras.devices import find_gpus
        from fleet.engines.keras.exchange import find_horovod
    except Exception as error:  # an incompatible library may raise anything
        return [
            (
                f"TensorFlow cannot be imported: {one_line(error)[:200]}",
                "install it on every node: pip install 'tensorflow[and-cuda]==2.18.*', or load the "
                "TensorFlow module",
            )
        ]
    visible = len(find_gpus())
    return list(problems_from(tf.__version__, visible, find_horovod()[1], gpus, exchange))


def problems_from(
    tensorflow: str, visible: int, horovod: str, gpus: Sequence[str], exchange: str
) -> Iterator[tuple[str, str]]:
    """Yield the problems that follow from facts about this node.

    Args:
        tensorflow: version of TensorFlow.
        visible: number of GPUs that TensorFlow sees.
        horovod: ``ready``, ``missing``, or why it cannot be used.
        gpus: names of the GPUs of this node.
        exchange: ``resources.exchange`` of the spec.
    """
    if gpus and not visible:
        yield (
            f"this node has {pluralize(len(gpus), 'GPU')}, but TensorFlow {tensorflow} sees none",
            "install the CUDA libraries: pip install 'tensorflow[and-cuda]==2.18.*', or load the "
            "TensorFlow module",
        )
    elif horovod not in ("ready", "missing") and exchange != "mpi":
        yield (
            f"Horovod does not work with TensorFlow {tensorflow}: {horovod}",
            f"rebuild it: {_BUILD}; or set resources.exchange: mpi",
        )
    elif horovod == "missing" and (exchange == "horovod" or (exchange == "auto" and visible)):
        yield (
            "Horovod is not installed",
            f"install it: {_BUILD}; or set resources.exchange: mpi, which is slower",
        )
