"""Tests of model families and architectures, without Keras."""

import json
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from fleet.errors import SpecError, UserError
from fleet.spec import entries, parse
from fleet.spec import model as kinds
from fleet.spec.layers import count_parameters
from tests.refusals import refused

IMAGENET = (224, 224, 3)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [  # the counts that keras.io/api/applications states
        (kinds.ResNet(), 25_636_712),
        (kinds.ResNet(blocks=(3, 4, 23, 3)), 44_707_176),
        (kinds.ResNet(blocks=(3, 8, 36, 3)), 60_419_944),
        (kinds.DenseNet(), 8_062_504),
        (kinds.DenseNet(blocks=(6, 12, 32, 32)), 14_307_880),
        (kinds.DenseNet(blocks=(6, 12, 48, 32)), 20_242_984),
    ],
)
def test_imagenet_settings_have_the_published_parameter_counts(settings, parameters):
    assert count_parameters(settings, IMAGENET, classes=1000) == parameters


def test_count_parameters_of_a_cnn():
    # 3x3 convolution 1 -> 4 with bias: 40, normalization 16; 5x5 pixels pool to 2x2: 16 features;
    # 16 -> 8: 136; 8 -> 3: 27
    settings = kinds.CNN(filters=(4,), dense=(8,))
    assert count_parameters(settings, (5, 5, 1), classes=3) == 40 + 16 + 136 + 27


def test_count_parameters_of_an_mlp():
    # 6 -> 4 with bias: 28, normalization 16; 4 -> 2: 10, normalization 8; 2 -> 3: 9
    settings = kinds.MLP(hidden=(4, 2), norm="batch")
    assert count_parameters(settings, (6,), classes=3) == 28 + 16 + 10 + 8 + 9
    assert count_parameters(settings, (2, 3), classes=3) == 28 + 16 + 10 + 8 + 9


def test_count_parameters_of_small_resnets():
    # 3x3 stem 1 -> 2: 20; two convolutions 2 -> 2: 2 * 38; classifier 2 -> 3: 9
    settings = kinds.ResNet(blocks=(1,), width=2, norm="none")
    assert count_parameters(settings, (32, 32, 1), classes=3) == 20 + 76 + 9
    # 7x7 stem: 100; projection 2 -> 8: 24; 1x1, 3x3, 1x1: 6 + 38 + 24; classifier 8 -> 3: 27
    assert count_parameters(settings, (96, 96, 1), classes=3) == 100 + 24 + 68 + 27


@pytest.mark.parametrize(
    ("settings", "side", "smallest"),
    [
        (kinds.DenseNet(), 7, 8),
        (kinds.DenseNet(stem="imagenet"), 28, 29),
        (kinds.CNN(filters=(8, 8, 8)), 7, 8),
    ],
)
def test_check_input_refuses_too_small_images(settings, side, smallest):
    with refused(UserError, f"{smallest}x{smallest} pixels", f"{side}x{side}"):
        count_parameters(settings, (side, side, 3), classes=10)
    count_parameters(settings, (smallest, smallest, 3), classes=10)


@pytest.mark.parametrize(
    ("family", "args", "key"),
    [
        ("resnet", {"blocks": []}, "blocks"),
        ("resnet", {"blocks": [2, 0]}, "blocks"),
        ("resnet", {"width": True}, "width"),
        ("resnet", {"bottleneck": "yes"}, "bottleneck"),
        ("densenet", {"compression": 0.0}, "compression"),
        ("densenet", {"stem": "huge"}, "stem"),
        ("cnn", {"dropout": 1.0}, "dropout"),
        ("cnn", {"width": 4}, "width"),
        ("mlp", {"hidden": []}, "hidden"),
        ("softmax", {"width": 4}, "width"),
    ],
)
def test_invalid_settings_name_their_key(family, args, key):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kinds.FAMILIES[family]).validate_python(args)
    assert {error["loc"][0] for error in caught.value.errors()} == {key}


# --- one network ---------------------------------------------------------------------------


