"""Tests of the old keys of specs."""

import copy
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.events import CommandReceived, NetworkAdded, SearcherStarted
from fleet.errors import SpecError
from fleet.spec import dump, load, parse
from fleet.spec.dimensions import Range
from fleet.spec.drawing import draw
from fleet.spec.naming import names_in
from fleet.spec.old_keys import RENAMED_KEYS, oldest_name
from fleet.spec.resolve import with_entry
from fleet.spec.search import PruningRule, find_rule
from tests.places import ROOT
from tests.refusals import refused

VALUES = {
    "open_for": "5min",
    "track": ["optuna"],
    "data.window": "1MB",
    "data.stall": "1min",
    "data.max_bad": "3%",
    "data.finish": "host",
    "train.converge": {"max_epochs": 3},
    "train.converge.target": 0.5,
    "schedule.delta": "7%",
    "schedule.alpha": 0.5,
    "resources.per_device": 3,
    "prune.least": 4,
    "prune.others": 7,
    "search.ask": "grid",
    "search.most": 6,
    "search.at_once": 2,
    "search.from": ["runs/earlier"],
    "search.answer_within": 7,
}
RULES = {"prune.others": "median"}


def put(document, path, value):
    """Set a key of a spec."""
    *sections, key = path.split(".")
    if path.startswith("search."):
        document = document["models"][0]
    for section in sections:
        document = document.setdefault(section, {})
    document[key] = value


def base(path):
    """Return a spec that reads a key."""
    document = {
        "models": [
            {"family": "softmax", "space": {"train.batch.size": [8, 16]}, "search": {}},
        ],
    }
    if path.startswith("prune."):
        document["prune"] = {"rule": RULES.get(path, "asha")}
    else:
        document["prune"] = "none"  # a search without it gets a note
    if path.split(":")[0] not in ("search.most", "search.ask"):
        document["models"][0]["search"] = {"max_trials": 2}
    return document


def both(old):
    """Return a spec with the old key, the same with the new one, and the paths of both keys."""
    old_path, _, old_value = old.partition(": ")
    new_path, _, new_value = RENAMED_KEYS[old].partition(": ")
    documents = []
    for path, value in ((old_path, old_value), (new_path, new_value)):
        document = base(old_path)
        put(document, path, yaml.safe_load(value) if value else copy.deepcopy(VALUES[old]))
        documents.append(document)
    return (*documents, old_path, new_path)


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_old_key_gives_the_same_spec_and_one_notice(old):
    before, now, _, new_path = both(old)
    spec = parse(before)
    assert spec == parse(now)
    assert dump(spec.document) == dump(parse(now).document)
    assert parse(now).notices == ()
    notices = [notice for notice in spec.notices if notice.startswith(f"note: {old} is now ")]
    assert len(notices) == 1
    assert new_path.rpartition(".")[2] in notices[0]


@pytest.mark.parametrize("old", [old for old in RENAMED_KEYS if not old.startswith("profile")])
def test_old_key_beside_its_new_key_is_refused(old, tmp_path):
    before, now, old_path, new_path = both(old)
    sections = old_path.split(".")[:-1]
    if old == "train.converge.target":
        before["train"]["stopping"] = before["train"].pop("converge")
        sections = ["train", "stopping"]
    source, target = now, before
    if old_path.startswith("search."):
        source, target = now["models"][0], before["models"][0]
    for section in sections:
        source, target = source["stopping" if section == "converge" else section], target[section]
    key = new_path.rpartition(".")[2]
    target[key] = source[key]
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(before, sort_keys=False))
    lines = path.read_text().splitlines()
    old_key = old_path.rpartition(".")[2]
    places = [
        next(n for n, line in enumerate(lines, 1) if re.match(rf"\s*{word}:", line))
        for word in (old_key, key)
    ]
    with refused(SpecError, f"spec.yaml:{places[0]}", old_key, key, f"line {places[1]}"):
        load(path)


def test_glossary_lists_the_renamed_keys():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    table = text.partition("## Keys of a spec")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", table, re.MULTILINE)
    assert {old: new for new, old in rows}.items() <= RENAMED_KEYS.items()
    assert {old.partition(": ")[0] for _, old in rows} == {
        old.partition(": ")[0] for old in RENAMED_KEYS
    }


def test_line_of_a_mistake_is_that_of_the_old_key(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "models:\n- family: softmax\n  train:\n    converge:\n      patience: -3\n"
        "prune:\n  rule: asha\n  order: later\ndata:\n  window: 2XB\n"
    )
    with refused(SpecError, "spec.yaml:5", "patience", "spec.yaml:8", "order", "spec.yaml:10"):
        load(path)


