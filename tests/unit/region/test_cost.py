"""What a kernel costs, by hand; and when a fusion stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.support import kernels
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.foundation.dtypes import BF16, F32, DType
from weft.foundation.index_expr import axis
from weft.ptir import Builder
from weft.region.cost import kernel_seconds, kernel_work
from weft.region.forms.widths import access_bytes, vector_bytes
from weft.region.fusion.resources import live_values, stop_reason
from weft.region.ir import Kernel, KernelAxis, Module, Output, Pattern, Read, Tensor
from weft.region.row_reads import row_bytes
from weft.target.known import target_named

SM90 = target_named("sm90")
CPU = target_named("cpu")


def test_a_contraction_counts_matrix_operations_and_each_tensor_once() -> None:
    module = kernels.linear(64, 32, 16, dtype=BF16, activation="none")
    work = kernel_work(module.kernels[0], module.tensors, SM90)
    assert work.matrix_seconds == pytest.approx(2 * 64 * 32 * 16 / SM90.matrix_rate(BF16))
    assert work.bytes == 2 * (64 * 16 + 16 * 32 + 64 * 32) + 4 * 32
    # The bias is one operation an element.
    assert work.vector_seconds == pytest.approx(64 * 32 / SM90.vector_rate(F32))


def test_rows_are_read_once_if_they_fit_and_once_a_pass_if_not() -> None:
    short, long = kernels.softmax(4, 64), kernels.softmax(4, 1 << 20)
    assert row_bytes(short.kernels[0], short.tensors) == 256
    assert kernel_work(short.kernels[0], short.tensors, SM90).bytes == 2 * 4 * 4 * 64
    whole = 2 * 4 * 4 * (1 << 20)
    assert kernel_work(long.kernels[0], long.tensors, SM90).bytes == 3 * whole


def test_a_window_counts_what_it_reads() -> None:
    module = kernels.cache_update()
    assert kernel_work(module.kernels[0], module.tensors, CPU).bytes == 2 * 4 * 2 * 3 * 4


@pytest.mark.parametrize(("axis", "apart"), [(0, False), (1, True)])
def test_a_cpu_gathers_one_by_one_along_its_vectors(axis: int, apart: bool) -> None:
    x, places = weft.asarray(np.ones((40, 40), np.float32)), weft.asarray(np.arange(40))
    program = weft.jit(lambda x, places: weft.take(x, places, axis=axis)).program(x, places)
    module = through_stages(program, "cpu")["region"]
    work = kernel_work(module.kernels[0], module.tensors, CPU)
    assert (work.vector_seconds > 40 * 40 * CPU.lanes(F32) / CPU.vector_rate(F32)) == apart


def test_samples_are_not_made_anew_for_each_sample_of_them() -> None:
    """Sixteen gathers and more: the larger image is made of the smaller one, which is stored."""
    rng = np.random.default_rng(0)
    small, middle = (
        weft.asarray(rng.standard_normal((1, 8, n, n)).astype(np.float32)) for n in (12, 24)
    )

    def pyramid(small: weft.Tensor, middle: weft.Tensor) -> weft.Tensor:
        first = F.interpolate(small, scale_factor=2.0, mode="bilinear") + middle
        return F.interpolate(first, scale_factor=2.0, mode="bilinear")

    module = through_stages(weft.jit(pyramid).program(small, middle), "cpu")["region"]
    gathers = [
        sum(isinstance(let.expr, Read) and bool(let.expr.places) for let in kernel.body)
        for kernel in module.kernels
    ]
    assert 0 < max(gathers) <= 8


def test_a_launch_is_never_free() -> None:
    module = kernels.cache_update()
    seconds = kernel_seconds(module.kernels[0], module.tensors, SM90)
    assert seconds > SM90.rates.launch_seconds


def test_live_values() -> None:
    assert live_values(kernels.causal_mask().kernels[0]) == 4
    assert live_values(kernels.cache_update().kernels[0]) == 1


def test_the_width_of_accesses() -> None:
    for columns, width in ((16, 16), (6, 8), (9, 4)):
        module = kernels.elementwise(4, columns)
        assert vector_bytes(module.kernels[0], module.tensors) == width
    module = kernels.linear(8, 8, 8)
    assert vector_bytes(module.kernels[0], module.tensors) == 16


# -- stops ---------------------------------------------------------------------------------------


def stop(before: Module, after: Module, target: str = "sm90") -> str | None:
    tensors = {**before.tensors, **after.tensors}
    return stop_reason(before.kernels[0], after.kernels[0], tensors, target_named(target))


def test_rows_must_leave_room_on_chip() -> None:
    """Rows of 200,000 bytes are over 80 % of 232,448."""
    before, after = kernels.softmax(4, 25_000), kernels.layer_norm(4, 50_000)
    assert stop(before, after) == (
        "its rows would take 200,000 bytes of on-chip memory, over 185,958"
    )
    assert stop(after, after) is None
    assert stop(before, after, "cpu") is None


def test_rows_of_one_pass_are_not_kept() -> None:
    """What follows a long sum is computed with it."""
    b = Builder()
    found = b.build(b.reduce_sum(b.param("bf16", [1 << 24]), [0]))
    kernels_made = through_stages(found, "sm90")["region"].kernels
    assert [kernel.name for kernel in kernels_made] == ["row0_parts", "row0"]


def test_a_cluster_keeps_longer_rows_where_there_are_many() -> None:
    """Eight blocks keep eight times as much; 16 rows do not fill the machine with them."""
    before = kernels.softmax(64, 25_000)
    assert stop(before, kernels.layer_norm(64, 50_000)) is None
    assert stop(before, kernels.layer_norm(16, 50_000)) is not None
    assert stop(before, kernels.layer_norm(64, 50_000), "sm80") is not None
    assert stop(before, kernels.layer_norm(64, 400_000)) == (
        "its rows would take 1,600,000 bytes of on-chip memory, over 1,487,667"
    )


def wide(count: int) -> Module:
    """A kernel that holds many values at once."""
    axes = (KernelAxis("i", 64),)
    body = kernels.body_over(axes)
    values = [body.unary("exp", body.plain(f"x{n}", F32, "i")) for n in range(count)]
    total = values[0]
    for value in reversed(values):
        total = body.binary("add", total, value)
    kernel = Kernel(
        "wide", Pattern.MAP, axes, tuple(body.lets), (Output("y", total, (axis("i"),)),)
    )
    tensors = [Tensor(f"x{n}", F32, (64,), "input") for n in range(count)]
    return kernels.module_of(kernel, tensors=[*tensors, Tensor("y", F32, (64,), "output")])


def test_registers_must_leave_room_for_a_second_block() -> None:
    assert stop(wide(4), wide(40)) == "41 live values would leave room for one block per SM"
    assert stop(wide(40), wide(41)) is None


def shifted(by: int) -> Module:
    """`y[i] = x[i] + z[i + by]`."""
    axes = (KernelAxis("i", 64),)
    body = kernels.body_over(axes)
    sides = body.plain("x", F32, "i"), body.read("z", F32, (axis("i") + by,))
    total = body.binary("add", *sides)
    kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), (Output("y", total, (axis("i"),)),))
    shapes = {"x": 64, "z": 68, "y": 64}
    tensors = [Tensor(name, F32, (n,), "input") for name, n in shapes.items()]
    return kernels.module_of(kernel, tensors=tensors)


def test_accesses_must_not_become_narrower() -> None:
    assert stop(shifted(0), shifted(1)) == "accesses would narrow from 16 to 4 bytes"
    assert stop(shifted(0), shifted(4)) is None
    assert stop(shifted(1), shifted(1)) is None


def added(columns: int, dtype: DType) -> Module:
    """`y[i, j] = z[i, j] + x[i, j]` in f32, with `x` of such a dtype."""
    axes = (KernelAxis("i", 4), KernelAxis("j", columns))
    body = kernels.body_over(axes)
    x = body.plain(f"x_{dtype}", dtype, "i", "j")
    total = body.binary("add", body.plain("z", F32, "i", "j"), body.cast(x, F32))
    output = Output("y", total, (axis("i"), axis("j")))
    kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), (output,))
    dtypes = {f"x_{dtype}": dtype, "z": F32, "y": F32}
    tensors = [Tensor(name, found, (4, columns), "input") for name, found in dtypes.items()]
    return kernels.module_of(kernel, tensors=tensors)


@pytest.mark.parametrize("columns", [1000, 1001, 1002])
def test_accesses_of_as_many_elements_are_not_narrower(columns: int) -> None:
    """Two elements of bf16 are four bytes, and go with the eight bytes of two of f32."""
    assert stop(added(columns, F32), added(columns, BF16)) is None
    after = added(columns, BF16)
    widths = access_bytes(after.kernels[0], after.tensors)
    assert widths["z"] == {1000: 16, 1001: 4, 1002: 8}[columns]
    assert widths["x_bf16"] == {1000: 16, 1001: 2, 1002: 4}[columns]


def test_what_is_not_accessed_along_rows_does_not_become_narrower() -> None:
    """Results of rows are one element each, however the rows are read."""
    b = Builder()
    total = b.reduce_sum(b.param("f32", [4096, 1001]), [1])
    made = through_stages(b.build(b.sqrt(total)), "sm90")["region"]
    assert [kernel.name for kernel in made.kernels] == ["row0"]


def ending_in(*functions: str) -> Module:
    """A matrix product, and functions of it, one after the other."""
    module = kernels.linear(16, 16, 16, dtype=BF16, activation="none")
    (kernel,) = module.kernels
    known = {let.name: (let.dtype, let.axes) for let in kernel.body}
    body = kernels.Rows([found.name for found in kernel.axes], lets=list(kernel.body), known=known)
    value = kernel.outputs[0].value
    for function in functions:
        value = body.unary(function, value)
    output = replace(kernel.outputs[0], value=value)
    ended = replace(kernel, body=tuple(body.lets), outputs=(output,))
    return replace(module, kernels=(ended,))


@pytest.mark.parametrize(
    ("functions", "operations"),
    [
        (("sin", "cos", "sinh"), 242),
        (("tan", "tan"), 242),
        (("atanh", "sinh", "acosh", "asinh", "gelu"), 255),
        (("pow", "pow", "sinh"), 242),
    ],
)
def test_code_for_every_result_of_a_thread_must_not_become_long(
    functions: tuple[str, ...], operations: int
) -> None:
    assert stop(ending_in(), ending_in(*functions)) == (
        f"its results would take {operations} operations each, over 240"
    )
    assert stop(ending_in(), ending_in(*functions), "cpu") is None
    assert stop(ending_in(*functions), ending_in(*functions)) is None


@pytest.mark.parametrize(
    "functions",
    [
        ("erf",),
        ("exp", "log1p", "tanh"),
        ("gelu", "silu"),
        ("sin",),
        ("tan",),
        ("pow",),
        ("sin", "cos"),
        ("cos", "exp", "log1p", "erf"),
    ],
)
def test_functions_of_results_stay_with_their_products(functions: tuple[str, ...]) -> None:
    assert stop(ending_in(), ending_in(*functions)) is None


def test_matrix_engines_store_along_columns() -> None:
    module = kernels.linear(16, 16, 16, dtype=BF16)
    (kernel,) = module.kernels
    turned = replace(kernel.outputs[0], index=(axis("n"), axis("m")))
    after = replace(module, kernels=(replace(kernel, outputs=(turned,)),))
    assert stop(module, after) == "the result would not be stored along its columns"
    assert stop(module, after, "sm80") is None
