"""Files of running jobs, and the cost of checkpoints."""

import json

import pytest

from launch.errors import InputError
from scheduler.eviction.plan import RunningJob
from scheduler.eviction.running_jobs import Checkpointing, FileSystem, read_jobs

STORAGE = FileSystem(aggregate_gbps=100, node_gbps=2)
JOBS = [RunningJob("17", 4, 9600, 20, None), RunningJob("md", 2, 0.5, None, 1.5)]
DIRECT = "id,nodes,loss,app_time,sys_time\n17,4,9600,20,\nmd,2,0.5,,1.5\n"
RAW = (
    "id,nodes,memory_gb,critical_gb,since_checkpoint_min,interval_min\n"
    "17,4,120,30,40,60\nmd,2,,10,7.5,\n"
)


# ---------------------------------------------------------------- what checkpoints cost


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([10] * 100, 10.0),  # 1,000 GB saturate the file system
        ([10] * 4, 5.0),  # 10 GB saturate the link of a node
        ([1, 2, 30], 15.0),  # the node with the most data is the last
        ([], 0.0),
    ],
)
def test_checkpoint_is_bound_by_file_system_or_fullest_node(sizes, seconds):
    assert STORAGE.seconds(sizes) == seconds


@pytest.mark.parametrize(
    ("since", "interval", "wait"),
    [(0, 60, 60), (40, 60, 20), (60, 60, 0), (61, 60, 59), (0.1, 0.3, 0.2), (5, None, None)],
)
def test_running_jobs_application_waits_for_its_next_due_moment(since, interval, wait):
    assert Checkpointing("a", 1, since, interval).wait_min == wait


def test_running_job_follows_from_sizes_and_bandwidths():
    job = Checkpointing(
        "a", 100, since_checkpoint_min=40, interval_min=60, critical_gb=6, memory_gb=60
    )
    assert job.running_job(STORAGE) == RunningJob("a", 100, 240_000, app_time=20.1, sys_time=1)
    assert job.running_job(STORAGE, resolution=1) == RunningJob(
        "a", 100, 240_000, app_time=21, sys_time=1
    )


def test_nodes_may_differ_in_what_they_write():
    assert Checkpointing("a", 2, 0, memory_gb=[1, 36]).running_job(STORAGE).sys_time == 0.3


@pytest.mark.parametrize("fields", [{"interval_min": None}, {"critical_gb": None}])
def test_job_without_interval_or_size_has_no_app_checkpoint(fields):
    job = Checkpointing("a", 1, 0, **{"interval_min": 60, "critical_gb": 1, **fields})
    assert job.running_job(STORAGE) == RunningJob("a", 1, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"since_checkpoint_min": -1},
        {"interval_min": 0},
        {"memory_gb": float("nan")},
        {"critical_gb": [1, -1]},
        {"memory_gb": [1, 2, 3]},
        {"nodes": 1.5},
    ],
)
def test_running_jobs_job_out_of_range_is_refused(fields):
    with pytest.raises(InputError, match="job a: " + next(iter(fields))):
        Checkpointing(**{"id": "a", "nodes": 2, "since_checkpoint_min": 0, **fields})


@pytest.mark.parametrize("bandwidths", [(0, 1), (1, -1), (float("inf"), 1), (1, float("nan"))])
def test_running_jobs_bandwidth_out_of_range_is_refused(bandwidths):
    with pytest.raises(InputError, match="bandwidth is .* GB/s"):
        FileSystem(*bandwidths)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.csv", DIRECT),
        ("jobs.CSV", "\ufeff" + DIRECT.replace("\n", "\r\n") + "\r\n"),
        ("jobs.csv", "nodes, id ,sys_time,app_time,loss\n4,17,,20,9600\n\n2,md, 1.5 ,,0.5"),
        (
            "jobs.json",
            '[{"id": 17, "nodes": 4, "loss": 9600, "app_time": 20},\n'
            ' {"id": "md", "nodes": 2, "loss": 0.5, "app_time": null, "sys_time": 1.5}]',
        ),
        (
            "jobs.json",
            '{"jobs": [{"id": "17", "nodes": 4, "loss": 9600, "app_time": 20, "sys_time": null},'
            '{"id": "md", "nodes": 2, "loss": 0.5, "sys_time": 1.5}]}',
        ),
    ],
)
def test_running_jobs_direct_form_is_read(write, name, text):
    assert read_jobs(write(name, text)) == JOBS


def test_whole_numbers_stay_whole(write):
    job = read_jobs(write("jobs.csv", DIRECT))[0]
    assert [type(value) for value in (job.nodes, job.loss, job.app_time)] == [int, int, int]


def test_running_jobs_raw_form_is_worked_out_in_csv_and_in_json(write):
    jobs = [RunningJob("17", 4, 9600, app_time=20.3, sys_time=1), RunningJob("md", 2, 900)]
    assert read_jobs(write("jobs.csv", RAW), STORAGE) == jobs
    records = [
        {
            "id": 17,
            "nodes": 4,
            "memory_gb": [90, 90, 90, 120],
            "critical_gb": 30,
            "since_checkpoint_min": 40,
            "interval_min": 60,
        },
        {"id": "md", "nodes": 2, "critical_gb": 10, "since_checkpoint_min": 7.5},
    ]
    assert read_jobs(write("jobs.json", json.dumps(records)), STORAGE) == jobs


