"""What the table of derivative checks is made of: small programs around one op, with inputs at
which it is smooth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder, Program, Value

Array = NDArray[Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One op on certain inputs. `order` is how often it is differentiated."""

    op: str
    label: str
    function: Function
    """From the builder and the parameters to the results."""
    inputs: tuple[Array, ...]
    order: int = 2
    wrt: tuple[int, ...] | None = None
    torch: Function | None = None
    """The same from the module torch and tensors, where torch has it."""

    @property
    def id(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    @property
    def is_coarse(self) -> bool:
        """Coarse ops have the name of their set before their own."""
        return "." in self.op

    def program(self) -> Program:
        b = Builder()
        parameters = [b.param(as_dtype(a.dtype), a.shape) for a in self.inputs]
        results = self.function(b, *parameters)
        return b.build(*([results] if isinstance(results, Value) else results))


CASES: list[Case] = []


def case(
    op: str,
    function: Function,
    *inputs: Array,
    label: str = "",
    order: int = 2,
    wrt: Sequence[int] | None = None,
    torch: Function | None = None,
) -> None:
    """Add a case to the table."""
    asked = None if wrt is None else tuple(wrt)
    CASES.append(Case(op, label, function, inputs, order, asked, torch))


def emitted(name: str, **attrs: Any) -> Function:
    """The op of that name, on all parameters."""
    return lambda b, *operands: b.emit(name, *operands, **attrs)


def in_torch(name: str) -> Function:
    """The function of that name in torch."""
    return lambda torch, *tensors: getattr(torch, name)(*tensors)


def between(low: float, high: float, *shape: int, seed: int = 0) -> Array:
    """f64 values in a range."""
    source = np.random.default_rng([seed, *shape, int(100 * high)])
    return source.uniform(low, high, shape)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def complex_normal(*shape: int, seed: int = 0) -> Array:
    """cf64 values."""
    parts = np.random.default_rng([seed, *shape, 7]).standard_normal((2, *shape))
    return np.asarray(parts[0] + 1j * parts[1])


def distinct(*shape: int, seed: int = 0) -> Array:
    """f64 values far enough from each other, and from zero, for a small step to change no order."""
    count = int(np.prod(shape))
    steps = np.random.default_rng([seed, *shape]).permutation(count) - count / 2 + 0.25
    return np.asarray(steps * 0.3).reshape(shape)


def whole(high: int, *shape: int, seed: int = 0, dtype: Any = np.int64) -> Array:
    """Indices from 0 to high - 1."""
    return np.random.default_rng([seed, *shape, 3]).integers(0, high, shape).astype(dtype)
