"""Evictions carried out on a real Slurm: an ensemble saves and goes on later, and an urgent job starts in time."""

import json
import re
import sys

import pytest

from tests.cluster.test_chain import PLANNED, Ensemble
from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.cluster
DEAF = "#!/bin/sh\n#SBATCH --comment=fleet:signal=B:USR1,app_time=0.2\ntrap '' USR1\nwhile true; do sleep 1; done\n"
PLAIN = "#!/bin/sh\nsleep 900\n"


def evict(slurm, folder, *words):
    """``fleet evict``; what it printed, and the record."""
    printed = slurm.call(sys.executable, "-m", "fleet", "evict", "--slurm", "--carry-out", *words, PYTHONPATH=str(ROOT))
    record = folder / "record"
    return printed, [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def acts(record):
    """What was done or noted, and to which job."""
    return [(note["what"], note.get("job")) for note in record]


def check_begun(slurm, record, urgent):
    """The urgent job had begun when the eviction ended; jobs that it held are released after that."""
    end, = (note for note in record if note["what"] == "end")
    assert re.match(rf"job {urgent} is (RUNNING|COMPLETING|COMPLETED) ", end["said"])
    assert slurm.wait_for(urgent).state == "COMPLETED"


def test_three_of_four_ensembles_save_and_go_on_once_an_urgent_job_has_begun(slurm, tmp_path):
    slurm.clean()
    ensembles = [Ensemble(slurm, tmp_path / name, nodes=1) for name in "abcd"]
    for ensemble in ensembles:
        ensemble.submit("--warn=30s")
    for ensemble in ensembles:
        ensemble.wait_until_it_trains(epochs=2)
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=3", "--exclusive")
    _, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=4", f"--for={urgent}", "--yes",
                      f"--record={tmp_path / 'record'}")
    check_begun(slurm, record, urgent)
    done = acts(record)
    saved = {job for what, job in done if what == "save"}
    assert len(saved) == 3
    for what in ("freed", "hold", "release"):
        assert {job for also, job in done if also == what} == saved
    assert not {"stop", "deaf", "ended", "refused"} & {what for what, _ in done}
    free, end = (note["time"] - record[0]["time"] for note in record if note["what"] in ("free", "end"))
    print(f"free after {free:.1f} s; the urgent job had begun after {end:.1f} s")
    for ensemble in ensembles:
        ensemble.wait_for_end()
        ensemble.check()  # no epoch was trained again
        assert [stop["status"] for stop in ensemble.stops()] == ([75, 0] if ensemble.job in saved else [0])


def test_an_ensemble_saves_a_deaf_job_is_requeued_and_an_urgent_one_starts(slurm, tmp_path):
    slurm.clean()
    ensemble = Ensemble(slurm, tmp_path)
    ensemble.submit("--warn=30s")
    deaf, plain = (slurm.submit(script, "--nodes=1", "--exclusive", "--requeue") for script in (DEAF, PLAIN))
    ensemble.wait_until_it_trains()
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=3", "--exclusive")  # that comes after them in the queue

    printed, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=2.5")
    assert "Nothing was done" in printed
    assert re.search(rf"job {ensemble.job} of root: saves, until minute .* \(signal B:USR2\)", printed)
    assert record == []
    assert [slurm.state(job) for job in (ensemble.job, deaf, plain)] == ["RUNNING"] * 3

    _, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=2.5", "--margin=20s", f"--for={urgent}", "--yes",
                      f"--record={tmp_path / 'record'}")
    done = acts(record)
    assert ("save", ensemble.job) in done
    assert ("freed", ensemble.job) in done
    assert ("deaf", deaf) in done
    assert [what for what, _ in done].count("stop") == 1  # the cheaper of the two others
    check_begun(slurm, record, urgent)
    stopped, = (job for what, job in done if what == "stop")
    assert {job for what, job in done if what == "hold"} == {ensemble.job, stopped}  # or they would have been first
    assert {job for what, job in done if what == "release"} == {ensemble.job, stopped}
    ensemble.wait_for_end()
    assert 75 in [stop.get("status") for stop in ensemble.stops()]
    assert len(ensemble.epochs()) == len(set(ensemble.epochs())) == 2 * PLANNED  # it went on, and trained none twice
    for job in (deaf, plain):
        slurm.cancel(job)


def test_what_is_wrong_is_said_in_one_line(slurm, tmp_path):
    slurm.clean()
    with pytest.raises(AssertionError, match="squeue, running jobs of all users: 3 nodes cannot be freed: 0 jobs"):
        evict(slurm, tmp_path, "--nodes=3", "--deadline=3")
    with pytest.raises(AssertionError, match="nowhere"):
        evict(slurm, tmp_path, "--nodes=3", "--deadline=3", "--partition=nowhere")
