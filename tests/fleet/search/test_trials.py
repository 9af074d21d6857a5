"""What searches remember of networks."""

import pytest

from fleet.domain.network import NetworkStatus, Outcome
from fleet.search.searcher import TrialOutcome
from fleet.search.trials import Trial, Trials, outcome_of


def test_trials_index_follows_the_state_of_a_trial():
    trials, trial = Trials(), Trial("net-0", "net", 0)
    trials.index(trial)
    assert trials.alive["net"] == {"net-0"}
    trial.paused_by = frozenset({"asha"})
    trial.awaits_answer = True
    trials.index(trial)
    assert (trials.alive["net"], trials.paused, trials.awaited) == (set(), {"net-0"}, {"net-0"})


@pytest.mark.parametrize(
    ("outcome", "output"),
    [
        (Outcome("9 epochs"), TrialOutcome.FINISHED),
        (Outcome("pruned", is_pruned=True), TrialOutcome.PRUNED),
        (Outcome("skipped", is_pruned=True, is_skipped=True), TrialOutcome.FAILED),
        (Outcome("diverged", is_failure=True), TrialOutcome.FAILED),
    ],
)
def test_outcome_of_a_status(outcome, output):
    assert outcome_of(NetworkStatus(outcome=outcome)) is output
