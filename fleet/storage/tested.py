"""What finished networks came to on the test data, each in a file of its own: it is found out once."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

from fleet.domain.network import EpochRecord, Judged, stream_epochs
from fleet.domain.record import as_json
from fleet.storage.files import write_json


def write_tested(path: Path, test: str, history: Sequence[EpochRecord], tested: Judged) -> None:
    """Keep what a network came to.

    Args:
        test: which test data that was on.
        history: of the network.
    """
    write_json(path, as_json({**dataclasses.asdict(tested), "test": test, "history": stream_epochs(history)}))


def read_tested(path: Path, test: str, history: Sequence[EpochRecord]) -> Judged | None:
    """What a network came to; None where it was not judged yet, or had another history, or there was other test data.

    Args:
        test, history: as they are now.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if (kept["test"], kept["history"]) != (test, stream_epochs(history)):
            return None
        loss, accuracy = (math.nan if kept[name] is None else float(kept[name]) for name in ("loss", "accuracy"))
        metrics = {str(name): None if value is None else float(value)
                   for name, value in kept.get("metrics", {}).items()}
        return Judged(loss, accuracy, int(kept["samples"]), metrics)
    except (OSError, ValueError, LookupError, TypeError):  # nobody can tell: it is judged again
        return None
