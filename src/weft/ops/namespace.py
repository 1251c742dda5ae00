"""The names of the ops layer that `weft` hands out: tensors, functions and dtypes."""

from __future__ import annotations

from weft.ops import arithmetic
from weft.ops.graph.context import default_backend, graph, set_default_backend
from weft.ops.tensor import Tensor
from weft.ops.tensor import evaluate_all as eval  # noqa: A004

__all__ = ["Tensor", "arithmetic", "default_backend", "eval", "graph", "set_default_backend"]
