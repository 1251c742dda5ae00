"""Results that are handed on from call to call: made anew in every call, for all that anybody can
see, whether somebody looks at them or not."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.ops.handed import (
    DONATED,
    KINDS,
    Layer,
    Model,
    adding,
    stepped,
    structure_of,
    tensor,
    values,
)  # fmt: skip
from weft import nn
from weft.foundation.errors import UserError
from weft.ops.graph.node import Donated, Node
from weft.ops.pytree import flatten, leaves_like
from weft.ops.tensor import Tensor

pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_every_kind_of_container_is_handed_on(make: Callable[[], Any]) -> None:
    expected = values(make())
    first, step = make(), adding()
    state = stepped(step, first, 7)
    assert structure_of(state) == structure_of(first)
    assert type(state) is type(first)
    assert values(state) == [value + 7 for value in expected]
    # And on, now that somebody has looked at it.
    state = stepped(step, state, 4)
    assert values(state) == [value + 11 for value in expected]
    assert step.explain().count("compiled") == 1


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("look", [False, True], ids=["unseen", "seen"])
def test_what_was_donated_cannot_be_read(make: Callable[[], Any], look: bool) -> None:
    step, state, older = adding(), make(), []
    for _ in range(5):
        older.append(state)
        if look:
            values(state)
        state = stepped(step, state, 1)
    for each in older:
        leaves = leaves_like(structure_of(state), each)
        assert leaves
        for leaf in leaves:
            assert leaf.shape == (2, 3)
            with pytest.raises(UserError, match=DONATED):
                leaf.numpy()
            with pytest.raises(UserError, match=DONATED):
                (leaf + 1.0).numpy()
        with pytest.raises(UserError, match=DONATED):
            step(each, tensor(1))
    assert values(state) == [value + 5 for value in values(make())]


def test_nothing_is_made_for_what_nobody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a step hands on, it makes as many nodes: that of its other result."""
    made: list[object] = []
    own = Node.__init__

    def counting(*args: Any) -> None:
        made.append(args[0])
        own(*args)

    monkeypatch.setattr(Node, "__init__", counting)
    counts = []
    for state in ([tensor(n) for n in range(40)], Model(1), {"m": Model(1), "l": [tensor(1)] * 20}):
        step, x = adding(), tensor(1)
        for _ in range(4):
            state, _ = step(state, x)
        before = len(made)
        state, _ = step(state, x)
        counts.append(len(made) - before)
    assert counts == [1, 1, 1]


def test_tensors_are_used_again_that_nobody_holds() -> None:
    step, x = adding(), tensor(1)
    state = [tensor(n) for n in range(12)]
    seen = []
    for _ in range(8):
        state, _ = step(state, x)
        seen.append(list(map(id, state)))
    assert seen[3] == seen[5] == seen[7]
    assert seen[4] == seen[6] != seen[5]


HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "the list": lambda state: state,
    "a tensor": lambda state: state[3],
    "a slice": lambda state: state[2:4],
    "a weak reference": lambda state: weakref.ref(state[1]),
    "a weak dictionary": lambda state: weakref.WeakKeyDictionary({state[1]: 1}),
    "a node": lambda state: state[0]._node,
    "a wish for gradients": lambda state: setattr(state[0], "requires_grad", True),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_what_somebody_holds_is_not_used_again(hold: Callable[[list[Any]], Any]) -> None:
    step, x = adding(), tensor(1)
    state: Any = [tensor(n) for n in range(12)]
    for _ in range(4):
        state, _ = step(state, x)
    held = hold(state)
    for _ in range(5):
        state, _ = step(state, x)
        assert not any(leaf.requires_grad for leaf in state)
    gc.collect()
    if isinstance(held, weakref.ref):
        assert held() is None
    elif isinstance(held, weakref.WeakKeyDictionary):
        assert not held
    elif isinstance(held, Node):
        assert held is not state[0]._node
    elif held is not None:
        for leaf in flatten(held)[0]:
            with pytest.raises(UserError, match=DONATED):
                leaf.numpy()
    assert values(state) == [n + 9.0 for n in range(12)]


