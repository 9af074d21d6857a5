"""Every network gets every sample once per epoch, with any number of ranks."""

import zlib
from pathlib import Path

import pytest

from fleet.domain.events import LaunchStarted, StreamStarted
from fleet.stream.order import Epoch, RingOrder, StrictOrder, parse_path
from preprocess.pipeline import Pipeline
from preprocess.transforms import parse_transforms
from tests.mpi.conftest import ROOT, read_lines, spec
from tests.sources import numbered

RECORDING = (str(ROOT / "tests/mpi/record_samples.py"),)


def run_recorded(launch, tmp_path, ranks, content, **environment):
    folder = tmp_path / "records"
    folder.mkdir()
    run = launch(
        ranks,
        content,
        program=RECORDING,
        environment={"FLEET_TEST_RECORDS": str(folder), **environment},
    )
    assert run.status == 0, run.output
    return run, read_lines(folder)


def check(run, records, content):
    """Check that each epoch had the whole data set, in the order of one preprocessor."""
    data = content["data"]
    source, _ = numbered(data["path"])
    alone = Pipeline.from_source(source, parse_transforms(data["transforms"]), content["seed"])
    if data.get("order") == "ring":
        order = RingOrder(alone, -(-len(source) // data["shards"]), content["seed"])
    else:
        order = StrictOrder(alone, 1)
    for model in run.results():
        for epoch in run.history(model):
            path = parse_path(epoch.path)
            position = path[0] if path else epoch.stream_epoch
            own_rows = sorted(
                (
                    record
                    for record in records
                    if (record["network"], record["epoch"]) == (model, position)
                ),
                key=lambda record: (record["position"], record["rank"]),
            )
            complete = order.plan_epoch(Epoch(epoch.stream_epoch, path))
            assert sorted(complete.indices) == list(range(len(source)))
            assert [
                number for record in own_rows for number in record["samples"]
            ] == complete.indices.tolist()
            assert [sum_ for record in own_rows for sum_ in record["sums"]] == sums(alone, complete)


def sums(pipeline, epoch):
    (image, label), checksums = pipeline.empty(1), []
    for index, production in zip(epoch.indices, epoch.productions.tolist(), strict=True):
        pipeline.load([index], production, image, label)
        checksums.append(zlib.crc32(image.tobytes()))
    return checksums


DATA = {"transforms": ["tests.sources:noise", {"scale": {"mean": 0.5, "std": 0.5}}]}
MODELS = [
    {"family": "softmax", "name": "one"},
    {"family": "softmax", "name": "other", "train": {"batch": {"size": 7}}},
]


def test_each_network_gets_each_sample_once_per_epoch(launch, tmp_path):
    before = set(Path("/dev/shm").glob("fleet-*"))
    content = spec(tmp_path, MODELS, samples=61, data=DATA)
    run, records = run_recorded(launch, tmp_path, 3, content)
    check(run, records, content)
    assert set(Path("/dev/shm").glob("fleet-*")) <= before


@pytest.mark.long
def test_stream_leaves_out_rank_0_where_it_is_slower(launch, tmp_path):
    content = spec(
        tmp_path,
        MODELS,
        samples=500,
        source="slow_on_rank_0",
        data=DATA,
        train={"stopping": {"max_epochs": 6}},
        resources={"engine": "numpy", "preprocessors": 4},
    )
    run, records = run_recorded(launch, tmp_path, 6, content, FLEET_RANKS_PER_NODE="3")
    check(run, records, content)
    assert [event.preprocessors for event in run.events(StreamStarted)] == [4, 3]


@pytest.mark.long
@pytest.mark.parametrize(
    "data", [{"order": "ring", "shards": 12}, {"cache": "memory"}], ids=["ring", "kept"]
)
def test_stream_own_pace_gives_each_sample_once_per_epoch(launch, tmp_path, data):
    models = [
        *MODELS,
        {"family": "softmax", "name": "long", "gpus": 2, "train": {"stopping": {"max_epochs": 5}}},
    ]
    content = spec(
        tmp_path,
        models,
        samples=230,
        data={**DATA, **data},
        resources={"engine": "numpy", "preprocessors": 2},
    )
    run, records = run_recorded(launch, tmp_path, 6, content, FLEET_RANKS_PER_NODE="3")
    check(run, records, content)
    assert run.events(LaunchStarted)[0].nodes == 2
