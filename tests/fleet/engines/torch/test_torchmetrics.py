"""Metrics by the names of torchmetrics: its own states add up over steps and ranks."""

import importlib.util
import sys
import types

import numpy as np
import pytest

from fleet.errors import SettingError
from fleet.spec import parse
from fleet.spec.measures import label_of
from fleet.spec.train import Train
from preprocess.target import TargetSpec

pytestmark = pytest.mark.torch

CLASSES = TargetSpec("class", 3)
VALUES = TargetSpec("value", 2)
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("torchmetrics") is None, reason="torchmetrics is not installed"
)


@pytest.fixture
def library(monkeypatch):
    """Install a stand-in for torchmetrics, with the attributes of a metric that FLEET reads."""
    import torch

    def dim_zero_sum(values):
        return values.sum(0)

    class Metric:
        def __init__(self):
            self._defaults = {}
            self._reductions = {}
            self._update_count = 0

        def add_state(self, name, default, reduction):
            self._defaults[name] = default
            self._reductions[name] = reduction

        def reset(self):
            for name, default in self._defaults.items():
                setattr(self, name, default.clone() if hasattr(default, "clone") else [])

        def to(self, device):
            return self

        def cpu(self):
            return self

    class JaccardIndex(Metric):
        """Confusion matrices of classes, whose number it needs."""

        def __init__(self, num_classes):
            super().__init__()
            self.num_classes = num_classes
            zeros = torch.zeros(num_classes, num_classes, dtype=torch.long)
            self.add_state("confmat", zeros, dim_zero_sum)

        def update(self, predicted, expected):
            flat = expected * self.num_classes + predicted.argmax(-1)
            self.confmat += torch.bincount(flat, minlength=self.num_classes**2).view_as(
                self.confmat
            )

        def compute(self):
            both = self.confmat.diagonal()
            return both / (self.confmat.sum(0) + self.confmat.sum(1) - both)

    class ExplainedVariance(Metric):
        """A sum whose shape follows from the first rows."""

        def __init__(self):
            super().__init__()
            self.add_state("total", torch.tensor(0.0), dim_zero_sum)

        def update(self, predicted, expected):
            self.total = self.total + (predicted - expected).sum(0)

        def compute(self):
            return self.total

    class AUROC(Metric):
        def __init__(self, thresholds=None):
            super().__init__()
            self.add_state("preds", [], None)

    main = types.ModuleType("torchmetrics")
    main.Metric = Metric
    main.__version__ = "1.0"
    for kind in (JaccardIndex, ExplainedVariance, AUROC):
        setattr(main, kind.__name__, kind)
    data = types.ModuleType("torchmetrics.utilities.data")
    data.dim_zero_sum = dim_zero_sum
    names = ("", ".classification", ".regression", ".segmentation", ".utilities")
    for name in names:
        module = main if not name else types.ModuleType(f"torchmetrics{name}")
        monkeypatch.setitem(sys.modules, f"torchmetrics{name}", module)
    monkeypatch.setitem(sys.modules, "torchmetrics.utilities.data", data)
    return main


def metrics_of(measure, target):
    from fleet.engines.torch.metrics import make_metrics

    return make_metrics(Train(metrics=(measure,)), target)


def rows_of(target, count=9):
    import torch

    random = np.random.default_rng(1)
    outputs = torch.from_numpy(random.normal(size=(count, target.outputs)).astype(np.float32))
    targets = target.split(target.random_targets(random, count))[0]
    return outputs, torch.from_numpy(np.array(targets))


def score_of(metrics, outputs, targets, cuts):
    """Return the value of a metric from the sums over parts of the rows."""
    totals = np.zeros(metrics.width)
    for first, last in zip((0, *cuts), (*cuts, len(outputs)), strict=True):
        totals += metrics.sums(outputs[first:last], targets[first:last]).numpy()
    [score] = metrics.scores(totals.tolist()).values()
    return score


@pytest.mark.parametrize(
    ("name", "target"), [("JaccardIndex", CLASSES), ("ExplainedVariance", VALUES)]
)
def test_states_of_torchmetrics_add_up(library, name, target):
    outputs, targets = rows_of(target)
    metrics = metrics_of(name, target)
    at_once = score_of(metrics, outputs, targets, ())
    assert score_of(metrics, outputs, targets, (2, 2, 5)) == pytest.approx(at_once, abs=1e-6)


def test_torchmetrics_learn_the_number_of_classes(library):
    outputs, targets = rows_of(CLASSES)
    metric = library.JaccardIndex(3)
    metric.reset()
    metric.update(outputs, targets)
    assert score_of(
        metrics_of("torchmetrics.JaccardIndex", CLASSES), outputs, targets, ()
    ) == pytest.approx(float(metric.compute().mean()))


def test_torchmetrics_by_import_path_is_a_metric_of_states(library):
    outputs, targets = rows_of(CLASSES)
    by_path, by_name = (
        score_of(metrics_of(name, CLASSES), outputs, targets, (4,))
        for name in ("torchmetrics:JaccardIndex", "JaccardIndex")
    )
    assert by_path == by_name


def test_torchmetrics_that_keep_samples_are_refused(library):
    with pytest.raises(SettingError, match=r"keeps preds .* \{AUROC: \{thresholds: 200\}\}"):
        metrics_of("AUROC", CLASSES)


def test_missing_torchmetrics_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(SettingError, match="install it: pip install torchmetrics"):
        metrics_of("JaccardIndex", CLASSES)


def test_names_of_both_libraries_mean_keras_unless_prefixed():
    for name, label, package in (
        ("F1Score", "F1Score", ""),
        ("torchmetrics.F1Score", "F1Score", "torchmetrics"),
        ("torchmetrics.classification.MulticlassF1Score", "MulticlassF1Score", "torchmetrics"),
        ("MatthewsCorrCoef", "MatthewsCorrCoef", "torchmetrics"),
    ):
        from fleet.vocabulary.measures import canonical_name

        spec = spec_of(name)
        assert label_of(spec.networks[0].train.metrics[0]) == label
        assert spec.engine.words.metrics[canonical_name(name)].package == package


@pytest.mark.parametrize(
    ("name", "direction"), [("JaccardIndex", "max"), ("HammingDistance", "min")]
)
def test_monitor_of_torchmetrics_knows_its_direction(name, direction):
    spec = spec_of(name, stopping={"monitor": f"val_{name}"})
    assert spec.networks[0].train.stopping.direction == direction


def spec_of(metric, **train):
    return parse(
        {
            "models": [{"family": "softmax"}],
            "resources": {"engine": "torch"},
            "train": {"metrics": [metric], **train},
        }
    )


@needs_library
@pytest.mark.parametrize(
    ("measure", "target"),
    [
        ("torchmetrics.F1Score", CLASSES),
        ({"AUROC": {"thresholds": 50}}, CLASSES),
        ("torchmetrics.R2Score", VALUES),
        ("LogCoshError", VALUES),
    ],
)
def test_real_torchmetrics_add_up(measure, target):
    outputs, targets = rows_of(target)
    metrics = metrics_of(measure, target)
    at_once = score_of(metrics, outputs, targets, ())
    assert score_of(metrics, outputs, targets, (2, 6)) == pytest.approx(at_once, abs=1e-5)
