"""Tests of the JSON Schema that editors use, and of the page that is generated from it."""

import re

import pytest
import yaml

from fleet.spec import json_schema, read_yaml
from fleet.spec.documentation import page
from fleet.spec.model import FAMILIES, application_names
from fleet.units import parse_duration, parse_share, parse_size
from fleet.vocabulary.optimizers import OPTIMIZERS
from fleet.vocabulary.schedules import SCHEDULES
from fleet.vocabulary.torch_optimizers import TORCH_OPTIMIZERS
from fleet.vocabulary.torch_schedules import TORCH_SCHEDULES
from preprocess.source import SOURCES
from preprocess.transforms import TRANSFORMS
from scheduler.ensemble.policies import POLICIES
from tests.fleet.json_schema import complaints
from tests.places import ROOT

SCHEMA = json_schema()
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def keys(schema, prefix=""):
    """Yield every key of a schema with its description; references are followed."""
    if isinstance(schema, list):
        for option in schema:
            yield from keys(option, prefix)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield from keys(_target(schema), prefix)
        for key, value in schema.get("properties", {}).items():
            yield f"{prefix}.{key}".removeprefix("."), value
            yield from keys(value, f"{prefix}.{key}")
        for keyword in (
            "anyOf",
            "oneOf",
            "allOf",
            "items",
            "prefixItems",
            "additionalProperties",
            "then",
        ):
            yield from keys(schema.get(keyword), prefix)


def _target(schema):
    return SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]


# Reversed, so that the description of a key wins over the descriptions of its alternatives.
KEYS = dict(reversed(list(keys(SCHEMA))))


def help_of(key):
    return KEYS[key].get("description") or _target(KEYS[key])["description"]


def choices(schema):
    """Return the names that an editor offers."""
    if "$ref" in schema:
        return choices(_target(schema))
    direct = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {*direct, *(name for option in schema.get("anyOf", []) for name in choices(option))}


def test_keys_cover_all_sections():
    assert {
        "models.family",
        "models.args.blocks",
        "models.space.low",
        "models.train.optimizer.beta_1",
        "data.shared_memory",
        "data.transforms.random_crop.padding",
        "train.optimizer.learning_rate.decay_steps",
        "schedule.pace_tolerance",
        "checkpoint.every",
        "walltime",
    } <= KEYS.keys()
    assert len(KEYS) > 120


@pytest.mark.parametrize("key", KEYS)
def test_json_schema_describes_every_key(key):
    description = help_of(key)
    assert len(description.split()) >= 5, description
    assert not re.search(r"see there|unless said|``|Args:", description)


@pytest.mark.parametrize(
    ("key", "names"),
    {
        "data.source": SOURCES,
        "data.order": ["strict", "ring"],
        "data.cache": ["auto", "none", "memory", "file"],
        "models.family": [*FAMILIES, *application_names()],
        "models.args.norm": ["batch", "none"],
        "models.train.optimizer.name": [*OPTIMIZERS, *TORCH_OPTIMIZERS],
        "train.batch.when_scaled": ["fixed", "per_gpu"],
        "train.stopping.monitor": ["val_accuracy", "val_loss", "accuracy", "loss"],
        "train.precision": ["float32", "mixed_float16", "mixed_bfloat16"],
        "schedule.policy": POLICIES,
        "resources.engine": ["keras", "torch", "numpy", "emulated"],
        "resources.device": ["auto", "cuda", "rocm", "xpu", "cpu"],
        "resources.exchange": ["auto", "horovod", "mpi", "library"],
        "resources.preprocessors": ["auto"],
        "resources.gpus_per_node": ["auto"],
        "checkpoint.keep": ["best+last", "last"],
        "data.transforms.decode.mode": ["RGB", "L"],
    }.items(),
)
def test_json_schema_lists_choices(key, names):
    assert choices(KEYS[key]) == set(names)


def test_json_schema_lists_transforms_and_schedules():
    bare, _, mapping = KEYS["data.transforms"]["oneOf"][0]["items"]["anyOf"]
    # The other transforms need parameters.
    assert bare["enum"] == [
        "decode",
        "random_grayscale",
        "random_erasing",
        "scale",
        "standardize",
    ]
    assert set(mapping["properties"]) == set(TRANSFORMS)
    _, *schedules = KEYS["train.optimizer.learning_rate"]["anyOf"]
    names = [schedule["properties"]["name"] for schedule in schedules]
    assert [name["const"] for name in names[:-2]] == list(SCHEDULES)
    name_of_class, _ = names[-2]["anyOf"]  # or an import path
    assert name_of_class["enum"] == list(TORCH_SCHEDULES)


@pytest.mark.parametrize("key", ["data.source", "models.build", "schedule.policy"])
@pytest.mark.parametrize(
    ("path", "is_valid"),
    [
        ("my_module:function", True),
        ("package.module:function", True),
        ("nothing", False),
        ("a: b", False),
    ],
)
def test_json_schema_accepts_import_paths(key, path, is_valid):
    assert (not list(complaints(path, KEYS[key], SCHEMA))) == is_valid


