"""Atoms: the coarsest common refinement of reshapes, and what happens where there is none."""

from __future__ import annotations

import pytest

from tests.support.cases import each
from tests.support.movements import random_chain
from weft.foundation.dtypes import F32
from weft.foundation.scalar import Fn
from weft.indexbook.atoms import AtomTable, Group, matching_groups, side_of
from weft.indexbook.from_tiny import build_book
from weft.indexbook.ir import IndexBook
from weft.tiny.ir import (
    Binary,
    Expand,
    Graph,
    Input,
    Pad,
    Permute,
    Reduce,
    ReduceFn,
    Reshape,
    Unary,
    Value,
)
from weft.tiny.ir import Const as Constant

Atoms = tuple[tuple[int, ...], ...]


def book_of(*outputs: Value) -> tuple[IndexBook, dict[Value, str]]:
    named = tuple((f"out{k}", value) for k, value in enumerate(outputs))
    graph = Graph((), named)
    return build_book(graph), {v: f"v{k}" for k, v in enumerate(graph.values)}


def atoms_of(*outputs: Value) -> dict[Value, Atoms]:
    book, ids = book_of(*outputs)
    return {value: book.get(name).atoms for value, name in ids.items()}


def x(*shape: int, name: str = "x") -> Input:
    return Input(name, F32, shape)


def test_without_reshapes_an_axis_is_one_atom_and_size_1_none() -> None:
    a = x(4, 1, 6)
    assert atoms_of(Unary(Fn.EXP, a))[a] == ((4,), (), (6,))


def test_a_split_reaches_everything_that_runs_with_it() -> None:
    a, b = x(4, 24), x(24, name="b")
    total = Binary(Fn.ADD, a, Expand(Reshape(b, (1, 24)), (4, 24)))
    split = Reshape(total, (4, 2, 12))
    further = Reshape(split, (4, 2, 3, 4))
    found = atoms_of(further)
    assert found[a] == ((4,), (2, 3, 4))
    assert found[b] == ((2, 3, 4),)
    assert found[further] == ((4,), (2,), (3,), (4,))


def test_splits_pass_permutations_and_reductions_but_not_pads() -> None:
    a = x(6, 8)
    turned = Permute(a, (1, 0))
    summed = Reduce(ReduceFn.SUM, turned, (1,), F32)
    split = Reshape(summed, (2, 4))
    padded = Pad(a, (0, 1), (0, 0), Constant(0.0, F32))
    found = atoms_of(split, padded)
    assert found[a] == ((6,), (2, 4))
    assert found[padded] == ((6,), (9,))


def test_two_splits_of_one_axis_are_refined_together() -> None:
    a = x(24)
    found = atoms_of(Reshape(a, (2, 12)), Reshape(a, (8, 3)), Reshape(a, (4, 6)))
    assert found[a] == ((2, 2, 2, 3),)


def test_what_cannot_be_refined_stays_unaligned() -> None:
    a = x(6, 10)
    bad = Reshape(a, (4, 15))
    book, ids = book_of(bad)
    (read,) = book.get(ids[bad]).inputs
    assert not read.aligned
    assert book.get(ids[a]).atoms == ((6,), (10,))
    assert book.get(ids[bad]).atoms == ((4,), (15,))
    assert str(read.map[0]) == "floor((15*i0 + i1)/10)"
    assert [str(g) for g in book.get(ids[bad]).domain.constraints] == [
        "0 <= i0 < 4",
        "0 <= i1 < 15",
        "0 <= 15*i0 + i1 - 10*floor((15*i0 + i1)/10) < 10",
    ]


def test_the_later_of_two_splits_without_refinement_gives_way() -> None:
    a = x(12)
    first, second = Reshape(a, (3, 4)), Reshape(a, (2, 6))
    book, ids = book_of(first, second)
    assert book.get(ids[first]).inputs[0].aligned
    assert not book.get(ids[second]).inputs[0].aligned
    assert book.get(ids[a]).atoms == ((3, 4),)


def test_a_second_unaligned_reshape_reads_a_stored_value() -> None:
    first = Reshape(x(6, 10), (4, 15))
    between = Permute(first, (1, 0))
    second = Reshape(between, (10, 6))
    book, ids = book_of(second)
    assert book.get(ids[between]).materialise
    (found,) = book.findings
    assert str(found) == (
        f"W2101 ExcessivePiecewise at {ids[second]}: {ids[between]} feeds a second reshape without "
        "a common refinement (it is stored, so that its index expressions stay small)"
    )


def test_a_value_between_two_reshapes_is_a_fresh_start() -> None:
    first = Unary(Fn.EXP, Reshape(x(6, 10), (4, 15)))
    book, _ = book_of(Reshape(first, (10, 6)))
    assert not book.findings


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((6, 10), (4, 15), [((0, 1), (0, 1))]),
        ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
        ((1, 5), (5, 1, 1), [((0, 1), (0,))]),
        ((3, 1, 4), (3, 4), [((0,), (0,)), ((1, 2), (1,))]),
        ((1, 1), (), []),
        ((), (1,), []),
        ((4, 4), (2, 2, 2, 2), [((0,), (0, 1)), ((1,), (2, 3))]),
    ],
)
def test_matching_groups(
    before: tuple[int, ...],
    after: tuple[int, ...],
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    assert [(tuple(a), tuple(b)) for a, b in matching_groups(before, after)] == groups


def test_a_refused_link_leaves_no_trace() -> None:
    table = AtomTable()
    whole, three, four = table.add(12), table.add(3), table.add(4)
    assert table.link(Group(side_of([whole], [12]), side_of([three, four], [3, 4])))
    two, six = table.add(2), table.add(6)
    again, far = table.add(6), table.add(36)
    assert not table.link(Group(side_of([whole], [12]), side_of([two, six], [2, 6])))
    assert [table.atoms(n) for n in (whole, two, six)] == [(3, 4), (2,), (6,)]
    assert table.link(Group(side_of([six, again], [6, 6]), side_of([far], [36])))
    assert table.atoms(far) == (6, 6)


@each("seed", range(60))
def test_an_aligned_reshape_regroups_atoms(seed: int) -> None:
    graph = random_chain(seed, 8)
    book = build_book(graph)
    for number, value in enumerate(graph.values):
        info = book.get(f"v{number}")
        if isinstance(value, Reshape) and info.inputs[0].aligned:
            source = book.get(info.inputs[0].value_id)
            before = [n for atoms in source.atoms for n in atoms]
            assert before == [n for atoms in info.atoms for n in atoms]
