"""Which of several implementations is fastest on tensors like the given ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.foundation.dims import Shape
from weft.foundation.dtypes import DType
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, within
from weft.ops.graph.evaluate import evaluate
from weft.ops.tensor import Tensor, from_array

_REPEATS = 5
_UNKNOWN_SIZE = 64
"""What is measured in place of a size that is known only when a traced function runs."""


def fastest(
    runs: Sequence[Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """The position of the fastest, by the median of interleaved runs on random elements."""
    arena = Arena(_arena_of_arguments(args, kwargs).backend)
    with within(arena):
        own_args, own_kwargs = _random_like(args), _random_like(kwargs)
        for run in runs:
            _seconds(run, own_args, own_kwargs)
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(_REPEATS):
            for found, run in zip(times, runs, strict=True):
                found.append(_seconds(run, own_args, own_kwargs))
    medians = [statistics.median(found) for found in times]
    return medians.index(min(medians))


def _seconds(run: Callable[..., Any], args: Any, kwargs: Any) -> float:
    results = _tensors_inside(run(*args, **kwargs))
    started = time.perf_counter()
    evaluate([tensor._node for tensor in results])
    return time.perf_counter() - started


def _tensors_inside(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [t for item in value for t in _tensors_inside(item)]
        if isinstance(value, tuple | list)
        else []
    )


def _arena_of_arguments(args: Any, kwargs: Any) -> Arena:
    """The arena of the first tensor; of arrays and numbers alone, the one in force."""
    tensors = _tensors_inside([*args, *kwargs.values()])
    return tensors[0].arena if tensors else current()


def _random_like(value: Any) -> Any:
    """The same arguments with random tensors in place of the given ones."""
    if isinstance(value, Tensor):
        return from_array(_random(value.dtype, _guess_sizes(value.shape)))
    if isinstance(value, dict):
        return {key: _random_like(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_random_like(item) for item in value)
    return value


def _guess_sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else _UNKNOWN_SIZE for dim in shape)


def _random(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Small whole numbers for integers, since they may be indices; normal ones for floats."""
    generator = np.random.default_rng(0)
    if dtype.is_float or dtype.is_complex:
        return generator.standard_normal(shape).astype(dtype.numpy)
    return generator.integers(0, 2, shape).astype(dtype.numpy)
