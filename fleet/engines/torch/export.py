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
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor, nn

from fleet.engines.custom import import_folder
from fleet.engines.torch.collation import Collation
from fleet.engines.torch.loaded_files import keep_files
from fleet.engines.torch.models import (
    Built,
    InputDtype,
    Samples,
    build_module,
    call_module,
    describe_outputs,
    join_outputs,
)
from fleet.errors import ModelError, UserError
from fleet.plugins import append_import_path
from fleet.spec import NetworkSpec
from fleet.spec.model import Architecture, wrapping_errors
from fleet.storage.files import atomic_write_with, write_json
from fleet.storage.paths import RunPaths
from preprocess.base import INPUT
from preprocess.record_target import RecordTarget, record_of
from preprocess.sample import ArraySpec, InputSpec, RecordSpec, SampleSpec
from preprocess.target import TargetSpec

_ROWS = 2  # rows of the samples with which a network is exported to ONNX


class Exported(nn.Module):
    """An exported network.

    It takes samples as the stream carries them; images are (n, height, width, channels).

    Args:
        built: the module, and how to call it.
        scale: multiplier and offset of samples, float32 or float64; None to not scale them. Of
            several inputs, by name.
        target: target of a sample. Logits of pixels are (n, height, width, classes); outputs for
            several targets lie side by side, (n, total).
        collation: makes the inputs of the module of a batch; None without.
    """

    def __init__(
        self,
        built: Built,
        scale: Sequence[Any] | Mapping[str, Any] | None,
        target: TargetSpec,
        collation: Collation | None = None,
    ) -> None:
        super().__init__()
        self.module = built.module
        self.files = built.files
        self._names: tuple[str, ...] = ()
        if isinstance(built.dtype, dict):
            scales = scale if isinstance(scale, Mapping) else {}
            self._names = tuple(built.dtype)
            preparations = [
                Preparation(dtype, scales.get(name)) for name, dtype in built.dtype.items()
            ]
        else:
            assert not isinstance(scale, Mapping)
            preparations = [Preparation(built.dtype, scale)]
        self._preparations = nn.ModuleList(preparations)
        self._differentiates = built.differentiates
        self.predicts = built.predicts
        self._targets = record_of(target) if target.parts else None
        self._is_mask = target.semantics.is_of_pixels and not target.parts
        self._collation = collation

    def forward(self, samples: Samples, is_scaled: bool = False) -> Tensor:
        """Return logits, or values.

        Args:
            samples: (n, ...), as the stream carries them; of several inputs, by name.
            is_scaled: True if they are scaled.
        """
        inputs = self.prepare(samples, is_scaled)
        is_evaluating = not torch.is_grad_enabled()
        with torch.enable_grad() if self._differentiates else nullcontext():
            returned = call_module(self.module, inputs)
            if self._targets is not None:
                returned = join_outputs(returned, self._targets)
            if not isinstance(returned, Tensor):  # in training only
                raise ModelError(describe_outputs(returned))
            outputs = returned.float()
        if is_evaluating:  # a module may enable gradients itself
            outputs = outputs.detach()
        if self._is_mask:
            return outputs.movedim(1, -1)
        return outputs

    def prepare(self, samples: Samples, is_scaled: bool = False) -> Samples:
        """Return new inputs as the module takes them: scaled, with channels first.

        Args:
            samples: (n, ...), as the stream carries them; of several inputs, by name.
            is_scaled: True if they are scaled.
        """
        if isinstance(samples, Tensor):
            prepared: Tensor = self._preparations[0](samples, is_scaled)
            return prepared
        prepared_samples = {
            name: preparation(samples[name], is_scaled)
            for name, preparation in zip(self._names, self._preparations, strict=True)
        }
        if self._collation is None:
            return prepared_samples
        collated: Samples = self._collation(prepared_samples)
        return collated


class Preparation(nn.Module):
    """What is done to an input before the module takes it.

    Args:
        dtype: dtype in which the module takes it.
        scale: multiplier and offset, float32 or float64; None to not scale it.
    """

    multiplier: Tensor | None
    offset: Tensor | None

    def __init__(self, dtype: torch.dtype, scale: Sequence[Any] | None) -> None:
        super().__init__()
        self._dtype = dtype
        multiplier, offset = (
            (None, None) if scale is None else (torch.from_numpy(np.array(part)) for part in scale)
        )
        self.register_buffer("multiplier", multiplier, persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, samples: Tensor, is_scaled: bool = False) -> Tensor:
        """Return a new input, (n, ...), scaled, with channels first.

        Args:
            samples: (n, ...), as the stream carries them.
            is_scaled: True if they are scaled.
        """
        is_new = False
        if self.multiplier is not None and self.offset is not None and not is_scaled:
            samples = (samples * self.multiplier).add_(self.offset)
            is_new = True
        if samples.dim() == 4:
            samples = samples.permute(0, 3, 1, 2)
        # A module may write into its inputs, so copy them unless they are new.
        return samples.to(self._dtype, memory_format=torch.contiguous_format, copy=not is_new)


