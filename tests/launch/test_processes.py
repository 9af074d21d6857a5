"""The start of a command, from the processes between it and a rank."""

import os
import subprocess

import pytest

from launch.processes import (
    command_began_s,
    command_of,
    kill_launch,
    launch_members,
    session_members,
    started,
)

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path):
    """Make a fake /proc: number -> (name, parent, seconds after the boot)."""

    def make(processes):
        for pid, (name, parent, began_s) in processes.items():
            (tmp_path / str(pid)).mkdir()
            fields = [
                str(pid),
                f"({name})",
                "S",
                str(parent),
                *["0"] * 17,
                str(int(began_s * TICKS)),
                "0",
            ]
            (tmp_path / str(pid) / "stat").write_text(" ".join(fields))
        return tmp_path

    return make


SHELL = {1: ("systemd", 0, 0.0), 10: ("bash", 1, 20.0)}


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ({20: ("mpirun", 10, 50.0)}, (50.0, 51.5)),
        (
            {19: ("mpirun", 10, 49.0), 20: ("prted) (", 19, 50.0)},
            (51.5, 51.5),
        ),  # a name that looks like more fields
        ({19: ("mpirun", 10, 49.0), 20: ("prted", 19, 50.0)}, (49.0, 51.5)),
        ({20: ("slurmstepd", 10, 30.0)}, (51.5, 51.5)),
    ],
)
def test_command_began_s_is_the_start_of_the_launcher(proc, above, expected):
    assert command_began_s(30, proc({**SHELL, **above, 30: ("python", 20, 51.5)})) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(("parent", "owner"), [("mpirun", 20), ("slurmstepd", 30)])
def test_command_of_is_that_of_the_launcher_if_known(proc, parent, owner):
    folder = proc({**SHELL, 20: (parent, 10, 50.0), 30: ("python", 20, 51.5)})
    (folder / str(owner) / "cmdline").write_bytes(
        b"\0".join([b"/bin/prterun", b"-n", b"5", b"a b.yaml", b""])
    )
    assert command_of(30, folder) == "/bin/mpirun -n 5 'a b.yaml'"


@pytest.mark.parametrize("content", ["", "30 (python", "30 (python) S x 0", None])
def test_command_began_s_is_none_without_proc(tmp_path, content):
    if content is not None:
        (tmp_path / "30").mkdir()
        (tmp_path / "30/stat").write_text(content)
    assert command_began_s(30, tmp_path) is None
    assert not command_of(30, tmp_path)


def test_command_began_s_of_this_process():
    began, process = command_began_s(os.getpid())
    assert 0 < began <= process


def test_kill_launch_ends_all_processes_of_a_session():
    process = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; sleep 60 & echo ready; sleep 60"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"ready\n"
    assert process.pid in session_members(process.pid)
    kill_launch(process.pid, {})
    assert session_members(process.pid) == []
    process.communicate()


def test_kill_launch_ends_ranks_with_sessions_of_their_own():
    process = subprocess.Popen(
        ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 60' & wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    rank = int(process.stdout.readline())
    members = launch_members(process.pid)
    assert {process.pid, rank} <= {*members}
    process.kill()
    process.wait()
    kill_launch(process.pid, members)
    assert started(rank) is None
    process.stdout.close()


def test_kill_launch_spares_a_later_process_with_the_same_id():
    launcher = subprocess.Popen(["true"], start_new_session=True)
    launcher.wait()
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    kill_launch(launcher.pid, {process.pid: "an earlier start"}, patience_s=0.1)
    assert process.poll() is None
    process.kill()
    process.wait()
