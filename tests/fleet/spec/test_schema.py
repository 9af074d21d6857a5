"""Tests of specs: their networks and settings, and the messages about mistakes."""

import copy
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.__main__ import main
from fleet.errors import SpecError
from fleet.spec import Document, ModelEntry, Schedule, dump, json_schema, load, parse, with_output
from fleet.spec.measures import label_of
from fleet.spec.model import load_function
from fleet.spec.schema import OPTION_OF
from scheduler.base import Delta, Options
from scheduler.ensemble.policies import POLICIES
from tests.examples import examples
from tests.fleet.json_schema import complaints
from tests.places import ROOT
from tests.refusals import refused

SOFTMAX = {"models": [{"family": "softmax"}]}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("specs") / "spec.yaml"


def mistakes(content, file):
    """Return the mistakes of a spec, given as YAML or as a mapping."""
    file.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8"
    )
    with pytest.raises(SpecError) as refusal:
        load(file)
    return refusal.value.mistakes


# ---- networks and settings ---------------------------------------------------------------------


def test_load_fills_in_defaults(file):
    file.write_text("models: [{family: softmax}]")
    spec = load(file)
    assert [network.name for network in spec.networks] == ["softmax"]
    assert (spec.output, spec.schedule.policy, spec.by_name["softmax"].global_batch(4)) == (
        Path("runs/ensemble"),
        "adaptive",
        128,
    )


def test_load_reads_the_examples():
    examples = sorted((ROOT / "examples").glob("*.yaml"))
    assert examples
    for example in examples:
        assert load(example).networks


def test_load_reads_numbers_with_units(file):
    file.write_text(
        "train: {optimizer: {learning_rate: 1e-4}}\n"
        "data: {shared_memory: 1.5GiB, max_unreadable: 2%}\n"
        "checkpoint: {every: 10min}\nmodels: [{family: softmax}]"
    )
    document = load(file).document
    assert (
        document.train.optimizer.learning_rate,
        document.data.shared_memory,
        document.data.max_unreadable,
        document.checkpoint.every,
    ) == (1e-4, 1610612736, 0.02, 600)


@pytest.mark.parametrize(
    ("written", "meant"), [("10%", 0.1), ("0.1", 0.1), ("'10%'", 0.1), ("held_out", "held_out")]
)
def test_validation_data_is_a_share_or_a_path(written, meant, file):
    file.write_text(f"models: [{{family: softmax}}]\ndata: {{validation: {written}}}")
    assert load(file).document.data.validation == meant


def test_entry_numbers_its_networks():
    spec = parse(
        {
            "models": [
                {"family": "cnn", "count": 11, "space": {"dropout": {"low": 0.0, "high": 0.5}}},
                {"family": "resnet", "grid": {"width": [4, 8], "dropout": [0.0, 0.1]}},
                {"build": "tests.sources:zeros", "grid": {"a": [1]}, "name": "mine"},
            ]
        }
    )
    names = [network.name for network in spec.networks]
    assert names[:11] == [f"cnn-{number}" for number in range(11)]
    assert names[11:] == ["resnet-0", "resnet-1", "resnet-2", "resnet-3", "mine-0"]
    assert [network.architecture.settings.width for network in spec.networks[11:15]] == [4, 4, 8, 8]
    assert spec.by_name["mine-0"].architecture.args == {"a": 1}


def test_network_keeps_its_drawn_values():
    (network,) = parse(
        {"models": [{"family": "cnn", "grid": {"kernel": [5], "train.batch.size": [3]}}]}
    ).networks
    assert network.parameters == {"kernel": 5, "train.batch.size": 3}
    assert (network.architecture.args, network.train.batch.size) == ({"kernel": 5}, 3)


def test_added_entry_keeps_other_draws_and_seeds():
    entry = {"family": "cnn", "count": 3, "space": {"dropout": {"low": 0.0, "high": 0.5}}}
    alone = parse({"seed": 3, "models": [entry]}).networks
    assert parse({"seed": 3, "models": [entry, {"family": "softmax"}]}).networks[:3] == alone
    assert len({network.seed for network in alone}) == 3


def test_seed_affects_draws_and_network_seeds():
    entry = {"family": "cnn", "count": 3, "space": {"dropout": {"low": 0.0, "high": 0.5}}}
    first, second = (parse({"seed": seed, "models": [entry]}).networks for seed in (1, 2))
    assert not {network.seed for network in first} & {network.seed for network in second}
    assert [network.parameters for network in first] != [network.parameters for network in second]


def test_entries_with_equal_spaces_draw_differently():
    entry = {"family": "cnn", "count": 1, "space": {"dropout": {"low": 0.0, "high": 0.5}}}
    first, second = parse(
        {"models": [{**entry, "name": "one"}, {**entry, "name": "other"}]}
    ).networks
    assert first.parameters != second.parameters


@pytest.mark.parametrize(("gpus", "bounds"), [(None, (1, None)), (2, (2, 2)), ([1, 4], (1, 4))])
def test_gpus_bound_a_network(gpus, bounds):
    (network,) = parse({"models": [{"family": "softmax", "gpus": gpus}]}).networks
    assert (network.min_gpus, network.max_gpus) == bounds


def test_per_gpu_batch_scales_with_the_group():
    (network,) = parse(
        {**SOFTMAX, "train": {"batch": {"size": 8, "when_scaled": "per_gpu"}}}
    ).networks
    assert (network.global_batch(3), network.learning_rate_scale(3)) == (24, 3)
    (network,) = parse({**SOFTMAX, "train": {"batch": {"size": 8}}}).networks
    assert (network.global_batch(3), network.learning_rate_scale(3)) == (8, 1)