def test_notice_names_the_first_line_of_a_key(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "models:\n- family: softmax\n  train:\n    converge: {patience: 3}\n"
        "- family: softmax\n  name: b\n  train: {converge: {patience: 3}}\n"
    )
    [notice] = load(path).notices
    assert notice.startswith(f"note: {path}:4: train.converge is now stopping")


def test_old_names_in_spaces_and_grids_are_renamed():
    def document(stopping, stop_at):
        return {
            "models": [
                {
                    "family": "softmax",
                    "name": "a",
                    "grid": {f"train.{stopping}": [{stop_at: 0.5}, {"patience": 2}]},
                },
                {
                    "family": "softmax",
                    "name": "b",
                    "space": {f"train.{stopping}.patience": [1, 2], "train.batch.size": [8, 16]},
                    "count": 3,
                },
            ]
        }

    spec = parse(document("converge", "target"))
    assert spec == parse(document("stopping", "stop_at"))
    assert spec.by_name["a-0"].train.stopping.stop_at == 0.5
    with refused(SpecError, "train.converge", "stopping"):
        parse(
            {
                "models": [
                    {
                        "family": "softmax",
                        "grid": {"train.converge.patience": [1], "train.stopping.patience": [2]},
                    }
                ]
            }
        )


def test_arguments_of_networks_keep_their_names():
    entry = {
        "build": "tests.keras_models:broken",
        "args": {"track": 1, "converge": {"target": 2}},
        "grid": {"window": [1, 2]},
    }
    document = parse({"models": [{"family": "softmax"}, {**entry, "name": "c"}]}).document
    assert (document.models[1].args, dict(document.models[1].grid)) == (
        entry["args"],
        {"window": (1, 2)},
    )


@given(st.integers(0, 100))
def test_draw_follows_the_oldest_names(seed):
    def space(key):
        return {
            "train.optimizer.learning_rate": Range(0.1, 1),
            f"train.{key}.patience": Range(1, 1000, integer=True),
        }

    before = draw(space("converge"), 3, seed)  # older versions drew in the order of these names
    now = draw(space("stopping"), 3, seed)
    assert [list(member.values()) for member in before] == [list(member.values()) for member in now]


def test_oldest_name_of_other_settings_is_their_own():
    assert oldest_name("stopping.patience") == "stopping.patience"
    assert oldest_name("train.optimizer") == "train.optimizer"


def test_recorded_values_are_read_under_new_names(tmp_path):
    values = {"train.converge.target": 0.5, "width": 3}
    now = {"train.stopping.stop_at": 0.5, "width": 3}
    assert NetworkAdded("n-0", "n", 0, values, (1, None), 3).values == now
    settings = {"ask": "grid", "most": 3, "space": {"train.converge.patience": [1]}}
    assert SearcherStarted("n", settings).settings == {
        "sampler": "grid",
        "max_trials": 3,
        "space": {"train.stopping.patience": [1]},
    }
    entry = {"family": "softmax", "train": {"converge": {"max_epochs": 2}}}
    command = CommandReceived("c", "add", ("softmax",), entry)
    assert command.given == {"family": "softmax", "train": {"stopping": {"max_epochs": 2}}}
    (tmp_path / "results.csv").write_text(
        'name,drawn\nn-0,"{""train.converge.target"": 0.5, ""width"": 3}"\n'
    )
    assert names_in(tmp_path) == {"n-0": now}


def test_added_entry_may_have_old_keys():
    spec = parse({"models": [{"family": "softmax"}]})
    entry = {"family": "softmax", "name": "b", "train": {"converge": {"max_epochs": 2}}}
    [network] = with_entry(spec, entry, spec.by_name)[1]
    assert network.train.stopping.max_epochs == 2
    entry["train"]["stopping"] = {"max_epochs": 3}
    with refused(SpecError, "entry", "converge", "stopping"):
        with_entry(spec, entry, spec.by_name)


RULE = PruningRule("mine", lambda *_: None, reads=("least", "order", "factor"))


def test_rule_of_older_code_reads_the_new_keys():
    rule = find_rule(f"{__name__}:RULE")
    assert rule.reads == ("min_epochs", "synchronous", "factor")


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ({"trakcers": []}, "trackers"),
        ({"train": {"stoping": {}}}, "stopping"),
        ({"data": {"shared_memry": 1}}, "shared_memory"),
    ],
)
def test_typo_is_answered_with_a_new_key(document, hint):
    with refused(SpecError, hint):
        parse({"models": [{"family": "softmax"}], **document})
