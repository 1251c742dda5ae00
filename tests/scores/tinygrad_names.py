"""The names of tinygrad's `Tensor`: methods, operators, and what makes tensors from nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import weft
from tests.scores import tinygrad_layers
from tests.scores.tinygrad_face import Kind, Refused, Tensor, applied, kind_of, refusing
from tests.scores.tinygrad_methods import METHODS, listed
from weft import functional

F: Any = functional


SAME = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "ceil", "clip", "copysign",
    "cos", "cosh", "erf", "exp", "exp2", "floor", "fmod", "isclose", "isfinite", "isnan", "lerp",
    "log", "log10", "log2", "logaddexp", "logical_not", "maximum", "minimum", "permute_dims",
    "reciprocal", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc", "where", "bitwise_and", "bitwise_or", "bitwise_xor", "logcumsumexp",
)  # fmt: skip
FUNCTIONAL = (
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish",
    "quick_gelu", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softsign",
)  # fmt: skip
RENAMED = {
    "bitwise_not": "bitwise_invert",
    "lshift": "bitwise_left_shift",
    "mod": "remainder",
    "mul": "multiply",
    "neg": "negative",
    "pow": "pow",
    "rshift": "bitwise_right_shift",
    "sub": "subtract",
}
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "matmul": "matmul", "and": "and_", "or": "or_", "xor": "xor",
    "lshift": "lshift", "rshift": "rshift", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}  # fmt: skip


def _made(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function that makes a tensor, as a static method."""

    def make(*args: Any, **kwargs: Any) -> Tensor:
        given = {k: v.own if isinstance(v, Kind) else v for k, v in kwargs.items()}
        return Tensor.of(refusing(function, *args, **given))

    return make


def _shaped(function: Callable[..., Any]) -> Callable[..., Any]:
    def make(*shape: Any, dtype: Any = weft.float32) -> Any:
        return function(listed(shape), dtype=dtype)

    return make


def _drawn(*shape: Any, low: int = 0, high: int = 10, dtype: Any = weft.float32) -> Any:
    sizes = listed(shape)
    weft.zeros(sizes)  # says what is wrong with them
    values = np.random.default_rng(0).uniform(low, high, sizes)
    return weft.asarray(values.astype(np.float32)).astype(dtype)


def _full(shape: Any, value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return weft.full(shape, value, dtype=weft.int32 if whole else None)


def _arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    first, last = (0, start) if stop is None else (start, stop)
    if dtype is None and all(isinstance(v, int) for v in (first, last, step)):
        dtype = weft.int32 if max(abs(first), abs(last)) <= 2**31 - 1 else weft.int64
    if dtype is not None and dtype.is_integer:
        ends = range(first, last, step)
        span = weft.iinfo(dtype)
        if ends and not (span.min <= min(ends[0], ends[-1]) <= max(ends[0], ends[-1]) <= span.max):
            raise Refused(f"{ends} does not fit {dtype}")
    return weft.arange(first, last, step, dtype=dtype)


def _linspace(start: Any, stop: Any, steps: int, dtype: Any = weft.float32) -> Any:
    kind = kind_of(dtype).own if isinstance(dtype, str) else dtype  # type: ignore[union-attr]
    return weft.linspace(start, stop, steps, dtype=kind)


DRAWN = "rand randn normal uniform scaled_uniform glorot_uniform"
MADE: dict[str, Callable[..., Any]] = {
    "zeros": _shaped(weft.zeros), "ones": _shaped(weft.ones), "empty": _shaped(weft.zeros),
    "full": _full, "eye": lambda n, m=None: weft.eye(n, m), "arange": _arange,
    "linspace": _linspace, "randint": partial(_drawn, dtype=weft.int32),
    "kaiming_uniform": lambda *shape, **_: _drawn(*shape[: 1 if isinstance(shape[0], tuple) else None]),  # noqa: E501
    "kaiming_normal": lambda *shape, **_: _drawn(*shape[: 1 if isinstance(shape[0], tuple) else None]),  # noqa: E501
    **dict.fromkeys(DRAWN.split(), _drawn),
}  # fmt: skip


def install() -> None:
    """Give the face its names."""
    for name in SAME:
        METHODS.setdefault(name, _named(weft, name))
    for name in FUNCTIONAL:
        METHODS.setdefault(name, _named(F, name))
    for theirs, ours in RENAMED.items():
        METHODS.setdefault(theirs, _named(weft, ours))
    for name in ("zeros_like", "ones_like", "full_like"):
        METHODS[name] = _named(weft, name)
    for name, function in METHODS.items():
        setattr(Tensor, name, _bound(function))
    for name, function in MADE.items():
        setattr(Tensor, name, staticmethod(_made(function)))
    for name, own in OPERATORS.items():
        setattr(Tensor, f"__{name}__", _bound(getattr(operator, own)))
        if name not in ("lt", "le", "gt", "ge"):
            setattr(Tensor, f"__r{name}__", _bound(_swapped(getattr(operator, own))))
    setattr(Tensor, "__neg__", _bound(operator.neg))  # noqa: B010
    setattr(Tensor, "__invert__", _bound(operator.invert))  # noqa: B010
    Tensor.T = property(lambda self: self.permute(*reversed(range(self.ndim))))  # type: ignore[attr-defined]
    Tensor.einsum = staticmethod(partial(applied, tinygrad_layers.einsum))  # type: ignore[attr-defined]


def _named(home: Any, name: str) -> Callable[..., Any]:
    """The function, looked up when it is called, so that one that is missing fails alone."""
    return lambda *args, **kwargs: getattr(home, name)(*args, **kwargs)


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: function(y, x)


def _bound(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return applied(function, *args, **kwargs)

    return call