def test_an_instruction_on_what_was_handed_on_is_carried_out_before_that_is_given_away() -> None:
    step, x = adding(), tensor(1)
    state: Any = [tensor(n) for n in range(12)]
    for _ in range(4):
        state, _ = step(state, x)
    held = state[0] + 1.0
    for _ in range(5):
        state, _ = step(state, x)
    assert values([held]) == [5.0]
    assert values(state) == [n + 9.0 for n in range(12)]


@pytest.mark.parametrize("make", [KINDS["list"], KINDS["module"], KINDS["modules and tensors"]])
def test_memory_goes_with_what_was_handed_out(make: Callable[[], Any]) -> None:
    step = adding()
    state = stepped(step, make(), 5)
    parts: list[Any] = flatten(state, lambda x: isinstance(x, nn.Module))[0]
    groups = [x._group if isinstance(x, Tensor) else x._waiting.group for x in parts]
    memory = [group.memory for group in groups]
    arrays = [weakref.ref(array) for each in memory for array in each]
    assert arrays
    gc.disable()
    try:
        del groups, parts, memory, state
        assert [array() for array in arrays] == [None] * len(arrays)
    finally:
        gc.enable()


# -- changes -------------------------------------------------------------------------------------


def _swap(state: list[Any]) -> None:
    state[0], state[1] = state[1], state[0]


