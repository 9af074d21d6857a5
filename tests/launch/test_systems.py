"""Submission of scripts, to fake commands in shell."""

import pytest

from launch.errors import InputError
from launch.systems import (
    SYSTEMS,
    CurrentJob,
    System,
    continue_job,
    is_preempted,
    knows_job,
    submit,
    this_job,
)
from tests.fakes import put_programs
from tests.refusals import refused


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Put fake commands on the PATH that record their calls and run a line of shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "job.sh").write_text("#!/bin/bash\ntrue\n")

    def command(name, line):
        put_programs(tmp_path, {name: f'echo {name} "$@" >> {tmp_path}/called\n{line}'})

    def calls():
        return (tmp_path / "called").read_text().splitlines()

    command.calls, command.script = calls, tmp_path / "job.sh"
    return command


@pytest.mark.parametrize(
    ("system", "program", "printed", "id_"),
    [
        ("slurm", "sbatch", "1234", "1234"),
        ("slurm", "sbatch", "1234;cluster", "1234"),
        ("pbs", "qsub", "1234.polaris-pbs-01", "1234.polaris-pbs-01"),
    ],
)
def test_submit_returns_the_printed_job_id(cluster, system, program, printed, id_):
    cluster(program, f"echo '{printed}'")
    assert submit(SYSTEMS[system], cluster.script) == id_
    assert cluster.calls()[0].endswith(str(cluster.script))


def test_submit_passes_the_script_to_bsub_as_input(cluster):
    cluster("bsub", 'grep -q "#!/bin/bash" && echo "Job <77> is submitted to queue <batch>."')
    assert submit(SYSTEMS["lsf"], cluster.script) == "77"
    assert cluster.calls() == ["bsub"]


def test_continue_job_requeues_where_users_can(cluster):
    cluster("scontrol", "true")
    assert continue_job(SYSTEMS["slurm"], "12", cluster.script) == "12"
    assert cluster.calls() == ["scontrol requeue 12"]


def test_continue_job_submits_another_if_requeueing_fails(cluster):
    cluster("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    cluster("sbatch", "echo 13")
    assert continue_job(SYSTEMS["slurm"], "12", cluster.script) == "13"
    assert cluster.calls()[1] == f"sbatch --parsable --dependency=afterany:12 {cluster.script}"


@pytest.mark.parametrize(
    ("system", "program", "printed", "called"),
    [
        ("lsf", "bsub", "Job <13> is submitted", "bsub -w ended(12)"),
        ("pbs", "qsub", "13.host", "qsub -W depend=afterany:12 {script}"),
    ],
)
def test_continue_job_submits_again_without_requeue(cluster, system, program, printed, called):
    cluster(program, f"echo '{printed}'")
    assert continue_job(SYSTEMS[system], "12", cluster.script).startswith("13")
    assert cluster.calls() == [called.format(script=cluster.script)]


def test_submit_quotes_the_systems_error(cluster):
    cluster(
        "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1"
    )
    with pytest.raises(InputError, match="sbatch failed: .*Invalid account"):
        submit(SYSTEMS["slurm"], cluster.script)


def test_submit_names_a_missing_command_or_job_id(cluster):
    with pytest.raises(InputError, match="qsub is not on the PATH"):
        submit(SYSTEMS["pbs"], cluster.script)
    cluster("sbatch", "echo hello")
    with refused(InputError, "sbatch printed 'hello'"):
        submit(SYSTEMS["slurm"], cluster.script)


OWN = {
    "name": "own",
    "template": "<<body>>",
    "job_variable": "OWN_ID",
    "submit": ("own",),
    "id_pattern": "(.+)",
}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"template": ""}, "batch system own: template: it is missing"),
        (
            {"template": "#!/bin/bash"},
            "template: it should have <<body>>, and may have <<directives>>, <<hh_mm>>",
        ),
        ({"template": "<<body>> <<walltime>>"}, "template: it should have <<body>>, and may have"),
        (
            {"job_variable": ""},
            "job_variable: it should name the variable that holds the id of a job",
        ),
        (
            {"id_pattern": "[0-9]+"},
            r"id_pattern: '\[0-9\]\+' should be a regular expression with one group",
        ),
        ({"id_pattern": "("}, "id_pattern: '\\(' should be a regular expression with one group"),
        ({"over": "("}, "over: '\\(' should be a regular expression"),
        ({"preempted": "*"}, r"preempted: '\*' should be a regular expression"),
        (
            {"resources": ("-n {count}",)},
            "'-n {count}' may have braces only around {gpus}, {nodes}, {ranks}",
        ),
        ({"after": ("--after={id}",)}, "'--after={id}' may have braces only around {job}"),
        ({"account": "-A {account}"}, "'-A {account}' may have braces only around {}"),
    ],
)
def test_system_refuses_invalid_fields(parts, message):
    System(**OWN)
    with pytest.raises(InputError, match=message):
        System(**{**OWN, **parts})


