"""Warn if no network is better than chance after a third of its epochs (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.control.launch_state import LaunchState
from fleet.domain.events import RunWarned
from fleet.domain.network import EpochRecord, best_accuracy

_MIN_EPOCHS = 2  # one is too few to judge a network
_NETWORKS = 3  # so many at chance are enough, if no other has begun


class ChanceWarning:
    """Compares the accuracies of all networks with chance, until one is better.

    Args:
        launch: the state of the launch.
    """

    def __init__(self, launch: LaunchState) -> None:
        self._launch = launch
        self._is_over = not launch.config.chance

    def check(self) -> None:
        """Log a warning if all networks that have begun are at chance and have trained enough."""
        if self._is_over:
            return
        networks = self._launch.networks
        histories = {name: networks.history(name) for name in networks.specs}
        begun = {name: history for name, history in histories.items() if history}
        best = 0.0
        for name, history in begun.items():
            accuracy = best_accuracy(history)
            chance = self._launch.config.chance.get(networks.specs[name].pipeline, -1.0)
            if not accuracy <= chance:  # or one of them is unknown
                self._is_over = True
                return
            best = max(accuracy, best)
        if len(begun) < min(_NETWORKS, len(histories)):
            return
        if not all(self._has_trained_enough(name, history) for name, history in begun.items()):
            return
        self._is_over = True
        warning = (
            "after a third of the epochs no network is better than chance (the best accuracy is "
            f"{best:.1%}): try other learning rates, scale the inputs, and check that the targets "
            "belong to their samples"
        )
        if warning not in self._launch.run.warnings:
            self._launch.outbox.log(RunWarned(warning))

    def _has_trained_enough(self, name: str, history: Sequence[EpochRecord]) -> bool:
        networks = self._launch.networks
        max_epochs = networks.specs[name].train.stopping.max_epochs
        if len(history) >= max(_MIN_EPOCHS, -(-max_epochs // 3)):
            return True
        return networks.is_over(name) and max_epochs >= _MIN_EPOCHS
