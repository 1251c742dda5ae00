"""An MLIR module as plain records: what the importer reads, free of jaxlib's objects.

    HloModule   = functions by name
    HloFunction = name, body, whether it is private
    HloBlock    = arguments, operations, the values it returns
    HloOp       = name, operands, results, attributes, blocks, line

Names have no dialect (`add`, whether StableHLO, MHLO or CHLO said it; `func.call` keeps its own).
Values are numbers, unique in the module. Attributes are plain Python values: numbers, texts,
tuples, dictionaries, literals, and the text of whatever is none of these. Those in the dictionaries
of a custom call are what PTIR's custom calls can have, or `MlirText`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from weft.foundation.dtypes import DType
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.bindings import bindings
from weft.interop.stablehlo.dense import DTYPES, read_dense
from weft.interop.stablehlo.quantised import Quantised, read_quantised
from weft.ptir.types import TensorType

DIALECTS: Final = ("stablehlo.", "mhlo.", "chlo.")
_LINE: Final = re.compile(r'"([^"]*)":(\d+):(\d+)')
_MOST_NAME: Final = 60
RANKS: Final = "ranks"
"""The attribute of operations about ranks that says how many replicas and partitions there are."""
MESHES: Final = "meshes"
"""The attribute of manual computations that has the axes of each mesh, by its name."""
_RANK_COUNTS: Final = ("mhlo.num_replicas", "mhlo.num_partitions")
OF_RANKS: Final = frozenset({
    "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
    "partition_id", "reduce_scatter", "replica_id", "sdy.manual_computation",
})  # fmt: skip
_AXIS: Final = re.compile(r'"([^"]*)"=(\d+)')
CALL_DICTIONARIES: Final = ("byteir_attrs", "mhlo.attributes")
"""Where a custom call has the attributes that belong to its target."""


class MlirText(str):
    """An attribute that is neither numbers nor texts, as MLIR writes it."""

    __slots__ = ()


@dataclass(frozen=True)
class HloTensor:
    """A tensor type; a dim that is known only at run time is None. A quantised tensor has the dtype
    of its whole numbers."""

    dtype: DType
    dims: tuple[int | None, ...]
    quantised: Quantised | None = None

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


def tensors(kind: HloType) -> list[HloTensor]:
    """The tensors of a type, in order, however deep they lie in tuples."""
    if isinstance(kind, HloTensor):
        return [kind]
    return [leaf for element in kind.elements for leaf in tensors(element)]


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
    reader = _Reader(
        dict(_attribute_entries(module.operation.attributes, list(module.operation.attributes)))
    )
    found = {}
    for operation in module.body.operations:
        if operation.operation.name == "sdy.mesh":
            reader.note_mesh(operation.attributes)
            continue
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

    def __init__(self, module: Mapping[str, Any]) -> None:
        self.module = module
        """The attributes of the module."""
        self.numbers: dict[Any, int] = {}
        self.meshes: dict[str, tuple[tuple[str, int], ...]] = {}

    def note_mesh(self, attributes: Any) -> None:
        """The axes of a mesh; one whose devices have an order of their own has none."""
        text = str(attributes["mesh"])
        axes = tuple((name, int(size)) for name, size in _AXIS.findall(text))
        name = str(attributes["sym_name"].value)
        if "device_ids" not in text:
            self.meshes[name] = axes

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
            {**_read_attributes(op, name), **self._ranks(name)},
            tuple(self.block(region.blocks[0]) for region in op.regions),
            place,
        )

    def _ranks(self, name: str) -> dict[str, Any]:
        """Which ranks there are, for operations that ask for them; one where nothing is said."""
        if name not in OF_RANKS:
            return {}
        counts = (self.module.get(key) for key in _RANK_COUNTS)
        ranks = tuple(1 if count is None else int(_as_python(count)) for count in counts)
        return {RANKS: ranks, MESHES: self.meshes}


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
    element = str(kind.element_type)
    quantised = read_quantised(element)
    dtype = DTYPES.get(element) if quantised is None else quantised.storage
    if dtype is None:
        raise Unimplemented(
            f"element type {element[:_MOST_NAME]}", f"PTIR does not have it; {where}"
        )
    missing = ir.ShapedType.get_dynamic_size()
    dims = tuple(None if dim == missing else int(dim) for dim in kind.shape)
    return HloTensor(dtype, dims, quantised)


# -- attributes ----------------------------------------------------------------------------------


def _read_attributes(op: Any, name: str) -> dict[str, Any]:
    if name == "constant":
        # The bindings have no class for constants of complex numbers, but all have a text.
        text = op.get_asm(print_generic_op_form=True, use_local_scope=True)
        dense = text[text.index("value = ") + len("value = ") : text.rindex("}>")]
        kind = read_type(op.results[0].type, name)
        return {"value": _literal(dense, kind)}
    carried = CALL_DICTIONARIES if name == "custom_call" else ()
    found = {
        key: _read_dictionary(value) if key in carried else _as_python(value)
        for key, value in _attribute_entries(op.attributes, list(op.attributes))
    }
    if isinstance(found.get("backend_config"), dict):
        # A record can hold anything, and is only ever written again.
        found["backend_record"] = str(op.attributes["backend_config"])
        del found["backend_config"]
    return found


def _attribute_entries(attributes: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    """Attributes with their names. They are asked for by name: where the bindings have no class for
    one, that is an exception, while an entry's own `attr` would end the process."""
    for name in names:
        try:
            yield name, attributes[name]
        except TypeError:
            raise Unimplemented(
                f"attribute {name[:_MOST_NAME]}", "MLIR's bindings cannot read a value of its kind"
            ) from None


