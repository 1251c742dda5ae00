"""Poly-View computes what Tiny computes, and its accesses are as simple as they can be."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.make_programs import PROGRAMS, attention
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import DIVIDED_AFTER, Case, by_hand
from tests.support.lowered import given
from tests.support.movements import random_chain
from tests.support.one_op import random_array
from tests.support.scop_executor import run_scop
from weft.driver.legalise import without_composites
from weft.foundation.dims import static
from weft.foundation.dtypes import BF16, F32, SI32
from weft.foundation.index_expr import FloorDiv
from weft.foundation.scalar import Fn
from weft.indexbook.from_tiny import build_book
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.ir import BlockKind, PolyBlock, Scop
from weft.poly_view.text import dumps, loads, map_text
from weft.poly_view.verify import verify
from weft.ptir import Builder, Program
from weft.testing.generators import GENERATORS
from weft.testing.random_programs import random_program
from weft.tiny.from_ptir import evaluate_opaque, lower_program
from weft.tiny.interp import run
from weft.tiny.ir import (
    Barrier,
    Binary,
    Const,
    Expand,
    Graph,
    Input,
    Pad,
    Reduce,
    ReduceFn,
    Reshape,
    Unary,
    Value,
    value_ids,
)

Array = NDArray[Any]


def view_of(graph: Graph) -> Scop:
    """The view of a graph, verified, and read back from its own text."""
    scop = build_scop(graph, build_book(graph))
    verify(scop)
    values = {name: value for value, name in value_ids(graph.values).items()}
    assert loads(dumps(scop), values) == scop
    return scop


def same(graph: Graph, inputs: dict[str, Array], exact: bool = True) -> Scop:
    """The view of a graph, after its results were compared with the interpreter's."""
    scop = view_of(graph)
    wanted = run(graph, inputs, evaluate_opaque)
    found = run_scop(scop, {**graph.constants, **inputs}, evaluate_opaque)
    for (name, array), expected in zip(found.items(), wanted, strict=True):
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        if exact:
            assert array.tobytes() == np.ascontiguousarray(expected).tobytes(), name
        else:
            wide = np.complex128 if array.dtype.kind == "c" else np.float64
            pair = array.astype(wide), expected.astype(wide)
            assert np.allclose(*pair, rtol=1e-4, atol=1e-4, equal_nan=True), name
    return scop


def same_program(program: Program, arrays: list[Array] | None = None, exact: bool = True) -> Scop:
    graph = lower_program(program)
    data = inputs_for(program) if arrays is None else arrays
    return same(graph, given(graph, data), exact)


def only(scop: Scop, kind: BlockKind) -> PolyBlock:
    (found,) = (block for block in scop.blocks if block.kind is kind)
    return found


def maps(block: PolyBlock) -> list[str]:
    return [map_text(access) for access in block.accesses]


# -- the three programs --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_programs(name: str) -> None:
    scop = same_program(PROGRAMS[name](), exact=False)
    assert all(block.kind is not BlockKind.OPAQUE for block in scop.blocks)
    assert all(block.kind is not BlockKind.MOVEMENT for block in scop.blocks)


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_text(name: str, golden: Any) -> None:
    golden(f"poly_view/{name}.json", dumps(view_of(lower_program(PROGRAMS[name]()))))


def test_cache_updates_share_one_param_and_write_a_window() -> None:
    scop = view_of(lower_program(attention()))
    updates = [block for block in scop.blocks if block.kind is BlockKind.UPDATE]
    (start,) = scop.params
    assert (start.access.tensor, start.low, start.high) == ("in5", 0, 16)
    for block, base in zip(updates, ("in3", "in4"), strict=True):
        assert block.base == base
        assert [str(e) for e in block.write or ()] == ["i1", "i2 + $p0", "i3"]
        assert block.shape == (2, 32, 8)


