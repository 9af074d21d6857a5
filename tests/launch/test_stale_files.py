"""Files of dead processes, and their removal."""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from launch.stale_files import remove_leftovers

HOST = socket.gethostname().partition(".")[0]
DEAD = 2**22 + 1  # above all process ids


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)


def leftover(*files):
    """Make files that are a minute old, and their folders."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 16)
        os.utime(file, (time.time() - 60,) * 2)


def swept(folder):
    return sorted(path.name for path in remove_leftovers(folder, folder))


def test_remove_leftovers_deletes_folders_of_dead_processes_only(tmp_path):
    for pid in (DEAD, os.getpid()):
        leftover(
            tmp_path / f"ompi.{pid}/pmix.{HOST}.tool",
            tmp_path / f"prted.{pid}/pmix.{HOST}.tool",
            tmp_path / f"fleet.{HOST}.{pid}/__autograph_generated_filex.py",
        )
    assert swept(tmp_path) == sorted([f"ompi.{DEAD}", f"prted.{DEAD}", f"fleet.{HOST}.{DEAD}"])
    assert len(list(tmp_path.iterdir())) == 3
    assert swept(tmp_path) == []


def test_remove_leftovers_treats_zombies_as_dead(tmp_path):
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    leftover(tmp_path / f"fleet.{HOST}.{process.pid}/x")
    try:
        assert swept(tmp_path) == [f"fleet.{HOST}.{process.pid}"]
    finally:
        process.wait()


def test_remove_leftovers_keeps_files_of_other_nodes_and_users(tmp_path):
    leftover(
        tmp_path / f"ompi.{DEAD}/pmix.n17.tool",
        tmp_path / f"fleet.n17.{DEAD}/x",
        tmp_path / f"ompi.{DEAD}x/y",
        tmp_path / f"sm_segment.n17.{os.getuid()}.1a2b0001.0",
        tmp_path / f"sm_segment.{HOST}.{os.getuid() + 1}.1.0",
        tmp_path / "notes.txt",
    )
    assert swept(tmp_path) == []


@pytest.mark.parametrize(
    "name", [f"sm_segment.{HOST}.{os.getuid()}.1a2b0001.", "mpich_shm_1a2b0001_"]
)
def test_remove_leftovers_deletes_unmapped_memory(tmp_path, name):
    names = [f"{name}{rank}" for rank in range(3)]
    leftover(*(tmp_path / name for name in names))
    with open(tmp_path / names[0], "r+b") as file, mmap.mmap(file.fileno(), 16):
        os.utime(tmp_path / names[1])  # new: a process may be about to map it
        assert swept(tmp_path) == names[2:]
    os.utime(tmp_path / names[1], (0, 0))
    assert swept(tmp_path) == names[:2]


@pytest.mark.parametrize(
    ("file", "age_s", "goes"), [("", 60, True), ("", 0, False), ("file", 60, False)]
)
def test_remove_leftovers_deletes_old_empty_folders(tmp_path, file, age_s, goes):
    top = tmp_path / f"ompi.{HOST}.{os.getuid()}"
    ranks = top / "jf.0" / "17" / "0"
    ranks.mkdir(parents=True)
    if file:
        (ranks / file).touch()
    for folder in (ranks, *ranks.parents[:3]):
        os.utime(folder, (time.time() - age_s,) * 2)
    assert swept(tmp_path) == ([top.name] if goes else [])


CACHES = """
import os
from launch.stale_files import use_separate_folder
os.environ["TRITON_CACHE_DIR"] = "/mine"
use_separate_folder()
for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
    assert os.environ[name].startswith(os.environ["TMPDIR"] + "/"), name
assert os.environ["TRITON_CACHE_DIR"] == "/mine"
"""


def test_separate_folder_has_the_caches_of_kernels(tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if not name.endswith(("_DIR", "_PATH"))
    }
    subprocess.run(
        [sys.executable, "-c", CACHES],
        env={**environment, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert list(tmp_path.iterdir()) == []


def test_rank_has_caches_before_it_imports_an_engine(tmp_path):
    """Libraries read the variables when they are imported, which is after MPI has started."""
    code = (
        "import sys, fleet.run, fleet.runtime.session; print({'torch', 'triton'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


CODE = """
import os, signal, sys, tempfile
from launch.stale_files import use_separate_folder
use_separate_folder()
file = tempfile.NamedTemporaryFile(prefix="__autograph_generated_file", delete=False)
print(file.name, flush=True)
if os.fork() == 0:
    sys.exit()
os.wait()
assert os.path.exists(file.name)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_separate_folder_is_removed_at_exit_or_by_the_next(tmp_path, how):
    done = subprocess.run(
        [sys.executable, "-c", CODE, how],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    name = done.stdout.split()[0]
    assert name.startswith(f"{tmp_path}/fleet.{HOST}."), done.stderr
    assert os.path.exists(name) is (how == "killed")
    remove_leftovers(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() != str(tmp_path)