def _literal(text: str, kind: HloType) -> Any:
    if not isinstance(kind, HloTensor) or not kind.is_static:
        raise Unimplemented("constant", "its type is dynamic")
    shape = tuple(dim for dim in kind.dims if dim is not None)
    return read_dense(text[: text.rindex(" : ")], TensorType(kind.dtype, shape))


def _as_python(attribute: Any) -> Any:
    ir = bindings().ir
    match attribute:
        case ir.BoolAttr() | ir.StringAttr() | ir.FloatAttr():
            return attribute.value
        case ir.IntegerAttr():
            return int(str(attribute).partition(" ")[0])
        case ir.FlatSymbolRefAttr():
            return attribute.value
        case ir.ArrayAttr():
            return tuple(_as_python(element) for element in attribute)
        case ir.DictAttr():
            names = [named.name for named in attribute]
            return {key: _as_python(value) for key, value in _attribute_entries(attribute, names)}
        case ir.DenseElementsAttr():
            kind = read_type(attribute.type, "an attribute")
            return _literal(str(attribute), kind).array
    if type(attribute).__name__.endswith("ArrayAttr"):
        return tuple(attribute)
    return str(attribute)


def _read_dictionary(attributes: Any) -> Any:
    """The dictionary of a custom call."""
    if not isinstance(attributes, bindings().ir.DictAttr):
        return _as_python(attributes)
    names = [named.name for named in attributes]
    return {key: _call_attribute(value) for key, value in _attribute_entries(attributes, names)}


def _call_attribute(attribute: Any) -> Any:
    """A number, a text or a list of one kind of these; whatever is none of them as its text."""
    ir = bindings().ir
    text = MlirText(str(attribute))
    match attribute:
        case ir.BoolAttr() | ir.StringAttr() | ir.FloatAttr():
            return attribute.value
        case ir.IntegerAttr():
            number = _as_python(attribute)
            return number if -(2**63) <= number < 2**63 else text
        case ir.ArrayAttr():
            try:
                found = _list_of_one_kind([_call_attribute(element) for element in attribute])
            except TypeError:  # the bindings have no class for an element
                return text
            return text if found is None else found
        case ir.DenseElementsAttr():
            kind = attribute.type
            if not isinstance(kind, ir.RankedTensorType) or kind.rank > 1:
                return text
            found = _list_of_one_kind(np.atleast_1d(_as_python(attribute)).tolist())
            if found is None:
                return text
            return found if kind.rank else found[0]
    return _as_python(attribute) if type(attribute).__name__.endswith("ArrayAttr") else text


def _list_of_one_kind(values: list[Any]) -> tuple[Any, ...] | None:
    """The values, if PTIR has lists of their kind."""
    kinds = set(map(type, values))
    return tuple(values) if len(kinds) <= 1 and kinds <= {bool, int, float, str} else None
