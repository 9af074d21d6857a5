"""Tests of the keys that misspelt ones and words of other tools mean."""

import pytest
import yaml

from fleet.errors import SpecError
from fleet.spec import load, parse
from fleet.spec.meant_keys import _WORDS, _keys_by_name, _plain, hint_at_key
from fleet.spec.old_keys import SHORT_KEYS

LEARNING_RATE = "train.optimizer.learning_rate"
EPOCHS = "train.epochs (short for train.stopping.max_epochs)"
BATCH = "train.batch_size (short for train.batch.size)"


def answer(owner, word):
    """Return the answer to a word in a section of a spec."""
    entry = {
        "family": "mlp",
        "space": {"dropout": {"low": 0, "high": 0.5}},
        "search": {"max_trials": 3},
        "train": {},
        "data": {},
        "args": {},
    }
    document = {"models": [entry], "train": {"optimizer": {}, "stopping": {}}, "data": {}}
    document |= {"prune": {"rule": "asha"}, "resources": {}}
    section = entry if owner.startswith("models") else document
    for step in owner.removeprefix("models").split("."):
        section = section[step] if step else section
    section[word] = [1] if owner.endswith("space") else 1
    with pytest.raises(SpecError) as refusal:
        parse(document)
    [mistake] = refusal.value.mistakes[:1]
    assert mistake.wrong == f"unknown key {word!r}"
    return mistake.right.removeprefix("did you mean ").partition("?")[0]


@pytest.mark.parametrize(
    ("word", "key"),
    {
        "lr": LEARNING_RATE,
        "learning_rate": LEARNING_RATE,
        "n_trials": "models[0].search.max_trials",
        "num_samples": "models[0].search.max_trials",
        "max_trials": "models[0].search.max_trials",
        "max_epochs": "train.stopping.max_epochs",
        "patience": "train.stopping.patience",
        "epoch": EPOCHS,
        "epochs": EPOCHS,
        "num_epochs": EPOCHS,
        "max_t": EPOCHS,
        "batchsize": BATCH,
        "batchSize": BATCH,
        "batch_size": BATCH,
        "bacth_size": BATCH,
        "n_jobs": "models[0].search.max_concurrent",
        "loss_fn": "train.loss",
        "direction": "train.stopping.direction",
        "mode": "train.stopping.direction",
        "metric": "train.stopping.monitor",
        "objective": "train.stopping.monitor",
        "scheduler": "prune.rule",
        "early_stopping": "train.stopping.patience",
        "grace_period": "prune.min_epochs",
        "reduction_factor": "prune.factor",
        "n_startup_trials": "prune.min_trials",
        "search_space": "models[0].space",
        "config": "models[0].space",
        "val_split": "data.validation",
        "validation_split": "data.validation",
        "weight_decay": "train.optimizer.weight_decay",
        "num_workers": "resources.preprocessors",
        "devices": "models[0].gpus",
        "gpus_per_trial": "models[0].gpus",
        "pateince": "train.stopping.patience",
        "trakcers": "trackers",
        "optimiser": "train.optimizer",
        "standardize": "data.transforms",
    }.items(),
)
def test_word_at_the_top_is_answered_with_its_key(word, key):
    assert answer("", word) == key


@pytest.mark.parametrize(
    ("owner", "word", "key"),
    [
        ("train", "lr", LEARNING_RATE),
        ("train", "max_epochs", "train.stopping.max_epochs"),
        ("train", "scheduler", LEARNING_RATE),
        ("train", "lossweights", "train.loss_weights"),
        ("train.stopping", "epochs", EPOCHS),
        ("data", "val_split", "data.validation"),
        ("data", "normalize", "data.transforms"),
        ("data", "train", "data.path"),
        ("prune", "grace_period", "prune.min_epochs"),
        ("prune", "n_startup_trials", "prune.min_trials"),
        ("resources", "devices", "models[0].gpus"),
        ("models", "lr", f"models[0].{LEARNING_RATE}"),
        ("models", "hidden", "models[0].args.hidden"),
        ("models", "n_trials", "models[0].search.max_trials"),
        ("models", "pruner", "prune.rule"),
        ("models", "transforms", "models[0].data.transforms"),
        ("models.search", "n_trials", "models[0].search.max_trials"),
        ("models.search", "direction", "models[0].search.objectives[0].mode"),
        ("models.search", "n_startup_trials", "models[0].search.options"),
        ("models.space.dropout", "max", "models[0].space.dropout.high"),
        ("models.train", "lr", LEARNING_RATE),
        ("models.train", "n_trials", "search.max_trials"),
        ("models.space", "lr", LEARNING_RATE),
        ("models.space", "hiden", "hidden"),
        ("models.space", "train.lr", LEARNING_RATE),
        ("models.args", "batch_size", BATCH),
        ("models.args", "hiden", "hidden"),
        ("models.data", "validation", "data.validation"),
    ],
)
def test_word_is_answered_with_a_key_valid_at_its_place(owner, word, key):
    if word.startswith("train."):
        wrong = word.removeprefix("train.")
        with pytest.raises(SpecError, match=f"unknown key {wrong!r}; did you mean {key}"):
            parse({"models": [{"family": "mlp", "grid": {word: [1]}}]})
    else:
        assert answer(owner, word) == key


def test_certain_answer_does_not_list_all_keys():
    with pytest.raises(SpecError) as refusal:
        parse({"models": [{"family": "mlp"}], "train": {"lr": 1, "xal": True}})
    rights = [mistake.right for mistake in refusal.value.mistakes]
    assert rights[0] == f"did you mean {LEARNING_RATE}?"
    assert rights[1].startswith("did you mean train.xla? valid keys: ")


def test_hint_at_the_key_meant_by_an_argument():
    assert hint_at_key("lr") == f" (did you mean {LEARNING_RATE}?)"
    assert hint_at_key("filters_of_mine") == ""


def test_answer_has_file_and_line(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({"models": [{"family": "mlp"}], "n_trials": 3}))
    with pytest.raises(SpecError, match=r"spec\.yaml:3: n_trials: unknown key 'n_trials'; did you"):
        load(path)


def test_each_key_of_the_table_exists():
    paths = {path for paths in _keys_by_name().values() for path in paths} | SHORT_KEYS.keys()
    assert {key for keys in _WORDS for key in keys.split()} <= paths | {"models", "data.target"}


def test_no_word_of_the_table_is_listed_twice():
    words = [_plain(word) for words in _WORDS.values() for word in words.split()]
    assert sorted({word for word in words if words.count(word) > 1}) == []
