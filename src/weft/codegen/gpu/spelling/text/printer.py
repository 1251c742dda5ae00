"""Kernels of the dialect to text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import INFIX, Lit, Name, Op, Scalar, Special, TableAt, Wide
from weft.codegen.gpu.ir.swizzle import Swizzle
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.text import commas, label


def spelling(cls: type) -> str:
    """The name of a record in the text."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def print_module(module: GpuModule) -> str:
    """The launches and all kernels, an empty line between them."""
    launches = "".join(
        f"launch {label(name)} = {launch.symbol}({commas(launch.tensors)})\n"
        for name, launch in module.launches.items()
    )
    hosted = "".join(f"host {label(name)} {label(why)}\n" for name, why in module.hosted.items())
    return "\n".join([launches + hosted, *map(print_kernel, module.kernels.values())])


def print_kernel(kernel: ir.Kernel) -> str:
    """One kernel: its frame, then its statements."""
    reports = " reports" if kernel.reports else ""
    cluster = f" cluster={kernel.cluster}" if kernel.cluster > 1 else ""
    resident = f" resident={kernel.resident}" if kernel.resident > 1 else ""
    sets = f" sets={kernel.sets}" if kernel.sets > 1 else ""
    together = " together" if kernel.together else ""
    frame = f"grid={kernel.grid} threads={kernel.threads}{cluster}{resident}{sets}"
    head = f"kernel {kernel.name} {frame}{reports}{together}"
    inner = [f"buffers ({commas(map(label, kernel.buffers))})"]
    inner += map(_field_text, (*kernel.maps, *kernel.tiles, *kernel.barriers, *kernel.tables))
    inner += [_field_text(kernel.workspace)] if kernel.workspace else []
    inner += _body_lines(kernel.body)
    return "\n".join(_in_braces(head, inner)) + "\n"


def _in_braces(head: str, inner: Iterable[str]) -> Iterator[str]:
    yield f"{head} {{"
    yield from (f"  {line}" for line in inner)
    yield "}"


def _body_lines(body: Sequence[ir.Stmt]) -> Iterator[str]:
    for statement in body:
        yield from _lines(statement)


def _lines(node: ir.Stmt) -> Iterator[str]:
    match node:
        case ir.Let(name=name, value=value, pinned=pinned):
            yield f"let {name} = {_field_text(value)}{' pinned' if pinned else ''}"
        case ir.Set(name=name, value=value):
            yield f"set {name} = {_field_text(value)}"
        case ir.For(var=var, start=start, stop=stop, step=step, body=body):
            times = f" times={node.times}" if node.times != 1 else ""
            yield from _in_braces(
                f"for {var} in {_field_text((start, stop, step))}{times}", _body_lines(body)
            )
        case ir.If(cond=cond, then=then, otherwise=otherwise):
            yield from _in_braces(f"if {_field_text(cond)}", _body_lines(then))
            if otherwise:
                yield from _in_braces("else", _body_lines(otherwise))
        case ir.Roles(cases=cases):
            yield from _in_braces("roles", (line for case in cases for line in _role(case)))
        case values.Compute(op=op):
            yield _op_text(op)
        case ir.Epilogue(sources=sources, ops=ops):
            head = f"epilogue({_fields_text(node, ('sources', 'ops'))})"
            yield from _in_braces(head, [*map(_field_text, sources), *map(_op_text, ops)])
        case _:
            yield _field_text(node)


def _role(case: ir.Role) -> Iterator[str]:
    yield from _in_braces(
        f"{case.name} first={case.first} count={case.count}", _body_lines(case.body)
    )


def _op_text(op: ElementOp) -> str:
    """A function of elements: `v2 : f32 = mul(v0, v1)`."""
    given = op.args if op.fn != "const" else (_number_text(op.value),)
    later = " unrounded" if op.deferred_rounding else ""
    later += " loose" if op.loose else ""
    later += " shared" if op.shared else ""
    return f"{op.name} : {op.dtype} = {op.fn}({commas(given)}){later}"


def _number_text(value: Number | None) -> str:
    if value is None or isinstance(value, complex):
        raise InternalError(f"{value} is not a number of a GPU kernel")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _field_text(value: Any) -> str:
    """A field, or a record in its own name."""
    match value:
        case Scalar():
            return _scalar_expression(value)
        case bool() | float():
            return _number_text(value)
        case int() | str() | DType():
            return str(value)
        case Swizzle():
            return str(value.span)
        case ir.Address(tile=name, offset=place) | ir.BarrierAt(barriers=name, index=place):
            return f"{name}[{_field_text(place)}]"
        case ir.RegAt(array=name, index=number):
            return f"{name}[{number}]"
        case Enum():
            return str(value.value)
        case tuple():
            return f"({commas(map(_field_text, value))})"
        case None:
            return "none"
        case _:
            return _record_text(value)


def _record_text(node: Any) -> str:
    names = in_front(type(node))
    written = f"{spelling(type(node))}({_fields_text(node, names)})"
    if not names:
        return written
    first = getattr(node, names[0])
    defined = first if isinstance(first, str) else commas(first)
    dtype = f" : {node.dtype}" if "dtype" in names else ""
    return f"{defined}{dtype} = {written}"


def in_front(cls: type) -> tuple[str, ...]:
    """The fields of a record that stand in front of it: what it names, and the dtype of that."""
    found = [field.name for field in fields(cls)]
    if not {"name", "names"} & set(found):
        return ()
    return tuple(name for name in found if name in ("name", "names", "dtype"))


def _fields_text(node: Any, without: Sequence[str] = ()) -> str:
    """The fields that do not have their defaults. Numbers are compared as they are written: -0.0 is
    not 0."""
    parts = []
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name not in without and repr(value) != repr(field.default):
            parts.append(f"{field.name}={_field_text(value)}")
    return commas(parts)


def _scalar_expression(value: Scalar) -> str:
    match value:
        case Lit(value=number):
            return str(number)
        case Name(name=name):
            return name
        case Special(which=which):
            return which.value
        case Wide(value=inner):
            return f"wide({_scalar_expression(inner)})"
        case TableAt(table=table, index=index):
            return f"{table}[{_scalar_expression(index)}]"
        case Op(fn=fn, lhs=lhs, rhs=rhs) if fn in INFIX:
            return f"({_scalar_expression(lhs)} {INFIX[fn]} {_scalar_expression(rhs)})"
        case Op(fn=fn, lhs=lhs, rhs=rhs):
            return f"{fn}({_scalar_expression(lhs)}, {_scalar_expression(rhs)})"
        case _:
            raise InternalError(f"no text for {type(value).__name__}")
