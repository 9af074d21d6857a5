"""Simulated searches with asha, with and without priority of networks that passed a rung."""

import importlib
from pathlib import Path
from statistics import median

import pytest


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("search_groups")


def test_survivors_first_finds_a_good_network_sooner(groups):
    first, no_priority = (
        [groups.simulate(groups.ALLOCATIONS[allocation], 16, seed, "stop") for seed in range(4)]
        for allocation in ("asha, adaptive", "asha, adaptive, no priority")
    )
    assert median(subject.near_h for subject in first) < median(
        subject.near_h for subject in no_priority
    )
    assert median(subject.near_gpu_h for subject in first) < median(
        subject.near_gpu_h for subject in no_priority
    )
    assert all(
        late.first_epochs_h > soon.first_epochs_h
        for late, soon in zip(first, no_priority, strict=True)
    )
