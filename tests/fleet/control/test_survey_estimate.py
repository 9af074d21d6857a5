"""The estimated duration of measurements, compared with results by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.control.measurement import MeasurementEstimate, RateMeasurement, estimate_duration
from fleet.spec import Profile, parse
from scheduler.base import Network, RateTable

BATCHES, SIZE = 10, 100  # 1000 samples each


def make_measurement(rates, devices, prior=None, max_gpus=1, gpus_per_node=2):
    """Return the measurements of networks with these rates, and the table of the rates."""
    networks = parse(
        {
            "models": [{"family": "softmax", "name": name} for name in rates],
            "train": {"batch": {"size": SIZE}},
        }
    ).networks
    table = RateTable(1, gpus_per_node, tuple(Network(name, rate) for name, rate in rates.items()))
    return RateMeasurement(
        networks,
        {name: name for name in rates},
        Profile(batches=BATCHES, timed=4, max_gpus=max_gpus),
        devices,
        gpus_per_node,
        {name: dict(of) for name, of in (prior or {}).items()},
    ), table


@pytest.mark.parametrize(
    ("rates", "devices", "options", "expected"),
    [
        ({"a": (100.0,)}, 1, {}, (1, 12.0)),
        ({"a": (100.0,), "b": (50.0,)}, 1, {}, (2, 34.0)),
        ({"a": (100.0,), "b": (50.0,)}, 2, {}, (2, 22.0)),
        ({"a": (100.0,), "b": (50.0,)}, 2, {"prior": {"b": {1: 50.0}}}, (1, 12.0)),
        ({"a": (100.0,)}, 1, {"prior": {"a": {1: 100.0}}}, (0, 0.0)),
        ({"a": (100.0, 200.0)}, 2, {"max_gpus": 2}, (2, 12.0 + 7.0)),
    ],
)
def test_estimate_runs_measurements_and_builds_side_by_side(rates, devices, options, expected):
    assert estimate_duration(
        *make_measurement(rates, devices, **options), build_s=2.0
    ) == MeasurementEstimate(*expected)


@given(st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=8), st.integers(1, 4))
def test_estimate_is_between_total_work_and_serial_time(rates, devices):
    actual = estimate_duration(
        *make_measurement({f"n{number}": (rate,) for number, rate in enumerate(rates)}, devices),
        build_s=0.5,
    )
    work = [0.5 + BATCHES * SIZE / rate for rate in rates]
    assert actual.measurements == len(rates)
    assert (
        max(max(work), sum(work) / devices) <= actual.seconds * (1 + 1e-9) <= sum(work) * (1 + 1e-6)
    )
