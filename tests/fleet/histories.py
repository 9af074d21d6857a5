"""Made-up histories of networks, and what stands around them."""

from fleet.domain.network import EpochRecord
from fleet.spec import parse
from preprocess.sample import ImageSpec, SampleSpec


def record(epoch, loss=1.0, accuracy=0.5, val_loss=1.0, val_accuracy=0.5, stream_epoch=None, **more):
    """One epoch; whatever is not said is dull."""
    fields = {"learning_rate": 0.1, "samples": 60, "gpus": 1, "seconds": 2.0, "waited_s": 0.5, **more}
    return EpochRecord(epoch, epoch - 1 if stream_epoch is None else stream_epoch, loss, accuracy, val_loss,
                       val_accuracy, **fields)


def history(*val_accuracies):
    """Epochs with these accuracies of validation."""
    return tuple(record(epoch, val_accuracy=value) for epoch, value in enumerate(val_accuracies, start=1))


SAMPLE = SampleSpec(ImageSpec((4, 4, 1), "uint8"), 3)


def spec(*models, **parts):
    """A spec of networks for the numpy engine."""
    return parse({"models": list(models) or [{"family": "softmax"}], "resources": {"engine": "numpy"}, **parts})
