"""Random inputs for programs in tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.ptir import Program, TensorType


def inputs_for(program: Program, seed: int = 0) -> list[NDArray[Any]]:
    """Normal numbers scaled down with the size of the tensor, and small positions."""
    rng = np.random.default_rng(seed)
    found: list[NDArray[Any]] = []
    for kind in program.main.parameters:
        assert isinstance(kind, TensorType)
        shape = kind.static_shape
        if kind.dtype.is_integer:
            found.append(rng.integers(0, 9, shape).astype(kind.dtype.numpy))
        else:
            scale = 1.0 if len(shape) < 2 else max(shape[-2], 1) ** -0.5
            values = np.asarray(rng.standard_normal(shape) * scale)
            found.append(values.astype(np.float32).astype(kind.dtype.numpy))
    return found
