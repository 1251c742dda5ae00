"""`weft.jit`: a Python function, traced once per kind of arguments and then run as one program.

Arguments are nested containers of tensors, arrays and Python numbers; a number is a traced scalar
that takes the dtype of the tensor beside it. A call with arguments of new types, or another value
of a static argument, is traced and compiled again, and `explain` says which argument and which line
caused that. Tensors that the function uses without taking them as arguments are captured: their
elements are looked up at every call.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Final, TypeAlias

import numpy as np

from weft.driver.execute import Prepared
from weft.foundation.dims import Symbol
from weft.foundation.dtypes import I1, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.autocast import autocast_dtype
from weft.ops.calls import explained, public
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.context import current
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.hooks import execute
from weft.ops.graph.node import Donated
from weft.ops.lines import Line, shown, user_line
from weft.ops.promotion import DEFAULT_COMPLEX, DEFAULT_FLOAT, DEFAULT_INTEGER
from weft.ops.pytree import Structure, flatten, leaf_names, unflatten
from weft.ops.shapes import ByShape
from weft.ops.tensor import Tensor, from_array
from weft.ops.tracing import Trace, trace
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.specialise import is_static
from weft.ptir.types import TensorType

_NUMBERS: Final[dict[type, DType]] = {
    bool: I1, int: DEFAULT_INTEGER, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX,
}  # fmt: skip
_MOST_ENTRIES = 256
Names: TypeAlias = int | str | Iterable[int | str]
"""Arguments of a function, by position or name."""


@dataclass(frozen=True)
class Argument:
    """The kind of one leaf of the arguments: what a compiled version depends on."""

    dtype: DType
    shape: tuple[int | Symbol, ...]
    weak: bool = False

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True)
class Key:
    """What tells two compiled versions apart."""

    structure: Structure
    arguments: tuple[Argument, ...]
    static: tuple[tuple[str, Any], ...]
    backend: str
    autocast: DType | None = None
    """The narrow dtype where it is called in mixed precision."""


@dataclass
class Version:
    """One compiled version of a function, and why it exists."""

    key: Key
    traced: Trace
    compiled: Prepared | ByShape
    seconds: float
    reason: str
    line: Line | None
    calls: int = 0

    def describe(self) -> str:
        """A line for `explain`."""
        where = shown(self.line)
        place = f" at {where}" if where else ""
        count = len(self.traced.program.main.body)
        return (
            f"compiled{place} in {self.seconds:.3f} s ({count} instructions, "
            f"{self.calls} calls): {self.reason}"
        )


class Jitted:
    """A function that runs as compiled programs."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        donate: Names = (),
        static: Names = (),
        dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "function")
        self._names = _parameter_names(function)
        self._donated = self._positions("donate", donate)
        self._static = self._positions("static", static)
        self._dynamic = self._symbols(dynamic or {})
        self.versions: OrderedDict[Key, Version] = OrderedDict()

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current().tracing:
            return self.function(*args, **kwargs)
        try:
            return self._call(args, kwargs)
        except (SpecViolation, UserError) as error:
            raise explained(self.name, error, user_line()) from None

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, static = self._split(args, kwargs)
        leaves, structure = flatten((args, kwargs))
        tensors = [self._leaf(leaf, index, structure) for index, leaf in enumerate(leaves)]
        key = self._key(leaves, tensors, structure, static)
        version = self.versions.get(key)
        if version is None:
            version = self._compile(key)
        version.calls += 1
        inputs = [tensor._node.storage for tensor in tensors]
        inputs += [captured.storage() for captured in version.traced.captured]
        if self._donated:
            self._part(inputs, leaves, tensors, structure)
        results = self._execute(version.compiled, inputs)
        if self._donated:
            self._give_away(leaves, structure)
        return self._wrap(version.traced, results)

    @staticmethod
    def _execute(compiled: Prepared | ByShape, inputs: list[Any]) -> list[Any]:
        if isinstance(compiled, ByShape):
            return compiled.execute(inputs)
        return execute(compiled, inputs)

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """The arguments without the static ones, which are taken out by name."""
        if not self._static:
            return args, ()
        static = []
        kept = list(args)
        for position in sorted(self._static):
            name = self._names[position]
            if position < len(args):
                static.append((name, args[position]))
                kept[position] = None
            elif name in kwargs:
                static.append((name, kwargs.pop(name)))
        for name, value in static:
            try:
                hash(value)
            except TypeError:
                raise UserError(
                    f"the static argument {name} is {value!r}, which has no hash"
                ) from None
        return tuple(kept), tuple(static)

    def _leaf(self, leaf: Any, index: int, structure: Structure) -> Tensor:
        if isinstance(leaf, Tensor):
            if leaf._node.storage is None:
                evaluate([leaf._node])
            if isinstance(leaf._node.storage, Donated):
                raise leaf._node.storage.error()
            if isinstance(leaf._node.storage, TensorLiteral):
                return from_array(leaf._node.storage.array)
            return leaf
        if isinstance(leaf, np.ndarray | np.generic):
            return from_array(np.asarray(leaf))
        if type(leaf) in _NUMBERS:
            tensor = from_array(np.asarray(leaf, _NUMBERS[type(leaf)].numpy))
            tensor.weak = True
            return tensor
        name = self._leaf_name(index, structure)
        raise UserError(
            f"the argument {name} is a {type(leaf).__name__}, neither a tensor nor a number; "
            "name it in static=, or pass a tensor"
        )

    def _key(
        self,
        leaves: Sequence[Any],
        tensors: Sequence[Tensor],
        structure: Structure,
        static: tuple[tuple[str, Any], ...],
    ) -> Key:
        kinds = self._kinds(leaves, tensors, structure)
        return Key(structure, kinds, static, current().backend.name, autocast_dtype())

    def _kinds(
        self, leaves: Sequence[Any], tensors: Sequence[Tensor], structure: Structure
    ) -> tuple[Argument, ...]:
        if not self._dynamic:
            return tuple([Argument(t.dtype, t.shape, t.weak) for t in tensors])
        owners = self._owners(structure)
        found = []
        for tensor, owner in zip(tensors, owners, strict=True):
            names = self._dynamic.get(owner, {})
            shape = tuple(
                Symbol(names[axis]) if axis in names else dim
                for axis, dim in enumerate(tensor.shape)
            )
            found.append(Argument(tensor.dtype, shape, tensor.weak))
        return tuple(found)

    def _donated_leaves(self, structure: Structure) -> list[int]:
        owners = self._owners(structure) if self._donated else []
        return [index for index, owner in enumerate(owners) if owner in self._donated]

    def _part(
        self,
        inputs: list[Any],
        leaves: Sequence[Any],
        tensors: Sequence[Tensor],
        structure: Structure,
    ) -> None:
        """A donated input that is the caller's own array, a constant, memory that nobody may write,
        or that another input shares, is copied: only memory of tensors may be overwritten, and only
        once."""
        backend = current().backend
        for index in self._donated_leaves(structure):
            storage = inputs[index]
            shared = sum(other is storage for other in inputs) > 1
            own = tensors[index] is leaves[index] and _is_writeable(storage)
            if shared or not own:
                elements = backend.read_storage(storage, tensors[index].type)
                inputs[index] = backend.store(np.array(elements))

    def _give_away(self, leaves: Sequence[Any], structure: Structure) -> None:
        """Donated arguments can no longer be read."""
        line = user_line()
        for index in self._donated_leaves(structure):
            leaf = leaves[index]
            if isinstance(leaf, Tensor):
                leaf._node.storage = Donated(line)

    def _wrap(self, traced: Trace, results: Sequence[Any]) -> Any:
        arena = current()
        kinds = iter(zip(results, traced.results, strict=True))
        leaves = []
        for output in traced.outputs:
            if output is None:
                storage, kind = next(kinds)
                if not kind.is_static:
                    kind = kind.with_shape(storage.shape)
                leaves.append(Tensor(arena.leaf(storage, kind)))
            else:
                leaves.append(output.value)
        return unflatten(traced.structure, leaves)

    # -- compiling -------------------------------------------------------------------------------

    def _compile(self, key: Key) -> Version:
        started = time.perf_counter()
        traced = self.trace(key)
        donated = frozenset(self._donated_leaves(key.structure))
        compiled = self._prepare(traced.program, donated)
        seconds = time.perf_counter() - started
        version = Version(key, traced, compiled, seconds, self._reason(key), user_line())
        self.versions[key] = version
        while len(self.versions) > _MOST_ENTRIES:
            self.versions.popitem(last=False)
        return version

    def _prepare(self, program: Program, donated: frozenset[int]) -> Prepared | ByShape:
        backend = current().backend
        if is_static(program):
            return PROGRAMS.compile(program, backend, "jit", donated)
        return ByShape(program, backend)

    def trace(self, key: Key) -> Trace:
        """The function on traced arguments of these kinds."""

        def call(tensors: list[Tensor]) -> Any:
            args, kwargs = unflatten(key.structure, tensors)
            filled = list(args)
            by_name = dict(kwargs)
            for name, value in key.static:
                position = self._names.index(name)
                if position < len(filled):
                    filled[position] = value
                else:
                    by_name[name] = value
            return self.function(*filled, **by_name)

        kinds = [argument.type for argument in key.arguments]
        return trace(self.function, kinds, call, [a.weak for a in key.arguments])

    def _reason(self, key: Key) -> str:
        """What is new about these arguments, compared with the version most like them."""
        if not self.versions:
            return "first call"
        last = next(reversed(self.versions))
        if key.backend != last.backend:
            return f"the backend is {key.backend}, not {last.backend}"
        if key.autocast != last.autocast:
            return f"autocast is {key.autocast or 'off'}, not {last.autocast or 'off'}"
        if key.static != last.static:
            changed = [n for n, v in key.static if dict(last.static).get(n) != v]
            return f"the static argument {', '.join(changed)} changed"
        if key.structure != last.structure:
            return "the arguments are nested in another way"
        names = self._leaf_names(key.structure)
        changes = [
            _change(name, old, new)
            for name, old, new in zip(names, last.arguments, key.arguments, strict=True)
            if old != new
        ]
        return "; ".join(changes)

    def explain(self) -> str:
        """Every compile of this function, with the argument, dim and line that caused it."""
        lines = [version.describe() for version in self.versions.values()]
        return "\n".join(lines) or "nothing compiled yet: the function has not been called"

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The PTIR program for these arguments; tensors that it captures are its last inputs."""
        args, static = self._split(args, kwargs)
        leaves, structure = flatten((args, kwargs))
        tensors = [self._leaf(leaf, index, structure) for index, leaf in enumerate(leaves)]
        return self.trace(self._key(leaves, tensors, structure, static)).program

    # -- names -----------------------------------------------------------------------------------

    def _positions(self, what: str, given: Names) -> frozenset[int]:
        return frozenset(self._position(what, item) for item in _several(given))

    def _position(self, what: str, item: int | str) -> int:
        if isinstance(item, str):
            if item not in self._names:
                raise UserError(
                    f"{what} names {item!r}; {self.name} takes {', '.join(self._names)}"
                )
            return self._names.index(item)
        if not 0 <= item < max(len(self._names), 1):
            raise UserError(f"{what} names argument {item}; there are {len(self._names)}")
        return item

    def _symbols(self, given: Mapping[int | str, Mapping[int, str]]) -> dict[int, dict[int, str]]:
        return {self._position("dynamic", item): dict(axes) for item, axes in given.items()}

    def _owners(self, structure: Structure) -> list[int]:
        """For every leaf, the position of the argument it belongs to."""
        args, kwargs = structure.children
        found = [p for p, child in enumerate(args.children) for _ in range(child.leaf_count)]
        names = kwargs.rest if isinstance(kwargs.rest, tuple) else ()
        for name, child in zip(names, kwargs.children, strict=True):
            position = self._names.index(name) if name in self._names else -1
            found += [position] * child.leaf_count
        return found

    def _leaf_names(self, structure: Structure) -> list[str]:
        args, kwargs = structure.children
        names = []
        for position, child in enumerate(args.children):
            known = position < len(self._names)
            names += leaf_names(child, self._names[position] if known else f"argument {position}")
        for name, child in zip(kwargs.rest or (), kwargs.children, strict=True):  # type: ignore[call-overload]
            names += leaf_names(child, str(name))
        return names

    def _leaf_name(self, index: int, structure: Structure) -> str:
        return self._leaf_names(structure)[index]


def _is_writeable(storage: Any) -> bool:
    """Whether the memory may be overwritten; a backend's own storage always."""
    return not isinstance(storage, np.ndarray) or bool(storage.flags.writeable)


