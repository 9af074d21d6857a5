"""A run on two nodes of a Slurm: each node holds one copy of the stream, and groups span nodes."""

import json
import shlex
from pathlib import Path

import pytest

from fleet.api import mpirun
from fleet.domain.events import GroupStarted, LaunchStarted
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import ROOT, Launch, Launcher, read_lines, spec
from tests.mpi.test_stream import DATA, MODELS, check
from tests.mpi.test_training import replayed

pytestmark = pytest.mark.cluster
RANKS, NODES = 6, 2
RING = {**DATA, "order": "ring", "shards": 12}
CACHED = {**DATA, "cache": "memory"}


@pytest.fixture(scope="module", params=[DATA, RING, CACHED], ids=["strict", "ring", "cached"])
def data(request):
    return request.param


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    return tmp_path_factory.mktemp("two-nodes")


@pytest.fixture(scope="module")
def content(folder, data):
    """Return a spec with one preprocessor and two trainers per node; one network uses all four."""
    models = [*MODELS, {"family": "softmax", "name": "both-nodes", "gpus": 4}]
    return spec(
        folder,
        models,
        samples=200,
        data=data,
        resources={"engine": "numpy", "preprocessors": NODES},
    )


@pytest.fixture(scope="module")
def job(slurm, folder, content):
    """Run the job and return its id."""
    slurm.clean()
    launcher = Launcher(folder)
    for name in ("records", "memory"):
        (folder / name).mkdir()
    command = [*mpirun(RANKS), "-m", "tests.cluster.record_memory", str(launcher.write(content))]
    number = slurm.submit(
        f"#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}\n",
        f"--nodes={NODES}",
        f"--ntasks-per-node={RANKS // NODES}",
        FLEET_TEST_RECORDS=str(folder / "records"),
        FLEET_TEST_MEMORY=str(folder / "memory"),
        XDG_CACHE_HOME=str(folder / "cache"),
    )
    ended = slurm.wait_for(number)
    assert ended.state == "COMPLETED", ended.output
    return number


@pytest.fixture(scope="module")
def run(slurm, job, content):
    """Return the finished launch."""
    return Launch(0, slurm.output(job), 0.0, RunPaths(Path(content["output"])))


@pytest.fixture(scope="module")
def notes(run, folder):
    """Return the shared memory of each rank, in order of rank."""
    return [json.loads((folder / "memory" / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_virtual_nodes_of_one_machine_are_distinguished(slurm, job, run, notes):
    assert run.events(LaunchStarted)[0].nodes == NODES
    first, second = slurm.nodes_of(job)
    assert [note["node"] for note in notes] == [first] * 3 + [second] * 3


def test_each_node_holds_one_copy_of_the_samples(notes, data):
    windows = [
        {file: inode for file, inode in note["memory"].items() if "/fleet-" in file}
        for note in notes
    ]
    kinds = ["augmented", "decoded", "validation"] if data is CACHED else ["train", "validation"]
    assert all(sorted(file.rsplit("-", 1)[1] for file in window) == kinds for window in windows)
    assert windows[0] == windows[1] == windows[2]
    assert windows[3] == windows[4] == windows[5]
    assert not set(windows[0].items()) & set(windows[3].items())
    # One name may be two files.
    inodes = set(windows[0].values()) | set(windows[3].values())
    assert len(inodes) == NODES * len(kinds)


def test_each_network_gets_each_sample_once_per_epoch(run, folder, content):
    assert len(run.results()) == 3
    check(run, read_lines(folder / "records"), content)


def test_group_across_nodes_trains_to_the_same_losses(run, folder, content):
    groups = [event.devices for event in run.events(GroupStarted) if event.network == "both-nodes"]
    assert groups
    assert all(sorted(devices) == [0, 1, 2, 3] for devices in groups)
    assert replayed(Launcher(folder), content, run, "both-nodes") < 1e-9


def test_shared_memory_is_removed_after_the_run(notes):
    assert not [file for note in notes for file in note["memory"] if Path(file).exists()]
