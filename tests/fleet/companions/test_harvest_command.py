"""Tests of ``fleet harvest``."""

import errno
import json
import os
from pathlib import Path

import pytest

from fleet.__main__ import main
from fleet.companions.harvest.harvest import HarvestPlan
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from tests.fakes import put_programs
from tests.launch.made_up import printed_lines

SPEC = (
    "models: [{{family: softmax, name: x}}, {{family: softmax, name: y}}]\n"
    "name: photos\noutput: {run}\n"
)


@pytest.fixture
def harvest(tmp_path, monkeypatch, capsys):
    """Return a function that harvests a spec on one idle Slurm node: status, output, errors."""
    monkeypatch.chdir(tmp_path)
    put_programs(
        tmp_path,
        {
            "sbatch": f'echo "$*" >> {tmp_path}/handed_in; echo 4711',
            "squeue": ":",
            "sinfo": "echo 'n1 low*'",
        },
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    Path("a.yaml").write_text(SPEC.format(run=tmp_path / "a"))
    Path("b.yaml").write_text(SPEC.format(run=tmp_path / "b"))

    def call(*arguments):
        try:
            status = main(["harvest", *arguments])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_harvest_submits_first_jobs_with_options_after_dashes(harvest, tmp_path):
    status, out, err = harvest(
        "a.yaml",
        "--system",
        "slurm",
        "--nodes-per-job",
        "1",
        "--backlog",
        "2",
        "--max-jobs",
        "32",
        "--idle-timeout",
        "5min",
        "--",
        "--qos=preempt",
        "-p",
        "low",
    )
    assert (status, err) == (0, "")
    paths = RunPaths(tmp_path / "a")
    assert (tmp_path / "handed_in").read_text().splitlines() == [
        f"--parsable --qos=preempt -p low {paths.harvest_script(1)}"
    ]  # there is one idle node
    script = paths.harvest_script(1).read_text()
    for part in (
        f"fleet job {paths.root} --system=slurm --harvest={paths.harvest} --",
        "#SBATCH --requeue",
        "fleet.run a.yaml --share-run --idle-timeout=300s",
    ):
        assert part in script
    plan = HarvestPlan.read(paths.harvest)
    assert (plan.options, plan.partition, plan.limits.max_jobs) == (
        ("--qos=preempt", "-p", "low"),
        "low",
        32,
    )
    assert str(paths.harvest_log) in out
    assert paths.foreign_files() == []


# What each command prints that a harvest asks, after the manuals, with a job of somebody's own and
# idle nodes.
BATCH_SYSTEMS = {
    "lsf": {
        "bsub": "cat > /dev/null; echo 'Job <4711> is submitted to queue <spare>.'",
        "bjobs": "echo 'No unfinished job found' >&2; exit 255",
        "bqueues": "echo 'spares/ '",
        "bhosts": "printf 'HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\nh1 ok - 42 0 0 0 0 "
        "0\n'",
    },
    "pbs": {
        "qsub": "echo 4711.pbs",
        "qselect": "echo 12.pbs",
        "qstat": """echo '{"Jobs": {"12.pbs": {"Job_Name": "mine", "job_state": "R"}}}'""",
        "pbsnodes": """echo '{"nodes": {"n1": {"state": "free"}}}'""",
    },
}


@pytest.mark.parametrize("system", BATCH_SYSTEMS)
def test_harvest_uses_commands_of_other_batch_systems(harvest, tmp_path, system):
    put_programs(
        tmp_path,
        {
            name: f'echo "{name} $*" >> {tmp_path}/asked\n{script}'
            for name, script in BATCH_SYSTEMS[system].items()
        },
    )
    status, _, err = harvest("a.yaml", "--system", system, "--", "-q", "spare")
    assert (status, err) == (0, "")
    paths = RunPaths(tmp_path / "a")
    requests = (tmp_path / "asked").read_text().splitlines()
    assert (
        requests[-1]
        == {"lsf": "bsub -q spare", "pbs": f"qsub -q spare {paths.harvest_script(1)}"}[system]
    )
    assert ("bhosts -w spares" if system == "lsf" else "qstat -Q spare") in requests
    handed_in = [line for line in read_lines(paths.harvest_log) if line["event"] == "submitted"]
    assert [(line["job"], line["nodes"]) for line in handed_in] == [
        ({"lsf": "4711", "pbs": "4711.pbs"}[system], 1)
    ]


def test_end_cancels_waiting_jobs(harvest, tmp_path):
    harvest("a.yaml", "b.yaml", "--system", "slurm")
    plan = HarvestPlan.read(RunPaths(tmp_path / "a").harvest)
    jobs = [
        f"case $* in *{run.job}*) {printed_lines(number, state, run.job)};; esac"
        for run, waits in zip(plan.runs, (10, 20), strict=True)
        for number, state in ((waits, "PENDING"), (waits + 1, "RUNNING"))
    ]
    put_programs(
        tmp_path, {"squeue": "\n".join(jobs), "scancel": f'echo "$*" >> {tmp_path}/taken_back'}
    )
    status, out, err = harvest("a.yaml", "--system", "slurm", "--end")
    assert (status, err) == (0, "")
    assert "still running: 11; each goes on until no network is left for it" in out
    assert (tmp_path / "taken_back").read_text() == "--state=PENDING 10\n"
    message = [line["event"] for line in read_lines(RunPaths(tmp_path / "a").harvest_log)]
    assert message[-2:] == ["called_off", "cancelled"]


@pytest.mark.parametrize(
    ("resources", "at_once"),
    [
        ("{}", 3),
        ("{preprocessors: 2}", 2),
        ("{gpus_per_node: 2}", 2),
        ("{gpus_per_node: 2, networks_per_gpu: 2}", 4),
    ],
)
def test_harvest_assumes_one_network_per_trainer_at_first(harvest, tmp_path, resources, at_once):
    Path("a.yaml").write_text(f"{SPEC.format(run=tmp_path / 'a')}resources: {resources}\n")
    assert harvest("a.yaml", "--system", "slurm", "--nodes-per-job", "1")[0] == 0
    assert [run.per_node for run in HarvestPlan.read(RunPaths(tmp_path / "a").harvest).runs] == [
        at_once
    ]


def test_single_node_job_gets_all_preprocessors(harvest, tmp_path):
    Path("a.yaml").write_text(
        f"{SPEC.format(run=tmp_path / 'a')}resources: {{gpus_per_node: 4, preprocessors: 2}}\n"
    )
    assert harvest("a.yaml", "--system", "slurm", "--nodes-per-job", "2")[0] == 0
    scripts = [RunPaths(tmp_path / "a").harvest_script(nodes).read_text() for nodes in (1, 2)]
    assert [
        f"#SBATCH --ntasks-per-node={ranks}" in script
        for script, ranks in zip(scripts, (6, 5), strict=True)
    ] == [True, True]


def test_end_needs_a_harvest(harvest):
    status, _, err = harvest("a.yaml", "--system", "slurm", "--end")
    assert status == 2
    assert (
        f"jobs/harvest.json cannot be read: {os.strerror(errno.ENOENT)}; fleet harvest writes it"
        in err
    )


def test_several_specs_share_a_harvest(harvest, tmp_path):
    assert harvest("a.yaml", "b.yaml", "--system", "slurm", "--nodes-per-job=2")[0] == 0
    assert HarvestPlan.read(RunPaths(tmp_path / "a").harvest) == HarvestPlan.read(
        RunPaths(tmp_path / "b").harvest
    )
    assert RunPaths(tmp_path / "b").harvest_script(2).exists()


def test_second_harvest_replaces_options_and_waiting_jobs(harvest, tmp_path):
    harvest("a.yaml", "--system", "slurm", "--walltime", "1h", "--", "--qos=low")
    name = HarvestPlan.read(RunPaths(tmp_path / "a").harvest).runs[0].job
    waiting = printed_lines(10, "PENDING", name)
    running = printed_lines(11, "RUNNING", name)
    jobs = f"if ! [ -e {tmp_path}/gone ]; then {waiting}; fi; {running}"
    put_programs(tmp_path, {"squeue": jobs, "scancel": f'echo "$*" > {tmp_path}/gone'})
    assert (
        "changes the running harvest"
        not in harvest("a.yaml", "--system", "slurm", "--walltime", "1h", "--", "--qos=low")[2]
    )
    assert not (tmp_path / "gone").exists()
    status, out, err = harvest("a.yaml", "--system", "slurm", "--walltime", "2h", "--max-jobs", "4")
    assert status == 0
    assert err == "".join(
        f"fleet harvest: this changes the running harvest: {change}\n"
        for change in (
            "--max-jobs 32 -> 4",
            "options after --: --qos=low -> none",
            "--time=01:00:00 -> --time=02:00:00",
        )
    )
    assert (tmp_path / "gone").read_text() == "--state=PENDING 10\n"
    assert "2 changes of the queue" in out
    harvest("a.yaml", "--system", "slurm", "--end")
    assert (
        "changes the running harvest" not in harvest("a.yaml", "--system", "slurm")[2]
    )  # an ended harvest is not replaced


def test_dry_run_only_prints(harvest, tmp_path):
    status, out, _ = harvest(
        "a.yaml", "--system", "slurm", "--nodes-per-job=2", "--dry-run", "--json"
    )
    assert (status, len(json.loads(out)["scripts"])) == (0, 2)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["a.yaml", "--system", "local"],
            "this system does not report idle nodes, which a harvest needs; use slurm, lsf, pbs",
        ),
        (["a.yaml"], "choose the batch system with --system"),
        (["a.yaml", "a.yaml", "--system", "slurm"], "two of the specs have the same output"),
        (["a.yaml", "--system", "slurm", "--backlog", "0"], "--backlog"),
        (["none.yaml", "--system", "slurm"], "none.yaml"),
    ],
)
def test_harvest_refuses_invalid_arguments_in_one_line(harvest, arguments, words):
    status, _, err = harvest(*arguments)
    assert status == 2
    assert words in err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "models: [{family: softmax, name: x, space: {train.batch.size: [8, 16]}, "
            "search: {max_trials: 4}}]",
            "a search cannot be shared by several launches; run one launch at a time, "
            "for example with fleet submit --chain",
        ),
        (
            "models: [{family: softmax, name: x}]\nkeep_open: 1h",
            "keep_open waits for added networks, which launches that share a run do not accept; "
            "remove keep_open",
        ),
    ],
)
def test_harvest_refuses_searches(harvest, tmp_path, spec, words):
    Path("a.yaml").write_text(f"{spec}\noutput: a\n")
    assert harvest("a.yaml", "--system", "slurm") == (2, "", f"fleet harvest: a.yaml: {words}\n")
    assert not (tmp_path / "a").exists()


