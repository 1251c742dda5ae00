"""Fourier transforms, Einstein's sums, batch normalisation, and operations whose sizes are
operands, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import weft

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, check, floats, function
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop import stablehlo


def complexes(*shape: int) -> Array:
    return (floats(*shape) + 1j * floats(*shape)).astype(np.complex64)


def run(text: str, *inputs: Array) -> list[Array]:
    program = stablehlo.loads(text)
    weft.ptir.verify(program)
    return weft.run(program, list(inputs), backend="reference")


# -- Fourier transforms --------------------------------------------------------------------------


def transform(kind: str, lengths: str, x: str, y: str) -> str:
    x, y = f"tensor<{x}>", f"tensor<{y}>"
    body = f"%0 = stablehlo.fft %x, type = {kind}, length = [{lengths}] : ({x}) -> {y}"
    return function(f"%x: {x}", body, f"%0 : {y}")


@pytest.mark.parametrize("size", [1, 2, 7, 60, 128, 134])
def test_fft_of_many_sizes(size: int) -> None:
    x = complexes(3, size)
    kind = f"3x{size}xcomplex<f32>"
    (found,) = run(transform("FFT", str(size), kind, kind), x)
    np.testing.assert_allclose(found, np.fft.fft(x), rtol=1e-4, atol=1e-4)
    (found,) = run(transform("IFFT", str(size), kind, kind), x)
    np.testing.assert_allclose(found, np.fft.ifft(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [1, 2, 5, 6])
def test_real_transforms_over_three_axes(last: int) -> None:
    x, half = floats(2, 3, 4, last), last // 2 + 1
    there = transform("RFFT", f"3, 4, {last}", f"2x3x4x{last}xf32", f"2x3x4x{half}xcomplex<f32>")
    back = transform("IRFFT", f"3, 4, {last}", f"2x3x4x{half}xcomplex<f32>", f"2x3x4x{last}xf32")
    (found,) = run(there, x)
    np.testing.assert_allclose(found, np.fft.rfftn(x, axes=(1, 2, 3)), rtol=1e-4, atol=1e-4)
    (again,) = run(back, found)
    np.testing.assert_allclose(again, x, rtol=1e-4, atol=1e-5)


# -- Einstein's sums -----------------------------------------------------------------------------

SUMS = [
    ("ab,bc->ac", (3, 4), (4, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("abc,dc->dab", (2, 3, 4), (5, 4)),
    ("ab,cd->da", (2, 3), (4, 5)),
    ("ab,ab->", (3, 4), (3, 4)),
    ("aab,b->a", (3, 3, 4), (4,)),
    ("i,j->ij", (3,), (4,)),
]


@pytest.mark.parametrize(("config", "left", "right"), SUMS)
def test_einsum(config: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = floats(*left), floats(*right)
    wanted = np.einsum(config, a.astype(np.float64), b.astype(np.float64))
    kinds = [f"tensor<{''.join(f'{n}x' for n in s)}f32>" for s in (left, right, wanted.shape)]
    body = (
        f'%0 = "stablehlo.einsum"(%a, %b) {{einsum_config = "{config}"}} '
        f": ({kinds[0]}, {kinds[1]}) -> {kinds[2]}"
    )
    text = function(f"%a: {kinds[0]}, %b: {kinds[1]}", body, f"%0 : {kinds[2]}")
    (found,) = run(text, a, b)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("config", "result"), [("aab->ba", "4x3"), ("abc->", ""), ("abc->b", "3")])
def test_einsum_of_one(config: str, result: str) -> None:
    x = floats(3, 3, 4)
    kinds = "tensor<3x3x4xf32>", f"tensor<{result}{'x' if result else ''}f32>"
    body = (
        f'%0 = "stablehlo.unary_einsum"(%a) {{einsum_config = "{config}"}} '
        f": ({kinds[0]}) -> {kinds[1]}"
    )
    (found,) = run(function(f"%a: {kinds[0]}", body, f"%0 : {kinds[1]}"), x)
    np.testing.assert_allclose(found, np.einsum(config, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "error"),
    [("...a,ab->...b", Unimplemented), ("ab,bc->ad", SpecViolation), ("a,b->ab", SpecViolation)],
)
def test_einsum_refuses_what_does_not_fit(config: str, error: type[Exception]) -> None:
    kind = "tensor<2x2xf32>"
    said = f'{{einsum_config = "{config}"}} : ({kind}, {kind}) -> {kind}'
    body = f'%0 = "stablehlo.einsum"(%a, %a) {said}'
    with pytest.raises(error, match="einsum_config"):
        stablehlo.loads(function(f"%a: {kind}", body, f"%0 : {kind}"))


# -- batch normalisation -------------------------------------------------------------------------

X, F = "tensor<4x3x2xf32>", "tensor<3xf32>"


def normalised(x: Array, scale: Array, offset: Array) -> tuple[Array, Array, Array]:
    x = x.astype(np.float64)
    mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    column = (1, 3, 1)
    y = (x - mean) / np.sqrt(variance + 0.01) * scale.reshape(column) + offset.reshape(column)
    return y, mean.reshape(3), variance.reshape(3)


def test_batch_norm_training() -> None:
    body = (
        '%0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {epsilon = 0.01 : f32, feature_index = '
        f"1 : i64}} : ({X}, {F}, {F}) -> ({X}, {F}, {F})"
    )
    text = function(f"%x: {X}, %s: {F}, %o: {F}", body, f"%0#0, %0#1, %0#2 : {X}, {F}, {F}")
    x, scale, offset = floats(4, 3, 2), floats(3), floats(3)
    for found, wanted in zip(
        run(text, x, scale, offset), normalised(x, scale, offset), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_batch_norm_inference() -> None:
    body = (
        '%0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) {epsilon = 0.01 : f32, '
        f"feature_index = 1 : i64}} : ({X}, {F}, {F}, {F}, {F}) -> {X}"
    )
    signature = f"%x: {X}, %s: {F}, %o: {F}, %m: {F}, %v: {F}"
    x, scale, offset = floats(4, 3, 2), floats(3), floats(3)
    wanted, mean, variance = normalised(x, scale, offset)
    given = [a.astype(np.float32) for a in (mean, variance)]
    (found,) = run(function(signature, body, f"%0 : {X}"), x, scale, offset, *given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_batch_norm_grad() -> None:
    """Against differences of the normalisation itself."""
    body = (
        '%0:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) {epsilon = 0.01 : f32, '
        f"feature_index = 1 : i64}} : ({X}, {F}, {F}, {F}, {X}) -> ({X}, {F}, {F})"
    )
    signature = f"%x: {X}, %s: {F}, %m: {F}, %v: {F}, %g: {X}"
    text = function(signature, body, f"%0#0, %0#1, %0#2 : {X}, {F}, {F}")
    x, scale, offset, g = floats(4, 3, 2), floats(3), floats(3), floats(4, 3, 2)
    _, mean, variance = (a.astype(np.float32) for a in normalised(x, scale, offset))
    found = run(text, x, scale, mean, variance, g)

    def loss(*args: Array) -> float:
        return float((normalised(*args)[0] * g).sum())

    given = [a.astype(np.float64) for a in (x, scale, offset)]
    for number, got in enumerate(found):
        wanted = np.zeros(got.shape)
        for place in np.ndindex(got.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in given]
                moved[number][place] += step
                ends.append(loss(*moved))
            wanted[place] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


# -- sizes that are operands ---------------------------------------------------------------------

NUMBERS = """%low = stablehlo.constant dense<[1, 0]> : tensor<2xi64>
%high = stablehlo.constant dense<[0, -1]> : tensor<2xi64>
%one = stablehlo.constant dense<[0, 1]> : tensor<2xi64>
%limit = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
%step = stablehlo.constant dense<[2, 1]> : tensor<2xi64>
"""
VECTOR = "tensor<2xi64>"


def test_pads_and_slices_by_constants() -> None:
    body = (
        NUMBERS
        + f"""%0 = stablehlo.dynamic_pad %x, %v, %low, %high, %one
      : (tensor<3x4xf32>, tensor<f32>, {VECTOR}, {VECTOR}, {VECTOR}) -> tensor<4x6xf32>
    %1 = stablehlo.real_dynamic_slice %x, %one, %limit, %step
      : (tensor<3x4xf32>, {VECTOR}, {VECTOR}, {VECTOR}) -> tensor<2x3xf32>"""
    )
    text = function(
        "%x: tensor<3x4xf32>, %v: tensor<f32>", body, "%0, %1 : tensor<4x6xf32>, tensor<2x3xf32>"
    )
    x, v = floats(3, 4), floats()
    wanted = np.full((4, 6), v)
    wanted[1:, ::2] = x[:, :3]
    wanted[1:, 5:] = v
    padded, cut = run(text, x, v)
    np.testing.assert_array_equal(padded, wanted)
    np.testing.assert_array_equal(cut, x[0:3:2, 1:4])


def test_a_convolution_with_padding_as_an_operand() -> None:
    kinds = "tensor<1x5x5x2xf32>", "tensor<3x3x2x4xf32>", "tensor<2x2xi64>", "tensor<1x5x6x4xf32>"
    common = """dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1]WITH}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : """
    body = f"""%p = stablehlo.constant dense<[[1, 1], [2, 1]]> : {kinds[2]}
    %0 = stablehlo.convolution(%x, %w) {common.replace("WITH", ", pad = [[1, 1], [2, 1]]")}
      ({kinds[0]}, {kinds[1]}) -> {kinds[3]}
    %1 = "stablehlo.dynamic_conv"(%x, %w, %p) {{batch_group_count = 1 : i64,
      feature_group_count = 1 : i64, window_strides = array<i64: 1, 1>,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>}}
      : ({kinds[0]}, {kinds[1]}, {kinds[2]}) -> {kinds[3]}"""
    text = function(f"%x: {kinds[0]}, %w: {kinds[1]}", body, f"%0, %1 : {kinds[3]}, {kinds[3]}")
    first, second = run(text, floats(1, 5, 5, 2), floats(3, 3, 2, 4))
    np.testing.assert_array_equal(first, second)


def test_a_gather_with_sizes_as_an_operand() -> None:
    body = """%s = stablehlo.constant dense<[1, 4]> : tensor<2xi64>
    %0 = "stablehlo.dynamic_gather"(%x, %i, %s) {dimension_numbers = #stablehlo.gather<
      offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}
      : (tensor<3x4xf32>, tensor<5xi32>, tensor<2xi64>) -> tensor<5x4xf32>"""
    text = function("%x: tensor<3x4xf32>, %i: tensor<5xi32>", body, "%0 : tensor<5x4xf32>")
    x, i = floats(3, 4), np.array([2, 0, 1, 7, -1], np.int32)
    np.testing.assert_array_equal(run(text, x, i)[0], x[np.clip(i, 0, 2)])


def test_only_its_own_size_can_be_set() -> None:
    body = """%n = stablehlo.constant dense<SIZE> : tensor<i32>
    %0 = stablehlo.set_dimension_size %x, %n, dim = 0
      : (tensor<3xf32>, tensor<i32>) -> tensor<KIND>"""
    kind = "3xf32"
    own = body.replace("SIZE", "3").replace("KIND", kind)
    x = floats(3)
    (found,) = run(function("%x: tensor<3xf32>", own, f"%0 : tensor<{kind}>"), x)
    np.testing.assert_array_equal(found, x)
    less = body.replace("SIZE", "2").replace("KIND", kind)
    with pytest.raises(Unimplemented, match="the size is another than that of axis 0 of f32"):
        stablehlo.loads(function("%x: tensor<3xf32>", less, f"%0 : tensor<{kind}>"))


def test_what_is_computed_at_run_time_is_refused() -> None:
    body = f"""%0 = stablehlo.real_dynamic_slice %x, %a, %a, %a
      : (tensor<3x4xf32>, {VECTOR}, {VECTOR}, {VECTOR}) -> tensor<?x?xf32>"""
    text = function(f"%x: tensor<3x4xf32>, %a: {VECTOR}", body, "%0 : tensor<?x?xf32>")
    with pytest.raises(Unimplemented, match="its operand 1 is known only at run time; line 2"):
        stablehlo.loads(text)


def test_pads_of_open_sizes() -> None:
    body = """%c = stablehlo.constant dense<1.5> : tensor<f32>
    %0 = stablehlo.pad %x, %c, low = [1, 2], high = [0, 1], interior = [0, 0]
      : (tensor<?x3xf32>, tensor<f32>) -> tensor<?x6xf32>"""
    x = floats(2, 3)
    (found,) = run(function("%x: tensor<?x3xf32>", body, "%0 : tensor<?x6xf32>"), x)
    np.testing.assert_array_equal(found, np.pad(x, [(1, 0), (2, 1)], constant_values=1.5))


def test_many_branches() -> None:
    branches = ", ".join(
        "{ %c = stablehlo.constant dense<N> : tensor<i32>\n"
        "%r = stablehlo.add %n, %c : tensor<i32>\nstablehlo.return %r : tensor<i32> }".replace(
            "N", str(10 * number)
        )
        for number in range(12)
    )
    body = f'%0 = "stablehlo.case"(%n) ({branches}) : (tensor<i32>) -> tensor<i32>'
    text = function("%n: tensor<i32>", body, "%0 : tensor<i32>")
    for index in (-3, 0, 1, 5, 10, 11, 12, 99):
        check(text, np.array(index, np.int32))


def test_complex_parts() -> None:
    kind, part = "tensor<5xcomplex<f32>>", "tensor<5xf32>"
    body = f"""%0 = stablehlo.real %z : ({kind}) -> {part}
    %1 = stablehlo.imag %z : ({kind}) -> {part}
    %2 = stablehlo.complex %1, %0 : {kind}
    %3 = stablehlo.abs %z : ({kind}) -> {part}"""
    text = function(f"%z: {kind}", body, f"%0, %1, %2, %3 : {part}, {part}, {kind}, {part}")
    z = complexes(5)
    real, imag, swapped, size = run(text, z)
    np.testing.assert_array_equal(real, z.real)
    np.testing.assert_array_equal(imag, z.imag)
    np.testing.assert_array_equal(swapped, z.imag + 1j * z.real)
    np.testing.assert_allclose(size, np.abs(z), rtol=1e-6)


@pytest.mark.parametrize("lower", [True, False])
def test_triangles(lower: bool) -> None:
    """Cholesky factors and triangular systems, of which one triangle is read."""
    kind = "tensor<2x3x3xf32>"
    said = str(lower).lower()
    body = f"""%0 = stablehlo.cholesky %a, lower = {said} : {kind}
    %1 = "stablehlo.triangular_solve"(%0, %b) {{left_side = false, lower = {said},
      unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>}}
      : ({kind}, {kind}) -> {kind}"""
    x = floats(2, 3, 3)
    a = x @ np.swapaxes(x, 1, 2) + 3 * np.eye(3, dtype=np.float32)
    b = floats(2, 3, 3)
    hidden = np.where(np.tri(3, dtype=bool) if lower else np.tri(3, dtype=bool).T, a, np.nan)
    factor, solved = run(
        function(f"%a: {kind}, %b: {kind}", body, f"%0, %1 : {kind}, {kind}"), hidden, b
    )
    whole = np.linalg.cholesky(a.astype(np.float64))
    wanted = whole if lower else np.swapaxes(whole, 1, 2)
    keep = np.tri(3, dtype=bool) if lower else np.tri(3, dtype=bool).T
    np.testing.assert_allclose(np.where(keep, factor, 0), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(solved @ np.swapaxes(wanted, 1, 2), b, rtol=1e-3, atol=1e-4)


# -- sizes that the text leaves open -------------------------------------------------------------

OPEN = "tensor<?x?xf32>"


def test_parts_of_open_sizes_are_joined() -> None:
    body = f"%0 = stablehlo.concatenate %x, %y, dim = 1 : ({OPEN}, {OPEN}) -> {OPEN}"
    text = function(f"%x: {OPEN}, %y: {OPEN}", body, f"%0 : {OPEN}")
    kinds = stablehlo.loads(text).main.parameters
    assert [str(kind) for kind in kinds] == ["f32[?n0, ?n1]", "f32[?n0, ?n3]"]
    x, y = floats(2, 3), floats(2, 4)
    np.testing.assert_array_equal(run(text, x, y)[0], np.concatenate([x, y], 1))


def test_branches_that_give_different_open_sizes_are_refused() -> None:
    branches = f"({{ stablehlo.return %x : {OPEN} }}, {{ stablehlo.return %y : {OPEN} }})"
    body = f'%0 = "stablehlo.if"(%p) {branches} : (tensor<i1>) -> {OPEN}'
    text = function(f"%p: tensor<i1>, %x: {OPEN}, %y: {OPEN}", body, f"%0 : {OPEN}")
    with pytest.raises(Unimplemented, match=r"stablehlo\.if: a size that the text leaves open"):
        stablehlo.loads(text)


SHARDED = """
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>})
      -> tensor<4xf32> {
    %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}]>]>}
      : tensor<4xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"d"}]> : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
"""


def test_shardings_say_where_values_lie_and_change_none() -> None:
    """As jax exports functions with meshes: the program is for one device."""
    program = stablehlo.loads(SHARDED)
    assert [each.op.mnemonic for each in program.main.body] == ["neg"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(weft.run(program, [x], backend="reference")[0], -x)
