"""Trees: leaves, structures, maps and paths, as users of other libraries know them."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import pytest

import weft
from weft import tree
from weft.foundation.errors import UserError, WeftError


@dataclass
class Layer:
    weight: Any
    bias: Any = None
    mode: str = field(default="plain", metadata={"static": True})


TREE = {"b": [1, (2, None)], "a": Layer(3, None)}


def test_leaves_come_in_order_and_none_is_no_leaf() -> None:
    assert tree.leaves(TREE) == [3, 1, 2]
    assert tree.leaves(None) == []
    assert tree.leaves(5) == [5]
    assert tree.leaves(TREE, is_leaf=lambda x: x is None) == [3, None, 1, 2, None]


def test_flatten_and_unflatten_are_inverse() -> None:
    leaves, structure = tree.flatten(TREE)
    assert tree.unflatten(structure, leaves) == TREE
    assert structure == tree.structure(TREE)
    assert structure != tree.structure({"b": [1, (2, None)], "a": Layer(3, None, "other")})
    with pytest.raises(UserError, match="2 leaves for a structure of 3"):
        tree.unflatten(structure, [1, 2])
    with pytest.raises(UserError, match="structure is a dict"):
        tree.unflatten({}, [])  # type: ignore[arg-type]


def test_map() -> None:
    assert tree.map(lambda x: x * 10, TREE) == {"b": [10, (20, None)], "a": Layer(30, None)}
    assert tree.map(operator.add, (1, 2), (10, 20)) == (11, 22)
    assert tree.map(lambda x, rest: (x, rest), [1, 2], [(3, 4), None]) == [(1, (3, 4)), (2, None)]
    pairs = tree.map(sum, [(1, 2), (3, 4)], is_leaf=lambda x: isinstance(x, tuple))
    assert pairs == [3, 7]


def test_trees_that_are_nested_in_other_ways_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"at \['a'\] the first has a list of 1, another a tuple of 1"
    ):
        tree.map(operator.add, {"a": [1]}, {"a": (1,)})
    with pytest.raises(UserError, match="nested in different ways"):
        tree.map(operator.add, {"a": 1}, {"b": 1})
    with pytest.raises(UserError, match="the first has a list of 2, another a list of 3"):
        tree.map(operator.add, [1, 2], [1, 2, 3])
    with pytest.raises(UserError, match="an int"):
        tree.map(operator.add, [1, 2], 3)
    with pytest.raises(WeftError, match="a function is wanted"):
        tree.map(3, [1])  # type: ignore[arg-type]


def test_paths() -> None:
    model = weft.nn.Sequential(weft.nn.Linear(2, 2), weft.nn.Linear(2, 1))
    named = dict(tree.leaves_with_path(model))
    assert all("weight" in path or "bias" in path for path in named)
    assert [path for path, _ in tree.leaves_with_path(TREE)] == [
        "['a'].weight",
        "['b'][0]",
        "['b'][1][0]",
    ]
    marked = tree.map_with_path(lambda path, x: f"{path}={x}", {"w": [1, 2]})
    assert marked == {"w": ["['w'][0]=1", "['w'][1]=2"]}
    both = tree.map_with_path(lambda path, x, y: (path, x + y), [1], [2])
    assert both == [("[0]", 3)]


def test_reduce_and_all() -> None:
    assert tree.reduce(operator.add, TREE) == 6
    assert tree.reduce(operator.add, None, 7) == 7
    with pytest.raises(UserError, match="no leaves"):
        tree.reduce(operator.add, {})
    assert tree.all([True, {"x": 1}])
    assert not tree.all([True, {"x": 0}])


def test_maps_work_on_tensors_in_and_out_of_jit() -> None:
    params = {"w": weft.ones((2,)), "b": None}
    step = weft.jit(lambda p: tree.map(lambda x: x - 0.5, p))
    assert step(params)["w"].tolist() == [0.5, 0.5]
    assert step(params)["b"] is None


def test_the_module() -> None:
    assert weft.tree is tree
    assert dir(tree) == sorted(tree.__all__)
    with pytest.raises(AttributeError, match=r"here it is weft.tree.map"):
        weft.tree_map  # noqa: B018
