"""The main job, with a note of every sample that a network is given: run by test_stream.py under mpirun."""

import json
import os
import sys
import zlib
from pathlib import Path

from fleet.run import main
from fleet.runtime.training import trainer
from fleet.stream import local_batches, reader, ring
from tests.sources import Numbered

_folder = Path(os.environ["FLEET_TEST_RECORDS"])
_serving = {}


def first(epoch):
    """What tells an epoch from all others of its network."""
    return epoch.path[0] if epoch.path else epoch.number


def _record(stream_class):
    original = stream_class.batches

    def batches(self, epoch, start, batch, group, taken=()):
        with open(_folder / f"{os.getpid()}.jsonl", "a") as file:
            for item in original(self, epoch, start, batch, group, taken):
                file.write(
                    json.dumps(
                        {
                            "network": _serving["name"],
                            "epoch": first(item.epoch),
                            "position": item.position,
                            "rank": group.rank,
                            "samples": [Numbered.number(image) for image in item.images],
                            "labels": item.targets.tolist(),
                            "sums": [zlib.crc32(image.tobytes()) for image in item.images],
                        }
                    )
                    + "\n"
                )
                file.flush()
                yield item

    stream_class.batches = batches


def _note_network():
    for name in ("_train", "_join"):
        original = getattr(trainer.Trainer, name)

        def serve(self, order, original=original):
            _serving["name"] = order.network.name
            return original(self, order)

        setattr(trainer.Trainer, name, serve)


_record(reader.Reader)
_record(ring.RingReader)
_record(local_batches.LocalBatches)
_note_network()
sys.exit(main())