def test_has_queue_is_false_for_local():
    assert [name for name, system in SYSTEMS.items() if not system.has_queue] == ["local"]


@pytest.mark.parametrize(
    ("message", "preempted"),
    [
        ("PreemptEligibleTime=2026-11-20T14:29:46 PreemptTime=2026-11-20T14:29:52", True),
        ("PreemptEligibleTime=2026-11-20T14:29:46 PreemptTime=None", False),
    ],
)
def test_is_preempted_reads_the_state_of_slurm(cluster, message, preempted):
    cluster("scontrol", f"echo '   {message}'")
    assert is_preempted(SYSTEMS["slurm"], "12") is preempted
    assert cluster.calls() == ["scontrol show job 12"]


def test_is_preempted_is_false_for_other_systems(cluster):
    cluster("scontrol", "exit 1")
    assert not any(is_preempted(system, "12") for system in SYSTEMS.values())


# ---- is a job still known? ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "program", "line", "expected"),
    [
        ("slurm", "scontrol", "echo 'JobId=12 JobState=RUNNING Reason=None'", True),
        ("slurm", "scontrol", "echo 'JobId=12 JobState=SUSPENDED Reason=None'", True),
        ("slurm", "scontrol", "echo 'JobId=12 JobState=COMPLETING Reason=None'", True),
        ("slurm", "scontrol", "echo 'JobId=12 JobState=NODE_FAIL Reason=None'", False),
        ("slurm", "scontrol", "echo 'JobId=12 JobState=PENDING Reason=BeginTime'", False),
        (
            "slurm",
            "scontrol",
            "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
            False,
        ),
        (
            "slurm",
            "scontrol",
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            None,
        ),
        ("lsf", "bjobs", "echo SSUSP", True),
        ("lsf", "bjobs", "echo EXIT", False),
        ("lsf", "bjobs", "echo 'Job <12> is not found' >&2; exit 255", False),
        ("pbs", "qstat", "echo '    job_state = H'", True),
        ("pbs", "qstat", "echo '    job_state = F'", False),
        ("pbs", "qstat", "echo 'qstat: Unknown Job Id 12.host' >&2; exit 153", False),
        ("pbs", "qstat", "echo 'Connection refused' >&2; exit 1", None),
        ("local", "true", "true", None),
    ],
)
def test_knows_job_tells_known_from_ended_and_no_answer(cluster, system, program, line, expected):
    cluster(program, line)
    assert knows_job(system, "12") is expected


def test_knows_job_is_none_for_a_missing_system(cluster):
    assert [knows_job(name, "12") for name in (*SYSTEMS, "another", "")] == [None] * (
        len(SYSTEMS) + 2
    )


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, CurrentJob()),
        ({"LSB_JOBID": "7"}, CurrentJob("lsf", "7")),
        ({"PBS_JOBID": "7.host"}, CurrentJob("pbs", "7.host")),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, CurrentJob("slurm", "7", 2)),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "-"}, CurrentJob("slurm", "7")),
    ],
)
def test_this_job_reads_the_environment(environment, job):
    assert this_job(environment) == job


def test_continue_job_with_another_walltime_is_a_new_job(made_up, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    assert continue_job(SYSTEMS["slurm"], "17", script, walltime_s=90) == "4711"
    assert made_up.acts == [f"sbatch --parsable --dependency=afterany:17 --time=2 {script}"]
