"""Tests of harvests: jobs that share the networks of runs."""

import contextlib
import signal
import sys
import threading

import pytest

from fleet.companions.batch_jobs import launching
from fleet.companions.batch_jobs.job_events import ChainCancelled
from fleet.companions.harvest import harvest, harvest_log
from fleet.companions.harvest.backlog import HarvestLimits
from fleet.domain.events import EpochEnded, FirstStep, NetworkLeased
from fleet.domain.network import NetworkStatus, Outcome
from fleet.errors import ExitStatus, UserError
from fleet.spec import parse
from fleet.storage import files
from fleet.storage.event_log import EventLog
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from launch.errors import InputError
from launch.queues import QUEUES, QueuedJob
from launch.systems import SYSTEMS
from tests.fleet.histories import apply_status, record, results_of
from tests.fleet.logs import START
from tests.fleet.storage.test_lease import hold
from tests.refusals import refused


class Queue:
    """A batch system that submits and cancels jobs, but never starts them."""

    def __init__(self, run, idle=4):
        self.name, self.listed, self.idle, self.scripts = run.job, [], idle, []

    def jobs(self, names):
        return [job for job in self.listed if job.name in names]

    def idle_nodes(self, partition):
        return self.idle

    def submit(self, script, nodes, plan):
        self.scripts.append(script)
        self.listed.append(QueuedJob(str(len(self.scripts)), self.name, nodes, False))
        return self.listed[-1].id

    def cancel(self, job):
        self.listed = [queued for queued in self.listed if queued.id != job]


@pytest.fixture
def run(tmp_path):
    return harvest.HarvestRun("fleet-1", tmp_path / "run", ("a", "b", "c"), per_node=1)


def launch(run, job, *events, ends=None, warning=""):
    """Write the log of a launch that has ended."""
    log = RunPaths(run.root, job).events
    harvest_log.add_note(
        run.paths, harvest.JobStarted(job, log.stat().st_size if log.exists() else 0)
    )
    times = iter([0.0, 0.0, *(10.0 * (number + 1) for number in range(len(events)))])
    log = EventLog(log, clock=lambda: next(times))
    for event in (START, *events):
        log.add(event)
    log.close()
    if ends is not None:
        harvest_log.add_note(run.paths, harvest_log.LaunchEnded(job, ends, warning))


def backlog_of(run, queue, **limits):
    return harvest.Backlog(harvest.HarvestPlan((run,), HarvestLimits(**limits)), queue)


def finish(run, *names):
    """Write networks as finished into the table of a run."""
    spec = parse(
        {
            "models": [{"family": "softmax", "name": name} for name in run.networks],
            "output": str(run.root),
        }
    )
    results = results_of(spec, run.paths)
    for name in names:
        apply_status(results, name, NetworkStatus((), Outcome("2 epochs")))


TAKEN, EPOCH = NetworkLeased("a", 1, 0, 0), EpochEnded("a", record(1))


def test_fruitless_launches_count_until_epoch_or_new_request(
    run,
):
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 0
    launch(run, "1", TAKEN, ends=1)
    launch(run, "2", TAKEN)  # it was killed
    launch(run, "2", ends=75)  # no network was available for it, which is not a failure
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 2
    launch(run, "3", ends=1)  # it ended before it took one
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 3
    launch(run, "3", TAKEN, ends=1, warning="a preemption")  # this is normal for a harvest
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 3
    harvest_log.add_note(run.paths, harvest_log.HarvestRequested())
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 0
    launch(run, "4", TAKEN, ends=1)
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 1
    launch(run, "5", TAKEN, EPOCH, ends=75)
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths)) == 0


def test_running_launch_is_not_fruitless(run):
    launch(run, "1", TAKEN)
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths, running=["1"])) == 0
    launch(run, "1", TAKEN)  # Slurm has put it back into the queue, and started it again
    assert harvest_log.count_fruitless(harvest_log.past_launches(run.paths, running=["1"])) == 1


def test_mean_gap_follows_from_cut_launches(run):
    assert harvest.mean_gap_s(harvest_log.past_launches(run.paths)) == harvest.GAP_S
    launch(run, "1", TAKEN, EPOCH, ends=0)
    launch(run, "2", TAKEN, EPOCH, ends=75, warning="SIGTERM came")
    launch(run, "3", TAKEN)
    assert harvest.mean_gap_s(harvest_log.past_launches(run.paths)) == pytest.approx(
        (harvest.GAP_S + 20 + 20 + 10) / 3
    )


