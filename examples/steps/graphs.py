"""A graph network on graphs of unequal size: is a graph connected?

fleet check graphs.yaml
mpirun -n 3 --oversubscribe python -m fleet.run graphs.yaml

A batch of graphs becomes one graph of several parts. With PyTorch Geometric, `collate` would be
`Batch.from_data_list([Data(record["nodes"], record["edges"].T) for record in records])`, and
the module would take the result.
"""

import numpy as np
import torch
from torch import nn

from fleet.preprocess.base import RandomAccess


class Graphs(RandomAccess):
    """Random graphs; an edge is listed in both directions."""

    classes = ("connected", "in parts")

    def __init__(self, count, seed):
        self.seed = seed
        self.labels = np.arange(count) % 2

    def read(self, index):
        rng = np.random.default_rng([self.seed, index])
        count = int(rng.integers(6, 30))
        cut = count // 2
        edges = [(node, node - 1) for node in range(1, count)]  # a path
        edges += [tuple(pair) for pair in rng.integers(0, count, (count, 2))]
        if self.labels[index]:
            edges = [(a, b) for a, b in edges if (a < cut) == (b < cut)]
        names = rng.permutation(count)
        pairs = names[np.array(edges)]
        marked = np.zeros((count, 1), np.float32)
        marked[names[0]] = 1  # is everything within reach of it?
        return {"nodes": marked, "edges": np.concatenate([pairs, pairs[:, ::-1]])}

    def name(self, index):
        return f"graph {index}"


def graphs(path, count=1000):
    return Graphs(count, 1), Graphs(count // 5, 2)


def collate(records):
    """Return the nodes and edges of all graphs, and the graph of each node."""
    sizes = torch.tensor([len(record["nodes"]) for record in records])
    firsts = sizes.cumsum(0) - sizes
    return {
        "nodes": torch.cat([record["nodes"] for record in records]),
        "edges": torch.cat(
            [record["edges"] + first for record, first in zip(records, firsts, strict=True)]
        ),
        "graph": torch.repeat_interleave(torch.arange(len(records)), sizes),
    }


class GraphNetwork(nn.Module):
    def __init__(self, width, rounds, classes):
        super().__init__()
        self.first = nn.Linear(1, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, nodes, edges, graph):
        """Return logits of each graph, (graphs, classes)."""
        features = self.first(nodes).relu()
        to, source = edges.unbind(1)
        for layer in self.rounds:
            received = torch.zeros_like(features).index_add(0, to, features[source])
            features = layer(torch.cat([features, received.tanh()], 1)).relu()
        count = int(graph.max()) + 1
        sums = features.new_zeros(count, features.shape[1]).index_add(0, graph, features)
        minima = sums.scatter_reduce(
            0, graph[:, None].expand_as(features), features, "amin", include_self=False
        )
        sizes = torch.bincount(graph, minlength=count)[:, None]
        return self.head(torch.cat([sums / sizes, minima], 1))


def network(input_shape, classes, width=16, rounds=8):
    return GraphNetwork(width, rounds, classes)
