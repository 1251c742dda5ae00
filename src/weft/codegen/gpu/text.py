"""The dialect as text, for people: a line per statement, blocks indented.

It is printed only. What is compiled is the CUDA text, which says the same statement by statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.element import ElementOp
from weft.codegen.gpu.print_scalars import text
from weft.codegen.gpu.scalar import Lit, Scalar, scalar
from weft.codegen.gpu.swizzle import Swizzle, TileLayout
from weft.foundation.dtypes import DType

INDENT = "  "


def print_kernels(kernels: Sequence[ir.Kernel]) -> str:
    """All kernels, an empty line between them."""
    return "\n".join(print_kernel(kernel) for kernel in kernels)


def print_kernel(kernel: ir.Kernel) -> str:
    """One kernel: its frame, then its statements."""
    head = f"kernel {kernel.name} grid={kernel.grid} threads={kernel.threads}"
    lines = [f"{head} shared={kernel.shared_bytes}"]
    lines.append(f"{INDENT}buffers {', '.join(f'b{i}' for i, _ in enumerate(kernel.buffers))}")
    for frame in (*kernel.maps, *kernel.tiles, *kernel.barriers):
        lines.append(f"{INDENT}{_statement(frame)}")
    for table in kernel.tables:
        lines.append(f"{INDENT}table {table.name} of {len(table.values)}")
    lines += [INDENT + line for line in _body(kernel.body)]
    return "\n".join(lines) + "\n"


def _body(body: Sequence[ir.Stmt]) -> Iterator[str]:
    for statement in body:
        yield from _lines(statement)


def _lines(node: ir.Stmt) -> Iterator[str]:
    match node:
        case ir.For(var=var, start=start, stop=stop, step=step, body=body):
            bounds = ", ".join(text(scalar(bound)) for bound in (start, stop, step))
            how = " unrolled" if node.unroll else f" by {node.times}" if node.times > 1 else ""
            yield f"for {var} in ({bounds}){how}:"
            yield from _inside(body)
        case ir.If(cond=cond, then=then, otherwise=otherwise):
            yield f"if {text(cond)}:"
            yield from _inside(then)
            if otherwise:
                yield "else:"
                yield from _inside(otherwise)
        case ir.Roles(cases=cases):
            for case in cases:
                yield f"warps {case.first}..{case.first + case.count - 1} {case.name}:"
                yield from _inside(case.body)
        case _:
            yield _simple(node)


def _inside(body: Sequence[ir.Stmt]) -> Iterator[str]:
    for line in _body(body):
        yield INDENT + line


def _simple(node: ir.Stmt) -> str:
    match node:
        case ir.Let(name=name, value=value) | ir.Set(name=name, value=value):
            return f"{name} = {text(value)}"
        case ir.LoadElement(name=name, dtype=dtype, buffer=buffer, offset=offset, guard=guard):
            return f"{name} : {dtype} = b{buffer}[{text(offset)}]" + _if(guard)
        case values.Compute(op=op):
            return _op(op)
        case values.Variable(name=name, dtype=dtype, start=start):
            return f"{name} : {dtype} = {start} (variable)"
        case values.Assign(name=name, source=source, guard=guard):
            return f"{name} = {source}" + _if(guard)
        case values.IndexValue(name=name, dtype=dtype, value=value):
            return f"{name} : {dtype} = {text(value)}"
        case values.Choose(name=name, dtype=dtype, cond=cond, x=x, y=y):
            return f"{name} : {dtype} = {x} if {text(cond)} else {y}"
        case values.Shuffle(name=name, dtype=dtype, source=source, mask=mask):
            return f"{name} : {dtype} = {source} of lane ^ {mask}"
        case values.LoadVector(names=names, dtype=dtype, buffer=buffer, offset=offset, guard=guard):
            what = f"{', '.join(names)} : {dtype}"
            return f"{what} = b{buffer}[{text(offset)} .. +{len(names)}]" + _if(guard)
        case values.StoreElement(buffer=buffer, offset=offset, guard=guard, source=source):
            return f"b{buffer}[{text(offset)}] = {source}" + _if(guard)
        case values.StoreVector(buffer=buffer, offset=offset, guard=guard, sources=sources):
            where = f"b{buffer}[{text(offset)} .. +{len(sources)}]"
            return f"{where} = {', '.join(sources)}" + _if(guard)
        case _:
            return _statement(node)


def _if(guard: Scalar) -> str:
    return "" if guard == Lit(1) else f" if {text(guard)}"


def _op(op: ElementOp) -> str:
    if op.fn == "const":
        return f"{op.name} : {op.dtype} = {op.value}"
    exact = " (rounded when stored)" if op.deferred_rounding else ""
    return f"{op.name} : {op.dtype} = {op.fn}({', '.join(op.args)}){exact}"


def _statement(node: Any) -> str:
    """Any other statement: its name and its fields."""
    parts = [f"{field.name}={_field(getattr(node, field.name))}" for field in fields(node)]
    return " ".join([type(node).__name__, *parts])


def _field(value: Any) -> str:
    match value:
        case Scalar():
            return text(value)
        case ElementOp():
            return f"[{_op(value)}]"
        case TileLayout(rows=rows, columns=columns, swizzle=swizzle):
            return f"{rows}x{columns}@{swizzle.span}"
        case Swizzle():
            return f"{value.span}B"
        case ir.Address(tile=tile, offset=offset):
            return f"{tile}[{text(offset)}]"
        case ir.BarrierAt(barriers=barriers, index=index):
            return f"{barriers}[{text(index)}]"
        case ir.RegAt(array=array, index=index):
            return f"{array}[{text(scalar(index))}]"
        case Enum():
            return str(value.value)
        case DType() | str() | int():
            return str(value)
        case tuple():
            return f"({', '.join(map(_field, value))})"
        case None:
            return "none"
        case _:
            return f"({_statement(value)})"
