"""Data sets and model functions that specs of tests name by import path."""

import ctypes
import errno
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from fleet.errors import NetworkWarning
from launch.errors import InputError
from preprocess.base import RandomAccess, UnreadableSample
from preprocess.source import View, assign_folds
from tests.places import rank

SIDE, CLASSES = 4, ("a", "b", "c")


class Numbered(RandomAccess):
    """Small images that encode their index, and from which their class can be learned.

    The first two pixels hold the number of the sample; one row is bright, and says the class.
    """

    def __init__(self, count, seed, before=None):
        self.classes = CLASSES
        self.labels = np.arange(count) % len(CLASSES)
        rng = np.random.default_rng(seed)
        self._images = rng.integers(0, 100, (count, SIDE, SIDE, 1), np.uint8)
        self._images[np.arange(count), 1 + self.labels] += 100  # a row for each class
        self._images[:, 0, 0, 0], self._images[:, 0, 1, 0] = np.divmod(np.arange(count), 256)
        self._before = before
        self.word = f"sample of {count}, seed {seed},"

    def read(self, index):
        if self._before is not None:
            self._before(index)
        return self._images[index]

    def name(self, index):
        return f"sample {index}"

    @staticmethod
    def number(image):
        """Return the number of the sample that an image encodes."""
        return int(image[0, 0, 0]) * 256 + int(image[0, 1, 0])


def numbered(path):
    """Open ``path`` training samples and 20 for validation."""
    return Numbered(int(path), seed=1), Numbered(20, seed=2)


def listed_slowly(path):
    """Open :func:`numbered` after touching ``listing`` beside the run's folder and two seconds."""
    count, _, folder = path.partition(" ")
    Path(folder, "listing").touch()
    time.sleep(2)
    return numbered(count)


def _labelled(source, labels):
    source.labels = labels
    return source


def measures(path):
    """Open samples whose labels are values instead of classes."""
    return _labelled(Numbered(int(path), seed=1), np.arange(int(path)) / 8)


def too_many_classes(path):
    """Open samples with a wrong additional class."""
    return _labelled(Numbered(int(path), seed=1), np.arange(int(path)) % (len(CLASSES) + 1))


def one_hot(path):
    """Open samples with a row per label."""
    return _labelled(
        Numbered(int(path), seed=1), np.eye(len(CLASSES))[np.arange(int(path)) % len(CLASSES)]
    )


class _Slowly:
    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, index):
        time.sleep(self.seconds)


def slow(path):
    """Like ``numbered``, a millisecond per sample, for a longer run."""
    return Numbered(int(path), seed=1, before=_Slowly(0.001)), Numbered(20, seed=2)


class _SlowlyOnRank0(_Slowly):
    def __call__(self, index):
        time.sleep(self.seconds * (20 if rank() == "0" else 1))


def slow_on_rank_0(path):
    """Like ``slow``, twenty milliseconds on rank 0, as if it were busy."""
    return Numbered(int(path), seed=1, before=_SlowlyOnRank0(0.001)), Numbered(20, seed=2)


class _FailsAt:
    def __init__(self, index, error):
        self.index, self.error = index, error

    def __call__(self, index):
        if index == self.index:
            raise self.error


class _Gated:
    """Sleep a millisecond per sample; after ``quick`` samples of a rank 50, until a file exists."""

    def __init__(self, quick, gate):
        self._remaining, self._gate = quick, Path(gate)

    def __call__(self, index):
        self._remaining -= 1
        time.sleep(0.05 if self._remaining < 0 and not self._gate.exists() else 0.001)


def gated(path):
    """Open samples that become slow after QUICK until a file exists: COUNT:QUICK:FILE."""
    count, quick, gate = path.split(":")
    return Numbered(int(count), seed=1, before=_Gated(int(quick), gate)), Numbered(20, seed=2)


def raising(path):
    """A source with a bug that is not related to a sample."""
    return Numbered(
        int(path), seed=1, before=_FailsAt(int(path) - 1, RuntimeError("the source has a bug"))
    ), Numbered(20, seed=2)