def test_batch_range_with_the_elastic_policy():
    spec = parse(
        {**SOFTMAX, "train": {"batch": {"size": [64, 512]}}, "schedule": {"policy": "elastic"}}
    )
    (network,) = spec.networks
    assert network.train.batch.bounds == (64, 512)
    assert (network.global_batch(3), network.largest_batch(3)) == (64, 512)


def test_batch_range_on_one_gpu_needs_no_exchange():
    parse(
        {
            "models": [{"family": "softmax", "gpus": 1}],
            "train": {"batch": {"size": [64, 512]}},
            "schedule": {"policy": "elastic"},
            "profile": {"max_gpus": 1},
        }
    )


ELASTIC = "schedule: {policy: elastic}\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        (
            "models: [{family: softmax}]\ntrain:\n  batch:\n    size: [64, 512]",
            4,
            "train.batch.size",
            "the policy adaptive cannot choose a batch size from [64, 512]; "
            "use one size, or `schedule: {policy: elastic}`",
        ),
        (
            "models:\n- family: softmax\n  train: {batch: {size: [64, 512]}}\n"
            "schedule: {policy: adaptive}",
            3,
            "models[0].train.batch.size",
            "the policy adaptive cannot choose a batch size",
        ),
        (
            "models:\n- family: softmax\n  grid: {train.batch.size: [8, [64, 512]]}",
            3,
            "models[0].grid.train.batch.size",
            "the policy adaptive cannot choose a batch size",
        ),
        (
            "models:\n- family: softmax\n  grid: {train.batch.size: {low: 1, high: 2}}",
            3,
            "models[0].grid.train.batch.size",
            "should be a list",
        ),
        (
            "models:\n- family: softmax\n  space: {train.batch.size: [8, [64, 512]]}\n"
            "  search: {max_trials: 2}",
            3,
            "models[0].space.train.batch.size",
            "the policy adaptive cannot choose a batch size",
        ),
        (
            ELASTIC + "models: [{family: softmax}]\ntrain: {batch: {size: [512, 64]}}",
            3,
            "train.batch",
            "[512, 64] should be [min, max]",
        ),
        (
            ELASTIC
            + "models: [{family: softmax}]\ntrain: {batch: {size: [8, 64], when_scaled: per_gpu}}",
            3,
            "train.batch",
            "size: [min, max] and when_scaled: per_gpu",
        ),
        (
            f"{ELASTIC}models: [{{family: softmax}}]\ntrain: {{batch: {{size: [8, 64]}}}}\n"
            "profile: {max_gpus: 1}",
            4,
            "profile.max_gpus",
            "whose `train.batch.size` is [8, 64]; use 2 or more, or leave it out",
        ),
    ],
)
def test_invalid_batch_ranges_are_located(file, text, line, key, message):
    errors = mistakes(text, file)
    assert [(mistake.line, mistake.key) for mistake in errors] == [(line, key)]
    assert message in f"{errors[0].wrong}; {errors[0].right}"


def test_with_output_changes_only_the_output():
    spec = parse(SOFTMAX)
    moved = with_output(spec, "elsewhere")
    assert (moved.output, moved.networks) == (Path("elsewhere"), spec.networks)


# ---- settings of single networks ---------------------------------------------------------------

TRAIN = {"batch": {"size": 8}, "optimizer": {"name": "sgd", "learning_rate": 0.5, "momentum": 0.9}}


def train_settings(entry, train=None):
    (network,) = parse({"train": train or TRAIN, "models": [{"family": "cnn", **entry}]}).networks
    return network.train


def test_entry_overrides_training_settings():
    train = train_settings(
        {"train": {"optimizer": {"learning_rate": 0.1}, "stopping": {"patience": 2}}}
    )
    assert (train.batch.size, train.stopping.patience) == (8, 2)
    assert (train.optimizer.learning_rate, train.optimizer.momentum) == (0.1, 0.9)


def test_other_optimizer_inherits_no_parameters():
    optimizer = train_settings({"train": {"optimizer": {"name": "adam", "beta_1": 0.8}}}).optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.momentum, optimizer.beta_1) == (
        "adam",
        0.001,
        None,
        0.8,
    )


@pytest.mark.parametrize(
    "space",
    [
        {"train.optimizer.name": ["adam"], "train.optimizer.learning_rate": [0.003]},
        {"train.optimizer.learning_rate": [0.003], "train.optimizer.name": ["adam"]},
    ],
)
def test_drawn_settings_apply_in_any_order(space):
    optimizer = train_settings({"grid": space}).optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("adam", 0.003)


@pytest.mark.parametrize("key", ["space", "grid"])
def test_two_drawn_values_for_one_setting_are_refused(file, key):
    file.write_text(
        f"""models:
- family: cnn
  {"count: 3" if key == "space" else "name: net"}
  {key}:
    train.optimizer.learning_rate: [0.001, 0.1]
    train.optimizer: [{{name: sgd}}, {{name: sgd, learning_rate: 0.2}}]
"""
    )
    with pytest.raises(SpecError) as refusal:
        load(file)
    (mistake,) = refusal.value.mistakes
    assert (mistake.line, mistake.key) == (5, f"models[0].{key}.train.optimizer.learning_rate")


