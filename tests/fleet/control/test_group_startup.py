"""Ranks that do not come back from building a network: nobody waits for them longer than a little."""

from fleet.comm import messages as msg
from fleet.control.effects import EndLaunch, EndRequested, SaveParameterCount
from fleet.control.group_startup import UNRESPONSIVE_S
from fleet.errors import ExitStatus
from tests.fleet.control.driver import ControllerDriver, layout

LIMIT_S = 300.0  # the default of train.build_timeout


def test_build_in_time_is_counted_and_abandons_nothing():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    assert SaveParameterCount("a", 51) in driver.hear(msg.Built("a", 1, 51))
    assert driver.hear(None, after=9 * LIMIT_S) == []


def test_a_group_that_says_anything_has_built_its_network():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.hear(msg.Pace("a", 10, 1.0))
    assert driver.hear(None, after=9 * LIMIT_S) == []


def test_overdue_build_fails_its_network_and_ends_the_launch():
    driver = ControllerDriver({"a": [0, 1], "b": [2]}, trainers=3, stream=layout(9))
    driver.hear(msg.Throughput(0, 100.0))
    driver.begin().hear(msg.Built("b", 3, 51))
    assert driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S - 1) == []
    driver.hear(None, after=1.0)
    assert driver.standings["a"].outcome.is_failure
    assert driver.standings["a"].outcome.reason == (
        "building took longer than 5 min 0 s (train.build_timeout), and Python cannot interrupt it on ranks 1, 2"
    )
    assert driver.read() == {
        "preprocessor": [msg.ReleaseReaders((1, 2))],
        3: [msg.Pause(run_ends=True)],
    }
    driver.hear(msg.Paused("b", 0))
    assert driver.read() == {3: [msg.Stop(final=False)]}
    driver.hear(msg.Stopped("b", 0.0), msg.Ready(3))
    assert driver.effects[-1] == EndLaunch(ExitStatus.RESUMABLE, must_kill=True)
    assert driver.read()[3] == [msg.Exit()]


def test_overdue_build_of_the_last_network_sets_the_status():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.effects[-1] == EndLaunch(ExitStatus.NETWORK_FAILED, must_kill=True)


def test_overdue_build_in_a_measurement_fails_its_network():
    driver = ControllerDriver({}, networks="a", measures=True)
    driver.ready()
    driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.standings["a"].outcome.is_failure
    assert driver.effects[-1] == EndLaunch(ExitStatus.NETWORK_FAILED, must_kill=True)


def test_one_that_measures_after_it_has_built_may_take_longer():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, measures=True)
    driver.ready()
    driver.hear(msg.Built("a", 1, 51))
    assert driver.hear(None, after=9 * LIMIT_S) == []


def test_overdue_build_at_the_end_of_a_launch_does_not_fail():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.hear(EndRequested("SIGUSR2 came"), after=5.0)
    assert driver.hear(None, after=UNRESPONSIVE_S - 1) == []
    driver.hear(None, after=1.0)
    assert driver.standings["a"].outcome is None
    assert driver.effects[-1] == EndLaunch(ExitStatus.RESUMABLE, must_kill=True)


def test_what_a_rank_says_that_was_given_up_is_not_heard():
    driver = ControllerDriver({"a": [0], "b": [1]}, trainers=2).begin()
    driver.hear(msg.Built("b", 2, 51))
    driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S)
    driver.read()
    message = driver.hear(
        msg.Built("a", 1, 51), msg.Failed("a", "too late", "", may_pass=False), msg.Ready(1)
    )
    assert message == [SaveParameterCount("a", 51)]
    assert driver.standings["a"].outcome.reason.startswith("building took longer")


def test_overdue_recruit_ends_the_launch_and_fails_nothing():
    plan = {"a": [0]}
    driver = ControllerDriver(lambda progress: plan, networks="a", trainers=2, stream=layout(9))
    driver.hear(msg.Throughput(0, 100.0))
    driver.begin().hear(msg.Built("a", 1, 51))
    plan["a"] = [0, 1]
    driver.end_epoch("a")  # the policy is asked again
    driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.standings["a"].outcome is None
    assert driver.of("LaunchInterrupted")[0].reason == "rank 2 did not return from building a"


def test_a_group_that_has_only_met_is_still_to_build():
    driver = ControllerDriver({"a": [0]}, networks="a")
    driver.ready()
    driver.hear(msg.Joined("a"), after=1.0)
    driver.hear(None, after=LIMIT_S + UNRESPONSIVE_S - 1)
    assert driver.ensemble.status is ExitStatus.NETWORK_FAILED
