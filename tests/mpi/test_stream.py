"""Every network is given every sample once per epoch, whatever ranks there are."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from preprocess.pipeline import Pipeline
from preprocess.transforms import parse_transforms
from tests.mpi.conftest import ROOT, read_lines, spec
from tests.sources import numbered

RECORDING = (str(ROOT / "tests/mpi/recording.py"),)


def run_recorded(launch, tmp_path, ranks, content, **environment):
    folder = tmp_path / "records"
    folder.mkdir()
    run = launch(ranks, content, program=RECORDING, environment={"FLEET_TEST_RECORDS": str(folder), **environment})
    assert run.status == 0, run.output
    return run, read_lines(folder)


def check(run, records, content):
    """Each epoch of each network's history was the whole data set, in order, as one preprocessor would give it."""
    source, _ = numbered(content["data"]["path"])
    alone = Pipeline(source, parse_transforms(content["data"]["transforms"]), content["seed"])
    for model in run.results():
        for epoch in run.history(model):
            mine = sorted((record for record in records
                           if (record["network"], record["epoch"]) == (model, epoch.stream_epoch)),
                          key=lambda record: (record["position"], record["rank"]))
            order = alone.order(epoch.stream_epoch)
            assert [number for record in mine for number in record["samples"]] == order.tolist()
            assert [sum_ for record in mine for sum_ in record["sums"]] == sums(alone, order, epoch.stream_epoch)


def sums(pipeline, order, epoch):
    images = np.empty((len(order), *pipeline.shape), pipeline.dtype)
    pipeline.load(order, epoch, images, np.empty(len(order), np.int64))
    return [zlib.crc32(image.tobytes()) for image in images]


DATA = {"transforms": ["tests.sources:noise", {"scale": {"mean": 0.5, "std": 0.5}}]}
MODELS = [{"family": "softmax", "name": "one"}, {"family": "softmax", "name": "other", "train": {"batch": {"size": 7}}}]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_network_is_given_each_sample_once_per_epoch(launch, tmp_path, ranks):
    content = spec(tmp_path, MODELS, samples=61, data=DATA)
    run, records = run_recorded(launch, tmp_path, ranks, content)
    check(run, records, content)


def test_three_preprocessors_give_what_one_gives(launch, tmp_path):
    models = [*MODELS, {"family": "softmax", "name": "pair", "gpus": 2}]
    content = spec(tmp_path, models, samples=150, data=DATA, resources={"engine": "numpy", "preprocessors": 3})
    run, records = run_recorded(launch, tmp_path, 5, content)
    check(run, records, content)
    assert {len(event["devices"]) for event in run.events("group") if event["network"] == "pair"} == {2}


def test_a_small_window_holds_the_stream_back_and_loses_nothing(launch, tmp_path):
    content = spec(tmp_path, MODELS, samples=300, data={**DATA, "window": 64 * 16 * 3})
    run, records = run_recorded(launch, tmp_path, 3, content)
    check(run, records, content)


def test_the_stream_crosses_nodes_and_groups_span_them(launch, tmp_path):
    models = [*MODELS, {"family": "softmax", "name": "both-nodes", "gpus": 4}]
    content = spec(tmp_path, models, samples=200, data=DATA, resources={"engine": "numpy", "preprocessors": 2})
    run, records = run_recorded(launch, tmp_path, 6, content, FLEET_RANKS_PER_NODE="3")
    check(run, records, content)
    assert run.events("start")[0]["nodes"] == 2


def test_nothing_is_left_in_shared_memory(launch, tmp_path):
    before = set(Path("/dev/shm").glob("fleet-*"))
    run = launch(2, spec(tmp_path, MODELS))
    assert run.status == 0, run.output
    assert set(Path("/dev/shm").glob("fleet-*")) <= before
