"""Rows of results and saved predictions for tests."""

import math

import numpy as np

from fleet.prediction.saved_predictions import Outputs, save_outputs
from fleet.spec import Checkpoint
from fleet.storage.results import NetworkResult, Status
from fleet.storage.writer import CheckpointWriter

NAN = math.nan


def row(name, status=Status.FINISHED, folds=0):
    return NetworkResult(
        name, status, "", 10, 1, 1, 1.0, 0.5, 1.0, 0.5, NAN, NAN, 1.0, {}, folds=folds
    )


def keep(paths, name, outputs, targets, weights=None, part="validation", rows=None):
    writer = CheckpointWriter(paths, Checkpoint())
    save_outputs(
        writer,
        paths.predictions(name, part),
        Outputs(outputs.astype(np.float32), targets, weights),
        np.arange(len(targets)) if rows is None else rows,
    )
    writer.close()
