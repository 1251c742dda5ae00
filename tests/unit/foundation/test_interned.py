"""Nodes with equal fields are one object, however they are made."""

from __future__ import annotations

import gc
import weakref

from weft.foundation.index_expr import Expr, Guard, axis, constant
from weft.foundation.interned import Node, node


@node
class Pair(Node):
    left: object
    right: object = 0


def test_equal_fields_are_one_object() -> None:
    first = Pair("a", 1)
    assert Pair("a", 1) is first
    assert Pair(left="a", right=1) is first
    assert Pair("a", right=1) is first
    assert Pair("a", 0) is Pair("a")
    assert Pair("a", 2) is not first


def test_numbers_of_different_types_are_different_fields() -> None:
    ones = [Pair(1), Pair(True), Pair(1.0), Pair(1 + 0j)]
    assert len({id(pair) for pair in ones}) == 4
    assert [type(pair.left) for pair in ones] == [int, bool, float, complex]
    assert Pair(0.0) is not Pair(-0.0)
    assert str(Pair(-0.0).left) == "-0.0"


def test_constants_keep_their_type() -> None:
    assert constant(True) is not constant(1)
    assert type(constant(1).constant) is int
    assert constant(7) is Expr(7, ())


def test_a_node_lives_as_long_as_somebody_holds_it() -> None:
    held = Guard(axis("i") + 123456, 7)
    gone = weakref.ref(held)
    assert Guard(axis("i") + 123456, 7) is held
    del held
    gc.collect()
    assert gone() is None