def _several(given: Names) -> Iterable[int | str]:
    return (given,) if isinstance(given, int | str) else given


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _change(name: str, old: Argument, new: Argument) -> str:
    if old.dtype is not new.dtype:
        return f"{name} is {new.dtype}, not {old.dtype}"
    if len(old.shape) != len(new.shape):
        return f"{name} has rank {len(new.shape)}, not {len(old.shape)}"
    for axis, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
        if before != after:
            return f"dim {axis} of {name} is {after}, not {before}"
    return f"{name} is {'a number' if new.weak else 'a tensor'} now"


@public
def jit(
    function: Callable[..., Any] | None = None,
    *,
    donate: Names = (),
    static: Names = (),
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
) -> Any:
    """A function that is traced and compiled for each kind of arguments it is called with.

    `donate` and `static` name arguments, by position or name. The memory of a donated one may be
    used for the results, and reading it afterwards is an error; a static one is any hashable value,
    and each value is compiled for. `dynamic={"x": {0: "B"}}` leaves axis 0 of x open: one trace
    serves every size.
    """
    if function is None:
        return partial(jit, donate=donate, static=static, dynamic=dynamic)
    if not callable(function):
        raise UserError(f"jit takes a function, not {type(function).__name__}")
    return Jitted(function, donate=donate, static=static, dynamic=dynamic)
