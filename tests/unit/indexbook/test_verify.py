"""The verifier of IndexBooks: each rule broken once, with its exact message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.make_programs import PROGRAMS
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import Expr, FloorDiv, axis
from weft.foundation.scalar import Fn
from weft.indexbook.from_tiny import build_book
from weft.indexbook.ir import Domain, IndexBook, IndexInfo
from weft.indexbook.text import dumps, from_json
from weft.indexbook.verify import findings, verify
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import Binary, Graph, Input, Reshape

X = Input("x", F32, (6, 10))
BOOK = build_book(Graph((X,), (("y", Reshape(X, (4, 15))),)))


def with_info(change: Callable[[IndexInfo], IndexInfo]) -> IndexBook:
    return IndexBook({**BOOK.infos, "v1": change(BOOK.get("v1"))})


def with_map(*exprs: Expr) -> IndexBook:
    return with_info(lambda i: replace(i, inputs=(replace(i.inputs[0], map=exprs),)))


HALVED = Expr(0, ((FloorDiv(2 * axis("i1"), 4), 1),))
BROKEN: dict[str, tuple[IndexBook, str]] = {
    "a remainder without its guard": (
        with_info(lambda i: replace(i, domain=Domain(i.domain.constraints[:2]))),
        "E1203 MissingDivGuard at v1 reading v0: 15*i0 + i1 - 10*floor((15*i0 + i1)/10) takes a "
        "remainder, and the domain lacks "
        "0 <= 15*i0 + i1 - 10*floor((15*i0 + i1)/10) < 10",
    ),
    "a divisor that is not reduced": (
        with_map(axis("i0"), HALVED),
        "E1204 DivisorInvalid at v1 reading v0: the divisor of floor((2*i1)/4) is not positive and "
        "reduced",
    ),
    "a map of the wrong length": (
        with_map(axis("i0")),
        "E1304 AxisAlignmentMismatch at v1 reading v0: the map has 1 parts for 2 axes",
    ),
    "an axis that is not there": (
        with_map(axis("i0"), axis("i7")),
        "E1304 AxisAlignmentMismatch at v1 reading v0: i7 uses i7, which is not there",
    ),
    "an operand that is not there": (
        with_info(lambda i: replace(i, inputs=(replace(i.inputs[0], value_id="v9"),))),
        "E1304 AxisAlignmentMismatch at v1 reading v9: there is no such value",
    ),
    "atoms that do not make up their axis": (
        with_info(lambda i: replace(i, atoms=((4,), (3, 4)))),
        "E1304 AxisAlignmentMismatch at v1: the atoms [3, 4] do not make up i1 of 15",
    ),
    "axes under other names": (
        with_info(lambda i: replace(i, axes=tuple(replace(a, name=f"k{a.name}") for a in i.axes))),
        "E1304 AxisAlignmentMismatch at v1: the axes are called ki0, ki1, not i0, i1, ...",
    ),
    "a map that leaves its operand": (
        with_map(axis("i0"), axis("i1")),
        "E1305 MapOutOfRange at v1 reading v0: i1 runs from 0 to 14, outside [0, 10)",
    ),
    "a domain without bounds": (
        with_info(lambda i: replace(i, domain=Domain(i.domain.constraints[1:]))),
        "E1304 AxisAlignmentMismatch at v1: the domain does not bound i0",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what: str) -> None:
    book, message = BROKEN[what]
    with pytest.raises(SpecViolation) as caught:
        verify(book)
    assert str(caught.value.findings[0]) == message


def test_atoms_of_one_axis_must_agree() -> None:
    same = build_book(Graph((X,), (("y", Reshape(X, (6, 2, 5))),)))
    info = same.get("v0")
    broken = IndexBook({**same.infos, "v0": replace(info, atoms=((2, 3), (2, 5)))})
    with pytest.raises(SpecViolation) as caught:
        verify(broken)
    assert str(caught.value.findings[0]) == (
        "E1304 AxisAlignmentMismatch at v1 reading v0: i0 is axis 0 of the operand, but their "
        "atoms are [6] and [2, 3]"
    )


def test_a_reshape_that_is_not_aligned_reads_other_atoms() -> None:
    """Both sides are cut before the axis that runs through the last reshape is linked."""
    x, y = Input("x", F32, (12,)), Input("y", F32, (1, 12))
    row = Reshape(x, (1, 12))
    a, b, product = Reshape(x, (3, 4)), Reshape(y, (4, 3)), Binary(Fn.MUL, row, y)
    book = build_book(Graph((x, y), (("a", a), ("b", b), ("row", row), ("product", product))))
    reads = [read for info in book.infos.values() for read in info.inputs]
    assert [read.aligned for read in reads].count(False) == 1
    assert not list(findings(book))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_programs_verify(name: str) -> None:
    assert not list(findings(build_book(lower_program(PROGRAMS[name]()))))


def test_golden_text(golden: Any) -> None:
    golden(
        "indexbook/softmax_layernorm.json",
        dumps(build_book(lower_program(PROGRAMS["softmax_layernorm"]()))),
    )


def test_a_field_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SpecViolation, match="field 'extra' is not known here"):
        from_json({"index_book": {}, "extra": 1})
