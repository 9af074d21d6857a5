"""Commands that people give to a run, with the product's own functions."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet import live_run
from fleet.commands.live import skip, watch
from fleet.companions.node_release.request import request_nodes
from fleet.errors import StorageError, UserError
from fleet.runtime.external.command_queue import CommandQueue
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.simulate import kernel as k
from tests.simulate.cases import Event
from tests.simulate.oracles import Observer


def start(kernel: k.Kernel, node: k.Node, folder: Path, event: Event, observer: Observer) -> None:
    """Let somebody on a node give the command that an event chooses."""
    person = _Person(folder, event, observer)
    kernel.start_process(node, f"command {event.kind}", {}, person.main)


def start_verdict(
    kernel: k.Kernel, node: k.Node, folder: Path, event: Event, observer: Observer
) -> None:
    """Let somebody on a node stop, pause or resume a network, or all of it one after the other."""
    kernel.start_process(node, "verdict", {}, _Person(folder, event, observer).give_verdicts)


class _Person:
    def __init__(self, folder: Path, event: Event, observer: Observer) -> None:
        self._folder = folder
        self._event = event
        self._observer = observer

    def main(self) -> int:
        """Choose a command and a network, and give the command."""
        commands = (
            self._add,
            self._add,
            self._add_search,
            self._clone,
            self._clone,
            self._stop,
            self._pause,
            self._pause,
            self._skip,
            self._release,
            self._watch,
            self._write_nonsense,
        )
        command = commands[int(len(commands) * self._event.amount)]
        k.KERNEL.counts[f"command {command.__name__[1:]}"] += 1
        try:
            command()
        except (UserError, StorageError, OSError) as error:  # the user reads it
            k.KERNEL.note("command", f"{command.__name__}: {error}")
        return 0

    def _network(self) -> str:
        """Choose a network of the run."""
        names = [row.name for row in read_results(self._folder)] or ["n0"]
        return names[self._event.target % len(names)]

    def _give(self, do: str, give: Callable[[], list[str]], **details: Any) -> None:
        content = {"do": do, **details}
        began_s = k.KERNEL.now
        try:
            networks = give()
        except (UserError, StorageError, OSError) as error:
            self._observer.answered(content, {"error": str(error)})
            self._observer.refused(k.KERNEL.now - began_s)
            if do in ("stop", "pause", "resume"):
                self._observer.refused_verdict(details["network"], error)
            raise
        self._observer.answered(content, {"networks": networks})

    def _add(self) -> None:
        entry = {
            "family": "softmax",
            "name": f"a{len(self._observer.commands)}",
            "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 2}},
        }
        if self._event.target % 5 == 0:  # is refused
            entry["name"] = "n0"
        self._give("add", lambda: live_run.add(self._folder, entry), entry=entry)

    def _add_search(self) -> None:
        entry = {
            "family": "softmax",
            "name": f"b{len(self._observer.commands)}",
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3}},
            "count": 2,
            "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 1}},
        }
        self._give("add", lambda: live_run.add(self._folder, entry), entry=entry)

    def _clone(self) -> None:
        network = self._network()
        values = {"train.optimizer.learning_rate": 0.05, "train.stopping.max_epochs": 2}
        warm = self._event.target % 2 == 0
        self._give("clone", lambda: live_run.clone(self._folder, network, values, warm=warm))

    def _send(self, do: str, network: str) -> None:
        content = {"do": do, "network": network}
        self._give(do, lambda: live_run.command(self._folder, content), network=network)

    def _stop(self) -> None:
        self._send("stop", self._network())

    def _pause(self) -> None:
        """Pause a network, and resume it after a while."""
        network = self._network()
        self._send("pause", network)
        k.KERNEL.sleep(self._event.target / 500, "a while")
        self._send("resume", network)

    def give_verdicts(self) -> int:
        """Give one or several commands to a network, which may have ended."""
        network = self._network()
        for do in ("stop", "pause", "resume")[int(3 * self._event.amount) :]:
            with suppress(UserError, StorageError, OSError):
                self._send(do, network)
        return 0

    def _skip(self) -> None:
        """Exclude a network from later launches, and include it again."""
        arguments = Namespace(run=self._folder, networks=[self._network()], json=False)
        arguments.undo = False
        skip.run(arguments)
        k.KERNEL.sleep(self._event.target / 500, "a while")
        arguments.undo = True
        skip.run(arguments)

    def _release(self) -> None:
        """Ask the launch to go on with a node less."""
        request_nodes(self._folder, 1, 60.0 * self._event.amount)

    def _watch(self) -> None:
        """Look at the events of the run until it ends."""
        watch.run(Namespace(run=self._folder, json=False, from_s=None, speed=None))

    def _write_nonsense(self) -> None:
        """Send something that is no command."""
        paths = RunPaths(self._folder)
        if paths.spec.exists():
            mailbox = CommandQueue(paths.mailbox)
            content: Any = ({"do": "fly"}, {"do": "stop"}, ["stop"], {"do": "yield", "nodes": -1})[
                self._event.target % 4
            ]
            mailbox.take_answer(mailbox.put(content), 30.0)