def test_run_logs_read_state_from_table_leases_and_logs(run):
    assert harvest.RunLogs(run).read([], []).waiting == 3
    finish(run, "a")
    for name, job in (("b", "17"), ("c", "18")):
        run.paths.network_lease(name).parent.mkdir(exist_ok=True)
        hold(run.paths.network_lease(name), system="slurm", job=job)
    launch(run, "17", FirstStep("b"), EPOCH)
    seen = harvest.RunLogs(run).read(
        [QueuedJob("17", "fleet-1", 1, True), QueuedJob("19", "fleet-1", 2, False)], []
    )
    assert (seen.waiting, seen.training, seen.running, seen.queued) == (
        1,
        1,
        1,
        (("19", 2),),
    )  # job 18 has ended
    assert (seen.start_s, seen.per_node) == (10.0, 2)
    assert seen.rate == pytest.approx(record(1).samples / record(1).seconds)


def test_top_up_submits_logs_and_cancels(run):
    queue = Queue(run)
    backlog = backlog_of(run, queue)
    assert len(backlog.top_up()) == 2
    assert queue.scripts == [run.paths.harvest_script(1)] * 2
    assert backlog.top_up() == []
    finish(run, *run.networks)
    assert len(backlog.top_up()) == 2
    assert queue.listed == []
    words = [line["event"] for line in read_lines(run.paths.harvest_log)]
    assert words == [harvest.JobSubmitted.word] * 2 + [harvest_log.JobCancelled.word] * 2


def test_cancelled_harvest_submits_nothing_until_requested_again(
    run,
):
    queue = Queue(run)
    backlog = backlog_of(run, queue)
    backlog.top_up()
    harvest_log.add_note(run.paths, ChainCancelled())
    assert len(backlog.top_up()) == 2
    assert (queue.listed, backlog.top_up()) == ([], [])
    harvest_log.add_note(run.paths, harvest_log.HarvestRequested())
    assert len(backlog.top_up()) == 2


class Silent(Queue):
    """A batch system that does not answer."""

    def jobs(self, names):
        raise InputError("squeue did not answer within 120 s")


