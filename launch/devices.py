"""Find the GPUs that a rank may use: from the environment, or all GPUs of the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launch.base import call
from launch.binding import by_node, process_cores
from launch.errors import InputError, pluralize
from launch.gpu_libraries import LIBRARIES, has_library, memory_bytes
from launch.gpus import INTEL, MAKERS, NVIDIA, Gpu, Maker, counts_cards, installed_gpus, usable_gpus

# The values of `resources.device`.
DEVICES = ("auto", *MAKERS, "cpu")


def find_maker(
    environment: Mapping[str, str],
    device: str = "auto",
    sys: Path | None = None,
    dev: Path | None = None,
) -> Maker | None:
    """Return the maker of the GPUs that a rank uses; None if it uses none.

    Args:
        environment: the variables of the process.
        device: ``resources.device``; ``auto`` takes the maker whose GPUs are there, or else whose
            variables are set, as in a container that hides the files of its GPUs.
        sys: the folder ``/sys``.
        dev: the folder ``/dev``.
    """
    if device != "auto":
        return MAKERS.get(device)
    for maker in MAKERS.values():
        if usable_gpus(maker, environment, sys, dev):
            return maker
    return next(
        (
            maker
            for maker in MAKERS.values()
            if any(name in environment for name in maker.own_variables)
        ),
        None,
    )


def visible_gpus(
    environment: Mapping[str, str],
    device: str = "auto",
    sys: Path | None = None,
    dev: Path | None = None,
) -> tuple[str, ...]:
    """Return the GPUs that this rank may use, by the system's names.

    Args:
        environment, device, sys, dev: see :func:`find_maker`.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"})
    ('2', '3')
    >>> both = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}
    >>> visible_gpus(both, "rocm"), visible_gpus(both, "cpu")
    (('5',), ())
    """
    maker = find_maker(environment, device, sys, dev)
    if maker is None:
        return ()
    visible: tuple[str, ...] | None = None
    for group in maker.variables:
        variable = next((name for name in group if name in environment), None)
        if variable is not None:
            visible = _choose(environment[variable], visible)
    if visible is None:
        return usable_gpus(maker, environment, sys, dev)
    if maker is INTEL and counts_cards(environment):
        return tuple(dict.fromkeys(name.partition(".")[0] for name in visible))
    return visible


def _choose(text: str, visible: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names that a variable lists, as far as another variable shows them.

    All runtimes stop at the first invalid name: -1 and an empty list hide all GPUs.

    >>> _choose("1,-1,0", None), _choose("1,2,0", ("4", "5"))
    (('1',), ('5',))
    """
    chosen: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if visible is not None and name.isdecimal():
            if int(name) >= len(visible):
                break
            chosen.append(visible[int(name)])
        elif name in ("", "-1"):
            break
        else:
            chosen.append(name)
    return tuple(chosen)


def find_gpu(
    name: str, maker: Maker, environment: Mapping[str, str], sys: Path | None = None
) -> Gpu | None:
    """Return the GPU of a name in ``/sys``; None for names that are no numbers."""
    number = name.partition(".")[0]
    gpus = installed_gpus(maker, environment, sys)
    if number.isdecimal() and int(number) < len(gpus):
        return gpus[int(number)]
    return None


def memory_mib(
    name: str,
    maker: Maker = NVIDIA,
    environment: Mapping[str, str] | None = None,
    sys: Path | None = None,
    ask: Callable[[list[str]], str] = call,
) -> int | None:
    """Return the memory of a GPU in MiB; None if its driver does not report it.

    Args:
        name: the name of the GPU, as returned by :func:`visible_gpus`.
        maker: its maker.
        environment, sys: see :func:`find_maker`.
        ask: runs a command and returns its output.

    >>> memory_mib("1", ask=lambda command: "81559\\n")
    81559
    >>> memory_mib("0", ask=lambda command: "[N/A]")
    """
    gpu = find_gpu(name, maker, environment or {}, sys)
    size = memory_bytes(maker, name, gpu)
    if size is None and maker is NVIDIA:
        return _ask_nvidia_smi(name, ask)
    if size is None and gpu is not None:
        size = gpu.bytes
    return None if size is None else size // 2**20


def _ask_nvidia_smi(name: str, ask: Callable[[list[str]], str]) -> int | None:
    try:
        text = ask(
            [
                "nvidia-smi",
                f"--id={name}",
                "--query-gpu=memory.total",
                "--format=csv,noheader,nounits",
            ]
        ).strip()
    except (InputError, OSError):
        return None
    if text.isdecimal():
        return int(text)
    return None


def describe_devices(
    environment: Mapping[str, str], sys: Path | None = None, dev: Path | None = None
) -> dict[str, str]:
    """Describe the devices of this node in one line each, by their names in ``resources.device``.

    Args:
        environment, sys, dev: see :func:`find_maker`.

    >>> describe_devices({}, Path("/none"), Path("/none"))["rocm"]
    'no GPU of AMD'
    """
    lines = {
        maker.device: _describe_gpus(maker, environment, sys, dev) for maker in MAKERS.values()
    }
    return {**lines, "cpu": pluralize(process_cores().of_node, "core")}


def _describe_gpus(
    maker: Maker, environment: Mapping[str, str], sys: Path | None, dev: Path | None
) -> str:
    usable = usable_gpus(maker, environment, sys, dev)
    settings = [
        f"{name}={environment[name]}" for name in maker.own_variables if name in environment
    ]
    if not usable:
        remark = f", although {', '.join(settings)}" if settings else ""
        return f"no GPU of {maker.name}{remark}"
    visible = visible_gpus(environment, maker.device, sys, dev)
    parts = [f"{pluralize(len(usable), 'GPU')} of {maker.name}, {len(visible)} visible"]
    if settings:
        parts[0] += f" ({', '.join(settings)})"
    memory = memory_mib(usable[0], maker, environment, sys)
    parts.append("memory unknown" if memory is None else f"{memory} MiB each")
    if maker.device in LIBRARIES:
        parts.append(
            f"{LIBRARIES[maker.device]} {'answers' if has_library(maker) else 'is not installed'}"
        )
    return ", ".join(parts)


def gpus_per_node(visible: Sequence[Sequence[str]], node_of: Sequence[int]) -> int | None:
    """Return the number of GPUs of a node that its ranks see together; None if there are none.

    >>> gpus_per_node([["0"], ["1"], ["0"], ["1"]], [0, 0, 1, 1])
    2
    """
    return max((len(set().union(*names)) for names in by_node(visible, node_of)), default=0) or None