def note_of(
    network: NetworkSpec,
    sample: SampleSpec,
    dtype: InputDtype,
    transforms: Any,
    folder: Path,
) -> dict[str, Any]:
    """Return the content of ``best.json``.

    Args:
        network: network that is exported.
        sample: shape and type of its inputs.
        dtype: dtype of the module's input; of several, by name.
        transforms: transforms of the samples, before the engine receives them: a list; of several
            inputs, by name.
        folder: folder of the run.
    """
    architecture = network.architecture
    target = sample.target
    if isinstance(dtype, dict):
        inputs: dict[str, Any] = {
            "inputs": {
                name: _note_of_input(part, dtype[name]) for name, part in sample.parts.items()
            }
        }
        assert isinstance(sample.input, RecordSpec)
        if sample.input.padded:
            inputs["padded"] = list(sample.input.padded)
        if sample.input.collate:
            inputs["collate"] = sample.input.collate
    else:
        inputs = {"input": _note_of_input(sample, dtype)}
    if architecture.kind == "family":
        origin: dict[str, Any] = {"family": architecture.target}
        args = asdict(architecture.settings)
    else:
        origin = {
            "build": architecture.target,
            "beside": str(import_folder(architecture.target) or ""),
        }
        args = dict(architecture.args)
        if architecture.output is not None:
            origin["output"] = architecture.output
    return {
        **origin,
        "args": args,
        **({} if network.train.step is None else {"step": network.train.step}),
        **inputs,
        "transforms": dict(transforms) if isinstance(transforms, Mapping) else list(transforms),
        **_note_of_target(target, folder, network.pipeline),
    }


def _note_of_target(target: TargetSpec, folder: Path, pipeline: str) -> dict[str, Any]:
    """Return what a note says of the outputs; of several targets, by name."""
    if not target.parts:
        return {
            "target": {"kind": target.kind, "outputs": target.outputs, "size": target.size},
            "classes": _names_in(folder, pipeline, target.outputs),
        }
    return {
        "targets": {
            name: {
                "kind": part.kind,
                "outputs": part.outputs,
                "size": part.size,
                "classes": part.names or list(map(str, range(part.outputs))),
            }
            for name, part in target.parts.items()
        }
    }


def _noted_target(note: Mapping[str, Any]) -> TargetSpec:
    """Return the target that a note describes, or several."""
    if "targets" in note:
        return RecordTarget.of({name: _noted_part(part) for name, part in note["targets"].items()})
    return _noted_part(note["target"])


def _noted_part(described: Mapping[str, Any]) -> TargetSpec:
    size = None if described["size"] is None else tuple(described["size"])
    return TargetSpec(described["kind"], described["outputs"], size=size)


def _note_of_input(sample: SampleSpec, dtype: torch.dtype) -> dict[str, Any]:
    scale = sample.affine
    return {
        "shape": list(sample.input.shape),
        "dtype": sample.input.dtype,
        "called_with": str(dtype).removeprefix("torch."),
        "multiplier": None if scale is None else scale.multiplier.tolist(),
        "offset": None if scale is None else scale.offset.tolist(),
        **({"scaled_in": "float64"} if scale is not None and scale.precise else {}),
    }


def _noted_arrays(note: Mapping[str, Any]) -> InputSpec:
    """Return the shape and type of the input in a note, or of several."""
    arrays = {
        name: ArraySpec(tuple(described["shape"]), described["dtype"])
        for name, described in _noted_inputs(note).items()
    }
    if "inputs" not in note:
        return arrays[INPUT]
    return replace(
        RecordSpec.of(arrays),
        padded=tuple(note.get("padded", ())),
        collate=note.get("collate", ""),
    )


