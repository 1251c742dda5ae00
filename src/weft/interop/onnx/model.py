"""`weft.onnx.load`: a model in a file as a module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import FunctionProto, ModelProto

from weft.foundation.errors import SpecViolation, Unimplemented, UserError, a_type, brief
from weft.interop.onnx.functions import (
    NEWEST,
    Name,
    check_expansion,
    name_of,
    versions_of,
    warn_of_attributes,
)
from weft.interop.onnx.graph import Graph, Input, Reading, clean, malformed, read_graph
from weft.interop.onnx.interpret import Interpreter, missing_rules
from weft.interop.onnx.rules import RULES
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Array, Value, dtype_of
from weft.ops.array.creation import asarray
from weft.ops.calls import public
from weft.ops.nn.module import Module
from weft.ops.pytree import flatten, unflatten
from weft.ops.tensor import Tensor, from_array
from weft.ptir.files import read_bytes

KNOWN: Final = 64
"""Up to how many integers an initialiser is known to the importer, as shapes and axes are."""


@dataclass(frozen=True, eq=False)
class Network:
    """What does not change in a model: its graph and its functions."""

    graph: Graph
    functions: Mapping[Name, FunctionProto] = field(repr=False, default_factory=dict)
    known: Mapping[str, Array] = field(repr=False, default_factory=dict)
    """Initialisers that are part of the program."""


class Model(Module):
    """A model that was read from ONNX: a function of named tensors, with its weights as
    parameters."""

    buffers = ("constants",)

    def __init__(self, network: Network, trainable: bool) -> None:
        """Made by `weft.onnx.load`."""
        self.network = network
        held = {name: from_array(array) for name, array in _held_constants(network).items()}
        learnt = {n: t for n, t in held.items() if trainable and t.dtype.is_float}
        self.weights: dict[str, Tensor] = learnt
        self.constants = {name: each for name, each in held.items() if name not in learnt}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what it takes, in order."""
        return tuple(each.name for each in self.wanted)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it gives, in order."""
        return self.network.graph.outputs

    input_names, result_names = inputs, outputs

    @property
    def __signature__(self) -> Signature:
        """Its inputs as parameters, where Python can say it: `jit` knows them by these names."""
        if len(self.wanted) != len(self.network.graph.inputs):
            raise AttributeError("an input has a default")
        try:
            return Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in self.inputs])
        except ValueError as error:
            raise AttributeError(str(error)) from None

    @property
    def wanted(self) -> list[Input]:
        """The inputs that have no default."""
        graph = self.network.graph
        return [each for each in graph.inputs if each.name not in graph.constants]

    def held(self) -> dict[str, Array]:
        """The elements of its weights and other tensors, by name."""
        return {name: t.numpy() for name, t in {**self.weights, **self.constants}.items()}

    def __call__(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The outputs by name, for inputs by position or by name. An initialiser that is an input
        too may be given by name, in the place of its own value."""
        given = {
            name: _take_argument(value) for name, value in self._bind_inputs(args, kwargs).items()
        }
        for each in self.network.graph.inputs:
            if each.name in given:
                check_type(each, given[each.name])
        held = {**self.network.known, **self.weights, **self.constants, **given}
        made = Interpreter(self.network.functions).run(self.network.graph, held)
        return dict(zip(self.outputs, map(_result_tensors, made), strict=True))

    def _bind_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self.inputs
        if len(args) > len(names):
            raise UserError(f"{len(args)} inputs are given, and the model takes {len(names)}")
        found = dict(zip(names, args, strict=False))
        known = {each.name for each in self.network.graph.inputs}
        for name, value in kwargs.items():
            if name not in known or name in found:
                why = "given twice" if name in found else "none of the model's"
                raise UserError(f"the input {brief(name)} is {why}; they are {_list_names(names)}")
            found[name] = value
        missing = [name for name in names if name not in found]
        if missing:
            raise UserError(f"the input {missing[0]!r} is not given; they are {_list_names(names)}")
        return found


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "") or "none"


def _held_constants(network: Network) -> dict[str, Array]:
    return {n: a for n, a in network.graph.constants.items() if n not in network.known}


