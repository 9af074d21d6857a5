"""Variety of specs: each feature changes a few keys, and a seed has any of them.

The features of a seed are drawn apart from its cluster and its faults, so that a new feature does
not change what other seeds mean.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from typing import Any

Content = dict[str, Any]
Feature = Callable[[random.Random, Content], None]

# Model functions whose networks fail, whatever happens.
FAILING = (
    "tests.sources:broken",
    "tests.sources:not_a_number",
    "tests.sources:exits",
    "tests.sources:interrupts",
    "tests.sources:too_large",
    "tests.sources:hangs",
    "tests.simulate.models:deadly",
    "tests.simulate.models:uninterruptible",
    "tests.simulate.models:flawed",
    "tests.simulate.models:withering",
    "tests.simulate.models:unexpected",
)
# Those whose ranks die of them.
_KILLING = ("tests.simulate.models:deadly", "tests.simulate.models:uninterruptible")
SHARED = "SHARED-FOLDER"  # stands for the folder of the spec
# Files beside the spec: text, or JSON.
FILES: Content = {
    "mine/__init__.py": "",
    "mine/nets/__init__.py": "",
    "mine/nets/models.py": (
        "from ..layers import weights\n\n\n"
        "def network(input_shape, classes):\n    return weights(input_shape, classes)\n"
    ),
    "mine/layers.py": "from tests.sources import zeros as weights  # noqa: F401\n",
    "simulated_helper.py": "SCALE = 1\n",
    "start.txt": "0.01 -0.02 0.03\n" * 17,  # weights of three classes, and of no color
    "rates_of_batches.json": {
        "samples_per_epoch": 40,
        "gpus_per_node": 2,
        "models": [
            {
                "name": name,
                "rates": [400.0, 700.0],
                "params_mb": 1.0,
                "step_s": [{"batch": 2, "seconds": 0.009}, {"batch": 8, "seconds": 0.012}],
            }
            for name in ("n0", "n1")
        ],
        "comm_s": [
            {"params_mb": 1.0, "gpus": 2, "seconds": 0.001},
            {"params_mb": 8.0, "gpus": 2, "seconds": 0.002},
        ],
    },
    "rates.json": {
        "samples_per_epoch": 40,
        "gpus_per_node": 4,
        "models": [
            {"name": name, "rates": [900.0 / (number + 1), 1500.0 / (number + 1)]}
            for number, name in enumerate(("n0", "n1", "n2", "n3", "s", "f"))
        ],
    },
    "trials.json": {
        "format": "fleet trials 1",
        "source": "study",
        "objectives": [{"value": "val_accuracy", "mode": "maximize"}],
        "trials": [
            {
                "name": f"trial-{number}",
                "values": {"train.optimizer.learning_rate": 0.02 * (number + 1)},
                "outcome": outcome,
                "results": [result],
                "curve": [0.2, result],
                "violations": [],
            }
            for number, (outcome, result) in enumerate(
                (("finished", 0.5), ("pruned", 0.3), ("finished", 0.6), ("failed", None))
            )
        ],
    },
}
_SHARE = 0.05  # of seeds that have a feature


def with_features(seed: int, content: Content, shares_run: bool) -> Content:
    """Return a spec with the features of a seed that can be combined.

    Args:
        seed: the seed.
        content: the spec.
        shares_run: whether several launches share the run.
    """
    draw = random.Random(f"features {seed}")
    chosen = [feature for feature in FEATURES.values() if draw.random() < _SHARE]
    for feature in chosen:
        changed = copy.deepcopy(content)
        feature(draw, changed)
        if is_valid(changed, shares_run):
            content = changed
    return content


def is_valid(content: Content, shares_run: bool) -> bool:
    """Return True if FLEET accepts a spec."""
    from fleet.errors import UserError
    from fleet.runtime.run_sharing import find_run_sharing
    from fleet.spec import parse

    names = {"grid", "count"}  # of which the file of rates knows nothing
    if "rates" in content["schedule"] and any(names & model.keys() for model in content["models"]):
        return False
    # The file of rates does not exist yet.
    schedule = {key: value for key, value in content["schedule"].items() if key != "rates"}
    content = {**content, "schedule": schedule}
    has_none = content["resources"]["preprocessors"] == 0
    if has_none and schedule["policy"] != "baseline":
        return False
    if content["resources"]["engine"] == "emulated":
        names = {"grid", "count", "repeats"}  # likewise
        if any(names & model.keys() for model in content["models"]):
            return False
        content = {**content, "resources": {**content["resources"], "engine": "numpy"}}
    # A module beside the spec is not there yet.
    models = [
        {**model, "build": "tests.sources:zeros"}
        if str(model.get("build")).startswith("mine.")
        else model
        for model in content["models"]
    ]
    content = {**content, "models": models}
    try:
        find_run_sharing(shares_run).check_spec(parse(content), "--share-run")
    except UserError:
        return False
    return True


# sources of numbered samples
_NUMBERED = (
    "tests.sources:numbered",
    "tests.simulate.sources:flaky",
    "tests.simulate.sources:heavy",
)
DEATH = re.compile("died|unresponsive|killed|gave up")  # reasons of networks that kill ranks


def has_plain_data(content: Content) -> bool:
    """Return True if networks see all samples of the source, with readable numbers in pixels."""
    data = content["data"]
    return (
        data["source"] in _NUMBERED
        and content["resources"]["engine"] != "emulated"
        and data["transforms"][-1] == {"scale": {"mean": 0.5, "std": 0.5}}
        and not {"folds", "test", "augment_on"} & data.keys()
        and not any("data" in model for model in content["models"])
        and not any("max_time" in model["train"]["stopping"] for model in content["models"])
    )


def _train(draw: random.Random, content: Content) -> Content:
    """Return the training settings of one of the networks."""
    return draw.choice(content["models"])["train"]


def _searches(content: Content) -> list[Content]:
    return [model for model in content["models"] if "search" in model]


def _plain(content: Content) -> list[Content]:
    return [model for model in content["models"] if "search" not in model]


# ---- data ----


def _add_samples(content: Content, factor: int) -> None:
    """Add samples, so that a part of them is still as many as there were."""
    content["data"]["path"] = str(factor * int(content["data"]["path"]))


def _folds(draw: random.Random, content: Content) -> None:
    _add_samples(content, 2)
    content["data"]["source"] = "tests.sources:unvalidated"
    content["data"]["folds"] = 2


def _held_out(draw: random.Random, content: Content) -> None:
    if content["data"]["source"] == "tests.sources:numbered":
        _add_samples(content, 2)
        content["data"]["source"] = "tests.sources:unvalidated"
        content["data"]["validation"] = 0.3


def _no_validation(draw: random.Random, content: Content) -> None:
    if content["data"]["source"] == "tests.sources:numbered" and "prune" not in content:
        content["data"]["source"] = "tests.sources:unvalidated"
        content["data"]["validation"] = None
        content["train"]["stopping"] = {"monitor": "loss"}


def _test(draw: random.Random, content: Content) -> None:
    _add_samples(content, 2)
    content["data"]["test"] = 0.2


def _own_transforms(draw: random.Random, content: Content) -> None:
    model = draw.choice(content["models"])
    model["data"] = {
        "transforms": [
            {"center_crop": {"size": [4, 4]}},
            *draw.choice(([], ["tests.sources:noise"])),
            {"scale": {"mean": 0.4, "std": 0.5}},
        ]
    }


def _scale_by_data(draw: random.Random, content: Content) -> None:
    content["data"]["transforms"][-1] = {"scale": "data"}


def _on_device(draw: random.Random, content: Content) -> None:
    content["data"]["augment_on"] = "device"
    content["data"]["transforms"][1] = {"random_crop": {"size": [4, 4], "padding": 1}}


def _little_memory(draw: random.Random, content: Content) -> None:
    content["data"]["shared_memory"] = draw.choice((3_100, 10_000, 100_000))


def _unreadable(draw: random.Random, content: Content) -> None:
    if content["data"]["source"] == "tests.sources:numbered":
        content["data"]["source"] = "tests.sources:partly_bad"
        content["data"]["path"] = str(max(8, int(content["data"]["path"])))
        content["data"]["max_unreadable"] = 0.5


def _many_samples(draw: random.Random, content: Content) -> None:
    content["data"]["path"] = str(draw.randint(60, 120))


# ---- training ----


def _patience(draw: random.Random, content: Content) -> None:
    stopping = _train(draw, content)["stopping"]
    stopping["max_epochs"] = 6
    stopping["patience"] = draw.randint(1, 2)


def _stop_at(draw: random.Random, content: Content) -> None:
    stopping = _train(draw, content)["stopping"]
    stopping["stop_at"] = draw.choice((0.2, 0.4, 0.5))


def _monitor(draw: random.Random, content: Content) -> None:
    content["train"]["stopping"] = {"monitor": draw.choice(("loss", "val_loss", "accuracy"))}


def _max_time(draw: random.Random, content: Content) -> None:
    _train(draw, content)["stopping"]["max_time"] = draw.choice((0.02, 0.2, 1.0))


def _measures(draw: random.Random, content: Content) -> None:
    content["train"]["metrics"] = ["accuracy"]
    content["train"]["label_smoothing"] = 0.1
    content["train"]["class_weights"] = draw.choice(("balanced", {"a": 2.0}))


def _batch_of_a_gpu(draw: random.Random, content: Content) -> None:
    for model in _plain(content):
        model["train"]["batch"]["when_scaled"] = "per_gpu"


def _elastic(draw: random.Random, content: Content) -> None:
    _add_samples(content, 2)
    content["schedule"] = {"policy": "elastic"}
    for model in content["models"]:
        model["train"]["batch"] = {
            "size": [2, draw.randint(3, 8)],
            "learning_rate": draw.choice(("linear", "sqrt", "fixed")),
        }


# ---- networks ----


def _function(draw: random.Random, content: Content) -> None:
    model = draw.choice(_plain(content))
    model.pop("family", None)
    model["build"] = draw.choice(("tests.sources:zeros", "tests.sources:warning"))


def _failing(draw: random.Random, content: Content) -> None:
    content["models"].append(
        {
            "build": draw.choice(FAILING),
            "name": "f",
            "train": {
                "batch": {"size": 4},
                "stopping": {"max_epochs": 2},
                "build_timeout": draw.choice((0.5, 5.0)),
            },
        }
    )
    if content["models"][-1]["build"] in _KILLING:
        content["max_deaths"] = 2  # until then, the same command tries it again


def _repeats(draw: random.Random, content: Content) -> None:
    draw.choice(_plain(content))["repeats"] = 2


def _grid(draw: random.Random, content: Content) -> None:
    draw.choice(_plain(content))["grid"] = {"train.optimizer.learning_rate": [0.01, 0.03]}


def _drawn(draw: random.Random, content: Content) -> None:
    model = draw.choice(_plain(content))
    if "grid" not in model:
        model["space"] = {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1}}
        model["count"] = 2


def _own_sampler(draw: random.Random, content: Content) -> None:
    """Let a searcher pause networks, and start some from the weights of others."""
    for model in _searches(content):
        search = model["search"]
        search["sampler"] = "tests.simulate.searchers:Unreliable"
        search["options"] = {
            **search.get("options", {}),
            "inherits": draw.random() < 0.7,
            "pauses": draw.random() < 0.5,
        }


def _endless_search(draw: random.Random, content: Content) -> None:
    """Let searches propose networks until their budget is spent."""
    for model in _searches(content):
        model["search"].pop("max_trials", None)
        model["search"]["budget"] = {"epochs": draw.randint(2, 9)}


def _search_options(draw: random.Random, content: Content) -> None:
    for model in _searches(content):
        model["search"].update(
            draw.choice(
                (
                    {"budget": {"epochs": draw.randint(2, 9)}},
                    {"repeats": 2},
                    {"warm_start": [f"{SHARED}/trials.json"]},
                    {"warm_start": [f"{SHARED}/trials.json"], "repeats": 2},
                    {"constraints": ["parameters <= 1e6"]},
                )
            )
        )


# ---- the launch ----


def _emulated(draw: random.Random, content: Content) -> None:
    _known_rates(draw, content)
    if "rates" in content["schedule"]:
        content["resources"]["engine"] = "emulated"


def _no_preprocessors(draw: random.Random, content: Content) -> None:
    content["schedule"] = {"policy": "baseline"}
    content["resources"]["preprocessors"] = 0


def _few_deaths(draw: random.Random, content: Content) -> None:
    content["max_deaths"] = draw.choice((1, 2))


def _measured(draw: random.Random, content: Content) -> None:
    content["profile"] = {
        "when": "offline",
        "batches": draw.randint(2, 6),
        "timed": 2,
        "seconds": 0.5,
        "spread": draw.choice((0.0, 0.5)),
    }


def _known_rates(draw: random.Random, content: Content) -> None:
    if content["schedule"]["policy"] != "elastic":  # which needs rates of several batches
        content["schedule"]["rates"] = f"{SHARED}/rates.json"


def _shared_devices(draw: random.Random, content: Content) -> None:
    content["resources"]["networks_per_gpu"] = draw.choice((2, 3, "auto"))
    for model in content["models"]:
        if "gpus" in model:
            model["gpus"] = [1, model["gpus"][1]]  # two trainers may share the only device


def _policy_options(draw: random.Random, content: Content) -> None:
    content["schedule"] = draw.choice(
        (
            {"policy": "global", "round_end_share": 0.5, "pace_tolerance": "30%"},
            {"policy": "global", "literal": True},
            {"policy": "local", "pace_tolerance": "50%"},
            {"policy": "local", "literal": True},
        )
    )


def _learning_curve(draw: random.Random, content: Content) -> None:
    content["prune"] = {"rule": "learning_curve", "min_epochs": 1, "min_trials": 1}


def _quota(draw: random.Random, content: Content) -> None:
    content["checkpoint"]["quota"] = draw.choice((300_000, 1_000_000))


def _keep_open(draw: random.Random, content: Content) -> None:
    content["keep_open"] = draw.choice((0.5, 5.0))


def _walltime(draw: random.Random, content: Content) -> None:
    content["walltime"] = draw.choice(
        (20.0, 90.0)
    )  # one above the time after which a lease is stale


FEATURES: dict[str, Feature] = {
    "folds": _folds,
    "held-out validation": _held_out,
    "no validation": _no_validation,
    "test data": _test,
    "own transforms": _own_transforms,
    "scale by the data": _scale_by_data,
    "augment on the device": _on_device,
    "little memory": _little_memory,
    "unreadable samples": _unreadable,
    "many samples": _many_samples,
    "patience": _patience,
    "stop at": _stop_at,
    "monitor": _monitor,
    "time limit": _max_time,
    "measures": _measures,
    "batch of a GPU": _batch_of_a_gpu,
    "elastic batch": _elastic,
    "model function": _function,
    "failing network": _failing,
    "repeats": _repeats,
    "grid": _grid,
    "drawn networks": _drawn,
    "search options": _search_options,
    "own sampler": _own_sampler,
    "endless search": _endless_search,
    "measured rates": _measured,
    "known rates": _known_rates,
    "few deaths": _few_deaths,
    "shared devices": _shared_devices,
    "policy options": _policy_options,
    "learning curve": _learning_curve,
    "quota": _quota,
    "open": _keep_open,
    "walltime": _walltime,
    "no preprocessors": _no_preprocessors,
    "emulated engine": _emulated,
}
