"""Names of sources, families, samplers, rules and engines in other tools, for hints."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from launch.errors import did_you_mean

# Name in another tool, in lower case and without underscores -> the name here.
_NAMES = MappingProxyType(
    {
        # data.source
        "csv": "table",
        "tsv": "table",
        "parquet": "table",
        "dataframe": "table",
        "pandas": "table",
        "images": "image_folder",
        "directory": "image_folder",
        "h5": "hdf5",
        "wds": "webdataset",
        "datasets": "huggingface",
        "hf": "huggingface",
        # models.family
        "convnet": "cnn",
        "dense": "mlp",
        "fcn": "mlp",
        "perceptron": "mlp",
        "linear": "softmax",
        "logisticregression": "softmax",
        # models.search.sampler
        "bayesian": "gp",
        "bayesianoptimization": "gp",
        "bayesopt": "gp",
        "bo": "gp",
        "hyperopt": "tpe",
        "evolution": "cmaes",
        "sobol": "qmc",
        # prune.rule
        "successivehalving": "asha",
        "successivehalvingpruner": "asha",
        "nop": "none",
        "noppruner": "none",
        "fifo": "none",
        # resources.engine
        "tensorflow": "keras",
        "tf": "keras",
    }
)


def did_you_mean_name(word: str, names: Collection[str]) -> str:
    """Return a hint at the name that another tool's name means, or that is close to a word.

    >>> did_you_mean_name("csv", ["table", "hdf5"]), did_you_mean_name("csv", ["keras"])
    (' (did you mean table?)', '')
    """
    meant = _NAMES.get(word.lower().replace("_", ""))
    if meant in names:
        return f" (did you mean {meant}?)"
    return did_you_mean(word, names)
