"""The entries of a spec whose networks are proposed by searchers (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from fleet.search.calls import AddPriorTrial
from fleet.search.searcher import Mode
from fleet.spec import Spec, Stopping
from fleet.spec.constraints import Constraint, parse_constraint
from fleet.spec.dimensions import Space
from fleet.spec.search import Search


@dataclass(frozen=True)
class Entry:
    """An entry of a spec whose networks are proposed by a searcher.

    Attributes:
        name: name of the entry; its networks are ``NAME-0``, ``NAME-1``, ...
        settings: settings of the search.
        space: space of its parameters.
        stopping: the stopping rule of its networks, unless their values say otherwise.
        resumes: whether its searcher can resume paused networks.
        judges: whether its searcher may pause or prune networks.
        prior_trials: results of earlier runs that it receives.
    """

    name: str
    settings: Search
    space: Space
    stopping: Stopping = field(default_factory=Stopping)
    resumes: bool = False
    judges: bool = True
    prior_trials: tuple[AddPriorTrial, ...] = ()

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """The objectives, the monitored value first, with their modes."""
        mode: Mode = "maximize" if self.stopping.sign > 0 else "minimize"
        further = self.settings.objectives[1:]
        return (
            (self.stopping.metric, mode),
            *((objective.value, objective.sense or "maximize") for objective in further),
        )

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints that its networks should meet."""
        return tuple(map(parse_constraint, self.settings.constraints))

    @property
    def modes(self) -> Mode | tuple[Mode, ...]:
        """The mode that a searcher is constructed with: one, or a tuple for several objectives."""
        modes = tuple(mode for _, mode in self.objectives)
        if len(modes) > 1:
            return modes
        return modes[0]

    def configuration_name(self, number: int) -> str:
        """Return the name of the network that a number stands for, or of all its repeats."""
        return f"{self.name}-{number}"


def entries_of(ends: Spec) -> dict[int, Entry]:
    """Return the entries with searchers, by their places in the spec; none in a replay.

    Args:
        ends: the spec, with networks that stand for those of its searches.
    """
    first = {network.entry: network for network in reversed(ends.networks)}
    return {
        index: Entry(
            entry.stem,
            replace(entry.search, repeats=entry.networks_per_trial),
            entry.space or {},
            first[index].train.stopping,
        )
        for index, entry in ends.searches.items()
        if entry.search is not None and index in first
    }
