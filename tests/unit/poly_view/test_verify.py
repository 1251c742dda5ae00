"""The verifier of Poly-View: each rule broken once, with its exact message; and its text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.make_programs import PROGRAMS, attention
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import Guard, axis, constant, floordiv, param
from weft.indexbook.from_tiny import build_book
from weft.indexbook.ir import IndexBook
from weft.poly import sets
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.ir import Access, BlockKind, IterAxis, PolyBlock, Scop
from weft.poly_view.text import map_text, parse_map
from weft.poly_view.verify import findings, verify
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import Graph

I0, I1 = axis("i0"), axis("i1")
AXES = (IterAxis("i0", 6), IterAxis("i1", 4))


def block(*accesses: Access, name: str = "y") -> PolyBlock:
    return PolyBlock(name, BlockKind.EWISE, AXES, F32, accesses, None)


def view(*blocks: PolyBlock) -> Scop:
    return Scop({"x": (F32, (6, 4))}, blocks, (), ())


BROKEN: dict[str, tuple[Scop, str]] = {
    "an axis that is not there": (
        view(block(Access("x", (I0, axis("k"))))),
        "E1405 NonAffine at block y, access 0 of x: k uses k, which is neither an axis nor a param",
    ),
    "a param that is not there": (
        view(block(Access("x", (I0, I1 + param("p"))))),
        "E1405 NonAffine at block y, access 0 of x: i1 + $p uses p, which is neither an axis nor a "
        "param",
    ),
    "an element outside": (
        view(block(Access("x", (I0, I1 + 1)))),
        "E1406 AccessOutOfRange at block y, access 0 of x: i1 + 1 leaves [0, 4) at i0 = 0, i1 = 3",
    ),
    "an element outside in spite of a guard": (
        view(block(Access("x", (I0, I1 - 1), (Guard(I1 - 1, 9),), 0.0), Access("x", (I0, I1 - 2)))),
        "E1406 AccessOutOfRange at block y, access 1 of x: i1 - 2 leaves [0, 4) at i0 = 0, i1 = 0",
    ),
    "a division that is too small": (
        view(block(Access("x", (floordiv(I0 * 4 + I1, 3), I1)))),
        "E1406 AccessOutOfRange at block y, access 0 of x: floor((4*i0 + i1)/3) leaves [0, 6) at "
        "i0 = 4, i1 = 2",
    ),
    "waiting for what comes later": (
        view(replace(block(Access("x", (I0, I1))), after=("z",))),
        "E1407 ViewInvalid at block y: it waits for z, which is not before it",
    ),
    "a map of the wrong rank": (
        view(block(Access("x", (I0,)))),
        "E1407 ViewInvalid at block y, access 0 of x: the map has 1 parts for a tensor of rank 2",
    ),
    "a tensor that comes later": (
        view(block(Access("z", (I0, I1)))),
        "E1407 ViewInvalid at block y, access 0 of z: there is no tensor z before it",
    ),
    "a guard without a fill": (
        view(block(Access("x", (I0, I1), (Guard(I0 - 1, 5),)))),
        "E1407 ViewInvalid at block y, access 0 of x: it has guards and nothing to read where they "
        "fail",
    ),
    "a name twice": (
        view(block(Access("x", (I0, I1)), name="x")),
        "E1407 ViewInvalid at block x: another tensor has this name",
    ),
    "an update of a tensor of another shape": (
        view(
            replace(
                block(Access("x", (I0, I1))),
                kind=BlockKind.UPDATE,
                write=(I0, I1),
                base="x",
                window_of=(6, 5),
            )
        ),
        "E1407 ViewInvalid at block y: its base x is not there, or has another shape",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what: str) -> None:
    scop, message = BROKEN[what]
    with pytest.raises(SpecViolation) as caught:
        verify(scop)
    assert str(caught.value) == message


def test_what_intervals_cannot_show_isl_shows() -> None:
    lane = (I0 * 4 + I1) % 4
    assert not list(findings(view(block(Access("x", (I0, lane))))))
    diagonal = Guard(I0 - I1, 3)
    inside = Access("x", (I0, I0 - I1 + 1), (diagonal,), 0.0)
    assert not list(findings(view(block(inside))))


def test_a_write_outside_is_found() -> None:
    scop = build_scop(*_attention())
    update = next(b for b in scop.blocks if b.kind is BlockKind.UPDATE)
    assert update.write is not None
    moved = replace(update, write=(update.write[0], update.write[1] + 1, update.write[2]))
    blocks = tuple(moved if b is update else b for b in scop.blocks)
    with pytest.raises(SpecViolation) as caught:
        verify(replace(scop, blocks=blocks))
    assert str(caught.value.findings[0]) == (
        f"E1406 AccessOutOfRange at block {update.name}: i2 + $p0 + 1 leaves [0, 32) at i1 = 0, "
        "i2 = 15, i3 = 0, p0 = 16"
    )


def _attention() -> tuple[Graph, IndexBook]:
    graph = lower_program(attention())
    return graph, build_book(graph)


def test_a_proof_beyond_the_budget_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "BUDGET", 3)
    hard = (I0 * 5 + I1 * 3) % 4
    scop = view(block(Access("x", (floordiv(I0 * 3 + hard, 4), constant(0)))))
    found = list(findings(scop))
    assert [f.code for f in found] == ["W2102 IslBudget"]
    verify(scop)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_programs_verify(name: str) -> None:
    graph = lower_program(PROGRAMS[name]())
    assert not list(findings(build_scop(graph, build_book(graph))))


@pytest.mark.parametrize(
    "access",
    [
        Access("", ()),
        Access("", (I0, constant(3))),
        Access("", (I0 - 1,), (Guard(I0 - 1, 4),), float("-inf")),
        Access("", (floordiv(I0, 2), param("p")), (Guard(I0 % 2, 1), Guard(I1, 3)), True),
        Access("", (I0,), (Guard(I0, 4),), 1 + 2j),
    ],
)
def test_maps_read_back(access: Access) -> None:
    assert parse_map(map_text(access)) == access


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[i0*i1]",
            "E1405 NonAffine: the index expression 'i0*i1' is not affine: two axes are multiplied",
        ),
        ("i0", "E1405 NonAffine: 'i0' is not a map: [exprs] : guards else fill"),
    ],
)
def test_maps_that_are_not_affine(text: str, message: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        parse_map(text)
    assert str(caught.value) == message
