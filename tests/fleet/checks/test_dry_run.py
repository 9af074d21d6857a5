"""Tests of the spec and the rates of dry runs."""

import json
from types import SimpleNamespace

import pytest

from fleet.__main__ import main
from fleet.checks.dry_run import estimated_rates, make_dry_run, measured_rates, with_epochs
from fleet.commands import dry_run as dry_run_command
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.spec import parse
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.source import open_data
from scheduler.base import Cluster, Network, RateTable

SAMPLE = SampleSpec(ArraySpec((224, 224, 3), "uint8"), 257)
SPEC = {
    "models": [
        {"family": "resnet", "name": "deep"},
        {"family": "softmax", "name": "flat", "gpus": [1, 2]},
    ],
    "train": {"batch": {"size": 64}, "stopping": {"max_epochs": 30}},
    "walltime": "1h",
}
RATES = RateTable(
    100_000, 4, (Network("deep", (100.0, 190.0), epochs=7), Network("flat", (900.0,)))
)


def rehearsed(scale=None, cores=2, samples=100_000, **parts):
    spec = parse({**SPEC, **parts})
    rates = with_epochs(spec, RATES, samples)
    return make_dry_run(spec, rates, Cluster.of(8, 4), 10_000.0, cores, SAMPLE, scale)


def test_dry_run_epochs_come_from_rates_or_spec():
    assert {network.name: network.epochs for network in rehearsed().rates.models} == {
        "deep": 7,
        "flat": 30,
    }


def test_dry_run_epoch_has_fewer_samples_and_longer_steps():
    dry_run = rehearsed(scale=0.001)
    assert dry_run.document.data.options["samples"] == 16 * 64
    assert dry_run.document.resources.time_scale == pytest.approx(0.001 * 100_000 / (16 * 64))
    small = rehearsed(scale=0.001, samples=500)
    assert (small.document.data.options["samples"], small.document.resources.time_scale) == (
        500,
        0.001,
    )


def test_dry_run_networks_have_the_names_of_folds():
    models = [{"family": "softmax", "name": "flat"}]
    spec = parse({"models": models, "data": {"source": "builtin:digits", "folds": 3}})
    rates = estimated_rates(spec, SAMPLE, 4)
    document = make_dry_run(spec, rates, Cluster.of(4, 4), 10.0, 2, SAMPLE, None).document
    assert document.data.folds == 3
    assert [network.name for network in rates.models] == ["flat-fold0", "flat-fold1", "flat-fold2"]


def test_dry_run_takes_30_s_unless_machine_is_too_slow():
    assert rehearsed().scale == pytest.approx(30 / 10_000)
    many = {
        "models": [{"family": "softmax", "name": "deep"}, {"family": "softmax", "name": "flat"}],
        "train": {"batch": {"size": 1}, "stopping": {"max_epochs": 10_000}},
    }
    assert rehearsed(**many, cores=1).scale > rehearsed(**many, cores=4).scale > 30 / 10_000


def test_dry_run_keeps_policy_and_ranks_but_not_walltime():
    document = rehearsed(
        schedule={"policy": "local", "pace_tolerance": "5%"}, checkpoint={"every": "1min"}
    ).document
    assert (document.schedule.policy, str(document.schedule.pace_tolerance)) == ("local", "5%")
    assert (
        document.resources.engine,
        document.resources.preprocessors,
        document.resources.gpus_per_node,
    ) == ("emulated", 2, 4)
    assert document.walltime is document.checkpoint.every is None
    assert rehearsed(schedule={"policy": "baseline"}).document.resources.preprocessors == "auto"