@pytest.fixture
def signals():
    """Restore signal handlers that a job has set."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_job_trains_on_if_batch_system_does_not_answer(run, capfd):
    job = harvest.HarvestJob(
        RunPaths(run.root, "17"), backlog_of(run, Silent(run)), SYSTEMS["slurm"], "17"
    )
    assert (
        job.run([sys.executable, "-c", "print('trained')"]) == ExitStatus.INFRASTRUCTURE
    )  # its log has no end
    out, err = capfd.readouterr()
    assert "trained" in out
    assert "fleet job: cannot fill the backlog for now: squeue did not answer within 120 s" in err
    assert [line["event"] for line in read_lines(run.paths.harvest_log)] == [
        harvest.JobStarted.word,
        harvest_log.LaunchEnded.word,
    ]


def test_harvest_plan_round_trip(run, tmp_path):
    second_run = harvest.HarvestRun("fleet-2", tmp_path / "other", ("d",), 2)
    plan = harvest.HarvestPlan((run, second_run), HarvestLimits(2, 3, 4), ("-p", "low"), "low")
    plan.write()
    assert [harvest.HarvestPlan.read(harvest_run.paths.harvest) for harvest_run in plan.runs] == [
        plan,
        plan,
    ]
    run.paths.harvest.write_text("{}")
    with refused(UserError, run.paths.harvest, "fleet harvest"):
        harvest.HarvestPlan.read(run.paths.harvest)
    with refused(UserError, "none.json", "fleet harvest"):
        harvest.HarvestPlan.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        (["-p", "low"], "low"),
        (["-plow"], "low"),
        (["--partition", "low"], "low"),
        (["--requeue"], None),
        (["--qos=preempt", "--partition=low"], "low"),
    ],
)
def test_queue_of_options(options, partition):
    assert QUEUES["squeue"].queue_of(options) == partition


def test_nodes_of_job_come_from_submission_if_queue_omits_them(run):
    queue = Queue(run)
    backlog_of(run, queue, nodes_per_job=2, backlog=1).top_up()
    (submitted,) = queue.listed
    assert submitted.nodes == 2
    queue.listed = [submitted._replace(nodes=0)]
    more = backlog_of(run, queue, nodes_per_job=2, backlog=2).top_up()
    assert [order.nodes for order in more] == [1]  # two of three networks have a job


def test_running_job_reads_the_newest_plan(run):
    plan = harvest.HarvestPlan((run,), HarvestLimits(backlog=1))
    plan.write()
    backlog = harvest.Backlog(plan, Queue(run), run.paths.harvest)
    assert len(backlog.top_up()) == 1
    harvest.HarvestPlan((run,), HarvestLimits(backlog=3)).write()
    assert len(backlog.top_up()) == 2
    run.paths.harvest.write_text("{}")
    assert backlog.top_up() == []  # it continues with the current plan


# ---- transient errors and ends ------------------------------------------------------------------


def noted(run, *words):
    return [
        line for line in read_lines(run.paths.harvest_log) if not words or line["event"] in words
    ]


def test_transient_failures_have_a_higher_limit(run):
    for number in range(9):
        launch(run, str(number), TAKEN, ends=ExitStatus.CAN_PASS)
    past = harvest_log.past_launches(run.paths)
    assert (harvest_log.count_fruitless(past), harvest_log.count_transient(past)) == (0, 9)
    queue = Queue(run)
    backlog = backlog_of(run, queue)
    assert len(backlog.top_up()) == 2
    queue.listed = []
    launch(run, "9", TAKEN, ends=ExitStatus.CAN_PASS)
    assert backlog.top_up() == []
    launch(run, "10", TAKEN, EPOCH, ends=ExitStatus.CAN_PASS)
    assert harvest_log.count_transient(harvest_log.past_launches(run.paths)) == 0


def test_next_update_notes_launches_that_ended_without_reporting(run):
    queue = Queue(run)
    backlog = backlog_of(run, queue)
    for job in ("17", "18", "19"):
        launch(run, job, TAKEN, EPOCH)
    queue.listed = [QueuedJob("17", run.job, 1, True), QueuedJob("18", run.job, 1, False)]
    backlog.top_up()
    backlog.top_up()
    assert [(line["job"], line["status"], line["why"]) for line in noted(run, "ended")] == [
        (
            "18",
            None,
            "it ended without reporting, and its job was requeued: preempted, or its node died",
        ),
        ("19", None, "it ended without reporting: preempted, cancelled, killed, or its node died"),
    ]
    assert [past.is_cut for past in harvest_log.past_launches(run.paths, ["17"])] == [True, True]


def test_one_of_several_ending_jobs_submits_the_next(run):
    queue = Queue(run, idle=0)
    backlog = backlog_of(run, queue)
    for job in ("17", "18", "19"):
        harvest_log.add_note(run.paths, harvest.JobSubmitted(job, 1))
        launch(run, job, TAKEN, EPOCH, ends=1)
    queue.listed = [
        QueuedJob(job, run.job, 1, True) for job in ("17", "18", "19")
    ]  # their scripts have not ended
    assert len(backlog.top_up("17")) == 2
    assert backlog.top_up("18") == []


@pytest.fixture
def job(run, signals, monkeypatch):
    """Run one job of a harvest whose launch is a line of Python."""
    monkeypatch.setattr(launching, "_MIN_PAUSE_S", 0.1)
    queue = Queue(run)
    plan = harvest.HarvestPlan(
        (run,), HarvestLimits(), command="fleet harvest photos.yaml --system slurm"
    )

    def begin(program, name="17"):
        queue.listed.append(QueuedJob(name, run.job, 1, True))
        harvest_job = harvest.HarvestJob(
            RunPaths(run.root, name), harvest.Backlog(plan, queue), SYSTEMS["slurm"], name
        )
        status = harvest_job.run([sys.executable, "-c", program])
        queue.listed = [queued for queued in queue.listed if queued.id != name]
        return status

    begin.queue = queue
    return begin


def test_job_without_a_network_starts_no_launch(run, job, capfd):
    finish(run, *run.networks)
    assert job("print('trained')") == 0
    assert "trained" not in capfd.readouterr().out
    assert [(line["event"], line["why"]) for line in noted(run)] == [
        ("ended", "it found no network to train"),
        ("over", "all networks have ended"),
    ]


FULL_DISK = (
    "import sys; print('fleet: rank 0 on n1: x.h5 cannot be written: No space left', "
    "file=sys.stderr); sys.exit(74)"
)


def test_launch_end_is_noted_and_transient_error_is_retried(run, job, monkeypatch):
    monkeypatch.setattr(harvest, "_PAUSE_S", 0.01)
    assert job(FULL_DISK) == ExitStatus.CAN_PASS
    (ended,) = noted(run, "ended")
    assert ended["why"] == (
        "it failed: its launcher ended with status 74: rank 0 on n1: x.h5 cannot be written: No "
        "space left"
    )
    assert noted(run, "over") == []
    assert [queued.runs for queued in job.queue.listed] == [False, False]


def test_last_launch_notes_end_reason_and_restart_command(run, job, capfd):
    for name in ("17", "18", "19"):
        job("import sys; sys.exit(1)", name)
        job.queue.listed = []
    (over,) = noted(run, "over")
    assert over["why"] == (
        "3 launches in a row finished no epoch; the last reason: it failed: its launcher ended "
        "with status 1"
    )
    assert over["again"] == "fleet harvest photos.yaml --system slurm"
    assert "to start it again: fleet harvest photos.yaml --system slurm" in capfd.readouterr().err
    assert harvest_log.find_end(run.paths).why == over["why"]
    harvest_log.add_note(run.paths, harvest_log.HarvestRequested())
    assert harvest_log.find_end(run.paths) is None


def test_job_waits_for_full_disk_and_submits_the_next(full_disk, signals, monkeypatch, capfd):
    monkeypatch.setattr(harvest, "_PAUSE_S", 0.01)
    monkeypatch.setattr(launching, "_PROBE_BYTES", 2**14)
    run = harvest.HarvestRun("fleet-1", full_disk / "run", ("a", "b"), 1)
    run.paths.jobs.mkdir(parents=True)
    queue, ballast = Queue(run), full_disk / "ballast"
    queue.listed = [QueuedJob("17", run.job, 1, True)]
    harvest_job = harvest.HarvestJob(
        RunPaths(run.root, "17"), backlog_of(run, queue), SYSTEMS["slurm"], "17"
    )
    fills = f"open({str(ballast)!r}, 'wb', 0).write(bytes(1 << 23)); import sys; sys.exit(1)"
    timer = threading.Timer(3.0, ballast.unlink)
    timer.start()
    assert harvest_job.run([sys.executable, "-c", fills]) == ExitStatus.CAN_PASS
    timer.join()
    assert [line["event"] for line in noted(run)] == ["begun", "submitted", "ended", "submitted"]
    assert "waiting for at most" in capfd.readouterr().err


def test_job_on_full_disk_gives_up_with_restart_command(full_disk, signals, monkeypatch, capfd):
    monkeypatch.setattr(launching, "_ROOM_S", 1.0)
    monkeypatch.setattr(files, "PATIENCE_S", 0.1)
    run = harvest.HarvestRun("fleet-1", full_disk / "run", ("a", "b"), 1)
    run.paths.jobs.mkdir(parents=True)
    launching.reserve_emergency_space(run.paths.reserved_space)
    with contextlib.suppress(OSError), open(full_disk / "ballast", "wb", 0) as ballast:
        while True:
            ballast.write(bytes(1024))
    plan = harvest.HarvestPlan((run,), HarvestLimits(), command="fleet harvest x")
    harvest_job = harvest.HarvestJob(
        RunPaths(run.root, "17"), harvest.Backlog(plan, Queue(run)), SYSTEMS["slurm"], "17"
    )
    assert harvest_job.run([sys.executable, "-c", ""]) == ExitStatus.CAN_PASS
    err = capfd.readouterr().err
    assert "No space left on device" in err
    assert "to start it again: fleet harvest x" in err
    ended, over = noted(run)
    assert (ended["event"], ended["job"], ended["status"]) == ("ended", "17", ExitStatus.CAN_PASS)
    assert "No space left on device" in ended["why"]
    assert (over["event"], over["again"]) == ("over", "fleet harvest x")
