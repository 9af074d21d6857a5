"""What the checkpoints of a run may take."""

import pytest

from fleet.errors import StorageError, UserError
from fleet.spec import Checkpoint
from fleet.storage.paths import RunPaths
from fleet.storage.quota import Quota, check_quota
from preprocess.sample import ImageSpec, SampleSpec
from tests.fleet.histories import SAMPLE, spec


@pytest.fixture
def paths(tmp_path):
    """Two networks with 100 bytes for each of their three checkpoints."""
    paths = RunPaths(tmp_path)
    for name in ("a", "b"):
        paths.model(name).mkdir(parents=True)
        for path in (paths.last(name), paths.previous(name), paths.best(name)):
            path.write_bytes(bytes(100))
    return paths


def left(paths):
    return {f"{path.parent.name}/{path.stem}" for path in paths.root.rglob("*.h5")}


BASE = {"a/last", "a/best", "b/last", "b/best"}


@pytest.mark.parametrize(("quota", "kept"), [
    (None, {"a/previous", "b/previous"}), (700, {"a/previous", "b/previous"}), (699, {"a/previous"}),
    (600, {"a/previous"}), (599, set()), (500, set())])
def test_the_checkpoints_before_the_newest_make_room_first_that_of_the_network_that_writes(paths, quota, kept):
    Quota(paths, Checkpoint(quota=quota)).make_room(paths.last("b"), 100)
    assert left(paths) == BASE | kept


def test_what_one_goes_on_from_is_never_dropped_and_the_run_is_told_what_to_do(paths):
    with pytest.raises(StorageError, match=r"b/last.h5 cannot be written: with its 101 B the checkpoints would take "
                                           r"501 B, and checkpoint.quota is 500 B; .*raise the quota"):
        Quota(paths, Checkpoint(quota=500)).make_room(paths.last("b"), 101)
    assert left(paths) == BASE


def test_a_run_without_checkpoints_takes_nothing(tmp_path):
    assert Quota(RunPaths(tmp_path / "none"), Checkpoint()).used() == 0


SOFTMAX = (4 * 4 + 1) * 3 * 2 * 8  # weights and velocities of the networks below, in float64


@pytest.mark.parametrize(("keep", "least"), [("best+last", 5 * SOFTMAX), ("last", 3 * SOFTMAX)])
def test_a_quota_that_cannot_be_enough_is_refused_before_the_run(keep, least):
    models = [{"family": "softmax", "name": name} for name in ("a", "b")]
    check_quota(spec(*models, checkpoint={"quota": least, "keep": keep}), SAMPLE)
    with pytest.raises(UserError, match=r"checkpoint.quota: .* is too little: .* of 2 networks, and one being written"):
        check_quota(spec(*models, checkpoint={"quota": least - 1, "keep": keep}), SAMPLE)


@pytest.mark.parametrize(("optimizer", "copies"), [
    ({"name": "sgd"}, 1), ({"name": "sgd", "momentum": 0.9}, 2), ({"name": "adamw"}, 3)])
def test_what_the_optimizer_keeps_counts(optimizer, copies):
    def asked(quota):
        return spec({"family": "cnn"}, resources={"engine": "keras"}, train={"optimizer": optimizer},
                    checkpoint={"quota": quota})

    from fleet.spec.parameters import count_parameters

    settings = asked(1).networks[0].architecture.settings
    least = 3 * 4 * copies * count_parameters(settings, (32, 32, 3), 3)
    sample = SampleSpec(ImageSpec((32, 32, 3), "uint8"), 3)
    check_quota(asked(least), sample)
    with pytest.raises(UserError):
        check_quota(asked(least - 1), sample)


def test_networks_that_only_building_would_measure_are_not_judged_before():
    check_quota(spec({"build": "tests.sources:zeros"}, checkpoint={"quota": 1}), SAMPLE)
