"""Tests of the training settings that an engine supports, before it is loaded."""

import sys

import pytest

from fleet.errors import SpecError, UserError
from fleet.spec import load, parse
from fleet.spec.entries import proposed_network
from fleet.spec.fit_checks import training_bytes
from tests.refusals import refused

COSINE = {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 100}


def refusal_of(rate, **entry):
    with pytest.raises(SpecError) as refusal:
        parse(
            {
                "models": [{"family": "softmax", **entry}],
                "train": {"optimizer": {"learning_rate": rate}},
            }
        )
    return str(refusal.value)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (
            {**COSINE, "alhpa": 0.1},
            "the schedule CosineDecay has no argument alhpa; its arguments are "
            "initial_learning_rate",
        ),
        (
            {"name": "CosineDecay", "initial_learning_rate": 0.1},
            "the schedule CosineDecay needs the argument decay_steps",
        ),
        (
            {**COSINE, "decay_steps": "many"},
            "decay_steps of the schedule CosineDecay is 'many'; it should be a number",
        ),
        (
            {**COSINE, "decay_steps": 0},
            "decay_steps of the schedule CosineDecay is 0; it should be a number above 0",
        ),
        (
            {
                "name": "ExponentialDecay",
                "initial_learning_rate": 0.1,
                "decay_steps": 9,
                "decay_rate": 0.5,
                "staircase": 1,
            },
            "staircase of the schedule ExponentialDecay is 1; it should be true or false",
        ),
        (
            {"name": "PiecewiseConstantDecay", "boundaries": [10], "values": [0.1]},
            "has 1 boundaries and 1 values",
        ),
        (
            {"name": "PiecewiseConstantDecay", "boundaries": 10, "values": [0.1]},
            "it should be a list of numbers",
        ),
    ],
)
def test_invalid_schedule_is_a_mistake(rate, message):
    assert message in refusal_of(rate)


def test_optimizer_and_schedule_mistakes_are_reported_together():
    rate = {"name": "CosineDecay", "initial_learning_rate": "fast", "decay_steps": -5, "alhpa": 0.1}
    message = refusal_of(rate, train={"optimizer": {"beta_1": 0.9}})
    assert all(
        part in message
        for part in (
            "has no argument alhpa",
            "initial_learning_rate of the schedule CosineDecay is 'fast'",
            "decay_steps of the schedule CosineDecay is -5",
            "sgd takes no beta_1",
        )
    )


def test_entry_may_complete_a_schedule_at_the_top():
    rate = {"name": "CosineDecay", "initial_learning_rate": 0.1, "warmup_target": None}
    entry = {"train": {"optimizer": {"learning_rate": {"decay_steps": 7}}}}
    (network,) = parse(
        {
            "models": [{"family": "softmax", **entry}],
            "train": {"optimizer": {"learning_rate": rate}},
        }
    ).networks
    assert network.train.optimizer.learning_rate["decay_steps"] == 7


def test_incomplete_schedule_is_reported_once(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "models: [{family: softmax}, {family: cnn}]\ntrain:\n  optimizer:\n"
        "    learning_rate: {name: CosineDecay, initial_learning_rate: 0.1}\n"
    )
    with pytest.raises(SpecError) as refusal:
        load(path)
    (mistake,) = refusal.value.mistakes
    assert (mistake.line, mistake.key) == (4, "train.optimizer.learning_rate")


def test_incomplete_schedule_of_a_search_is_refused():
    entry = {"space": {"train.batch.size": [8, 16]}, "search": {"max_trials": 2}}
    message = refusal_of({"name": "CosineDecay", "decay_steps": 3}, **entry)
    assert "spec: train.optimizer.learning_rate: the schedule CosineDecay needs" in message


def test_schedule_of_a_search_may_be_completed_by_its_space():
    parse(
        {
            "models": [
                {
                    "family": "softmax",
                    "space": {"train.optimizer.learning_rate.decay_steps": [3, 5]},
                    "search": {"max_trials": 2},
                }
            ],
            "train": {
                "optimizer": {
                    "learning_rate": {"name": "CosineDecay", "initial_learning_rate": 0.1}
                }
            },
        }
    )


# ---- custom engines ------------------------------------------------------------------------------

ROWS = """
from fleet.spec.engines import EngineInfo, Known
from fleet.vocabulary.measures import UP, MeasureWord
from fleet.vocabulary.optimizers import OptimizerWord

def warm(step, first, steps: int = 10): return first

BARE = EngineInfo("bare", None, knows=Known(("adam",)))
FEW = EngineInfo("few", None, knows=Known(
    ("sgd",), (), (), ("mean_absolute_error",), ("float32",),
    own=False, accumulates=False, compiles=False))
OWN = EngineInfo("own", None, knows=Known(
    {"newton": OptimizerWord(frozenset({"epsilon"}), 4), "sgd": OptimizerWord(frozenset(), 0)},
    {"Warm": warm},
    {"margin": MeasureWord(unfit=frozenset({"value"}))},
    {"gini": MeasureWord(UP, needs="of")}))

def open_ended(step, **more): return 1.0

FOREIGN = EngineInfo("foreign", None, knows=Known(("sgd", "newton")))
UNREADABLE = EngineInfo("unreadable", None, knows=Known(
    metrics={"acc": MeasureWord(), "gini": MeasureWord()}))
WORDLESS = EngineInfo("wordless", None, knows=Known({"newton": 4}))
OPEN = EngineInfo("open", None, knows=Known(
    schedules={"Open": open_ended, "Least": min, "Warm": warm}))
PERIODIC = EngineInfo("periodic", None, knows=Known(
    schedules={"Periodic": lambda step, decay_steps: 1 / decay_steps}))
"""