def test_drawn_momentum_of_adam_is_located_in_the_space(file):
    file.write_text(
        """models:
- family: cnn
  count: 3
  space:
    train.optimizer.name: [sgd, adam]
    train.optimizer.momentum: [0.5, 0.9]
train:
  optimizer: {name: sgd, learning_rate: 0.05}
"""
    )
    with pytest.raises(SpecError) as refusal:
        load(file)
    (mistake,) = refusal.value.mistakes
    assert mistake.line == 6
    assert mistake.key == "models[0].space.train.optimizer.momentum"


def test_schedules_and_their_arguments_can_be_drawn():
    cosine = {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 100}
    decay = {
        "name": "ExponentialDecay",
        "initial_learning_rate": 0.2,
        "decay_steps": 9,
        "decay_rate": 0.5,
    }
    train = {"optimizer": {"learning_rate": cosine}}
    assert (
        train_settings(
            {"grid": {"train.optimizer.learning_rate": [decay]}}, train
        ).optimizer.learning_rate
        == decay
    )
    assert train_settings(
        {"grid": {"train.optimizer.learning_rate.decay_steps": [7]}}, train
    ).optimizer.learning_rate == {**cosine, "decay_steps": 7}
    assert (
        train_settings(
            {"train": {"optimizer": {"learning_rate": 0.3}}}, train
        ).optimizer.learning_rate
        == 0.3
    )


def test_parse_does_not_change_its_input():
    content = {
        "train": {"optimizer": {"learning_rate": {"name": "CosineDecay", "decay_steps": 1}}},
        "models": [
            {
                "family": "cnn",
                "args": {"filters": [4, 8]},
                "train": {"optimizer": {"name": "adam"}},
                "grid": {"filters.1": [16, 32], "train.optimizer.beta_1": [0.5, 0.6]},
            }
        ],
    }
    before = copy.deepcopy(content)
    assert [network.architecture.settings.filters for network in parse(content).networks[::2]] == [
        (4, 16),
        (4, 32),
    ]
    assert content == before


# ---- mistakes ----------------------------------------------------------------------------------

WRONG = """\
nmae: digits
seed: -1
data:
  window: 2XB
  transforms: [decode, {resize: {size: 0}}]
models:
- family: resnte
- family: cnn
  args: {filtres: [8]}
  train: {batch: {sise: 3}}
- family: cnn
  gpus: [4, 2]
- build: tests.sources:zeroes
- {}
- family: cnn
  count: 3
  space: {dropout: {low: 0.0, hihg: 0.5}}
train:
  optimizer: {name: sdg}
schedule:
  policy: golbal
  delta: much
"""


def test_load_reports_all_mistakes_with_lines_and_keys(file):
    errors = [
        (mistake.line, mistake.key, mistake.wrong, mistake.right)
        for mistake in mistakes(WRONG, file)
    ]
    expected = [
        (
            1,
            "nmae",
            "unknown key 'nmae'",
            "name? valid keys: models, name (ensemble), seed (0), data",
        ),
        (2, "seed", "-1", "input should be greater than or equal to 0"),
        (4, "data.shared_memory", "'2XB'", "should be written like 2GB"),
        (5, "data.transforms[1]", "{'resize': {'size': 0}}", "size"),
        (
            7,
            "models[0]",
            "'resnte' is neither a family nor a function of keras.applications (did you mean "
            "resnet",
            "",
        ),
        (
            9,
            "models[1].args.filtres",
            "unknown key 'filtres'",
            "filters? valid keys: filters ((32, 64)), dense",
        ),
        (
            10,
            "models[1].train.batch.sise",
            "unknown key 'sise'",
            "size? valid keys: size (128), when_scaled",
        ),
        (11, "models[2]", "gpus: [4, 2] should be [min, max]", ""),
        (13, "models[3]", "build: tests.sources:zeroes:", ""),
        (14, "models[4]", "needs exactly one of `family:`", ""),
        (17, "models[5].space.dropout.high", "is missing", "valid keys: low, high"),
        (
            17,
            "models[5].space.dropout.hihg",
            "unknown key 'hihg'",
            "high? valid keys: low, high, log (False)",
        ),
        (
            19,
            "train.optimizer.name",
            "the keras engine has no optimizer 'sdg' (did you mean sgd",
            "a name that the engine has",
        ),
        (21, "schedule.policy", "no policy is named 'golbal'", "one of "),
        (
            22,
            "schedule.pace_tolerance",
            "'much'",
            "should be written like 15% (of the fastest rate) or 20/s",
        ),
    ]
    assert [mistake[:2] for mistake in errors] == [mistake[:2] for mistake in expected]
    for (*_, wrong, right), (*_, in_wrong, in_right) in zip(errors, expected, strict=True):
        assert in_wrong in wrong
        assert in_right in right


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("resources.networks_per_gpu", "should be a number, or input should be 'auto'"),
        ("resources.preprocessors", "should be a number, or input should be 'auto'"),
        ("train.batch.size", "should be a number, or input should be a list"),
        ("train.stopping.patience", "should be a number"),
        ("seed", "should be a number"),
        ("train.optimizer.learning_rate", "should be a number, or input should be a mapping"),
        ("train.stopping.stop_at", "should be a number"),
    ],
)
def test_true_is_not_a_number(key, right, file):
    first, *exempt = key.split(".")
    text = (
        "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate((first, *exempt)))[:-1]
        + " true\n"
    )
    errors = mistakes(text + "models: [{family: resnet}]\n", file)
    assert [(error.line, error.key, error.wrong, error.right) for error in errors] == [
        (len(exempt) + 1, key, "True", right)
    ]


