"""Kernels of the dialect with faults planted into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import Lit, Name, Op, Scalar

Change = Callable[[ir.Stmt], "ir.Stmt | None"]


def without(kind: type[ir.Stmt]) -> Change:
    """Every statement of a kind is left out."""
    return lambda statement: None if isinstance(statement, kind) else statement


def planted(kernel: ir.Kernel, change: Change) -> ir.Kernel:
    """A kernel with every statement passed through `change`; None removes a statement."""
    return replace(kernel, body=_changed(kernel.body, change))


def _changed(body: tuple[ir.Stmt, ...], change: Change) -> tuple[ir.Stmt, ...]:
    found = []
    for statement in body:
        match statement:
            case ir.For(body=inner):
                statement = replace(statement, body=_changed(inner, change))
            case ir.If(then=then, otherwise=otherwise):
                statement = replace(
                    statement, then=_changed(then, change), otherwise=_changed(otherwise, change)
                )
            case ir.Roles(cases=cases):
                roles = [replace(case, body=_changed(case.body, change)) for case in cases]
                statement = ir.Roles(tuple(roles))
        new = change(statement)
        if new is not None:
            found.append(new)
    return tuple(found)


def with_bound(kernel: ir.Kernel, name: str, old: int, new: int) -> ir.Kernel:
    """A kernel in which every test `name < old` is `name < new`, and every `min` with `old - 1` is
    one with `new - 1`."""
    changes: dict[Scalar, Scalar] = {
        Op("lt", Name(name), Lit(old)): Op("lt", Name(name), Lit(new)),
        Op("min", Name(name), Lit(old - 1)): Op("min", Name(name), Lit(new - 1)),
    }
    changed = replace(kernel, body=_rewritten(kernel.body, changes))
    assert changed != kernel
    return changed


def _rewritten(node: Any, changes: dict[Scalar, Scalar]) -> Any:
    if isinstance(node, Scalar) and node in changes:
        return changes[node]
    if isinstance(node, tuple):
        return tuple(_rewritten(item, changes) for item in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {f.name: getattr(node, f.name) for f in fields(node)}
    return replace(node, **{name: _rewritten(part, changes) for name, part in parts.items()})


def a_vector_too_far(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, values.LoadVector):
        return replace(statement, offset=statement.offset + 4)
    return statement


OF_COLUMNS: dict[str, Change] = {
    "no meeting": without(ir.SyncThreads),
    "nothing added up": without(values.Assign),
    "a vector too far": a_vector_too_far,
}
"""Faults of kernels that take rows side by side."""

Array = NDArray[Any]


def is_caught(kernel: ir.Kernel, given: dict[str, Array], wanted: Array, seed: int) -> bool:
    """Whether an order and a timing end in a hazard or in another result."""
    tensors = {name: given[name].copy() for name in kernel.buffers}
    try:
        run(kernel, tensors, list(Timing)[seed % 2], seed)
    except Hazard:
        return True
    return not np.array_equal(tensors["out"], wanted)
