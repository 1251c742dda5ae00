"""What a kernel computes, as a loop nest that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.driver.stages.opaque import encode_op
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Read,
    Reduce,
    Select,
    Unary,
    Words,
)

_SIGNS: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "=="}
_PLAIN: Final = (Read, Const, AxisIndex)
"""What is written where it is used, and has no line of its own."""


def nest_of(kernel: Kernel) -> str:
    """A loop for each axis, and inside the values in order."""
    if kernel.opaque is not None:
        inputs = ", ".join(kernel.opaque.inputs)
        outputs = ", ".join(output.tensor for output in kernel.outputs)
        return f"{outputs} = {encode_op(kernel.opaque.op)} of {inputs}, on the host"
    nest = _Nest(kernel)
    for let in kernel.body:
        if not isinstance(let.expr, _PLAIN):
            nest.write(_loops(let), nest.statement(let))
    for output in kernel.outputs:
        place = ", ".join(map(str, output.index))
        value = nest.names[output.value]
        nest.write(kernel.let(output.value).axes, f"{output.tensor}[{place}] = {value}")
    return "\n".join(nest.lines)


class _Nest:
    """Lines of a nest, and the loops that are open at its end."""

    def __init__(self, kernel: Kernel) -> None:
        self.lines: list[str] = []
        self.sizes = {axis.name: axis.size for axis in kernel.axes}
        self.names = {let.name: _inline(let) for let in kernel.body}
        self._open: list[str] = []

    def write(self, axes: Sequence[str], text: str) -> None:
        """A statement inside the loops over these axes."""
        wanted = [name for name in self.sizes if name in axes]
        same = 0
        while same < min(len(wanted), len(self._open)) and wanted[same] == self._open[same]:
            same += 1
        for depth in range(same, len(wanted)):
            name = wanted[depth]
            self.lines.append("  " * depth + f"for {name} in 0..{self.sizes[name]}:")
        self._open = wanted
        self.lines.append("  " * len(wanted) + text)

    def statement(self, let: Let) -> str:
        name, names = let.name, self.names
        match let.expr:
            case Unary(fn=fn, x=x):
                return f"{name} = {fn}({names[x]})"
            case Cast(x=x):
                return f"{name} = {let.dtype.name}({names[x]})"
            case Binary(fn=fn, lhs=lhs, rhs=rhs) if fn in _SIGNS:
                return f"{name} = {names[lhs]} {_SIGNS[fn]} {names[rhs]}"
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                return f"{name} = {fn}({names[lhs]}, {names[rhs]})"
            case Select(pred=pred, x=x, y=y):
                return f"{name} = {names[x]} if {names[pred]} else {names[y]}"
            case Reduce(fn="sum", value=value):
                return f"{name} += {names[value]}"
            case Reduce(fn=fn, value=value):
                return f"{name} = {fn}({name}, {names[value]})"
            case Fold(carries=carries, result=result):
                held = ", ".join(carry.name for carry in carries)
                return f"{name} = {result} of a fold that carries {held}"
            case Check(x=x, rule=rule):
                return f"{name} = {names[x]}, which must be {rule}"
            case Words():
                return f"{name} = random bits"
        return name


def _loops(let: Let) -> tuple[str, ...]:
    """The axes that the statement of a value runs over."""
    reduced = let.expr.axes if isinstance(let.expr, Reduce | Fold) else ()
    return (*let.axes, *reduced)


def _inline(let: Let) -> str:
    """A value as others name it."""
    match let.expr:
        case Read(tensor=tensor, index=index, guards=guards, fill=fill):
            read = f"{tensor}[{', '.join(map(str, index))}]"
            return f"({read} or {fill} outside)" if guards else read
        case Const(value=value):
            return str(value)
        case AxisIndex(expr=expr):
            return f"({expr})"
    return let.name
