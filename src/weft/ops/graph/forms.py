"""From an op's name, operand types and attributes to its `Form`, checked once, then looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weft.foundation.dims import UNKNOWN, Shape, Symbol
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError, UserError, brief
from weft.foundation.memo import forgettable
from weft.ops.graph.node import Form, Fragment, canonical
from weft.ptir.builder import make_op
from weft.ptir.op import SPELLINGS, Op, RegionSignature
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.ptir.verify import check_type

_FORMS: dict[Any, Form] = {}
_CASTS: dict[tuple[int, DType], Form] = {}
_BROADCASTS: dict[tuple[int, Shape], Form] = {}
_ELEMENTS: dict[tuple[int, int], Form] = {}
MOST_FORMS: Final = 1 << 16
"""From how many on they are forgotten, and begin anew: a loop may slice at ever new places."""
_derived_symbols = 0


def _forget() -> None:
    for table in (_FORMS, _CASTS, _BROADCASTS, _ELEMENTS):
        table.clear()


forgettable(_forget)


def _keep_form(key: Any, made: Form) -> Form:
    """The form under a key, from now on."""
    if len(_FORMS) >= MOST_FORMS:
        _forget()
    return _FORMS.setdefault(key, made)


class _Scope:
    """What a type rule may ask: regions are at hand, and every symbol is bound by an operand."""

    def __init__(self, fragments: tuple[Fragment, ...]) -> None:
        self._fragments = fragments

    def region(self, region_id: int) -> RegionSignature:
        return self._fragments[region_id].signature

    def is_bound(self, symbol: Symbol) -> bool:
        return True


def plain_form(name: str, *types: ValueType) -> Form:
    """The form of an op without attributes."""
    key = (name, *map(id, types))
    found = _FORMS.get(key)
    return _keep_form(key, _make(name, types, {})) if found is None else found


def form(name: str, types: tuple[ValueType, ...], attrs: Mapping[str, Any]) -> Form:
    """The form of an op with its attributes; it is looked up where they have hashes, as tuples do
    and lists do not."""
    key = (name, *map(id, types), *[_attribute_key(item) for item in attrs.items()])
    try:
        found = _FORMS.get(key)
    except TypeError:
        return _make(name, types, attrs)
    return _keep_form(key, _make(name, types, attrs)) if found is None else found


def cast_form(kind: ValueType, dtype: DType) -> Form:
    """The conversion of this type to a dtype."""
    found = _CASTS.get((id(kind), dtype))
    if found is None:
        found = _CASTS[id(kind), dtype] = form("cast", (kind,), {"dtype": dtype})
    return found


def broadcast_form(kind: ValueType, shape: Shape) -> Form:
    """The broadcast of this type to a shape."""
    found = _BROADCASTS.get((id(kind), shape))
    if found is None:
        found = form("broadcast_to", (kind,), {"result_shape": shape})
        _BROADCASTS[id(kind), shape] = found
    return found


def form_of(op: Op, types: tuple[ValueType, ...], fragments: tuple[Fragment, ...] = ()) -> Form:
    """The form of an op that is already made; control flow brings its regions."""
    if op.foreign or any(i.op.foreign for f in fragments for r in f.regions for i in r.body):
        # What is found again is never forgotten, and a function of the user's must be.
        return _infer_form(op, types, fragments)
    key = (op, *map(id, types), *fragments)
    found = _FORMS.get(key)
    if found is None:
        found = _keep_form(key, _infer_form(op, types, fragments))
    return found


def element_form(kind: ValueType, index: int) -> Form:
    """The form of a node that is element `index` of a tuple."""
    key = (id(kind), index)
    found = _ELEMENTS.get(key)
    if found is None:
        if not isinstance(kind, TupleType):
            raise InternalError(f"{kind} has no elements")
        found = _ELEMENTS.setdefault(key, Form(None, kind.elements[index], element=index))
    return found


def _attribute_key(item: tuple[str, Any]) -> Any:
    """An attribute as part of a key: 0.0 and -0.0, 1 and True are different attributes."""
    value = item[1]
    kind = type(value)
    return (item[0], kind, value.hex() if kind is float else value)


def _make(name: str, types: tuple[ValueType, ...], attrs: Mapping[str, Any]) -> Form:
    if not isinstance(name, str) or name not in SPELLINGS:
        raise UserError(f"there is no op called {brief(name)}")
    cls, fixed = SPELLINGS[name]
    return _infer_form(make_op(cls, types, {**fixed, **attrs}), types, ())


def _infer_form(op: Op, types: tuple[ValueType, ...], fragments: tuple[Fragment, ...]) -> Form:
    inferred = op.result_type(types, _Scope(fragments))
    declared = _name_dims(inferred)
    check_type(declared)
    return Form(op, canonical(declared), fragments)


def _name_dims(kind: ValueType) -> ValueType:
    """The type with a name for every dim that could not be inferred. Such a dim is a function of
    the operand types, so that one name serves every instruction of this form."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(_name_dims(element) for element in kind.elements))
    if UNKNOWN not in kind.shape:
        return kind
    return TensorType(kind.dtype, tuple(_symbol() if d == UNKNOWN else d for d in kind.shape))


def _symbol() -> Symbol:
    global _derived_symbols  # noqa: PLW0603
    _derived_symbols += 1
    return Symbol(f"d{_derived_symbols}")
