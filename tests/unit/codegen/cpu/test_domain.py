"""The domain proof: sound loop nests pass, and a planted fault of one is found with a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.native_kernels import plans_for, row_major
from weft.codegen.cpu import ir
from weft.codegen.cpu.compile import lower
from weft.codegen.cpu.domain import prove
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import constant
from weft.region.ir import Kernel, Module

MODULES: dict[str, Callable[[], Module]] = {
    "linear": lambda: kernels.linear(7, 33, 5),
    "batched": lambda: kernels.linear(5, 9, 7, batch=3),
    "softmax": lambda: kernels.softmax(5, 37),
    "fold": lambda: kernels.softmax_fold(5, 37),
    "layer_norm": lambda: kernels.layer_norm(3, 17),
    "elementwise": lambda: kernels.elementwise(3, 17),
    "cache": kernels.cache_update,
}


def routines_of(module: Module) -> list[tuple[Kernel, ir.Routine]]:
    refs = row_major(module.tensors)
    return [
        (kernel, lower(kernel, module.tensors, refs, plan, "k0"))
        for kernel in module.kernels
        for plan in plans_for(kernel)
    ]


@pytest.mark.parametrize("name", MODULES)
def test_generated_loops_execute_the_kernel_domain(name: str) -> None:
    for kernel, routine in routines_of(MODULES[name]()):
        assert prove(routine, kernel) == []


def change(body: tuple[ir.Stmt, ...], edit: Callable[[ir.Stmt], ir.Stmt]) -> tuple[ir.Stmt, ...]:
    """The body with an edit applied to every statement, innermost first."""
    return tuple(
        edit(replace(stmt, body=change(stmt.body, edit)) if isinstance(stmt, ir.For) else stmt)
        for stmt in body
    )


def stores_below(loop: ir.For) -> bool:
    return any(isinstance(stmt, ir.Store) for stmt, _ in ir.walk(loop.body))


def shorter(stmt: ir.Stmt) -> ir.Stmt:
    if isinstance(stmt, ir.For) and stmt.kind is ir.LoopKind.PARALLEL and stores_below(stmt):
        return replace(stmt, stop=stmt.stop - 1)
    return stmt


def later(stmt: ir.Stmt) -> ir.Stmt:
    if isinstance(stmt, ir.Store):
        return replace(stmt, point=(stmt.point[0] + 1, *stmt.point[1:]))
    return stmt


def twice(stmt: ir.Stmt) -> ir.Stmt:
    if isinstance(stmt, ir.Store):
        return replace(stmt, point=(constant(0), *stmt.point[1:]))
    return stmt


@pytest.mark.parametrize("name", ["linear", "softmax", "elementwise"])
@pytest.mark.parametrize(
    ("fault", "kind"), [(shorter, "missing"), (later, "missing"), (twice, "run twice")]
)
def test_a_planted_fault_is_caught(
    name: str, fault: Callable[[ir.Stmt], ir.Stmt], kind: str
) -> None:
    kernel, routine = routines_of(MODULES[name]())[0]
    broken = replace(routine, body=change(routine.body, fault))
    with pytest.raises(InternalError, match=f"the point .* is {kind}"):
        prove(broken, kernel)
