"""What ``fleet check`` says about optimizers of PyTorch that meant something else in FLEET 0.2."""

import pytest
import yaml

from fleet.spec import load
from fleet.storage.run_spec import changed_defaults


def notice_of(tmp_path, optimizer, engine="torch", **keys):
    path = tmp_path / "spec.yaml"
    content = {
        "models": [{"family": "softmax"}],
        "resources": {"engine": engine},
        "train": {"optimizer": optimizer},
        "output": str(tmp_path / "run"),
        **keys,
    }
    path.write_text(yaml.safe_dump(content))
    return changed_defaults(load(path))


def test_changed_default_of_torch_is_named(tmp_path):
    notice = notice_of(tmp_path, {"name": "adamw", "lr": 0.1})
    assert "adamw: eps 1e-08, was 1e-07; adamw: weight_decay 0.01, was 0.004" in notice
    assert "learning_rate" not in notice
    assert "sgd: learning_rate 0.001, was 0.01" in notice_of(tmp_path, {"momentum": 0.9})
    assert "was taken off the weights" in notice_of(tmp_path, {"lr": 0.1, "weight_decay": 0.1})


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        ({"name": "adam", "lr": 0.1, "eps": 1e-8}, {}),
        ({"name": "adam", "lr": 0.1, "epsilon": 1e-8}, {}),
        ({"name": "sgd", "lr": 0.1}, {}),
        ({"name": "radam"}, {}),
        ({"name": "adam"}, {"defaults": "0.3"}),
        ({"name": "adam"}, {"defaults": "0.2"}),
        ({"name": "adam"}, {"engine": "keras"}),
    ],
    ids=str,
)
def test_spec_without_changed_defaults_has_no_notice(tmp_path, optimizer, keys):
    assert notice_of(tmp_path, optimizer, **keys) == ""
