"""Control of running Slurm jobs, and the permission for it."""

import os

import pytest

from launch import slurm_control
from launch.errors import InputError
from launch.slurm_control import (
    current_user,
    hold,
    is_operator,
    release,
    requeue_or_cancel,
    shrink,
    signal_to_save,
)
from tests.refusals import refused


def test_signal_to_save_follows_the_comment(made_up):
    made_up.set({"17": {}, "18": {}})
    signal_to_save("17", "USR2")
    signal_to_save("18", "B:USR1")
    assert made_up.acts == ["scancel --signal=USR2 17", "scancel --batch --signal=USR1 18"]


def test_requeue_or_cancel_cancels_if_requeueing_is_refused(made_up):
    made_up.set({"17": {}, "18": {"requeues": False}})
    assert [requeue_or_cancel("17"), requeue_or_cancel("18")] == ["requeued, held", "cancelled"]
    assert made_up.state()["jobs"] == {"17": {"state": "PENDING", "held": True}}
    release("17")
    assert made_up.state()["jobs"] == {"17": {"state": "PENDING", "held": False}}


def test_shrink_takes_nodes_from_a_job(made_up):
    made_up.set({"17": {"hosts": "n1,n2,n3"}})
    assert shrink("17", ["n2.site.org"]) == ["n1", "n3"]
    assert made_up.acts == ["scontrol update JobId=17 NodeList=n1,n3"]


@pytest.mark.parametrize("node", ["n1", "n4"])
def test_shrink_refuses_the_first_node_and_unknown_nodes(made_up, node):
    made_up.set({"17": {"hosts": "n1,n2,n3"}})
    with refused(InputError, "job 17", f"release {node}:", "n1, n2, n3"):
        shrink("17", ["n2", node])
    assert made_up.acts == []


def test_hold_refuses_a_running_job(made_up):
    made_up.set({"17": {}, "18": {"state": "PENDING"}})
    hold("18")
    with pytest.raises(
        InputError, match="scontrol failed: Job is no longer pending execution for job 17"
    ):
        hold("17")
    assert made_up.state()["jobs"] == {"17": {}, "18": {"state": "PENDING", "held": True}}


@pytest.mark.parametrize(
    ("slurm", "expected"),
    [
        ({}, False),
        ({"owner": "ME"}, True),
        ({"levels": "Operator"}, True),
        ({"levels": "Administrator"}, True),
        (
            {"says": {"sacctmgr": "You are not running a supported accounting_storage plugin"}},
            False,
        ),
    ],
)
def test_is_operator_follows_slurm(made_up, monkeypatch, slurm, expected):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(slurm_control, "current_user", lambda: "ME")
    made_up.set(**slurm)
    assert is_operator() is expected


def test_is_operator_is_true_for_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert is_operator()
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    assert current_user() == "3999999"