def test_spec_error_has_one_line_per_mistake(file):
    file.write_text(WRONG)
    with pytest.raises(SpecError) as refusal:
        load(file)
    head, *lines = str(refusal.value).split("\n")
    assert head == "15 mistakes in the spec"
    assert len(lines) == 15
    assert lines[1] == f"  {file}:2: seed: -1; input should be greater than or equal to 0"


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("", 1, "", "is not a mapping"),
        ("- 1", 1, "", "is not a mapping; keys such as `models:`"),
        ("name: x", 1, "models", "is missing"),
        ("models: []", 1, "models", "add an entry"),
        ("models: {family: cnn}", 1, "models", "should be a list"),
        ("models:\n- 3", 2, "models[0]", "3; input should be a mapping"),
        (
            "models:\n- family: softmax\n- family: softmax",
            1,
            "models",
            "2 networks are named 'softmax'; rename one",
        ),
        (
            "models: [{family: softmax}]\n\nmodels: []",
            3,
            "models",
            "appears here twice; each key once",
        ),
        (
            "models: [{family: softmax,\n  args: {a: 1, a: 2}}]",
            2,
            "models[0].args.a",
            "appears here twice",
        ),
        ("models: [{family: softmax}]\nname: ../etc", 2, "name", "cannot name a folder"),
        ("models:\n- family: softmax\n  name: a/b", 2, "models[0]", "'a/b' cannot name a network"),
        (
            'models:\n- family: softmax\n  name: "a\\nb"',
            2,
            "models[0]",
            r"'a\nb' cannot name a network",
        ),
        (
            'models:\n- family: softmax\n  name: "a\\u202eb"',
            2,
            "models[0]",
            r"'a\u202eb' cannot name a network",
        ),
        ("models:\n- family: softmax\n  name: ..", 2, "models[0]", "cannot name a network"),
        ("models: [{family: softmax}]\ntrain:\n  1: 2", 3, "train.1", "is a key, but not text"),
        ("models: [{family: softmax}]\ntrain: [", 2, "", "is not YAML"),
        ('models: [{family: softmax}]\nname: "a\\0b"', 2, "name", "contains a control character"),
        (
            'models: [{family: softmax}]\noutput: "\\ud800"',
            2,
            "output",
            "contains a control character",
        ),
        ("models: [{family: softmax}]\nseed: !!set {a}", 2, "seed", "has the YAML type set"),
        ("a: !!python/object:os.system x", 1, "a", "has the YAML type python/object"),
        ("a: !!int ''", None, "", "is not YAML"),
        ("a: !!bool 7", None, "", "is not YAML"),
        ("models: [{family: softmax}]\nseed: 18446744073709551616", 2, "seed", "less than"),
        ("models: [{family: softmax}]\nseed: 0x" + "f" * 4000, 2, "seed", "has 4002 characters"),
        (
            "models: [{family: softmax}]\ntrain: {optimizer: {learning_rate: .inf}}",
            2,
            "train.optimizer.learning_rate",
            "finite number",
        ),
        ("models:\n- family: cnn\n  gpus: [1]", 3, "models[0].gpus[1]", "is missing"),
        (
            "models:\n- family: cnn\n  gpus: {a: 1}",
            3,
            "models[0].gpus",
            "a valid integer, or input should be a list",
        ),
        (
            "models:\n- family: cnn\n  train: {batch: {optimizer: {name: sgd}}}",
            3,
            "models[0].train.batch.optimizer",
            "unknown key 'optimizer'; did you mean train.optimizer?",
        ),
        (
            "models:\n- family: cnn\n  train: {optimizer: {momentum: 0.9, name: adam}}",
            3,
            "models[0].train.optimizer",
            "adam takes no momentum",
        ),
        (
            "models:\n- family: cnn\n  train: {optimizer: {learning_rate: {name: Cosine}}}",
            3,
            "models[0].train.optimizer.learning_rate",
            "did you mean CosineDecay",
        ),
        (
            "models:\n- family: cnn\n  train: {optimizer: 3}\n"
            "  grid: {train.optimizer.momentum: [0.1]}",
            3,
            "models[0].train.optimizer",
            "should be the name of an optimizer, like adam, or a mapping",
        ),
        (
            "models:\n- family: cnn\n  grid: {train.batch: [3], train.batch.size: [4]}",
            2,
            "models[0]",
            "no 'size' in 3",
        ),
        (
            "models:\n- family: cnn\n  count: 20000\n  space: {dropout: {low: 0.0, high: 0.5}}",
            3,
            "models[0].count",
            "less than or equal to 10000",
        ),
        (
            "models:\n- {family: ResNet50, grid: {"
            + ", ".join(f"k{i}: [1, 2, 3, 4]" for i in range(40))
            + "}}",
            2,
            "models[0]",
            "at most 10000",
        ),
        (
            "models:\n- {family: cnn, count: 2, space: {kernel: [1]}}",
            2,
            "models[0]",
            "has 1 different members",
        ),
        (
            "models:\n- {family: cnn, count: 2, space: {kernel: {low: 1, high: 1"
            + "0" * 400
            + "}}}",
            2,
            "models[0].space.kernel",
            "at most 2**53",
        ),
        ("models:\n- {family: cnn, count: 2}", 2, "models[0]", "`count:` and `space:` go together"),
        ("models:\n- {build: 'a..b:c'}", 2, "models[0]", "no module 'a..b'"),
        (
            "models:\n- {build: 'tests.sources'}",
            2,
            "models[0]",
            "should be written module:function",
        ),
        (
            "models: [{family: softmax}]\nschedule: {rates: " + "a" * 2000 + "}",
            2,
            "schedule.rates",
            "the file aaa",
        ),
        (
            "models: [{family: softmax}]\ndata: {source: digits}",
            2,
            "data.source",
            "one of image_folder, hdf5",
        ),
        (
            "models:\n- family: cnn\n"
            "  train: {optimizer: {learning_rate: {name: CosineDecay, decay_step: 9}}}",
            3,
            "models[0].train.optimizer.learning_rate",
            "CosineDecay has no argument decay_step; its arguments are initial_learning_rate, "
            "decay",
        ),
        (
            "models: [{family: cnn}]\nresources: {engine: numpy}",
            1,
            "models[0]",
            "its families: softmax",
        ),
        (
            "models: [{family: softmaxx}]\nresources: {engine: numpy}",
            1,
            "models[0]",
            "did you mean softmax",
        ),
        (
            "models: [{family: MobileNetV2}]\nresources: {engine: numpy}",
            1,
            "models[0]",
            "its families: softmax",
        ),
        (
            "profile: {batches: 5, timed: 5}\nmodels: [{family: softmax}]",
            1,
            "profile",
            "should be less than batches: 5",
        ),
        ("models: [{family: softmax}]\n? [a, b]\n: c", 2, "?", "is a key, but not text"),
        (
            "models:\n- {family: resnet, count: 2, "
            "space: {width: {low: true, high: 9, integer: true}}}",
            2,
            "models[0].space.width.low",
            "True",
        ),
        (
            "models: [{family: softmax, args: {filters: 1}}]",
            1,
            "models[0].args.filters",
            "there are no keys here",
        ),
        *(
            (
                f"models: [{{family: softmax}}]\nschedule: {{delta: {delta}}}",
                2,
                "schedule.pace_tolerance",
                "should be written like 15% (of the fastest rate) or 20/s (samples per second)",
            )
            for delta in ("0.15", "'20'")
        ),
    ],
)
def test_load_locates_mistakes(text, line, key, message, file):
    errors = mistakes(text, file)
    assert (line, key) in [(mistake.line, mistake.key) for mistake in errors]
    assert message in "\n".join(map(str, errors))