@pytest.fixture(autouse=True)
def rows(tmp_path, monkeypatch):
    (tmp_path / "own_words.py").write_text(ROWS)
    # Another test may have imported the module from its own folder.
    monkeypatch.delitem(sys.modules, "own_words", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def spec(train, row="OWN", **entry):
    return parse(
        {
            "models": [{"family": "softmax", **entry}],
            "train": train,
            "resources": {"engine": f"own_words:{row}" if row.isupper() else row},
        }
    )


@pytest.mark.parametrize(
    ("row", "train", "key", "message"),
    [
        (
            "FEW",
            {"optimizer": {"name": "adam"}},
            "optimizer.name",
            "no optimizer 'adam'; it has sgd",
        ),
        (
            "FEW",
            {"optimizer": {"learning_rate": COSINE}},
            "optimizer.learning_rate",
            "no learning rate schedule 'CosineDecay'; it has none by name",
        ),
        ("FEW", {"loss": "huber"}, "loss", "no loss 'huber'; it has none by name"),
        (
            "FEW",
            {"metrics": ["mae", "my:metric"]},
            "metrics",
            "no metric 'my:metric'; it has mean_absolute_error",
        ),
        (
            "FEW",
            {"precision": "mixed_float16"},
            "precision",
            "no precision 'mixed_float16'; it has float32",
        ),
        ("FEW", {"xla": True}, "xla", "does not support XLA"),
        ("FEW", {"batch": {"accumulate": 2}}, "batch.accumulate", "does not accumulate gradients"),
        ("FEW", {"start": "w.npz"}, "start", "cannot start from the weights of a file"),
        (
            "torch",
            {"optimizer": {"name": "lion"}},
            "optimizer.name",
            "no optimizer 'lion'; it has sgd, adam, adamw",
        ),
        ("torch", {"xla": True}, "xla", "does not support XLA"),
        ("numpy", {"xla": True}, "xla", "does not support XLA"),
        (
            "numpy",
            {"optimizer": {"name": "sgd", "nesterov": True}},
            "optimizer",
            "sgd takes no nesterov",
        ),
        (
            "OWN",
            {"optimizer": {"name": "adam"}},
            "optimizer.name",
            "it has newton, sgd, or an import path",
        ),
        ("OWN", {"optimizer": {"name": "newtom"}}, "optimizer.name", "did you mean newton?"),
        (
            "OWN",
            {"optimizer": {"name": "newton", "beta_1": 0.9}},
            "optimizer",
            "newton takes no beta_1",
        ),
        (
            "OWN",
            {"optimizer": {"learning_rate": {"name": "Warm", "last": 1}}},
            "optimizer.learning_rate",
            "arguments are first, steps",
        ),
        (
            "OWN",
            {"optimizer": {"learning_rate": {"name": "Warm", "steps": 1}}},
            "optimizer.learning_rate",
            "needs the argument first",
        ),
        (
            "PERIODIC",
            {"optimizer": {"learning_rate": {"name": "Periodic", "decay_steps": "ten"}}},
            "optimizer.learning_rate",
            "is 'ten'; it should be a number",
        ),
        ("OWN", {"loss": "mse"}, "loss", "no loss 'mse'; it has margin"),
        ("OWN", {"metrics": ["gini"]}, "metrics", "the metric gini needs the parameter of"),
    ],
)
def test_unsupported_setting_names_its_key_and_alternatives(row, train, key, message):
    with pytest.raises(SpecError) as refusal:
        spec(train, row)
    (mistake,) = refusal.value.mistakes
    assert mistake.key.removeprefix("models[0].") == f"train.{key}"
    assert message in str(mistake)


def test_schedule_is_accepted_if_the_optimizer_is_drawn():
    with pytest.raises(SpecError) as refusal:
        spec(
            {"optimizer": {"learning_rate": COSINE}}, "FEW", grid={"train.optimizer.name": ["sgd"]}
        )
    assert {mistake.key for mistake in refusal.value.mistakes} == {"train.optimizer.learning_rate"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("FOREIGN", "has invalid optimizers: 'newton'"),
        ("UNREADABLE", "has invalid metrics: 'acc'"),
        ("WORDLESS", "has invalid optimizers: 'newton'"),
        ("OPEN", "has invalid schedules: 'Open', 'Least'"),
    ],
)
def test_engine_with_invalid_words_is_a_mistake(row, message):
    with pytest.raises(SpecError) as refusal:
        spec({}, row)
    (mistake,) = refusal.value.mistakes
    assert mistake.key == "resources.engine"
    assert message in mistake.wrong
    assert "names of fleet.vocabulary, or a table" in mistake.right


