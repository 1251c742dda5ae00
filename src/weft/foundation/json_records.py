"""Records as JSON objects and back, by the fields of their classes.

An object has the fields of the record, in order and under their names. Types say how a value is
written: numbers, texts, dtypes, enumerations, other records, tuples and dicts of these; what else
there is, a stage says (`Text`, `Object`). A field without a value or with its default is left out.
Metadata of a field say where it is otherwise:

    kind: AxisKind = field(default=AxisKind.ITER, metadata=SAID)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, is_dataclass
from dataclasses import fields as fields_of
from enum import Enum
from functools import partial, reduce
from operator import attrgetter, or_
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, Guard
from weft.foundation.index_text import parse_expr, parse_guard
from weft.foundation.json_fields import Fields, Scalar, reading, write_scalar

Item = TypeVar("Item")
Json: TypeAlias = dict[str, Any]

SAID: Final = {"said": True}
"""The field is written even where it has its default, and may not be left out."""
INLINE: Final = {"inline": True}
"""The fields of this record are fields of the object itself."""
APART: Final = {"apart": True}
"""The object does not have the field."""
LAST: Final = {"last": True}
"""The field stands behind all others."""


def called(name: str) -> dict[str, str]:
    """The field has another name in the object."""
    return {"called": name}


class Text(NamedTuple):
    """How a value is one string."""

    write: Callable[[Any], str]
    parse: Callable[[str], Any]


class Object(NamedTuple):
    """How a value is an object, which is read from its fields."""

    write: Callable[[Any], Json]
    read: Callable[[Fields], Any]


class Codec(NamedTuple):
    """How a value is a field of an object, which is read by its name."""

    write: Callable[[Any], Any]
    read: Callable[[Fields, str], Any]


class _Known(NamedTuple):
    """A field of a class, as an object has it."""

    name: str
    key: str
    write: Callable[[Any], Any]
    read: Callable[..., Any]
    inline: bool
    needed: bool
    default: Any
    """What is left out, besides None."""


_NO_DEFAULT: Final = object()
_COUNTS: Final = {2: "two", 3: "three"}
_TEXTS: Final[Mapping[Any, Text]] = {Expr: Text(str, parse_expr), Guard: Text(str, parse_guard)}
_CODECS: Final[Mapping[Any, Codec]] = {
    str: Codec(str, Fields.text),
    int: Codec(int, Fields.whole),
    bool: Codec(bool, Fields.flag),
    DType: Codec(attrgetter("name"), Fields.dtype),
    Scalar: Codec(write_scalar, Fields.scalar),
    tuple[str, ...]: Codec(list, Fields.texts),
    tuple[int, ...]: Codec(list, Fields.wholes),
    tuple[tuple[int, ...], ...]: Codec(lambda lists: list(map(list, lists)), Fields.whole_lists),
}


class Records:
    """The records of a stage. `kinds` says how the types of its own are written."""

    def __init__(self, kinds: Mapping[Any, Text | Object | Codec] | None = None) -> None:
        self._kinds = {**_TEXTS, **_CODECS, **(kinds or {})}
        self._known: dict[type, tuple[_Known, ...]] = {}

    def write(self, record: Any, **written: Any) -> Json:
        """A record as a JSON object. `written` are fields that the caller has written, or leaves
        out with None."""
        made: Json = {}
        for name, key, write, _, inline, _, default in self._fields(type(record)):
            if name in written:
                document = written[name]
            else:
                value = getattr(record, name)
                if value is None or (default is not _NO_DEFAULT and value == default):
                    continue
                document = write(value)
            if inline:
                made.update(document)
            elif document is not None:
                made[key] = document
        return made

    def write_fields(self, record: Any, names: Iterable[str]) -> Json:
        """Some fields of a record, even where they could be left out."""
        by_name = {known.name: known for known in self._fields(type(record))}
        made: Json = {}
        for known in map(by_name.__getitem__, names):
            value = getattr(record, known.name)
            made[known.key] = None if value is None else known.write(value)
        return made

    def read(self, cls: type[Item], fields: Fields, **given: Any) -> Item:
        """The record that the fields of an object describe. `given` are fields that the caller has
        read."""
        return cls(**self.read_fields(cls, fields, **given))

    def read_fields(self, cls: type, fields: Fields, **given: Any) -> dict[str, Any]:
        """The fields of a record that an object has, and those that are given."""
        for name, key, _, read, inline, needed, default in self._fields(cls):
            if name in given:
                continue
            if inline:
                given[name] = read(fields)
            elif needed or fields.has(key):
                given[name] = read(fields, key)
            elif default is _NO_DEFAULT:
                given[name] = None
        return given

    def reader(self, cls: type[Item]) -> Callable[[Fields], Item]:
        """What reads a record of a class, for items of a list."""
        return partial(self.read, cls)

    def _fields(self, cls: type) -> tuple[_Known, ...]:
        known = self._known.get(cls)
        if known is None:
            types = get_type_hints(cls, include_extras=True)
            found = [field for field in fields_of(cls) if "apart" not in field.metadata]
            found.sort(key=lambda field: "last" in field.metadata)
            known = tuple(self._field(field, types[field.name]) for field in found)
            self._known[cls] = known
        return known

    def _field(self, known: Field[Any], kind: Any) -> _Known:
        kind, may_miss = _without_none(kind)
        inline = "inline" in known.metadata
        write, read = self._object(kind) if inline else self._codec(kind)
        default, needed = _NO_DEFAULT, not may_miss
        if "said" not in known.metadata:
            if known.default is not MISSING:
                default, needed = known.default, False
            elif known.default_factory is not MISSING:
                default, needed = known.default_factory(), False
        key = known.metadata.get("called", known.name)
        return _Known(known.name, key, write, read, inline, needed, default)

    def _codec(self, kind: Any) -> Codec:
        """How a value of some type is a field."""
        found = self._kinds.get(kind)
        if isinstance(found, Codec):
            return found
        if isinstance(found, Text):
            parse = found.parse
            return Codec(found.write, lambda fields, name: parse(fields.text(name)))
        if get_origin(kind) is tuple:
            return self._items(*get_args(kind))
        if get_origin(kind) is dict:
            return _dict_of(self._codec(get_args(kind)[1]))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return Codec(attrgetter("value"), lambda fields, name: fields.choice(name, kind))
        found = self._object(kind)
        return Codec(found.write, partial(_read_nested, found.read))

    def _object(self, kind: Any) -> Object:
        """How a value of some type is an object."""
        found = self._kinds.get(kind)
        if isinstance(found, Object):
            return found
        if not (isinstance(kind, type) and is_dataclass(kind)):
            # Whoever writes and reads the field itself need not say how.
            return Object(partial(_refuse, kind), partial(_refuse, kind))
        return Object(self.write, self.reader(kind))

    def _items(self, item: Any, *others: Any) -> Codec:
        """A tuple as a list: of texts or of objects, or of so many numbers or texts."""
        if others != (...,):
            return _tuple_of(self._codec(tuple[item, ...]), 1 + len(others))
        found = self._kinds.get(item)
        if isinstance(found, Text):
            write, parse = found
            return Codec(
                lambda values: list(map(write, values)),
                lambda fields, name: tuple(map(parse, fields.texts(name))),
            )
        whole = self._object(item)
        return Codec(
            lambda values: list(map(whole.write, values)),
            lambda fields, name: fields.items(name, whole.read),
        )


def _refuse(kind: Any, given: Any) -> NoReturn:
    raise InternalError(f"nobody has said how JSON has {kind}")


def _without_none(kind: Any) -> tuple[Any, bool]:
    """A type, and whether None was one of its values."""
    if get_origin(kind) not in (Union, UnionType) or NoneType not in get_args(kind):
        return kind, False
    return reduce(or_, (one for one in get_args(kind) if one is not NoneType)), True


def _read_nested(read: Callable[[Fields], Item], fields: Fields, name: str) -> Item:
    with reading(fields.take(name), f"{fields.where}.{name}") as inner:
        return read(inner)


def _dict_of(codec: Codec) -> Codec:
    def write(values: dict[str, Any]) -> Json:
        return {name: codec.write(value) for name, value in values.items()}

    def read_all(inner: Fields) -> dict[str, Any]:
        return {name: codec.read(inner, name) for name in inner.names}

    return Codec(write, partial(_read_nested, read_all))


def _tuple_of(codec: Codec, count: int) -> Codec:
    def read(fields: Fields, name: str) -> Any:
        found = codec.read(fields, name)
        if len(found) != count:
            fields.fail(f"field {name!r} must have {_COUNTS[count]} entries")
        return found

    return Codec(codec.write, read)
