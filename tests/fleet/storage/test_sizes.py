"""Estimated sizes of checkpoints, before a run."""

import pytest

from fleet.errors import UserError
from fleet.spec.layers import count_parameters
from fleet.storage.quota import check_quota, folder_bytes
from preprocess.sample import ArraySpec, SampleSpec
from tests.fleet.histories import SAMPLE, spec
from tests.refusals import refused

SOFTMAX = (4 * 4 + 1) * 3 * 2 * 8  # weights and velocities of the networks below, in float64


@pytest.mark.parametrize(("keep", "min_size"), [("best+last", 5 * SOFTMAX), ("last", 3 * SOFTMAX)])
def test_check_quota_refuses_a_small_quota(keep, min_size):
    models = [{"family": "softmax", "name": name} for name in ("a", "b")]
    check_quota(spec(*models, checkpoint={"quota": min_size, "keep": keep}), SAMPLE)
    with refused(UserError, "checkpoint.quota", "2 networks"):
        check_quota(spec(*models, checkpoint={"quota": min_size - 1, "keep": keep}), SAMPLE)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [({"name": "sgd"}, 1), ({"name": "sgd", "momentum": 0.9}, 2), ({"name": "adamw"}, 3)],
)
def test_check_quota_counts_the_optimizer_state(optimizer, copies):
    def make_spec(quota):
        return spec(
            {"family": "cnn"},
            resources={"engine": "keras"},
            train={"optimizer": optimizer},
            checkpoint={"quota": quota},
        )

    settings = make_spec(1).networks[0].architecture.settings
    min_size = 3 * 4 * copies * count_parameters(settings, (32, 32, 3), 3)
    sample = SampleSpec(ArraySpec((32, 32, 3), "uint8"), 3)
    check_quota(make_spec(min_size), sample)
    with pytest.raises(UserError):
        check_quota(make_spec(min_size - 1), sample)


def test_check_quota_ignores_networks_of_unknown_size():
    check_quota(spec({"build": "tests.sources:zeros"}, checkpoint={"quota": 1}), SAMPLE)


def test_check_quota_ignores_emulated_engines(tmp_path):
    (tmp_path / "rates.json").touch()
    check_quota(
        spec(
            checkpoint={"quota": 1},
            resources={"engine": "emulated"},
            schedule={"rates": str(tmp_path / "rates.json")},
        ),
        SAMPLE,
    )


@pytest.mark.parametrize(("keep", "copies"), [("best+last", 4), ("last", 3)])
def test_folder_bytes_cover_kept_temporary_and_export(keep, copies):
    make_spec = spec(checkpoint={"keep": keep})
    assert folder_bytes(100, make_spec.networks[0], make_spec) == copies * 100 * 2 * 8 + 400
