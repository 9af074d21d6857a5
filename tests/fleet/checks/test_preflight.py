"""Tests of preflight checks with artificial facts."""

import errno
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.checks import preflight as checks
from fleet.commands.doctor import _folder_bytes
from launch.binding import Cores
from launch.numa import GpuNode
from preprocess.sample import ArraySpec, SampleSpec
from tests.fleet.histories import spec

WHOLE = Cores(frozenset(range(16)), 16)
RANK = checks.RankFacts("n1", WHOLE, 1, ("0", "1"), 2, "", (), math.inf, ())


def problems_of_findings(findings):
    return [finding.what for finding in findings]


def test_matching_or_unknown_number_of_ranks_is_accepted():
    assert checks.check_launch("srun", 8, 8, "Open MPI") == []
    assert checks.check_launch("", None, 1, "Open MPI") == []


def test_check_launch_reports_a_foreign_launcher():
    (finding,) = checks.check_launch("mpiexec of MPICH", 8, 1, "Open MPI v5.0.11")
    assert str(finding).startswith(
        "mpiexec of MPICH started 8 ranks, but MPI sees 1: mpi4py uses Open MPI v5.0.11: "
    )
    assert "MPICC=mpicc" in finding.remedy


@pytest.mark.parametrize(
    ("slots", "problem"), [(1, ["2 trainers of node 0 without their own GPU"]), (2, [])]
)
def test_check_ranks_accepts_trainers_that_share_gpus(slots, problem):
    assert (
        problems_of_findings(
            checks.check_ranks([RANK] * 5, [0] * 5, [1, 2, 3, 4], needs_gpus=True, slots=slots)
        )
        == problem
    )