def _noted_inputs(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a note says of each input."""
    inputs: dict[str, Any] = note["inputs"] if "inputs" in note else {INPUT: note["input"]}
    return inputs


def _noted_scale(described: Mapping[str, Any]) -> list[np.ndarray] | None:
    """Return the multiplier and the offset in a note of an input."""
    if described["multiplier"] is None:
        return None
    precision = described.get("scaled_in", "float32")
    return [np.array(described[part], precision) for part in ("multiplier", "offset")]


def write(
    state: Mapping[str, np.ndarray],
    note: Mapping[str, Any],
    path: Path,
    files: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """Write a network: first the note, so that weights always have one.

    Args:
        state: arrays by name.
        note: content of the ``.json`` file.
        path: path of the weights.
        files: files that the module's function loads, which are copied beside the weights; see
            :attr:`fleet.engines.torch.models.Built.files`.

    Raises:
        StorageError: the files cannot be written, for example because the disk is full.
    """
    if files:
        note = {**note, "files": keep_files(files, path)}
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
        inputs_note = _noted_inputs(note)
        architecture = Architecture(
            note.get("family") or note["build"], note["args"], note.get("output")
        )
        image = _noted_arrays(note)
        target = _noted_target(note)
        scales = {name: _noted_scale(described) for name, described in inputs_note.items()}
        dtypes: dict[str, torch.dtype] = {
            name: getattr(torch, described["called_with"])
            for name, described in inputs_note.items()
        }
        weights = load_file(file)
    is_record = isinstance(image, RecordSpec)
    is_scaled = {name: scale is not None for name, scale in scales.items()}
    built = _built(file, note, architecture, image, target, is_scaled)
    dtype = dtypes if is_record else dtypes[INPUT]
    scale = scales if is_record else scales[INPUT]
    with wrapping_errors(
        f"{file} does not fit the module that {architecture.target} builds, because its code has "
        "changed:",
        UserError,
    ):
        built.module.load_state_dict(weights)
    exported = Exported(built._replace(dtype=dtype), scale, target, Collation.of(image))
    return exported.eval(), note


def _built(
    file: Path,
    note: Mapping[str, Any],
    architecture: Architecture,
    image: InputSpec,
    target: TargetSpec,
    is_scaled: Mapping[str, bool],
) -> Built:
    """Build a network's module; its code may still be where it was at the export."""
    source_folder = note.get("beside")
    append_import_path(source_folder)
    copies = {written: file.parent / copy for written, copy in note.get("files", {}).items()}
    try:
        return build_module(architecture, image, target, 0, is_scaled, "step" in note, copies)
    except (UserError, ModelError) as error:
        location = f" or in {source_folder}" if source_folder else ""
        raise UserError(
            f"{file} needs the code of {architecture.target}, which should be in the current "
            f"folder{location}: {error}"
        ) from error


class _Positional(nn.Module):
    """A network that takes and returns tensors by position, as exporters need.

    Args:
        network: the network.
        names: names of its inputs, if it has several.
        target: several targets, whose outputs it returns as a tuple; None for one.
    """

    def __init__(
        self, network: Exported, names: Sequence[str], target: RecordTarget | None
    ) -> None:
        super().__init__()
        self.network = network
        self._names = names
        self._target = target

    def forward(self, *samples: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return logits, or values."""
        inputs = dict(zip(self._names, samples, strict=True)) if self._names else samples[0]
        outputs: Tensor = self.network(inputs)
        if self._target is None:
            return outputs
        return tuple(self._target.split_outputs(outputs, torch.reshape).values())


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
    names = list(note["inputs"]) if "inputs" in note else ["samples"]
    target = record_of(_noted_target(note)) if "targets" in note else None
    output_names = ["outputs"] if target is None else list(target.parts)
    is_plain = "inputs" not in note and target is None
    samples = tuple(
        torch.ones((rows, *array.shape), dtype=getattr(torch, array.dtype))
        for array in _noted_arrays(note).arrays.values()
    )
    write = partial(
        torch.onnx.export,
        network if is_plain else _Positional(network, names if "inputs" in note else (), target),
        samples,
        str(path),
        input_names=names,
        output_names=output_names,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not traced:
            try:
                dynamic: Any = tuple({0: torch.export.Dim("n")} for _ in names)
                if not is_plain:
                    dynamic = (dynamic,)  # of *samples
                write(dynamo=True, external_data=False, verbose=False, dynamic_shapes=dynamic)
                return False
            except ImportError:
                pass
        write(dynamo=False, dynamic_axes={name: {0: "n"} for name in (*names, *output_names)})
    return True


def _takes_any_rows(network: Exported, note: Mapping[str, Any], path: Path, traced: bool) -> bool:
    """Return True if an ONNX file takes any number of rows.

    Then its input is dynamic, and a different number of rows yields the same file.
    """
    import onnx

    if not traced:
        inputs = onnx.load(path).graph.input
        return all(bool(part.type.tensor_type.shape.dim[0].dim_param) for part in inputs)
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
