"""Which value of a kernel each variable of its GPU code is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weft
import weft.functional as F
from tests.support.cases import one_in
from weft.codegen.gpu import ir as gpu
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.driver.compile import compile_program
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.variables import Lets, variables_of
from weft.region.ir import Binary, Kernel, Read, Reduce, Unary


def compiled(function: Callable[..., Any], *given: Any, target: str = "sm90") -> Compilation:
    program = weft.jit(function).program(*given)
    (cluster,) = compile_program(program, target).clusters.values()
    return cluster.compilation


def softmax(x: Any) -> Any:
    return F.softmax(x * 0.125)


def kernels(made: Compilation) -> Iterator[tuple[Kernel, gpu.Kernel, Lets]]:
    """Every kernel of a program with its code and what its variables are."""
    found = variables_of(made["gpu"], made["region"].kernels)
    for kernel in made["region"].kernels:
        symbol = made["gpu"].launches[kernel.name].symbol
        yield kernel, made["gpu"].kernels[symbol], found[symbol]


def ops_of(code: gpu.Kernel) -> Iterator[ElementOp]:
    for statement in gpu.walk(code.body):
        match statement:
            case values.Compute(op=op):
                yield op
            case gpu.Epilogue(ops=ops):
                yield from ops


def test_every_variable_of_a_softmax_is_the_one_value_that_it_computes() -> None:
    made = compiled(softmax, weft.ones((64, 96)))
    ((kernel, code, lets),) = kernels(made)
    by_name = {let.name: let.expr for let in kernel.body}
    seen = set()
    for op in ops_of(code):
        (let,) = lets[op.name]
        seen.add(let)
        match by_name[let]:
            case Unary(fn=fn) | Binary(fn=fn):
                assert op.fn == fn
            case Reduce(fn=fn):
                assert op.fn == {"sum": "add"}.get(fn, fn)
    (read,) = (let.name for let in kernel.body if isinstance(let.expr, Read))
    assert seen | {read} == set(by_name)
    loaded = [
        name for s in gpu.walk(code.body) if isinstance(s, values.LoadVector) for name in s.names
    ]
    assert loaded
    assert all(lets[name] == [read] for name in loaded)


ONES = weft.ones
BLOCK = (2, 4, 128, 64)


@pytest.mark.parametrize(
    ("function", "given"),
    one_in(
        2,
        [
            (softmax, [(64, 96)]),
            (lambda x, w, b: F.gelu(x @ w + b), [(96, 64), (64, 80), (80,)]),
            (lambda x: weft.var(x, axis=1), [(64, 512)]),
            (lambda x, w: F.relu(F.conv2d(x, w)), [(2, 16, 12, 12), (32, 16, 3, 3)]),
            (lambda q, k, v: F.attention(q, k, v, causal=True), [BLOCK, BLOCK, BLOCK]),
            (lambda x: weft.sum(weft.tanh(x), axis=0), [(512, 64)]),
        ],
        unpack=True,
    ),
    ids=["softmax", "gelu", "variance", "convolution", "attention", "columns"],
)
@pytest.mark.parametrize(
    ("dtype", "target"),
    one_in(3, [("f32", "sm90"), ("bf16", "sm90"), ("bf16", "sm80")], unpack=True),
)
def test_every_value_of_a_kernel_is_in_some_variable(
    function: Callable[..., Any], given: list[tuple[int, ...]], dtype: str, target: str
) -> None:
    made = compiled(function, *(ONES(shape, dtype=dtype) for shape in given), target=target)
    for kernel, code, lets in kernels(made):
        computed = {let.name for part in kernel.parts for let in part.body}
        known = {let for each in lets.values() for let in each}
        assert known <= computed
        assert computed <= known, (kernel.name, computed - known)
        stored = [s.source for s in gpu.walk(code.body) if isinstance(s, values.StoreElement)]
        assert all(lets.get(name) for name in stored)
