"""The operators of tensors: `+` is `add`, `@` is `matmul`, and so on.

With a number or an array on the other side either order works; with anything else Python looks
further. `x += y` makes `x` show the new value, wherever else it is held, and keeps dtype and shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.foundation.lines import user_line
from weft.foundation.memo import forgettable
from weft.ops.array import elementwise
from weft.ops.calls import public
from weft.ops.functional.linear import matmul
from weft.ops.graph.context import arena_for
from weft.ops.graph.node import Form
from weft.ops.tensor import Tensor

_OPERANDS = (Tensor, int, float, complex, np.ndarray, np.generic)

_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "add": elementwise.add,
    "sub": elementwise.subtract,
    "mul": elementwise.multiply,
    "truediv": elementwise.divide,
    "floordiv": elementwise.floor_divide,
    "mod": elementwise.remainder,
    "pow": elementwise.pow,
    "matmul": matmul,
    "and": elementwise.bitwise_and,
    "or": elementwise.bitwise_or,
    "xor": elementwise.bitwise_xor,
    "lshift": elementwise.bitwise_left_shift,
    "rshift": elementwise.bitwise_right_shift,
}
_COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "lt": elementwise.less,
    "le": elementwise.less_equal,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
    "eq": elementwise.equal,
    "ne": elementwise.not_equal,
}
_UNARY: dict[str, Callable[..., Tensor]] = {
    "neg": elementwise.negative,
    "pos": elementwise.positive,
    "abs": elementwise.abs,
    "invert": elementwise.bitwise_invert,
}


def _forward(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def operator(self: Tensor, other: Any, /) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return function(self, other)

    return operator


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The operator of an elementwise function. What most operands are, two tensors of one type that
    want no gradient, become one instruction: it is found here by the type, once the function has
    made it. This is the hot path of capture."""
    forms: dict[int, Form] = {}
    forgettable(forms.clear)

    def operator(self: Tensor, other: Any, /) -> Any:
        if type(other) is not Tensor:
            return function(self, other) if isinstance(other, _OPERANDS) else NotImplemented
        a, b = self._node, other._node
        form = forms.get(id(a.type)) if a.type is b.type else None
        if form is not None and not (self._wants_grad or other._wants_grad or self.number):
            arena = arena_for(a)
            if a.arena is arena is b.arena:
                return Tensor(arena.emit(form, (a, b), user_line()))
        result = function(self, other)
        made = result._node
        if made.operands == (a, b) and a.type is b.type and made.form is not None:
            forms[id(a.type)] = made.form
        return result

    return operator


def _reflect_operator(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def operator(self: Tensor, other: Any, /) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return function(other, self)

    return operator


def _divmod(self: Tensor, other: Any, /) -> Any:
    if not isinstance(other, _OPERANDS):
        return NotImplemented
    return self // other, self % other


def _reflected_divmod(self: Tensor, other: Any, /) -> Any:
    if not isinstance(other, _OPERANDS):
        return NotImplemented
    return other // self, other % self


def _in_place(function: Callable[..., Tensor], symbol: str) -> Callable[..., Any]:
    def operator(self: Tensor, other: Any, /) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        self.become(function(self, other))
        return self

    operator.__name__ = symbol
    return public(operator)


def install() -> None:
    """Give `Tensor` its operators."""
    for name, function in _ARITHMETIC.items():
        direct = _forward if function is matmul else _elementwise
        setattr(Tensor, f"__{name}__", direct(function))
        setattr(Tensor, f"__r{name}__", _reflect_operator(function))
        setattr(Tensor, f"__i{name}__", _in_place(function, f"i{name}"))
    setattr(Tensor, "__divmod__", _divmod)  # noqa: B010
    setattr(Tensor, "__rdivmod__", _reflected_divmod)  # noqa: B010
    for name, function in _COMPARISONS.items():
        setattr(Tensor, f"__{name}__", _elementwise(function))
    for name, function in _UNARY.items():
        setattr(Tensor, f"__{name}__", function)
