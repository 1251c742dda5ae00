"""Programs for whole tensors, split over a mesh: every rank's part is the part of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.ranks import SimulatedProgram
from weft.ptir import Builder
from weft.ptir.builder import Value
from weft.ptir.ir import Program
from weft.ptir.ops.collective import Collective
from weft.ptir.split import SplitProgram, split_program
from weft.ptir.types import TensorType

MESHES = (
    weft.mesh(data=2, simulated=True),
    weft.mesh(data=2, model=2, simulated=True),
    weft.mesh(data=1, model=3, simulated=True),
)


def check(program: Program, mesh: weft.Mesh, splits: Sequence[Any], inputs: Any) -> SplitProgram:
    """The split program gives the parts of what the whole one gives."""
    found = split_program(program, mesh, splits)
    wanted = weft.run(program, inputs, backend="reference")

    def parts(rank: int) -> list[Any]:
        pairs = zip(inputs, splits, strict=True)
        return [np.ascontiguousarray(x[mesh.part(x.shape, s, rank)]) for x, s in pairs]

    for rank, results in enumerate(SimulatedProgram(found.program).run(mesh.count, parts)):
        for whole, own, split in zip(wanted, results, found.results, strict=True):
            assert np.array_equal(own, np.asarray(whole)[mesh.part(np.shape(whole), split, rank)])
    return found


def exchanges(program: Program) -> list[str]:
    return [i.op.name for i in program.main.body if isinstance(i.op, Collective)]


# -- random programs -----------------------------------------------------------------------------

SIZES = (1, 2, 4, 6, 12)


class Growth:
    """A random program over integers, whose sums are the same in any order."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = Builder("grown")
        self.values: list[Value] = []
        self.inputs: list[Any] = []
        for _ in range(3):
            shape = [self.pick(SIZES) for _ in range(self.random.integers(1, 4))]
            self.values.append(self.builder.param("si64", shape))
            self.inputs.append(self.random.integers(-3, 4, shape))
        for _ in range(self.random.integers(2, 9)):
            made = self.pick(STEPS)(self, self.pick(self.values[-4:]))
            if made is not None and np.prod(made.shape) <= 2000:
                self.values.append(made)
        self.program = self.builder.build(*self.values[3:], *self.values[:1])

    def pick(self, several: Sequence[Any]) -> Any:
        return several[int(self.random.integers(len(several)))]

    def splits(self, mesh: weft.Mesh) -> list[dict[int, Any]]:
        found: list[dict[int, Any]] = []
        for x in self.inputs:
            split: dict[int, Any] = {}
            for name, size in mesh.shape.items():
                axes = [d for d, n in enumerate(x.shape) if n % size == 0 and d not in split]
                if axes and self.random.random() < 0.6:
                    split[self.pick(axes)] = name
            found.append(split)
        return found

    def like(self, x: Value) -> Value:
        found: Value = self.pick([v for v in self.values if v.shape == x.shape])
        return found


def _reduced(g: Growth, x: Value) -> Value | None:
    if not x.shape:
        return None
    axes = [int(g.random.integers(len(x.shape)))]
    name = g.pick(["reduce_sum", "reduce_sum", "reduce_max"])
    return g.builder.emit(name, x, axes=axes, keepdims=bool(g.random.integers(2)))


