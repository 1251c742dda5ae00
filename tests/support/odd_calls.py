"""Calls that nobody should make, and what may come of them.

A target is something a user calls: a function, a method, an operator, an op of a builder or of a
session. Targets are found by looking, so that a function which is added is called too. Each is
called with every odd value in the place of each parameter, the others being fine; with too few and
too many arguments, with unknown names; and with values drawn at random. What may come of it is a
result, or a `WeftError` that names the line of the call.
"""

from __future__ import annotations

import inspect
import random
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

import numpy as np

import weft
from weft.foundation.calls import handed_over
from weft.foundation.errors import InternalError, WeftError
from weft.ops.session import Handle, Session
from weft.ptir import Builder, Value
from weft.ptir.op import SPELLINGS

HERE = Path(__file__).name
LONGEST_CALL = 20
"""Seconds after which a call counts as hanging."""
LARGEST_READ = 4_096
"""How many elements of a result are computed and read."""


@dataclass(frozen=True)
class Target:
    """Something that is called: `make` gives it for the values of one call, with the values that
    it may be called with."""

    name: str
    parameters: tuple[str, ...]
    make: Callable[[], tuple[Callable[..., Any], Values]]


class Values:
    """The values of one call: new ones each time, since calls may change them."""

    def __init__(self, kind: str = "tensor") -> None:
        self.kind = kind
        self._builder = Builder()
        self._parameters = {
            "matrix": self._builder.param("f32", [2, 2]),
            "whole": self._builder.param("si64", [2]),
            "scalar": self._builder.param("f32"),
            "truth": self._builder.param("i1", [2, 2]),
        }
        self._session = Session.here()

    def fine(self, shape: str) -> Any:
        """A value of the kind that the target takes."""
        if self.kind == "value":
            return self._parameters[shape]
        tensor = weft.asarray(_ARRAYS[shape]())
        return tensor if self.kind == "tensor" else self._session.import_(tensor)

    @property
    def builder(self) -> Builder:
        return self._builder

    @property
    def session(self) -> Session:
        return self._session

    def usual(self, parameter: str) -> Any:
        """A value that is often right for a parameter of this name."""
        return _USUAL[parameter](self) if parameter in _USUAL else self.fine("matrix")

    def odd(self, name: str) -> Any:
        return ODD[name](self)


_ARRAYS: dict[str, Callable[[], Any]] = {
    "matrix": lambda: np.eye(2, dtype=np.float32),
    "whole": lambda: np.array([0, 1]),
    "scalar": lambda: np.float32(0.5),
    "truth": lambda: np.eye(2, dtype=bool),
}


def _itself(*arguments: Any, **named: Any) -> Any:
    """A function that takes anything."""
    return arguments[0] if arguments else None


def _nothing(*arguments: Any, **named: Any) -> None:
    """A function that takes anything and gives nothing."""


def _own_list() -> list[Any]:
    """A list that is its own element."""
    made: list[Any] = []
    made.append(made)
    return made


def _deep_list() -> list[Any]:
    made: list[Any] = []
    for _ in range(5_000):
        made = [made]
    return made


_WHOLE: dict[str, Callable[[Values], Any]] = {
    name: partial(_itself, number)
    for name, number in {
        "zero": 0, "one": 1, "minus one": -1, "seven": 7, "2^36": 2**36, "-2^36": -(2**36),
        "2^63": 2**63, "2^70": 2**70, "-2^70": -(2**70), "10^400": 10**400,
    }.items()
}  # fmt: skip

