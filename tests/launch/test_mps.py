"""The Multi-Process Service, with a fake nvidia-cuda-mps-control."""

from pathlib import Path

import pytest

from launch.mps import CONTROL, start
from tests.waiting import wait_until

SCRIPT = """#!/bin/sh
case "$1" in
  -d) word=start ;;
  *) read word ;;
esac
echo "$word $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY" >> {said}
case " {broken} " in *" $CUDA_VISIBLE_DEVICES "*) exit 3 ;; esac
"""


@pytest.fixture
def node(tmp_path):
    """Return an environment with daemons, some of which fail, and their recorded commands."""
    message = tmp_path / "said"

    def installed(broken=""):
        control = tmp_path / CONTROL
        control.write_text(SCRIPT.format(said=message, broken=broken))
        control.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return installed, lambda: [line.split() for line in message.read_text().splitlines()]


def await_end(folder):
    """Wait until the daemons have ended in the background: their folder is deleted last."""
    wait_until(lambda: not Path(folder).exists())


def test_start_runs_one_daemon_per_gpu_until_stop(node):
    installed, message = node
    environment = installed()
    daemons, problem = start(["1", "0", "1"], environment)
    assert (daemons.gpus, problem) == (("0", "1"), "")
    pipes = [daemons.environment(gpu)["CUDA_MPS_PIPE_DIRECTORY"] for gpu in ("0", "1")]
    assert message() == [["start", "0", pipes[0]], ["start", "1", pipes[1]]]
    assert len(set(pipes)) == 2
    daemons.stop(environment)
    await_end(daemons.folder)
    assert [(line[0], line[-1]) for line in message()[2:]] == [("quit", pipe) for pipe in pipes]


def test_start_stops_all_daemons_if_one_fails(node):
    installed, message = node
    assert start(["0", "1"], installed(broken="1")) == (
        None,
        f"GPU 1: {CONTROL} ended with status 3",
    )
    await_end(Path(message()[0][-1]).parent)
    assert [line[0] for line in message()] == ["start", "start", "quit", "quit"]


def test_start_does_nothing_without_mps_or_with_a_users_daemon(node, tmp_path):
    assert start(["0"], {"PATH": str(tmp_path)}) == (None, f"{CONTROL} is not installed")
    daemons, problem = start(["0"], {**node[0](), "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"})
    assert daemons is None
    assert "is set" in problem
    assert not (tmp_path / "said").exists()