def test_narrow_operands_of_a_product_are_read_as_they_are() -> None:
    b = Builder()
    x, w = b.param("bf16", [4, 6]), b.param("bf16", [6, 5])
    y = b.dot_general(x, w, contract=([1], [0]), accum_dtype="f32", out_dtype="f32")
    scop = same_program(b.build(y), [random_array(BF16, (4, 6)), random_array(BF16, (6, 5))])
    product = only(scop, BlockKind.CONTRACTION)
    assert [a.widen for a in product.accesses] == [F32, F32]
    assert [a.tensor for a in product.accesses] == ["in0", "in1"]
    assert product.dtype is F32


# -- movements -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(12))
def test_random_chains(block: int) -> None:
    for seed in range(1000 + block * 10, 1010 + block * 10):
        graph = random_chain(seed, 7)
        shape = tuple(static(d) for d in graph.inputs[0].shape)
        array = np.arange(prod(shape), dtype=np.float32).reshape(shape)
        same(graph, {"x": array, "start": np.asarray(seed % 5 - 1, np.int32)})


@pytest.mark.parametrize("seed", one_in(4, range(40)))
def test_random_programs(seed: int) -> None:
    ops = [op for op in GENERATORS if not op.random]
    case = random_program(seed + 300, 20, ops=ops, control_flow=False, dynamic=False)
    graph = lower_program(case.program)
    arrays = list(_leaves(case.inputs))
    same(graph, given(graph, arrays), exact=False)


def _leaves(tree: Any) -> Any:
    for item in tree:
        if isinstance(item, tuple | list):
            yield from _leaves(item)
        else:
            yield np.asarray(item)


def test_aligned_reshapes_leave_no_division() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        b = Builder()
        x = b.param("f32", [4, 6, 10])
        shapes = [[24, 10], [2, 2, 6, 10], [4, 60], [4, 3, 2, 2, 5], [8, 3, 10], [4, 6, 10]]
        y = x
        for _ in range(4):
            y = b.reshape(y, rng.choice(shapes))
            y = b.transpose(y, rng.sample(range(y.rank), y.rank)) if rng.random() < 0.3 else y
            if y.rank != 3:
                y = b.tanh(y)
        graph = lower_program(b.build(y))
        book = build_book(graph)
        if all(read.aligned for info in book.infos.values() for read in info.inputs):
            for block in build_scop(graph, book).blocks:
                assert not any(
                    isinstance(term, FloorDiv) for e in block.expressions for term, _ in e.terms
                )


def test_an_access_reads_through_everything_between() -> None:
    x = Input("x", F32, (4, 6))
    moved = Reshape(Expand(Reshape(x, (4, 1, 6)), (4, 5, 6)), (20, 6))
    scop = same(Graph((x,), (("y", Unary(Fn.NEG, moved)),)), {"x": random_array(F32, (4, 6))})
    block = only(scop, BlockKind.EWISE)
    assert [axis.name for axis in block.axes] == ["i0_0", "i0_1", "i1"]
    assert maps(block) == ["[i0_0, i1]"]


def test_padding_does_not_hide_that_a_reshape_is_aligned() -> None:
    x = Input("x", F32, (12,))
    padded = Pad(Reshape(x, (3, 4)), (0, 1), (0, 1), Const(0.0, F32))
    scop = same(Graph((x,), (("y", Unary(Fn.NEG, padded)),)), {"x": random_array(F32, (12,))})
    assert maps(only(scop, BlockKind.EWISE)) == ["[i0, i1 - 1] : 0 <= i1 - 1 < 4 else 0.0"]


def test_two_pads_with_one_fill_are_one_access() -> None:
    x = Input("x", F32, (4,))
    zero = Const(0.0, F32)
    padded = Pad(Pad(x, (1,), (0,), zero), (0,), (2,), zero)
    scop = same(Graph((x,), (("y", Unary(Fn.NEG, padded)),)), {"x": random_array(F32, (4,))})
    assert maps(only(scop, BlockKind.EWISE)) == ["[i0 - 1] : 0 <= i0 - 1 < 4 else 0.0"]


