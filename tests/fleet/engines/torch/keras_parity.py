"""Train the same networks with one engine.

test_keras_parity.py runs this once for each engine, because a process can import only one.
``python -m tests.fleet.engines.torch.keras_parity keras FOLDER`` writes initial weights and losses
into a folder; ``... torch FOLDER`` starts from these weights.
"""

import json
import sys
from pathlib import Path

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.engines.async_steps import take_step

EPOCHS, ROWS = 10, 24
SHAPE = (8, 8, 2)
SCALE = Affine((0.4, 0.5), (0.3, 0.5))

_FIRST = {"initial_learning_rate": 0.02}
SCHEDULES = (
    {
        "name": "CosineDecay",
        **_FIRST,
        "decay_steps": 15,
        "alpha": 0.1,
        "warmup_target": 0.05,
        "warmup_steps": 4,
    },
    {"name": "CosineDecay", **_FIRST, "decay_steps": 12},
    {"name": "CosineDecayRestarts", **_FIRST, "first_decay_steps": 3, "t_mul": 1.5, "m_mul": 0.8},
    {
        "name": "CosineDecayRestarts",
        **_FIRST,
        "first_decay_steps": 6,
        "t_mul": 1.0,
        "m_mul": 0.5,
        "alpha": 0.2,
    },
    {"name": "ExponentialDecay", **_FIRST, "decay_steps": 6, "decay_rate": 0.5, "staircase": True},
    {"name": "InverseTimeDecay", **_FIRST, "decay_steps": 5, "decay_rate": 0.7},
    {"name": "PiecewiseConstantDecay", "boundaries": [4, 9], "values": [0.05, 0.02, 0.01]},
    {"name": "PolynomialDecay", **_FIRST, "decay_steps": 7, "power": 2.0, "cycle": True},
)

OPTIMIZERS = (
    {"name": "sgd", "learning_rate": 0.05},
    {
        "name": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.01,
        "global_clipnorm": 0.5,
    },
    {"name": "adam", "clipnorm": 0.1},
    {"name": "adam", "amsgrad": True},
    {"name": "adamw"},
    {"name": "rmsprop", "momentum": 0.5},
    {"name": "rmsprop", "centered": True, "clipvalue": 0.02},
    {"name": "nadam", "beta_1": 0.8},
    {
        "name": "sgd",
        "momentum": 0.5,
        "use_ema": True,
        "ema_momentum": 0.8,
        "ema_overwrite_frequency": 6,
    },
)

LOSSES = {
    "class": (
        None,
        {"categorical_focal_crossentropy": {"gamma": 1.5}},
        "categorical_hinge",
        "kl_divergence",
    ),
    "multilabel": (None, "binary_focal_crossentropy", "hinge", "squared_hinge", "poisson"),
    "value": (
        None,
        {"huber": {"delta": 0.3}},
        "mean_absolute_percentage_error",
        "log_cosh",
        "cosine_similarity",
        "mean_squared_logarithmic_error",
    ),
    "mask": (None, "dice", {"tversky": {"alpha": 0.7}}, "sparse_categorical_crossentropy"),
}
METRICS = {
    "class": (
        "AUC",
        {"AUC": {"curve": "PR", "name": "pr"}},
        "F1Score",
        "Precision",
        "Recall",
        "mae",
        {"top_k_categorical_accuracy": {"k": 2}},
        "categorical_crossentropy",
        "binary_crossentropy",
        "true_negatives",
    ),
    "multilabel": (
        "AUC",
        "binary_accuracy",
        "F1Score",
        {"FBetaScore": {"beta": 2.0, "average": "weighted"}},
        {"Precision": {"class_id": 1}},
        "binary_crossentropy",
        "categorical_crossentropy",
    ),
    "value": ("mae", "rmse", "R2Score", "CosineSimilarity", "log_cosh_error"),
    "mask": ("MeanIoU", "Recall", "sparse_categorical_accuracy"),
}


def keras_dense(input_shape, classes):
    import keras

    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(12, "relu", kernel_initializer="he_normal"),
            keras.layers.Dense(classes),
        ]
    )


def torch_dense(input_shape, classes):
    from math import prod

    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), 12), nn.ReLU(), nn.Linear(12, classes)
    )


def target_of(kind):
    return TargetSpec(
        kind, 3, size=SHAPE[:2] if kind == "mask" else None, ignore=7 if kind == "mask" else None
    )


def scaled_schedule(schedule, factor):
    """Return a schedule whose learning rates are multiplied by a factor."""
    scaled = dict(schedule)
    for key, value in schedule.items():
        if "rate" in key and key != "decay_rate":
            scaled[key] = factor * value
        elif key == "values":
            scaled[key] = [factor * entry for entry in value]
    return scaled


