"""The table of operators: for each one, a function of Weft's tensors.

    @rule("Reshape", values=(1,))
    def reshape(call, x, shape): ...

A rule gets its operands by position: tensors, those named in `values` as arrays, which are read
where they are not known, and None for what is left out. What it gives is one value, or a tuple of
them. Where all operands are known, so is the result: the same rule is carried out on the spot. A
`raw` rule gets values as they are, and decides itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from weft.foundation.errors import SpecViolation, brief
from weft.interop.onnx.graph import Graph, Node
from weft.interop.onnx.values import Array, Value, array, is_array, value_as_tensor
from weft.ops.default_backend import graph
from weft.ops.tensor import Tensor

FOLDED: Final = 65_536
"""Up to how many elements known operands are computed with at once."""


class Runs(Protocol):
    """What carries out the subgraphs of a node."""

    def __call__(self, body: Graph, inputs: list[Value]) -> list[Value]: ...


@dataclass(frozen=True)
class Call:
    """One use of an operator: its node, and how its subgraphs are run."""

    node: Node
    run: Runs
    scope: Mapping[str, Value] = field(default_factory=dict)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or what stands for it where it is left out."""
        return self.node.attributes.get(name, default)

    def need(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.node.attributes:
            raise SpecViolation("MalformedModel", f"the attribute {name!r} is missing")
        return self.node.attributes[name]

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """An attribute that is one of a few words."""
        found = self.attr(name, default)
        if found not in choices:
            raise SpecViolation("MalformedModel", f"the attribute {name!r} is {brief(found)}")
        return str(found)

    def ints(self, given: Array | None, name: str, default: Any = None) -> list[int] | Any:
        """Numbers that are an operand in newer versions and an attribute in older ones."""
        if given is not None:
            if given.dtype.kind not in "iu":
                raise SpecViolation("MalformedModel", f"{name} are integers, not {given.dtype}")
            return [int(each) for each in np.asarray(given).reshape(-1)]
        return self.attr(name, default)

    @property
    def version(self) -> int:
        return self.node.version

    @property
    def results(self) -> int:
        """How many results are wanted, up to the last that has a name."""
        named = [index for index, name in enumerate(self.node.outputs) if name]
        return named[-1] + 1 if named else 0


@dataclass(frozen=True)
class Rule:
    """How an operator is carried out."""

    function: Callable[..., Value]
    values: frozenset[int] = frozenset()
    raw: bool = False

    def __call__(self, call: Call, operands: list[Value]) -> tuple[Value, ...]:
        if self.raw:
            return _as_tuple(self.function(call, *operands))
        given = [each for each in operands if each is not None]
        known = bool(given) and all(map(is_array, given))
        if not known or sum(each.size for each in given) > FOLDED:
            return _as_tuple(self.function(call, *self._take_operands(call, operands)))
        with graph(backend="reference"):
            made = _as_tuple(self.function(call, *self._take_operands(call, operands)))
            if all((each.size or 0) <= FOLDED for each in made if isinstance(each, Tensor)):
                return tuple(each.numpy() if isinstance(each, Tensor) else each for each in made)
        return _as_tuple(self.function(call, *self._take_operands(call, operands)))

    def _take_operands(self, call: Call, operands: list[Value]) -> list[Value]:
        """The operands as the rule wants them."""
        found: list[Value] = []
        for index, value in enumerate(operands):
            if value is None or isinstance(value, list):
                found.append(value)
            elif index in self.values:
                found.append(array(value, f"operand {index} ({call.node.inputs[index]})"))
            else:
                found.append(value_as_tensor(value))
        return found


def _as_tuple(made: Value) -> tuple[Value, ...]:
    return made if isinstance(made, tuple) else (made,)


RULES: Final[dict[tuple[str, str], Rule]] = {}
"""Every operator that there is a rule for, by domain and name."""


def rule(
    *names: str, domain: str = "", values: Collection[int] = (), raw: bool = False
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Make a function the rule of operators."""

    def enter(function: Callable[..., Value]) -> Callable[..., Value]:
        for name in names:
            RULES[domain, name] = Rule(function, frozenset(values), raw)
        return function

    return enter
