"""A function of the user makes the inputs of a module of the samples of a batch."""

import copy
import importlib
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.errors import ModelError, SettingError, SpecError
from fleet.spec import parse
from preprocess.padding import Pad, measure_lengths
from preprocess.probe import infer_sample_spec
from preprocess.record_pipeline import make_pipeline
from preprocess.record_target import RecordTarget
from preprocess.records import parse_record_transforms
from preprocess.sample import cut_rows
from preprocess.target import TargetSpec
from preprocess.views import Measured
from tests.places import ROOT
from tests.refusals import refused

pytestmark = pytest.mark.torch

EPOCHS, BATCHES, ROWS, SEED = 10, 3, 8, 5


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "steps"))
    yield importlib.import_module("graphs")
    sys.modules.pop("graphs", None)


def pipeline_of(source, collate):
    measured = Measured(source, measure_lengths(source, ["nodes", "edges"]))
    pads = [Pad("nodes", 30, varies=True), Pad("edges", 150, varies=True)]
    transforms = parse_record_transforms({}, measured, pads=pads)
    sample = infer_sample_spec(measured, transforms, SEED)
    pipeline = make_pipeline(measured, transforms, SEED, sample)
    examples, targets = pipeline.empty(4)
    pipeline.load(range(4), 0, examples, targets)
    return pipeline, sample.with_collation(collate, examples)


def built(sample, build="graphs:network"):
    content = {
        "models": [{"build": build}],
        "resources": {"engine": "torch"},
        "train": {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}},
    }
    [network] = parse(content).networks
    engine = make_engine(parse(content), sample, None, 0, 1)
    return engine.build(replace(network, seed=SEED), SingleRankGroup())


def batches_of(pipeline):
    for epoch in range(EPOCHS):
        for rows in pipeline.order(epoch).reshape(BATCHES, ROWS):
            inputs, labels = pipeline.empty(ROWS)
            pipeline.load(rows, epoch, inputs, labels)
            lengths = {
                name: int(values[rows].max()) for name, values in pipeline.row_lengths.items()
            }
            yield cut_rows(inputs, lengths), labels, rows


