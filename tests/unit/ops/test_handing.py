"""Results that are handed on from call to call: made anew in every call, for all that anybody can
see, whether somebody looks at them or not."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from weft import nn
from weft.foundation.errors import UserError, WeftError
from weft.ops.graph.node import Donated, Node
from weft.ops.pytree import Structure, flatten, leaves_like
from weft.ops.tensor import Tensor

DONATED = r"this tensor was donated at test_handing\.py:\d+"


@pytest.fixture(autouse=True, params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    before = weft.default_backend()
    weft.set_default_backend(request.param)
    yield request.param
    weft.set_default_backend(before)


def structure_of(value: Any) -> Structure:
    return flatten(value)[1]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    tensors: list[Any]
    other: Any
    name: str = field(default="a", metadata={"static": True})


class Layer(nn.Module):
    def __init__(self, value: float) -> None:
        self.weight = tensor(value)
        self.bias = tensor(value + 0.5)
        self.scale = 2

    def __call__(self, x: Any) -> Any:
        return x * self.weight + self.bias


class Model(nn.Module):
    def __init__(self, value: float) -> None:
        self.layers = [Layer(value), Layer(value + 1)]
        self.table = {"a": tensor(value + 2), "b": (tensor(value + 3),)}


class Shadowed(nn.Module):
    """What the class has is found before what the module lacks."""

    weight: Any = None

    def __init__(self, value: float) -> None:
        self.weight = tensor(value)
        self.inner = Layer(value + 1)


class Looking(nn.Module):
    """A module with a way of its own to look up attributes."""

    def __init__(self, value: float) -> None:
        self.weight = tensor(value)

    def __getattr__(self, name: str) -> Any:
        return 0 if name == "nothing" else super().__getattr__(name)  # type: ignore[misc]


def tensor(value: float) -> Any:
    return weft.asarray(np.full((2, 3), value, np.float32)).eval()


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [tensor(n) for n in range(4)],
    "tuple": lambda: tuple(tensor(n) for n in range(4)),
    "dict": lambda: {"b": tensor(1), "a": tensor(2)},
    "ordered": lambda: OrderedDict(b=tensor(1), a=[tensor(2), None]),
    "defaultdict": lambda: defaultdict(list, a=tensor(1), b=[tensor(2)]),
    "named tuple": lambda: Pair(tensor(1), [tensor(2), {"c": tensor(3)}]),
    "dataclass": lambda: Record([tensor(1), tensor(2)], tensor(3), "b"),
    "module": lambda: Model(1),
    "modules": lambda: [Model(1), Layer(7)],
    "modules and tensors": lambda: {"m": Model(1), "t": [tensor(8)], "u": Layer(2), "v": tensor(9)},
    "a shadowed attribute": lambda: [Shadowed(1), tensor(3)],
    "a look-up of its own": lambda: {"a": Looking(1), "b": tensor(2)},
    "one tensor in a list": lambda: [tensor(1)],
}


def adding() -> Any:
    """A step that adds one to all it is given, and says how much there is."""

    def step(state: Any, x: Any) -> Any:
        return weft.tree.map(lambda w: w + 1.0, state), (x * 2.0).sum()

    return weft.jit(step, donate="state")


def values(state: Any) -> list[float]:
    found = []
    for leaf in flatten(state)[0]:
        array = leaf.numpy()
        assert array.shape == (2, 3)
        assert (array == array[0, 0]).all()
        found.append(float(array[0, 0]))
    return found


def stepped(step: Any, state: Any, turns: int) -> Any:
    x = tensor(1)
    for _ in range(turns):
        state, total = step(state, x)
    assert float(total) == 12.0
    return state


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
    "an instruction": lambda state: state[0] + 1.0,
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


# -- modules that nobody has looked at -----------------------------------------------------------


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


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
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


# -- around a call -------------------------------------------------------------------------------


def test_an_error_leaves_the_arguments_as_they_were(backend: str) -> None:
    @weft.jit(donate="state")  # type: ignore[untyped-decorator]
    def step(state: Any, at: Any) -> Any:
        return [w + weft.take(w, at, axis=0).sum() * 0.0 + 1.0 for w in state]

    good, bad = weft.asarray(np.array([1], np.int32)), weft.asarray(np.array([7], np.int32))
    state: Any = [tensor(n) for n in range(4)]
    for _ in range(4):
        state = step(state, good)
    with pytest.raises(WeftError):
        step(state, bad)
    if backend == "reference":
        assert values(state) == [4.0, 5.0, 6.0, 7.0]
    state = step(state, good)
    assert len(values(state)) == 4


def test_calls_inside_of_traces() -> None:
    inner = adding()

    @weft.jit(donate="state")  # type: ignore[untyped-decorator]
    def outer(state: Any, x: Any) -> Any:
        state, total = inner(state, x)
        return state, total

    state = stepped(outer, [tensor(n) for n in range(4)], 5)
    state = stepped(inner, state, 4)
    state = stepped(outer, state, 2)
    slopes = weft.grad(lambda s: (s[0] * s[1]).sum())(state)
    assert values(slopes) == [12.0, 11.0, 0.0, 0.0]
    mapped = weft.vmap(lambda s: s[0] + s[3])(state)
    assert values([mapped]) == [11.0 + 14.0]
    captured = weft.jit(lambda x: x + state[2])
    assert values([captured(tensor(1))]) == [14.0]
    state = stepped(outer, state, 1)
    assert values([captured(tensor(1))]) == [15.0]


def test_a_model_that_is_called_between_its_steps() -> None:
    @weft.jit(donate="model")  # type: ignore[untyped-decorator]
    def step(model: Any) -> Any:
        return model.map(lambda w: w + 1.0)

    look = weft.jit(lambda model, x: model.layers[0](x))
    model, x = Model(1), tensor(1)
    for turn in range(6):
        model = step(model)
        if turn % 2:
            assert values([look(model, x)]) == [2 * (turn + 2) + 0.5]


def test_other_results_are_the_callers_own() -> None:
    step, x = adding(), weft.asarray(np.ones((2, 3), np.float32))
    state, totals = [tensor(n) for n in range(4)], []
    for turn in range(6):
        state, total = step(state, x * float(turn))
        totals.append(total)
    assert [float(total) for total in totals] == [12.0 * turn for turn in range(6)]


def test_the_same_tensor_twice_among_the_results() -> None:
    step = weft.jit(lambda s: ([s[0] + 1.0, s[1]], s[1], s[0] + 1.0), donate="s")
    state, olds = [tensor(1), tensor(2)], []
    for _ in range(5):
        state, same, again = step(state)
        olds.append((same, again))
    assert [values(each) for each in olds] == [[2.0, n + 2.0] for n in range(5)]


def test_threads_hand_on_their_own() -> None:
    step, found = adding(), {}

    def work(number: int) -> None:
        state: Any = [tensor(number + n) for n in range(6)]
        x, older = tensor(1), None
        for turn in range(150):
            if turn % 7 == 0:
                older = state[2]
            if turn % 5 == 0:
                assert values(state[:1]) == [float(number + turn)]
            state, _ = step(state, x)
            if turn % 7 == 0:
                with pytest.raises(UserError, match=DONATED):
                    older.numpy()  # type: ignore[union-attr]
        found[number] = values(state)

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {10 * n: [150.0 + 10 * n + k for k in range(6)] for n in range(4)}


def test_threads_that_look_at_one_tensor_see_one_node() -> None:
    step = adding()
    for _ in range(30):
        state = stepped(step, [Model(1), [tensor(5)]], 3)
        start = threading.Barrier(4)
        seen: list[Any] = []

        def look(state: Any = state, start: Any = start, seen: Any = seen) -> None:
            start.wait()
            seen.append((state[1][0]._node, state[0].layers, state[0].table["a"]._node))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({tuple(map(id, each)) for each in seen}) == 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_user_does(seed: int) -> None:
    """Steps, looks, changes and things kept, in any order, against numbers that are kept beside."""
    rng = random.Random(seed)
    step, x = adding(), tensor(1)
    state, expected = KINDS["list"](), [0.0, 1.0, 2.0, 3.0]
    kept: list[tuple[Tensor, float]] = []
    donated: list[Tensor] = []
    for _ in range(80):
        action, at = rng.random(), rng.randrange(4)
        if action < 0.5:
            given = set(map(id, state))
            state, _ = step(state, x)
            expected = [value + 1 for value in expected]
            donated += [leaf for leaf, _ in kept if id(leaf) in given]
            kept = [(leaf, value) for leaf, value in kept if id(leaf) not in given]
        elif action < 0.6:
            assert values(state[at : at + 1]) == [expected[at]]
        elif action < 0.7:
            kept.append((state[at], expected[at]))
        elif action < 0.8:
            state[at] = tensor(expected[at])
        elif action < 0.85:
            state = list(state)
        elif action < 0.9:
            kept, donated = kept[1:], donated[at:]
        else:
            assert values([leaf for leaf, _ in kept]) == [value for _, value in kept]
            for leaf in donated:
                with pytest.raises(UserError, match=DONATED):
                    leaf.numpy()
    assert values(state) == expected