CHANGES: dict[str, tuple[Callable[[list[Any]], Any], Callable[[list[float]], Any]]] = {
    "replaced": (
        lambda s: s.__setitem__(1, tensor(50)), lambda v: v.__setitem__(1, 50.0)),
    "replaced by one of its own": (
        lambda s: s.__setitem__(1, s[2]), lambda v: v.__setitem__(1, v[2])),
    "exchanged": (_swap, lambda v: v.__setitem__(slice(0, 2), [v[1], v[0]])),
    "elements": (
        lambda s: s[2].__setitem__(..., 60.0), lambda v: v.__setitem__(2, 60.0)),
    "in place": (
        lambda s: s[2].__iadd__(1.0), lambda v: v.__setitem__(2, v[2] + 1.0)),
    "become": (
        lambda s: s[2].become(s[3]), lambda v: v.__setitem__(2, v[3])),
    "looked at": (lambda s: s[1].numpy(), lambda v: None),
    "lent": (lambda s: np.asarray(s[1]), lambda v: None),
    "copied": (lambda s: s.__setitem__(0, copy.copy(s[0])), lambda v: None),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expect"), CHANGES.values(), ids=CHANGES.keys())
def test_changes_are_seen(change: Any, expect: Any) -> None:
    step, x = adding(), tensor(1)
    state: Any = [tensor(n) for n in range(5)]
    expected = [float(n) for n in range(5)]
    for _ in range(4):
        for _ in range(3):
            state, _ = step(state, x)
        expected = [value + 3 for value in expected]
        change(state)
        expect(expected)
    state, _ = step(state, x)
    assert values(state) == [value + 1 for value in expected]


def test_who_was_taken_out_before_is_not_donated() -> None:
    step = adding()
    state = stepped(step, [tensor(n) for n in range(4)], 5)
    kept = state[1]
    state[1] = tensor(100)
    state = stepped(step, state, 1)
    assert values([kept]) == [6.0]
    assert values(state) == [6.0, 101.0, 8.0, 9.0]
    module = stepped(step, Model(1), 5)
    layer = module.layers[0]
    module.layers[0] = Layer(20)
    module = stepped(step, module, 3)
    assert values(layer) == [6.5, 6.0] or values(layer) == [6.0, 6.5]
    assert float(module.layers[0].weight[0, 0]) == 23.0


def test_a_tensor_that_was_looked_at_too_late_is_not_used_again() -> None:
    step = adding()
    state = stepped(step, [tensor(n) for n in range(4)], 5)
    late: Any = state[1]
    state = stepped(step, state, 1)
    assert isinstance(late._node.storage, Donated)
    del late
    for turn in range(4):
        state = stepped(step, state, 1)
        assert values(state[1:2]) == [8.0 + turn]


def test_a_tensor_in_the_place_of_one_that_is_gone_is_another_one() -> None:
    """Whatever its identity."""
    step = adding()
    for turn in range(20):
        state = stepped(step, [tensor(n) for n in range(6)], 4)
        new = [tensor(100) for _ in range(4)]
        gone = id(state[2])
        state[2] = None
        new = [copy.copy(new[0]) for _ in range(40)]
        same = [each for each in new if id(each) == gone]
        state[2] = same[0] if same else new[turn]
        assert values(stepped(step, state, 1)) == [5.0, 6.0, 101.0, 8.0, 9.0, 10.0]


def test_views_of_others_are_never_overwritten() -> None:
    step = adding()
    state = stepped(step, [tensor(n) for n in range(4)], 5)
    seen = np.asarray(state[2])
    state = stepped(step, state, 3)
    assert (seen == 7.0).all()
    assert values(state) == [8.0, 9.0, 10.0, 11.0]


def test_a_part_goes_to_another_function() -> None:
    step = adding()
    other = weft.jit(lambda pair: [each * 2.0 for each in pair], donate="pair")
    state = stepped(step, [tensor(n) for n in range(4)], 5)
    assert values(other(state[:2])) == [10.0, 12.0]
    with pytest.raises(UserError, match=DONATED):
        step(state, tensor(1))
    with pytest.raises(UserError, match=DONATED):
        state[1].numpy()
    assert values(state[2:]) == [7.0, 8.0]


def test_one_tensor_at_two_places() -> None:
    both = weft.jit(lambda a, b: ([x + 1.0 for x in a], [x * 2.0 for x in b]), donate=("a", "b"))
    beside = weft.jit(lambda a, x: ([w + 1.0 for w in a], x * 3.0), donate="a")
    state = [tensor(n) for n in range(3)]
    for _ in range(4):
        state, _ = beside(state, tensor(1))
    first, second = both(state, state)
    assert values(first) == [5.0, 6.0, 7.0]
    assert values(second) == [8.0, 10.0, 12.0]
    for _ in range(4):
        first, seen = beside(first, first[1])
    assert values(first) == [9.0, 10.0, 11.0]
    assert values([seen]) == [27.0]
    model = stepped(adding(), Model(1), 4)
    two = weft.jit(lambda a, b: (a.map(lambda x: x + 1.0), b.layers[0].weight * 2.0), donate="a")
    for _ in range(3):
        model, doubled = two(model, model)
    assert float(model.layers[0].weight[0, 0]) == 8.0
    assert values([doubled]) == [14.0]


def test_one_module_at_two_places() -> None:
    step = adding()
    first, second = stepped(step, [Layer(1), Layer(10)], 4)
    state = stepped(step, [first, first], 2)
    assert values(state) == [7.0, 7.5, 7.0, 7.5]
    assert values(second) == [14.0, 14.5]
    with pytest.raises(UserError, match=DONATED):
        first.weight.numpy()


def test_arguments_of_two_kinds_take_turns() -> None:
    step, x = adding(), tensor(1)
    one, other = [tensor(n) for n in range(3)], [weft.ones((4,)).eval() for _ in range(3)]
    model, record = Model(1), Model(2)
    record.layers = record.layers[:1]
    for _ in range(6):
        one, _ = step(one, x)
        other, _ = step(other, x)
        model, _ = step(model, x)
        record, _ = step(record, x)
    assert values(one) == [6.0, 7.0, 8.0]
    assert other[0].numpy().tolist() == [7.0] * 4
    assert float(model.layers[1].weight[0, 0]) == 8.0
    assert float(record.layers[0].weight[0, 0]) == 8.0


def test_two_states_of_one_kind() -> None:
    step, x = adding(), tensor(1)
    one, other = [tensor(n) for n in range(3)], [tensor(10 * n) for n in range(3)]
    for _ in range(6):
        one, _ = step(one, x)
        other, _ = step(other, x)
    assert values(one) == [6.0, 7.0, 8.0]
    assert values(other) == [6.0, 16.0, 26.0]
