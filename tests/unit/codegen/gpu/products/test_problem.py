"""How kernels over atoms become problems with rows, columns and one contracted axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.codegen.gpu.ir.swizzle import Major
from weft.codegen.gpu.products.operand import Refusal
from weft.codegen.gpu.products.problem import Problem, analyse
from weft.foundation.dtypes import BF16, F32, SI32
from weft.foundation.index_expr import Expr, Guard, axis, param
from weft.memory.ir import Buffer, MemRef, Space
from weft.region.forms.find import find_form
from weft.region.ir import Kernel, KernelAxis, Output, Pattern, Roles, Tensor
from weft.region.writing.build import Body

SIZES = {"b": 2, "s": 8, "h": 3, "d": 16, "k": 32, "j": 4}


def refs(**shapes: str) -> dict[str, MemRef]:
    """Row-major tensors with one letter per axis."""
    found = {}
    for name, letters in shapes.items():
        sizes = [SIZES[letter] for letter in letters]
        strides = [1]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * size)
        buffer = Buffer(Space.INPUT, 0, 0, 0)
        found[name] = MemRef(name, buffer, tuple(sizes), tuple(strides[: len(sizes)]), 128, True)
    return found


def index(letters: str) -> tuple[Expr, ...]:
    return tuple(axis(letter) for letter in letters)


def contraction(
    a: str, b: str, y: str, *, m: str, n: str, k: str, batch: str = "", bias: str = ""
) -> tuple[Kernel, dict[str, MemRef]]:
    """`y = a b (+ bias)` with axes by letter."""
    order = dict.fromkeys(batch + m + n + k)
    axes = tuple(KernelAxis(name, SIZES[name], reduce=name in k) for name in order)
    body = Body([found.name for found in axes])
    lhs, rhs = body.read("a", BF16, index(a)), body.read("b", BF16, index(b))
    product = body.binary("mul", body.cast(lhs, F32), body.cast(rhs, F32))
    total = result = body.reduce("sum", product, tuple(k), F32)
    if bias:
        result = body.binary("add", result, body.read("bias", F32, index(bias)))
    result = body.cast(result, BF16)
    roles = Roles(tuple(batch), tuple(m), tuple(n), tuple(k), total, lhs, rhs)
    kernel = Kernel(
        "k", Pattern.MATMUL, axes, tuple(body.lets), (Output("y", result, index(y)),), roles=roles
    )
    return finished(kernel, refs(a=a, b=b, y=y, bias=bias))


def finished(kernel: Kernel, memory: dict[str, MemRef]) -> tuple[Kernel, dict[str, MemRef]]:
    tensors = {name: Tensor(name, F32, ref.shape) for name, ref in memory.items()}
    return replace(kernel, form=find_form(kernel, tensors)), memory


def sizes(problem: Problem) -> tuple[tuple[int, ...], int, int, int]:
    return problem.batch, problem.m, problem.n, problem.k


def test_rows_that_follow_one_another_are_one_axis() -> None:
    problem = analyse(*contraction("bsk", "kd", "bsd", m="bs", n="d", k="k", bias="d"))
    assert sizes(problem) == ((), 16, 16, 32)
    assert (problem.a.outer, problem.a.inner, problem.a.major) == (32, 1, Major.K)
    assert (problem.b.outer, problem.b.inner, problem.b.major) == (1, 16, Major.MN)
    (bias,) = problem.sources
    assert (bias.strides.row, bias.strides.column) == (0, 1)


def test_columns_that_are_stored_apart_become_batches() -> None:
    """Heads: y is [b, h, s, d], so h and b stand outside the rows and columns of a tile."""
    problem = analyse(*contraction("bsk", "khd", "bhsd", m="bs", n="hd", k="k"))
    assert sizes(problem) == ((2, 3), 8, 16, 32)
    assert problem.a.batch == (8 * 32, 0)
    assert problem.b.batch == (0, 16)
    assert problem.out.batch == (3 * 8 * 16, 8 * 16)
    assert (problem.out.row, problem.out.column) == (16, 1)


def test_scores_of_heads_are_batched_over_strided_tensors() -> None:
    problem = analyse(*contraction("bshd", "bjhd", "bhsj", batch="bh", m="s", n="j", k="d"))
    assert sizes(problem) == ((2, 3), 8, 4, 16)
    assert (problem.a.outer, problem.a.inner, problem.a.batch) == (48, 1, (384, 16))
    assert (problem.b.outer, problem.b.inner, problem.b.batch) == (48, 1, (192, 16))


def test_contracted_axes_run_together_or_are_refused() -> None:
    problem = analyse(*contraction("bhk", "hkd", "bd", m="b", n="d", k="hk"))
    assert sizes(problem) == ((), 2, 16, 96)
    with pytest.raises(Refusal, match="the contracted axes do not follow one another"):
        analyse(*contraction("bhk", "khd", "bd", m="b", n="d", k="hk"))


def test_a_bias_of_some_rows_splits_them() -> None:
    problem = analyse(*contraction("bsk", "kd", "bsd", m="bs", n="d", k="k", bias="s"))
    assert sizes(problem) == ((2,), 8, 16, 32)


def altered_read(expr: Expr, *guards: Guard) -> Refusal:
    axes = (KernelAxis("s", 8), KernelAxis("d", 16), KernelAxis("k", 32, reduce=True))
    body = Body(["s", "d", "k"])
    lhs = body.read("a", BF16, (expr, axis("k")), guards, 0.0)
    rhs = body.read("b", BF16, index("kd"))
    product = body.binary("mul", body.cast(lhs, F32), body.cast(rhs, F32))
    total = body.reduce("sum", product, ("k",), F32)
    roles = Roles((), ("s",), ("d",), ("k",), total, lhs, rhs)
    kernel = Kernel(
        "k", Pattern.MATMUL, axes, tuple(body.lets), (Output("y", total, index("sd")),), roles=roles
    )
    with pytest.raises(Refusal) as caught:
        analyse(*finished(kernel, refs(a="sk", b="kd", y="sd")))
    return caught.value


def test_reads_that_are_refused() -> None:
    s = axis("s")
    assert altered_read(s + param("p")).finding.code == "RuntimeOffset"
    assert altered_read(s // 3).finding.code == "NotAffine"
    assert altered_read(s - 1, Guard(s - 1, 8)).finding.code == "GuardedRead"


def test_a_mask_by_index_becomes_a_source() -> None:
    axes = (KernelAxis("s", 8), KernelAxis("j", 4), KernelAxis("k", 32, reduce=True))
    body = Body(["s", "j", "k"])
    lhs, rhs = body.read("a", BF16, index("sk")), body.read("b", BF16, index("jk"))
    product = body.binary("mul", body.cast(lhs, F32), body.cast(rhs, F32))
    total = body.reduce("sum", product, ("k",), F32)
    row, column = body.index(axis("s") + 4, SI32), body.index(axis("j"), SI32)
    low = body.const(float("-inf"), F32)
    result = body.select(body.binary("le", column, row), total, low)
    roles = Roles((), ("s",), ("j",), ("k",), total, lhs, rhs)
    kernel = Kernel(
        "k",
        Pattern.MATMUL,
        axes,
        tuple(body.lets),
        (Output("y", result, index("sj")),),
        roles=roles,
    )
    problem = analyse(*finished(kernel, refs(a="sk", b="jk", y="sj")))
    places = {(s.strides.offset, s.strides.row, s.strides.column) for s in problem.sources}
    assert places == {(4, 1, 0), (0, 0, 1)}
    assert [op.fn for op in problem.first.ops] == ["const", "le", "select"]
