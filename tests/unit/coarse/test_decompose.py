"""Composite ops: the decomposition is the meaning, bit for bit, with one result or several, and
programs without them are what the compiler sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.one_op import Array
from weft.coarse.convolution import Conv, Layout
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented
from weft.ptir import Builder, Program, dumps, loads, verify
from weft.ptir.composite import Composite
from weft.ptir.decompose import decompose, portable
from weft.ptir.gradient import vjp
from weft.ptir.op import all_ops
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.types import TupleType
from weft.testing import random_program

COARSE = [cls for cls in all_ops() if issubclass(cls, Composite)]


def mnemonics(program: Program) -> list[str]:
    return [i.op.mnemonic for body in program.bodies for i in body.body]


def same(before: Program, after: Program, inputs: list[Array], seed: int = 5) -> None:
    verify(after)
    assert not [name for name in mnemonics(after) if "." in name]
    pairs = zip(
        weft.run(before, inputs, seed=seed), weft.run(after, inputs, seed=seed), strict=True
    )
    for a, b in pairs:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a.astype(np.complex128), b.astype(np.complex128))


@pytest.mark.parametrize("block", one_in(3, range(8)))
def test_random_programs_of_coarse_ops_mean_the_same_decomposed(block: int) -> None:
    plain = ["add", "broadcast_to", "reshape", "make_tuple", "constant", "clamp", "select", "mul"]
    for seed in range(block * 8, block * 8 + 8):
        case = random_program(seed, 10, ops=[*COARSE, *plain, "isfinite"], dynamic=seed % 2 == 0)
        program = case.program
        after = decompose(program, _others(program))
        if any("." in name for name in mnemonics(after)):
            # Some formulas need sizes in numbers.
            shapes = [np.shape(array) for array in case.inputs]
            program = specialise(program, bind_shapes(program.main.parameters, shapes))
            after = decompose(program, _others(program))
        same(program, after, case.inputs)


def _others(program: Program) -> set[type]:
    """What is not a coarse op stays."""
    used = {type(i.op) for body in program.bodies for i in body.body}
    return {cls for cls in used if not issubclass(cls, Composite)}


# -- several results -----------------------------------------------------------------------------


def norm(b: Any, x: Any, w: Any) -> Any:
    return b.emit("byteir.layer_norm", x, w, w, epsilon=0.1, axis=[1], results=3)


X, W = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4), np.arange(4, dtype=np.float32)


def test_elements_are_read_where_they_are_made() -> None:
    b = Builder()
    found = norm(b, b.param("f32", [3, 4]), b.param("f32", [4]))
    program = b.build(found[0] + found[0], found[2])
    after = decompose(program)
    assert "make_tuple" not in mnemonics(after)
    same(program, after, [X, W])


def test_a_tuple_that_is_used_as_a_whole_is_put_together() -> None:
    b = Builder()
    x, w, choose = b.param("f32", [3, 4]), b.param("f32", [4]), b.param("i1")
    whole = norm(b, x, w)
    both = b.cond(
        choose, lambda r, t: r.broadcast_to(t[1], [3, 1]), lambda r, t: r.neg(t[2]), whole
    )
    program = b.build(whole, both, whole[0])
    after = decompose(program)
    assert mnemonics(after).count("make_tuple") == 1
    for flag in (True, False):
        same(program, after, [X, W, np.array(flag)])


def test_several_results_inside_a_region() -> None:
    b = Builder()
    x, w = b.param("f32", [2, 3, 4]), b.param("f32", [4])

    def step(r: Any, carry: Any, row: Any) -> Any:
        found = norm(r, row, carry)
        return [carry + 1.0, found[0], found[1]]

    program = b.build(b.scan(step, [w], [x]))
    same(program, decompose(program), [np.stack([X, X * 2]), W])


def test_dropout_draws_anew_in_every_step_of_a_loop() -> None:
    b = Builder()
    q = b.param("f32", [3, 1, 4, 2, 4])
    attrs: dict[str, Any] = {
        "dropout_p": 0.5,
        "softmax_scale": 0.5,
        "causal": False,
        "return_softmax": True,
    }

    def step(r: Any, x: Any) -> Any:
        found = r.emit("byteir.flash_attn_fwd", x, x, x, **attrs)
        return [found[2], found[3]]

    program = b.build(b.scan(step, [], [q]))
    one = np.ones((3, 1, 4, 2, 4), np.float32)
    same(program, decompose(program), [one])
    weights, states = weft.run(program, [one], seed=5)
    assert states.tolist() == [[5, step << 32] for step in range(3)]
    assert len({weights[step].tobytes() for step in range(3)}) == 3


def test_random_streams_stay_with_their_ops() -> None:
    """A composite op that draws counts once, as it is and decomposed."""
    b = Builder()
    q = b.param("f32", [1, 4, 2, 4])
    attrs: dict[str, Any] = {
        "dropout_p": 0.5,
        "softmax_scale": 0.5,
        "causal": False,
        "return_softmax": False,
    }
    first = b.emit("rng_uniform", shape=[3], dtype="f32")
    flash = b.emit("byteir.flash_attn_fwd", q, q, q, **attrs)
    last = b.emit("rng_uniform", shape=[3], dtype="f32")
    program = b.build(first, flash[3], last)
    same(program, decompose(program), [np.ones((1, 4, 2, 4), np.float32)])
    state = weft.run(program, [np.ones((1, 4, 2, 4), np.float32)], seed=9)[1]
    assert state.tolist() == [9, 1]


# -- portable programs ---------------------------------------------------------------------------


def test_portable_programs_have_no_coarse_ops() -> None:
    b = Builder()
    x = b.param("f32", [2, 8, 8, 4])
    y = b.emit("weft.conv", x, b.param("f32", [3, 3, 4, 4]), layout="NHWC", pad=[1, 1, 1, 1])
    program = b.build(b.emit("byteir.softmax", b.emit("byteir.gelu", y), axis=3))
    plain = portable(program)
    assert all(i.op.tag is not None and i.op.tag <= 36 for i in plain.main.body)
    assert loads(dumps(program, "json", portable=True)) == plain
    rng = np.random.default_rng(0)
    kinds: Any = program.main.parameters
    same(program, plain, [rng.standard_normal(k.shape).astype(np.float32) for k in kinds])


def test_what_has_no_portable_form_is_named() -> None:
    b = Builder()
    program = b.build(b.emit("byteir.rng_uniform", *map(b.literal, (0.0, 1.0, 1, 2)), dims=[4]))
    with pytest.raises(Unimplemented, match="philox_uniform"):
        portable(program)


def test_dynamic_dims_are_decomposed_where_their_names_suffice() -> None:
    b = Builder()
    x, w = b.param("f32", ["?A", "?B"]), b.param("f32", ["?B"])
    program = b.build(b.emit("byteir.layer_norm", x, w, w, epsilon=0.1, axis=[1]))
    same(program, decompose(program), [X, W])
    b = Builder()
    x = b.param("f32", ["?N", "?W", 2])
    conv = b.emit("weft.conv", x, b.param("f32", [3, 2, 4]), layout="NWC", stride=[2])
    kept = decompose(b.build(conv))
    assert mnemonics(kept) == ["weft.conv"]


# -- the meaning ---------------------------------------------------------------------------------


def test_a_rejection_is_in_the_words_of_the_op() -> None:
    b = Builder()
    x, n = b.param("f32", [2, 3]), b.param("si64", [2])
    program = b.build(b.emit("byteir.repeat", x, n, length=3))
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, [np.zeros((2, 3), np.float32), np.array([1, 1])])
    assert caught.value.code == "InvalidRepeats"
    assert caught.value.why == "repeats adds up to 2 rows, but 3 are declared"
    assert "byteir.repeat" in caught.value.where
    with pytest.raises(SpecViolation) as caught:
        weft.run(decompose(program), [np.zeros((2, 3), np.float32), np.array([1, 1])])
    assert caught.value.code == "GatherIndexOutOfBounds"


def test_intermediate_tensors_are_held_to_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution whose patches would be far larger than its operands."""
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", str(1 << 20))
    b = Builder()
    x = b.param("f32", [1, 64, 64, 8])
    window = b.param("f32", [15, 15, 8, 1])
    program = b.build(b.emit("weft.conv", x, window, layout="NHWC", pad=[7, 7, 7, 7]))
    inputs = [np.zeros((1, 64, 64, 8), np.float32), np.zeros((15, 15, 8, 1), np.float32)]
    with pytest.raises(ResourceExceeded):
        weft.run(program, inputs, backend="reference")