def test_dry_run_fuses_no_networks():
    content = {
        "models": [{"family": "mlp", "name": "deep"}, {"family": "softmax", "name": "flat"}],
        "resources": {"engine": "torch", "fuse": 2},
    }
    assert rehearsed(**content).document.resources.fuse == "off"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"window": "1GB"},
        {"order": "ring", "shared_memory": "1GB"},
        {"cache": "memory"},
        {"cache": "file"},
    ],
)
def test_dry_run_shared_memory_holds_same_share_of_data(data):
    settings = rehearsed(data=data).document.data
    size = 16 * 64 * 64  # bytes of all samples
    real = 100_000 * SAMPLE.input.nbytes
    assert settings.shared_memory >= round(
        size * parse({**SPEC, "data": data}).data.shared_memory / real
    )
    assert settings.shared_memory >= (size if data.get("cache") == "memory" else 64 * 64)
    assert (
        open_data(
            settings.source, settings.path, settings.validation, 0, settings.options
        ).validation
        is not None
    )


def test_dry_run_with_elastic_batches_has_room_for_the_largest():
    train = {**SPEC["train"], "batch": {"size": [64, 512]}}
    settings = rehearsed(
        train=train, schedule={"policy": "elastic"}, data={"shared_memory": "1MB"}
    ).document.data
    assert settings.options["samples"] == 16 * 512
    assert settings.shared_memory >= 512 * 8 * 8


def test_measured_rates_stop_at_first_gap_and_need_all_networks():
    spec = parse(SPEC)
    cached = {"k": {1: 10.0, 2: 19.0, 4: 36.0}, "other": {1: 50.0}}
    rates = measured_rates(spec, {"deep": "k", "flat": "other"}, cached, 4)
    assert [(network.rates, network.max_gpus) for network in rates.models] == [
        ((10.0, 19.0), None),
        ((50.0,), 2),
    ]
    rates = measured_rates(spec, {"deep": "k", "flat": "pair"}, cached | {"pair": {2: 30.0}}, 4)
    assert rates.models[1].rates == (15.0, 30.0)
    assert measured_rates(spec, {"deep": "k", "flat": "unknown"}, cached, 4) is None


def test_larger_networks_are_estimated_to_be_slower():
    spec = parse(
        {
            "models": [
                {"family": "resnet", "name": "deep"},
                {"family": "resnet", "name": "small", "args": {"blocks": [1], "width": 16}},
                {"family": "MobileNetV2", "name": "unknown"},
            ]
        }
    )
    rates = {network.name: network.rates for network in estimated_rates(spec, SAMPLE, 4).models}
    assert rates["deep"][0] < rates["unknown"][0] < rates["small"][0]
    assert all(
        len(rates_by_gpus) == 8 and list(rates_by_gpus) == sorted(rates_by_gpus)
        for rates_by_gpus in rates.values()
    )


