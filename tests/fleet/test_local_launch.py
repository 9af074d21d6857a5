"""A launch that this process starts, and that the user stops."""

import pytest
import yaml

from fleet import local_launch
from fleet.local_launch import StoppedEarly


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    content = {
        "models": [{"family": "softmax"}],
        "data": {"source": "builtin:digits"},
        "output": str(tmp_path / "run"),
    }
    path.write_text(yaml.safe_dump(content))
    return path


def begin(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("{}\n")


def test_launch_that_begins_while_it_is_ended_was_stopped_early(spec, tmp_path, monkeypatch):
    def run_quietly(words, explained, log, environment, can_save, interrupts):
        assert not can_save()
        begin(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_launch, "run_quietly", run_quietly)
    with pytest.raises(StoppedEarly):
        local_launch.run([str(spec)], 2, ["python"])


def test_launch_that_is_ended_while_it_saves_was_not(spec, tmp_path, monkeypatch):
    def run_quietly(words, explained, log, environment, can_save, interrupts):
        begin(tmp_path)
        assert can_save()
        raise KeyboardInterrupt

    monkeypatch.setattr(local_launch, "run_quietly", run_quietly)
    with pytest.raises(KeyboardInterrupt) as error:
        local_launch.run([str(spec)], 2, ["python"])
    assert not isinstance(error.value, StoppedEarly)
