"""Containers taken apart and put together."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest

import weft
from weft.foundation.errors import UserError
from weft.ops import pytree
from weft.ops.pytree import (
    LEAF,
    alike,
    flatten,
    leaf_names,
    leaves_like,
    map_leaves,
    parts_like,
    unflatten,
)

Point = namedtuple("Point", ["x", "y"])


@weft.pytree
@dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any = None


@dataclass
class Plain:
    """Not marked."""

    first: Any
    second: Any


@dataclass
class Settled:
    value: Any
    mode: str = field(metadata={"static": True})


CONTAINERS: list[tuple[Any, list[Any], list[str]]] = [
    (1, [1], ["p"]),
    (None, [], []),
    ((), [], []),
    ((1, [2, 3]), [1, 2, 3], ["p[0]", "p[1][0]", "p[1][1]"]),
    ({"b": 1, "a": (2,)}, [2, 1], ["p['a'][0]", "p['b']"]),
    ({1: "x", "a": "y"}, ["x", "y"], ["p[1]", "p['a']"]),
    (Point(1, {"z": 2}), [1, 2], ["p.x", "p.y['z']"]),
    (Layer(1, None), [1], ["p.weight"]),
    (Plain([1], 2), [1, 2], ["p.first[0]", "p.second"]),
    (OrderedDict(b=1, a=2), [1, 2], ["p['b']", "p['a']"]),
    (defaultdict(list, b=1, a=2), [2, 1], ["p['a']", "p['b']"]),
    ([Layer(1, 2), (None, 3)], [1, 2, 3], ["p[0].weight", "p[0].bias", "p[1][1]"]),
]


@pytest.mark.parametrize(("value", "leaves", "names"), CONTAINERS)
def test_apart_and_together(value: Any, leaves: list[Any], names: list[str]) -> None:
    found, structure = flatten(value)
    assert found == leaves
    assert structure.leaf_count == len(leaves)
    assert leaf_names(structure, "p") == names
    again = unflatten(structure, found)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("value", [value for value, *_ in CONTAINERS])
def test_leaves_of_a_structure_are_those_of_values_that_have_it(value: Any) -> None:
    _, structure = flatten(value)
    others = [other for other, *_ in CONTAINERS] + [[1, 2], [1, [2]], (1, 2), {"b": 1, "a": 2}]
    settings = [Settled(1, "a"), Settled(1, "b"), Settled([1], "a")]
    for other in [*others, *settings, [value], (value,), Layer(value)]:
        leaves, found = flatten(other)
        assert leaves_like(structure, other) == (leaves if found == structure else None)
        assert leaves_like(found, value) == (flatten(value)[0] if found == structure else None)


def test_structures_compare() -> None:
    assert flatten((1, [2]))[1] == flatten((3, ["x"]))[1]
    assert flatten((1, [2]))[1] != flatten((1, (2,)))[1]
    assert flatten({"a": 1})[1] != flatten({"b": 1})[1]
    assert flatten(3)[1] is LEAF
    assert hash(flatten({"a": [1]})[1]) == hash(flatten({"a": [2]})[1])


def test_a_class_can_be_registered() -> None:
    class Box:
        def __init__(self, inside: Any) -> None:
            self.inside = inside

    weft.register_pytree(Box, lambda box: ([box.inside], None), lambda rest, c: Box(*c))
    leaves, structure = flatten(Box((1, 2)))
    assert leaves == [1, 2]
    assert unflatten(structure, [3, 4]).inside == (3, 4)


def test_a_subclass_is_a_leaf_unless_it_says_otherwise() -> None:
    assert flatten(Counter(a=1))[1] is LEAF


def test_a_setting_of_a_dataclass_is_part_of_its_structure() -> None:
    sparse, dense = Settled(1, "sparse"), Settled(1, "dense")
    assert flatten(sparse)[0] == [1]
    assert flatten(sparse)[1] != flatten(dense)[1]
    assert map_leaves(lambda x: x + 1, sparse) == Settled(2, "sparse")


def test_records_of_weft_are_leaves() -> None:
    assert flatten(weft.float32)[1] is LEAF


def test_what_cannot_be_a_container() -> None:
    with pytest.raises(UserError, match="takes a dataclass"):
        weft.pytree(int)
    with pytest.raises(UserError, match="takes a class, not 3"):
        weft.register_pytree(3, list, tuple)  # type: ignore[arg-type]


def test_map_leaves() -> None:
    assert map_leaves(lambda a, b: a + b, {"x": (1, 2)}, {"x": (10, 20)}) == {"x": (11, 22)}
    with pytest.raises(UserError, match="nested in different ways"):
        map_leaves(lambda a, b: a, (1,), [1])


def test_wrong_numbers_of_leaves() -> None:
    structure = flatten((1, 2))[1]
    with pytest.raises(UserError, match="3 leaves for a structure of 2"):
        unflatten(structure, [1, 2, 3])
    with pytest.raises(UserError, match="1 leaves for a structure of 2"):
        unflatten(structure, [1])
    with pytest.raises(UserError, match="3 leaves for a structure of 2"):
        unflatten(structure, [1, 2, None])


def test_a_container_that_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UserError, match="contains itself"):
        flatten(loop)


@pytest.mark.parametrize(("value", "leaves", "names"), CONTAINERS)
def test_what_is_at_the_leaves_of_a_structure(value: Any, leaves: list[Any], names: Any) -> None:
    structure = flatten(value)[1]
    assert parts_like(structure, value) == leaves
    deeper = unflatten(structure, [[leaf] for leaf in leaves])
    assert parts_like(structure, deeper) == [[leaf] for leaf in leaves]
    assert (leaves_like(structure, deeper) is None) == bool(leaves)


def test_what_is_nested_in_another_way_is_not_like_a_structure() -> None:
    structure = flatten({"a": [1, 2], "b": (3,)})[1]
    assert parts_like(structure, {"a": [6, 7], "b": (5,)}) == [6, 7, 5]
    assert parts_like(structure, {"b": (5,), "a": [6, 7]}) is None
    others = [
        {"a": [1, 2]},
        {"a": [1, 2], "c": (3,)},
        {"a": [1], "b": (3,)},
        {"a": (1, 2), "b": (3,)},
    ]
    for other in others:
        assert parts_like(structure, other) is None
        assert leaves_like(structure, other) is None


def test_lists_come_apart_as_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytree, "_NODES", dict(pytree._NODES))
    monkeypatch.setattr(pytree, "_PYTHONS", set(pytree._PYTHONS))
    weft.register_pytree(list, lambda x: (x[::-1], None), lambda rest, c: list(c)[::-1])
    leaves, structure = flatten([1, 2, (3, 4)])
    assert leaves == [3, 4, 2, 1]
    assert leaves_like(structure, [5, 6, (7, 8)]) == [7, 8, 6, 5]
    assert unflatten(structure, leaves) == [1, 2, (3, 4)]


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda x: defaultdict(int, x)])
def test_a_dict_that_is_made_again_has_its_own_order(kind: Any) -> None:
    value = kind({"b": 1, "a": kind({"z": 2, "y": 3})})
    leaves, structure = flatten(value)
    made = unflatten(structure, leaves)
    assert made == value
    assert list(made) == ["b", "a"]
    assert list(made["a"]) == ["z", "y"]
    assert leaves_like(structure, value) == leaves
    assert unflatten(pickle.loads(pickle.dumps(structure)), leaves) == value


def test_dicts_of_another_order_are_alike_and_have_another_structure() -> None:
    value, other = {"b": 1, "a": {"z": 2, "y": 3}}, {"a": {"y": 3, "z": 2}, "b": 1}
    leaves, structure = flatten(value)
    assert flatten(other)[0] == leaves
    assert flatten(other)[1] != structure
    assert len({structure, flatten(other)[1], flatten(value)[1]}) == 2
    assert alike(structure, flatten(other)[1])
    assert not alike(structure, flatten({"b": 1, "a": {"z": 2}})[1])
    assert leaves_like(structure, other) is None
    assert leaves_like(flatten(other)[1], value) is None
    assert weft.tree.map(lambda x, y: x - y, value, other) == {"b": 0, "a": {"z": 0, "y": 0}}


def test_a_function_goes_through_a_dict_in_the_same_order_compiled_or_not() -> None:
    class Layers(weft.nn.Module):
        def __init__(self) -> None:
            self.layers = {"wide": weft.nn.Linear(3, 5), "narrow": weft.nn.Linear(5, 2)}

        def __call__(self, x: Any) -> Any:
            for layer in self.layers.values():
                x = layer(x)
            return x

    def digits(numbers: dict[str, Any]) -> Any:
        total = weft.asarray(0)
        for number in numbers.values():
            total = 10 * total + number
        return total

    model = Layers()
    x = weft.ones((4, 3))
    assert weft.allclose(weft.jit(lambda m, x: m(x))(model, x), model(x))
    compiled = weft.jit(digits)
    for _ in range(2):
        assert int(compiled({"b": weft.asarray(1), "a": weft.asarray(2)})) == 12
        assert int(compiled({"a": weft.asarray(2), "b": weft.asarray(1)})) == 21
