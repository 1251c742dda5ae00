"""Sizes that are known only at run time. The interpreter of StableHLO runs the text with numbers in
place of the letters N, M and K; Weft reads it with `?` there, and runs it at those sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, floats, function, interpret
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop import stablehlo
from weft.ptir import Builder, Program
from weft.testing import random_program


def opened(text: str) -> Program:
    program = stablehlo.loads(_with(text, {"N": "?", "M": "?", "K": "?"}))
    weft.ptir.verify(program)
    return program


def _with(text: str, sizes: dict[str, Any]) -> str:
    for letter, size in sizes.items():
        text = text.replace(f"{letter}x", f"{size}x")
    return text


def check(text: str, sizes: dict[str, int], *inputs: Array) -> None:
    found = weft.run(opened(text), list(inputs), backend="reference")
    for got, want in zip(found, interpret(_with(text, sizes), inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# -- gather --------------------------------------------------------------------------------------


def gather(x: str, indices: str, result: str, numbers: str, sizes: str) -> str:
    kinds = [f"tensor<{kind}>" for kind in (x, indices, result)]
    body = (
        f'%0 = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>, '
        f"slice_sizes = array<i64: {sizes}>, indices_are_sorted = false}} "
        f": ({kinds[0]}, {kinds[1]}) -> {kinds[2]}"
    )
    return function(f"%x: {kinds[0]}, %i: {kinds[1]}", body, f"%0 : {kinds[2]}")


def test_rows_of_an_open_axis() -> None:
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
    text = gather("Nx3xf32", "Mxi64", "Mx3xf32", numbers + "index_vector_dim = 1", "1, 3")
    check(text, {"N": 5, "M": 4}, floats(5, 3), np.array([4, -2, 9, 1]))


def test_windows_of_an_open_tensor() -> None:
    numbers = "offset_dims = [1, 2], start_index_map = [1, 0], index_vector_dim = 1"
    text = gather("NxKxf32", "Mx2xi32", "Mx2x3xf32", numbers, "2, 3")
    places = np.array([[0, 0], [3, 1], [-4, 9], [2, 2]], np.int32)
    check(text, {"N": 4, "K": 6, "M": 4}, floats(4, 6), places)


def test_an_element_of_each_row() -> None:
    numbers = (
        "collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2"
    )
    text = gather("NxKxf32", "NxMxi64", "NxMxf32", numbers, "1, 1")
    check(text, {"N": 3, "K": 5, "M": 2}, floats(3, 5), np.array([[0, 4], [7, 1], [2, 2]]))


# -- scatter and updates -------------------------------------------------------------------------

COMBINED = {
    "add": "%2 = stablehlo.add %a, %b : tensor<f32>",
    "replace": "%2 = stablehlo.maximum %b, %b : tensor<f32>",
    "in-order": "%1 = stablehlo.multiply %a, %s : tensor<f32>\n"
    "%2 = stablehlo.subtract %1, %b : tensor<f32>",
}


@pytest.mark.parametrize("how", COMBINED)
@pytest.mark.parametrize("unique", ["false", "true"])
def test_scatter_into_open_tensors(how: str, unique: str) -> None:
    body = f"""%0 = "stablehlo.scatter"(%x, %i, %u) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        {COMBINED[how]}
        stablehlo.return %2 : tensor<f32>
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      indices_are_sorted = false, unique_indices = {unique}}}
      : (tensor<NxKxf32>, tensor<Mxi64>, tensor<MxKxf32>) -> tensor<NxKxf32>"""
    given = "%x: tensor<NxKxf32>, %i: tensor<Mxi64>, %u: tensor<MxKxf32>, %s: tensor<f32>"
    text = function(given, body, "%0 : tensor<NxKxf32>")
    places = np.array([3, 0, 7, -1, 2]) if unique == "true" else np.array([3, 0, 3, 7, 3])
    inputs = [floats(4, 3), places, floats(5, 3), np.float32(0.5)]
    check(text, {"N": 4, "K": 3, "M": 5}, *map(np.asarray, inputs))
    none = [floats(4, 3), np.zeros(0, np.int64), floats(0, 3), np.float32(0.5)]
    (found,) = weft.run(opened(text), none, backend="reference")
    np.testing.assert_array_equal(found, none[0])


@pytest.mark.parametrize("start", [(0, 0), (2, 1), (-3, 9)])
@pytest.mark.parametrize(("update", "shape"), [("MxKxf32", (2, 3)), ("2xKxf32", (2, 2))])
def test_windows_replaced_in_open_tensors(
    update: str, shape: tuple[int, int], start: tuple[int, int]
) -> None:
    body = (
        "%0 = stablehlo.dynamic_update_slice %x, %u, %a, %b "
        f": (tensor<NxNxf32>, tensor<{update}>, tensor<i32>, tensor<i32>) -> tensor<NxNxf32>"
    )
    given = f"%x: tensor<NxNxf32>, %u: tensor<{update}>, %a: tensor<i32>, %b: tensor<i32>"
    text = function(given, body, "%0 : tensor<NxNxf32>")
    inputs = [floats(4, 4), floats(*shape), *(np.asarray(n, np.int32) for n in start)]
    check(text, {"N": 4, "M": shape[0], "K": shape[1]}, *inputs)


def test_a_window_of_no_elements_replaces_nothing() -> None:
    body = (
        "%0 = stablehlo.dynamic_update_slice %x, %u, %a "
        ": (tensor<Nxf32>, tensor<Mxf32>, tensor<i32>) -> tensor<Nxf32>"
    )
    given = "%x: tensor<Nxf32>, %u: tensor<Mxf32>, %a: tensor<i32>"
    x = floats(3)
    program = opened(function(given, body, "%0 : tensor<Nxf32>"))
    (found,) = weft.run(program, [x, floats(0), np.int32(1)], backend="reference")
    np.testing.assert_array_equal(found, x)


# -- reductions ----------------------------------------------------------------------------------

LARGEST = """%0:2 = "stablehlo.reduce"(%x, %n, %a, %b) ({
  ^bb0(%p: tensor<f32>, %i: tensor<i32>, %q: tensor<f32>, %j: tensor<i32>):
    %more = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %more, %p, %q : tensor<i1>, tensor<f32>
    %w = stablehlo.select %more, %i, %j : tensor<i1>, tensor<i32>
    %far = stablehlo.add %w, %step : tensor<i32>
    stablehlo.return %v, %far : tensor<f32>, tensor<i32>
  }) {dimensions = array<i64: AXES>}
  : (tensor<KIND>, tensor<WHOLE>, tensor<f32>, tensor<i32>) -> (tensor<LEFTxf32>, tensor<LEFTxi32>)