ODD: dict[str, Callable[[Values], Any]] = {
    "None": lambda self: None,
    "True": lambda self: True,
    **_WHOLE,
    "a fraction": lambda self: 0.5,
    "NaN": lambda self: float("nan"),
    "infinity": lambda self: float("inf"),
    "a complex number": lambda self: 1j,
    "no text": lambda self: "",
    "text": lambda self: "ab",
    "a name of a dtype": lambda self: "f32",
    "bytes": lambda self: b"ab",
    "no list": lambda self: [],
    "a list": lambda self: [1],
    "a list of names": lambda self: ["ab", None],
    "a list of fractions": lambda self: [0.5, 1.5],
    "a ragged list": lambda self: [[1], [2, 3]],
    "a list of large numbers": lambda self: [2**70, -1],
    "a list of large sizes": lambda self: [2**36, 2**36, 2**36],
    "a list in itself": lambda self: _own_list(),
    "a deep list": lambda self: _deep_list(),
    "no tuple": lambda self: (),
    "an axis twice": lambda self: (0, 0),
    "many numbers": lambda self: tuple(range(70)),
    "a range": lambda self: range(3),
    "a generator": lambda self: (number for number in (0, 1)),
    "a dict": lambda self: {"a": 1},
    "a set": lambda self: {0},
    "an object": lambda self: object(),
    "a class": lambda self: int,
    "a function": lambda self: _itself,
    "a function without result": lambda self: _nothing,
    "a module": lambda self: weft,
    "a slice": lambda self: slice(None),
    "dots": lambda self: ...,
    "a dtype": lambda self: weft.float32,
    "a dtype of NumPy": lambda self: np.dtype(">f4"),
    "a number of NumPy": lambda self: np.float64(0.5),
    "a whole number of NumPy": lambda self: np.int8(1),
    "an array": lambda self: np.ones((2, 3)),
    "an empty array": lambda self: np.ones((0, 2), np.float32),
    "an array of the other byte order": lambda self: np.ones((2, 2), ">f4"),
    "an array of objects": lambda self: np.array([None, "ab"], object),
    "an array of text": lambda self: np.array(["ab", "c"]),
    "an array of dates": lambda self: np.array(["2020-01-01"], "datetime64[D]"),
    "an array of records": lambda self: np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "a tensor": lambda self: weft.asarray(np.ones((2, 2), np.float32)),
    "a tensor of rank 0": lambda self: weft.asarray(np.float32(0.5)),
    "a tensor of rank 3": lambda self: weft.asarray(np.ones((2, 3, 2), np.float32)),
    "an empty tensor": lambda self: weft.asarray(np.ones((0,), np.float32)),
    "a tensor of whole numbers": lambda self: weft.asarray(np.array([5, -7])),
    "a tensor of truths": lambda self: weft.asarray(np.array([True, False])),
    "a complex tensor": lambda self: weft.asarray(np.ones((2, 2), np.complex64)),
    "a narrow tensor": lambda self: weft.asarray(np.ones((2, 2), np.float16)),
    "a list of tensors": lambda self: [weft.ones((2, 2)), None],
    "a value": lambda self: self._parameters["matrix"],
    "a value of whole numbers": lambda self: self._parameters["whole"],
    "a value of another builder": lambda self: Builder().param("f32", [2, 2]),
    "a tuple value": lambda self: self._builder.top_k(
        self._parameters["matrix"], k=1, axis=0, largest=True
    ),
    "a handle": lambda self: self._session.import_(weft.ones((2, 2))),
    "a tuple handle": lambda self: self._session.import_(weft.ones((2, 2))).top_k(
        k=1, axis=0, largest=True
    ),
    "an open type": lambda self: weft.ptir.TensorType(weft.float32, (weft.ptir.Symbol("B"), 2)),
}

_USUAL: dict[str, Callable[[Values], Any]] = {
    **dict.fromkeys(("axis", "dim", "start", "offset", "axis1", "k"), lambda self: 0),
    **dict.fromkeys(("axes", "perm", "repeats", "sizes", "starts"), lambda self: (0, 1)),
    **dict.fromkeys(("shape", "dims", "new_shape", "result_shape"), lambda self: (2, 2)),
    **dict.fromkeys(("dtype", "output_dtype", "indices_dtype"), lambda self: weft.float32),
    **dict.fromkeys(("indices", "index", "target", "ids"), lambda self: self.fine("whole")),
    **dict.fromkeys(("condition", "pred"), lambda self: self.fine("truth")),
    **dict.fromkeys(
        ("function", "body", "f", "run", "on_true", "on_false", "cond"), lambda self: _itself
    ),
    **dict.fromkeys(("arrays", "tensors", "values"), lambda self: [self.fine("matrix")] * 2),
    **dict.fromkeys(("n", "num_classes", "in_features", "out_features"), lambda self: 2),
    **dict.fromkeys(("name", "op", "mode", "kind", "equation"), lambda self: "add"),
    **dict.fromkeys(("keepdims", "largest", "descending"), lambda self: True),
    **dict.fromkeys(("p", "eps", "alpha", "rate", "lr"), lambda self: 0.5),
}


