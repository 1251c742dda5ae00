"""Modules that a step hands on have all they had, as soon as somebody looks, copies or prints."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.handed import (
    DONATED,
    KINDS,
    Looking,
    Model,
    Shadowed,
    adding,
    stepped,
    structure_of,
    values,
)  # fmt: skip
from weft.foundation.errors import UserError
from weft.ops.pytree import flatten

pytestmark = pytest.mark.usefixtures("each_backend")


LOOKS: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda m: m.layers,
    "a setting": lambda m: m.layers[0].scale == 2,
    "vars": lambda m: vars(m)["table"],
    "dir": lambda m: "layers" in dir(m),
    "hasattr": lambda m: hasattr(m, "table") and not hasattr(m, "nothing"),
    "parameters": lambda m: m.parameters(),
    "state_dict": lambda m: m.state_dict(),
    "repr": lambda m: repr(m) == "Model(36 parameters)",
    "map": lambda m: m.map(lambda x: x),
    "setting one": lambda m: m.__setattr__("more", 1) or m.more,
    "deleting one": lambda m: m.__delattr__("table") or m.layers,
    "jit": lambda m: weft.jit(lambda m: m.layers[0].weight.sum())(m),
    "grad": lambda m: weft.grad(lambda m: m.layers[0].weight.sum())(m),
    "the tree": lambda m: weft.tree.leaves(m),
}


@each("look", LOOKS.values())
def test_a_module_has_all_when_somebody_looks(look: Callable[[Any], Any]) -> None:
    module = stepped(adding(), Model(1), 5)
    assert look(module)
    expected = [6.0, 6.5, 7.0, 7.5, 8.0, 9.0]
    found = flatten([module.layers, getattr(module, "table", [])])[0]
    assert sorted(values(found)) == expected[: len(found)]


def test_what_the_class_has_does_not_hide_what_the_module_has() -> None:
    shadowed, other = stepped(adding(), [Shadowed(1), Looking(3)], 5)
    assert values([shadowed.weight, shadowed.inner.weight]) == [6.0, 7.0]
    assert other.nothing == 0
    assert values([other.weight]) == [8.0]


def test_a_module_without_an_attribute_says_so() -> None:
    module = stepped(adding(), Model(1), 5)
    with pytest.raises(AttributeError, match="Model has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("make", [KINDS["list"], KINDS["module"], KINDS["modules and tensors"]])
@pytest.mark.parametrize("again", [
    copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)),
], ids=["copy", "deepcopy", "pickle"])  # fmt: skip
def test_copies(make: Callable[[], Any], again: Callable[[Any], Any]) -> None:
    step = adding()
    state = stepped(step, make(), 5)
    other = again(state)
    assert values(other) == [value + 5 for value in values(make())]
    assert structure_of(other) == structure_of(state)
    after = stepped(step, state, 1)
    assert values(after) == [value + 6 for value in values(make())]


def test_what_is_printed_of_a_module_that_was_donated() -> None:
    step = adding()
    module = stepped(step, Model(1), 5)
    stepped(step, module, 1)
    assert repr(module) == "Model(36 parameters)"
    with pytest.raises(UserError, match=DONATED):
        repr(module.layers[0].weight)
