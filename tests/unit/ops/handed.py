"""States that a step takes and gives back: one of every kind of container, and what they hold."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import weft
from weft import nn
from weft.ops.pytree import Structure, flatten

DONATED = r"this tensor was donated at (test_(handing|donated)\w*|handed)\.py:\d+"


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
