"""A stand-in for graphs of CUDA: it repeats the operations of a function on the same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What CUDA cannot capture: it would wait for a value, or copy from the memory of the host.
_FORBIDDEN = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.nonzero.default,
}


def capture(function):
    """Return a function that calls the operations of a function again, with the same tensors."""
    calls = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if operation in _FORBIDDEN:
                raise RuntimeError(f"operation not permitted when stream is capturing: {operation}")
            returned = operation(*args, **(kwargs or {}))
            calls.append((operation, args, kwargs or {}, returned))
            return returned

    with Recorder():
        function()

    def replay():
        with torch.no_grad():
            for operation, args, kwargs, returned in calls:
                _copy(operation(*args, **kwargs), returned)

    return replay


def _copy(computed, expected):
    """Write results where they were when they were captured."""
    if isinstance(computed, torch.Tensor):
        if computed.data_ptr() != expected.data_ptr():
            expected.copy_(computed)
    elif isinstance(computed, tuple | list):
        for new, old in zip(computed, expected, strict=True):
            _copy(new, old)
