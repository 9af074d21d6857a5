"""The simulation of whole launches, in processes of its own: it replaces parts of Python."""

import os
import subprocess
import sys
from pathlib import Path

from tests.simulate import cases, scenarios

FOUND = Path(__file__).parent / "simulate" / "found"


def simulate(*options, module="tests.simulate"):
    """Run the simulation; return its output."""
    completed = subprocess.run(
        [sys.executable, "-m", module, "--job", str(os.getpid()), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_seeds_of_faults_end_with_all_networks_trained():
    assert "6 seeds" in simulate("--seeds", "0:6")


def test_seed_replays_the_same_history_in_any_folder():
    first, second = (
        simulate("--seeds", "8", "--trace", "--job", job)
        .replace(f"simulated-fleet-{job}", "")
        .splitlines()
        for job in (f"{os.getpid()}1", f"{os.getpid()}2")
    )
    assert len(first) > 10
    assert first[:-1] == second[:-1]


def test_cases_that_failed_once_pass():
    cases = sorted(FOUND.glob("*.json"))
    simulate("--seeds", "0:2", *(f"--case={case}" for case in cases))


def test_groups_take_all_edges_of_the_phase_table():
    assert "39 of 39 edges" in simulate(module="tests.simulate.edges")


def test_every_scenario_makes_a_case_that_fleet_accepts():
    for name in scenarios.SCENARIOS:
        case = cases.make_case(0)
        assert scenarios.named(name, 0, case) is not case, name