def cases(engine):
    """Return name -> (model, settings of training, kind of target)."""
    dense = {"build": f"tests.fleet.engines.torch.keras_parity:{engine}_dense"}
    conv = {"family": "cnn", "args": {"filters": [4, 3], "dense": [6], "norm": "none", "kernel": 4}}
    normed = {"family": "cnn", "args": {"filters": [4, 3], "dense": []}}
    result = {}
    for index, optimizer in enumerate(OPTIMIZERS):
        rate = SCHEDULES[index - 1] if index else optimizer["learning_rate"]
        if index and optimizer["name"] != "sgd":
            rate = scaled_schedule(rate, 0.2)
        train = {"optimizer": {**optimizer, "learning_rate": rate}}
        for name, model in (("dense", dense), ("conv", conv)):
            result[f"{optimizer['name']} {index} {name}"] = (model, train, "class")
    adam = {"name": "adam", "learning_rate": 0.005}
    result["accumulated"] = (
        dense,
        {
            "optimizer": {**adam, "use_ema": True, "learning_rate": SCHEDULES[0]},
            "batch": {"size": ROWS, "accumulate": 3},
        },
        "class",
    )
    result["normalized"] = (normed, {"optimizer": adam}, "class")
    smooth = {
        "optimizer": adam,
        "label_smoothing": 0.1,
        "class_weights": {"0": 2.0, "1": 0.5, "2": 1.0},
    }
    for kind, losses in LOSSES.items():
        for loss in losses:
            train = {
                "optimizer": adam,
                **({"metrics": list(METRICS[kind])} if loss is None else {"loss": loss}),
            }
            result[f"{kind} {loss}"] = ({"family": "softmax"}, train, kind)
    result["weighted classes"] = (dense, smooth, "class")
    result["weighted pixels"] = ({"family": "softmax"}, smooth, "mask")
    result["smoothed labels"] = (dense, {"optimizer": adam, "label_smoothing": 0.2}, "multilabel")
    return result


def batches_of(kind):
    """Yield the images, targets and, unless these are plain, weights of two full batches."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (2 * ROWS, *SHAPE)).astype(np.uint8)
    target = target_of(kind)
    packed = target.random_targets(rng, 2 * ROWS)
    if not target.is_plain:
        packed["weight"] = rng.uniform(0.5, 1.5, 2 * ROWS)
    if kind == "mask":
        packed["target"][:, :2, :2] = target.void
    arrays = (images, *target.split(packed))
    for rows in (slice(ROWS), slice(ROWS, None)):
        yield tuple(array[rows] for array in arrays)


def as_torch(arrays, shapes):
    """Yield weights of Keras in the order and layout of PyTorch."""
    grid = None
    for array, shape in zip(arrays, shapes, strict=True):
        if array.ndim == 4:
            grid = shape
            yield array.transpose(3, 2, 0, 1)
        elif array.ndim == 2 and len(shape) == 4:  # a dense layer for each pixel
            yield array.T[:, :, None, None]
        elif array.ndim == 2:
            channels = grid[0] if grid else SHAPE[2]
            side = round((len(array) / channels) ** 0.5)
            is_first = grid != () and side * side * channels == len(array)
            grid = ()  # the rows of later layers are not pixels
            pixels = array.T
            if is_first:
                pixels = array.reshape(side, side, channels, -1).transpose(3, 2, 0, 1)
            yield pixels.reshape(shape)
        else:
            yield array


def main(engine, folder):
    results = {}
    for name, (model, train, kind) in cases(engine).items():
        spec = parse(
            {
                "models": [model],
                "resources": {"engine": engine, "exchange": "mpi"},
                "train": train,
                "defaults": "0.2",  # PyTorch with the rules of Keras
            }
        )
        sample = SampleSpec(ArraySpec(SHAPE, "uint8"), 3, SCALE, target=target_of(kind))
        network = make_engine(spec, sample, None, 0, 2).build(spec.networks[0], SingleRankGroup())
        file, state = folder / f"{name}.npz", network.state()
        if engine == "keras":
            np.savez(
                file,
                *[
                    array
                    for key, array in state.items()
                    if key.startswith("model/") and "seed" not in key
                ],
            )
        else:
            first = np.load(file)
            keys = [key for key in state if key.startswith("model/") and "num_batches" not in key]
            arrays = as_torch(
                [first[f"arr_{index}"] for index in range(len(first.files))],
                [state[key].shape for key in keys],
            )
            network.load(
                {
                    **state,
                    **{
                        key: np.ascontiguousarray(array)
                        for key, array in zip(keys, arrays, strict=True)
                    },
                }
            )
        losses, metric_totals = [], 0.0
        for _ in range(EPOCHS):
            for images, targets, *weights in batches_of(kind):
                totals = take_step(network, images, targets, ROWS, False, *weights)
                losses.append(totals.loss / totals.count)
                metric_totals = np.array(totals.metric_totals)
        evaluations = [network.evaluate(*rows) for rows in batches_of(kind)]
        results[name] = {
            "losses": losses,
            "evaluations": [entry.loss / entry.count for entry in evaluations],
            "correct": totals.correct,
            "scores": network.scores(metric_totals) if train.get("metrics") else {},
        }
        network.close()
    (folder / f"{engine}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