# -- what there is to call -----------------------------------------------------------------------


def targets() -> list[Target]:
    """Everything that users call, in one order."""
    found = [*_functions(), *_methods(), *_built(), *_handled(), *_transformed(), *_modules_made()]
    return sorted({target.name: target for target in found}.values(), key=lambda t: t.name)


_LEFT_OUT = {
    "weft.Tensor": "users make tensors with asarray",
    "weft.set_default_backend": "it changes what other tests run on",
    "weft.functional.configure": "it changes what other tests run",
}


def _modules() -> dict[str, ModuleType]:
    """`weft` and the modules that it hands out."""
    named = {"weft": weft}
    for name in dir(weft):
        value = None if name.startswith("_") else getattr(weft, name)
        ours = isinstance(value, ModuleType) and value.__name__.startswith("weft.")
        if isinstance(value, ModuleType) and ours and hasattr(value, "__all__"):
            named[f"weft.{name}"] = value
    return named


def _public_names(name: str, module: ModuleType) -> list[str]:
    names = dir(module) if name == "weft" else module.__all__
    return [n for n in names if not n.startswith("_")]


def _functions() -> Iterator[Target]:
    for home, module in _modules().items():
        for name in _public_names(home, module):
            function = getattr(module, name)
            if _is_called(function) and f"{home}.{name}" not in _LEFT_OUT:
                yield Target(
                    f"{home}.{name}",
                    _parameters(function),
                    partial(_free, function),
                )


def _is_called(function: Any) -> bool:
    """Whether users call it: a function of Weft's, or a class that is no error and not abstract."""
    if isinstance(function, type) and issubclass(function, BaseException | Warning):
        return False
    own = getattr(function, "__module__", None) or ""
    if isinstance(function, type) and own.startswith(
        ("weft.ptir", "weft.core_ir", "weft.foundation")
    ):
        return False  # records, which hold what they are given until somebody verifies them
    return callable(function) and own.startswith("weft.") and not inspect.isabstract(function)


_OF_EVERY_OBJECT = {n for n in dir(object) if n not in ("__eq__", "__ne__", "__lt__", "__le__")} | {
    "__array__", "__array_function__", "__array_namespace__", "__array_ufunc__", "__copy__",
    "__deepcopy__", "__dlpack__", "__dlpack_device__", "__getattr__",
}  # fmt: skip


def _method_names(cls: type) -> list[str]:
    public = [n for n in dir(cls) if not n.startswith("_") or n.startswith("__")]
    return [n for n in public if n not in _OF_EVERY_OBJECT and callable(getattr(cls, n))]


def _methods() -> Iterator[Target]:
    for name in _method_names(weft.Tensor):
        parameters = _parameters(getattr(weft.Tensor, name))[1:]
        yield Target(f"Tensor.{name}", parameters, partial(_bound, name, "tensor"))


def _built() -> Iterator[Target]:
    names = [n for n in _method_names(Builder) if not n.startswith("__")]
    for name in sorted({*names, *SPELLINGS}):
        yield Target(f"Builder.{name}", _op_parameters(Builder, name), partial(_of_body, name))
    for name in _method_names(Value):
        parameters = _parameters(getattr(Value, name))[1:]
        yield Target(f"Value.{name}", parameters, partial(_bound, name, "value"))


def _handled() -> Iterator[Target]:
    for name in [n for n in _method_names(Session) if not n.startswith("__")]:
        parameters = _op_parameters(Session, name)
        yield Target(f"Session.{name}", parameters, partial(_of_session, name))
    for name in sorted({*_method_names(Handle), *SPELLINGS}):
        parameters = _op_parameters(Handle, name)[1:]
        yield Target(f"Handle.{name}", parameters, partial(_bound, name, "handle"))