def _reshaped(g: Growth, x: Value) -> Value:
    dims = [int(str(n)) for n in x.shape]
    if len(dims) > 1 and g.random.integers(2):
        at = int(g.random.integers(len(dims) - 1))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    else:
        at = int(g.random.integers(len(dims) + 1))
        size = dims[at] if at < len(dims) else 1
        part = g.pick([n for n in (1, 2, 3, 4) if size % n == 0])
        dims[at : at + 1] = [part, size // part]
    return g.builder.emit("reshape", x, new_shape=dims)


def _product(g: Growth, x: Value) -> Value | None:
    pairs = [
        (other, a, b)
        for other in g.values
        for a, n in enumerate(x.shape)
        for b, m in enumerate(other.shape)
        if n == m and len(x.shape) + len(other.shape) < 6
    ]
    if not pairs:
        return None
    other, a, b = g.pick(pairs)
    return g.builder.emit("dot_general", x, other, batch_lhs=[], batch_rhs=[], contract_lhs=[a],
                          contract_rhs=[b])  # fmt: skip


def _taken(g: Growth, x: Value) -> Value | None:
    if not x.shape:
        return None
    row = g.builder.emit("mul", x, x)
    top = g.builder.literal(int(str(x.shape[0])) - 1, "si64")
    places = g.builder.emit("minimum", row, g.builder.emit("broadcast_to", top,
                            result_shape=list(x.shape)))  # fmt: skip
    if len(x.shape) > 1:
        places = g.builder.emit("reduce_max", places, axes=[len(x.shape) - 1], keepdims=False)
    if g.random.integers(2):
        return g.builder.emit("take", x, places)
    rank = len(places.shape)
    updates = g.builder.emit("take", x, places)
    return g.builder.emit(
        "scatter_add", x, places, updates, update_window_dims=list(range(rank, len(updates.shape))),
        inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=None,
    )  # fmt: skip


STEPS: Sequence[Any] = (
    lambda g, x: g.builder.emit("neg", x),
    lambda g, x: g.builder.emit("add", x, g.like(x)),
    lambda g, x: g.builder.emit("mul", x, g.like(x)),
    lambda g, x: g.builder.emit("maximum", x, g.like(x)),
    lambda g, x: g.builder.emit("select", g.builder.emit("compare", x, g.like(x), op="less"), x,
                                g.like(x)),
    lambda g, x: g.builder.emit("transpose", x, perm=list(map(int, g.random.permutation(
                                len(x.shape))))),
    lambda g, x: g.builder.emit("broadcast_to", x, result_shape=[g.pick(SIZES), *(
                                g.pick(SIZES) if n == 1 else n for n in x.shape)]),
    lambda g, x: g.builder.emit("concat", x, g.like(x), axis=0) if x.shape else None,
    lambda g, x: g.builder.emit("cumulative_sum", x, axis=0) if x.shape else None,
    _reduced, _reduced, _reshaped, _reshaped, _product, _product, _taken,
)  # fmt: skip


@pytest.mark.parametrize("start", one_in(2, range(0, 150, 50)))
def test_random_programs_with_random_splits(start: int) -> None:
    done = 0
    told: list[weft.UserError] = []
    for seed in range(start, start + 50):
        grown = Growth(seed)
        for mesh in MESHES:
            splits = grown.splits(mesh)
            try:
                check(grown.program, mesh, splits, grown.inputs)
                done += 1
            except weft.UserError as error:
                told.append(error)
    assert done > len(told) > 0
    assert {error.code for error in told} == {"NoSplit"}
    assert all("weft.reshard(x, split)" in str(error) for error in told)


# -- chosen programs -----------------------------------------------------------------------------

BOTH = MESHES[1]


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    source = np.random.default_rng(0)
    return [source.integers(-3, 4, shape) for shape in shapes]


def built(make: Any, *shapes: tuple[int, ...]) -> Program:
    b = Builder("chosen")
    return b.build(make(b, *(b.param("si64", list(shape)) for shape in shapes)))


def test_a_column_and_then_a_row_of_weights_take_one_exchange() -> None:
    def layers(b: Builder, x: Value, up: Value, down: Value) -> Value:
        return b.emit("maximum", x @ up, -(x @ up)) @ down

    shapes = (4, 6), (6, 8), (8, 6)
    splits = [{0: "data"}, {1: "model"}, {0: "model"}]
    found = check(built(layers, *shapes), BOTH, splits, arrays(*shapes))
    assert exchanges(found.program) == ["all_reduce"]
    assert found.results == ({0: ("data",)},)


def test_sums_of_sums_are_exchanged_once() -> None:
    def two(b: Builder, x: Value, y: Value, w: Value) -> Value:
        return -(x @ w) + (y @ w)

    shapes = (3, 4), (3, 4), (4, 2)
    splits = [{1: "data"}, {1: "data"}, {}]
    found = check(built(two, *shapes), BOTH, splits, arrays(*shapes))
    assert exchanges(found.program) == ["all_reduce"]


def test_a_part_of_what_all_have_is_computed_alone() -> None:
    def shifted(b: Builder, x: Value, y: Value) -> Value:
        row = b.emit("broadcast_to", y, result_shape=[8, 4])
        return b.emit("add", x, b.emit("mul", row, row))

    found = check(built(shifted, (8, 4), (4,)), BOTH, [{0: "data"}, {}], arrays((8, 4), (4,)))
    sizes = {i.output.shape for i in found.program.main.body if isinstance(i.output, TensorType)}
    assert sizes == {(4, 4)}


@pytest.mark.parametrize(("before", "axes", "wanted"), [
    ({0: "data"}, ["", ""], ["all_gather"]),
    ({0: "data"}, ["", "data"], ["all_to_all"]),
    ({0: ("data", "model")}, ["model", ""], ["all_gather"]),
    ({0: "data", 1: "model"}, ["model", "data"], ["all_gather", "all_gather"]),
    ({}, ["data,model", ""], []),
    ({0: "data"}, ["data", "model"], []),
])  # fmt: skip
def test_reshard_exchanges_what_it_says(before: Any, axes: Any, wanted: list[str]) -> None:
    program = built(lambda b, x: b.emit("reshard", x, axes=axes), (8, 4))
    found = check(program, BOTH, [before], arrays((8, 4)))
    assert exchanges(found.program) == wanted
    names = {d: tuple(text.split(",")) for d, text in enumerate(axes) if text}
    assert found.results == (names,)


def test_a_sum_of_which_a_part_is_wanted_is_scattered() -> None:
    def rows(b: Builder, x: Value) -> Value:
        return b.emit("reshard", b.emit("reduce_sum", x, axes=[0], keepdims=False), axes=["data"])

    found = check(built(rows, (4, 6)), BOTH, [{0: "data"}], arrays((4, 6)))
    assert exchanges(found.program) == ["reduce_scatter"]


@pytest.mark.parametrize(("make", "why"), [
    (lambda b, x: b.emit("cumulative_sum", x, axis=0), "it works along axis 0 of x"),
    (lambda b, x: b.emit("reshape", x, new_shape=[2, 16]), None),
    (lambda b, x: b.emit("reshape", x, new_shape=[1, 32]), None),
    (lambda b, x: b.emit("reshape", x, new_shape=[32, 1]), None),
    (lambda b, x: b.emit("add", x, b.emit("transpose", x, perm=[1, 0])), "do not fit together"),
    (lambda b, x: b.emit("top_k", x, k=2)[0], "there is no rule for it"),
    (lambda b, x: b.emit("all_reduce", x, groups=[0, 1], size=2, fn="sum"), "without ranks"),
])  # fmt: skip
def test_what_is_not_clear_is_told(make: Any, why: str | None) -> None:
    shape = (4, 4) if why and "fit" in why else (4, 8)
    program = built(make, shape)
    if why is None:
        check(program, MESHES[0], [{0: "data"}], arrays(shape))
        return
    with pytest.raises(weft.UserError, match=why) as caught:
        split_program(program, MESHES[0], [{0: "data"}])
    assert "say how with weft.reshard(x, split)" in str(caught.value)
    assert "test_split.py:" in str(caught.value)


def test_splits_that_do_not_divide_are_told() -> None:
    program = built(lambda b, x: -x, (3, 4))
    with pytest.raises(weft.UserError, match="not a multiple of the 2 ranks along data"):
        split_program(program, MESHES[0], [{0: "data"}])