@pytest.mark.parametrize("inner", [1.0, -0.0])
def test_two_pads_with_different_fills_store_the_inner_one(inner: float) -> None:
    x = Input("x", F32, (4,))
    padded = Pad(Pad(x, (1,), (0,), Const(inner, F32)), (0,), (2,), Const(0.0, F32))
    scop = same(Graph((x,), (("y", Unary(Fn.ABS, padded)),)), {"x": random_array(F32, (4,))})
    stored = only(scop, BlockKind.MOVEMENT)
    assert maps(stored) == [f"[i0 - 1] : 0 <= i0 - 1 < 4 else {inner}"]
    assert maps(only(scop, BlockKind.EWISE)) == ["[i0] : 0 <= i0 < 5 else 0.0"]


def test_a_second_unaligned_reshape_reads_a_stored_tensor() -> None:
    x = Input("x", F32, (6, 10))
    turned = Reshape(Reshape(x, (4, 15)), (10, 6))
    chain = Unary(Fn.NEG, Reshape(Reshape(turned, (5, 12)), (15, 4)))
    scop = same(Graph((x,), (("y", chain),)), {"x": random_array(F32, (6, 10))})
    assert any(block.kind is BlockKind.MOVEMENT for block in scop.blocks)


def test_an_op_that_stays_whole_reads_stored_tensors() -> None:
    b = Builder()
    x = b.param("f32", [3, 4])
    y = b.sort(b.transpose(x, [1, 0]), axis=1, descending=False)
    scop = same_program(b.build(b.tanh(y)), [random_array(F32, (3, 4))])
    whole, stored = only(scop, BlockKind.OPAQUE), only(scop, BlockKind.MOVEMENT)
    assert whole.accesses[0].tensor == stored.name
    assert maps(stored) == ["[i1, i0]"]


def test_interior_padding_is_a_guard_with_a_division() -> None:
    b = Builder()
    x = b.param("f32", [3])
    y = b.neg(b.pad(x, low=[0], high=[0], interior=[1], pad_value=0.5))
    scop = same_program(b.build(y), [random_array(F32, (3,))])
    assert maps(only(scop, BlockKind.EWISE)) == [
        "[floor((i0)/2)] : 0 <= i0 - 2*floor((i0)/2) < 1 else 0.5"
    ]


def test_a_computed_start_is_a_tensor_of_its_own() -> None:
    b = Builder()
    x, at = b.param("f32", [5, 4]), b.param("si32", [2])
    y = b.neg(b.dynamic_slice(x, at + at, sizes=[2, 4]))
    program = b.build(y)
    scop = same_program(program, [random_array(F32, (5, 4)), np.array([1, 3], np.int32)])
    (start,) = scop.params
    assert scop.by_name[start.access.tensor].fn == "add"
    assert (map_text(start.access), start.low, start.high) == ("[0]", 0, 3)
    assert any(e.source == start.access.tensor and e.access == -1 for e in scop.edges)


def test_empty_tensors() -> None:
    b = Builder()
    x, w = b.param("f32", [0, 4]), b.param("f32", [4, 3])
    y = b.matmul(x, w)
    z = b.reduce_max(b.reshape(y, [3, 0]), [0])
    same_program(b.build(y, z, b.concat([y, b.full([2, 3], 1.0, "f32")], axis=0)))


def test_names_of_ops_are_names_of_blocks() -> None:
    x = Input("v1", F32, (3,))
    total = Binary(Fn.ADD, x, x)
    graph = Graph((x,), (("y", Unary(Fn.EXP, total)),), op_names={total: "twice"})
    assert [block.name for block in view_of(graph).blocks] == ["twice", "v2"]
    unnamed = Graph((x,), (("y", total),))
    assert [block.name for block in view_of(unnamed).blocks] == ["v1_"]


