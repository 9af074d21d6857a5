"""Built-in and custom engines are made from their entries in the table of engines."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fleet.engines.emulated import EmulatedEngine
from fleet.engines.registry import count_network_parameters, make_engine
from fleet.engines.softmax import NumpyEngine
from fleet.errors import NotInstalledError, SpecError, UserError
from fleet.spec import parse
from fleet.spec.engines import ENGINES, EngineInfo, find_engine
from fleet.storage.identity import trial_identity
from scheduler.base import Network, RateTable
from tests.fleet.histories import SAMPLE
from tests.refusals import refused

MODULE = """
from fleet.spec.engines import EngineInfo

class Own:
    exchange_name = "none"
    def __init__(self, setup): self.setup = setup
    def build(self, network, group): raise NotImplementedError

ROW = EngineInfo("own", "own_engines:Own", families=frozenset({"softmax"}),
                 checkpoint_bytes=lambda parameters, slots: 7 * parameters,
                 count_parameters=lambda architecture, shape, classes, seed: 5)
DIRECT = EngineInfo("direct", Own)
LOST = EngineInfo("lost", "own_engines:NoSuchClass")
WRONG = EngineInfo("wrong", lambda setup: 3)
RAISES = EngineInfo("raises", Own, count_parameters=lambda *arguments: 1 / 0)

def first_weights(input_shape, classes): return None
"""


@pytest.fixture(autouse=True)
def custom(tmp_path, monkeypatch):
    (tmp_path / "own_engines.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "own_engines", raising=False)  # from another test's folder
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "own_engines.py"


def spec(engine, *models, **parts):
    return parse(
        {
            "models": list(models) or [{"family": "softmax"}],
            "resources": {"engine": engine},
            **parts,
        }
    )


def make(engine, rates=None, **parts):
    return make_engine(spec(engine, **parts), SAMPLE, rates, 1, 2)


def test_engines_are_listed_by_name_and_have_help():
    assert [engine.name for engine in ENGINES.values()] == list(ENGINES)
    assert all(engine.help for engine in ENGINES.values())


def test_make_engine_makes_built_in_engines(tmp_path):
    (tmp_path / "rates.json").touch()
    rates = RateTable(10, 1, (Network("softmax", (1.0,)),))
    assert isinstance(make("numpy"), NumpyEngine)
    assert isinstance(
        make("emulated", rates, schedule={"rates": str(tmp_path / "rates.json")}), EmulatedEngine
    )


@pytest.mark.tensorflow
def test_keras_row_makes_engine_and_counts_parameters(monkeypatch):
    from fleet.engines.keras import engine

    # The real engine would configure the devices of this process.
    monkeypatch.setattr(
        engine, "KerasEngine", lambda setup: SimpleNamespace(exchange_name="", build=setup)
    )
    arguments = make("keras").build
    assert (arguments.sample, arguments.resources.exchange, arguments.deterministic) == (
        SAMPLE,
        "auto",
        False,
    )
    assert (arguments.index, arguments.trainers, arguments.slot.number, arguments.slot.slots) == (
        1,
        2,
        0,
        1,
    )
    settings = spec("keras", {"build": "tests.keras_models:explodes_on_rank"})
    assert count_network_parameters(settings.networks[0], settings, SAMPLE) == (4 * 4 + 1) * 3


def test_missing_library_is_reported_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "fleet.engines.torch.models", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    settings = spec("torch", {"build": "own_engines:first_weights"})
    with refused(NotInstalledError, "the torch engine", "pip install 'fleet-ensemble[torch]'"):
        count_network_parameters(settings.networks[0], settings, SAMPLE)


@pytest.mark.parametrize("row", ["ROW", "DIRECT"])
def test_custom_row_makes_engine_by_path_or_directly(row):
    engine = make(f"own_engines:{row}")
    assert type(engine).__name__ == "Own"
    assert (engine.setup.sample, engine.setup.index, engine.setup.trainers) == (SAMPLE, 1, 2)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("LOST", ["engine 'own_engines:NoSuchClass'", "'NoSuchClass'"]),
        (
            "WRONG",
            [
                "resources.engine",
                "own_engines:WRONG returns a int",
                "no exchange_name and no build",
            ],
        ),
    ],
)
def test_custom_row_that_makes_no_engine_is_refused(row, names):
    with refused(UserError, *names):
        make(f"own_engines:{row}")


@pytest.mark.parametrize(
    ("engine", "wrong", "right"),
    [
        (
            "jax",
            "no engine is named 'jax'",
            "use one of emulated, keras, numpy, torch, or an import path module:engine",
        ),
        (
            "own_engines:Own",
            "engine 'own_engines:Own' is of type type",
            "it should be an EngineInfo",
        ),
        (
            "own_engines:nothing",
            "engine 'own_engines:nothing': module 'own_engines' has no 'nothing'",
            "",
        ),
        ("no_such_module:x", "engine 'no_such_module:x': cannot import 'no_such_module'", ""),
    ],
)
def test_spec_refuses_path_that_is_no_engine(engine, wrong, right):
    with pytest.raises(SpecError) as refusal:
        spec(engine, schedule={"policy": "best"})
    (mistake,) = [
        mistake for mistake in refusal.value.mistakes if mistake.key == "resources.engine"
    ]
    assert mistake.wrong.startswith(wrong)
    assert mistake.right == right
    assert len(refusal.value.mistakes) == 2


def test_parse_checks_the_spec_against_its_engine():
    with pytest.raises(
        SpecError, match="the own_engines:ROW engine cannot train cnn; its families: softmax"
    ):
        spec("own_engines:ROW", {"family": "cnn"})
    with refused(SpecError, "resources.engine", "emulated", "`schedule: {rates: FILE}`"):
        spec("emulated")
    assert spec("own_engines:DIRECT", {"family": "cnn"}).engine.families is None


def test_count_parameters_by_family_or_row_or_unknown():
    family, function = (
        {"family": "softmax", "name": "a"},
        {"build": "own_engines:first_weights", "name": "b"},
    )
    features = int(np.prod(SAMPLE.input.shape)) + 1
    for engine, counts in (
        ("numpy", [features * 3, features * 3]),
        ("own_engines:ROW", [features * 3, 5]),
        ("own_engines:DIRECT", [features * 3, None]),
    ):
        settings = spec(engine, family, function)
        assert [
            count_network_parameters(network, settings, SAMPLE) for network in settings.networks
        ] == counts
    settings = spec("own_engines:RAISES", function)
    with refused(UserError, "b: own_engines:first_weights", "ZeroDivisionError: division by zero"):
        count_network_parameters(settings.networks[0], settings, SAMPLE)


def test_checkpoint_bytes_come_from_the_engine():
    assert ENGINES["keras"].checkpoint_bytes(10, 2) == 10 * 3 * 4
    assert ENGINES["numpy"].checkpoint_bytes(10, 0) == 10 * 2 * 8
    assert find_engine("own_engines:ROW").checkpoint_bytes(10, 1) == 70


def test_spec_with_custom_engine_can_be_pickled():
    settings = spec("own_engines:ROW")
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert isinstance(settings.engine, EngineInfo)


def test_failed_network_is_retried_after_engine_changes(custom):
    settings = spec("own_engines:ROW")
    before = trial_identity(settings.networks[0], settings, SAMPLE)
    custom.write_text(f"{MODULE}\n# mended")
    assert trial_identity(settings.networks[0], settings, SAMPLE) != before