# Slurm's messages for an invalid partition, and for servers that do not answer or refuse.
SLURM_ERRORS = [
    (
        "sbatch",
        "Batch job submission failed: Invalid partition name specified",
        "Invalid partition name specified",
    ),
    (
        "squeue",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "squeue failed: slurm_load_jobs error: Unable to contact slurm controller (connect "
        "failure)",
    ),
    (
        "sinfo",
        "sinfo: error: Could not establish a configuration source",
        "sinfo failed: sinfo: error: Could not",
    ),
]


@pytest.mark.parametrize(("program", "message", "words"), SLURM_ERRORS)
def test_harvest_quotes_slurms_refusal_and_can_be_repeated(
    harvest, tmp_path, program, message, words
):
    working = (tmp_path / program).read_text()
    put_programs(tmp_path, {program: f"echo '{message}' >&2; exit 1"})
    status, out, err = harvest("a.yaml", "--system", "slurm", "--", "-p", "lo")
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    (tmp_path / program).write_text(working)
    assert harvest("a.yaml", "--system", "slurm", "--", "-p", "low")[0] == 0
    assert len((tmp_path / "handed_in").read_text().splitlines()) == 1


def test_harvest_gives_up_if_slurm_does_not_answer(harvest, tmp_path, monkeypatch):
    monkeypatch.setattr("launch.base.TIMEOUT_S", 0.2)
    put_programs(tmp_path, {"squeue": "exec sleep 60"})
    status, _, err = harvest("a.yaml", "--system", "slurm")
    assert (status, err) == (2, "fleet harvest: squeue did not answer within 0.2 s\n")
