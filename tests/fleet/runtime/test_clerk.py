"""What comes through the mailbox is logged, done and answered, each once."""

from types import SimpleNamespace

import pytest

from fleet.control.effects import NetworkCommand, NodeOffer, NodesRequested
from fleet.domain.events import CommandReceived
from fleet.domain.network import NetworkStatus, Outcome
from fleet.errors import UserError
from fleet.runtime.external.command_handler import CommandHandler
from fleet.runtime.external.command_queue import CommandQueue
from fleet.search.searcher import Verdict
from fleet.storage.paths import RunPaths
from tests.fleet.histories import come_to, results_of, spec


class Admission:
    """Knows of each entry how many networks it has; those that have come are in the results."""

    def __init__(self, results):
        self._results = results

    def _of(self, name, count):
        return tuple(SimpleNamespace(name=f"{name}-{number}") for number in range(count))

    def parse_entry(self, entry):
        if not isinstance(entry, dict) or "family" not in entry:
            raise UserError("entry: needs a family")
        return {**entry, "name": "new"}, 3, self._of("new", entry["count"])

    def restore_entry(self, command):
        return self._of(command.given["name"], command.given["count"])

    def admit(self, network):
        self._results.networks[network.name] = network
        return network.name


class Office:
    """A clerk, and all that it has said, in order."""

    def __init__(self, folder, earlier=()):
        self.mailbox, self.said, self.goes_on = CommandQueue(folder / "mailbox"), [], True
        self.results = results_of(spec({"family": "softmax", "name": "a"}), RunPaths(folder))
        self.clerk = CommandHandler(
            self.mailbox, self.results, Admission(self.results), earlier, clock=lambda: 0.0
        )

    def handle_commands(self):
        self.clerk._checked_s = -1.0
        return self.clerk.handle_commands(
            self.said.append, self.said.append, lambda: self.goes_on, self.offer
        )

    def offer(self, nodes, within_s):
        if nodes > 1:
            raise UserError("one node can be given back")
        return NodeOffer((3,), ("n4",), {"a": "app"})

    def answer(self, **content):
        name = self.mailbox.put(content)
        assert self.handle_commands()
        return self.mailbox.take_answer(name, 0.0)


@pytest.fixture
def office(tmp_path):
    return Office(tmp_path)


@pytest.mark.parametrize(
    ("do", "verdict"), [("stop", Verdict.STOP), ("pause", Verdict.PAUSE), ("resume", Verdict.GO_ON)]
)
def test_a_wish_for_a_network_is_logged_before_it_is_heard(office, do, verdict):
    assert office.answer(do=do, network="a") == {"networks": ["a"]}
    event, received = office.said
    assert (event.do, event.networks, received) == (do, ("a",), NetworkCommand("a", verdict))
    assert not office.handle_commands()


def test_command_add_is_logged_before_networks_come(office):
    assert office.answer(do="add", entry={"family": "cnn", "count": 2}) == {
        "networks": ["new-0", "new-1"]
    }
    assert office.said[0].given == {"family": "cnn", "count": 2, "name": "new"}
    assert (office.said[0].place, office.said[1:]) == (3, ["new-0", "new-1"])


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({"do": "add"}, "needs a family"),
        ({"do": "add", "entry": [1]}, "needs a family"),
        ({"do": "stop", "network": "b"}, "the run has no network named 'b'; it has a"),
        ({"do": "stop"}, "the run has no network named None"),
        ({"do": ["stop"]}, "unknown command"),
        (
            {"do": "explode"},
            "unknown command 'explode'; known commands are add, stop, pause, resume, yield",
        ),
        ({}, "unknown command"),
    ],
)
def test_command_invalid_is_answered_with_reason(office, content, wrong):
    assert wrong in office.answer(**content)["error"]
    assert office.said == []


def test_command_release_is_logged_before_nodes_are_released(office):
    answer = office.answer(do="yield", nodes=1, within_s=60)
    event, inputs = office.said
    assert answer == {"networks": ["a"], **event.given}
    assert event.given == {"nodes": [3], "hosts": ["n4"], "within_s": 60, "ways": {"a": "app"}}
    assert inputs == NodesRequested(event.command, office.offer(1, 60.0))


def test_a_launch_that_has_ended_has_given_its_nodes_back(tmp_path):
    office = Office(tmp_path)
    name = office.mailbox.put({"do": "yield", "nodes": 1, "within_s": 60})
    late = Office(tmp_path, [CommandReceived(name, "yield", ("a",), {"hosts": ["n4"]})])
    assert late.handle_commands()
    assert late.mailbox.take_answer(name, 0.0) == {"networks": ["a"], "hosts": ["n4"]}
    assert late.said == []


@pytest.mark.parametrize(
    ("wish", "wrong"),
    [
        ({"nodes": 2, "within_s": 5}, "one node can be given back"),
        ({"nodes": 0, "within_s": 5}, "nodes is 0"),
        ({"nodes": True, "within_s": 5}, "nodes is True"),
        ({"nodes": 1, "within_s": "2min"}, "within_s is '2min'"),
        ({"nodes": 1, "within_s": -1}, "within_s is -1"),
        ({"nodes": 1, "within_s": float("nan")}, "within_s is nan"),
        ({"nodes": 1}, "within_s is None"),
    ],
)
def test_a_wish_for_nodes_that_cannot_be_is_refused(office, wish, wrong):
    assert wrong in office.answer(do="yield", **wish)["error"]
    assert office.said == []


def test_of_a_network_that_is_over_nothing_becomes_any_more(office):
    come_to(office.results, "a", NetworkStatus((), Outcome("4 epochs")))
    assert office.answer(do="stop", network="a") == {
        "error": "a has ended: 4 epochs",
        "is_over": True,
    }


def test_command_repeated_after_kill_acts_once(
    tmp_path,
):
    entry = {"family": "cnn", "count": 2}
    name = CommandQueue(tmp_path / "mailbox").put({"do": "add", "entry": entry})
    office = Office(
        tmp_path, [CommandReceived(name, "add", ("new-0", "new-1"), {**entry, "name": "new"})]
    )
    office.results.networks["new-0"] = None  # it had come
    office.handle_commands()
    assert office.said == ["new-1"]
    assert office.mailbox.take_answer(name, 0.0) == {"networks": ["new-0", "new-1"]}


def test_a_run_that_ends_refuses_what_is_left(office):
    name, office.goes_on = office.mailbox.put({"do": "stop", "network": "a"}), False
    office.handle_commands()
    office.clerk.refuse_all("the run has ended")
    assert office.mailbox.take_answer(name, 0.0) == {"error": "the run has ended"}
    assert office.said == []
