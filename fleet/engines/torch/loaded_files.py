"""Keep the files from which a user's function loads weights with the networks that it builds.

A function may fill a backbone by ``torch.load("backbone.pt")``. An export stores all weights, but
loading it calls the function again, which needs the file. So the files that a function loads are
recorded while it runs, copied beside the export, and read from there when the export is loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fleet.storage.files import atomic_write_with

# The functions by which weights are loaded: (module, name).
_LOADERS: tuple[tuple[Any, str], ...] = ((torch, "load"), (safetensors.torch, "load_file"))


@contextmanager
def recording_loads(copies: Mapping[str, Path] | None = None) -> Iterator[dict[str, Path]]:
    """Record the files that are loaded inside the context.

    Args:
        copies: the path of a file as a function writes it -> the copy to load instead.

    Returns:
        The path of each file as the function wrote it -> its absolute path.
    """
    loaded: dict[str, Path] = {}
    plain = {name: getattr(module, name) for module, name in _LOADERS}

    def recorded(load: Callable[..., Any]) -> Callable[..., Any]:
        def load_file(file: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(file, str | os.PathLike):
                return load(file, *arguments, **options)
            written = os.fspath(file)
            copy = (copies or {}).get(written)
            if copy is not None and copy.is_file():
                return load(copy, *arguments, **options)
            content = load(file, *arguments, **options)
            loaded[written] = Path(written).absolute()
            return content

        return load_file

    for module, name in _LOADERS:
        setattr(module, name, recorded(plain[name]))
    try:
        yield loaded
    finally:
        for module, name in _LOADERS:
            setattr(module, name, plain[name])


def _copy(file: Path, copy: Path) -> None:
    shutil.copyfile(file, copy)


def keep_files(files: Mapping[str, Path], export: Path) -> dict[str, str]:
    """Copy files to the folder ``files`` beside an export.

    Copies are named by their content, because an export is written under another name first.

    Args:
        files: the path of each file as the function writes it -> its absolute path.
        export: path of the export.

    Returns:
        The path of each file as written -> the path of its copy, relative to the folder of the
        export. Files that no longer exist are left out.

    Raises:
        StorageError: a file cannot be written.
    """
    copies = {}
    for written, file in sorted(files.items()):
        if not file.is_file():
            continue
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        copy = export.with_name("files") / f"{digest[:12]}-{file.name}"
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            atomic_write_with(copy, partial(_copy, file))
        copies[written] = f"{copy.parent.name}/{copy.name}"
    return copies
