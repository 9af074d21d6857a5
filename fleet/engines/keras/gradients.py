"""Release gradients of ``tf.custom_gradient`` together with their graphs.

TensorFlow registers each of these gradients permanently under a new name. A gradient refers to the
tensors of its graph. Because every Keras optimizer sums gradients with such a function, the graphs
of all networks that a process has trained would stay in memory. Here the graph owns the gradient,
and the registry has only a weak reference.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import gradient_registry  # not in the public API

_PREFIX = "CustomGradient-"  # prefix of the names that tf.custom_gradient generates


@functools.cache
def keep_gradients_with_graphs() -> None:
    """Release each later gradient of ``tf.custom_gradient`` together with its graph."""
    register = tf.RegisterGradient.__call__

    def register_with_graph(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        name: str = self._op_type
        if not name.startswith(_PREFIX):
            return register(self, function)
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "fleet_gradients"):
            graph.fleet_gradients = []
        graph.fleet_gradients.append(function)
        reference = weakref.ref(function, lambda _: gradient_registry._registry.pop(name, None))
        register(self, lambda *arguments: reference()(*arguments))  # type: ignore[misc]
        return function

    tf.RegisterGradient.__call__ = register_with_graph
