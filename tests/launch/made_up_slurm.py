#!/usr/bin/env python3
"""A fake squeue, scancel, scontrol, sacctmgr, sacct or sbatch, chosen by the program's name.

Its state is in ``slurm.json``: ``{"jobs": {ID: {"user", "state", "nodes", "start", "elapsed",
"partition", "name", "comment", "obeys", "requeues", "held", "hosts", "reason", "script"}}, "owner",
"levels", "says"}``. A job that obeys ends when it is signaled, or waits again ("PENDING"); a job
that requeues becomes pending. Commands that change jobs are written to ``acts``. ``says`` maps a
program to the error with which it fails.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
DEFAULTS = {
    "user": "me",
    "state": "RUNNING",
    "nodes": 1,
    "start": "2026-11-22T10:00:00",
    "elapsed": "1:00:00",
    "partition": "low",
    "name": "job",
    "comment": "(null)",
    "obeys": True,
    "requeues": True,
    "hosts": "",
    "reason": "None",
    "script": "(null)",
}
FIELDS = {
    "%i": "id",
    "%u": "user",
    "%T": "state",
    "%D": "nodes",
    "%S": "start",
    "%M": "elapsed",
    "%P": "partition",
    "%j": "name",
    "%k": "comment",
    "%N": "hosts",
    "%r": "reason",
    "%o": "script",
}


def option(name):
    return next(
        (word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")), None
    )


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(1)


def squeue(slurm):
    jobs = {id_: {**DEFAULTS, **job, "id": id_} for id_, job in slurm["jobs"].items()}
    if option("jobs") and option("jobs") not in jobs:
        fail("slurm_load_jobs error: Invalid job id specified")
    for id_, job in jobs.items():
        job["reason"] = "JobHeldUser" if job.get("held") else job["reason"]
        chosen_ids = (
            option("states") in ("all", job["state"]),
            option("jobs") in (None, id_),
            option("partition") in (None, job["partition"]),
        )
        if all(chosen_ids):
            line = option("format")
            for field, name in FIELDS.items():
                line = line.replace(field, str(job[name]))
            print(line)


def scancel(slurm):
    job = {**DEFAULTS, **slurm["jobs"][sys.argv[-1]]}
    if option("signal") and job["obeys"] == "PENDING":
        slurm["jobs"][sys.argv[-1]]["state"] = "PENDING"
    elif option("signal") is None or job["obeys"]:
        slurm["jobs"].pop(sys.argv[-1])


def scontrol(slurm):
    if sys.argv[1:3] == ["show", "config"]:
        print(f"SlurmUser               = {slurm.get('owner', 'slurm')}(64030)")
        return
    if sys.argv[1:3] == ["show", "hostnames"]:
        print("\n".join(sys.argv[3].split(",")))
        return
    if sys.argv[1] == "update":
        changes = dict(word.split("=") for word in sys.argv[2:])
        slurm["jobs"][changes["JobId"]]["hosts"] = changes["NodeList"]
        return
    job = slurm["jobs"].get(sys.argv[-1])
    if job is None:
        fail(f"Invalid job id specified for job {sys.argv[-1]}")
    does = sys.argv[1]
    if does == "requeuehold" and not {**DEFAULTS, **job}["requeues"]:
        fail("Requested operation is presently disabled for job")
    if does == "hold" and job.get("state") != "PENDING":
        fail(f"Job is no longer pending execution for job {sys.argv[-1]}")
    job["held"] = does != "release"
    if does == "requeuehold":
        job["state"] = "PENDING"


def sacctmgr(slurm):
    print(slurm.get("levels", "None"))


def sacct(slurm):
    print("\n".join(slurm.get("past", [])))


def sbatch(slurm):
    print(4711)


def main():
    program = Path(sys.argv[0]).name
    slurm = json.loads((FOLDER / "slurm.json").read_text())
    if program in slurm.get("says", {}):
        fail(slurm["says"][program])
    if program in ("scancel", "sbatch") or sys.argv[1] in (
        "requeuehold",
        "hold",
        "release",
        "update",
    ):
        with open(FOLDER / "acts", "a", encoding="utf-8") as file:
            file.write(" ".join([program, *sys.argv[1:]]) + "\n")
    globals()[program](slurm)
    (FOLDER / "slurm.json").write_text(json.dumps(slurm))


if __name__ == "__main__":
    main()
