"""What document 2 says must not go wrong, one condition after the other, on the CPU.

    8   the runtime says where memory, registers, index expressions or alignment do not fit
    10  pitfalls and what is done about them
    13  failure conditions of indices and integer sets

What concerns GPUs alone (shared-memory banks, atomics of split-K, occupancy) is tested with their
templates, in tests/unit/codegen/gpu and tests/unit/region/test_cost.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.codegen.cpu.compile import accepts
from weft.driver.compile import compile_program
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import F32, as_dtype
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import axis
from weft.foundation.scalar import Fn
from weft.indexbook import verify as indexbook_verify
from weft.indexbook.from_tiny import build_book
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.region.ir import Module
from weft.target.cpu import describe
from weft.target.target import Target
from weft.tiny import verify as tiny_verify
from weft.tiny.ir import Binary, Flip, Graph, Input, Reshape, Value, View

Array = NDArray[Any]
ARM = describe("aarch64", frozenset({"asimd"}), 2, (64 << 10, 1 << 20))
HASWELL = describe("x86_64", frozenset({"avx2", "fma"}), 2, (32 << 10, 1 << 20))
SKYLAKE = describe("x86_64", frozenset({"avx2", "fma", "avx512f"}), 2, (32 << 10, 1 << 20))


def through(program: Program, until: str, target: Target = ARM) -> Compilation:
    return run_pipeline(Compilation(program, target, make_signature(program)), until)


def kernels(program: Program) -> Module:
    module = through(program, "region")["region"]
    assert isinstance(module, Module)
    return module


def product(rows: int = 64, inner: int = 64, columns: int = 64, dtype: str = "f32") -> Program:
    b = Builder()
    return b.build(b.param(dtype, [rows, inner]) @ b.param(dtype, [inner, columns]))


def graph_of(value: Value, *inputs: Input) -> Graph:
    return Graph(tuple(inputs), (("out0", value),))


# -- 8: errors that name what does not fit ---------------------------------------------------------


def plan_and_kernel(**changes: Any) -> list[str]:
    """Why a product is not carried out with a plan that says something else."""
    compilation = through(product(), "plan")
    (kernel,) = compilation["region"].kernels
    plan = compilation["plan"].of(kernel.name)
    assert isinstance(plan, MmaPlan)
    assert accepts(kernel, compilation["region"].tensors, plan) == []
    found = accepts(kernel, compilation["region"].tensors, replace(plan, **changes))
    return [finding.why for finding in found]


def test_8_registers_that_are_not_there_are_told() -> None:
    (first, *_) = plan_and_kernel(tile=(64, 64, 64), warp_tile=(64, 64))
    assert re.search(r"\d+ vectors", first), first


def test_8_memory_of_a_thread_that_is_not_there_is_told() -> None:
    b = Builder()
    q, k, v = (b.param("f32", [1, 1, 512, 64]) for _ in range(3))
    compilation = through(b.build(b.attention(q, k, v)), "plan")
    module = compilation["region"]
    (kernel,) = module.kernels
    plan = compilation["plan"].of(kernel.name)
    wide = replace(plan, tile_q=1000 * plan.tile_q, tile_kv=1000 * plan.tile_kv)
    (why,) = [finding.why for finding in accepts(kernel, module.tensors, wide)]
    assert re.fullmatch(r"its blocks take \d+ bytes of a thread; \d+ is the most", why)


def test_8_an_index_that_is_not_affine_is_told() -> None:
    b = Builder()
    x = b.param("f32", [6, 10])
    program = b.build(b.exp(x))
    text = through(program, "poly_view").text("poly_view")
    edited = text.replace('"map": "[i0, i1]"', '"map": "[i0*i1, i1]"', 1)
    assert edited != text
    with pytest.raises(SpecViolation, match=r"E1405 NonAffine at stage poly_view: .*'i0\*i1'"):
        compile_program(program, "cpu", overrides={"poly_view": edited})


def test_8_a_buffer_that_is_not_aligned_is_told() -> None:
    b = Builder()
    x, w = b.param("f32", [64, 64]), b.param("f32", [64, 64])
    program = b.build(b.reduce_sum(b.softmax(x @ w) @ w, [1]) * 2.0)
    text = through(program, "memory").text("memory")
    edited = re.sub(r'("space": "arena", "number": \d+, "offset": )0\b', r"\g<1>4", text, count=1)
    assert edited != text
    with pytest.raises(SpecViolation, match=r"BufferAlignment at v[0-9]+: offset 4 is not"):
        compile_program(program, "cpu", overrides={"memory": edited})


@pytest.mark.parametrize("start", [1, 2, 3, 4, 36])
def test_8_inputs_may_begin_anywhere(start: int) -> None:
    """What is not aligned at run time is no error on a CPU: it is read as it lies, or copied."""
    raw = bytearray(start + 4 * 1003)
    x = np.frombuffer(raw, np.float32, offset=start) if start % 4 == 0 else None
    given = np.ndarray((1003,), np.float32, raw, start) if x is None else x
    given[:] = np.linspace(-3, 3, 1003)
    b = Builder()
    program = b.build(b.tanh(b.param("f32", [1003])))
    (found,) = weft.run(program, [given], backend="cpu")
    np.testing.assert_allclose(found, np.tanh(given.astype(np.float64)), rtol=1e-6)


# -- 10: pitfalls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1003, 37, 5, 4, 1])
def test_10_ends_are_cut_off_and_the_middle_stays_vectors(size: int) -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [size])) + 1.0)
    text = through(program, "cpu").text("cpu")
    whole = [int(n) for n in re.findall(r"lanes \S+ in 0\.\.(\d+)", text)]
    assert set(whole) <= {4}
    assert bool(whole) == (size >= 4)
    x = np.linspace(-2, 2, size, dtype=np.float32)
    (found,) = weft.run(program, [x], backend="cpu")
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)) + 1, rtol=1e-6)


@pytest.mark.parametrize("target", [ARM, HASWELL, SKYLAKE], ids=["asimd", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("sizes", [(512, 512, 512), (1, 768, 3072), (7, 13, 37), (4096, 64, 8)])
def test_10_accumulators_stay_in_registers(
    sizes: tuple[int, int, int], dtype: str, target: Target
) -> None:
    compilation = through(product(*sizes, dtype=dtype), "plan", target)
    plans = [plan for plan in compilation["plan"].plans.values() if isinstance(plan, MmaPlan)]
    assert bool(plans) == (sizes[0] > 1), "a single row is not a tile: its columns are summed"
    for plan in plans:
        rows, columns = plan.warp_tile
        lanes = plan.vectorize.width if plan.vectorize else 1
        bits = 8 * lanes * (4 if dtype == "f32" else 8)
        vectors = rows * -(-columns // lanes) * -(-bits // target.limits.vector_bits)
        assert vectors < target.limits.vector_registers


def test_10_vectors_run_along_memory() -> None:
    """Of a transposed operand too: it is read in blocks."""
    b = Builder()
    x, y = b.param("f32", [512, 512]), b.param("f32", [512, 512])
    compilation = through(b.build(b.transpose(x, [1, 0]) + y), "cpu")
    (kernel,) = compilation["region"].kernels
    assert compilation["plan"].of(kernel.name).block > 1
    stores = re.findall(r"store b2\[(.*?)\]", compilation.text("cpu"))
    lanes = re.findall(r"lanes (\S+) in", compilation.text("cpu"))
    assert lanes
    assert all(any(re.search(rf"(^|[+ ]){lane}\b", s) for lane in lanes) for s in stores)


def test_10_a_sum_in_parts_has_the_same_bits_for_any_number_of_threads() -> None:
    b = Builder()
    executable = weft.compile(b.build(b.reduce_sum(b.param("f32", [1 << 16]), [0])))
    x = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    results = {executable.run([x], threads=threads)[0].tobytes() for threads in (1, 2, 3, 8)}
    assert len(results) == 1


def test_10_softmax_is_shifted() -> None:
    b = Builder()
    x = b.param("f32", [2, 3])
    (found,) = weft.run(b.build(b.softmax(x)), [[[1e4, 1e4, -1e4], [3e38, 0, 0]]], backend="cpu")
    np.testing.assert_array_equal(found, [[0.5, 0.5, 0], [1, 0, 0]])


def test_10_statistics_of_a_norm_do_not_cancel() -> None:
    """The mean of the squares less the square of the mean would be noise here."""
    x = (4096 + np.tile([-1.0, 1.0], (3, 64))).astype(np.float32)
    ones, zeros = np.ones(128, np.float32), np.zeros(128, np.float32)
    found = weft.functional.layer_norm(
        weft.asarray(x).to("cpu"),
        (128,),
        weft.asarray(ones).to("cpu"),
        weft.asarray(zeros).to("cpu"),
    )
    np.testing.assert_allclose(found.numpy(), x - 4096, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_10_narrow_products_are_added_up_in_f32(dtype: str) -> None:
    b = Builder()
    program = b.build(b.param(dtype, [1, 4096]) @ b.param(dtype, [4096, 1]))
    ones = np.ones(4096, as_dtype(dtype).numpy)
    (found,) = weft.run(program, [ones.reshape(1, -1), ones.reshape(-1, 1)], backend="cpu")
    assert float(found[0, 0]) == 4096


def test_10_what_a_window_would_compute_many_times_is_stored() -> None:
    """The halo of a dear producer, 25 times each element, stops the fusion."""
    b = Builder()
    x = b.param("f32", [1, 32, 32, 8])
    patches = b.emit(
        "extract_patches", b.erf(b.exp(x)), window=[5, 5], strides=[1, 1], dilation=[1, 1],
        padding=[(2, 2), (2, 2)], pad_value=0.0,
    )  # fmt: skip
    first, second = kernels(b.build(b.reduce_sum(patches, [3]))).kernels
    assert first.outputs[0].tensor in second.inputs


# -- 13: indices and integer sets ------------------------------------------------------------------

X, ROW = Input("x", F32, (2, 3)), Input("row", F32, (3,))


def test_13_operands_of_different_shapes_are_refused_when_the_graph_is_made() -> None:
    with pytest.raises(SpecViolation, match="E1001 BroadcastMismatch"):
        tiny_verify.verify(graph_of(Binary(Fn.ADD, X, ROW), X, ROW))
    b = Builder()
    x, row = b.param("f32", [2, 3]), b.param("f32", [3])
    with pytest.raises(SpecViolation, match=r"ShapeMismatch.*\[2, 3\] and \[3\]"):
        b.add(x, row)


def test_13_a_negative_stride_is_refused_where_it_is_written() -> None:
    backwards = View(X, (2, 3), (axis("i0"), axis("i1") * -1 + 2))
    with pytest.raises(SpecViolation, match=r"E1102 NegativeStride.*use Flip"):
        tiny_verify.verify(graph_of(backwards, X))
    tiny_verify.verify(graph_of(Flip(X, (1,)), X))


def test_13_a_division_without_its_guard_is_refused() -> None:
    graph = graph_of(Reshape(Input("y", F32, (6, 10)), (4, 15)), Input("y", F32, (6, 10)))
    book = build_book(graph)
    indexbook_verify.verify(book)
    (name,) = [name for name, info in book.infos.items() if info.inputs]
    info = book.infos[name]
    bare = replace(info, domain=replace(info.domain, constraints=info.domain.constraints[:2]))
    with pytest.raises(SpecViolation, match="E1203 MissingDivGuard"):
        indexbook_verify.verify(replace(book, infos={**book.infos, name: bare}))


def test_13_many_pads_and_slices_stay_a_few_pieces() -> None:
    b = Builder()
    x = b.param("f32", [16, 16])
    y = x
    for step in range(24):
        low = [step % 2, 1 - step % 2]
        y = b.pad(y, low=low, high=[1, 1], interior=[0, 0], pad_value=0.0)
        y = b.slice(y, starts=[0, 1], sizes=[16, 16])
    program = b.build(b.exp(y))
    compilation = through(program, "poly_view")
    assert len(compilation.text("poly_view")) < 4000
    data = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    want = weft.run(program, [data], backend="reference")[0]
    np.testing.assert_allclose(weft.run(program, [data], backend="cpu")[0], want, rtol=1e-6)


def test_13_reshapes_that_do_not_align_are_stored_with_a_warning() -> None:
    b = Builder()
    y = b.reshape(b.param("f32", [6, 10]), [4, 15])
    z = b.reshape(b.slice(y, starts=[0, 0], sizes=[4, 14]), [7, 8])
    compilation = through(b.build(b.exp(z)), "indexbook")
    assert [f.code for f in compilation["indexbook"].findings] == ["W2101 ExcessivePiecewise"]


def test_13_positions_that_are_data_end_a_kernel() -> None:
    """A scatter stands between what is computed before and after it."""
    b = Builder()
    x, where, updates = b.param("f32", [64]), b.param("si32", [8, 1]), b.param("f32", [8])
    moved = b.emit(
        "scatter_add", b.exp(x), where, updates, update_window_dims=[], inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0], index_vector_dim=1,
    )  # fmt: skip
    order = [kernel.opaque is not None for kernel in kernels(b.build(b.tanh(moved))).kernels]
    at = order.index(True)
    assert order.count(True) == 1
    assert 0 < at < len(order) - 1