def wrong(path):
    """A source that returns something other than a sample."""
    return Numbered(
        int(path), seed=1, before=_FailsAt(int(path) - 1, InputError("read(59) lacks the input y"))
    ), Numbered(20, seed=2)


def partly_bad(path):
    """A source whose sample 5 is unreadable."""
    return Numbered(
        int(path), seed=1, before=_FailsAt(5, UnreadableSample("sample 5", "torn file"))
    ), Numbered(20, seed=2)


class _OnRank0Alone:
    def __call__(self, index):
        if rank() != "0":
            raise PermissionError("Permission denied")


def on_rank_0_alone(path):
    """A source that other ranks cannot read, as if it were on a disk of the first node."""
    return Numbered(int(path), seed=1, before=_OnRank0Alone()), Numbered(20, seed=2)


class _Noting:
    """Append every read to a file of this rank: the split and the index of the sample."""

    def __init__(self, folder, part):
        self.folder, self.part = folder, part

    def __call__(self, index):
        with open(Path(self.folder) / f"rank{rank()}", "a", encoding="utf-8") as file:
            file.write(f"{self.part} {index}\n")


def noted(path, folder):
    """Open a source that records in ``folder`` what is opened and read; see :func:`reads`."""
    _Noting(folder, "opened")(-1)
    return (
        Numbered(int(path), seed=1, before=_Noting(folder, "train")),
        Numbered(20, seed=2, before=_Noting(folder, "validation")),
    )


def reads(folder):
    """Return what each rank has opened and read: {rank: [(split, index), ...]}, in order."""
    return {
        int(file.name.removeprefix("rank")): [
            (part, int(index)) for part, index in map(str.split, file.read_text().splitlines())
        ]
        for file in Path(folder).glob("rank*")
    }


def unvalidated(path):
    """Open training samples only."""
    return Numbered(int(path), seed=1)


def one_fold(path, folds, fold, seed):
    """Return the training and validation samples of a fold's network, from ``unvalidated``."""
    source = unvalidated(path)
    in_fold = assign_folds(source, folds, seed) == fold
    return View(source, np.flatnonzero(~in_fold)), View(source, np.flatnonzero(in_fold))


# ---- model functions of the numpy engine ----


def zeros(input_shape, classes):
    """Return empty weights."""
    return np.zeros((int(np.prod(input_shape)) + 1, classes))


def not_a_number(input_shape, classes):
    """Return weights whose first loss is NaN."""
    return np.full((int(np.prod(input_shape)) + 1, classes), np.nan)


def broken(input_shape, classes):
    """Raise an error as a model function."""
    raise ValueError("unknown layer")


def exits(input_shape, classes):
    """Exit the program in a model function."""
    sys.exit(3)


def interrupts(input_shape, classes):
    """Raise a BaseException in a model function."""
    raise KeyboardInterrupt


def hangs(input_shape, classes):
    """Hang in a model function."""
    time.sleep(600)


def hangs_in_c(input_shape, classes):
    """Hang while Python handles no signal."""
    _lock_twice(ctypes.CDLL(None))


def hangs_deaf(input_shape, classes):
    """Hang while no other thread of Python runs."""
    _lock_twice(ctypes.PyDLL(None))


def _lock_twice(libc):
    mutex = ctypes.create_string_buffer(64)  # more than the size of a pthread_mutex_t
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def too_large(input_shape, classes):
    """Return a network that does not fit into memory."""
    raise MemoryError("wanted 900 GB")


def shaky(input_shape, classes, failures, folder):
    """Return empty weights after a file system error has occurred a number of times."""
    tries = len(list(Path(folder).glob("try-*")))
    (Path(folder) / f"try-{tries}").touch()
    if tries < failures:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return zeros(input_shape, classes)


def warning(input_shape, classes):
    """Return zeros and a warning as from an engine."""
    warnings.warn("a loss is not used", NetworkWarning, stacklevel=2)
    return zeros(input_shape, classes)


# ---- transforms ----


def noise(image, rng, training):
    """Change all pixels but the two that encode the sample's number."""
    if not training:
        return image
    changed = image // 2 + rng.integers(0, 128, image.shape, np.uint8)
    changed[0, :2] = image[0, :2]
    return changed
