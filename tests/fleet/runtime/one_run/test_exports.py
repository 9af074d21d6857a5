"""Exports of whole runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.control import retries
from fleet.domain import events as ev
from fleet.engines.softmax import NumpyEngine, SoftmaxRegression
from fleet.errors import ExitStatus
from fleet.runtime import session as fleet_session
from fleet.storage.checkpoint import find_best
from tests.fleet.runtime.one_run.runner import Runner, cases, failing_once, few, shaky


class _Exporting(SoftmaxRegression):
    """A network that exports a file, as Keras networks do."""

    def export(self, arrays, path):
        path.write_text(str(sorted(arrays)))


class _ExportingEngine(NumpyEngine):
    def build(self, network, group):
        trainable = super().build(network, group)
        trainable.__class__ = _Exporting
        return trainable


@pytest.mark.long_but_first
@pytest.mark.parametrize("failures", [1, 2])
def test_export_transient_failure_is_retried(folders, monkeypatch, failures):
    monkeypatch.setattr(retries, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(
        fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample)
    )
    export = _Exporting.export
    for _ in range(failures):
        export = failing_once(export, at=1)
    monkeypatch.setattr(_Exporting, "export", export)
    runner = shaky(folders(), failures=0, retries=1, epochs=2, engine="keras", policy="baseline")
    assert runner.launch() is (ExitStatus.OK if failures == 1 else ExitStatus.NETWORK_FAILED)
    paths = runner.prepared.paths
    assert (paths.exported("n0", ".keras").exists(), paths.previous("n0").exists()) == (
        failures == 1,
        failures == 2,
    )
    assert runner.launch() is ExitStatus.OK
    assert [event.record.epoch for event in runner.events(ev.EpochEnded)] == [1, 2]
    assert paths.exported("n0", ".keras").exists()


@pytest.mark.long
@pytest.mark.long_but_first
@pytest.mark.parametrize("keep", ["best+last", "last"])
def test_export_repeated_after_more_training(folders, monkeypatch, keep):
    export = lambda self, arrays, path: path.write_text(repr(arrays["weights"].tolist()))  # noqa: E731
    monkeypatch.setattr(
        fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample)
    )
    monkeypatch.setattr(_Exporting, "export", export)
    runner = shaky(
        folders(),
        failures=0,
        retries=0,
        engine="keras",
        policy="baseline",
        checkpoint={"keep": keep},
    )
    assert runner.launch() is ExitStatus.OK
    paths, before = (
        runner.prepared.paths,
        runner.prepared.paths.exported("n0", ".keras").read_text(),
    )
    runner.path.write_text(runner.path.read_text().replace("max_epochs: 1", "max_epochs: 3"))
    monkeypatch.setattr(_Exporting, "export", failing_once(export, at=1))
    assert runner.launch() is ExitStatus.NETWORK_FAILED
    assert paths.exported("n0", ".keras").read_text() == before
    assert runner.launch() is ExitStatus.OK
    assert [event.record.epoch for event in runner.events(ev.EpochEnded)] == [1, 2, 3]
    best = find_best(paths, "n0", runner.prepared.spec.by_name["n0"].train.stopping, keep).state
    assert (
        paths.exported("n0", ".keras").read_text()
        == repr(best.arrays["weights"].tolist())
        != before
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(cases(), st.lists(st.integers(1, 150), min_size=1, max_size=2))
def test_export_of_every_network_after_kills(folders, case, moments):
    case.content["resources"]["engine"] = "keras"
    runner = Runner(case, folders())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fleet_session, "make_engine", lambda spec, sample, *_: _ExportingEngine(sample)
        )
        for turns in moments:
            runner.launch(turns=turns)
        assert runner.launch() is ExitStatus.OK
    for name in runner.results():
        assert (
            runner.prepared.paths.exported(name, ".keras").read_text() == "['velocity', 'weights']"
        )
        maximum = case.content["models"][int(name[1:])]["train"]["stopping"]["max_epochs"]
        assert len(runner.history(name)) == maximum