def _take_argument(value: Any) -> Value:
    """What a caller gave, with tensors for arrays and numbers."""
    if isinstance(value, list):
        return [_take_argument(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        dtype_of(np.asarray(value))
    return value if value is None or isinstance(value, Tensor) else asarray(value)


def _result_tensors(value: Value) -> Any:
    """What a caller gets: tensors, also for what was known before."""
    leaves, structure = flatten(value)
    return unflatten(
        structure,
        [
            leaf if isinstance(leaf, Tensor) or leaf is None else _take_argument(leaf)
            for leaf in leaves
        ],
    )


def check_type(wanted: Input, given: Value) -> None:
    """Raise unless a value is what an input is said to be."""
    kind = wanted.type
    if isinstance(given, list) or given is None or not kind.HasField("tensor_type"):
        return
    declared = kind.tensor_type
    dtype = dtype_numbered(declared.elem_type) if declared.elem_type else dtype_of(given)
    if dtype is not dtype_of(given):
        raise SpecViolation(
            "DTypeMismatch",
            f"the input {wanted.name!r} is {given.type}, but the model takes {dtype}",
            f"convert it with .astype({dtype})",
        )
    if not declared.HasField("shape"):
        return
    dims = declared.shape.dim
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    fits = len(sizes) == len(given.shape) and all(
        size is None or not isinstance(have, int) or size == have
        for size, have in zip(sizes, given.shape, strict=False)
    )
    if not fits:
        shown = ", ".join("?" if size is None else str(size) for size in sizes)
        raise SpecViolation(
            "ShapeMismatch",
            f"the input {wanted.name!r} is {given.type}, but the model takes ({shown})",
        )


# -- reading ---------------------------------------------------------------------------------------


@public
def load(source: str | os.PathLike[str] | bytes, *, trainable: bool = False) -> Model:
    """The model in an ONNX file, or in the bytes of one, as a module: called with its inputs, it
    gives its outputs by name. With `trainable` its float initialisers are parameters that an
    optimiser changes."""
    if isinstance(source, bytes | bytearray | memoryview):
        return Model(network_of(parsed(bytes(source), "the model"), None), trainable)
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"[load] a path or bytes are wanted, not {a_type(source)}")
    path = Path(source)
    proto = parsed(read_bytes(path), str(path))
    return Model(network_of(proto, path.parent), trainable)


def from_proto(proto: ModelProto, *, trainable: bool = False) -> Model:
    """The model in a message that was read already."""
    return Model(network_of(proto, None), trainable)


def parsed(data: bytes, what: str) -> ModelProto:
    """The message in bytes."""
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:
        raise malformed(f"{what} is not an ONNX model, or is cut off") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise malformed(f"{what} is not an ONNX model: it has no graph, or imports no operators")
    return proto


def network_of(proto: ModelProto, folder: Path | None) -> Network:
    """The graph and the functions of a model, checked."""
    versions = versions_of(proto.opset_import)
    local = {name_of(each): each for each in proto.functions}
    domains = {name[0] for name in local}
    for domain, version in versions.items():
        newest = NEWEST.get(domain, version if domain in domains else 0)
        if not 1 <= version <= max(newest, 1) and domain not in domains:
            raise Unimplemented(
                "opset",
                f"the model uses version {version} of {domain or 'ai.onnx'!r}; versions 1 to "
                f"{newest} are known",
            )
    check_expansion(proto.graph.node, local)
    graph = read_graph(proto.graph, Reading(versions, folder))
    missing = missing_rules(graph, local)
    if missing:
        listed = ", ".join(
            f"{clean(name)} ({len(nodes)}, first at the node {nodes[0].label!r})"
            for name, nodes in sorted(missing.items())[:20]
        )
        raise Unimplemented("model", f"there is no rule for the operators {listed}")
    warn_of_attributes(proto.graph.node, versions, local)
    return Network(graph, local, _find_known(graph))


def _find_known(graph: Graph) -> dict[str, Array]:
    """Initialisers that shapes may depend on: short integers, and what rules read as values."""
    read = set()
    for node in graph.nodes:
        found = RULES.get((node.domain, node.op))
        if found is not None:
            read |= {name for i, name in enumerate(node.inputs) if i in found.values}
    return {
        name: array
        for name, array in graph.constants.items()
        if name in read
        or array.dtype == object
        or (array.dtype.kind in "iub" and array.size <= KNOWN)
    }