@pytest.mark.parametrize(
    ("policy", "key", "value", "reads"),
    [
        (
            "adaptive",
            "round_end_share",
            0.5,
            "it reads none of pace_tolerance, round_end_share, literal",
        ),
        ("adaptive", "literal", True, "it reads none of pace_tolerance, round_end_share, literal"),
        # An ignored key is a mistake even with its default value.
        (
            "baseline",
            "pace_tolerance",
            "15%",
            "it reads none of pace_tolerance, round_end_share, literal",
        ),
        (
            "homogeneous",
            "pace_tolerance",
            "5%",
            "it reads none of pace_tolerance, round_end_share, literal",
        ),
        ("local", "round_end_share", 0.8, "it reads pace_tolerance, literal"),
    ],
)
def test_key_that_the_policy_ignores_is_a_mistake(policy, key, value, reads, file):
    errors = mistakes(
        f"models: [{{family: softmax}}]\nschedule:\n  policy: {policy}\n"
        f"  {key}: {json.dumps(value)}\nseed: -1",
        file,
    )
    assert [(mistake.line, mistake.key) for mistake in errors] == [
        (4, f"schedule.{key}"),
        (5, "seed"),
    ]
    assert (errors[0].wrong, errors[0].right) == (f"{policy} does not read {key}", reads)


@pytest.mark.parametrize(
    ("schedule", "policy"),
    [
        ({}, "adaptive"),
        ({"pace_tolerance": "20%"}, "global"),
        ({"round_end_share": "70%"}, "global"),
        ({"literal": True}, "global"),
        ({"policy": "local", "pace_tolerance": "20%"}, "local"),
    ],
)
def test_default_policy_follows_the_given_keys(schedule, policy):
    assert parse(SOFTMAX | {"schedule": schedule}).schedule.policy == policy


@pytest.mark.parametrize("policy", POLICIES)
def test_missing_schedule_keys_are_valid_for_all_policies(policy):
    assert (
        parse({"models": [{"family": "softmax"}], "schedule": {"policy": policy}}).options
        == Options()
    )
    document = Document(models=(ModelEntry(family="softmax"),), schedule=Schedule(policy=policy))
    assert parse(document).schedule.policy == policy


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_that_the_policy_reads_are_valid(policy):
    keys = {"pace_tolerance": "5%", "round_end_share": 0.5, "literal": True}
    schedule = {
        "policy": policy,
        **{key: value for key, value in keys.items() if OPTION_OF[key] in POLICIES[policy].reads},
    }
    assert (
        parse({"models": [{"family": "softmax"}], "schedule": schedule}).schedule.policy == policy
    )


@pytest.mark.parametrize(
    ("written", "delta"),
    [
        ("0%", Delta(0.0, relative=True)),
        ("'0%'", Delta(0.0, relative=True)),
        ("20/s", Delta(20.0, relative=False)),
    ],
)
def test_pace_tolerance_with_and_without_quotes(written, delta, file):
    file.write_text(f"models: [{{family: softmax}}]\nschedule: {{delta: {written}}}")
    assert load(file).options.delta == delta


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a [*a, *a]",
        "models: [{family: ResNet50, args: &a {x: *a}}]",
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]",
        "a: " + "[" * 60 + "]" * 60,
    ],
)
def test_read_yaml_refuses_yaml_bombs(text, file):
    (errors,) = mistakes(text, file)
    assert "expands to more than" in errors.wrong


