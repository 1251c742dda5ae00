"""Names of captured tensors: how a traced function reaches them, such as `model.w`, `params["w"]`,
or a variable.

After a trace every way from the function to a captured tensor is looked for: through variables of
enclosing functions, globals that its code names, the functions it calls, attributes, and items of
dicts, lists and tuples. The ways are a tree that is walked from the function at each call. It holds
nothing but names, positions and weak references, and keeps nobody alive. Where a way leads to
another tensor than it did, the function no longer captures what its program reads. Ways to modules
are kept too, with how these are nested and their settings: the function was traced with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

from weft.foundation.errors import UserError
from weft.ops.graph.node import Node
from weft.ops.module_cache import Remembered, recall
from weft.ops.pytree import Structure, flatten
from weft.ops.settings import frozen
from weft.ops.state import Holder, attributes
from weft.ops.steps import (
    BROKEN_WAY,
    PLAIN,
    Step,
    attributes_held,
    is_foreign,
    is_plain_key,
    item_step,
    join_path,
    names_in_code,
    read_class,
    read_global,
    read_member,
    read_referent,
    read_variable,
    step_to,
    try_step,
)
from weft.ops.tensor import Tensor

_MOST_STEPS = 10_000
"""How many things are looked at for one function; the nearest come first."""
_MOST_ITEMS = 1_000
"""How many items of one container are: data must not hide the parameters beside it."""
_MOST_MODULES = 100
"""How many modules are looked at in every call."""
_DEEPEST = 12


@dataclass
class Ways:
    """The ways from one holder to captured tensors."""

    turns: dict[Step, Ways] = field(default_factory=dict)
    ends: dict[Step, ref[Tensor]] = field(default_factory=dict)
    constants: dict[Step, ref[Node]] = field(default_factory=dict)
    """Tensors whose elements are part of the program, by their nodes."""
    module: Hashable = None
    """How a module comes apart from which they go, with its settings: the function was traced with
    these. None: it is no module."""
    _known: ref[Remembered] | None = None
    """What was known of a module from which all ways go through modules, lists, dicts and tuples in
    it, when they last led where they should. While that is known, so are they."""

    def hold(self, holder: Any) -> bool:
        """Whether all of them lead from this holder to the tensors they led to before, by way of
        modules that have the settings they had."""
        if not isinstance(holder, Holder):
            return self.module is None and self._lead(holder, inside=False)
        waiting = holder._waiting
        if waiting is not None and not (self.turns or self.ends or self.constants):
            return self.module is None or self.module == waiting.structure
        known = _try_recall(holder)
        if known is not None and self._known is not None and self._known() is known:
            return True
        if not self.fit(holder, known) or not self._lead(holder, inside=True):
            return False
        self._known = ref(known) if known is not None and self._stay_in(holder) else None
        return True

    def fit(self, holder: Any, known: Remembered | None = None) -> bool:
        """Whether a module is nested as it was, and has the settings that it had."""
        if self.module is None:
            return True
        return self.module == (structure_of(holder) if known is None else known.structure)

    def walk_modules(self, holder: Any, name: str = "") -> Iterator[tuple[str, bool]]:
        """The ways to modules, as Python writes them, each with whether its module fits."""
        if self.module is not None:
            yield name.removeprefix("."), self.fit(holder)
        for step, ways in self.turns.items():
            yield from ways.walk_modules(try_step(step, holder), join_path(name, step.text))

    @property
    def are_none(self) -> bool:
        """Whether there is nothing to look at."""
        return self.module is None and not (self.turns or self.ends or self.constants)

    def walk_constants(self, holder: Any, name: str = "") -> Iterator[tuple[str, bool]]:
        """The ways to constants, as Python writes them, each with whether it is the same."""
        for step, node in self.constants.items():
            found = try_step(step, holder)
            same = type(found) is Tensor and found._node is node()
            yield join_path(name, step.text).removeprefix("."), same
        for step, ways in self.turns.items():
            yield from ways.walk_constants(try_step(step, holder), join_path(name, step.text))

    def _stay_in(self, holder: Any) -> bool:
        """Whether the ways from here are seen by whoever remembers a module."""
        if not isinstance(holder, Holder) and type(holder) not in (list, dict, tuple):
            return False
        held = attributes(holder) if isinstance(holder, Holder) else None
        return all(
            (held is None or step.key in held) and ways._stay_in(try_step(step, holder))
            for step, ways in self.turns.items()
        ) and all(held is None or step.key in held for step in (*self.ends, *self.constants))

    def _lead(self, holder: Any, inside: bool) -> bool:
        """Whether they do, each looked at; what is inside a module is remembered with it."""
        try:
            for (read, key, _), tensor in self.ends.items():
                found = read(holder, key)
                if found is None or found is not tensor():
                    return False
            for (read, key, _), node in self.constants.items():
                found = read(holder, key)
                if type(found) is not Tensor or found._node is not node():
                    return False
            for (read, key, _), ways in self.turns.items():
                found = read(holder, key)
                if not (ways._lead(found, inside=True) if inside else ways.hold(found)):
                    return False
        except BROKEN_WAY:
            return False
        return True

    def walk(self, holder: Any, name: str = "") -> Iterator[tuple[str, ref[Tensor], Any]]:
        """Each way as Python writes it, the tensor it led to, and what it leads to now."""
        for step, tensor in self.ends.items():
            yield join_path(name, step.text), tensor, try_step(step, holder)
        for step, ways in self.turns.items():
            yield from ways.walk(try_step(step, holder), join_path(name, step.text))

    def add(self, steps: Sequence[Step], tensor: ref[Tensor]) -> None:
        """One more way."""
        *first, last = steps
        self.turn(first).ends[last] = tensor

    def turn(self, steps: Sequence[Step]) -> Ways:
        """The ways that go on after these steps."""
        ways = self
        for step in steps:
            ways = ways.turns.setdefault(step, Ways())
        return ways

    def reached(self) -> Iterator[ref[Tensor]]:
        """The tensors at the ends."""
        yield from self.ends.values()
        for ways in self.turns.values():
            yield from ways.reached()

    def led_to(self, others: dict[int, ref[Tensor]]) -> Ways:
        """The same ways to other tensors, each under the id of the reference to the old one."""
        turns = {step: ways.led_to(others) for step, ways in self.turns.items()}
        ends = {step: others[id(tensor)] for step, tensor in self.ends.items()}
        return Ways(turns, ends, self.constants, self.module)


def ways_to(
    tensors: Sequence[ref[Tensor]],
    function: Callable[..., Any],
    constants: Sequence[Node] = (),
    given: Sequence[FunctionType | type] = (),
) -> Ways:
    """The ways by which a function, and functions and classes that it is given, reach these
    tensors, these constants, and modules, the nearest of them."""
    wanted = {id(tensor()): tensor for tensor in tensors}
    fixed = set(constants)
    found = Ways(module=structure_of(function))
    inside: set[tuple[Step, ...]] = {()} if found.module is not None else set()
    left = _MOST_MODULES
    for way, value in reached_by(function, given=given):
        if isinstance(value, Tensor):
            if id(value) in wanted:
                found.add(way, wanted[id(value)])
            elif fixed and value._place is None and value._node in fixed:
                found.turn(way[:-1]).constants[way[-1]] = ref(value._node)
            continue
        is_inside = way[:-1] in inside
        if isinstance(value, Holder) and not is_inside and left:
            structure = structure_of(value)
            if structure is not None:
                left -= 1
                found.turn(way).module = structure
                inside.add(way)
        elif is_inside and (isinstance(value, Holder) or type(value) in (list, dict, tuple)):
            inside.add(way)
    return found


def structure_of(value: Any) -> Hashable:
    """How a module comes apart, with its settings; None for anything else."""
    if not isinstance(value, Holder):
        return None
    known = _try_recall(value)
    if known is not None:
        return known.structure
    try:
        return flatten(value)[1]
    except UserError:
        return _as_it_is(value)


def _as_it_is(value: Any, above: tuple[int, ...] = ()) -> Hashable:
    """A module with settings that have no hash, such as lists, as it is at this moment. It is no
    argument of a function, but may be captured, and then all of it is looked at in every call."""
    kind: Any = type(value)
    if isinstance(value, Tensor) or id(value) in above:
        return (kind,)
    inside = partial(_as_it_is, above=(*above, id(value)))
    if isinstance(value, Holder):
        held = attributes(value).items()
        return kind, tuple([(name, inside(each)) for name, each in held])
    if kind in (list, tuple, dict) and len(value) <= _MOST_ITEMS:
        if kind is dict:
            return kind, tuple([(frozen(key, 1), inside(each)) for key, each in value.items()])
        return kind, tuple(map(inside, value))
    return frozen(value, 1)


def code_in(arguments: Structure) -> list[FunctionType | type]:
    """The classes of modules in what a structure holds, and the functions that are settings."""
    kinds: dict[type, None] = {}
    return [*code_of(settings_in(arguments, kinds)), *kinds]


def code_of(values: Iterable[Any]) -> list[FunctionType | type]:
    """Those values that are functions and classes, and what methods are made of."""
    found: list[FunctionType | type] = []
    for value in values:
        inner = value
        while isinstance(inner, MethodType | partial):
            inner = inner.__func__ if isinstance(inner, MethodType) else inner.func
        if isinstance(inner, FunctionType | type):
            found.append(inner)
    return found


def settings_in(arguments: Structure, kinds: dict[type, None]) -> Iterator[Any]:
    """What the containers in the arguments have besides leaves; `kinds` gets their classes."""
    for child in arguments.children:
        if child.kind is not None:
            kinds[child.kind] = None
            yield from _items_of_tuples(child.rest)
            yield from settings_in(child, kinds)


def _items_of_tuples(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _items_of_tuples(item)
    else:
        yield value


def _try_recall(module: Holder) -> Remembered | None:
    """What is known of a module, also of one that is no argument: nobody says what is wrong."""
    try:
        return recall(module)
    except UserError:
        return None


def reached_by(
    function: Any, most: int = _MOST_STEPS, given: Sequence[Any] = ()
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """What a function or a class reaches, and what it is given, the nearest first, each with a way
    to it."""
    functions: set[int] = set()
    queue: deque[tuple[Any, tuple[Step, ...], tuple[int, ...]]] = deque([(function, (), ())])
    queue += [(each, (step_to(each),), ()) for each in given]
    left = most
    while queue:
        holder, way, above = queue.popleft()
        for step in _steps_from(holder, functions):
            left -= 1
            if not left:
                return
            value = try_step(step, holder)
            yield (*way, step), value
            if (
                not isinstance(value, (Tensor, *PLAIN))
                and id(value) not in above
                and len(way) < _DEEPEST
            ):
                queue.append((value, (*way, step), (*above, id(value))))


# -- the steps that Python objects offer -----------------------------------------------------------


def _steps_from(holder: Any, functions: set[int]) -> Iterator[Step]:
    """The steps on from a holder. A function is left once only, whoever calls it."""
    if isinstance(holder, FunctionType):
        if id(holder) not in functions:
            functions.add(id(holder))
            yield from _from_function(holder)
    elif isinstance(holder, dict):
        yield from (
            item_step(dict.get, key)
            for key in list(islice(holder, _MOST_ITEMS))
            if is_plain_key(key)
        )
    elif isinstance(holder, list | tuple):
        read = list.__getitem__ if isinstance(holder, list) else tuple.__getitem__
        yield from (item_step(read, index) for index in range(min(len(holder), _MOST_ITEMS)))
    elif isinstance(holder, MethodType):
        yield from (Step(getattr, "__self__", ""), Step(getattr, "__func__", ""))
    elif isinstance(holder, partial):
        yield from (Step(getattr, name, "") for name in ("func", "args", "keywords"))
    elif isinstance(holder, property):
        yield Step(getattr, "fget", "")
    elif isinstance(holder, ref):
        yield Step(read_referent, None, "")
    elif isinstance(holder, type | ModuleType):
        yield from _from_namespace(holder)
    elif "__wrapped__" in attributes_held(holder):  # a function that another one was made of
        yield Step(getattr, "__wrapped__", "")
    else:
        yield from _from_instance(holder)


def _from_function(function: FunctionType) -> Iterator[Step]:
    for index, name in enumerate(function.__code__.co_freevars):
        yield Step(read_variable, index, name)
    if "__wrapped__" in function.__dict__:
        yield Step(getattr, "__wrapped__", "")
    if is_foreign(function.__globals__.get("__name__")):
        return
    for name in sorted(names_in_code(function.__code__)):
        if name in function.__globals__:
            yield Step(read_global, name, name)
    if function.__defaults__:
        yield Step(getattr, "__defaults__", "")
    if function.__kwdefaults__:
        yield Step(getattr, "__kwdefaults__", "")


def _from_namespace(space: type | ModuleType) -> Iterator[Step]:
    """The attributes of a class or a module of the user."""
    module = space.__name__ if isinstance(space, ModuleType) else space.__module__
    if not is_foreign(module):
        names = [name for name in vars(space) if name[:2] != "__" or name == "__call__"]
        yield from (Step(read_member, name, f".{name}") for name in names)
        if isinstance(space, type):
            yield Step(getattr, "__bases__", "")


def _from_instance(holder: Any) -> Iterator[Step]:
    """The attributes of an instance, those of its class, and what the class's functions use."""
    names = dict.fromkeys(attributes_held(holder))
    computed: set[str] = set()
    for base in type(holder).__mro__:
        more, read = (_offered_for_ever if is_foreign(base.__module__) else _list_offered)(base)
        names.update(dict.fromkeys(more))
        computed.update(read)
    plain = (name for name in names if name[:2] != "__" and name not in computed)
    yield from (Step(object.__getattribute__, name, f".{name}") for name in plain)
    yield Step(read_class, None, "")


def _list_offered(base: type) -> tuple[list[str], list[str]]:
    """The names of slots and tensors in a class, and those that would run code of the user."""
    slots = () if base in Holder.__mro__ else vars(base).get("__slots__", ())
    held = list(vars(base).items())
    tensors = [name for name, value in held if isinstance(value, Tensor)]
    computed = [name for name, value in held if isinstance(value, property)]
    return [*([slots] if isinstance(slots, str) else slots), *tensors], computed


_offered_for_ever = cache(_list_offered)
