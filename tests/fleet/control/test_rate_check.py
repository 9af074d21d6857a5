"""Comparison of the rates of training with expected rates."""

import pytest

from fleet.control.rates import RateCheck
from fleet.domain.events import RateMismatch
from fleet.domain.network import StepRate


@pytest.mark.parametrize(
    ("rate", "is_off"),
    [(238.0, True), (1000.0, True), (1012.0, False), (1684.0, False), (1700.0, True)],
)
def test_rate_check_reports_more_than_a_quarter(rate, is_off):
    mismatch = RateCheck({}, is_measured=True).compare(
        "a", 2, StepRate(rate, 0.1, 3000), expected=1348.0
    )
    assert mismatch == (
        RateMismatch("a", 2, 1348.0, rate, 0.1, 3000, corrected=True) if is_off else None
    )


@pytest.mark.parametrize(
    ("spread", "steps", "is_off"), [(0.1, 30, True), (1.0, 30, False), (1.0, 3000, True)]
)
def test_rate_check_ignores_few_varying_steps(spread, steps, is_off):
    mismatch = RateCheck({}, is_measured=True).compare(
        "a", 1, StepRate(1000.0, spread, steps), expected=1500.0
    )
    assert (mismatch is not None) == is_off


def test_rate_check_reports_once_per_key_and_after_changes():
    check = RateCheck({"a": "k", "b": "k", "c": "other"}, is_measured=False)
    mismatches = [
        check.compare(name, gpus, StepRate(rate), expected=100.0)
        for name, gpus, rate in [
            ("a", 1, 150.0),
            ("b", 1, 160.0),
            ("a", 1, 99.0),
            ("c", 1, 150.0),
            ("a", 2, 150.0),
        ]
    ]
    assert [off and (off.network, off.gpus, off.rate, off.corrected) for off in mismatches] == [
        ("a", 1, 150.0, False),
        None,
        ("a", 1, 99.0, False),
        ("c", 1, 150.0, False),
        ("a", 2, 150.0, False),
    ]
