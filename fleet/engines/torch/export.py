"""What is written of a network for use without FLEET: its weights, and a note that says how it is built around them.

``best.safetensors`` holds the state_dict under the module's own names. ``best.json`` beside it says which function of
which arguments gives the module, what it takes, what was done to samples before, and what its outputs are. Nothing is
pickled, so loading a network takes the code of its module.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor, nn

from fleet.engines.torch.models import build_module
from fleet.errors import ModelError, UserError
from fleet.plugins import look_last_in
from fleet.spec import NetworkSpec
from fleet.spec.model import Architecture, told_as
from fleet.storage.files import replace_by, write_json
from fleet.storage.paths import RunPaths
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.target import TargetSpec


class Exported(nn.Module):
    """A network as it is used: it takes samples as the stream carries them, images as (n, height, width, channels).

    Args:
        dtype: of what the module is called with.
        scale: multiplier and offset of samples, float32 or float64, where they are scaled first.
        is_mask: whether its outputs are classes of pixels, which it gives as (n, height, width, classes).
    """

    multiplier: Tensor | None
    offset: Tensor | None

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, scale: Sequence[Any] | None, is_mask: bool
    ) -> None:
        super().__init__()
        self.module, self._dtype, self._is_mask = module, dtype, is_mask
        multiplier, offset = (
            (None, None) if scale is None else (torch.from_numpy(np.array(part)) for part in scale)
        )
        self.register_buffer("multiplier", multiplier, persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Logits, or values."""
        is_new = False
        if self.multiplier is not None and self.offset is not None:
            samples = (samples * self.multiplier).add_(self.offset)
            is_new = True
        if samples.dim() == 4:
            samples = samples.permute(0, 3, 1, 2)
        # A module may write into what it is given, which is the caller's memory unless it is new.
        inputs = samples.to(self._dtype, memory_format=torch.contiguous_format, copy=not is_new)
        outputs: Tensor = self.module(inputs).float()
        return outputs.movedim(1, -1) if self._is_mask else outputs


def note_of(
    network: NetworkSpec,
    sample: SampleSpec,
    dtype: torch.dtype,
    transforms: Sequence[Any],
    folder: Path,
) -> dict[str, Any]:
    """What ``best.json`` says.

    Args:
        dtype: of what the module is called with.
        transforms: of its samples, before the engine has them.
        folder: of the run.
    """
    built, scale, target = network.architecture, sample.affine, sample.target
    args = asdict(built.settings) if built.kind == "family" else dict(built.args)
    return {
        **(
            {"family": built.target}
            if built.kind == "family"
            else {"build": built.target, "beside": _folder_of(built.target)}
        ),
        "args": args,
        "input": {
            "shape": list(sample.image.shape),
            "dtype": sample.image.dtype,
            "called_with": str(dtype).removeprefix("torch."),
            "multiplier": None if scale is None else scale.multiplier.tolist(),
            "offset": None if scale is None else scale.offset.tolist(),
            **({"scaled_in": "float64"} if scale is not None and scale.precise else {}),
        },
        "transforms": list(transforms),
        "target": {"kind": target.kind, "outputs": target.outputs, "size": target.size},
        "classes": _names_in(folder, network.feed, target.outputs),
    }


def write(state: Mapping[str, np.ndarray], note: Mapping[str, Any], path: Path) -> None:
    """Write a network: its note first, so that the weights never stand there alone.

    Raises:
        StorageError: the disk is full, ...
    """
    write_json(path.with_suffix(".json"), note)
    replace_by(path, lambda file: save_file(dict(state), file))


def _names_in(folder: Path, feed: str, outputs: int) -> list[str]:
    """What the classes, labels or values of a run are called, as it keeps it; without names their numbers."""
    try:
        found = json.loads(RunPaths(folder).sample.read_text(encoding="utf-8"))
        names = [str(name) for name in found.get("feeds", {}).get(feed, found)["target"]["names"]]
    except (OSError, ValueError, LookupError, TypeError):
        names = []
    return names or list(map(str, range(outputs)))


def load(file: Path) -> tuple[Exported, dict[str, Any]]:
    """A network that was written, and its note.

    Raises:
        UserError: a part of it is missing, or its module's code, or this is other code by now.
    """
    with told_as(f"{file} cannot be loaded:", UserError):
        note: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        said, wanted = note["input"], note["target"]
        architecture = Architecture(note.get("family") or note["build"], note["args"])
        image = ImageSpec(tuple(said["shape"]), said["dtype"])
        size = None if wanted["size"] is None else tuple(wanted["size"])
        target = TargetSpec(wanted["kind"], wanted["outputs"], size=size)
        precision = said.get("scaled_in", "float32")
        scale = None
        if said["multiplier"] is not None:
            scale = [np.array(said[part], precision) for part in ("multiplier", "offset")]
        dtype = getattr(torch, said["called_with"])
        weights = load_file(file)
    module = _built(file, note, architecture, image, target, scale is not None)
    with told_as(
        f"{file} does not fit what {architecture.target} builds, whose code has changed since:",
        UserError,
    ):
        module.load_state_dict(weights)
    return Exported(module, dtype, scale, target.kind == "mask").eval(), note


def _built(
    file: Path,
    note: Mapping[str, Any],
    architecture: Architecture,
    image: ImageSpec,
    target: TargetSpec,
    is_scaled: bool,
) -> nn.Module:
    """A network's module, whose code may stand where it stood when the network was written."""
    look_last_in(beside := note.get("beside"))
    try:
        return build_module(architecture, image, target, 0, is_scaled).module
    except (UserError, ModelError) as error:
        where = f", or where it was: {beside}" if beside else ""
        raise UserError(
            f"{file} takes the code of {architecture.target}, which should be found from here{where}: "
            f"{error}"
        ) from error


def _folder_of(target: str) -> str:
    """Where the module of an import path was found; its top package, where it is in one."""
    name = target.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    return (
        ""
        if file is None
        else str(
            Path(file).absolute().parents[name.count(".") + (Path(file).name == "__init__.py")]
        )
    )


def to_onnx(file: Path, path: Path) -> None:
    """Write an exported network as ONNX; see :attr:`fleet.spec.engines.EngineInfo.to_onnx`.

    Raises:
        UserError: ``onnx`` is not installed.
        Exception: of the exporter, for what it does not know.
    """
    if find_spec("onnx") is None:
        raise UserError("--onnx: onnx is not installed: pip install onnx onnxscript")
    network, note = load(file)
    samples = torch.zeros(
        (2, *note["input"]["shape"]), dtype=getattr(torch, note["input"]["dtype"])
    )
    write = partial(
        torch.onnx.export,
        network,
        (samples,),
        str(path),
        input_names=["samples"],
        output_names=["outputs"],
    )
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(
        logging.ERROR
    )  # it misses torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            write(
                dynamo=True,
                external_data=False,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("n")},),
            )
        except (
            ImportError
        ):  # without onnxscript, or with one of another time: by the exporter before
            write(dynamo=False, dynamic_axes={"samples": {0: "n"}, "outputs": {0: "n"}})