@pytest.mark.parametrize("bracket", ["[", "{a: ", "- "])
def test_read_yaml_refuses_deep_nesting(bracket, file):
    assert "nested too deeply" in str(mistakes(bracket * 600, file)[0])


def test_load_names_unreadable_files(file, tmp_path):
    for path, message in [
        (tmp_path / "none.yaml", "does not exist"),
        (tmp_path, "is a folder"),
    ]:
        with refused(SpecError, path, message):
            load(path)
    file.write_bytes(b"name: \xff")
    with refused(SpecError, file, "UTF-8"):
        load(file)


@pytest.mark.parametrize(
    ("file_name", "content", "message"),
    [
        (
            "package/__init__.py",
            "1 / 0",
            r"ZeroDivisionError: division by zero \(.*package/__init__.py, line 1\)$",
        ),
        (
            "package/__init__.py",
            "import sys\nsys.exit('no licence')",
            r"SystemExit: no licence \(.*__init__.py, line 2\)$",
        ),
        (
            "package/__init__.py",
            "import lacking_here",
            r"'lacking_here' \(.*package/__init__.py, line 1\)$",
        ),
        (
            "package/models.py",
            "raise OSError('no\\nway')\nfor name in ['build']:\n globals()[name] = print",
            r"OSError: no way \(.*package/models.py, line 1\)$",
        ),
    ],
)
def test_failing_import_of_a_build_module_is_reported(
    tmp_path, monkeypatch, file, file_name, content, message
):
    for path in ("package/__init__.py", "package/models.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content if path == file_name else "")
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch, "package", "package.models")
    wrong = mistakes("models: [{build: 'package.models:build'}]", file)[0].wrong
    assert re.search(
        f"^model function 'package.models:build': cannot import 'package.models': .*{message}",
        wrong,
    ), wrong


