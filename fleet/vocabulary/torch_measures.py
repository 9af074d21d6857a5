"""Describe the losses of ``torch.nn`` and the metrics of torchmetrics, by their class names.

With the engine torch, a name that only PyTorch has means PyTorch's class. A name that Keras has,
too, such as ``F1Score``, means Keras', so that a spec means the same with every engine;
``torchmetrics.F1Score`` means the class of torchmetrics.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fleet.vocabulary.measures import (
    DOWN,
    METRICS,
    UP,
    MeasureWord,
    canonical_name,
)

_VALUES_ONLY = frozenset({"class", "multilabel", "mask"})
_NO_VALUES = frozenset({"value"})
_ONE_CLASS = frozenset({"value", "multilabel"})
_LABELS_ONLY = frozenset({"value", "class", "mask"})

_OTHER_ARGUMENTS = (
    "takes other arguments than outputs and targets; call it in a function of your own"
)

# Class -> for which kinds of targets it is meaningless, its lower bound, and the equal loss of
# Keras, if there is one for all these kinds.
_LOSSES = {
    "BCEWithLogitsLoss": (_LABELS_ONLY, 0.0, "binary_crossentropy"),
    "CrossEntropyLoss": (_NO_VALUES, 0.0, "categorical_crossentropy"),
    "HuberLoss": (_VALUES_ONLY, 0.0, "huber"),
    "KLDivLoss": (_VALUES_ONLY, -math.inf, ""),
    "L1Loss": (_VALUES_ONLY, 0.0, "mean_absolute_error"),
    "MSELoss": (_VALUES_ONLY, 0.0, "mean_squared_error"),
    "MultiLabelSoftMarginLoss": (_LABELS_ONLY, 0.0, ""),
    "MultiMarginLoss": (frozenset({"value", "multilabel", "mask"}), 0.0, ""),
    "NLLLoss": (_ONE_CLASS, 0.0, ""),
    "PoissonNLLLoss": (_VALUES_ONLY, -math.inf, ""),
    "SmoothL1Loss": (_VALUES_ONLY, 0.0, ""),
    "SoftMarginLoss": (_VALUES_ONLY, 0.0, ""),
}
_REFUSED_LOSSES = {
    "BCELoss": "takes probabilities, but modules return logits; use BCEWithLogitsLoss",
    **dict.fromkeys(
        (
            "AdaptiveLogSoftmaxWithLoss",
            "CTCLoss",
            "CosineEmbeddingLoss",
            "GaussianNLLLoss",
            "HingeEmbeddingLoss",
            "MarginRankingLoss",
            "MultiLabelMarginLoss",
            "TripletMarginLoss",
            "TripletMarginWithDistanceLoss",
        ),
        _OTHER_ARGUMENTS,
    ),
}

TORCH_LOSSES: dict[str, MeasureWord] = {
    canonical_name(name): MeasureWord(DOWN, unfit, minimum=minimum, written=name, same_as=same_as)
    for name, (unfit, minimum, same_as) in _LOSSES.items()
} | {
    canonical_name(name): MeasureWord(written=name, refused=reason)
    for name, reason in _REFUSED_LOSSES.items()
}

# Metrics of torchmetrics, of which smaller values are better if DOWN. Those of classes also exist
# with Binary, Multiclass or Multilabel before their names.
_OF_CLASSES = {
    UP: (
        "AUROC",
        "Accuracy",
        "AveragePrecision",
        "CohenKappa",
        "F1Score",
        "FBetaScore",
        "JaccardIndex",
        "LogAUC",
        "MatthewsCorrCoef",
        "NegativePredictiveValue",
        "Precision",
        "Recall",
        "Specificity",
    ),
    DOWN: ("CalibrationError", "EER", "HammingDistance", "HingeLoss"),
}
_OF_VALUES = {
    UP: (
        "ConcordanceCorrCoef",
        "CosineSimilarity",
        "CriticalSuccessIndex",
        "ExplainedVariance",
        "KendallRankCorrCoef",
        "PearsonCorrCoef",
        "R2Score",
        "SpearmanCorrCoef",
    ),
    DOWN: (
        "KLDivergence",
        "LogCoshError",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogError",
        "MinkowskiDistance",
        "NormalizedRootMeanSquaredError",
        "RelativeSquaredError",
        "SymmetricMeanAbsolutePercentageError",
        "TweedieDevianceScore",
        "WeightedMeanAbsolutePercentageError",
    ),
}
_NOT_OF_LABELS = ("CalibrationError", "CohenKappa", "HingeLoss")
_UNFIT_BY_TASK = {
    "": _NO_VALUES,
    "Binary": frozenset({"value", "multilabel", "mask"}),
    "Multiclass": _ONE_CLASS,
    "Multilabel": _LABELS_ONLY,
}


def _metrics() -> dict[str, MeasureWord]:
    words = {}
    for better, names in _OF_CLASSES.items():
        for name in names:
            by_task = dict(_UNFIT_BY_TASK)
            if name in _NOT_OF_LABELS:
                del by_task["Multilabel"]
                by_task[""] = _ONE_CLASS
            for task, unfit in by_task.items():
                words[task + name] = MeasureWord(better, unfit)
    for better, names in _OF_VALUES.items():
        for name in names:
            words[name] = MeasureWord(better, _VALUES_ONLY)
    by_name = {}
    for name, word in words.items():
        spellings = [f"torchmetrics.{name}"]
        if canonical_name(name) not in METRICS:
            spellings.append(name)
        for written in spellings:
            by_name[canonical_name(written)] = replace(
                word, written=written, package="torchmetrics"
            )
    return by_name


TORCH_METRICS = _metrics()
