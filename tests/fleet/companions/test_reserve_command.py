"""Tests of ``fleet reserve``."""

import pytest

PAPER = "--distribution truncnorm --mu 8 --sigma 2 --low 0 --high 20 --points 200"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "runs.log"
    path.write_text("1\n1\n1\n10\n10\n")
    return path


@pytest.fixture
def reserve(fleet):
    def run(words, *more):
        return fleet("reserve", *words.split(), *more)

    return run


def test_reserve_json_has_requests_and_costs(reserve):
    status, result, err = reserve(f"{PAPER} --json")
    assert (status, err) == (0, "")
    assert len(result.pop("expected_makespan_by_count")) == 8
    assert result.pop("needed")[0] == 1.0
    assert result == {
        "requests": [10.8, 13.4, 15.4, 17.1, 18.7, 20.0],
        "expected_makespan": pytest.approx(11.937461),
        "single_request_makespan": 20.0,
    }


def test_a_backfill_rate_makes_requests_longer(reserve):
    _, result, _ = reserve(f"{PAPER} --backfill-rate 0.5 --json")
    assert result["requests"] == [13.0, 20.0]


def test_reserve_reads_a_log(reserve, log):
    assert reserve("--json --log", log)[1] == {
        "requests": [1.0, 10.0],
        "needed": pytest.approx([1.0, 0.4]),
        "expected_makespan": pytest.approx(5.0),
        "single_request_makespan": 10.0,
        "expected_makespan_by_count": pytest.approx([10.0, 5.0]),
    }


def test_reserve_reads_a_table(reserve, tmp_path):
    (tmp_path / "law.csv").write_text("1,0.6\n10,0.4\n")
    assert reserve("--json --table", tmp_path / "law.csv")[1]["requests"] == [1.0, 10.0]


def test_failed_requests_are_not_repeated(reserve, log):
    assert reserve("--json --failed 1 --log", log)[1] == {
        "requests": [10.0],
        "needed": [1.0],
        "expected_makespan": 11.0,
        "single_request_makespan": 11.0,
    }


def test_reserve_reports_the_error_bound_of_rounded_run_times(reserve, tmp_path, monkeypatch):
    (tmp_path / "many.log").write_text("".join(f"{100 + k}\n" for k in range(300)))
    exact = reserve("--json --backfill-rate 0.3 --log", tmp_path / "many.log")[1]
    monkeypatch.setattr("scheduler.reservation.requests.MAX_EXACT", 50)
    result = reserve("--json --backfill-rate 0.3 --log", tmp_path / "many.log")[1]
    assert 0 < result["error_bound"] < 0.04
    assert exact["expected_makespan"] == pytest.approx(
        result["expected_makespan"], rel=result["error_bound"]
    )
    assert "makespan more than 2." in " ".join(
        reserve("--backfill-rate 0.3 --log", tmp_path / "many.log")[1].replace("\n", " ").split()
    )


def test_reserve_doubles_the_longest_of_few_runs(reserve, tmp_path):
    (tmp_path / "few.log").write_text("3\n4\n")
    status, result, err = reserve("--json --log", tmp_path / "few.log")
    assert status == 0
    assert result == {
        "requests": [8.0],
        "needed": [1.0],
        "expected_makespan": 8.0,
        "single_request_makespan": 4.0,
    }
    assert err == (
        "fleet reserve: fewer than 5 past runs are too few to learn from: "
        "requesting twice the longest known time\n"
    )


def test_job_beyond_all_known_times_is_reported(reserve, log):
    status, result, err = reserve("--json --failed 10 --failed 15 --log", log)
    assert (status, result["requests"]) == (0, [30.0])
    assert "the job has exceeded every known run time" in err


def test_reserve_prints_requests_and_cost_by_their_number(reserve):
    _, text, _ = reserve(PAPER)
    assert "13.4" in text
    assert "8.08%" in text  # of the jobs need the second request
    assert "40.3% saved" in text
    assert "expected makespan" in text
    assert "████" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--distribution truncnorm --mu 8 --low 0 --high 20",
            "truncnorm takes low, high, mu, sigma; given: mu",
        ),
        ("--distribution uniform --low 0 --high inf", "--high: 'inf' should be a number"),
        ("--distribution uniform --low -1 --high 3", "0 <= low < high"),
        (
            "--distribution uniform --low 0 --high 3 --points 0",
            "--points: '0' should be a whole number from 1",
        ),
        (f"{PAPER} --backfill-rate 1", "at least 0 and below 1"),
        (f"{PAPER} --failed -3", "--failed: '-3' should be a number above 0"),
        ("--mu 3 --log LOG", "--mu"),
        ("", "--log"),
        (f"{PAPER} --log LOG", "--log"),
    ],
)
def test_invalid_arguments_are_one_line_and_status_2(refused, log, words, message):
    line = refused("reserve", *(log if word == "LOG" else word for word in words.split()))
    assert line.startswith("fleet reserve: ")
    assert message in line


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--log", "5\nx\n", "in.txt:2: 'x' is not a number"),
        (
            "--table",
            "1,0.5\n2,0.6\n",
            "in.txt: the probabilities of a distribution must be at least 0 and sum to 1",
        ),
    ],
)
def test_reserve_locates_mistakes_in_files(refused, tmp_path, option, text, message):
    (tmp_path / "in.txt").write_text(text)
    assert message in refused("reserve", option, tmp_path / "in.txt")
