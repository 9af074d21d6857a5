"""Export networks for use without FLEET: weights, and a note on how to build the module.

``best.safetensors`` holds the state_dict under the module's own names. ``best.json`` beside it has
the function and arguments that build the module, its input, the transforms of samples, and its
outputs. Nothing is pickled, so loading a network needs the code of its module.
"""

from __future__ import annotations

import builtins
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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

from fleet.engines.custom import import_folder
from fleet.engines.torch.models import Built, build_module
from fleet.errors import ModelError, UserError
from fleet.plugins import append_import_path
from fleet.spec import NetworkSpec
from fleet.spec.model import Architecture, wrapping_errors
from fleet.storage.files import atomic_write_with, write_json
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec

_ROWS = 2  # rows of the samples with which a network is exported to ONNX


class Exported(nn.Module):
    """An exported network.

    It takes samples as the stream carries them; images are (n, height, width, channels).

    Args:
        built: the module, and how to call it.
        scale: multiplier and offset of samples, float32 or float64; None to not scale them.
        is_mask: True to return logits of pixels as (n, height, width, classes).
    """

    multiplier: Tensor | None
    offset: Tensor | None

    def __init__(self, built: Built, scale: Sequence[Any] | None, is_mask: bool) -> None:
        super().__init__()
        self.module = built.module
        self.dtype = built.dtype
        self._differentiates = built.differentiates
        self._is_mask = is_mask
        multiplier, offset = (
            (None, None) if scale is None else (torch.from_numpy(np.array(part)) for part in scale)
        )
        self.register_buffer("multiplier", multiplier, persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Return logits, or values.

        Args:
            samples: (n, ...), as the stream carries them.
        """
        is_new = False
        if self.multiplier is not None and self.offset is not None:
            samples = (samples * self.multiplier).add_(self.offset)
            is_new = True
        if samples.dim() == 4:
            samples = samples.permute(0, 3, 1, 2)
        # A module may write into its inputs, so copy them unless they are new.
        inputs = samples.to(self.dtype, memory_format=torch.contiguous_format, copy=not is_new)
        is_evaluating = not torch.is_grad_enabled()
        with torch.enable_grad() if self._differentiates else nullcontext():
            outputs: Tensor = self.module(inputs).float()
        if is_evaluating:  # a module may enable gradients itself
            outputs = outputs.detach()
        if self._is_mask:
            return outputs.movedim(1, -1)
        return outputs


def note_of(
    network: NetworkSpec,
    sample: SampleSpec,
    dtype: torch.dtype,
    transforms: Sequence[Any],
    folder: Path,
) -> dict[str, Any]:
    """Return the content of ``best.json``.

    Args:
        network: network that is exported.
        sample: shape and type of its inputs.
        dtype: dtype of the module's inputs.
        transforms: transforms of the samples, before the engine receives them.
        folder: folder of the run.
    """
    architecture = network.architecture
    scale = sample.affine
    target = sample.target
    if architecture.kind == "family":
        origin = {"family": architecture.target}
        args = asdict(architecture.settings)
    else:
        origin = {
            "build": architecture.target,
            "beside": str(import_folder(architecture.target) or ""),
        }
        args = dict(architecture.args)
    return {
        **origin,
        "args": args,
        "input": {
            "shape": list(sample.input.shape),
            "dtype": sample.input.dtype,
            "called_with": str(dtype).removeprefix("torch."),
            "multiplier": None if scale is None else scale.multiplier.tolist(),
            "offset": None if scale is None else scale.offset.tolist(),
            **({"scaled_in": "float64"} if scale is not None and scale.precise else {}),
        },
        "transforms": list(transforms),
        "target": {"kind": target.kind, "outputs": target.outputs, "size": target.size},
        "classes": _names_in(folder, network.pipeline, target.outputs),
    }


def write(state: Mapping[str, np.ndarray], note: Mapping[str, Any], path: Path) -> None:
    """Write a network: first the note, so that weights always have one.

    Args:
        state: arrays by name.
        note: content of the ``.json`` file.
        path: path of the weights.

    Raises:
        StorageError: the files cannot be written, for example because the disk is full.
    """
    write_json(path.with_suffix(".json"), note)
    # safetensors writes the memory of an array as it is, so transposed arrays must be copied.
    ordered = {name: np.asarray(value, order="C") for name, value in state.items()}
    atomic_write_with(path, lambda file: save_file(ordered, file))


def _names_in(folder: Path, feed: str, outputs: int) -> list[str]:
    """Return the names of a run's classes, labels or values; numbers if they are unnamed."""
    try:
        record = json.loads(RunPaths(folder).sample.read_text(encoding="utf-8"))
        names = [str(name) for name in record.get("feeds", {}).get(feed, record)["target"]["names"]]
    except (OSError, ValueError, LookupError, TypeError):
        names = []
    return names or list(map(str, range(outputs)))


def load(file: Path) -> tuple[Exported, dict[str, Any]]:
    """Load an exported network and its note.

    Raises:
        UserError: a file or the module's code is missing, or the code has changed.
    """
    with wrapping_errors(f"{file} cannot be loaded:", UserError):
        note: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        input_note = note["input"]
        target_note = note["target"]
        architecture = Architecture(note.get("family") or note["build"], note["args"])
        image = ArraySpec(tuple(input_note["shape"]), input_note["dtype"])
        size = None if target_note["size"] is None else tuple(target_note["size"])
        target = TargetSpec(target_note["kind"], target_note["outputs"], size=size)
        precision = input_note.get("scaled_in", "float32")
        scale = None
        if input_note["multiplier"] is not None:
            scale = [np.array(input_note[part], precision) for part in ("multiplier", "offset")]
        dtype = getattr(torch, input_note["called_with"])
        weights = load_file(file)
    built = _built(file, note, architecture, image, target, scale is not None)
    with wrapping_errors(
        f"{file} does not fit the module that {architecture.target} builds, because its code has "
        "changed:",
        UserError,
    ):
        built.module.load_state_dict(weights)
    return Exported(built._replace(dtype=dtype), scale, target.semantics.is_of_pixels).eval(), note


def _built(
    file: Path,
    note: Mapping[str, Any],
    architecture: Architecture,
    image: ArraySpec,
    target: TargetSpec,
    is_scaled: bool,
) -> Built:
    """Build a network's module; its code may still be where it was at the export."""
    source_folder = note.get("beside")
    append_import_path(source_folder)
    try:
        return build_module(architecture, image, target, 0, is_scaled)
    except (UserError, ModelError) as error:
        location = f" or in {source_folder}" if source_folder else ""
        raise UserError(
            f"{file} needs the code of {architecture.target}, which should be in the current "
            f"folder{location}: {error}"
        ) from error


def to_onnx(file: Path, path: Path) -> None:
    """Write an exported network as ONNX; see :attr:`fleet.spec.engines.EngineInfo.to_onnx`.

    Args:
        file: the export.
        path: path of the ONNX file.

    Raises:
        UserError: ``onnx`` is not installed, or the traced module takes a fixed number of rows.
        Exception: the exporter does not support an operation.
    """
    if find_spec("onnx") is None:
        raise UserError("--onnx: onnx is not installed; install it: pip install onnx onnxscript")
    network, note = load(file)
    # The exporter warns about a missing torchvision.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    for lengths in (nullcontext, _lengths_traced):
        with lengths():
            traced = _write_onnx(network, note, path)
            if _takes_any_rows(network, note, path, traced):
                return
    path.unlink()
    raise UserError(
        f"{file} cannot be written as ONNX: its module uses the number of rows as a Python int, so "
        f"the ONNX file would accept only {_ROWS} rows; use x.shape[0], or -1 in shapes, and do "
        "not loop over rows"
    )


def _write_onnx(
    network: Exported, note: Mapping[str, Any], path: Path, rows: int = _ROWS, traced: bool = False
) -> bool:
    """Write a network as ONNX from a few rows; return True if it was traced.

    Args:
        network: network to write.
        note: note of the export.
        path: path of the ONNX file.
        rows: number of rows to call it with.
        traced: True to use the tracing exporter, which does not need onnxscript.
    """
    dtype = getattr(torch, note["input"]["dtype"])
    samples = torch.ones((rows, *note["input"]["shape"]), dtype=dtype)
    write = partial(
        torch.onnx.export,
        network,
        (samples,),
        str(path),
        input_names=["samples"],
        output_names=["outputs"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not traced:
            try:
                dynamic = ({0: torch.export.Dim("n")},)
                write(dynamo=True, external_data=False, verbose=False, dynamic_shapes=dynamic)
                return False
            except ImportError:
                pass
        write(dynamo=False, dynamic_axes={"samples": {0: "n"}, "outputs": {0: "n"}})
    return True


def _takes_any_rows(network: Exported, note: Mapping[str, Any], path: Path, traced: bool) -> bool:
    """Return True if an ONNX file takes any number of rows.

    Then its input is dynamic, and a different number of rows yields the same file.
    """
    import onnx

    if not traced:
        [samples] = onnx.load(path).graph.input
        return bool(samples.type.tensor_type.shape.dim[0].dim_param)
    comparison = path.with_name(f"{path.name}.other")
    try:
        _write_onnx(network, note, comparison, _ROWS + 1, traced=True)
        return comparison.read_bytes() == path.read_bytes()
    finally:
        comparison.unlink(missing_ok=True)


@contextmanager
def _lengths_traced() -> Iterator[None]:
    """Let ``len(x)`` of a tensor return ``x.shape[0]``, which exporters can trace."""
    plain = builtins.len
    builtins.len = lambda x: x.shape[0] if isinstance(x, Tensor) and x.dim() else plain(x)
    try:
        yield
    finally:
        builtins.len = plain