def test_architecture_ignores_default_values():
    short = kinds.Architecture("cnn", {"filters": [32, 64]})
    long = kinds.Architecture("cnn", {"kernel": 3, "dropout": 0, "filters": (32, 64)})
    assert (short == long, hash(short) == hash(long), short.key == long.key) == (True, True, True)
    assert short != kinds.Architecture("cnn", {"filters": [32]})


def test_architecture_round_trip_through_json():
    model = kinds.Architecture("my_models:build", {"depth": 4, "heads": [1, 2]})
    assert kinds.Architecture(**json.loads(model.key)) == model


@pytest.mark.parametrize(
    ("target", "kind"),
    [("resnet", "family"), ("ResNet50", "application"), ("package.models:build", "import")],
)
def test_architecture_kind(target, kind):
    assert kinds.Architecture(target).kind == kind


def test_architecture_refuses_values_that_are_not_json():
    with refused(UserError, "arguments of m:f", "object is not JSON serializable"):
        kinds.Architecture("m:f", {"x": object()})


def test_check_target_suggests_close_matches():
    with refused(UserError, "'resnte'", "(did you mean resnet"):
        kinds.check_target("resnte")
    if kinds.application_names():  # Keras is installed
        with refused(UserError, "'mobilenet_v2'", "did you mean MobileNetV2"):
            kinds.check_target("mobilenet_v2")
        kinds.check_target("ResNet50")
    kinds.check_target("resnet")


# --- custom functions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_here:build", "cannot import 'no_such_module_here'"),
        (
            "broken_model:build",
            r"cannot import 'broken_model': ValueError: two lines \(.*broken_model.py, line 1\)",
        ),
        (
            "exiting_model:build",
            r"'exiting_model': SystemExit: no license \(.*exiting_model.py, line 2\)$",
        ),
        ("misusing_model:build", r"ValueError: shape mismatch: .*\(.*misusing_model.py, line 2\)$"),
        (
            "lacking_model:build",
            r"ModuleNotFoundError: No module named 'not_here' \(.*lacking_model.py, line 2\)$",
        ),
        (
            "garbled_model:build",
            r"SyntaxError: '\(' was never closed \(.*/garbled_model.py, line 2\)$",
        ),
        ("math:hypott", "module 'math' has no 'hypott'"),
        ("math:pi", "is a float, not a function"),
        ("math:", "'math:' is not an import path module:function"),
    ],
)
def test_load_function_reports_errors_in_one_line(path, message, tmp_path, monkeypatch):
    for name, content in (
        ("broken", "raise ValueError('two\\nlines')"),
        ("exiting", "import sys\nsys.exit('no license')"),
        ("misusing", "import numpy\nnumpy.broadcast_shapes((2, 3), (4, 5))"),
        ("lacking", "import os\nimport not_here"),
        ("garbled", "def build():\n    return (1\n"),
    ):
        (tmp_path / f"{name}_model.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        kinds.load_function(path)
    assert "\n" not in str(caught.value)


def test_misspelled_family_is_named_without_keras(monkeypatch):
    for module in (kinds, entries):
        monkeypatch.setattr(module, "application_names", lambda *package: ())
    content = {"models": [{"family": "softmaxx"}], "resources": {"engine": "numpy"}}
    with pytest.raises(SpecError, match=r"'softmaxx' is not a family \(did you mean softmax"):
        _ = parse(content).networks
    content["models"][0]["family"] = "cnn"
    with pytest.raises(SpecError, match="the numpy engine cannot train cnn"):
        _ = parse(content).networks


def test_families_and_application_names_load_no_keras():
    code = (
        "import sys, fleet.spec.model as f, fleet.spec.layers as p, fleet.spec.space; "
        "f.application_names(); p.count_parameters(f.ResNet(), (32, 32, 3), 10); "
        "packages = {name.split('.')[0] for name in sys.modules}; "
        "sys.exit(bool(packages & {'keras', 'tensorflow', 'mpi4py'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
