"""Overdue builds: ranks that do not return from building a network are abandoned."""

from fleet.comm import messages as msg
from fleet.control.effects import EndLaunch, EndRequested
from fleet.control.group_startup import UNRESPONSIVE_S
from fleet.errors import ExitStatus
from tests.fleet.control.driver import ControllerDriver, layout

LIMIT_S = 300.0  # the default of train.build_timeout


def test_build_in_time_is_counted_and_abandons_nothing():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.handle(msg.Built("a", 1, 51))
    assert driver.controller.launch.run.parameters == {"a": 51}
    assert driver.handle(None, after=9 * LIMIT_S) == []


def test_build_ends_with_any_message_of_the_group():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.handle(msg.Pace("a", 10, 1.0))
    assert driver.handle(None, after=9 * LIMIT_S) == []


def test_overdue_build_fails_its_network_and_ends_the_launch():
    driver = ControllerDriver({"a": [0, 1], "b": [2]}, trainers=3, stream=layout(9))
    driver.handle(msg.Throughput(0, 100.0))
    driver.begin().handle(msg.Built("b", 3, 51))
    assert driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S - 1) == []
    driver.handle(None, after=1.0)
    assert driver.statuses["a"].outcome.is_failure
    assert driver.statuses["a"].outcome.reason == (
        "building took longer than 5 min 0 s (train.build_timeout), and Python cannot interrupt it "
        "on ranks 1, 2"
    )
    assert driver.read_mail() == {
        "preprocessor": [msg.ReleaseReaders((1, 2))],
        3: [msg.Pause(run_ends=True)],
    }
    driver.handle(msg.Paused("b", 0))
    assert driver.read_mail() == {3: [msg.Stop(final=False)]}
    driver.handle(msg.Stopped("b", 0.0), msg.Ready(3))
    assert driver.effects[-1] == EndLaunch(ExitStatus.RESUMABLE, must_kill=True)
    assert driver.read_mail()[3] == [msg.Exit()]


def test_overdue_build_of_the_last_network_sets_the_status():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.effects[-1] == EndLaunch(ExitStatus.NETWORK_FAILED, must_kill=True)


def test_overdue_build_in_a_measurement_fails_its_network():
    driver = ControllerDriver({}, networks="a", measures=True)
    driver.send_ready()
    driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.statuses["a"].outcome.is_failure
    assert driver.effects[-1] == EndLaunch(ExitStatus.NETWORK_FAILED, must_kill=True)


def test_measurement_after_its_build_may_take_longer():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, measures=True)
    driver.send_ready()
    driver.handle(msg.Built("a", 1, 51))
    assert driver.handle(None, after=9 * LIMIT_S) == []


def test_overdue_build_at_the_end_of_a_launch_does_not_fail():
    driver = ControllerDriver({"a": [0]}, networks="a").begin()
    driver.handle(EndRequested("SIGUSR2 came"), after=5.0)
    assert driver.handle(None, after=UNRESPONSIVE_S - 1) == []
    driver.handle(None, after=1.0)
    assert driver.statuses["a"].outcome is None
    assert driver.effects[-1] == EndLaunch(ExitStatus.RESUMABLE, must_kill=True)


def test_abandoned_rank_has_its_messages_ignored():
    driver = ControllerDriver({"a": [0], "b": [1]}, trainers=2).begin()
    driver.handle(msg.Built("b", 2, 51))
    driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S)
    driver.read_mail()
    message = driver.handle(
        msg.Built("a", 1, 51), msg.Failed("a", "too late", "", may_pass=False), msg.Ready(1)
    )
    assert message == []
    assert driver.statuses["a"].outcome.reason.startswith("building took longer")


def test_overdue_recruit_ends_the_launch_and_fails_nothing():
    plan = {"a": [0]}
    driver = ControllerDriver(lambda progress: plan, networks="a", trainers=2, stream=layout(9))
    driver.handle(msg.Throughput(0, 100.0))
    driver.begin().handle(msg.Built("a", 1, 51))
    plan["a"] = [0, 1]
    driver.end_epoch("a")  # calls the policy
    driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S)
    assert driver.statuses["a"].outcome is None
    assert (
        driver.events_of("LaunchInterrupted")[0].reason == "rank 2 did not return from building a"
    )


def test_build_is_pending_after_the_group_has_joined():
    driver = ControllerDriver({"a": [0]}, networks="a")
    driver.send_ready()
    driver.handle(msg.Joined("a"), after=1.0)
    driver.handle(None, after=LIMIT_S + UNRESPONSIVE_S - 1)
    assert driver.controller.status is ExitStatus.NETWORK_FAILED