@pytest.mark.parametrize(
    ("ranks", "trainers", "problem"),
    [
        (
            [replace(RANK, gpus=())] * 3,
            [1, 2],
            "node 0 has 2 GPUs, but none is visible to its ranks",
        ),
        (
            [replace(RANK, gpus=("0",))] * 3,
            [2],
            "3 ranks of node 0 see only GPU 0, or different GPUs under its name",
        ),
        (
            [
                RANK,
                replace(RANK, gpus=("1",), gpu_files=0),
                replace(RANK, gpus=("1",), gpu_files=0),
            ],
            [1, 2],
            "2 ranks of node 0 see only GPU 1, or different GPUs under its name",
        ),
        ([RANK] * 4, [1, 2, 3], "1 trainer of node 0 without their own GPU"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_check_ranks_names_hidden_and_duplicate_gpus(ranks, trainers, problem):
    assert problems_of_findings(
        checks.check_ranks(ranks, [0] * len(ranks), trainers, needs_gpus=True)
    ) == [problem]
    second_node = [RANK] * 4  # on its own node: each node is checked separately
    assert problems_of_findings(
        checks.check_ranks(
            [*ranks, *second_node],
            [0] * len(ranks) + [1] * 4,
            [*trainers, len(ranks) + 2, len(ranks) + 3],
            needs_gpus=True,
        )
    ) == [problem]
    assert checks.check_ranks(ranks, [0] * len(ranks), trainers, needs_gpus=False) == []


@pytest.mark.parametrize(
    "ranks",
    [
        [RANK] * 4,
        [replace(RANK, gpus=(), gpu_files=0)] * 3,  # no GPU anywhere
        [replace(RANK, gpus=("0",), gpu_files=1)] * 3,  # one, visible to every rank
        [replace(RANK, gpus=("0",)), replace(RANK, gpus=("1",))],  # one each
    ],
)
def test_check_ranks_accepts_valid_gpus(ranks):
    trainers = {2: [0, 1], 3: [2], 4: [2, 3]}[len(ranks)]
    assert checks.check_ranks(ranks, [0] * len(ranks), trainers, needs_gpus=True) == []


def threads_of(ranks, threads):
    return (
        f"node 0 has {ranks} ranks (OMP_NUM_THREADS or TF_NUM_INTRAOP_THREADS makes {threads} "
        "threads) on 16 cores"
    )


@pytest.mark.parametrize(
    ("ranks", "threads", "trainers", "slots", "problem"),
    [
        (16, 1, 0, 1, []),
        (17, 1, 0, 1, ["node 0 has 17 ranks on 16 cores"]),
        (4, 8, 0, 1, [threads_of(4, 32)]),
        (17, 1, 16, 1, ["node 0 has 17 ranks on 16 cores"]),
        (17, 1, 16, 2, []),  # trainers in slots may share cores
        (17, 2, 16, 2, [threads_of(17, 34)]),
    ],
)
def test_check_ranks_names_too_many_threads(ranks, threads, trainers, slots, problem):
    facts = [replace(RANK, gpus=(), gpu_files=0, threads=threads)] * ranks
    training = range(ranks - trainers, ranks)
    assert (
        problems_of_findings(
            checks.check_ranks(facts, [0] * ranks, training, needs_gpus=False, slots=slots)
        )
        == problem
    )


def libraries(exchange="auto", gpus=("0", "1"), seen=None, horovod="ready"):
    from fleet.engines.keras.diagnostics import problems_from

    problems = problems_from("2.18.1", len(gpus) if seen is None else seen, horovod, gpus, exchange)
    return problems_of_findings(
        checks.check_libraries([replace(RANK, libraries=list(problems)), RANK])
    )


@pytest.mark.tensorflow
def test_find_problems_if_tensorflow_sees_no_gpus():
    assert libraries() == []
    assert libraries(gpus=("0",)) == []
    assert libraries(seen=0, horovod="ready") == [
        "n1: this node has 2 GPUs, but TensorFlow 2.18.1 sees none"
    ]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("exchange", "gpus", "horovod", "problem"),
    [
        ("auto", (), "missing", []),
        ("auto", ("0",), "missing", ["n1: Horovod is not installed"]),
        ("horovod", (), "missing", ["n1: Horovod is not installed"]),
        ("mpi", ("0",), "missing", []),
        (
            "auto",
            (),
            "ImportError: undefined symbol",
            ["n1: Horovod does not work with TensorFlow 2.18.1: ImportError: undefined symbol"],
        ),
        ("mpi", (), "ImportError: undefined symbol", []),
    ],
)
def test_find_problems_of_horovod(exchange, gpus, horovod, problem):
    assert libraries(exchange, gpus, horovod=horovod) == problem


def test_check_disk():
    def problems(needed, problem=""):
        findings = checks.check_disk(Path("/scratch"), 10**9, needed, problem, "the checkpoints")
        return problems_of_findings(findings)

    assert problems(10**9) == []
    assert problems(2 * 10**9) == ["/scratch has 1 GB free, but the checkpoints need about 2 GB"]
    assert problems(0, "Read-only file system") == [
        "/scratch cannot be written: Read-only file system"
    ]


@pytest.mark.parametrize(
    ("trials", "problem"),
    [
        ([checks.LeaseTrial("n1", True, "a"), checks.LeaseTrial("n2", False, "a")], ""),
        ([], ""),
        (
            [checks.LeaseTrial("n1", True, "a"), checks.LeaseTrial("n2", True, "b")],
            "n1 and n2 can take the lease of the run's folder at",
        ),
        (
            [checks.LeaseTrial("n1", True, "a"), checks.LeaseTrial("n2", False, "b")],
            "the nodes do not agree",
        ),
        (
            [checks.LeaseTrial("n1", False, ""), checks.LeaseTrial("n2", False, "")],
            "the nodes do not agree",
        ),
        (
            [
                checks.LeaseTrial("n1", True, "a", noticed=False),
                checks.LeaseTrial("n2", False, "a"),
            ],
            "n1 does not notice within seconds",
        ),
        (
            [
                checks.LeaseTrial("n1", True, "a"),
                checks.LeaseTrial("n2", False, "", problem=os.strerror(errno.ENOENT)),
            ],
            f"n2 cannot take the lease of the run's folder: {os.strerror(errno.ENOENT)}",
        ),
    ],
    ids=str,
)
def test_check_lease_names_nodes_without_exclusion(trials, problem):
    findings = checks.check_lease(trials)
    assert [str(finding).startswith(problem) for finding in findings] == [True] * bool(problem)


def test_check_data_names_nodes_that_cannot_read():
    assert problems_of_findings(
        checks.check_data([RANK, replace(RANK, host="n2", data_problem="a.jpg: Permission denied")])
    ) == ["n2 cannot read the data: a.jpg: Permission denied"]


@pytest.mark.parametrize(("keep", "copies"), [("best+last", 4), ("last", 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_folder_bytes_follow_checkpoint_keep(keep, copies, dtype):
    parsed = spec({"build": "tests.sources:zeros"}, checkpoint={"keep": keep})
    parameters = (4 * 4 + 1) * 3
    folder_bytes = _folder_bytes(
        parsed.networks[0], parsed, SampleSpec(ArraySpec((4, 4, 1), dtype), 3)
    )
    assert folder_bytes == copies * parameters * 2 * 8 + 4 * parameters


@pytest.mark.parametrize(
    ("cores", "problem"),
    [
        (
            {0, 1},
            ["a trainer of node 0 is bound to cores far from its GPU 1 on NUMA node 1 (CPUs 8-15)"],
        ),
        ({7, 8}, []),
        (range(16), []),
    ],
)
def test_check_ranks_names_trainers_far_from_their_gpu(cores, problem):
    near = [GpuNode("0", 0, frozenset(range(8))), GpuNode("1", 1, frozenset(range(8, 16)))]
    ranks = [replace(RANK, near=near), replace(RANK, near=near, cores=Cores(frozenset(cores), 16))]
    assert (
        problems_of_findings(checks.check_ranks(ranks, [0, 0], [0, 1], needs_gpus=True)) == problem
    )