@pytest.fixture
def spec_file(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text(
        json.dumps(
            {
                **SPEC,
                "output": str(tmp_path / "run"),
                "data": {"source": "builtin:noise", "options": {"samples": 200}},
                "models": [{"family": "softmax", "name": "flat"}],
            }
        )
    )
    return file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", 0], "--gpus: '0' should be a whole number from 1"),
        (["--ranks", 1], "0 GPUs"),
        (["--gpus", 6, "--gpus-per-node", 4], "6 GPUs on nodes with 4 GPUs"),
        (["--gpus", 2, "--time-scale", 0], "--time-scale: '0' should be a number above 0"),
        (["--gpus", 2, "--rates", "nowhere.json"], "nowhere.json"),
    ],
)
def test_dry_run_refuses_invalid_arguments_in_one_line(spec_file, capsys, options, message):
    assert main(["dry-run", str(spec_file), *map(str, options)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("expected", "per_node", "networks", "shape"),
    [
        ({"gpus": 6}, "auto", 2, (6, 6)),
        ({"ranks": 7}, "auto", 2, (6, 6)),
        ({"ranks": 10}, 4, 2, (8, 4)),
        ({"gpus": 8, "gpus_per_node": 4}, "auto", 2, (8, 4)),
        ({"gpus": 8}, 4, 2, (8, 4)),
        ({"gpus": 2}, 4, 2, (2, 2)),
        # By default one node, large enough for every network.
        ({}, "auto", 1, (1, 1)),
        ({}, "auto", 20, (8, 8)),
        ({}, "auto", [12], (12, 12)),
        ({}, 4, 1, (4, 4)),
        ({}, 4, [6], (8, 4)),
    ],
)
def test_cluster_shape_follows_from_gpus_ranks_or_networks(expected, per_node, networks, shape):
    if isinstance(networks, list):
        models = [{"family": "softmax", "gpus": networks[0]}]
    else:
        models = [{"family": "softmax", "name": f"n{number}"} for number in range(networks)]
    arguments = SimpleNamespace(**{"gpus": None, "ranks": None, "gpus_per_node": None, **expected})
    cluster = dry_run_command._cluster(
        arguments, parse({"models": models, "resources": {"gpus_per_node": per_node}})
    )
    assert (cluster.gpus, cluster.gpus_per_node) == shape


def test_dry_run_estimate_includes_measurements(spec_file, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))

    def profiled(rates=None, policy="global", when="offline"):
        content = {
            **SPEC,
            "resources": {"engine": "numpy"},
            "profile": {"when": when, "batches": 10, "timed": 5, "max_gpus": 1},
            "models": [{"family": "softmax"}],
            "schedule": {"policy": policy, **(rates or {})},
        }
        table = RateTable(1000, 1, (Network("softmax", (100.0,), epochs=1),))
        return dry_run_command._profiling(
            SimpleNamespace(spec=str(spec_file)), parse(content), SAMPLE, table, Cluster.of(1, 1)
        )

    assert profiled() == (1, 10 * 64 / 100)
    assert profiled(when="online") == (0, 0.0)
    assert profiled(policy="baseline") == (0, 0.0)
    (tmp_path / "rates.json").write_text("{}")
    assert profiled({"rates": str(tmp_path / "rates.json")}) == (0, 0.0)


@pytest.mark.parametrize(
    "remnant", ["models: [{family: softmax}]\n", "resources: {engine: numpy}\n", None]
)
def test_dry_run_refuses_the_folder_of_a_real_run(spec_file, tmp_path, capsys, remnant):
    paths = RunPaths(tmp_path / "real")
    paths.root.mkdir()
    paths.marker.touch()
    if remnant is not None:
        paths.spec.write_text(remnant)
    assert main(["dry-run", str(spec_file), "--gpus", "1", "--output", str(paths.root)]) == 2
    assert "contains a real run" in capsys.readouterr().err
    assert paths.marker.exists()


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (InfrastructureError("it broke off"), 1),
        (UserError("it cannot be run"), 2),
        (ExitStatus.NETWORK_FAILED, 3),
    ],
)
def test_failed_dry_run_says_why(spec_file, capsys, monkeypatch, ended, status):
    def launch(spec, ranks, *arguments, log, environment):
        log.write("a rank has died")
        if isinstance(ended, Exception):
            raise ended
        return ended

    monkeypatch.setattr("fleet.api.run", launch)
    monkeypatch.setattr(
        "fleet.commands.dry_run.read_report", lambda paths: SimpleNamespace(account=None)
    )
    monkeypatch.setattr("fleet.commands.dry_run._print", lambda *parts: None)
    assert main(["dry-run", str(spec_file), "--gpus", "1"]) == status
    assert capsys.readouterr().err.endswith("a rank has died\n")


def test_dry_run_samples_are_equal_for_all_entries():
    spec = parse(
        {
            "models": [
                {"family": "softmax", "name": name, "data": data}
                for name, data in (("a", {"target": "value"}), ("b", {"transforms": ["decode"]}))
            ]
        }
    )
    rates = RateTable(600, 4, tuple(Network(name, (100.0,), epochs=2) for name in "ab"))
    dry_run = make_dry_run(spec, rates, Cluster.of(8, 4), 10_000.0, 2, SAMPLE, None)
    assert [network.pipeline for network in spec.networks] != ["", ""]
    assert [entry.data for entry in dry_run.document.models] == [None, None]
