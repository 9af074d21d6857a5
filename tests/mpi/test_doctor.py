"""``fleet doctor`` on setups with a deliberate fault, and on a correct one."""

import json
import os
import subprocess
import sys

import pytest

from fleet.api import mpirun
from tests.launch.test_numa import machine
from tests.mpi.conftest import ROOT, Launcher, spec
from tests.places import RANK

CORES = len(os.sched_getaffinity(0))
MODELS = [{"family": "softmax"}]


@pytest.fixture
def doctor(tmp_path):
    """Run the doctor and return its status, its lines and its whole output."""
    launcher = Launcher(tmp_path)

    def call(
        content=None, before=(sys.executable,), module="fleet", path="", more=(), **environment
    ):
        words = ["doctor", *more] if module == "fleet" else []
        if content is not None:
            words.append(str(launcher.write(content)))
        full = launcher.environment({"PYTHONPATH": f"{path}:{ROOT}", **environment})
        done = subprocess.run(
            [*before, "-m", module, *words],
            cwd=ROOT,
            env=full,
            text=True,
            timeout=120,
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    call.folder = tmp_path
    return call


def bound(ranks, *options):
    """Return the command that starts ranks bound to cores."""
    return [*mpirun(ranks)[:3], "--bind-to", *options, sys.executable]


@pytest.mark.skipif(CORES < 2, reason="wants two cores")
def test_doctor_reports_nothing_for_a_correct_launch(doctor):
    content = spec(doctor.folder, MODELS)
    assert doctor(content, mpirun(2))[:2] == (0, ["no problems found (ranks: 2, nodes: 1)"])
    assert not (doctor.folder / "run").exists()


@pytest.mark.long
def test_doctor_times_imports_of_each_rank(doctor):
    _, lines, _ = doctor(spec(doctor.folder, MODELS), mpirun(2), more=("--startup", "--json"))
    startup = json.loads("\n".join(lines))["startup"]
    assert [entry["rank"] for entry in startup["ranks"]] == [0, 1]
    for entry in (startup["alone"], *startup["ranks"]):
        assert {"python", "h5py", "fleet.run", "fleet.engines.softmax"} <= set(entry["seconds"])
    assert startup["advice"].startswith("imports: ")


ENGINE = """
from mpi4py import MPI
from fleet.engines.softmax import NumpyEngine
from fleet.spec.engines import EngineInfo

ENGINE = EngineInfo("speaking", make="speaking:NumpyEngine", families=frozenset({"softmax"}),
                    checkpoint_bytes=lambda parameters, slots: 8 * parameters)
"""


@pytest.mark.long
def test_doctor_times_custom_engine_that_imports_mpi(doctor):
    (doctor.folder / "speaking.py").write_text(ENGINE)
    content = spec(doctor.folder, MODELS, resources={"engine": "speaking:ENGINE"})
    _, lines, _ = doctor(content, mpirun(2), more=("--startup", "--json"))
    startup = json.loads("\n".join(lines))["startup"]
    assert all("speaking" in single["seconds"] for single in (startup["alone"], *startup["ranks"]))


def test_module_missing_on_one_rank_ends_all_ranks(doctor):
    lacks = f"import os\nif ({RANK}) == '1':\n    raise ImportError('it is elsewhere')\n"
    (doctor.folder / "speaking.py").write_text(lacks + ENGINE)
    content = spec(doctor.folder, MODELS, resources={"engine": "speaking:ENGINE"})
    status, _, output = doctor(content, mpirun(2), more=("--startup",))
    assert status == 2
    assert "it is elsewhere" in output


@pytest.mark.long
@pytest.mark.skipif(CORES < 2, reason="wants two cores")
def test_doctor_finds_file_system_without_exclusive_lease(doctor):
    content = spec(doctor.folder, MODELS)
    nodes = {"FLEET_RANKS_PER_NODE": "1"}  # simulated
    assert "lease" not in "".join(doctor(content, mpirun(2), **nodes)[1])
    (doctor.folder / "sitecustomize.py").write_text(
        "import os\nos.link = lambda source, target: None\n"
    )
    status, lines, _ = doctor(content, mpirun(2), path=str(doctor.folder), **nodes)
    assert status == 1
    assert (
        sum("can take the lease of the run's folder at the same time" in line for line in lines)
        == 1
    )
    assert [path.name for path in doctor.folder.iterdir() if "doctor" in path.name] == []


@pytest.mark.long
@pytest.mark.skipif(CORES < 2, reason="wants two cores")
def test_doctor_finds_rank_bound_to_one_core(doctor):
    status, lines, _ = doctor(before=bound(1, "core"))
    assert status == 1
    assert lines[0].startswith("rank 0 has one core, and node 0 has ")
    assert "--bind-to none" in lines[0]
    content = spec(doctor.folder, MODELS, train={"stopping": {"max_epochs": 1}})
    status, _, errors = doctor(content, bound(1, "core"), module="fleet.run")
    assert status == 0
    assert sum("rank 0 has one core" in line for line in errors.splitlines()) == 1


def test_doctor_finds_launcher_unknown_to_mpi(doctor):
    status, lines, _ = doctor(PMI_SIZE="8", PMI_RANK="0")
    assert status == 1
    assert lines[0].startswith("mpiexec of MPICH started 8 ranks, but MPI sees 1: mpi4py uses ")


def test_doctor_runs_once_per_node_if_all_are_rank_0(doctor):
    assert doctor(PMI_SIZE="8", PMI_RANK="3", MPI_LOCALRANKID="3")[:2] == (1, [])


def test_doctor_finds_mpi_that_cannot_be_loaded(doctor):
    package = doctor.folder / "broken" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('cannot load MPI library')")
    status, lines, _ = doctor(path=str(package.parent))
    assert status == 1
    assert lines[0].startswith("MPI cannot be loaded (cannot load MPI library): ")


def test_doctor_finds_more_threads_than_cores(doctor):
    status, lines, _ = doctor(OMP_NUM_THREADS=str(CORES + 1))
    assert status == 1
    assert f"makes {CORES + 1} threads) on " in lines[0]


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "image_folder", "path": "nowhere"}, "nowhere"),
        ({"source": "tests.sources:partly_bad", "path": "6"}, "sample 5: "),
        ({"source": "tests.sources:raising", "path": "60"}, "the source has a bug"),
    ],
)
def test_doctor_finds_unreadable_data(doctor, data, message):
    status, lines, _ = doctor(spec(doctor.folder, MODELS, data=data))
    assert status == 1
    assert "cannot read the data: " in lines[0]
    assert message in lines[0]


