"""The epilogue of a product: elementwise ops before the store, in the words of the plan language.

    bias      a value along the columns is added        residual   a whole matrix is added
    scale     times, or over, one number or vector      relu gelu silu tanh ...
    where     chosen by a mask                          ewise      anything else

Casts have no name of their own: storing rounds anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.region.ir import Binary, Cast, Const, Kernel, Let, Reduce, Select, Unary, operands


def find_epilogue(kernel: Kernel) -> tuple[str, ...]:
    """The steps between the contraction of a kernel and its first result."""
    if kernel.roles is None:
        return ()
    return tuple(_Namer(kernel).names(kernel.outputs[0].value))


class _Namer:
    """Reads an epilogue backward from the stored value."""

    def __init__(self, kernel: Kernel) -> None:
        assert kernel.roles is not None
        self.roles = kernel.roles
        self.lets: Mapping[str, Let] = {let.name: let for let in kernel.body}
        self.after = self._after()

    def _after(self) -> set[str]:
        """The Lets that depend on the contraction."""
        found = {self.roles.contraction}
        for let in self.lets.values():
            if not isinstance(let.expr, Reduce) and found.intersection(operands(let)):
                found.add(let.name)
        return found

    def names(self, value: str) -> list[str]:
        if value == self.roles.contraction or value not in self.after:
            return []
        gated = self._silu_of(value)
        if gated is not None:
            return [*self.names(gated), "silu"]
        match self.lets[value].expr:
            case Cast(x=x):
                return self.names(x)
            case Unary(fn=fn, x=x):
                return [*self.names(x), fn]
            case Select(pred=pred, x=x, y=y):
                inner = next(name for name in (x, y, pred) if name in self.after)
                return [*self.names(inner), "where"]
            case Binary() as expr:
                return self._binary(expr)
            case _:
                return ["ewise"]

    def _binary(self, expr: Binary) -> list[str]:
        sides = [name for name in (expr.lhs, expr.rhs) if name in self.after]
        if len(sides) == 2:
            return [*self.names(sides[0]), "ewise"]
        other = expr.rhs if sides[0] == expr.lhs else expr.lhs
        if expr.fn == "max" and self._number(other) == 0.0:
            return [*self.names(sides[0]), "relu"]
        axes = set(self.lets[other].axes)
        along_rows = bool(axes & {*self.roles.m, *self.roles.batch})
        if expr.fn == "add":
            word = "residual" if along_rows else "bias"
        else:
            word = "scale" if expr.fn in ("mul", "div") and not along_rows else "ewise"
        return [*self.names(sides[0]), word]

    def _silu_of(self, value: str) -> str | None:
        """x, where a value is `x / (1 + exp(-x))`: its quotient stays one, since others may share
        what it divides by."""
        quotient = self._sides(value, "div")
        if quotient is None:
            return None
        x, below = quotient
        for power, one in _orders(self._sides(below, "add")):
            expr = self.lets[power].expr
            if self._number(one) == 1.0 and isinstance(expr, Unary) and expr.fn == "exp":
                inner = self.lets[expr.x].expr
                if inner == Unary("neg", x):
                    return x
        return None

    def _sides(self, value: str, fn: str) -> tuple[str, str] | None:
        expr = self.lets[value].expr
        return (expr.lhs, expr.rhs) if isinstance(expr, Binary) and expr.fn == fn else None

    def _number(self, value: str) -> float | None:
        expr = self.lets[value].expr
        return float(expr.value.real) if isinstance(expr, Const) else None


def _orders(pair: tuple[str, str] | None) -> list[tuple[str, str]]:
    return [] if pair is None else [pair, pair[::-1]]
