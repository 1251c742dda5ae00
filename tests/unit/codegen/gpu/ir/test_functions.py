"""Every function of every dtype becomes machine code for both architectures; random words are those
of the reference, a block at a time where they can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support.gpu_faults import planted
from tests.support.gpu_interpreted import InterpretedExecutable, InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard
from weft.codegen.gpu.ir import functions, values, walk
from weft.codegen.gpu.ir.element_ops import ElementOp, arity, supports
from weft.codegen.gpu.ir.formats import HELD
from weft.codegen.gpu.ir.scalar import THREAD, Lit, wide
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.verify import verify
from weft.foundation import functions as meanings
from weft.foundation import philox
from weft.foundation.dtypes import BY_NAME, F32, I1, DType
from weft.ptir import Builder, Program
from weft.target.sm80 import SM80

QUICK = ("si4", "ui8", "bf16")


def names_of(dtype: DType) -> list[str]:
    """The functions that there is code for, all by their names in Tiny."""
    every = [*meanings.UNARY, *meanings.BINARY, *meanings.COMPARISONS]
    return [fn for fn in every if supports(fn, dtype)]


def operations(dtype: DType) -> Iterator[ElementOp]:
    """Every function of two values `x` and `y`, and every cast."""
    for number, fn in enumerate(names_of(dtype)):
        result = I1 if fn in functions.COMPARISONS else dtype
        yield ElementOp(f"f{number}", result, fn, ("x", "y")[: arity(fn, dtype)])
    for target in HELD:
        yield ElementOp(f"c_{target.name}", target, "cast", ("x",))


def kernel_of(dtype: DType) -> ir.Kernel:
    """A thread an element; every operation has a buffer of its own."""
    body: list[ir.Stmt] = [
        ir.LoadElement("x", 0, dtype, wide(THREAD), Lit(1)),
        ir.LoadElement("y", 1, dtype, wide(THREAD), Lit(1)),
    ]
    buffers = ["x", "y"]
    for op in operations(dtype):
        body.append(values.Compute(op))
        place = len(buffers)
        body.append(values.StoreElement(place, op.dtype, wide(THREAD), Lit(1), op.name))
        buffers.append(op.name)
    return ir.Kernel("all", 1, 32, tuple(buffers), (), (), (), (), tuple(body))


def test_no_function_is_missing() -> None:
    floats = {*meanings.UNARY, *meanings.BINARY} - {"not", "and", "or", "xor"}
    floats -= {"shift_left", "shift_right"}
    integers = {
        "neg",
        "abs",
        "not",
        "relu",
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "pow",
        "fmod",
    }
    integers |= {"and", "or", "xor", "shift_left", "shift_right"}
    for dtype in HELD:
        wanted = floats if dtype.is_float else integers if dtype.is_integer else {"not", "and"}
        assert wanted <= set(names_of(dtype)), dtype


@pytest.mark.parametrize(
    "name",
    [
        dtype.name if dtype.name in QUICK else pytest.param(dtype.name, marks=pytest.mark.slow)
        for dtype in sorted(HELD, key=lambda found: found.name)
    ],
)
def test_every_function_compiles(name: str) -> None:
    kernel = kernel_of(BY_NAME[name])
    verify(kernel, SM80)
    for arch in ("sm_80", "sm_90a"):
        assert compile_cuda(cuda(kernel), arch).report.findings == []


# -- random words ----------------------------------------------------------------------------------


def drawn(*shape: int) -> Program:
    b = Builder()
    return b.build(b.rng_uniform(shape=list(shape), dtype="f32"))


def words_in(executable: InterpretedExecutable) -> set[int]:
    """How many words the statements of a program make at once."""
    kernels = executable.compilation["gpu"].kernels.values()
    every = [s for kernel in kernels for s in walk(kernel.body)]
    return {len(s.names) for s in every if isinstance(s, values.Words)}


@pytest.mark.parametrize(
    ("shape", "together"), [((64,), 4), ((7, 12), 4), ((5,), 1), ((3, 5), 1), ((), 1)]
)
def test_words_are_those_of_the_reference(shape: tuple[int, ...], together: int) -> None:
    executable = InterpretedGpu("sm90").compile(drawn(*shape))
    assert words_in(executable) == {together}
    code = executable.compilation["gpu"]
    assert parse_module(print_module(code)) == code
    for seed in (0, 1 << 63, 12345):
        (got,) = executable.execute([], seed=seed)
        want = philox.uniform_values(seed, 0, 0, got.size, F32).reshape(shape)
        np.testing.assert_array_equal(got, want)


def test_words_that_begin_inside_a_block_are_found() -> None:
    executable = InterpretedGpu("sm90").compile(drawn(64))
    code = executable.compilation["gpu"]
    ((symbol, kernel),) = code.kernels.items()

    def moved(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, values.Words):
            return replace(statement, element=statement.element + 1)
        return statement

    code.kernels[symbol] = planted(kernel, moved)
    with pytest.raises(Hazard, match="4 words begin at no multiple of 4"):
        executable.execute([])
