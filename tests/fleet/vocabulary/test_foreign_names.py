"""Names of other tools are answered with ours."""

import pytest

from fleet.errors import SpecError, UserError
from fleet.search.searcher import SEARCHERS, make_searcher
from fleet.spec import parse
from fleet.spec.engines import ENGINES
from fleet.spec.model import FAMILIES
from fleet.spec.search import OPTUNA_SAMPLERS, RULES
from fleet.vocabulary.foreign_names import _NAMES, did_you_mean_name
from preprocess.source import SOURCES
from tests.refusals import refused


def test_all_foreign_names_mean_an_existing_name():
    names = {*SOURCES, *FAMILIES, *SEARCHERS, *OPTUNA_SAMPLERS, *RULES, *ENGINES}
    assert set(_NAMES.values()) <= names
    assert not set(_NAMES) & names


def test_foreign_name_is_no_hint_among_other_names():
    assert did_you_mean_name("csv", ["keras", "torch"]) == ""


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"data": {"source": "digits"}}, "builtin:digits"),
        ({"data": {"source": "csv"}}, "table"),
        ({"data": {"source": "ImageFolder"}}, "image_folder"),
        ({"prune": "ASHAScheduler"}, "asha"),
        ({"prune": "SuccessiveHalvingPruner"}, "asha"),
        ({"prune": {"rule": "hyperbandpruner"}}, "hyperband"),
        ({"resources": {"engine": "pytorch"}}, "torch"),
        ({"resources": {"engine": "TensorFlow"}}, "keras"),
        ({"models": [{"family": "convnet"}]}, "cnn"),
        ({"models": [{"family": "resnet18"}], "resources": {"engine": "torch"}}, "resnet"),
    ],
)
def test_spec_names_what_a_foreign_name_means(content, hint):
    with refused(SpecError, f"(did you mean {hint}"):
        parse({"models": [{"family": "softmax"}], **content})


@pytest.mark.parametrize(("name", "hint"), [("TPESampler", "tpe"), ("BayesianOptimization", "gp")])
def test_samplers_name_what_a_foreign_name_means(name, hint):
    with refused(UserError, f"(did you mean {hint}?)"):
        make_searcher(name, {}, 0, "maximize", {})
