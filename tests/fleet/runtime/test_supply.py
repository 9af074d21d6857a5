"""Whole runs on slow input, which plans take into account."""

import json

from fleet.domain.events import GroupStarted, RoundStarted, SupplyChanged
from fleet.errors import ExitStatus
from fleet.monitor.report import read_report
from fleet.runtime.preprocessor import Preprocessor
from fleet.storage.event_log import events_of
from fleet.stream import filler
from tests.fleet.runtime.runs import launch, write

# One network that two devices make faster, and two slower networks.
RATES = {
    "samples_per_epoch": 40,
    "gpus_per_node": 2,
    "models": [
        {"name": "wide", "rates": [4000.0, 7000.0]},
        *({"name": name, "rates": [2000.0, 3000.0]} for name in ("left", "right")),
    ],
}


def test_supply_bounds_a_wide_network_on_slow_input(tmp_path, monkeypatch):
    """The input seems fast before the run; then each sample takes at least a millisecond."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Preprocessor, "_measure", lambda preprocessor: 1e6)
    monkeypatch.setattr(filler, "_BUSY_S", 0.02)
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    status, prepared = launch(
        write(
            tmp_path,
            [{"family": "softmax", "name": row["name"]} for row in RATES["models"]],
            data={
                "source": "tests.sources:slow",
                "path": "40",
                "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
                "cache": "none",
            },
            train={"stopping": {"max_epochs": 4}, "batch": {"size": 10}},
            schedule={"policy": "global", "rates": str(tmp_path / "rates.json")},
        ),
        3,
    )
    assert status is ExitStatus.OK
    first, second, *_ = events_of(prepared.paths.events, RoundStarted)
    assert (first.members, len(second.members)) == (("wide",), 2)
    started = events_of(prepared.paths.events, GroupStarted)
    assert [len(group.devices) for group in started[:3]] == [2, 1, 1]
    changes = events_of(prepared.paths.events, SupplyChanged)
    assert 0 < changes[0].supply_samples_per_s <= 1000
    report = read_report(prepared.paths)
    assert report.supply == changes[-1]
    assert "no network gets devices that would only wait for it" in report.input_summary
