"""Tests of finding batch systems by name and by import path."""

import sys

import pytest

from fleet.batch_systems import find_system, lease_of_process
from fleet.errors import UserError
from fleet.storage.lease import Holder
from launch.systems import SYSTEMS
from tests.fakes import put_programs
from tests.refusals import refused

MODULE = """
from dataclasses import replace
from launch.systems import SYSTEMS, System

WRAPPED = replace(SYSTEMS["slurm"], submit=("my_sbatch",))
OWN = System("own", directive="#OWN ", job_variable="OWN_ID", submit=("own",),
             id_pattern="([0-9]+)", template="<<body>>",
             state=("own_state", "{job}"), over="gone", restarts="OWN_RESTARTS")
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def custom_system(tmp_path, monkeypatch):
    (tmp_path / "own_systems.py").write_text(MODULE)
    (tmp_path / "wrong_systems.py").write_text(
        "from launch.systems import System\nX = System('x', submit=('x',))\n"
    )
    monkeypatch.delitem(sys.modules, "own_systems", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def test_find_system_by_name():
    assert find_system("pbs") is SYSTEMS["pbs"]


def test_custom_system_is_found_by_path_and_keeps_template():
    system = find_system("own_systems:OWN")
    assert (system.name, system.script, system.has_queue) == ("own_systems:OWN", "<<body>>", True)


def test_custom_system_may_modify_one_of_the_table():
    system = find_system("own_systems:WRAPPED")
    assert (system.name, system.submit) == ("own_systems:WRAPPED", ("my_sbatch",))
    assert system.script == SYSTEMS["slurm"].script


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sge",
            "no batch system is named 'sge'; use one of slurm, lsf, pbs, local, or an import path "
            "module:system",
        ),
        ("own_systems:NUMBER", "system 'own_systems:NUMBER' is of type int; it should be a System"),
        ("own_systems:NO", "system 'own_systems:NO': module 'own_systems' has no 'NO'"),
        (
            "wrong_systems:X",
            "cannot import 'wrong_systems': InputError: batch system x: template: it is missing",
        ),
    ],
)
def test_find_system_refuses_invalid_names_in_one_line(name, message):
    with pytest.raises(UserError) as refusal:
        find_system(name)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


OWN_JOB = {"FLEET_SYSTEM": "own_systems:OWN", "OWN_ID": "7", "OWN_RESTARTS": "2"}


def test_this_job_with_a_custom_system():
    me = lease_of_process(OWN_JOB).me
    assert (me.system, me.job, me.restarts) == ("own_systems:OWN", "7", 2)
    assert lease_of_process({"FLEET_SYSTEM": "slurm", "SLURM_JOB_ID": "8"}).me.job == "8"
    assert lease_of_process({"OWN_ID": "7"}).me.job == ""


@pytest.mark.parametrize(
    ("line", "answer"), [("echo runs", True), ("echo gone", False), ("exit 1", None)]
)
def test_custom_system_reports_whether_a_job_runs(tmp_path, monkeypatch, line, answer):
    put_programs(tmp_path, {"own_state": line})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    holder = Holder("x", "n1", 1, system="own_systems:OWN", job="6")
    assert lease_of_process(OWN_JOB)._process.knows_job(holder) is answer
    assert (
        lease_of_process({})._process.knows_job(holder) is None
    )  # the environment does not name that system


def test_unknown_system_in_the_environment_is_refused():
    with refused(UserError, "FLEET_SYSTEM: ", "'sge'", "slurm"):
        lease_of_process({"FLEET_SYSTEM": "sge"})
