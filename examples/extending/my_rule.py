"""A custom pruning rule: stop networks that are too far behind the best one."""

from fleet.search.pruning import NoPruning
from fleet.search.searcher import Verdict
from fleet.spec.search import PruningRule


class Gap(NoPruning):
    def __init__(self, prune, most_epochs, seed, gap=0.2):  # the gap is an option of the spec
        self.min_epochs, self.gap = prune.min_epochs, gap
        self.best = {}  # the best score after so many epochs

    def add(self, name, epochs, score, is_done=False):
        self.best[epochs] = max(score, self.best.get(epochs, score))
        is_behind = epochs >= self.min_epochs and score < self.best[epochs] - self.gap
        return Verdict.STOP if is_behind and not is_done else Verdict.GO_ON


RULE = PruningRule("gap", Gap, reads=("min_epochs",))
