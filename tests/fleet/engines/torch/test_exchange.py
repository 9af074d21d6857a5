"""Process groups of PyTorch send buckets of gradients during the backward pass.

All ranks send them in the same order.
"""

import threading
import time
from contextlib import nullcontext

import pytest

from fleet.storage.paths import RunPaths

pytestmark = pytest.mark.torch


class Pair:
    """One of two ranks that are threads of this process."""

    size = 2

    def __init__(self, rank, names):
        self.rank, self.is_master, self._names = rank, rank == 0, names

    def broadcast_value(self, value):
        if self.is_master:
            self._names.append(value)
        while not self._names:
            time.sleep(0.001)
        return self._names[0]

    def allgather(self, value):
        return [value] * self.size

    def sleep(self, seconds):
        time.sleep(seconds)

    def check(self):
        pass

    def raising_group_failed(self):
        return nullcontext()


@pytest.mark.parametrize("minimum", [64, 600, 2**22])
def test_torch_exchange_sums_parts_with_an_empty_rank(tmp_path, monkeypatch, minimum):
    import torch

    from fleet.engines.torch import exchange
    from fleet.engines.torch.flat_parameters import FlatParameters

    monkeypatch.setattr(exchange, "_MIN_BUCKET", minimum)
    torch.manual_seed(0)
    inputs = torch.randn(6, 9)
    result, errors, names, foreign = {}, [], [], []

    def module():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(9, 20), torch.nn.ReLU(), torch.nn.Linear(20, 7), torch.nn.Tanh()
        )

    def rank_main(rank, flat, net):
        try:
            trainable = exchange.TorchExchange(Pair(rank, names), torch.device("cpu"), tmp_path)
            # The file remains if the launch is killed.
            foreign.extend(RunPaths(tmp_path).foreign_files())
            for step in range(3):
                flat.write_empty_totals(stop=False, failed=False)
                if rank == 0 or step != 1:  # rank 1 has no rows in the second step
                    trainable.begin(flat)
                    net(inputs[3 * rank : 3 * rank + 3]).sum().backward()
                trainable.finish(flat)
                result[rank, step] = flat.buffer.clone().numpy()
            trainable.close()
        except BaseException as error:
            errors.append(error)

    nets = [module() for _ in range(2)]  # here, because the threads share one generator
    ranks = [
        threading.Thread(target=rank_main, args=(rank, FlatParameters(net, 0), net))
        for rank, net in enumerate(nets)
    ]
    [rank.start() for rank in ranks]
    [rank.join(60) for rank in ranks]
    assert not errors
    assert not foreign
    alone = module()
    flat = FlatParameters(alone, 0)
    for step, rows in enumerate([6, 3, 6]):
        flat.zero_gradients()
        alone(inputs[:rows]).sum().backward()
        for rank in range(2):
            assert result[rank, step] == pytest.approx(flat.buffer.numpy(), abs=1e-5)
    assert len(flat.split_gradients(64)) == 4
    assert sum(last - first for first, last, _ in flat.split_gradients(600)) == len(flat.gradients)
    assert not list(tmp_path.glob(".exchange-*"))


def test_torch_exchange_supports_reentrant_checkpointing(tmp_path, monkeypatch):
    """Reentrant checkpointing runs several backward passes in one; here they share a layer."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from fleet.engines.torch import exchange
    from fleet.engines.torch.flat_parameters import FlatParameters

    monkeypatch.setattr(exchange, "_MIN_BUCKET", 64)
    torch.manual_seed(0)
    inputs = torch.randn(6, 9)
    result, errors, names = {}, [], []

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.first, self.shared = torch.nn.Linear(9, 20), torch.nn.Linear(20, 20)

        def forward(self, rows, is_reentrant):
            rows = self.first(rows).tanh()
            for _ in range(2):
                rows = checkpoint(self.shared, rows, use_reentrant=is_reentrant)
            return rows.sum()

    def rank_main(rank, flat, net):
        try:
            trainable = exchange.TorchExchange(Pair(rank, names), torch.device("cpu"), tmp_path)
            for step in range(3):
                flat.zero_gradients()
                trainable.begin(flat)
                net(inputs[3 * rank : 3 * rank + 3], True).backward()
                trainable.finish(flat)
                result[rank, step] = flat.gradients.clone().numpy()
            trainable.close()
        except BaseException as error:
            errors.append(error)

    nets = [Twice() for _ in range(2)]
    ranks = [
        threading.Thread(target=rank_main, args=(rank, FlatParameters(net, 0), net))
        for rank, net in enumerate(nets)
    ]
    [rank.start() for rank in ranks]
    [rank.join(60) for rank in ranks]
    assert not errors
    alone = Twice()
    flat = FlatParameters(alone, 0)
    flat.zero_gradients()
    alone(inputs, False).backward()
    for gradients in result.values():
        assert gradients == pytest.approx(flat.gradients.numpy(), abs=1e-4)
    assert len(result) == 6
