"""Commands of users are logged, carried out and answered, each once."""

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
from tests.fleet.histories import apply_status, results_of, spec


class Admission:
    """Admits the networks of entries, whose number is their ``count``."""

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


class Handled:
    """A command handler, with its events and inputs for the controller in order."""

    def __init__(self, folder, earlier=()):
        self.mailbox, self.outputs, self.is_running = CommandQueue(folder / "mailbox"), [], True
        self.results = results_of(spec({"family": "softmax", "name": "a"}), RunPaths(folder))
        self.handler = CommandHandler(
            self.mailbox, self.results, Admission(self.results), earlier, clock=lambda: 0.0
        )

    def handle_commands(self):
        self.handler._checked_s = -1.0
        return self.handler.handle_commands(
            self.outputs.append, self.outputs.append, lambda: self.is_running, self.choose_nodes
        )

    def choose_nodes(self, command, content):
        if content["nodes"] > 1:
            raise UserError("one node can be released")
        event = CommandReceived(command, "yield", ("a",), {"nodes": [3], "hosts": ["n4"]})
        return event, NodesRequested(command, NodeOffer((3,), ("n4",), {"a": "app"}))

    def answer(self, **content):
        name = self.mailbox.put(content)
        assert self.handle_commands()
        return self.mailbox.take_answer(name, 0.0)


@pytest.fixture
def handled(tmp_path):
    return Handled(tmp_path)


@pytest.mark.parametrize(
    ("do", "verdict"), [("stop", Verdict.STOP), ("pause", Verdict.PAUSE), ("resume", Verdict.GO_ON)]
)
def test_command_for_a_network_is_logged_before_it_acts(handled, do, verdict):
    assert handled.answer(do=do, network="a") == {"networks": ["a"]}
    event, received = handled.outputs
    assert (event.do, event.networks, received) == (do, ("a",), NetworkCommand("a", verdict))
    assert not handled.handle_commands()


def test_command_add_is_logged_before_networks_come(handled):
    assert handled.answer(do="add", entry={"family": "cnn", "count": 2}) == {
        "networks": ["new-0", "new-1"]
    }
    assert handled.outputs[0].given == {"family": "cnn", "count": 2, "name": "new"}
    assert (handled.outputs[0].place, handled.outputs[1:]) == (3, ["new-0", "new-1"])


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
            "unknown command 'explode'; known commands are add, clone, stop, pause, resume, yield",
        ),
        ({}, "unknown command"),
    ],
)
def test_command_invalid_is_answered_with_reason(handled, content, wrong):
    assert wrong in handled.answer(**content)["error"]
    assert handled.outputs == []


def test_command_release_is_logged_before_nodes_are_released(handled):
    answer = handled.answer(do="yield", nodes=1, within_s=60)
    event, inputs = handled.outputs
    assert answer == {"networks": ["a"], "nodes": [3], "hosts": ["n4"]}
    assert (event, inputs) == handled.choose_nodes(event.command, {"nodes": 1})


def test_command_release_is_answered_with_a_reason(handled):
    assert "one node" in handled.answer(do="yield", nodes=2, within_s=60)["error"]
    assert handled.outputs == []


def test_command_release_of_an_ended_launch_is_answered(tmp_path):
    handled = Handled(tmp_path)
    name = handled.mailbox.put({"do": "yield", "nodes": 1, "within_s": 60})
    late = Handled(tmp_path, [CommandReceived(name, "yield", ("a",), {"hosts": ["n4"]})])
    assert late.handle_commands()
    assert late.mailbox.take_answer(name, 0.0) == {"networks": ["a"], "hosts": ["n4"]}
    assert late.outputs == []


def test_command_for_an_ended_network_is_refused(handled):
    apply_status(handled.results, "a", NetworkStatus((), Outcome("4 epochs")))
    assert handled.answer(do="stop", network="a") == {
        "error": "a has ended: 4 epochs",
        "is_over": True,
    }


def test_command_repeated_after_kill_acts_once(
    tmp_path,
):
    entry = {"family": "cnn", "count": 2}
    name = CommandQueue(tmp_path / "mailbox").put({"do": "add", "entry": entry})
    handled = Handled(
        tmp_path, [CommandReceived(name, "add", ("new-0", "new-1"), {**entry, "name": "new"})]
    )
    handled.results.networks["new-0"] = None  # it was added before
    handled.handle_commands()
    assert handled.outputs == ["new-1"]
    assert handled.mailbox.take_answer(name, 0.0) == {"networks": ["new-0", "new-1"]}


def test_command_is_refused_when_the_run_ends(handled):
    name, handled.is_running = handled.mailbox.put({"do": "stop", "network": "a"}), False
    handled.handle_commands()
    handled.handler.refuse_all("the run has ended")
    assert handled.mailbox.take_answer(name, 0.0) == {"error": "the run has ended"}
    assert handled.outputs == []
