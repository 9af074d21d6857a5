"""Fitting distributions to run times."""

import numpy as np
import pytest

from launch.errors import InputError
from scheduler.reservation.distributions import LAWS, make_law
from scheduler.reservation.log import read_runs
from scheduler.simulation.fit import fit_laws
from tests.places import SHARED

WALLTIMES = SHARED / "walltimes"

TRUTHS = {
    "truncnorm": {"mu": 8, "sigma": 2, "low": 2, "high": 16},
    "beta": {"alpha": 2, "beta": 4, "low": 0, "high": 3},
    "exponential": {"rate": 1, "low": 0.01, "high": 8},
    "pareto": {"alpha": 2.1, "low": 1, "high": 20},
    "lognormal": {"mu": 1, "sigma": 0.5, "low": 0, "high": 20},
    "uniform": {"low": 1, "high": 2},
}


@pytest.mark.parametrize("name", TRUTHS)
def test_fit_distribution_that_made_a_sample_is_found_again(name):
    truth = make_law(name, **TRUTHS[name])
    fits = fit_laws(truth.sample(np.random.default_rng(1), 1500))
    same = next(fit for fit in fits if fit.law.name == name)
    # another distribution may be close, but not clearly better
    assert same.aic - fits[0].aic < 4
    times = np.linspace(truth.low, truth.high, 200)
    assert np.abs(same.law.cdf(times) - truth.cdf(times)).max() < 0.03


def test_fit_every_distribution_is_fitted_the_best_first():
    fits = fit_laws(make_law("uniform", low=1, high=2).sample(np.random.default_rng(1), 50))
    assert {fit.law.name for fit in fits} == set(LAWS)
    assert [fit.aic for fit in fits] == sorted(fit.aic for fit in fits)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("truncnorm", ["mu", "sigma"]),
        ("exponential", ["rate"]),
        ("pareto", ["alpha"]),
        ("lognormal", ["mu", "sigma"]),
    ],
)
def test_fit_parameters_are_found_again(name, parameters):
    truth = make_law(name, **TRUTHS[name])
    fits = fit_laws(truth.sample(np.random.default_rng(1), 1500))
    best_fit = next(fit.law for fit in fits if fit.law.name == name).parameters()
    for parameter in parameters:
        assert best_fit[parameter] == pytest.approx(TRUTHS[name][parameter], rel=0.1)


def test_fit_does_not_depend_on_the_unit():
    hours = make_law("lognormal", mu=1, sigma=0.5, low=0, high=20).sample(
        np.random.default_rng(2), 300
    )
    in_hours, in_seconds = fit_laws(hours)[0], fit_laws(3600 * hours)[0]
    assert in_hours.law.name == in_seconds.law.name
    assert in_hours.distance == pytest.approx(in_seconds.distance, abs=1e-3)


@pytest.mark.skipif(not WALLTIMES.is_dir(), reason="the logs of run times are not here")
@pytest.mark.parametrize("name", ["SLANT_walltime.log", "CT_eye_segmentation.log"])
def test_fit_distribution_fits_the_real_logs(name):
    runs = read_runs(WALLTIMES / name)
    assert fit_laws(runs)[0].distance < 1.36 / len(runs) ** 0.5  # not rejected at 5 %


@pytest.mark.parametrize(
    "runs", [[1, 2, 3, 4], [2] * 9, [1, 2, 3, 4, 0], [1, 2, 3, 4, float("inf")]]
)
def test_run_times_without_a_law_are_refused(runs):
    with pytest.raises(InputError, match="at least 5 run times|finite and above 0"):
        fit_laws(runs)
