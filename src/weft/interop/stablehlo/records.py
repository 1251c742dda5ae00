"""An MLIR module as plain records: what the importer reads, free of jaxlib's objects.

    HloModule   = functions by name
    HloFunction = name, body, whether it is private
    HloBlock    = arguments, operations, the values it returns
    HloOp       = name, operands, results, attributes, blocks, line

Names have no dialect (`add`, whether StableHLO, MHLO or CHLO said it; `func.call` keeps its own).
Values are numbers, unique in the module. Attributes are plain Python values: numbers, texts,
tuples, dictionaries, literals, and the text of whatever is none of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.bindings import bindings
from weft.interop.stablehlo.dense import DTYPES, read_dense
from weft.ptir.types import TensorType

DIALECTS: Final = ("stablehlo.", "mhlo.", "chlo.")
_LINE: Final = re.compile(r'"([^"]*)":(\d+):(\d+)')
_MOST_NAME: Final = 60


@dataclass(frozen=True)
class HloTensor:
    """A tensor type; a dim that is known only at run time is None."""

    dtype: DType
    dims: tuple[int | None, ...]

    @property
    def is_static(self) -> bool:
        return None not in self.dims

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if dim is None else str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class HloTuple:
    """A tuple type."""

    elements: tuple[HloType, ...]


HloType: TypeAlias = HloTensor | HloTuple


@dataclass(frozen=True)
class HloOp:
    """One operation."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[HloType, ...]
    attributes: Mapping[str, Any]
    blocks: tuple[HloBlock, ...]
    place: str
    """The line of the text, or the place that the text itself gives."""


@dataclass(frozen=True)
class HloBlock:
    """A straight line of operations."""

    arguments: tuple[int, ...]
    types: tuple[HloType, ...]
    ops: tuple[HloOp, ...]
    returned: tuple[int, ...]


@dataclass(frozen=True)
class HloFunction:
    """A function with a body."""

    name: str
    block: HloBlock
    private: bool


def read_module(module: Any) -> dict[str, HloFunction]:
    """The functions of a parsed module, by name, in its order."""
    reader = _Reader()
    found = {}
    for operation in module.body.operations:
        if operation.operation.name != "func.func":
            what = operation.operation.name
            raise Unimplemented(what, f"a module holds functions only; {place_of(operation)}")
        name = str(operation.attributes["sym_name"].value)
        private = "sym_visibility" in operation.attributes
        if len(operation.regions[0].blocks) != 1:
            raise Unimplemented(f"@{name}", "a function has one block; this one has none or more")
        block = reader.block(operation.regions[0].blocks[0])
        found[name] = HloFunction(name, block, private)
    return found


class _Reader:
    """Numbers the values of a module while it reads them."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def block(self, block: Any) -> HloBlock:
        arguments = tuple(self.number(argument) for argument in block.arguments)
        types = tuple(read_type(argument.type, "an argument") for argument in block.arguments)
        *ops, last = list(block.operations)
        returned = tuple(self.number(value) for value in last.operation.operands)
        read = tuple(self.op(op.operation) for op in ops)
        return HloBlock(arguments, types, read, returned)

    def op(self, op: Any) -> HloOp:
        place = place_of(op)
        name = op.name
        for dialect in DIALECTS:
            name = name.removeprefix(dialect)
        for region in op.regions:
            if len(region.blocks) != 1:
                raise Unimplemented(name, f"a region of it has {len(region.blocks)} blocks")
        return HloOp(
            name,
            tuple(self.number(value) for value in op.operands),
            tuple(self.number(value) for value in op.results),
            tuple(read_type(value.type, f"{name}, {place}") for value in op.results),
            _attributes(op, name),
            tuple(self.block(region.blocks[0]) for region in op.regions),
            place,
        )


def place_of(op: Any) -> str:
    """`line 7`, or `model.py:12` where the text says what its line came from."""
    found = _LINE.search(str(op.location))
    if found is None:
        return "an unknown line"
    return f"line {found[2]}" if found[1] in ("-", "") else f"{found[1]}:{found[2]}"


def read_type(kind: Any, where: str) -> HloType:
    """The record of an MLIR type."""
    ir = bindings().ir
    if isinstance(kind, ir.TupleType):
        elements = (kind.get_type(index) for index in range(kind.num_types))
        return HloTuple(tuple(read_type(element, where) for element in elements))
    if not isinstance(kind, ir.RankedTensorType):
        raise Unimplemented(str(kind)[:_MOST_NAME], f"the type has no counterpart in PTIR; {where}")
    dtype = DTYPES.get(str(kind.element_type))
    if dtype is None:
        raise Unimplemented(
            f"element type {str(kind.element_type)[:_MOST_NAME]}", f"PTIR does not have it; {where}"
        )
    missing = ir.ShapedType.get_dynamic_size()
    return HloTensor(dtype, tuple(None if dim == missing else int(dim) for dim in kind.shape))


# -- attributes ----------------------------------------------------------------------------------


def _attributes(op: Any, name: str) -> dict[str, Any]:
    if name == "constant":
        # The bindings have no class for constants of complex numbers, but all have a text.
        text = op.get_asm(print_generic_op_form=True, use_local_scope=True)
        dense = text[text.index("value = ") + len("value = ") : text.rindex("}>")]
        kind = read_type(op.results[0].type, name)
        return {"value": _literal(dense, kind)}
    found = {str(key): _plain(op.attributes[key]) for key in op.attributes}
    if isinstance(found.get("backend_config"), dict):
        # A record can hold anything, and is only ever written again.
        found["backend_record"] = str(op.attributes["backend_config"])
        del found["backend_config"]
    return found


def _literal(text: str, kind: HloType) -> Any:
    if not isinstance(kind, HloTensor) or not kind.is_static:
        raise Unimplemented("constant", "its type is dynamic")
    shape = tuple(dim for dim in kind.dims if dim is not None)
    return read_dense(text[: text.rindex(" : ")], TensorType(kind.dtype, shape))


def _plain(attribute: Any) -> Any:
    ir = bindings().ir
    match attribute:
        case ir.BoolAttr() | ir.StringAttr() | ir.FloatAttr():
            return attribute.value
        case ir.IntegerAttr():
            return int(str(attribute).partition(" ")[0])
        case ir.FlatSymbolRefAttr():
            return attribute.value
        case ir.ArrayAttr():
            return tuple(_plain(element) for element in attribute)
        case ir.DictAttr():
            return {named.name: _plain(named.attr) for named in attribute}
        case ir.DenseElementsAttr():
            kind = read_type(attribute.type, "an attribute")
            return _literal(str(attribute), kind).array
    if type(attribute).__name__.endswith("ArrayAttr"):
        return tuple(attribute)
    return str(attribute)
