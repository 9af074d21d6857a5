"""Histories of networks for tests, with specs and results."""

from fleet.domain.events import EpochEnded, NetworkFailed, NetworkFinished, NetworkTested
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.spec import parse
from fleet.storage.results import Results
from preprocess.sample import ArraySpec, SampleSpec


def record(
    epoch, loss=1.0, accuracy=0.5, val_loss=1.0, val_accuracy=0.5, stream_epoch=None, **more
):
    """Return the record of an epoch, with defaults."""
    fields = {
        "learning_rate": 0.1,
        "samples": 60,
        "gpus": 1,
        "seconds": 2.0,
        "waited_s": 0.5,
        **more,
    }
    return EpochRecord(
        epoch,
        epoch - 1 if stream_epoch is None else stream_epoch,
        loss,
        accuracy,
        val_loss,
        val_accuracy,
        **fields,
    )


def history(*val_accuracies):
    """Return epochs with these validation accuracies."""
    return tuple(
        record(epoch, val_accuracy=value) for epoch, value in enumerate(val_accuracies, start=1)
    )


SAMPLE = SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3)


def spec(*models, **parts):
    """Return a spec of networks for the numpy engine."""
    return parse(
        {
            "models": list(models) or [{"family": "softmax"}],
            "resources": {"engine": "numpy"},
            **parts,
        }
    )


def results_of(content, paths, statuses=None, parameters=(), **more):
    """Return the results of a run whose networks have these statuses."""
    run = RunState(content)
    run.restore(statuses or {})
    run.parameters.update(parameters)
    return Results(content, paths, run, **more)


def apply_status(results, name, status):
    """Apply the events that bring a network to a status."""
    entries, outcome, tested = (
        results.run.status_of(name).history,
        status.outcome,
        status.tested,
    )
    events = [EpochEnded(name, entry) for entry in status.history if entry not in entries]
    if outcome is not None and outcome.is_failure:
        events.append(NetworkFailed(name, outcome.reason, "", outcome.may_pass))
    elif outcome is not None:
        events.append(NetworkFinished(name, outcome.reason, len(status.history)))
    if tested is not None:
        events.append(NetworkTested(name, tested, 0.1))
    for event in events:
        results.run.apply(0.0, event)
        results.on_event(event)
    assert results.run.status_of(name) == status
