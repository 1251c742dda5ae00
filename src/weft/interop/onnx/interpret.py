"""Running a graph: node by node, each by its rule, or by the function that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onnx import FunctionProto

from weft.foundation.errors import (
    Finding,
    ResourceExceeded,
    SpecViolation,
    Unimplemented,
    UserError,
    WeftError,
    brief,
    clipped,
    placed,
)
from weft.foundation.limits import current
from weft.foundation.lines import inside_layer
from weft.interop.onnx.functions import (
    Name,
    body_of,
    check_arity,
    is_described,
    schema_function,
)
from weft.interop.onnx.graph import Graph, Node, malformed
from weft.interop.onnx.rules import RULES
from weft.interop.onnx.table import Call
from weft.interop.onnx.values import Value

_DEEPEST: Final = 48
"""How deep functions may call functions."""
_TOLD: Final = "the node "
_MISFITS: Final = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError,
    RecursionError,
)  # fmt: skip
"""What Python and NumPy raise where a rule meets operands or attributes that it does not expect."""


@dataclass
class Scope:
    """Values by name; those of the graph around it are seen too."""

    outer: Mapping[str, Value] | None = None
    values: dict[str, Value] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise malformed(f"nothing gives {brief(name)}")
        return self.outer[name]


@dataclass
class Interpreter:
    """Runs the graphs of one model."""

    functions: Mapping[Name, FunctionProto]
    bodies: dict[tuple[object, ...], Graph] = field(default_factory=dict)
    active: list[Name] = field(default_factory=list)
    """The functions that are being run."""
    steps: int = 0
    """How many nodes of loops and functions were run: these may stand for very many."""
    described: int = 0
    """How many of the active functions are ONNX's descriptions of operators."""

    def run(
        self, graph: Graph, given: Mapping[str, Value], outer: Scope | None = None
    ) -> list[Value]:
        """The outputs of a graph."""
        scope = Scope(outer, {**graph.constants, **given})  # type: ignore[arg-type]
        for node, done in zip(graph.nodes, graph.last_uses, strict=True):
            try:
                if outer is not None or self.active:
                    self._count()
                with inside_layer(node.label):
                    made = self.apply(node, scope)
            except WeftError as error:
                raise self._add_node(error, node) from None
            except _MISFITS as error:
                raise self._add_node(_misfit(error), node) from error
            except MemoryError:
                short = ResourceExceeded("it needs more memory than there is")
                raise self._add_node(short, node) from None
            for name, value in zip(node.outputs, made, strict=False):
                if name:
                    scope.values[name] = value
            for name in done:
                scope.values.pop(name, None)
        return [scope[name] if name else None for name in graph.outputs]

    def _add_node(self, error: WeftError, node: Node) -> WeftError:
        """The error with the node; those of ONNX's own descriptions are not in the file."""
        return error if self.described else _name_node(error, node)

    def _count(self) -> None:
        self.steps += 1
        if self.steps > current().loop_steps:
            raise ResourceExceeded(
                f"its loops and functions take over {current().loop_steps:,} steps; raise "
                "WEFT_MAX_LOOP_STEPS if this is meant"
            )

    def apply(self, node: Node, scope: Scope) -> tuple[Value, ...]:
        """The results of one node."""
        operands = [scope[name] if name else None for name in node.inputs]
        key = (node.domain, node.op, node.overload)
        if key in self.functions:
            return self.call(node, self.functions[key], operands, key)
        found = RULES.get((node.domain, node.op))
        if found is not None:
            check_arity(node)
            made = found(Call(node, self._subgraphs(scope)), operands)
            if len(made) != 1 or made[0] is not NotImplemented:
                return made
        function = schema_function(node, operands)
        if function is None:
            raise Unimplemented(
                f"{_TOLD}{node}", f"there is no rule for it in {_operator_set_text(node)}"
            )
        return self.call(node, function, operands, None)

    def call(
        self, node: Node, function: FunctionProto, operands: list[Value], key: Name | None
    ) -> tuple[Value, ...]:
        """The results of a function, with its body run in a scope of its own."""
        name = key or (node.domain, node.op, "")
        if name in self.active or len(self.active) > _DEEPEST:
            raise malformed(f"the function {name[1]} calls itself")
        if len(operands) > len(function.input):
            raise malformed(f"{len(operands)} operands are given, not {len(function.input)}")
        body = self._body(node, function, key)
        filled = [*operands, *[None] * (len(function.input) - len(operands))]
        self.active.append(name)
        self.described += key is None
        try:
            return tuple(self.run(body, dict(zip(function.input, filled, strict=True))))
        finally:
            self.active.pop()
            self.described -= key is None

    def _body(self, node: Node, function: FunctionProto, key: Name | None) -> Graph:
        if key is None:  # the body depends on the types of the operands
            return body_of(function, node)
        if (key, id(node)) not in self.bodies:
            self.bodies[key, id(node)] = body_of(function, node)
        return self.bodies[key, id(node)]

    def _subgraphs(self, scope: Scope) -> _Subgraphs:
        return _Subgraphs(self, scope)


@dataclass(frozen=True)
class _Subgraphs:
    """Runs graphs that see a scope."""

    interpreter: Interpreter
    scope: Scope

    def __call__(self, body: Graph, inputs: list[Value]) -> list[Value]:
        if len(inputs) != len(body.inputs):
            raise malformed(
                f"graph {body.name!r} takes {len(body.inputs)} inputs, and gets {len(inputs)}"
            )
        names = [each.name for each in body.inputs]
        return self.interpreter.run(body, dict(zip(names, inputs, strict=True)), self.scope)


def missing_rules(graph: Graph, functions: Mapping[Name, FunctionProto]) -> dict[str, list[Node]]:
    """The operators of a graph that nobody knows, and the nodes that use each."""
    found: dict[str, list[Node]] = {}
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            waiting += [v for v in node.attributes.values() if isinstance(v, Graph)]
            local = (node.domain, node.op, node.overload) in functions
            if not local and (node.domain, node.op) not in RULES and not is_described(node):
                name = f"{node.domain}.{node.op}" if node.domain else node.op
                found.setdefault(name, []).append(node)
    return found


def _operator_set_text(node: Node) -> str:
    return f"version {node.version} of the operators {node.domain or 'ai.onnx'!r}"


def _misfit(error: Exception) -> SpecViolation:
    """What does not fit an operator, where nothing more exact was said."""
    why = f"its operands or attributes do not fit: {brief(str(error), 200)}"
    return SpecViolation("MalformedModel", why)


def _name_node(error: WeftError, node: Node) -> WeftError:
    """The error with the node in its sentence, unless a node inside of this one is there. The place
    of an error is the user's line, which says nothing about the model."""
    if _TOLD in str(error):
        return error
    said = f"{_TOLD}{node}"
    if isinstance(error, SpecViolation):
        return type(error).of(
            [Finding(f.code, f.where, _behind_name(said, f.why), f.hint) for f in error.findings]
        )
    if isinstance(error, UserError):
        return type(error)(_behind_name(said, error.why), error.code, error.where)
    if isinstance(error, Unimplemented):
        return placed(Unimplemented(said, error.reason), error.where)
    error.args = (clipped(f"{said}: {error}"),)
    return error


def _behind_name(said: str, why: str) -> str:
    """A sentence about the node, behind the `[name]` of the function that was called."""
    name, bracket, rest = why.partition("] ")
    return f"{name}] {said}: {rest}" if bracket and why.startswith("[") else f"{said}: {why}"
