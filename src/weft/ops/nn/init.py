"""`weft.nn.init`: first values of parameters, as functions of a key and a shape.

    layer.weight = nn.init.kaiming_normal(key, layer.weight.shape)

How many inputs and outputs a weight has is read off its shape, [out, in, window...] as layers have
it; `inputs` and `outputs` say otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weft.foundation.errors import UserError
from weft.ops.array import creation, linalg
from weft.ops.array.elementwise import sign
from weft.ops.array.linear_algebra import matrix_transpose
from weft.ops.array.operands import known
from weft.ops.calls import public
from weft.ops.other_names import missing
from weft.ops.random import continuous
from weft.ops.random.keys import sizes
from weft.ops.random.uniform import float_dtype
from weft.ops.random.uniform import uniform as drawn_uniform
from weft.ops.tensor import Tensor

__all__ = [
    "constant",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.nn.init", name, __all__)


def __dir__() -> list[str]:
    return __all__


def _parameter(values: Tensor) -> Tensor:
    return Tensor(values._node, requires_grad=True)


def _known_shape(shape: Any) -> tuple[int, ...]:
    return tuple(known(dim, "a size of a parameter") for dim in sizes("shape", shape))


def _fans(shape: tuple[int, ...], inputs: int | None, outputs: int | None) -> tuple[int, int]:
    """How many inputs and outputs a weight of this shape has."""
    if len(shape) < 2 and (inputs is None or outputs is None):
        raise UserError(
            f"a parameter of shape {shape} does not say how many inputs and outputs it has; give "
            "inputs= and outputs="
        )
    window = math.prod(shape[2:])
    found = (
        shape[1] * window if inputs is None else inputs,
        shape[0] * window if outputs is None else outputs,
    )
    return max(found[0], 1), max(found[1], 1)


# -- plain ones ----------------------------------------------------------------------------------


@public
def zeros(shape: Any, dtype: Any = None) -> Tensor:
    """Zeros."""
    return _parameter(creation.zeros(_known_shape(shape), dtype=float_dtype(dtype)))


@public
def ones(shape: Any, dtype: Any = None) -> Tensor:
    """Ones."""
    return _parameter(creation.ones(_known_shape(shape), dtype=float_dtype(dtype)))


@public
def constant(shape: Any, value: float, dtype: Any = None) -> Tensor:
    """The same number everywhere."""
    return _parameter(creation.full(_known_shape(shape), value, dtype=float_dtype(dtype)))


@public
def uniform(key: Tensor, shape: Any, bound: float = 0.01, dtype: Any = None) -> Tensor:
    """Uniform in [-bound, bound)."""
    return _parameter(drawn_uniform(key, _known_shape(shape), dtype, -bound, bound))


@public
def normal(key: Tensor, shape: Any, deviation: float = 0.01, dtype: Any = None) -> Tensor:
    """Normal around 0."""
    return _parameter(continuous.normal(key, _known_shape(shape), dtype) * deviation)


@public
def truncated_normal(
    key: Tensor,
    shape: Any,
    deviation: float = 0.01,
    dtype: Any = None,
    *,
    lower: float = -2.0,
    upper: float = 2.0,
) -> Tensor:
    """Normal around 0, cut at `lower` and `upper` deviations."""
    drawn = continuous.truncated_normal(key, lower, upper, _known_shape(shape), dtype)
    return _parameter(drawn * deviation)


# -- by the number of inputs and outputs ---------------------------------------------------------


@public
def xavier_uniform(
    key: Tensor,
    shape: Any,
    dtype: Any = None,
    *,
    gain: float = 1.0,
    inputs: int | None = None,
    outputs: int | None = None,
) -> Tensor:
    """Uniform with the variance `gain^2 * 2 / (inputs + outputs)`, after Glorot and Bengio."""
    dims = _known_shape(shape)
    bound = gain * math.sqrt(6.0 / sum(_fans(dims, inputs, outputs)))
    return uniform(key, dims, bound, dtype)


@public
def xavier_normal(
    key: Tensor,
    shape: Any,
    dtype: Any = None,
    *,
    gain: float = 1.0,
    inputs: int | None = None,
    outputs: int | None = None,
) -> Tensor:
    """Normal with the variance `gain^2 * 2 / (inputs + outputs)`, after Glorot and Bengio."""
    dims = _known_shape(shape)
    deviation = gain * math.sqrt(2.0 / sum(_fans(dims, inputs, outputs)))
    return normal(key, dims, deviation, dtype)


@public
def kaiming_uniform(
    key: Tensor,
    shape: Any,
    dtype: Any = None,
    *,
    gain: float = math.sqrt(2.0),
    inputs: int | None = None,
) -> Tensor:
    """Uniform with the variance `gain^2 / inputs`, after He et al.; the usual gain is that of
    relu."""
    dims = _known_shape(shape)
    bound = gain * math.sqrt(3.0 / _fans(dims, inputs, 1 if inputs else None)[0])
    return uniform(key, dims, bound, dtype)


@public
def kaiming_normal(
    key: Tensor,
    shape: Any,
    dtype: Any = None,
    *,
    gain: float = math.sqrt(2.0),
    inputs: int | None = None,
) -> Tensor:
    """Normal with the variance `gain^2 / inputs`, after He et al.; the usual gain is that of
    relu."""
    dims = _known_shape(shape)
    deviation = gain / math.sqrt(_fans(dims, inputs, 1 if inputs else None)[0])
    return normal(key, dims, deviation, dtype)


@public
def orthogonal(key: Tensor, shape: Any, dtype: Any = None, *, gain: float = 1.0) -> Tensor:
    """A matrix whose rows are orthonormal, times the gain; where it has more rows than columns, its
    columns are. Axes after the first count as one."""
    dims = _known_shape(shape)
    if len(dims) < 2:
        raise UserError(f"a parameter of shape {dims} has no rows and columns")
    wanted = float_dtype(dtype)
    rows, columns = dims[0], math.prod(dims[1:])
    tall = (max(rows, columns), min(rows, columns))
    q, r = linalg.qr(continuous.normal(key, tall, continuous.computed_in(wanted)))
    # A factorisation chooses signs; this choice makes all orthogonal matrices equally likely.
    q = q * sign(linalg.diagonal(r))
    found = q if rows >= columns else matrix_transpose(q)
    return _parameter((found * gain).reshape(dims).astype(wanted))
