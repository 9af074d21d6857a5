"""Start NVIDIA's Multi-Process Service, so that kernels of processes on a shared GPU overlap.

Without it, processes on one GPU take turns, and little is gained. Each shared GPU has a daemon,
which needs no privileges. (Tested with a fake ``nvidia-cuda-mps-control`` only, not on a GPU yet.)
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LOG = "CUDA_MPS_LOG_DIRECTORY"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_START_S = 30  # a daemon may take this long to start

# A daemon ends after its clients. The process that stops it may be one of them, so it does not
# wait.
_QUIT = (
    f'folder=$1; shift; (for pipe; do echo quit | {_PIPE}="$pipe" {CONTROL}; done; rm -rf '
    '"$folder") '
    "</dev/null >/dev/null 2>&1 &"
)


@dataclass(frozen=True)
class Daemons:
    """The daemons of a node.

    Attributes:
        folder: holds their pipes and logs; its path is short enough for a socket.
        gpus: the GPUs, by the system's names, one daemon each.
    """

    folder: Path
    gpus: tuple[str, ...]

    def environment(self, gpu: str) -> dict[str, str]:
        """Return the variables that a process must set to use a GPU through its daemon.

        A daemon shows its clients only its GPU, as number 0.

        >>> Daemons(Path("/tmp/mps"), ("4", "5")).environment("5")
        {'CUDA_MPS_PIPE_DIRECTORY': '/tmp/mps/1', 'CUDA_VISIBLE_DEVICES': '0'}
        """
        return {_PIPE: str(self._pipe(gpu)), _VISIBLE: "0"}

    def stop(self, environment: Mapping[str, str]) -> None:
        """Stop the daemons once no process uses them, and delete their logs; do not wait."""
        pipes = [str(self._pipe(gpu)) for gpu in self.gpus]
        subprocess.run(
            ["sh", "-c", _QUIT, CONTROL, str(self.folder), *pipes],
            env=dict(environment),
            check=False,
            start_new_session=True,
        )

    def _pipe(self, gpu: str) -> Path:
        return self.folder / str(self.gpus.index(gpu))


def start(gpus: Iterable[str], environment: Mapping[str, str]) -> tuple[Daemons | None, str]:
    """Start a daemon for each of some GPUs.

    Args:
        gpus: by the system's names.
        environment: the variables of this process.

    Returns:
        The daemons, or None and the reason: MPS is not installed, the user runs it already
        (``CUDA_MPS_PIPE_DIRECTORY`` is set), or a daemon did not start, and the others were
        stopped.
    """
    names = tuple(sorted(set(gpus)))
    if _PIPE in environment:
        return None, f"{_PIPE} is set: its daemon is used as it is"
    if shutil.which(CONTROL, path=environment.get("PATH")) is None:
        return None, f"{CONTROL} is not installed"
    daemons = Daemons(Path(tempfile.mkdtemp(prefix="fleet-mps-", dir="/tmp")), names)
    for index, gpu in enumerate(names):
        pipe = daemons.folder / str(index)
        pipe.mkdir()
        problem = _start({**environment, _PIPE: str(pipe), _LOG: str(pipe), _VISIBLE: gpu})
        if problem:
            daemons.stop(environment)
            return None, f"GPU {gpu}: {CONTROL} {problem}"
    return daemons, ""


def _start(environment: Mapping[str, str]) -> str:
    """Start a daemon; return the error, or "" if it started."""
    try:
        # Its output is not read, because the daemon would keep the pipe open.
        ended = subprocess.run(
            [CONTROL, "-d"],
            env=dict(environment),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_START_S,
        )
    except subprocess.TimeoutExpired:
        return f"does not answer within {_START_S} s"
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    if ended.returncode:
        return f"ended with status {ended.returncode}"
    return ""