def test_a_reduction_of_single_elements_moves_them() -> None:
    b = Builder()
    x, w = b.param("f32", [3, 1]), b.param("f32", [1, 4])
    scop = same_program(b.build(b.matmul(x, w)))
    assert [block.fn for block in scop.blocks] == ["mul"]
    one = Input("x", F32, (3, 1))
    graph = Graph((one,), (("y", Reduce(ReduceFn.SUM, one, (1,), F32)),))
    assert only(same(graph, {"x": random_array(F32, (3, 1))}), BlockKind.MOVEMENT).shape == (3,)


def test_a_deep_graph() -> None:
    x = Input("x", F32, (2, 3))
    value: Value = x
    for _ in range(1500):
        value = Binary(Fn.ADD, Reshape(Reshape(value, (6,)), (2, 3)), x)
    scop = view_of(Graph((x,), (("y", value),)))
    assert len(scop.blocks) == 1500


# -- contractions --------------------------------------------------------------------------------


def test_matmul_roles() -> None:
    b = Builder()
    x, w = b.param("f32", [3, 4, 5]), b.param("f32", [3, 6, 5])
    y = b.dot_general(x, w, batch=([0], [0]), contract=([2], [2]))
    scop = same_program(b.build(y), exact=False)
    block = only(scop, BlockKind.CONTRACTION)
    assert block.attrs is not None
    assert block.attrs.pattern == "matmul"
    assert (block.attrs.batch_idx, block.attrs.lhs_idx) == (("i0",), ("i1",))
    assert (block.attrs.rhs_idx, block.attrs.reduce_idx) == (("i2",), ("i3",))
    assert block.attrs.out_idx == ("i0", "i1", "i2")
    assert maps(block) == ["[i0, i1, i3]", "[i0, i2, i3]"]


def test_heads_split_from_a_projection_are_columns() -> None:
    b = Builder()
    x, w = b.param("f32", [7, 6]), b.param("f32", [6, 8])
    heads = b.transpose(b.reshape(b.matmul(x, w), [7, 2, 4]), [1, 0, 2])
    scop = same_program(b.build(b.tanh(heads)), exact=False)
    block = only(scop, BlockKind.CONTRACTION)
    assert block.attrs is not None
    assert block.attrs.rhs_idx == ("i1_0", "i1_1")
    assert maps(block) == ["[i0, i2]", "[i2, i1_0, i1_1]"]


