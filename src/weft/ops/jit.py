"""`weft.jit`: a Python function, traced once per kind of arguments and then run as one program.

Arguments are nested containers of tensors, arrays and Python numbers; a number is a traced scalar
that takes the dtype of the tensor beside it. A call with arguments of new types, or another value
of a static argument, is traced and compiled again, and `explain` says which argument and which line
caused that. Tensors that the function uses without taking them as arguments are captured: their
elements are looked up at every call. The function runs on the backend of its arguments.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from weft.driver.execute import Prepared
from weft.driver.loading.lazy_modules import load_part
from weft.driver.programs.shape_sets import ShapeSet
from weft.foundation.arrays import handed_in
from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Symbol
from weft.foundation.errors import (
    SizeWanted,
    SpecViolation,
    UserError,
    WeftError,
    a_type,
    brief,
)
from weft.foundation.garbage_collector import collector_paused
from weft.foundation.launches import take_note
from weft.foundation.lines import failing_line, user_line
from weft.ops.autocast import autocast_dtype
from weft.ops.calls import MISTAKES, explained, public
from weft.ops.capture_paths import ways_to
from weft.ops.captured_values import read_values, unchanged
from weft.ops.donation import Claim, check_there, copy_shared_inputs
from weft.ops.frozen_randomness import FrozenNumbers
from weft.ops.graph.arena import Arena
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.context import current, home_of, is_captured, own_arena
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.faults import told_by_line
from weft.ops.graph.hooks import execute
from weft.ops.graph.node import Donated, Node
from weft.ops.methods import BoundFunctions, original
from weft.ops.mode import called_in_training
from weft.ops.numbers import number
from weft.ops.parameters import Dynamic, Names, Parameters, hash_advice, setting_advice
from weft.ops.prepared_calls import Ready, Slot, Taken, held_leaves, slot_of, static_slot
from weft.ops.promotion import EXACT
from weft.ops.pytree import LEAF, Structure, flatten, unflatten
from weft.ops.shapes import ByShape
from weft.ops.tensor import Tensor, from_array
from weft.ops.traced_numbers import UNFOLLOWED, Numbers
from weft.ops.tracing import Trace, trace
from weft.ops.versions import Argument, Key, Seen, Setting, Version, reason_for
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.specialise import is_static
from weft.ptir.types import TensorType

_MOST_ENTRIES = 256
_MOST_READY = 8
"""How many kinds of calls are known again."""
_EXPLORER = "weft.explorer.notebook"
"""The explorer stands above everything here, and is loaded by name."""


T = TypeVar("T")


class Jitted:
    """A function that runs as compiled programs."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        donate: Names = (),
        static: Names = (),
        dynamic: Dynamic | None = None,
        shapes: ShapeSet | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "function")
        self._parameters = Parameters(function, self.name)
        self._donated = self._parameters.positions("donate", donate)
        self._static = self._parameters.positions("static", static)
        self._dynamic = self._parameters.dynamic_axes(dynamic or {})
        self._exact: dict[str, str] = {}
        """Dynamic dims whose sizes the function needs as numbers, and what needs them."""
        self._shapes = shapes
        if shapes is not None:
            shapes.check_names({name for axes in self._dynamic.values() for name in axes.values()})
        self._bound = BoundFunctions(self.like)
        self.versions: OrderedDict[Key, Version] = OrderedDict()
        self._ready: tuple[Ready, ...] = ()
        """Kinds of calls that were made before, the last one first."""
        FUNCTIONS.add(self)

    # -- as an object ----------------------------------------------------------------------------

    def like(self, function: Callable[..., Any], skipped: int = 0) -> Jitted:
        """Another function with the same options; it lacks the first `skipped` parameters."""
        return Jitted(
            function,
            donate=[position - skipped for position in self._donated],
            static=[position - skipped for position in self._static],
            dynamic={position - skipped: axes for position, axes in self._dynamic.items()},
            shapes=self._shapes,
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function as a method. An instance that is a container is its first argument; any
        other is state, and each has compiled versions of its own."""
        return self if instance is None else self._bound.to(instance, self)

    def __copy__(self) -> Jitted:
        return self.like(self.function)

    def __deepcopy__(self, memo: object) -> Jitted:
        return self.like(self.function)

    def __reduce__(self) -> Any:
        """By its name, as functions are: compiled versions are not part of it."""
        return original(self, self.function, self.name)

    def __repr__(self) -> str:
        return f"<weft.jit of {self.name} with {len(self.versions)} compiled versions>"

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        captured = is_captured()
        if captured and current().tracing:
            return self.function(*args, **kwargs)
        try:
            if not captured:
                for ready in self._ready:
                    if ready.is_plain and not kwargs:
                        made = ready.call_plain(self.name, self.function, args)
                        if made is not None:
                            return made
                    home = own_arena(ready.backend)
                    taken = ready.take(home, self.name, args, kwargs)
                    if taken is not None and ready.version.is_current(self.function):
                        return self._call_again(ready, taken, args, kwargs)
            return self._call(args, kwargs)
        except MISTAKES as error:
            # The fault of a plug-in has a cause, which is not Weft's to hide.
            cause = error.__cause__
            raise explained(self.name, error, failing_line(error) or user_line()) from cause

    def _call_again(
        self, ready: Ready, taken: Taken, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a kind that was made before."""
        version, home, inputs = ready.version, taken.home, taken.inputs
        traced = version.traced
        if taken.numbers:
            version.numbers.check(taken.numbers, self.name)
        version.calls += 1
        owners: list[Any] = taken.modules
        if traced.captured:
            held = version.held()
            owners.append(held)
            inputs += held.storages
        data = ready.data
        if taken.groups and ready.are_known(taken):
            owners += [each.memory for each in taken.groups]
            data = ready.other_data
        holder = ready.holder(owners) if owners else None
        if taken.places:
            copy_shared_inputs(inputs, taken.places, taken.owners, version.key, home)
        compiled = version.compiled
        assert isinstance(compiled, Prepared)
        claim = taken.claim() if ready.donated else None
        try:
            results = execute(compiled, inputs, 0, holder, data)
        except BaseException as error:
            _raise_for_call(error, claim, version)
            raise
        if ready.results is not None:
            made_of = ready.results.made_of(home, results, inputs, taken.handed)
            taken.keep_tensors()
            if made_of is not None:
                return made_of
        pairs = zip(ready.kinds, results, strict=True)
        made = [Tensor(Node(home, None, (), kind, None, storage)) for kind, storage in pairs]
        if ready.state:
            rest, _ = self._take_static(args, kwargs)
            ready.state.carry(made, (rest, kwargs))
        return _wrap(traced, made)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (args, dict(kwargs))
        args, static = self._take_static(args, kwargs)
        leaves, structure = flatten((args, kwargs))
        home = self._home(leaves, structure)
        tensors = [self._leaf(leaf, index, structure, home) for index, leaf in enumerate(leaves)]
        version = self._settle_sizes(lambda: self._version(tensors, structure, static, home))
        version.numbers.check(leaves, self.name)
        version.calls += 1
        inputs = [tensor._node.storage for tensor in tensors]
        inputs += [captured.storage() for captured in version.traced.captured]
        donated = self._donated_leaves(structure)
        owners = [leaves[place] for place in donated]
        check_there(inputs)
        if donated:
            copy_shared_inputs(inputs, donated, owners, version.key, home)
        claim = Claim(owners) if donated else None
        try:
            results, types = _execute(version, inputs, tensors)
        except BaseException as error:
            _raise_for_call(error, claim, version)
            raise
        made = [Tensor(home.leaf(*pair)) for pair in zip(results, types, strict=True)]
        version.traced.state.without(donated).carry(made, (args, kwargs))
        is_plain = not self._dynamic and not is_captured()
        if is_plain and any(isinstance(leaf, Tensor) for leaf in leaves):
            self._make_ready(version, home, *given)
        return _wrap(version.traced, made)

    def _make_ready(
        self, version: Version, home: Arena, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Know calls like this one again."""
        key = version.key
        static = {name: static_slot(setting) for name, setting in key.static}
        donated = set(self._donated_leaves(key.structure))
        positional, named = key.structure.children
        at = 0

        def slot(value: Any, structure: Structure) -> Slot:
            nonlocal at
            at, first = at + structure.leaf_count, at
            is_donated = any(index in donated for index in range(first, at))
            return slot_of(value, structure, key.arguments[first:at], not is_donated)

        slots: dict[int | str, Slot] = {}
        for place, (value, structure) in enumerate(zip(args, positional.children, strict=True)):
            is_static = place in self._static
            name = self._parameters.names[place] if is_static else ""
            slots[place] = static[name] if is_static else slot(value, structure)
        names = named.rest if isinstance(named.rest, tuple) else ()
        for name, structure in zip(names, named.children, strict=True):
            slots[name] = slot(kwargs[name], structure)
        slots.update({name: found for name, found in static.items() if name in kwargs})
        ready = Ready(version, home.backend, slots, sorted(donated))
        self._ready = (ready, *self._ready[: _MOST_READY - 1])

    def _version(
        self,
        tensors: Sequence[Tensor],
        structure: Structure,
        static: tuple[tuple[str, Setting], ...],
        home: Arena,
    ) -> Version:
        key = self._key(tensors, structure, static, home)
        version = self.versions.get(key)
        if version is None or not version.is_current(self.function):
            version = self._compile(key, home)
        return version

    def _settle_sizes(self, action: Callable[[], T]) -> T:
        """What an action gives that traces the function. Where an op needs the size of a dynamic
        dim, the dim is exact from then on: each size is traced for."""
        while True:
            try:
                return action()
            except SizeWanted as error:
                named = {name for axes in self._dynamic.values() for name in axes.values()}
                left = sorted(named - self._exact.keys())
                if not left:
                    raise
                said = [name for name in left if re.search(rf"\?{re.escape(name)}\b", error.why)]
                why = f"{error.why} ({error.where})" if error.where else error.why
                self._exact.update(dict.fromkeys(said or left, why))

    def _take_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[tuple[str, Setting], ...]]:
        """The arguments without the static ones, which are taken out by name."""
        if not self._static:
            return args, ()
        static = []
        kept = list(args)
        for position in sorted(self._static):
            name = self._parameters.names[position]
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
                    f"the static argument {name} is {brief(value)}, which has no hash; "
                    f"{hash_advice(value)}, or leave it out of static=",
                    "StaticArgumentUnhashable",
                ) from None
        return tuple(kept), tuple((name, Setting.of(value)) for name, value in static)

    def _home(self, leaves: Sequence[Any], structure: Structure) -> Arena:
        """Where the results live: on the backend of the arguments; without tensors among them, on
        the one in force."""
        arena = current()
        first = -1
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            backend = leaf._node.arena.backend
            if first < 0:
                first = index
                arena = home_of(leaf._node)
            elif backend is not arena.backend:
                names = self._parameters.leaf_names(structure)
                raise SpecViolation(
                    "BackendMismatch",
                    f"{names[first]} is on backend {arena.backend.name!r} and {names[index]} on "
                    f"{backend.name!r}",
                    f"move one of them first, with .to({arena.backend.name!r})",
                )
        return arena

    def _leaf(self, leaf: Any, index: int, structure: Structure, home: Arena) -> Tensor:
        if isinstance(leaf, Tensor):
            if leaf._node.storage is None:
                evaluate([leaf._node])
            if isinstance(leaf._node.storage, Donated):
                raise leaf._node.storage.error()
            if isinstance(leaf._node.storage, TensorLiteral):
                return from_array(leaf._node.storage.array, home)
            return leaf
        if type(leaf) in EXACT:
            tensor = from_array(number(leaf, EXACT[type(leaf)]).array, home)
            tensor.number = UNFOLLOWED
            return tensor
        if isinstance(leaf, np.ndarray | np.generic):
            return from_array(handed_in(leaf), home)
        name = self._parameters.leaf_names(structure)[index]
        if type(leaf).__module__.partition(".")[0] == "torch" and hasattr(leaf, "__dlpack__"):
            raise UserError(
                f"the argument {name} is a torch.{type(leaf).__name__}; "
                "pass weft.torch.from_tensor(x), a tensor of Weft",
                "InvalidArgument",
            )
        raise UserError(
            f"the argument {name} is {a_type(leaf)}, neither a tensor nor a number; "
            f"{setting_advice(structure, index)}, or pass a tensor",
            "InvalidArgument",
        )

    def _key(
        self,
        tensors: Sequence[Tensor],
        structure: Structure,
        static: tuple[tuple[str, Setting], ...],
        home: Arena,
    ) -> Key:
        if self._dynamic:
            kinds = self._dynamic_kinds(tensors, structure)
        else:
            kinds = tuple([Argument(t.dtype, t.shape, t.number is not None) for t in tensors])
        training = called_in_training(self.name)
        return Key(structure, kinds, static, home.backend.name, autocast_dtype(), training)

    def _dynamic_kinds(
        self, tensors: Sequence[Tensor], structure: Structure
    ) -> tuple[Argument, ...]:
        """The kinds of the arguments, with names in the place of sizes that are not fixed."""
        found = []
        for index, owner in enumerate(self._parameters.owners(structure)):
            tensor = tensors[index]
            shape = list(tensor.shape)
            for axis, name in self._dynamic.get(owner, {}).items():
                if not -tensor.ndim <= axis < tensor.ndim:
                    leaf = self._parameters.leaf_names(structure)[index]
                    raise UserError(
                        f"dynamic names axis {axis} of {leaf}, which is {tensor.type} with "
                        f"{tensor.ndim} axes; name an axis that it has",
                        "InvalidDynamic",
                    )
                if name not in self._exact:
                    shape[normalise_axis(axis, tensor.ndim)] = Symbol(name)
            found.append(Argument(tensor.dtype, tuple(shape), tensor.number is not None))
        return tuple(found)

    # -- donation --------------------------------------------------------------------------------

    def _donated_leaves(self, structure: Structure) -> list[int]:
        owners = self._parameters.owners(structure) if self._donated else []
        return [index for index, owner in enumerate(owners) if owner in self._donated]

    # -- compiling -------------------------------------------------------------------------------

    def _compile(self, key: Key, home: Arena) -> Version:
        started = time.perf_counter()
        old = self.versions.get(key)
        numbers, given = Numbers(), key.code
        found = read_values(self.function, given)
        traced = self.trace(key, home, numbers)
        donated = frozenset(self._donated_leaves(key.structure))
        compiled = self._prepare(traced, home, donated, key.structure)
        seconds = time.perf_counter() - started
        if old is not None:
            reason = old.why_stale(self.function)
        else:
            reason = reason_for(key, self.versions.values(), self._parameters.leaf_names)
        reason += "".join(f"; {name} is exact: {why}" for name, why in self._exact.items())
        held = [each.tensor for each in traced.captured if each.tensor is not None]
        fixed = [each.node for each in traced.constants]
        ways = ways_to(held, self.function, fixed, given)
        values = unchanged(found, self.function)
        line = user_line()
        version = Version(key, traced, compiled, seconds, reason, line, ways, values, numbers)
        self.versions[key] = version
        self._ready = ()
        while len(self.versions) > _MOST_ENTRIES:
            self.versions.popitem(last=False)
        return version

    def _prepare(
        self, traced: Trace, home: Arena, donated: frozenset[int], structure: Structure
    ) -> Prepared | ByShape:
        named = replace(traced.program, input_names=tuple(self._parameters.leaf_names(structure)))
        if not is_static(traced.program):
            return ByShape(named, home.backend, self._shapes)
        # Modules of which something is given away or assigned to are others in the next call.
        stays = not (donated or traced.state)
        held = held_leaves(structure, len(traced.captured)) if stays else frozenset[int]()
        return PROGRAMS.compile(traced.program, home.backend, "jit", donated, held, named)

    def trace(self, key: Key, home: Arena, numbers: Numbers) -> Trace:
        """The function on traced arguments of these kinds; `numbers` gets to know what it does with
        those that are Python numbers."""

        def call(given: Any) -> Any:
            args, kwargs = given
            filled = list(args)
            by_name = dict(kwargs)
            for name, setting in key.static:
                position = self._parameters.names.index(name)
                if position < len(filled):
                    filled[position] = setting.value
                else:
                    by_name[name] = setting.value
            self._parameters.check(filled, by_name)
            return self.function(*filled, **by_name)

        kinds = [argument.type for argument in key.arguments]
        traced = [
            numbers.argument(index, argument.dtype) if argument.is_number else None
            for index, argument in enumerate(key.arguments)
        ]
        fill = partial(unflatten, key.structure)
        with FrozenNumbers(self.function, key.structure), collector_paused:
            return trace(self.function, kinds, fill, call, traced, home.backend)

    # -- looking in ------------------------------------------------------------------------------

    def explain(self) -> str:
        """Every compile of this function, with the argument, dim and line that caused it."""
        lines = [version.describe() for version in self.versions.values()]
        lines += [text for bound in self._bound.all() for text in bound.explain().splitlines()]
        return "\n".join(lines) or "nothing compiled yet: the function has not been called"

    def explore(self) -> Any:
        """A page that shows every compiled version through all stages: a notebook shows it inline,
        and its `save(path)` writes it as a file."""
        return load_part(_EXPLORER).explored(self.name, list(self.versions.values()))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The PTIR program for these arguments; tensors that it captures are its last inputs."""
        return self.seen(args, kwargs).trace.program

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        """What the function does with these arguments, without compiling it."""
        args, static = self._take_static(args, kwargs)
        leaves, structure = flatten((args, kwargs))
        home = self._home(leaves, structure)
        tensors = [self._leaf(leaf, index, structure, home) for index, leaf in enumerate(leaves)]

        def traced() -> Trace:
            key = self._key(tensors, structure, static, home)
            return self.trace(key, home, Numbers())

        found = self._settle_sizes(traced)
        names, owners = self._parameters.leaf_names(structure), self._parameters.owners(structure)
        return Seen(found, self.function, (args, kwargs), tuple(tensors), names, owners)

    def named(self, what: str, names: Names) -> list[int]:
        """The positions of the parameters that an option names, in order."""
        return sorted(self._parameters.positions(what, names))

    @property
    def shapes(self) -> ShapeSet | None:
        """Which sizes of dynamic dims share a compiled program."""
        return self._shapes

    def clear(self) -> None:
        """Forget every compiled version."""
        self.versions.clear()
        self._ready = ()
        self._exact.clear()
        self._bound.clear()


FUNCTIONS: WeakSet[Jitted] = WeakSet()
"""Every function under `jit` that is alive."""


def _execute(
    version: Version, inputs: Sequence[Any], tensors: Sequence[Tensor]
) -> tuple[list[Any], Sequence[TensorType]]:
    """The results of a version for these inputs, and their types."""
    traced, compiled = version.traced, version.compiled
    if isinstance(compiled, ByShape):
        kinds = [*(t.type for t in tensors), *(each.node.tensor for each in traced.captured)]
        return compiled.execute(inputs, [kind.static_shape for kind in kinds])
    return execute(compiled, inputs), traced.results


def _raise_for_call(error: BaseException, claim: Claim | None, version: Version) -> None:
    """A call failed: its donated arguments can be read again if it surely has not written to them,
    and what is wrong with the program is told by the lines that wrote it."""
    if claim is not None:
        compiled = version.compiled
        overwrites = isinstance(compiled, Prepared) and bool(compiled.donated)
        if take_note(error) or not overwrites:
            claim.give_back()
        else:
            claim.spoil()
    if isinstance(error, WeftError):
        raise told_by_line(error, lambda: version.traced.program) from None


def _wrap(traced: Trace, made: Sequence[Tensor]) -> Any:
    """What the function returns, nested as it returns it."""
    if traced.is_plain:
        if traced.structure is LEAF:
            return made[0]
        return unflatten(traced.structure, made[: len(traced.outputs)])
    kinds = iter(zip(made, traced.numbers, strict=True))
    leaves = []
    for output in traced.outputs:
        if output is None:
            leaf, is_number = next(kinds)
            leaf.number = UNFOLLOWED if is_number else None
            leaves.append(leaf)
        else:
            is_array = isinstance(output.value, np.ndarray)
            leaves.append(output.value.copy() if is_array else output.value)
    return unflatten(traced.structure, leaves)


@public
def jit(
    function: Callable[..., Any] | None = None,
    *,
    donate: Names = (),
    static: Names = (),
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
    shapes: ShapeSet | None = None,
) -> Any:
    """A function that is traced and compiled for each kind of arguments it is called with.

    `donate` and `static` name arguments, by position or name. The memory of a donated one may be
    used for the results, and reading it afterwards is an error; a static one is any hashable value,
    and each value is compiled for. `dynamic={"x": {0: "B"}}` leaves axis 0 of x open: one trace
    serves every size, and `shapes`, a `weft.ShapeSet`, says which sizes share a compiled program.
    """
    if function is None:
        return partial(jit, donate=donate, static=static, dynamic=dynamic, shapes=shapes)
    if not callable(function):
        raise UserError(f"jit takes a function, not {type(function).__name__}")
    if shapes is not None and not isinstance(shapes, ShapeSet):
        raise UserError(f"shapes is {a_type(shapes)}; give a weft.ShapeSet")
    return Jitted(function, donate=donate, static=static, dynamic=dynamic, shapes=shapes)