@pytest.mark.long
def test_doctor_finds_data_readable_on_one_node_only(doctor):
    content = spec(
        doctor.folder,
        MODELS,
        data={"source": "tests.sources:on_rank_0_alone"},
        resources={"preprocessors": 2},
    )
    status, lines, _ = doctor(content, mpirun(4), FLEET_RANKS_PER_NODE="2")
    assert status == 1
    assert sum("cannot read the data: sample 0: Permission denied" in line for line in lines) == 1


def test_doctor_finds_read_only_folder(doctor):
    content = {**spec(doctor.folder, MODELS), "output": "/proc/run"}
    status, lines, _ = doctor(content)
    assert status == 1
    assert lines[0].startswith("/proc cannot be written: ")


def test_doctor_finds_too_few_ranks_for_the_spec(doctor):
    content = spec(doctor.folder, MODELS, resources={"preprocessors": 3})
    status, lines, _ = doctor(content, mpirun(2))
    assert status == 1
    assert any(
        "node 0 has 2 ranks, and 3 preprocessors would leave no trainer there" in line
        for line in lines
    )


def test_doctor_ends_with_status_2_for_a_wrong_spec(doctor):
    for before in ([sys.executable], mpirun(2)):
        status, lines, errors = doctor({"models": []}, before)
        assert (status, lines) == (2, [])
        assert errors.count("in the spec") == 1


@pytest.mark.long
@pytest.mark.tensorflow
def test_doctor_finds_wrong_horovod_and_small_disk(doctor):
    package = doctor.folder / "broken" / "horovod" / "tensorflow"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "raise ImportError('undefined symbol: _ZN10tensorflow8OpKernel')"
    )
    content = spec(
        doctor.folder,
        [{"family": "cnn", "args": {"filters": [10**6, 10**6]}}],
        resources={"engine": "keras"},
    )
    status, lines, _ = doctor(content, path=str(package.parent.parent))
    assert status == 1
    assert "Horovod does not work with TensorFlow 2." in lines[0]
    assert "undefined symbol" in lines[0]
    assert "free, but the checkpoints need about" in lines[1]


@pytest.mark.long
@pytest.mark.tensorflow
def test_doctor_finds_network_that_cannot_be_built(doctor):
    content = spec(
        doctor.folder,
        [{"family": "cnn", "args": {"filters": [1] * 6}}],
        resources={"engine": "keras"},
    )
    status, lines, _ = doctor(content, mpirun(2))
    assert status == 1
    assert (
        "cnn halves the image 6 times and needs at least 64x64 pixels, not 4x4: change the network"
        in lines[-1]
    )


def test_doctor_json_is_one_object(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fleet", "doctor", "--json"],
        cwd=ROOT,
        check=False,
        env={**Launcher(tmp_path).environment({}), "PMI_SIZE": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    finding = json.loads(done.stdout)["findings"][0]
    assert set(finding) == {"what", "remedy"}


def test_doctor_shows_numa_nodes_of_gpus(doctor):
    machine(
        doctor.folder / "sys", {0: "0-7", 1: "8-15"}, {"0000:0a:00.0": ("0x10de", "0x030200", 1)}
    )
    (doctor.folder / "sitecustomize.py").write_text(
        "import pathlib\nfrom launch import gpus\ngpus.SYS = "
        f"pathlib.Path({str(doctor.folder / 'sys')!r})\n"
    )
    printed = doctor(before=mpirun(1), path=str(doctor.folder), CUDA_VISIBLE_DEVICES="0")[2]
    assert "GPU 0 of " in printed
    assert "is on NUMA node 1 (CPUs 8-15)" in printed
