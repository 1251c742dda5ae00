"""Every map of an IndexBook reads the element that the Tiny interpreter reads: by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.make_programs import PROGRAMS
from tests.support.example_inputs import inputs_for
from tests.support.lowered import given
from tests.support.movements import random_chain
from tests.support.one_op import random_array
from weft.foundation.dims import static
from weft.foundation.dtypes import F32, SI32
from weft.foundation.index_expr import SELECTED, Guard, evaluate
from weft.indexbook.from_tiny import build_book
from weft.indexbook.ir import IndexInfo, InputMap
from weft.indexbook.text import dumps, loads
from weft.indexbook.verify import verify
from weft.ptir import Builder, Program
from weft.testing.random_programs import random_program
from weft.tiny.from_ptir import evaluate_opaque, lower_program
from weft.tiny.interp import evaluate_all
from weft.tiny.ir import (
    Barrier,
    DynamicShrink,
    DynamicUpdate,
    Gather,
    Graph,
    Input,
    Movement,
    Opaque,
    Pad,
    Reduce,
    Reshape,
    Value,
    operands,
)

Array = NDArray[Any]


def same(found: Array, wanted: Array) -> bool:
    """Equal elements; NaN is equal to itself."""
    number = ~((found != found) & (wanted != wanted))  # noqa: PLR0124
    return bool(np.array_equal(found[number], wanted[number]))


def gather(
    source: Array, read: InputMap, sizes: tuple[int, ...], params: dict[str, Any]
) -> tuple[Array, Array]:
    """The elements that a map reads at every index, and where its guards hold."""
    env: dict[str, Any] = dict(params)
    env.update((f"i{k}", place) for k, place in enumerate(np.indices(sizes, sparse=True)))
    inside: Array = np.ones(sizes, bool)
    for guard in read.guards:
        value = evaluate(guard.expr, env)
        inside = inside & (value >= 0) & (value < guard.size)
    index = [np.broadcast_to(evaluate(e, env), sizes) for e in read.map]
    for where, size in zip(index, source.shape, strict=True):
        assert ((where >= 0) & (where < size))[inside].all()
    result: Array = np.zeros(sizes, source.dtype)
    if index:
        result[inside] = source[tuple(where[inside] for where in index)]
    else:
        result[...] = source
    return result, inside


def check(graph: Graph, inputs: dict[str, Array]) -> None:
    book = build_book(graph)
    verify(book)
    assert loads(dumps(book)) == book
    arrays = evaluate_all(graph, inputs, evaluate_opaque)
    for number, value in enumerate(graph.values):
        info = book.get(f"v{number}")
        assert tuple(axis.size for axis in info.axes) == value.shape
        assert [prod(atoms) for atoms in info.atoms] == list(value.shape)
        check_constraints(value, info)
        if not isinstance(value, Opaque):
            check_value(value, info, arrays)


def check_constraints(value: Value, info: IndexInfo) -> None:
    """The domain of a value is all of it, and its pieces cover it."""
    sizes = tuple(static(d) for d in value.shape)
    env = {f"i{k}": place for k, place in enumerate(np.indices(sizes))}
    assert holds(info.domain.constraints, env, sizes).all()
    if info.domain.pieces:
        pieces = [holds(piece.constraints, env, sizes) for piece in info.domain.pieces]
        assert np.logical_or.reduce(pieces).all()
        assert not any((pieces[0] & piece).any() for piece in pieces[1:])


def holds(guards: Sequence[Guard], env: dict[str, Array], sizes: tuple[int, ...]) -> Array:
    result: Array = np.ones(sizes, bool)
    for guard in guards:
        value = evaluate(guard.expr, env)
        result = result & (value >= 0) & (value < guard.size)
    return result


def check_value(value: Value, info: IndexInfo, arrays: dict[Value, Array]) -> None:
    """What a movement (or an update) reads is what it is; other nodes read operands as they are."""
    params: dict[str, Any] = {}
    if isinstance(value, DynamicShrink | DynamicUpdate):
        for p in info.params:
            start = value.starts[int(p.name.rpartition("_")[2])]
            params[p.name] = int(np.clip(int(arrays[start]), p.low, p.high))
    if isinstance(value, Gather):
        params[SELECTED] = arrays[value.index]
    own = value.x if isinstance(value, Reduce) else value
    sizes = tuple(static(d) for d in own.shape)
    starts = getattr(value, "starts", ())
    read_at_all = (value.x,) if isinstance(value, Barrier) else operands(value)
    reads = list(zip(read_at_all, info.inputs, strict=True))
    for operand, read in reads[: len(reads) - len(starts)]:
        found, inside = gather(arrays[operand], read, sizes, params)
        target = arrays[operand]
        if isinstance(value, Movement) or (
            (isinstance(value, DynamicUpdate) and operand is value.update)
            or (isinstance(value, Gather) and operand is value.x)
        ):
            target = arrays[value]
        if isinstance(value, Pad):
            fill = np.asarray(value.value.value).astype(target.dtype)
            assert same(target[~inside], np.full((~inside).sum(), fill))
        else:
            assert inside.all() or isinstance(value, DynamicUpdate)
        assert same(found[inside], target[inside]), f"{value}"


@pytest.mark.parametrize("block", range(15))
def test_random_chains(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        graph = random_chain(seed, 6)
        x = graph.inputs[0]
        shape = tuple(static(d) for d in x.shape)
        array = np.arange(prod(shape), dtype=np.float32).reshape(shape)
        check(graph, {"x": array, "start": np.asarray(seed % 4 - 1, np.int32)})


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_programs(name: str) -> None:
    program = PROGRAMS[name]()
    graph = lower_program(program)
    check(graph, given(graph, inputs_for(program)))


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed: int) -> None:
    names = ["add", "mul", "reshape", "transpose", "broadcast_to", "slice", "concat", "pad", "tile"]
    names += ["dot_general", "reduce_max", "extract_patches", "dynamic_slice", "select", "iota"]
    names += ["dynamic_update_slice", "gather", "take"]
    case = random_program(seed, 15, ops=names, control_flow=False, dynamic=False)
    graph = lower_program(case.program)
    arrays = list(_leaves(case.inputs))
    check(graph, given(graph, arrays))


def _leaves(tree: Any) -> Any:
    for item in tree:
        if isinstance(item, tuple | list):
            yield from _leaves(item)
        else:
            yield np.asarray(item)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolution_windows(stride: int, dilation: int, padding: tuple[int, int]) -> None:
    b = Builder()
    x, w = b.param("f32", [2, 7, 6, 3]), b.param("f32", [3 * 2 * 3, 4])
    patches = b.extract_patches(
        x, window=[3, 2], strides=[stride, 1], dilation=[dilation, 1], padding=[padding, (1, 0)],
        pad_value=0.0,
    )  # fmt: skip
    program = b.build(b.dot_general(patches, w, contract=([3], [0])))
    check_program(program, [random_array(F32, (2, 7, 6, 3)), random_array(F32, (18, 4))])


def test_concat_pad_and_dynamic_windows() -> None:
    b = Builder()
    x, y, at = b.param("f32", [3, 4]), b.param("f32", [3, 2]), b.param("si32", [2])
    joined = b.pad(b.concat([x, y, x], axis=1), low=[1, 0], high=[0, 2], interior=[1, 1])
    written = b.dynamic_update_slice(joined, y, at, sizes=[3, 2])
    taken = b.dynamic_slice(written, at, sizes=[2, 5])
    arrays = [random_array(F32, (3, 4)), random_array(F32, (3, 2)), np.array([9, 1], np.int32)]
    check_program(b.build(written, taken), arrays)


def check_program(program: Program, arrays: list[Array]) -> None:
    graph = lower_program(program)
    check(graph, given(graph, arrays))


# -- the literal rule of the document ------------------------------------------------------------


def literal_reshape(before: tuple[int, ...], after: tuple[int, ...]) -> list[Array]:
    """`L = sum i_k * stride_k`, then `o_j = floor(L / stride'_j) % size'_j`, at every index."""
    places = np.indices(after)
    position = sum(place * prod(after[k + 1 :]) for k, place in enumerate(places))
    total: Any = position + np.zeros(after, int)
    return [(total // prod(before[k + 1 :])) % n for k, n in enumerate(before)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((6, 10), (4, 15)),
        ((12,), (3, 4)),
        ((3, 4), (12,)),
        ((2, 3, 4), (4, 6)),
        ((6, 4), (2, 12)),
        ((1, 6, 1), (3, 1, 2)),
        ((4, 15), (6, 10)),
        ((8, 9), (2, 12, 3)),
        ((5,), (1, 5, 1)),
        ((7, 1, 1), (7,)),
        ((), (1, 1)),
        ((1,), ()),
    ],
)
def test_reshape_maps_are_the_literal_rule(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    value = Reshape(Input("x", SI32, before), after)
    (read,) = build_book(Graph((Input("x", SI32, before),), (("y", value),))).get("v1").inputs
    env = {f"i{k}": place for k, place in enumerate(np.indices(after))}
    for expr, wanted in zip(read.map, literal_reshape(before, after), strict=True):
        assert np.array_equal(np.broadcast_to(evaluate(expr, env), after), wanted)