def test_times_of_either_form_are_rounded_up_when_asked(write):
    assert [
        (job.app_time, job.sys_time) for job in read_jobs(write("jobs.csv", DIRECT), resolution=8)
    ] == [(24, None), (None, 8)]
    assert [
        (job.app_time, job.sys_time)
        for job in read_jobs(write("jobs.csv", RAW), STORAGE, resolution=1)
    ] == [(21, 1), (None, None)]


HEADER = "id,nodes,loss,app_time,sys_time\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", r"a.csv:1: the file is empty; its first line must be id,nodes,loss"),
        (
            "a.csv",
            "id,nodes,loss,app_time\n17,1,2,3\n",
            r"a.csv:1: 'sys_time' is missing; a job has id,nodes,loss,",
        ),
        (
            "a.csv",
            "id,nodes,memory_gb,critical_gb,interval_min\n",
            r"a.csv:1: 'since_checkpoint_min' is missing",
        ),
        ("a.csv", "id,nodes,loss,app_time,sys_time,user\n", r"a.csv:1: 'user' is unknown"),
        ("a.csv", "id,nodes,loss,app_time,app_time\n", r"a.csv:1: 'app_time' appears twice"),
        (
            "a.csv",
            HEADER + "17,1,2,3,4\n17,1,2,3,4\n",
            r"a.csv:3: job 17 appears twice, first at .*a.csv:2",
        ),
        (
            "a.csv",
            HEADER + "17,1.5,2,3,4\n",
            r"a.csv:2: job 17: nodes is 1.5; it must be a whole number above 0",
        ),
        ("a.csv", HEADER + "17,0,2,3,4\n", r"a.csv:2: job 17: nodes is 0"),
        (
            "a.csv",
            HEADER + "17,1,-2,3,4\n",
            r"a.csv:2: job 17: loss is -2; it must be a number from 0",
        ),
        ("a.csv", HEADER + "17,1,2,inf,4\n", r"a.csv:2: job 17: app_time is inf"),
        ("a.csv", HEADER + "17,1,2,nan,4\n", r"a.csv:2: job 17: app_time is nan"),
        (
            "a.csv",
            HEADER + "\n17,1,2,3,soon\n",
            r"a.csv:3: sys_time is 'soon'; it must be a number",
        ),
        ("a.csv", HEADER + "17,,2,3,4\n", r"a.csv:2: nodes is empty"),
        ("a.csv", HEADER + ",1,2,3,4\n", r"a.csv:2: id is empty"),
        ("a.csv", HEADER + "17,1,2,3\n", r"a.csv:2: 4 cells, but the header has 5"),
        ("a.csv", HEADER + '17,1,2,3,"4\n', r"a.csv:2: unexpected end of data"),
        ("a.csv", b"\xff\xfe\x00", r"a.csv: cannot be read: it is not text"),
        ("a.txt", DIRECT, r"a.txt: the name of a file of jobs must end in .csv or .json"),
        (
            "a.json",
            '[{"id": 1,\n "nodes": 1 "loss": 3}]',
            r"a.json:2: not JSON: Expecting ',' delimiter",
        ),
        ("a.json", '{"id": 17}', r"a.json: it must be a list of jobs"),
        ("a.json", "[\n\n17]", r"a.json: jobs\[0\]: 17 is not a job"),
        (
            "a.json",
            '[{"id": 1, "nodes": 1, "loss": 0}, {"id": 2, "nodes": 1}]',
            r"a.json: jobs\[1\]: 'loss' is missing",
        ),
        (
            "a.json",
            '[\n{"id": 1, "nodes": 1, "loss": 0, "user": "me"}]',
            r"a.json: jobs\[0\]: 'user' is unknown",
        ),
        (
            "a.json",
            '[\n{"id": 1, "nodes": true, "loss": 0}]',
            r"a.json: jobs\[0\]: nodes is true; it must be a number",
        ),
        (
            "a.json",
            '[\n{"id": 1, "nodes": "1", "loss": 0}]',
            r'a.json: jobs\[0\]: nodes is "1"; it must be a number',
        ),
        ("a.json", '[\n{"id": null, "nodes": 1, "loss": 0}]', r"a.json: jobs\[0\]: id is empty"),
        (
            "a.json",
            '[\n{"id": 1, "nodes": 1, "loss": NaN}]',
            r"a.json: jobs\[0\]: loss is NaN; it must be a number",
        ),
        ("a.csv", RAW, r"a.csv:2: a job in the raw form needs the bandwidths"),
    ],
)
def test_running_jobs_mistake_is_named_with_its_place(write, name, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_jobs(write(name, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            HEADER + "17,1," + "9" * 5000 + ",3,4\n",
            r"a.csv:2: loss is '9+'; it must be a number",
        ),
        (
            "a.json",
            '[{"id": 1, "nodes": 1, "loss": ' + "9" * 5000 + "}]",
            r"a.json: not JSON: a number of thousands",
        ),
        ("a.json", "[" * 100_000, r"a.json: not JSON: .* too deep"),
    ],
    ids=["digits in csv", "digits in json", "depth"],
)
def test_read_jobs_refuses_malicious_files(write, name, text, message):
    with pytest.raises(InputError, match=message):
        read_jobs(write(name, text))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="jobs.csv: No such file"):
        read_jobs(tmp_path / "jobs.csv")


@pytest.mark.parametrize("resolution", [0, -1, float("inf"), float("nan")])
def test_running_jobs_resolution_out_of_range_is_refused(write, resolution):
    with pytest.raises(InputError, match="the resolution is"):
        read_jobs(write("jobs.csv", DIRECT), resolution=resolution)