def _free(function: Callable[..., Any]) -> tuple[Callable[..., Any], Values]:
    return function, Values()


_TRANSFORMED: dict[str, Callable[[], Callable[..., Any]]] = {
    "jit": lambda: weft.jit(lambda x, y: weft.multiply(x, y)),
    "jit.static": lambda: weft.jit(lambda x, y: x, static="y"),
    "jit.dynamic": lambda: weft.jit(lambda x, y: weft.multiply(x, y), dynamic={"x": {0: "B"}}),
    "grad": lambda: weft.grad(lambda x, y: weft.sum(weft.multiply(x, y))),
    "jacobian": lambda: weft.jacobian(lambda x, y: weft.multiply(x, y)),
    "vmap": lambda: weft.vmap(lambda x, y: weft.multiply(x, y)),
    "checkpoint": lambda: weft.checkpoint(lambda x, y: weft.multiply(x, y)),
    "custom_vjp": lambda: _with_a_rule(),
    "custom_vjp without a rule": lambda: weft.custom_vjp(lambda x, y: weft.multiply(x, y)),
    "value_and_grad": lambda: weft.value_and_grad(lambda x, y: weft.sum(weft.multiply(x, y))),
    "hessian": lambda: weft.hessian(lambda x, y: weft.sum(weft.multiply(x, y))),
    "vjp": lambda: weft.vjp(lambda x: x * 2.0, weft.ones((2, 2)))[1],
    "run": lambda: partial(weft.run, _program()),
    "compiled": lambda: weft.compile(_program(), "cpu"),
}


def _with_a_rule() -> Callable[..., Any]:
    made = weft.custom_vjp(lambda x, y: weft.multiply(x, y))
    made.defvjp(lambda x, y: (weft.multiply(x, y), (x, y)), lambda kept, g: (g, g))
    return made


def _program() -> Any:
    b = Builder()
    return b.build(b.param("f32", [2, 2]) * 2.0)


def _transformed() -> Iterator[Target]:
    for name, make in _TRANSFORMED.items():
        parameters = ("x",) if name in ("vjp", "run", "compiled") else ("x", "y")
        yield Target(f"transformed.{name}", parameters, partial(_freshly, make))


def _freshly(make: Callable[[], Callable[..., Any]]) -> tuple[Callable[..., Any], Values]:
    return make(), Values()


def _modules_made() -> Iterator[Target]:
    """Modules of `weft.nn`, of those that can be made of small numbers."""
    for name in weft.nn.__all__:
        cls = getattr(weft.nn, name)
        if isinstance(cls, type) and issubclass(cls, weft.nn.Module) and _module(cls) is not None:
            yield Target(f"module.{name}", ("x",), partial(_freshly, partial(_module, cls)))


def _module(cls: type) -> Any:
    for count in range(5):
        try:
            return cls(*[2] * count)
        except WeftError:
            continue
    return None


def _bound(name: str, kind: str) -> tuple[Callable[..., Any], Values]:
    values = Values(kind)
    return getattr(values.fine("matrix"), name), values


def _of_body(name: str) -> tuple[Callable[..., Any], Values]:
    values = Values("value")
    return getattr(values.builder, name), values


def _of_session(name: str) -> tuple[Callable[..., Any], Values]:
    values = Values("handle")
    return getattr(values.session, name), values


def _op_parameters(cls: type, name: str) -> tuple[str, ...]:
    """The parameters of a method, or the operands and attributes of an op."""
    if name in dir(cls):
        found = _parameters(getattr(cls, name))
        return found[1:] if cls is not Handle else found
    op, fixed = SPELLINGS[name]
    attributes = [f"{key}=" for key in op.all_attributes() if key not in fixed]
    return ("operand", "operand", *attributes)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a function; those that are given by name alone end in `=`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ("argument",)
    return tuple(
        p.name + "=" * (p.kind is inspect.Parameter.KEYWORD_ONLY)
        for p in signature.parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    )


