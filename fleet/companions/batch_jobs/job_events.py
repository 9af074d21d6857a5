"""Records of jobs that chains and harvests share, as lines of JSON with the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fleet.domain.json_record import JsonRecord, OmitDefault, from_json
from fleet.storage.json_lines import read_lines


class JobSubmitted(JsonRecord, word="submitted"):
    """A job was submitted: the first of a chain, or any of a harvest.

    Attributes:
        nodes: number of nodes that it requests, in a harvest.
    """

    job: str
    nodes: Annotated[int, OmitDefault] = 0


class JobStarted(JsonRecord, word="begun"):
    """The launch of a job is about to start, for the first time or again.

    Attributes:
        log_bytes: size of the launch's event log at that time.
    """

    job: str
    log_bytes: Annotated[int, OmitDefault] = 0


class ChainCancelled(JsonRecord, word="called_off"):
    """A user wants no more jobs (``--end``)."""


def read_notes(
    path: Path, kinds: Sequence[type[JsonRecord]]
) -> Iterator[tuple[datetime | None, Any]]:
    """Yield all notes of a file in order with their times; damaged lines are skipped."""
    by_word = {kind.word: kind for kind in kinds}
    for line in read_lines(path):
        note = from_json(line, by_word)
        if note is None:
            continue
        try:
            time = datetime.fromisoformat(str(line.get("time")))
        except ValueError:
            time = None
        yield time, note