def test_tables_are_held_to_the_limits_before_they_are_made() -> None:
    b = Builder()
    x = b.param("i1", [3])
    attrs: dict[str, Any] = {"target_mode": "size", "mode": "nearest", "shape": [1 << 50]}
    attrs["coordinate_transformation_mode"] = "half_pixel"
    program = b.build(b.emit("byteir.resize", x, b.literal([1 << 50]), **attrs))
    with pytest.raises(ResourceExceeded):
        portable(program)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("scale", "length"), [(0.7, 6), (0.7, 7), (2.0, 20), (1.0, 10)])
def test_a_scale_is_a_size_be_the_product_exact_or_rounded(
    mode: str, scale: float, length: int
) -> None:
    x = np.arange(10, dtype=np.float32) ** 2
    found = []
    for target in (np.array([scale], np.float32), np.array([length])):
        b = Builder()
        given = b.param("f32", [10]), b.param("f32" if target.dtype == "f" else "si64", [1])
        attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
        attrs["target_mode"] = "scale" if target.dtype == "f" else "size"
        program = b.build(b.emit("byteir.resize", *given, shape=[length], **attrs))
        found += [weft.run(program, [x, target], backend=name)[0] for name in ("reference", "cpu")]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


def test_an_op_on_its_own_has_the_type_that_it_declares() -> None:
    for cls in COARSE:
        assert cls.operands
        assert cls.call_target is not None
    op = Conv(Layout.NHWC)
    assert (op.strides, op.dilations, op.padding) == ((1, 1), (1, 1), ((0, 0), (0, 0)))
    assert str(Layout.NCDHW) == "NCDHW"


