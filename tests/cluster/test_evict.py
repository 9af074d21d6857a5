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


def test_an_ensemble_saves_a_deaf_job_is_requeued_and_an_urgent_one_starts(slurm, tmp_path):
    slurm.clean()
    ensemble = Ensemble(slurm, tmp_path)
    ensemble.submit("--warn=30s")
    deaf, plain = (slurm.submit(script, "--nodes=1", "--exclusive", "--requeue") for script in (DEAF, PLAIN))
    ensemble.wait_until_it_trains()
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=3", "--exclusive", "--nice=-1000")

    printed, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=3")
    assert "Nothing was done" in printed
    assert re.search(rf"job {ensemble.job} of root: saves, until minute .* \(signal B:USR2\)", printed)
    assert record == []
    assert [slurm.state(job) for job in (ensemble.job, deaf, plain)] == ["RUNNING"] * 3

    _, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=3", "--margin=30s", "--yes",
                      f"--record={tmp_path / 'record'}")
    done = [(note["what"], note.get("job")) for note in record]
    assert ("save", ensemble.job) in done
    assert ("freed", ensemble.job) in done
    assert ("deaf", deaf) in done
    assert [what for what, _ in done].count("stop") == 1  # the cheaper of the two others
    assert done[-1] == ("end", None)
    assert slurm.wait_for(urgent).state == "COMPLETED"
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