def test_graph_network_equals_a_plain_loop_over_graphs(graphs, tmp_path):
    import torch
    from torch.nn.functional import cross_entropy

    source = graphs.Graphs(BATCHES * ROWS, 1)
    pipeline, sample = pipeline_of(source, "graphs:collate")
    trainable = built(sample)
    plain = copy.deepcopy(trainable.module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for inputs, labels, rows in batches_of(pipeline):
        trainable.begin_steps(StepBatches((inputs, labels), [ROWS], [ROWS]))()
        optimizer.zero_grad()
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            graph = {name: torch.from_numpy(value) for name, value in source.read(row).items()}
            alone = torch.zeros(len(graph["nodes"]), dtype=torch.int64)
            logits = plain(graph["nodes"], graph["edges"], alone)
            (cross_entropy(logits, torch.tensor([label])) / ROWS).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        assert trainable.module.state_dict()[name].numpy() == pytest.approx(value.numpy(), abs=1e-5)
    trainable.check_learns(inputs, labels)
    assert "graphs" in trainable.try_export(tmp_path)


@dataclass
class Data:
    """A batch as one object, which has what PyTorch Geometric documents of its `Data`."""

    x: object
    edge_index: object
    batch: object

    def to(self, device):
        return Data(self.x.to(device), self.edge_index.to(device), self.batch.to(device))


def collate_data(records):
    collated = importlib.import_module("graphs").collate(records)
    return Data(collated["nodes"], collated["edges"].T, collated["graph"])


def network_of_data(input_shape, classes):
    import torch

    class OfData(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = importlib.import_module("graphs").network(input_shape, classes)

        def forward(self, data):
            return self.inner(data.x, data.edge_index.T, data.batch)

    return OfData()


def test_collate_may_return_one_object(graphs):
    source = graphs.Graphs(BATCHES * ROWS, 1)
    pipeline, sample = pipeline_of(source, f"{__name__}:collate_data")
    _, plain_sample = pipeline_of(source, "graphs:collate")
    trainable = built(sample, f"{__name__}:network_of_data")
    reference = built(plain_sample)
    reference.module.load_state_dict(trainable.module.inner.state_dict())
    inputs, labels, _ = next(batches_of(pipeline))
    _, outputs = trainable.predict(inputs, labels)
    _, expected = reference.predict(inputs, labels)
    assert outputs == pytest.approx(expected, abs=1e-6)


def network_of_two(input_shape, outputs, order=("kind", "size")):
    import torch

    class OfTwo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            graphs = importlib.import_module("graphs")
            self.inner = torch.nn.ModuleDict(
                {name: graphs.network(input_shape, count, 4) for name, count in outputs.items()}
            )

        def forward(self, nodes, edges, graph):
            return tuple(self.inner[name](nodes, edges, graph) for name in order)

    return OfTwo()


def network_of_two_reversed(input_shape, outputs):
    return network_of_two(input_shape, outputs, ("size", "kind"))


def sample_of_two(sample):
    target = RecordTarget.of({"kind": TargetSpec("class", 3), "size": TargetSpec("value", 1)})
    return replace(sample, target=target, classes=4)


def test_collate_and_several_targets_equal_a_plain_loop(graphs):
    import torch
    from torch.nn.functional import cross_entropy

    source = graphs.Graphs(BATCHES * ROWS, 1)
    pipeline, sample = pipeline_of(source, "graphs:collate")
    sample = sample_of_two(sample)
    trainable = built(sample, f"{__name__}:network_of_two")
    plain = copy.deepcopy(trainable.module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    random = np.random.default_rng(0)
    for inputs, _, rows in batches_of(pipeline):
        named, weights = sample.target.split(sample.target.random_targets(random, ROWS))
        trainable.begin_steps(StepBatches((inputs, named, weights), [ROWS], [ROWS]))()
        optimizer.zero_grad()
        for position, row in enumerate(rows.tolist()):
            graph = {name: torch.from_numpy(value) for name, value in source.read(row).items()}
            alone = torch.zeros(len(graph["nodes"]), dtype=torch.int64)
            kind, size = plain(graph["nodes"], graph["edges"], alone)
            label = torch.tensor([int(named["kind"][position])])
            error = size - torch.as_tensor(named["size"][position])
            ((cross_entropy(kind, label) + error.square().mean()) / ROWS).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        assert trainable.module.state_dict()[name].numpy() == pytest.approx(value.numpy(), abs=1e-5)


def test_collated_module_must_return_each_target(graphs):
    _, sample = pipeline_of(graphs.Graphs(BATCHES * ROWS, 1), "graphs:collate")
    with refused(ModelError, "for the target kind"):
        built(sample_of_two(sample), f"{__name__}:network_of_two_reversed")


def collate_geometric(records):
    from torch_geometric.data import Batch
    from torch_geometric.data import Data as GeometricData

    return Batch.from_data_list(
        [GeometricData(x=record["nodes"], edge_index=record["edges"].T) for record in records]
    )


def test_collate_may_return_a_batch_of_pytorch_geometric(graphs):
    pytest.importorskip("torch_geometric")
    source = graphs.Graphs(BATCHES * ROWS, 1)
    pipeline, sample = pipeline_of(source, f"{__name__}:collate_geometric")
    trainable = built(sample, f"{__name__}:network_of_data")
    inputs, labels, _ = next(batches_of(pipeline))
    trainable.begin_steps(StepBatches((inputs, labels), [ROWS], [ROWS]))()


def collate_nothing(records):
    return records[0]["edge"]


def test_collate_that_fails_is_named(graphs):
    source = graphs.Graphs(BATCHES * ROWS, 1)
    _, sample = pipeline_of(source, f"{__name__}:collate_nothing")
    with refused(SettingError, "collate_nothing failed for 2 samples", "edge"):
        built(sample)


def test_collate_needs_the_engine_torch():
    with refused(SpecError, "data.collate", "keras", "use the engine torch"):
        parse({"models": [{"family": "cnn"}], "data": {"collate": "a:b"}})


def test_records_of_collate_have_no_padding(graphs):
    import torch

    from fleet.engines.torch.collation import Collation

    source = graphs.Graphs(BATCHES * ROWS, 1)
    pipeline, sample = pipeline_of(source, f"{__name__}:as_they_are")
    inputs, _ = pipeline.empty(3)
    pipeline.load(range(3), 0, inputs, np.empty(3, np.int64))
    samples = {name: torch.from_numpy(inputs[name].copy()) for name in inputs.dtype.names}
    for index, record in enumerate(Collation(sample.input)(samples)):
        expected = source.read(index)
        assert sorted(record) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(record[name].numpy(), value)


def as_they_are(records):
    return records
