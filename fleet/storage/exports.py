"""Of which checkpoint an export is: a network that was trained on since then is exported again."""

from __future__ import annotations

import json

from fleet.domain.network import State, stream_epochs
from fleet.errors import CheckpointError
from fleet.storage.checkpoint import read_state
from fleet.storage.files import replacing
from fleet.storage.lease import Fence, check_of
from fleet.storage.paths import RunPaths


def note_export(paths: RunPaths, name: str, exported: State, fence: Fence | None = None) -> None:
    """Keep which state a network's export is of; after the export itself, so at worst it is exported once more.

    Raises:
        StorageError: the disk is full, ...
        LeaseLost: another launch has taken the run over.
    """
    with replacing(paths.export_note(name), check=check_of(fence)) as file:
        json.dump({"epoch": exported.epoch, "history": stream_epochs(exported.history)}, file)
        file.write("\n")


def is_exported(paths: RunPaths, name: str, keep: str, suffix: str) -> bool:
    """Whether a network's export is there, and is of the checkpoint that would be exported now.

    An export of 0.1.0 does not say of which it is; it is taken as it is, and so is one whose checkpoint cannot be read
    any more.

    Args:
        keep: ``checkpoint.keep`` of the spec.
        suffix: of what the engine exports.
    """
    if not paths.exported(name, suffix).exists():
        return False
    source = paths.last(name) if keep == "last" else paths.best(name)
    try:
        noted = json.loads(paths.export_note(name).read_text(encoding="utf-8"))["history"]
        return noted == stream_epochs(read_state(source, with_arrays=False).history)
    except (FileNotFoundError, CheckpointError):
        return True
    except (OSError, ValueError, LookupError, TypeError):  # nobody can tell
        return False
