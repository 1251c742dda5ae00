"""Collectives on simulated meshes: their meaning, their gradients on several ranks, and what the
verifier and the rendezvous refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import each
from weft.foundation.dtypes import ANY, as_dtype, in_order
from weft.foundation.errors import SpecViolation
from weft.foundation.partitions import SAME, Classes, merged, split_classes, sums
from weft.foundation.ranks import RankFailed
from weft.ptir import Builder, Program, dumps, loads, verify
from weft.ptir.gradient import gradient, jvp, vjp
from weft.ptir.interp import Interpreter
from weft.ptir.vmap import vmap
from weft.runtime.rendezvous import run_ranks

Array = NDArray[Any]
ROWS: dict[str, Any] = {"groups": [0, 1, 2, 3], "size": 2}
"""Of a mesh of 2 x 2 ranks: those with the same first coordinate meet."""
COLUMNS: dict[str, Any] = {"groups": [0, 2, 1, 3], "size": 2}
ALL: dict[str, Any] = {"groups": [0, 1, 2, 3], "size": 4}
EACH = (0, 1, 2, 3)


def program_of(function: Callable[..., Any], *inputs: Array, varying: Sequence[Classes]) -> Program:
    b = Builder("ranks")
    values = [b.param(as_dtype(x.dtype), x.shape) for x in inputs]
    marked = [
        b.emit("mark_varying", v, classes=list(c)) if c else v
        for v, c in zip(values, varying, strict=True)
    ]
    program = b.build(function(b, *marked))
    verify(program)
    for form in () if program.regions else ("text", "json", "bincode"):
        assert loads(dumps(program, form)) == program
    return program


def on_ranks(program: Program, inputs: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
    interpreter = Interpreter(program)
    found = run_ranks(len(inputs), lambda rank: interpreter.run(inputs[rank]))
    return [tuple(np.asarray(x) for x in values) for values in found]


def parts(dtype: Any = np.float64, shape: tuple[int, ...] = (4, 2)) -> list[Array]:
    source = np.random.default_rng(3)
    return [source.integers(-3, 4, shape).astype(dtype) for _ in range(4)]


# -- the meaning ---------------------------------------------------------------------------------


MEANINGS: list[tuple[str, dict[str, Any], Callable[[list[Array], int], Array]]] = [
    ("all_reduce", {**ROWS, "fn": "sum"}, lambda x, r: x[r // 2 * 2] + x[r // 2 * 2 + 1]),
    ("all_reduce", {**ALL, "fn": "prod"}, lambda x, r: (x[0] * x[1]) * (x[2] * x[3])),
    ("all_gather", {**COLUMNS, "axis": 1}, lambda x, r: np.hstack([x[r % 2], x[r % 2 + 2]])),
    ("reduce_scatter", {**ROWS, "axis": 0, "fn": "sum"},
     lambda x, r: (x[r // 2 * 2] + x[r // 2 * 2 + 1])[r % 2 * 2 : r % 2 * 2 + 2]),
    ("all_to_all", {**ALL, "split": 0, "concat": 1},
     lambda x, r: np.hstack([part[r : r + 1] for part in x])),
    ("collective_permute", {**ALL, "sources": [0, 3], "targets": [1, 0]},
     lambda x, r: {0: x[3], 1: x[0]}.get(r, x[0] * x[0].dtype.type(0))),
    ("collective_broadcast", {"groups": [3, 1, 0, 2], "size": 2},
     lambda x, r: x[3] if r in (1, 3) else x[0]),
]  # fmt: skip


@each("dtype", in_order(ANY))
@each(("op", "attrs", "meaning"), MEANINGS)
def test_what_each_rank_gets(op: str, attrs: Any, meaning: Any, dtype: Any) -> None:
    x = parts(np.int8)
    small = [np.abs(part) % 2 for part in x]
    given = [part.astype(dtype.numpy) for part in small]
    program = program_of(lambda b, v: b.emit(op, v, **attrs), given[0], varying=[EACH])
    for rank, (found,) in enumerate(on_ranks(program, [[part] for part in given])):
        wanted = meaning([part.astype(np.float64) for part in small], rank)
        wide = wanted != 0 if dtype.name == "i1" else wanted
        assert found.dtype == dtype.numpy
        assert np.array_equal(found.astype(np.complex128), wide.astype(np.complex128))


def test_extremes_take_nan_along() -> None:
    x = [np.array([1.0, np.nan]), np.array([2.0, 0.0])]
    attrs = {"groups": [0, 1], "size": 2, "fn": "max"}
    program = program_of(lambda b, v: b.emit("all_reduce", v, **attrs), x[0], varying=[(0, 1)])
    for (found,) in on_ranks(program, [[part] for part in x]):
        assert np.array_equal(found, [2.0, np.nan], equal_nan=True)


def test_a_sum_is_a_balanced_tree_and_narrow_floats_are_rounded_once() -> None:
    source = np.random.default_rng(0)
    x = [source.standard_normal(1000).astype(np.float32) for _ in range(5)]
    attrs = {"groups": list(range(5)), "size": 5, "fn": "sum"}
    program = program_of(
        lambda b, v: b.emit("all_reduce", v, **attrs), x[0], varying=[tuple(range(5))]
    )
    tree = ((x[0] + x[1]) + (x[2] + x[3])) + x[4]
    assert all(np.array_equal(found, tree) for (found,) in on_ranks(program, [[p] for p in x]))
    narrow = as_dtype("bf16").numpy
    y = [part.astype(narrow) for part in x]
    wide = [part.astype(np.float32) for part in y]
    tree = ((wide[0] + wide[1]) + (wide[2] + wide[3])) + wide[4]
    program = program_of(
        lambda b, v: b.emit("all_reduce", v, **attrs), y[0], varying=[tuple(range(5))]
    )
    for (found,) in on_ranks(program, [[p] for p in y]):
        assert np.array_equal(found, tree.astype(narrow))


def test_the_rank_is_its_number_in_a_table() -> None:
    program = program_of(lambda b: b.emit("mesh_rank", numbers=[5, 7]), varying=[])
    assert [int(found) for (found,) in on_ranks(program, [[], []])] == [5, 7]


# -- gradients -----------------------------------------------------------------------------------


def _chain(b: Any, x: Any) -> Any:
    """A carry that is the same at first, and is brought together again in each turn."""

    def body(b: Any, carry: Any, row: Any) -> Any:
        return b.emit("all_reduce", b.sin(carry) * row, **ROWS, fn="sum"), b.sin(carry + row)

    start = b.full([2], 0.5, "f64")
    last, outputs = b.scan(body, [start], [x])
    return b.emit("concat", b.reshape(last, [1, 2]), outputs, axis=0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda b, x, p: b.emit("all_reduce", b.sin(x) * p, **ROWS, fn="sum") * x * p,
    "sum of the same": lambda b, x, p: b.emit("all_reduce", b.sin(p), **ALL, fn="sum") * x,
    "product": lambda b, x, p: b.emit("all_reduce", b.sin(x * p), **COLUMNS, fn="prod") * x,
    "maximum": lambda b, x, p: b.emit("all_reduce", b.sin(x * p), **ALL, fn="max") * p,
    "gather": lambda b, x, p: b.sin(b.emit("all_gather", x * p, **ROWS, axis=0)),
    "gather twice": lambda b, x, p: b.emit(
        "all_gather", b.sin(b.emit("all_gather", x + p, **ROWS, axis=0)), **COLUMNS, axis=1),
    "scatter": lambda b, x, p: b.sin(b.emit("reduce_scatter", x * p, **ALL, axis=0, fn="sum")),
    "scatter the product": lambda b, x, p: b.emit(
        "reduce_scatter", b.sin(x * p), **ROWS, axis=0, fn="prod") * 3.0,
    "scatter the least": lambda b, x, p: b.emit(
        "reduce_scatter", b.sin(x * p), **ALL, axis=0, fn="min") * 2.0,
    "exchange": lambda b, x, p: b.sin(b.emit("all_to_all", x * p, **ROWS, split=0, concat=1)),
    "permute": lambda b, x, p: b.emit(
        "collective_permute", b.sin(x + p), **ALL, sources=[0, 3], targets=[1, 0]) * p,
    "permute the same": lambda b, x, p: b.emit(
        "collective_permute", b.sin(p), **ROWS, sources=[0, 1], targets=[1, 0]) * x,
    "broadcast": lambda b, x, p: b.emit("collective_broadcast", b.sin(x * p), **COLUMNS) * p,
    "local": lambda b, x, p: b.sin(x + p) + p * p,
    "scan": lambda b, x, p: _chain(b, x * p),
}  # fmt: skip
TOTAL = {
    "of each rank": lambda b, y: y,
    "of rows": lambda b, y: b.emit("all_reduce", y, **ROWS, fn="sum"),
    "of all": lambda b, y: b.emit("all_reduce", y, **ALL, fn="sum"),
}


def _loss(function: Any, total: Any) -> Callable[..., Any]:
    def loss(b: Any, x: Any, p: Any) -> Any:
        y = function(b, x, p)
        own = b.emit("reduce_sum", x * x, axes=[0, 1], keepdims=False)
        axes = list(range(len(y.shape)))
        return total(b, own * b.emit("reduce_sum", b.sin(y), axes=axes, keepdims=False))

    return loss


def _whole(program: Program, x: list[Array], p: list[Array], total: str) -> float:
    """What is differentiated: each loss that is a number of its own, once."""
    losses = [float(v[0]) for v in on_ranks(program, list(zip(x, p, strict=True)))]
    return {"of each rank": sum(losses), "of rows": losses[0] + losses[2], "of all": losses[0]}[
        total
    ]


@each("total", TOTAL)
@each("name", FUNCTIONS)
def test_gradients_on_four_ranks_against_differences(name: str, total: str) -> None:
    """A value of one rank, and one that is the same on all: the gradient of the latter is the sum
    over those ranks that share a loss."""
    source = np.random.default_rng(5)
    x, p = [source.standard_normal((4, 2)) for _ in range(4)], source.standard_normal((4, 2))
    program = program_of(_loss(FUNCTIONS[name], TOTAL[total]), x[0], p, varying=[SAME, SAME])
    classes = [EACH, SAME]
    found = on_ranks(gradient(program, [0, 1], classes=classes), [[part, p] for part in x])
    step, direction = 1e-6, source.standard_normal((4, 2))
    for rank in range(4):
        ends = []
        for sign in (step, -step):
            moved = [part + sign * direction * (r == rank) for r, part in enumerate(x)]
            ends.append(_whole(program, moved, [p] * 4, total))
        assert np.vdot(found[rank][1], direction) == pytest.approx(
            (ends[0] - ends[1]) / 2 / step, rel=1e-5, abs=1e-7)  # fmt: skip
    ends = [_whole(program, x, [p + s * direction] * 4, total) for s in (step, -step)]
    own = {"of each rank": range(4), "of rows": (0, 2), "of all": (0,)}[total]
    slopes = sum(np.vdot(found[rank][2], direction) for rank in own)
    assert slopes == pytest.approx((ends[0] - ends[1]) / 2 / step, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward_are_adjoint(name: str) -> None:
    source = np.random.default_rng(6)
    x, p = [source.standard_normal((4, 2)) for _ in range(4)], source.standard_normal((4, 2))
    dx, dp = [source.standard_normal((4, 2)) for _ in range(4)], source.standard_normal((4, 2))
    program = program_of(_loss(FUNCTIONS[name], TOTAL["of all"]), x[0], p, varying=[SAME, SAME])
    classes = [EACH, SAME]
    moved = on_ranks(
        jvp(program, [0, 1], classes=classes), [[x[r], p, dx[r], dp] for r in range(4)]
    )
    one = np.asarray(1.0)
    back = on_ranks(vjp(program, [0, 1], classes=classes), [[part, p, one] for part in x])
    along = sum(np.vdot(back[r][1], dx[r]) for r in range(4)) + np.vdot(back[0][2], dp)
    assert all(m[1] == pytest.approx(along, rel=1e-9) for m in moved)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "scan"])
def test_a_batch_meets_once(name: str) -> None:
    source = np.random.default_rng(7)
    x, p = [source.standard_normal((3, 4, 2)) for _ in range(4)], source.standard_normal((4, 2))
    program = program_of(FUNCTIONS[name], x[0][0], p, varying=[EACH, SAME])
    batched = vmap(program, 3, [0, None])
    verify(batched)
    found = on_ranks(batched, [[part, p] for part in x])
    for at in range(3):
        single = on_ranks(program, [[part[at], p] for part in x])
        assert all(np.allclose(f[0][at], s[0]) for f, s in zip(found, single, strict=True))


# -- what is refused -----------------------------------------------------------------------------


def test_the_verifier_says_what_differs() -> None:
    b = Builder("ranks")
    x = b.emit("mark_varying", b.param("f32", [2]), classes=[0, 0, 1, 1])
    y = b.emit("assert_same", x, classes=[0, 0, 0, 0])
    with pytest.raises(
        SpecViolation, match="differs between ranks 0 and 2, but is declared to be the same"
    ):
        verify(b.build(y))
    b = Builder("ranks")
    x = b.emit("mark_varying", b.param("f32", [2]), classes=[0, 0, 1, 1])
    y = b.emit("assert_same", b.emit("all_reduce", x, **COLUMNS, fn="sum"), classes=[0, 0, 0, 0])
    verify(b.build(y))


def test_the_verifier_refuses_a_meeting_behind_a_condition_that_differs() -> None:
    b = Builder("ranks")
    x = b.param("f32", [2])
    first = b.compare(b.emit("mesh_rank", numbers=[0, 1]), 0, "equal")
    met = b.cond(
        first,
        lambda b, v: b.emit("all_reduce", v, groups=[0, 1], size=2, fn="sum"),
        lambda b, v: b.neg(v),
        x,
    )
    with pytest.raises(
        SpecViolation, match="ranks 0 and 1 take part in all_reduce only under a condition"
    ):
        verify(b.build(met))


def test_a_program_is_for_one_mesh() -> None:
    b = Builder("ranks")
    x = b.emit("all_reduce", b.param("f32", [2]), groups=[0, 1], size=2, fn="sum")
    with pytest.raises(SpecViolation, match=r"one op is for 2 ranks, .* for 3"):
        verify(b.build(b.emit("all_reduce", x, groups=[0, 1, 2], size=3, fn="sum")))


def test_a_program_for_several_ranks_needs_them() -> None:
    program = program_of(
        lambda b, v: b.emit("all_reduce", v, **ALL, fn="sum"), np.ones(2), varying=[SAME]
    )
    with pytest.raises(SpecViolation, match="of a program for 4 ranks, and it runs on 1"):
        Interpreter(program).run([np.ones(2)])


def _of(op: str, **attrs: Any) -> Program:
    pair = {"groups": [0, 1], "size": 2, "line": f"{op}.py:1"}
    return program_of(lambda b, v: b.emit(op, v, **pair, **attrs), np.ones(2), varying=[SAME])


def test_ranks_at_different_collectives_are_told_at_once() -> None:
    programs = [_of("all_reduce", fn="sum"), _of("all_gather", axis=0)]
    with pytest.raises(RankFailed, match=r"^rank 0 is at all_reduce of float64\[2\] fn=sum "
                       r"\(all_reduce.py:1\), rank 1 at all_gather of float64\[2\] axis=0 "
                       r"\(all_gather.py:1\)$"):  # fmt: skip
        run_ranks(2, lambda rank: Interpreter(programs[rank]).run([np.ones(2)]))


def test_a_rank_that_has_ended_or_failed_is_named() -> None:
    program = _of("all_reduce", fn="sum")

    def ends(rank: int) -> object:
        return rank or Interpreter(program).run([np.ones(2)])

    with pytest.raises(RankFailed, match=r"rank 0 is at all_reduce .*, and rank 1 has ended"):
        run_ranks(2, ends)

    def fails(rank: int) -> object:
        return 1 // (1 - rank) + len(Interpreter(program).run([np.ones(2)]))

    with pytest.raises(ZeroDivisionError):
        run_ranks(2, fails)


def test_ranks_that_wait_in_a_circle_are_told() -> None:
    def program(first: Any, second: Any) -> Program:
        return program_of(
            lambda b, v: b.emit("all_reduce", b.emit("all_reduce", v, **first, fn="sum"), **second,
                                fn="sum"), np.ones(2), varying=[SAME])  # fmt: skip

    programs = [program(ROWS, COLUMNS), program(COLUMNS, ROWS), program(COLUMNS, ROWS),
                program(ROWS, COLUMNS)]  # fmt: skip
    with pytest.raises(
        RankFailed, match="wait for each other in a circle: rank 0 is at all_reduce"
    ):
        run_ranks(4, lambda rank: Interpreter(programs[rank]).run([np.ones(2)]))


@pytest.mark.parametrize(("op", "attrs", "why"), [
    ("all_reduce", {"groups": [0, 1, 2], "size": 2, "fn": "sum"}, "do not make groups of 2"),
    ("all_reduce", {"groups": [0, 0], "size": 2, "fn": "sum"}, "each rank from 0 to 1 once"),
    ("reduce_scatter", {"groups": [0, 1], "size": 2, "axis": 0, "fn": "sum"}, "not a multiple of"),
    ("collective_permute", {"groups": [0, 1], "size": 2, "sources": [0, 1], "targets": [1, 1]},
     "each at most once"),
])  # fmt: skip
def test_bad_groups_are_refused(op: str, attrs: Any, why: str) -> None:
    b = Builder("ranks")
    with pytest.raises(SpecViolation, match=why):
        b.emit(op, b.param("f32", [3]), **attrs)


# -- classes -------------------------------------------------------------------------------------


def test_classes_of_ranks() -> None:
    assert split_classes([(0, 0, 1, 1), (0, 1, 0, 1)]) == (0, 1, 2, 3)
    assert split_classes([SAME, (0, 0, 1, 1)]) == (0, 0, 1, 1)
    assert merged((0, 0, 1, 1), (0, 1, 0, 1)) == SAME
    assert merged((0, 1, 2, 3), (0, 0, 1, 1)) == (0, 0, 1, 1)
    assert sums((0, 1, 2, 3), (0, 0, 1, 1)) == ((0, 1), (2, 3))
    assert sums((0, 0, 1, 1), SAME) == ((0, 2), (1, 3))
    assert sums((0, 0, 0, 1), SAME) is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "%1 = assert_same(%0) {classes=[0, 0]} : f32[]\n"
            "  %2 = assert_same(%1) {classes=[0]} : f32[]",
            "MeshMismatch",
        ),
        (
            "%1 = mark_varying(%0) {classes=[0, 1]} : f32[]\n"
            "  %2 = assert_same(%1) {classes=[0, 0]} : f32[]",
            "RanksDiffer",
        ),
        ("%2 = assert_same(%0) {classes=[9]} : f32[]", "lie between 0 and 0"),
        ("%2 = mark_varying(%0) {classes=[]} : f32[]", "but has none"),
    ],
)
def test_what_the_verifier_says_of_ranks(lines: str, told: str) -> None:
    text = f"ptir.v0.4\nentry @m\n\nfunc @m(%0: f32[]) -> (f32[]) {{\n  {lines}\n  return %2\n}}\n"
    with pytest.raises(SpecViolation, match=told):
        verify(loads(text))