@pytest.mark.parametrize("shapes", [((1, 5), (5, 4)), ((3, 5), (5, 1)), ((3, 5), (5,))])
def test_a_product_with_one_free_side(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    b = Builder()
    x, w = (b.param("f32", shape) for shape in shapes)
    y = b.dot_general(x, w, contract=([1], [0]))
    attrs = only(same_program(b.build(y), exact=False), BlockKind.CONTRACTION).attrs
    assert attrs is not None
    assert bool(attrs.lhs_idx) != bool(attrs.rhs_idx)


def test_what_is_no_contraction() -> None:
    """Sums of squares, of one tensor scaled, and of a product with no axis of its own."""
    b = Builder()
    x, row = b.param("f32", [3, 5]), b.param("f32", [3])
    scaled = x * b.broadcast_to(b.reshape(row, [3, 1]), [3, 5])
    sums = [b.reduce_sum(v, [1]) for v in (x * x, scaled, x * 2.0)]
    scop = same_program(b.build(*sums), exact=False)
    kinds = [block.kind for block in scop.blocks]
    assert BlockKind.CONTRACTION not in kinds
    assert kinds.count(BlockKind.REDUCE) == 3


def conv(
    b: Builder, x: Any, w: Any, window: int, *, stride: int = 1, dilation: int = 1, pad: int = 0
) -> Any:
    patches = b.extract_patches(
        x, window=[window, window], strides=[stride, stride], dilation=[dilation, dilation],
        padding=[(pad, pad), (pad, pad)], pad_value=0.0,
    )  # fmt: skip
    return b.dot_general(patches, w, contract=([3], [0]))


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(stride: int, dilation: int, pad: int) -> None:
    b = Builder()
    x, w = b.param("f32", [2, 8, 7, 3]), b.param("f32", [27, 4])
    y = conv(b, x, w, 3, stride=stride, dilation=dilation, pad=pad)
    scop = same_program(b.build(y), exact=False)
    block = only(scop, BlockKind.CONTRACTION)
    assert block.attrs is not None
    assert block.attrs.pattern == "conv"
    assert len(block.attrs.lhs_idx) == 3
    assert len(block.attrs.rhs_idx) == 1
    assert len(block.attrs.reduce_idx) == 3
    offset = f"{'' if stride == 1 else f'{stride}*'}i1 + "
    offset += f"{'' if dilation == 1 else f'{dilation}*'}i4_0" + (f" - {pad}" if pad else "")
    assert block.attrs.affine_offsets["i1"] == offset
    assert [b.name for b in scop.blocks] == [block.name]


def test_a_grouped_convolution_has_its_groups_as_batch() -> None:
    b = Builder()
    groups, inner, outer = 2, 3, 4
    x, w = b.param("f32", [1, 6, 6, groups * inner]), b.param("f32", [groups, 9 * inner, outer])
    patches = b.extract_patches(
        x, window=[3, 3], strides=[1, 1], dilation=[1, 1], padding=[(1, 1), (1, 1)], pad_value=0.0
    )
    split = b.reshape(patches, [1, 6, 6, 9, groups, inner])
    rows = b.reshape(b.transpose(split, [4, 0, 1, 2, 3, 5]), [groups, 1, 6, 6, 9 * inner])
    y = b.dot_general(rows, w, batch=([0], [0]), contract=([4], [1]))
    scop = same_program(b.build(y), exact=False)
    block = only(scop, BlockKind.CONTRACTION)
    assert block.attrs is not None
    assert block.attrs.pattern == "conv"
    assert block.attrs.batch_idx == ("i0",)
    assert len(scop.blocks) == 1


# -- chains --------------------------------------------------------------------------------------


def test_softmax_and_attention_are_found() -> None:
    scop = view_of(lower_program(PROGRAMS["softmax_layernorm"]()))
    assert [chain.kind for chain in scop.chains] == ["row_softmax"]
    names = [scop.by_name[name].fn for name in scop.chains[0].blocks]
    assert names == ["max", "sub", "exp", "sum", "div"]
    scop = view_of(lower_program(attention()))
    assert [chain.kind for chain in scop.chains] == ["row_softmax", "attention"]
    fns = [scop.by_name[name].fn for name in scop.chains[1].blocks]
    assert fns == ["sum", "mul", "add", "max", "sub", "exp", "sum", "div", "sum"]


def test_attention_in_bf16_has_its_casts_in_the_chain() -> None:
    scop = view_of(lower_program(attention(dtype="bf16")))
    fns = [scop.by_name[name].fn for name in scop.chains[1].blocks]
    assert fns == ["sum", "mul", "add", "max", "sub", "exp", "sum", "div", "cast", "sum"]


def test_a_mask_of_the_full_shape_does_not_hide_the_scores() -> None:
    b = Builder()
    q, k, v = (b.param("f32", [1, 1, 4, 8]) for _ in range(3))
    scop = view_of(lower_program(b.build(b.attention(q, k, v, causal=True))))
    assert [chain.kind for chain in scop.chains] == ["row_softmax", "attention"]


def test_the_gradient_of_an_attention_is_a_stream() -> None:
    scop = view_of(lower_program(without_composites(Case(heads=1).gradients())))
    (stream,) = (chain for chain in scop.chains if chain.kind == "stream")
    blocks = [scop.by_name[name] for name in stream.blocks]
    assert [b.kind for b in blocks].count(BlockKind.CONTRACTION) == 5
    assert [b.fn for b in blocks if b.kind is not BlockKind.CONTRACTION].count("exp") == 1
    assert len({b.name for b in blocks}) == len(blocks)


def test_a_softmax_is_no_stream() -> None:
    scop = view_of(lower_program(attention(dtype="bf16")))
    assert "stream" not in {chain.kind for chain in scop.chains}


def test_weights_that_are_also_a_result_are_no_attention() -> None:
    b = Builder()
    scores, values = b.param("f32", [4, 6]), b.param("f32", [6, 3])
    keys = b.param("f32", [6, 4])
    product = b.matmul(keys, scores)
    soft = b.softmax(product)
    scop = view_of(lower_program(b.build(soft, b.matmul(soft, values))))
    assert [chain.kind for chain in scop.chains] == ["row_softmax"]


@pytest.mark.parametrize("broken", ["another row", "another shift", "no shift"])
def test_what_is_no_softmax(broken: str) -> None:
    b = Builder()
    x = b.param("f32", [4, 6])
    top = b.broadcast_to(b.reduce_max(x, [1], keepdims=True), [4, 6])
    if broken == "no shift":
        e = b.exp(x)
    elif broken == "another shift":
        e = b.exp(x - b.broadcast_to(b.reduce_min(x, [1], keepdims=True), [4, 6]))
    else:
        e = b.exp(x - top)
    axis = 0 if broken == "another row" else 1
    total = b.broadcast_to(b.reduce_sum(e, [axis], keepdims=True), [4, 6])
    assert view_of(lower_program(b.build(e / total))).chains == ()


@pytest.mark.parametrize("name", DIVIDED_AFTER)
def test_an_attention_may_be_divided_after(name: str) -> None:
    scop = view_of(lower_program(by_hand("bf16", DIVIDED_AFTER[name])))
    (chain,) = scop.chains
    assert chain.kind == "attention"
    fns = [scop.by_name[block].fn for block in chain.blocks]
    assert [fn for fn in fns if fn in ("max", "sub", "exp", "sum")] == [
        *("sum", "max", "sub", "exp"),
        *("sum", "sum"),
    ]
    assert fns[-1] in ("div", "mul")


def test_positions_beside_the_view() -> None:
    """Inputs keep the shapes of the program beside those of their atoms."""
    x = Input("x", SI32, (1, 6))
    scop = view_of(Graph((x,), (("y", Reshape(x, (2, 3))),)))
    assert scop.inputs["x"] == (SI32, (2, 3))
    assert scop.shapes == {"x": (1, 6), "y": (2, 3)}


def test_who_reads_through_a_barrier_waits_and_copies_nothing() -> None:
    x, w = Input("x", F32, (4, 6)), Input("w", F32, (6,))
    first = Unary(Fn.TANH, x)
    total = Reduce(ReduceFn.SUM, first, (0,), F32)
    late = Binary(Fn.MUL, Unary(Fn.TANH, Barrier(Barrier(x, total), w)), first)
    scop = view_of(Graph((x, w), (("total", total), ("late", late))))
    again = [b for b in scop.blocks if b.fn == "tanh"]
    assert [b.accesses[0].tensor for b in again] == ["x", "x"]
    assert sorted(b.after for b in again) == [(), (scop.outputs[0][1].tensor,)]
    assert not any(b.kind is BlockKind.MOVEMENT for b in scop.blocks)


def test_waiting_for_what_nobody_needs_is_waiting_for_what_it_is_made_of() -> None:
    x = Input("x", F32, (4, 6))
    first = Unary(Fn.TANH, x)
    unused = Unary(Fn.NEG, Reshape(first, (24,)))
    late = Unary(Fn.EXP, Barrier(x, unused))
    scop = view_of(Graph((x,), (("first", first), ("late", late))))
    (exp,) = (b for b in scop.blocks if b.fn == "exp")
    assert exp.after == (scop.outputs[0][1].tensor,)
    assert not any(b.fn == "neg" for b in scop.blocks)