# -- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What a target is called with: a function of new values, so that it can be repeated."""

    target: Target
    text: str
    arguments: Callable[[Values], tuple[list[Any], dict[str, Any]]]


def calls(target: Target, most: int | None = None) -> list[Call]:
    """The calls of a target: all of them, or a choice of this many that depends on its name.
    Operators are written with as many operands as they have."""
    written = target.name.endswith("__")
    counts = [] if written else _wrong_counts(target)
    found = [*counts, *_wrong_kinds(target), *_drawn(target, 40)]
    if most is None or len(found) <= most:
        return found
    return random.Random(zlib.crc32(target.name.encode())).sample(found, most)


def _given(target: Target, values: Values, odd: dict[int, str]) -> tuple[list[Any], dict[str, Any]]:
    """Usual values, but for odd ones in some places. What is given by name is left out, unless it
    is odd or an attribute."""
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for place, parameter in enumerate(target.parameters):
        name = parameter.removesuffix("=")
        if place in odd or not parameter.endswith("=") or name in _USUAL:
            value = values.odd(odd[place]) if place in odd else values.usual(name)
            if parameter.endswith("="):
                named[name] = value
            else:
                arguments.append(value)
    return arguments, named


def _call(target: Target, odd: dict[int, str]) -> Call:
    text = ", ".join(f"{target.parameters[place]}: {name}" for place, name in odd.items())
    return Call(target, text, lambda values: _given(target, values, odd))


def _wrong_kinds(target: Target) -> Iterator[Call]:
    for place in range(len(target.parameters)):
        for name in ODD:
            yield _call(target, {place: name})


def _wrong_counts(target: Target) -> Iterator[Call]:
    yield Call(target, "nothing", lambda values: ([], {}))
    for count in range(1, len(target.parameters) + 3):
        yield Call(target, f"{count} tensors", partial(_several, count))
    yield Call(target, "an unknown name", lambda v: ([v.fine("matrix")], {"no_such_name": 1}))
    yield Call(
        target, "twenty arguments", lambda v: ([v.fine("matrix")] * 20, {"no_such_name": None})
    )


def _several(count: int, values: Values) -> tuple[list[Any], dict[str, Any]]:
    return [values.fine("matrix") for _ in range(count)], {}


def _drawn(target: Target, count: int) -> Iterator[Call]:
    numbers = random.Random(zlib.crc32(target.name.encode()) + 1)
    for _ in range(count):
        places = range(len(target.parameters))
        yield _call(target, {place: numbers.choice([*ODD]) for place in places})


# -- what comes of a call ------------------------------------------------------------------------


_WITH_PLACES_IN_TEXT = (
    "weft.ptir.load", "weft.ptir.loads", "weft.core_ir.load", "weft.core_ir.loads",
)  # fmt: skip
"""What is wrong in a file is told with the place in the file."""


def verdict(call: Call) -> str:
    """What is wrong with how a call ended; empty where nothing is."""
    function, values = call.target.make()
    arguments, named = call.arguments(values)
    try:
        with _limited():
            read(function(*arguments, **named))
    except InternalError as error:
        return f"InternalError: {error}"
    except WeftError as error:
        in_text = call.target.name in _WITH_PLACES_IN_TEXT and error.where
        if error.where.startswith(HERE) or in_text:
            return ""
        return f"{type(error).__name__} at {error.where!r}: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if any(f.f_code is handed_over.__code__ for f, _ in walk_tb(error.__traceback__)):
            return ""  # A function of the caller's raised it, and it is the caller's.
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def read(result: Any) -> None:
    """Compute what is small of a result, as a user who prints it does."""
    for value in result if isinstance(result, list | tuple) else [result]:
        if type(value) is weft.Tensor and not value.is_traced and (value.size or 0) <= LARGEST_READ:
            value.numpy()


class _Hang(BaseException):
    """A call took too long."""


@contextmanager
def _limited() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise _Hang(f"the call took more than {LONGEST_CALL} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_CALL)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
