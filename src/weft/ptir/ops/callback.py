"""Calls of Python functions while a program runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np

from weft.foundation.dtypes import ANY, SI64, as_dtype
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir.op import Array, EvalContext, Op, Value, extension_op
from weft.ptir.ops.control import pack, packed
from weft.ptir.rules import invalid_attribute
from weft.ptir.schema import Bool, ListOf, String, attr
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import TensorType, ValueType

TOKEN = TensorType(SI64, ())
"""The type of what one effect hands to the next."""
HostFunction = Callable[[Sequence[Array]], Sequence[Array]]
_TYPE = re.compile(r"(\w+)\[((?:\d+(?:, \d+)*)?)\]", re.ASCII)


_REPEATS: ContextVar[bool] = ContextVar("repeats", default=False)


@contextmanager
def repeating() -> Iterator[None]:
    """Inside, programs run that have run before, so that somebody can look at them: effects that
    have happened do not happen again."""
    token = _REPEATS.set(True)
    try:
        yield
    finally:
        _REPEATS.reset(token)


@dataclass(frozen=True, eq=False)
class Named:
    """A Python function under a name that no other process gives to one of its own."""

    function: HostFunction
    name: str


_NAMED: WeakValueDictionary[str, Named] = WeakValueDictionary()
"""A function lives as long as an op that names it."""


@extension_op("callback")
class Callback(Op):
    """Calls the Python function that this process knows by the name `function`, with copies of the
    operands; its results have the types `results`. A call with an effect takes a number, the token,
    before the other operands and returns the next token before its results; this keeps such calls
    in order and in the program. A call without an effect may be made any number of times, or
    never."""

    operands = ("*values?",)
    dtypes = {"values": ANY}
    foreign = True

    function: str = attr(String())
    effect: bool = attr(Bool())
    results: tuple[str, ...] = attr(ListOf(String()))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_held", _NAMED.get(self.function))

    @classmethod
    def of(
        cls, function: HostFunction, label: str, effect: bool, results: Sequence[TensorType]
    ) -> Callback:
        """The call of a function, which is called `label` in texts."""
        named = Named(function, f"{label}:{uuid4().hex}")
        _NAMED[named.name] = named
        return cls(named.name, effect, tuple(map(str, results)))

    def infer(self, *types: TensorType) -> ValueType:
        own = tuple(map(_parse_type, self.results))
        if not self.effect:
            if not own:
                raise invalid_attribute("a callback without an effect needs results")
            return packed(own)
        if not types or types[0] != TOKEN:
            raise SpecViolation("DTypeMismatch", f"the first operand of an effect is {TOKEN}")
        return packed((TOKEN, *own))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        held = getattr(self, "_held", None)
        if not isinstance(held, Named):
            raise SpecViolation(
                "UnknownCustomCall",
                f"the function {self.function.partition(':')[0]} belongs to another process",
                "a program with callbacks runs where it was traced",
            )
        if not self.effect:
            return pack(self._call_function(held.function, args))
        if _REPEATS.get() and not self.results:
            return pack([np.asarray(args[0] + 1)])
        return pack([np.asarray(args[0] + 1), *self._call_function(held.function, args[1:])])

    def _call_function(self, function: HostFunction, args: Sequence[Array]) -> Sequence[Array]:
        """What the function makes of copies. A program that was edited can hand it other operands
        than those it was traced with."""
        made = function([np.array(x) for x in args])
        if len(made) != len(self.results):
            name, wanted = self.function.partition(":")[0], ", ".join(self.results) or "nothing"
            raise invalid_attribute(
                f"the function {name} gave {len(made)} results, declared as {wanted}"
            )
        return made

    def vjp(self, at: Pullback) -> Cotangents:
        raise Unimplemented(
            "the gradient of callback",
            "Weft cannot differentiate a Python function; call it in a function with "
            "weft.custom_vjp or weft.custom_jvp, or on weft.stop_gradient of its arguments",
        )


def _parse_type(text: str) -> TensorType:
    found = _TYPE.fullmatch(text)
    if found is None:
        raise invalid_attribute(f"{text!r} is not a type of a result, such as f32[2, 3]")
    dims = found[2].split(", ") if found[2] else ()
    return TensorType(as_dtype(found[1]), tuple(map(int, dims)))