def test_dynamic_build_function_is_found_by_importing(tmp_path, monkeypatch, file):
    (tmp_path / "making.py").write_text("for name in ['build']:\n    globals()[name] = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch, "making")
    file.write_text("models: [{build: 'making:build'}]\ndata: {source: 'builtin:digits'}")
    assert load(file).networks[0].architecture.target == "making:build"
    assert "making.py has no function 'biuld'" in str(
        mistakes("models: [{build: 'making:biuld'}]", file)[0]
    )


def forget(monkeypatch, *modules):
    """Unload modules now and after the test."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, module)


def test_load_imports_modules_next_to_the_spec(tmp_path, monkeypatch):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/models_beside_it.py").write_text("def build(input_shape, classes): ...")
    (tmp_path / "specs/a.yaml").write_text(
        "models: [{build: 'models_beside_it:build'}]\n"
        "data: {source: 'builtin:digits'}\ntrain: {stopping: {max_epochs: 1}}"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load("specs/a.yaml").networks[0].architecture.target == "models_beside_it:build"
    assert load_function("models_beside_it:build").__name__ == "build"


def test_schema_command_prints_docs_spec_md(capsys):
    assert main(["schema", "--markdown"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/spec.md").read_text(encoding="utf-8"), (
        "update it: fleet schema --markdown > docs/spec.md"
    )


# ---- random specs ------------------------------------------------------------------------------

GOOD = {
    "name": "x",
    "seed": 3,
    "output": "runs/x",
    "data": {
        "source": "hdf5",
        "path": "p",
        "validation": 0.2,
        "shared_memory": "1GB",
        "max_unreadable": "2%",
        "transforms": [
            "decode",
            {"resize": {"size": [8, 8]}},
            {"scale": {"mean": 0.5, "std": 0.5}},
        ],
    },
    "models": [
        {
            "family": "cnn",
            "args": {"filters": [4]},
            "gpus": [1, 2],
            "count": 2,
            "space": {
                "kernel": [1, 3, 5],
                "train.optimizer.learning_rate": {"low": 0.01, "high": 0.1, "log": True},
            },
        },
        {
            "build": "tests.sources:zeros",
            "name": "z",
            "train": {"optimizer": {"name": "adam"}, "batch": {"size": 4}},
        },
        {"family": "resnet", "grid": {"width": [4, 8], "train.batch.size": [3]}},
    ],
    "train": {
        "batch": {"size": 8, "when_scaled": "per_gpu"},
        "precision": "mixed_bfloat16",
        "xla": True,
        "optimizer": {"learning_rate": {"name": "CosineDecay", "decay_steps": 10}, "momentum": 0.9},
        "stopping": {
            "max_epochs": 3,
            "patience": 2,
            "monitor": "loss",
            "stop_at": 0.1,
            "min_delta": 0.01,
        },
    },
    "schedule": {
        "policy": "global",
        "pace_tolerance": "20/s",
        "round_end_share": 0.7,
        "literal": True,
    },
    "profile": {"batches": 4, "timed": 2, "max_gpus": 2},
    "resources": {
        "engine": "keras",
        "preprocessors": 2,
        "gpus_per_node": 2,
        "device": "cuda",
        "exchange": "mpi",
    },
    "checkpoint": {"every": "10min"},
}


def paths(tree, path=()):
    """Yield the paths of all nodes of a tree of mappings and lists."""
    yield path
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*path, key))


def changed(tree, path, change):
    """Return a tree with one node changed; the same tree if it has no node at the path."""
    if not path:
        return change(tree)
    try:
        branch = changed(tree[path[0]], path[1:], change)
    except (KeyError, IndexError, TypeError):
        return tree
    tree = copy.copy(tree)
    tree[path[0]] = branch
    return tree


ODD = [
    "",
    "..",
    "../../etc",
    "a/b",
    "a\nb",
    "1e5",
    "1e999",
    "\x00",
    "é",
    "\ud800",
    "train.",
    "train.batch",
    "adam",
    "int",
    "low",
    "9" * 400,
    "x" * 5000,
    "fleet.nope:f",
    "..:f",
    "15%",
    "yes",
    "2020-01-01",
    10**30,
    -(10**400),
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    -0.0,
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=3),
    st.sampled_from(ODD),
)
keys = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.none(),
    st.booleans(),
    st.sampled_from(
        [
            "name",
            "size",
            "optimizer",
            "train.batch",
            "train.",
            "train.optimizer.name",
            "low",
            "high",
            "blocks.2",
            "<<",
        ]
    ),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def nearly_good(draw):
    """Draw a valid spec in which some nodes are replaced or extended."""
    tree = GOOD
    for path in draw(st.lists(st.sampled_from(list(paths(GOOD))), min_size=1, max_size=3)):
        key, value, replaces = draw(keys), draw(trees), draw(st.booleans())

        def change(old, key=key, value=value, replaces=replaces):
            if isinstance(old, dict) and not replaces:
                return {**old, key: value}
            return [*old, value] if isinstance(old, list) and not replaces else value

        tree = changed(tree, path, change)
    return tree


@settings(max_examples=examples(120), deadline=None)
@given(nearly_good())
def test_load_reads_or_explains_any_content(file, content):
    try:
        text = yaml.safe_dump(content)
    except (yaml.YAMLError, TypeError):  # keys that cannot be sorted
        text = yaml.safe_dump(content, sort_keys=False)
    check_read_or_explained(text, file)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.one_of(
        st.text(max_size=30),
        st.text("{}[]:,-?!&*<>|\"' \n#%@ab10.", max_size=40),
        st.text("{}[]:,-?!&* \nab1").map(lambda text: f"models: [{{family: softmax}}]\n{text}"),
    )
)
def test_load_reads_or_explains_any_text(file, text):
    check_read_or_explained(text, file)


def check_read_or_explained(text, file):
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        spec = load(file)
    except SpecError as caught:
        error = caught
    else:
        file.write_text(dump(spec.document), encoding="utf-8")
        assert load(file) == spec
        return
    assert len(str(error).splitlines()) == 1 + len(error.mistakes) >= 2


# ---- round trips -------------------------------------------------------------------------------

names = st.sampled_from(["a", "1e5", "1.5", "07", "yes", "null", "A.b-c_d", "2020-01-01", "1_0"])
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab1e-.: #'\"é\n", max_size=6),
    st.lists(st.integers(1, 3), max_size=2),
)
optimizers = st.one_of(
    st.fixed_dictionaries(
        {"name": st.just("sgd")},
        optional={
            "momentum": st.sampled_from([None, 0.0, 0.9]),
            "nesterov": st.booleans(),
            "learning_rate": st.sampled_from(
                [1e-5, 1, {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 1e3}]
            ),
        },
    ),
    st.fixed_dictionaries(
        {"name": st.sampled_from(["adam", "adamw"])},
        optional={
            "beta_1": st.sampled_from([None, 0.5]),
            "epsilon": st.just(1e-7),
            "weight_decay": st.just(0.0),
        },
    ),
)
trains = st.fixed_dictionaries(
    {},
    optional={
        "batch": st.fixed_dictionaries(
            {}, optional={"size": st.integers(1, 200), "when_scaled": st.just("per_gpu")}
        ),
        "optimizer": optimizers,
        "xla": st.booleans(),
        "precision": st.sampled_from(["float32", "mixed_float16"]),
        "stopping": st.fixed_dictionaries(
            {},
            optional={
                "patience": st.sampled_from([None, 3]),
                "stop_at": st.sampled_from([None, 0, 0.5]),
                "monitor": st.just("val_loss"),
            },
        ),
    },
)
entries = st.one_of(
    st.fixed_dictionaries(
        {"build": st.just("tests.sources:zeros")},
        optional={
            "args": st.dictionaries(names, values, max_size=2),
            "gpus": st.sampled_from([None, 3, [1, 2]]),
            "train": trains,
            "grid": st.dictionaries(names, st.lists(values, min_size=1, max_size=2), max_size=2),
        },
    ),
    st.fixed_dictionaries(
        {
            "family": st.just("cnn"),
            "count": st.just(2),
            "space": st.sampled_from(
                [
                    {"dropout": [0.0, 0.1, 0.2]},
                    {"kernel": {"low": 1, "high": 9, "integer": True}, "norm": ["none"]},
                    {"train.optimizer.learning_rate": {"low": 1e-5, "high": 1, "log": True}},
                ]
            ),
        }
    ),
)
documents = st.fixed_dictionaries(
    {
        "models": st.lists(entries, min_size=1, max_size=3).map(
            lambda items: [{**item, "name": f"n{number}"} for number, item in enumerate(items)]
        )
    },
    optional={
        "name": names,
        "seed": st.integers(0, 2**64 - 1),
        "output": names,
        "train": trains,
        "data": st.fixed_dictionaries(
            {},
            optional={
                "path": names,
                "validation": st.sampled_from([None, 0.5, "folder", "1e5"]),
                "max_unreadable": st.just("50%"),
                "shared_memory": st.sampled_from(["2GB", "1.5MiB", 10**6]),
                "transforms": st.sampled_from([[], ["decode", {"rotate": {"degrees": 10}}]]),
            },
        ),
        "schedule": st.fixed_dictionaries(
            {},
            optional={
                "pace_tolerance": st.sampled_from(["20/s", "0/s", " 0.5 % ", "15%"]),
                "literal": st.booleans(),
            },
        ),
        "resources": st.fixed_dictionaries(
            {}, optional={"preprocessors": st.sampled_from([0, 1, "auto"])}
        ),
        "checkpoint": st.sampled_from([{}, {"every": None}, {"every": "90s"}]),
    },
)


@settings(max_examples=examples(60), deadline=None)
@given(documents)
def test_dump_and_load_round_trip(file, content):
    spec = parse(content)
    file.write_text(dump(spec.document), encoding="utf-8")
    assert load(file) == spec
    assert dump(load(file).document) == dump(spec.document)


@settings(max_examples=examples(30), deadline=None)
@given(documents)
def test_json_schema_accepts_parsed_specs(content):
    parse(content)
    assert list(complaints(content, json_schema())) == []


@pytest.mark.parametrize("content", [GOOD, SOFTMAX])
def test_json_schema_accepts_valid_specs(content):
    assert list(complaints(content, json_schema())) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nmae",), "x"),
        (("data", "transforms", 1), {"resize": {"sise": 4}}),
        (("data", "order"), "rings"),
        (("models", 0, "args"), {"filtres": [4]}),
        (("models", 1, "build"), "zeros"),
        (("models", 1, "train"), {"batch": {"sise": 4}}),
        (("models", 2, "args"), {"stem": "large"}),
        (("train", "optimizer", "learning_rate"), {"name": "Cosine"}),
        (("train", "optimizer", "learning_rate"), {"name": "CosineDecay", "decay_step": 3}),
        (("train", "stopping", "monitor"), 3),
        (("data", "max_unreadable"), "much"),
        (("resources", "engine"), "jax"),
        (("checkpoint", "every"), "ten minutes"),
        (("checkpoint", "keep"), "all"),
        (("data", "shared_memory"), []),
        (("models", 0, "gpus"), [1]),
        (("models", 0, "space", "kernel"), {"low": 1}),
        (("train", "batch", "size"), "8"),
        (("schedule", "alpha"), 2),
        (("schedule", "delta"), "20"),
        (("resources", "preprocessors"), "some"),
        (("models", 0, "count"), 20000),
        (("models",), []),
    ],
)
def test_json_schema_refuses_mistakes(path, value):
    *parent, last = path
    content = changed(
        GOOD,
        parent,
        lambda old: {**old, last: value} if isinstance(old, dict) else [value, *old[1:]],
    )
    assert list(complaints(content, json_schema()))


def test_document_made_in_code_equals_a_file(file):
    from fleet.spec import ModelEntry, Optimizer, Train

    document = Document(
        models=(ModelEntry(family="softmax"),), train=Train(optimizer=Optimizer(name="adam"))
    )
    file.write_text("models: [{family: softmax}]\ntrain: {optimizer: {name: adam}}")
    assert load(file).document == document


def test_section_mistake_omits_merged_defaults(file):
    errors = mistakes(
        """\
data: {path: photos}
models:
  - {family: softmax, train: {loss: msee}}
  - {family: softmax, name: b, train: {loss: mse}}
train:
  batch: {size: 8}
  stopping:
    monitor: val_mae
""",
        file,
    )
    assert [(error.line, error.key) for error in errors] == [
        (3, "models[0].train.loss"),
        (8, "train.stopping.monitor"),
    ]
    assert "the keras engine has no loss 'msee'" in errors[0].wrong
    assert errors[0].right == "use a name that the engine has, or an import path module:function"
    assert "'val_mae' is not computed" in errors[1].wrong
    assert "should be one of loss, accuracy" in errors[1].right
    assert not any("when_scaled" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("objective", "stopping"),
    [
        ({"value": "val_quantile", "mode": "minimize"}, {"direction": "max"}),
        ({"value": "val_loss", "mode": "maximize"}, {"direction": "min"}),
    ],
)
def test_contradicting_objective_and_direction_are_refused(objective, stopping):
    entry = {
        "family": "cnn",
        "space": {"dropout": [0.1, 0.2]},
        "search": {"max_trials": 2, "objectives": [objective]},
        "train": {"metrics": ["mine:quantile"], "stopping": stopping},
    }
    with pytest.raises(SpecError) as refusal:
        parse({"models": [entry]})
    keys = [mistake.key for mistake in refusal.value.mistakes]
    assert "models[0].search.objectives[0].mode" in keys


def test_custom_metric_named_accuracy_has_its_own_column():
    train = {"metrics": ["mine:accuracy"], "stopping": {"monitor": "val_accuracy"}}
    (network,) = parse({"train": train, "models": [{"family": "cnn"}]}).networks
    assert [label_of(metric) for metric in network.train.metrics] == ["mine.accuracy"]
    with refused(SpecError, "train.metrics", "'accuracy'"):
        parse(
            {"train": {"metrics": [{"AUC": {"name": "accuracy"}}]}, "models": [{"family": "cnn"}]}
        )