"""


@pytest.mark.parametrize(
    ("kind", "axes", "left", "shape"),
    [
        ("NxKx2x", "0", "Kx2", (3, 4, 2)),
        ("NxKx2x", "1", "Nx2", (3, 4, 2)),
        ("2xNx3x", "0, 2", "N", (2, 5, 3)),
        ("NxMx3x", "0, 1", "3", (4, 2, 3)),
        ("Nx4x", "0", "4", (0, 4)),
    ],
)
def test_several_values_reduced_at_once(
    kind: str, axes: str, left: str, shape: tuple[int, ...]
) -> None:
    body = LARGEST.replace("AXES", axes).replace("KIND", f"{kind}f32")
    body = body.replace("WHOLE", f"{kind}i32").replace("LEFT", left)
    given = (
        f"%x: tensor<{kind}f32>, %n: tensor<{kind}i32>, %a: tensor<f32>, %b: tensor<i32>, "
        "%step: tensor<i32>"
    )
    text = function(given, body, f"%0#0, %0#1 : tensor<{left}xf32>, tensor<{left}xi32>")
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape)
    scalars = [np.float32(-1), np.int32(-7), np.int32(0)]
    letters = kind.rstrip("x").split("x")
    sizes = {letter: size for letter, size in zip(letters, shape, strict=True) if letter.isalpha()}
    check(text, sizes, x.astype(np.float32), x.astype(np.int32) * 10, *map(np.asarray, scalars))


# -- movement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", ["0", "1", "0, 2", "1, 2"])
def test_open_tensors_backwards(dims: str) -> None:
    body = f"%0 = stablehlo.reverse %x, dims = [{dims}] : tensor<Nx3xKxf32>"
    text = function("%x: tensor<Nx3xKxf32>", body, "%0 : tensor<Nx3xKxf32>")
    check(text, {"N": 4, "K": 2}, floats(4, 3, 2))


def test_steps_beside_open_axes() -> None:
    kinds = "(tensor<Nx7xf32>) -> tensor<3x3xf32>"
    text = function(
        "%x: tensor<Nx7xf32>",
        f"%0 = stablehlo.slice %x [1:4, 1:7:2] : {kinds}",
        "%0 : tensor<3x3xf32>",
    )
    check(text, {"N": 5}, floats(5, 7))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_of_open_batches_and_images(groups: int) -> None:
    kernel = f"3x2x{4 // groups}x6xf32"
    body = f"""%0 = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = [2, 1], pad = [[1, 0], [0, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
      : (tensor<NxMx5x4xf32>, tensor<{kernel}>) -> tensor<NxKx5x6xf32>"""
    given = f"%x: tensor<NxMx5x4xf32>, %w: tensor<{kernel}>"
    text = function(given, body, "%0 : tensor<NxKx5x6xf32>")
    x, w = floats(2, 7, 5, 4), floats(3, 2, 4 // groups, 6)
    check(text, {"N": 2, "M": 7, "K": 3}, x, w)


def test_batch_norms_of_open_batches() -> None:
    body = """%0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {epsilon = 0.01 : f32,
        feature_index = 2 : i64} : (tensor<NxMx3xf32>, tensor<3xf32>, tensor<3xf32>)
        -> (tensor<NxMx3xf32>, tensor<3xf32>, tensor<3xf32>)
      %1:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %0#0) {epsilon = 0.01 : f32,
        feature_index = 2 : i64} : (tensor<NxMx3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>,
        tensor<NxMx3xf32>) -> (tensor<NxMx3xf32>, tensor<3xf32>, tensor<3xf32>)"""
    given = "%x: tensor<NxMx3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>"
    text = function(given, body, "%0#0, %1#0 : tensor<NxMx3xf32>, tensor<NxMx3xf32>")
    numbers = _with(text, {"N": 4, "M": 2})
    inputs = [floats(4, 2, 3), floats(3), floats(3)]
    wanted = weft.run(stablehlo.loads(numbers), inputs, backend="reference")
    for got, want in zip(weft.run(opened(text), inputs, backend="reference"), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


# -- sizes that operations make ------------------------------------------------------------------


def test_a_size_that_an_operation_makes_is_checked_when_it_runs() -> None:
    """The text says nothing of sizes, but adds what it joins to a parameter."""
    kind = "tensor<?xf32>"
    body = (
        f"%0 = stablehlo.concatenate %x, %x, dim = 0 : ({kind}, {kind}) -> {kind}\n"
        f"%1 = stablehlo.add %0, %y : {kind}"
    )
    program = stablehlo.loads(function(f"%x: {kind}, %y: {kind}", body, f"%1 : {kind}"))
    x, y = floats(2), floats(4)
    (found,) = weft.run(program, [x, y], backend="reference")
    np.testing.assert_array_equal(found, np.concatenate([x, x]) + y)
    for backend in ("reference", "cpu"):
        with pytest.raises(SpecViolation) as caught:
            weft.run(program, [x, floats(3)], backend=backend)
        assert caught.value.code == "DynamicDimensionMismatch"


def test_a_loop_that_grows_is_refused_when_it_runs() -> None:
    kind = "tensor<?xf32>"
    body = f"""%0 = stablehlo.while(%y = %x) : {kind}
      cond {{
        %s = "stablehlo.get_dimension_size"(%y) {{dimension = 0 : i64}} : ({kind}) -> tensor<i32>
        %c = stablehlo.constant dense<8> : tensor<i32>
        %p = stablehlo.compare LT, %s, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }} do {{
        %z = stablehlo.concatenate %y, %y, dim = 0 : ({kind}, {kind}) -> {kind}
        stablehlo.return %z : {kind}
      }}"""
    program = stablehlo.loads(function(f"%x: {kind}", body, f"%0 : {kind}"))
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, [floats(2)], backend="reference")
    assert caught.value.code == "DynamicDimensionMismatch"


def test_a_reshape_may_leave_one_size_to_the_others() -> None:
    body = """%n = "stablehlo.get_dimension_size"(%x) {dimension = 0 : i64}
        : (tensor<Nx6xf32>) -> tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %m = stablehlo.multiply %n, %three : tensor<i32>
      %a = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
      %two = stablehlo.constant dense<2> : tensor<1xi32>
      %shape = stablehlo.concatenate %a, %two, dim = 0
        : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %0 = stablehlo.dynamic_reshape %x, %shape : (tensor<Nx6xf32>, tensor<2xi32>)
        -> tensor<?x2xf32>"""
    text = function("%x: tensor<Nx6xf32>", body, "%0 : tensor<?x2xf32>")
    x = floats(4, 6)
    (found,) = weft.run(opened(text), [x], backend="reference")
    np.testing.assert_array_equal(found, x.reshape(12, 2))


# -- there and back ------------------------------------------------------------------------------


def assert_round_trip(program: Program, *inputs: Array) -> str:
    text = stablehlo.dumps(program)
    wanted = weft.run(program, list(inputs), backend="reference", seed=3)
    found = weft.run(stablehlo.loads(text), list(inputs), backend="reference", seed=3)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    return text


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_scan_over_an_open_axis(length: int) -> None:
    b = Builder("main")
    x, rows, more = b.param("f32", [2]), b.param("f32", ["N", 2]), b.param("si32", ["N"])

    def step(inner: Any, carry: Any, row: Any, number: Any) -> list[Any]:
        return [carry + row, carry * row, number + 1]

    found = b.scan(step, [x], [rows, more])
    program = b.build(found[0], found[1], found[2])
    assert_round_trip(program, floats(2), floats(length, 2), np.arange(length, dtype=np.int32))


def test_scans_of_random_programs() -> None:
    case = random_program(1385)
    assert_round_trip(case.program, *case.inputs)


def test_random_numbers_of_open_shapes() -> None:
    b = Builder("main")
    x, state = b.param("f32", ["N", 2]), b.param("si64", [2])
    low, seed = b.literal(0.5, "f32"), b.literal(7, "si64")
    shape: Any = {"shape": ["N", 3], "dtype": "f32"}
    program = b.build(
        b.emit("rng_uniform", **shape), b.emit("rng_normal", **shape),
        b.emit("philox_uniform", state, **shape), b.emit("philox_normal", state, **shape),
        b.emit("byteir.rng_uniform", low, b.literal(2.0, "f32"), seed, seed, dims=["N"]),
        b.exp(x),
    )  # fmt: skip
    text = assert_round_trip(program, floats(4, 2), np.array([3, 9]))
    assert text.count("get_dimension_size") == 5


def test_orders_windows_and_patches_of_open_sizes() -> None:
    b = Builder("main")
    x = b.param("f32", ["N", 5, "C"])
    largest = b.emit("top_k", x, k=2, axis=1, largest=True, indices_dtype="si32")
    around = [(0, 0), (1, 0), (0, 0)]
    window: Any = {"window_dims": [1, 2, 1], "strides": [1, 2, 1], "padding": around}
    ones: Any = {"base_dilation": [1, 1, 1], "window_dilation": [1, 1, 1]}
    patches: Any = {"window": [2], "strides": [1], "dilation": [2], "padding": [(1, 1)]}
    program = b.build(
        largest[0], largest[1], b.emit("reduce_window", x, **window, **ones, reduce="max"),
        b.emit("extract_patches", x, **patches, pad_value=0.5), b.reshape(x, [-1]),
        b.arg_max(x, axis=2), b.arg_max(x, axis=0),
    )  # fmt: skip
    assert_round_trip(program, floats(3, 5, 4))


# -- tuples --------------------------------------------------------------------------------------

INNER = "tuple<tensor<2xf32>, tensor<f32>>"
OUTER = f"tuple<{INNER}, tensor<3xf32>>"


def test_tuples_in_tuples_are_read_as_one() -> None:
    text = f"""func.func @main(%a: {OUTER}) -> {OUTER} {{
      %0 = stablehlo.get_tuple_element %a[0] : ({OUTER}) -> {INNER}
      %1 = func.call @swap(%0) : ({INNER}) -> {INNER}
      %2 = stablehlo.get_tuple_element %a[1] : ({OUTER}) -> tensor<3xf32>
      %3 = stablehlo.tuple %1, %2 : {OUTER}
      return %3 : {OUTER}
    }}
    func.func private @swap(%a: {INNER}) -> {INNER} {{
      %0 = stablehlo.get_tuple_element %a[0] : ({INNER}) -> tensor<2xf32>
      %1 = stablehlo.get_tuple_element %a[1] : ({INNER}) -> tensor<f32>
      %2 = stablehlo.negate %0 : tensor<2xf32>
      %3 = stablehlo.tuple %2, %1 : {INNER}
      return %3 : {INNER}
    }}"""
    program = stablehlo.loads(text)
    weft.ptir.verify(program)
    assert [str(kind) for kind in program.main.parameters] == ["(f32[2], f32[], f32[3])"]
    x, y, z = floats(2), np.asarray(np.float32(1.5)), floats(3)
    for form in (program, stablehlo.loads(stablehlo.dumps(program))):
        found = weft.run(form, [x, y, z], backend="reference")
        for got, want in zip(found, (-x, y, z), strict=True):
            np.testing.assert_array_equal(got, want)


def test_sizes_of_other_values_are_refused() -> None:
    body = """%0 = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>"""
    with pytest.raises(Unimplemented) as caught:
        stablehlo.loads(function("%s: tensor<1xi32>", body, "%0 : tensor<?xf32>"))
    assert str(caught.value) == (
        "Unimplemented stablehlo.dynamic_iota: its shape is computed from other values than sizes; "
        "line 2"
    )