def test_words_of_a_custom_engine_are_used():
    metric = {"gini": {"of": "rows", "name": "g"}}
    resolved = spec(
        {
            "optimizer": {
                "name": "Newton",
                "epsilon": 0.1,
                "learning_rate": {"name": "Warm", "first": 0.1},
            },
            "loss": "margin",
            "metrics": [metric],
            "stopping": {"monitor": "val_g"},
        }
    )
    (network,) = resolved.networks
    assert network.train.stopping.sign == 1  # the engine says that high values are better
    # Weights, four slots of newton, gradients.
    assert training_bytes(1000, network, resolved) == 4 * 1000 * (1 + 4 + 1)
    with refused(SpecError, "train.loss", "margin", "values"):
        parse(
            {
                "models": [{"family": "softmax"}],
                "train": {"loss": "margin"},
                "data": {"target": "value"},
                "resources": {"engine": "own_words:OWN"},
            }
        )


def test_dry_run_accepts_the_words_of_any_engine(tmp_path):
    (tmp_path / "rates.json").write_text("{}")
    (network,) = parse(
        {
            "models": [{"family": "softmax"}],
            "resources": {"engine": "emulated"},
            "train": {
                "optimizer": {"name": "newton", "learning_rate": {"name": "Warm", "first": 0.1}}
            },
            "schedule": {"rates": str(tmp_path / "rates.json")},
        }
    ).networks
    assert network.train.optimizer.name == "newton"


def test_engine_without_sgd_needs_a_named_optimizer():
    with refused(SpecError, "train.optimizer.name", "own_words:BARE", "'sgd'"):
        spec({}, "BARE")
    (network,) = spec({"optimizer": {"name": "adam"}}, "BARE").networks
    assert network.train.optimizer.name == "adam"


def test_top_level_mistake_is_reported_once():
    with pytest.raises(SpecError) as refusal:
        parse(
            {
                "models": [{"family": "softmax", "name": name} for name in "abc"],
                "train": {"loss": "msee"},
            }
        )
    (mistake,) = refusal.value.mistakes
    assert (mistake.key, "did you mean mse" in mistake.wrong) == ("train.loss", True)


def test_drawn_mistake_is_located_in_the_space(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "models:\n- family: softmax\n  search: {max_trials: 2}\n"
        "  space: {train.optimizer.name: [adam, lionn, sgd], train.batch.size: [8, 0]}\n"
        "train: {optimizer: {name: sgd}}\n"
    )
    with pytest.raises(SpecError) as refusal:
        load(path)
    size, name = sorted(refusal.value.mistakes, key=lambda mistake: mistake.key)
    assert [(error.line, error.key) for error in (size, name)] == [
        (4, "models[0].space.train.batch.size"),
        (4, "models[0].space.train.optimizer.name"),
    ]
    assert "no optimizer 'lionn' (did you mean lion?)" in name.wrong


def test_proposed_network_names_unknown_words():
    resolved = spec({}, space={"train.optimizer.name": ["sgd", "newton"]}, search={"max_trials": 3})
    assert (
        proposed_network(resolved, 0, 0, {"train.optimizer.name": "newton"}).train.optimizer.name
        == "newton"
    )
    with refused(UserError, "train.optimizer.name", "own_words:OWN", "'adam'"):
        proposed_network(resolved, 0, 1, {"train.optimizer.name": "adam"})


def rates_of(**content):
    return [
        network.train.optimizer.learning_rate
        for network in parse({"models": [{"family": "softmax"}], **content}).networks
    ]


@pytest.mark.parametrize(
    ("name", "rate"), [("sgd", 0.01), ("adam", 0.001), ("schedulefreeadamw", 0.0025)]
)
def test_missing_learning_rate_is_the_optimizer_default(name, rate):
    assert rates_of(train={"optimizer": {"name": name}}) == [rate]
    assert rates_of(train={"optimizer": {"name": name, "learning_rate": None}}) == [rate]
    assert rates_of(train={"optimizer": {"name": name}}, defaults=0.2) == [0.01]


def test_each_entry_has_the_default_of_its_own_optimizer():
    models = [
        {"family": "softmax", "name": "a", "train": {"optimizer": {"name": "adam"}}},
        {"family": "softmax", "name": "b", "train": {"optimizer": {"momentum": 0.9}}},
        {"family": "softmax", "name": "c", "grid": {"train.optimizer.name": ["rmsprop", "sgd"]}},
    ]
    assert rates_of(models=models) == [0.001, 0.01, 0.001, 0.01]
    optimizer = {"name": "sgd", "learning_rate": 0.3}
    assert rates_of(models=models, train={"optimizer": optimizer}) == [0.001, 0.3, 0.001, 0.3]