# -- the compiler --------------------------------------------------------------------------------


def stages(name: str, *shapes: tuple[int, ...], **attrs: Any) -> dict[str, str]:
    b = Builder()
    found = b.emit(name, *(b.param("f32", shape) for shape in shapes), **attrs)
    first = found[0] if isinstance(found.type, TupleType) else found
    return weft.compile(b.build(first), "cpu").stages


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_convolution_is_one_kernel_without_patches(groups: int, layout: str) -> None:
    image, window = (2, 8, 8, 4), (3, 3, 4 // groups, 6)
    if layout == "NCHW":
        image, window = (2, 4, 8, 8), (6, 4 // groups, 3, 3)
    found = stages("weft.conv", image, window, layout=layout, pad=[1, 1, 1, 1], groups=groups)
    assert found["poly_view"].count('"pattern": "conv"') == 1
    assert found["region"].count('"pattern": "conv"') == 1
    assert "opaque" not in found["region"]


@pytest.mark.parametrize("heads", [4, 2])
def test_attention_is_found_as_a_chain(heads: int) -> None:
    keys = (2, heads, 16, 8)
    found = stages("weft.attention", (2, 4, 16, 8), keys, keys, causal=True)
    assert '"attention"' in found["poly_view"]
    assert "weft.attention" in found["frontend"]
    assert "opaque" not in found["region"]


def test_heads_that_share_keys_are_summed_by_the_products_of_their_gradient() -> None:
    b = Builder()
    q, k, v = (b.param("f32", [1, heads, 5, 4]) for heads in (4, 2, 2))
    program = vjp(b.build(b.emit("weft.attention", q, k, v)[0]), (0, 1, 2))
    sums = [i for i in program.main.body if i.op.mnemonic == "reduce_sum"]
    assert len(sums) == 1  # the inner products of results and their cotangents


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_rows_are_one_kernel(dtype: str) -> None:
    b = Builder()
    x, w = b.param(dtype, [8, 16]), b.param(dtype, [16])
    norm = b.emit("byteir.layer_norm", x, w, w, epsilon=1e-5, axis=[1])
    executable = weft.compile(b.build(b.emit("byteir.softmax", norm, axis=1)), "cpu")
    assert executable.stages["region"].count('"region"') == 1
    assert as_dtype(dtype).is_float