@pytest.mark.parametrize(
    ("key", "parse"),
    [
        ("data.shared_memory", parse_size),
        ("data.data_timeout", parse_duration),
        ("data.max_unreadable", parse_share),
        ("schedule.round_end_share", parse_share),
    ],
)
def test_json_schema_formats_defaults(key, parse):
    from fleet.spec import Data, Schedule

    part, name = key.split(".")
    assert parse(KEYS[key]["default"]) == getattr(
        {"data": Data, "schedule": Schedule}[part](), name
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_json_schema_accepts_the_examples(example):
    assert list(complaints(read_yaml(example)[0], SCHEMA)) == []


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ("schedule: {policy: golbal}", "spec.schedule"),
        ("schedule: {pace_tolerance: 0.15}", "spec.schedule.pace_tolerance"),
        ("data: {source: imagefolder}", "spec.data"),
        ("data: {transform: [decode]}", "spec.data"),
        ("data: {shared_memory: 2 gigabytes}", "spec.data.shared_memory"),
        ("data: {transforms: [flip]}", "spec.data.transforms[0]"),
        ("data: {transforms: {image: [flip]}}", "spec.data.transforms.image[0]"),
        ("data: {together: image}", "spec.data.together"),
        ("data: {pad: {tokens: {size: 40}}}", "spec.data.pad"),
        ("train: {step: my_steps}", "spec.train.step"),
        ("train: {optimizer: {name: SDG}}", "spec.train.optimizer.name"),
        ("train: {optimizer: {name: torch.optim.AdmaW}}", "spec.train.optimizer.name"),
        ("train: {optimizer: {groups: [{weight_decay: 0}]}}", "spec.train.optimizer.groups"),
        (
            "train: {optimizer: {groups: [{match: a, use_ema: true}]}}",
            "spec.train.optimizer.groups",
        ),
        ("train: {epoch: 3}", "spec.train"),
        ("train: {epochs: many}", "spec.train.epochs"),
        ("train: {optimizer: SDG}", "spec.train.optimizer"),
        ("models: {family: resnet}", "spec.models"),
        ("models: [resnet]", "spec.models[0]"),
        ("models: [{family: ResNet}]", "spec.models[0].family"),
        ("walltime: two hours", "spec.walltime"),
        ("models: [{family: resnet, args: {depth: 3}}]", "spec.models[0].args"),
        ("retries: -1", "spec.retries"),
    ],
)
def test_json_schema_locates_mistakes(wrong, key):
    content = {"models": [{"family": "softmax"}], **yaml.safe_load(wrong)}
    assert any(complaint.startswith(key) for complaint in complaints(content, SCHEMA))


@pytest.mark.parametrize(
    "written",
    [
        "data: {options: {inputs: {photo: {files: path}, facts: [age, height]}}}",
        "data: {transforms: {image: [decode], depth: []}, together: [image, depth]}",
        "data: {target: none}",
        "data: {target: {price: value, kind: {kind: class, outputs: 3}}}",
        "data: {pad: {tokens: {to: longest, value: 0}, events: {to: 40}}}",
        "models: [{build: 'my:network', output: logits}]",
        "models: [{family: softmax, data: {transforms: {image: ['my:crop']}}}]",
        "train: {step: 'my:step', optimizers: 'my:optimizers'}",
        "train: {batch_transforms: [cutmix, {mixup: {alpha: 0.2}}, 'my:f', {'my:g': {a: 1}}]}",
        "train: {compile: true}",
        "train: {loss: {nn.CrossEntropyLoss: {label_smoothing: 0.1}}}",
        "train: {loss: {price: {huber: {delta: 2}}, kind: nn.CrossEntropyLoss}}",
        "train: {loss_weights: {price: 1, kind: 0.5}, metrics: {price: [mae], kind: [AUC]}}",
        "train: {label_smoothing: {kind: 0.1}, class_weights: {kind: {a: 2, b: 1}}}",
        "train: {metrics: [torchmetrics.classification.MulticlassF1Score]}",
        "train: {optimizer: AdamW, epochs: 3, batch_size: 8}",
        "train: {batch_size: [8, 64]}",
        "train: {optimizer: {name: AdamW, lr: 0.1, betas: [0.9, 0.95], eps: 1.0e-9}}",
        "train: {optimizer: {name: torch.optim.SGD}}",
        "train: {optimizer: {groups: [{match: ['*.bias', 'norm*'], weight_decay: 0}]}}",
        "train: {optimizer: {groups: [{match: 'head.*', lr: 1.0e-2, betas: [0.8, 0.9]}]}}",
        "train: {optimizer: {lr: {name: CosineDecay, decay_epochs: 5, warmup_epochs: 1}}}",
        "train: {optimizer: {learning_rate: {name: StepLR, step_size: 5, every: epoch}}}",
        "train: {optimizer: {lr: {name: torch.optim.lr_scheduler.StepLR, step_size: 5}}}",
        "train: {optimizer: {learning_rate: {name: ReduceLROnPlateau, factor: 0.5}}}",
        "train: {optimizer: {learning_rate: {name: 'my:schedule', every: step, a: 0.5}}}",
        "defaults: 0.2",
    ],
)
def test_json_schema_accepts_what_specs_accept(written):
    content = {"models": [{"family": "softmax"}], **yaml.safe_load(written)}
    assert list(complaints(content, SCHEMA)) == []


def test_page_describes_every_key():
    lines = page().splitlines()
    for key in KEYS:
        section, _, name = key.rpartition(".")
        if section.removeprefix("models.") == "data.transforms":
            assert f"## data.transforms: {name}" in lines
            assert help_of(key) in lines
        else:
            assert any(
                line.startswith(f"| `{name}` |") and help_of(key) in line for line in lines
            ), key
