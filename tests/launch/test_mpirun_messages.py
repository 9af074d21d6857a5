"""Messages of Open MPI 5.0.11's mpirun about ranks that end with a status."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import launch
from launch.mpirun_messages import Notices, run_quietly, start

RULE = "-" * 74 + "\n"
EXITED = (
    RULE + "prterun detected that one or more processes exited with non-zero status,\n"
    "thus causing the job to be terminated. The first process to do so was:\n\n"
    "   Process name: [prterun-vm-18313@1,0]\n   Exit code:    {status}\n" + RULE
)
ABORT = (
    RULE + "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n  Proc: [[9666,1],0]\n"
    "  Errorcode: {status}\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    "You may or may not see output from other processes, depending on\nexactly when Open MPI "
    "kills them.\n" + RULE
)
ABORTED = (
    RULE + "prterun has exited due to process rank 0 with PID 0 on node vm calling\n"
    '"abort". This may have caused other processes in the application to be\n'
    "terminated by signals sent by prterun (as reported here).\n" + RULE
)
KILLED = (
    RULE + "prterun noticed that process rank 1 with PID 19289 on node vm exited on\nsignal 9 "
    "(Killed).\n" + RULE
)
OURS = "fleet: the spec is wrong\n" + RULE + "a table\n" + RULE + RULE + "\n"


def visible_text(text, *cuts):
    """Return the shown text of output that arrives in pieces."""
    notices, data, pieces = Notices((2, 3, 75)), text.encode(), []
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        pieces.append(notices.feed(data[begin:end]))
    return b"".join([*pieces, notices.close()]).decode()


@pytest.mark.parametrize("status", [2, 3, 75])
def test_notices_hide_an_explained_status(status):
    for notice in (EXITED.format(status=status), ABORT.format(status=status) + ABORTED):
        assert visible_text(f"{OURS}{notice}{OURS}") == OURS + OURS


@pytest.mark.parametrize(
    "notice",
    [
        EXITED.format(status=1),
        EXITED.format(status=139),
        EXITED.format(status=23),
        ABORT.format(status=1) + ABORTED,
        ABORTED,
        KILLED,
        EXITED.format(status=3)[:200],
        RULE + "prterun detected something else\n" + RULE,
        RULE
        + "prterun detected that one or more processes exited with non-zero status,\n"
        + "x\n" * 40
        + RULE,
    ],
)
def test_notices_show_other_messages_of_mpirun(notice):
    assert visible_text(OURS + notice) == OURS + notice


def test_notices_show_the_unexplained_one_of_two_aborts():
    assert visible_text(ABORT.format(status=2) + ABORTED + ABORT.format(status=1) + ABORTED) == (
        ABORT.format(status=1) + ABORTED
    )


TEXT = OURS + EXITED.format(status=3) + KILLED + ABORT.format(status=2) + ABORTED + "unfinished"


@given(st.lists(st.integers(0, len(TEXT)), max_size=30))
def test_notices_do_not_depend_on_how_output_is_split(cuts):
    assert visible_text(TEXT, *sorted(cuts)) == OURS + KILLED + "unfinished"


def test_notices_show_other_output_immediately():
    notices = Notices((3,))
    assert notices.feed(b"half a ") == b"half a "
    assert notices.feed(b"line\n--") == b"line\n"
    assert notices.feed(b" no rule\n") == b"-- no rule\n"


def test_run_quietly_hides_explained_notices(tmp_path):
    log = tmp_path / "log"
    program = (
        f"import sys; sys.stderr.write({OURS + EXITED.format(status=3)!r}); print('out'); "
        "sys.exit(3)"
    )
    with open(log, "w", encoding="utf-8") as out:
        assert run_quietly([sys.executable, "-c", program], (3,), out) == 3
    assert sorted(log.read_text().splitlines()) == sorted((OURS + "out\n").splitlines())


def test_run_quietly_raises_if_it_cannot_start(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        start([str(tmp_path / "nowhere")], (3,))


LOST = (
    RULE
    + "srun returned non-zero exit status (36608) from launching\nthe per-node daemon. You may "
    "debug this "
    'problem further\nby augmenting the cmd line with:\n\n* "--debug-daemons"\n' + RULE
)


@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("box", [KILLED, LOST])
def test_notices_of_a_job_ended_by_the_batch_system_are_hidden(box, is_ended):
    notices = Notices([75], lambda: is_ended)
    assert notices.feed(f"before\n{box}after\n".encode()) + notices.close() == (
        b"before\nafter\n" if is_ended else f"before\n{box}after\n".encode()
    )


CALLER = f"""
import sys
sys.path.insert(0, {str(Path(launch.__file__).parents[1])!r})
from launch.mpirun_messages import run_quietly
sys.exit(run_quietly([sys.executable, "-u", "-c", *sys.argv[1:]], (75,)))
"""
SAVING = """
import os, signal, sys, time
calls = []
def save(number, frame):
    calls.append(number)
    if len(calls) > 1:  # Linux sends it again if another thread of the caller ends later
        return
    os.write(1, b"saved\\n")  # print would fail inside of the other print
    time.sleep(float(sys.argv[1]))
    sys.exit(75)
signal.signal(signal.SIGUSR2, save)
print("begun", flush=True)
time.sleep(30)
"""


@pytest.fixture
def caller():
    started = []

    def call(saves_s):
        process = subprocess.Popen(
            [sys.executable, "-c", CALLER, SAVING, saves_s],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == b"begun\n"
        return process

    yield call
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait()


def test_wait_passes_ctrl_c_on_as_a_signal_to_save(caller):
    process = caller("0")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == 75
    assert process.stdout.readline() == b"saved\n"


HYDRA = """#!{python}
import os, signal, subprocess, sys
if sys.argv[1] == "--version":
    sys.exit(print("HYDRA build details:"))
rank = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)
signal.signal(signal.SIGTERM, lambda number, frame: rank.send_signal(number))
sys.exit(rank.wait())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ranks_of_mpich_save_upon_ctrl_c_and_if_the_caller_dies(tmp_path, how):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(HYDRA.format(python=sys.executable))
    mpirun.chmod(0o700)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CALLER.replace("[sys.executable", f"[{str(mpirun)!r}"),
            SAVING.replace("SIGUSR2", "SIGTERM"),
            "0",
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, how)
    with process.stdout:
        assert process.stdout.readline() == b"saved\n"
    assert process.wait(20) == (75 if how == signal.SIGINT else -signal.SIGKILL)


def test_wait_kills_the_launch_at_a_second_interrupt(caller):
    process = caller("30")
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == b"saved\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT


def test_start_saves_and_ends_if_the_caller_dies(caller):
    process = caller("0")
    os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout.readline() == b"saved\n"
    assert process.stdout.readline() == b""
