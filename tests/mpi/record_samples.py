"""Run the main job and record every sample that a network gets (test_stream.py)."""

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
_training = {}


def epoch_id(epoch):
    """Return what identifies an epoch of a network."""
    return epoch.path[0] if epoch.path else epoch.number


def _record(stream_class):
    original = stream_class.batches

    def batches(self, epoch, start, batch, group, consumed=()):
        with open(_folder / f"{os.getpid()}.jsonl", "a") as file:
            for item in original(self, epoch, start, batch, group, consumed):
                file.write(
                    json.dumps(
                        {
                            "network": _training["name"],
                            "epoch": epoch_id(item.epoch),
                            "position": item.position,
                            "rank": group.rank,
                            "samples": [Numbered.number(image) for image in item.inputs],
                            "labels": item.targets.tolist(),
                            "sums": [zlib.crc32(image.tobytes()) for image in item.inputs],
                        }
                    )
                    + "\n"
                )
                file.flush()
                yield item

    stream_class.batches = batches


def _record_network():
    for name in ("_train", "_join"):
        original = getattr(trainer.Trainer, name)

        def obey(self, order, original=original):
            _training["name"] = order.network.name
            return original(self, order)

        setattr(trainer.Trainer, name, obey)


_record(reader.Reader)
_record(ring.RingReader)
_record(local_batches.LocalBatches)
_record_network()
sys.exit(main())
