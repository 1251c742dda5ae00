"""What a module is: an object whose attributes hold parameters and other modules.

    class MLP(nn.Module):
        def __init__(self) -> None:
            self.hidden = nn.Linear(784, 128)
            self.out = nn.Linear(128, 10)

        def __call__(self, x):
            return self.out(F.relu(self.hidden(x)))

Attributes that are tensors, modules, or lists, tuples and dicts of them are its children; all
others are settings, and are part of the structure. `grad` and the optimisers answer new modules of
the same structure. Tensors that are kept but not learnt, such as running statistics, are named in
`buffers`: optimisers leave them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.foundation.tracebacks import ending_outside
from weft.ops.calls import public
from weft.ops.mesh.sharded import Sharded
from weft.ops.nn.layers import told_by_layer
from weft.ops.nn.packed import Packed
from weft.ops.other_names import module_advice
from weft.ops.pytree import (
    Later,
    Structure,
    flatten,
    leaf_names,
    let_wait,
    map_leaves,
    register_pytree,
    unflatten,
)
from weft.ops.settings import MOST_ITEMS, can_change, exact, frozen, has_hash, inside_of
from weft.ops.state import (
    Holder,
    attributes_of,
    blank,
    can_wait,
    fill,
    furnish,
    tells,
    waiting_for,
)
from weft.ops.tensor import Tensor

M = TypeVar("M", bound="Module")


class Module(Holder):
    """The base of every layer and model."""

    buffers: ClassVar[tuple[str, ...]] = ()
    """The attributes that an optimiser leaves alone."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if vars(cls).get("__slots__"):
            raise UserError(
                f"the module {cls.__name__} has __slots__, and attributes in slots are neither "
                "parameters nor settings; remove __slots__"
            )
        if "__call__" in vars(cls):
            call = vars(cls)["__call__"]
            own = told(call) if cls.__module__.startswith("weft.") else call
            cls.__call__ = told_by_layer(own)  # type: ignore[method-assign]
        register_pytree(cls, _take_apart, partial(_put_together, cls), _attribute_names)
        let_wait(cls, partial(_later, cls))

    @told
    def __init__(self) -> None:
        """A module that has no settings."""

    @told
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every module defines its own."""
        raise UserError(
            f"{type(self).__name__} does not say what it computes; give it a method __call__"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if self._waiting is not None and not name.startswith("__"):
                fill(self)
                return getattr(self, name)
            why = f"{type(self).__name__} has no attribute {name!r}{module_advice(name)}"
            error = AttributeError(why, name=name)
            raise error if name.startswith("__") else ending_outside(error)

    def parameters(self) -> list[Tensor]:
        """Every tensor in it, in order."""
        return [leaf for leaf in flatten(self)[0] if isinstance(leaf, Tensor)]

    def state_dict(self) -> dict[str, Tensor]:
        """Its tensors by name: `blocks.0.attention.query.weight`."""
        return own_state(self)

    @public
    def with_state(self: M, state: Mapping[str, Any], *, strict: bool = True) -> M:
        """A module like this one with the tensors of a `state_dict`. Unless `strict` is off, every
        name must be there and no other; shapes and dtypes must be the same. In the place of a
        tensor of floats may be one of few bits (`nn.Packed`)."""
        own = own_state(self)
        if not isinstance(state, Mapping):
            raise UserError(f"a state is tensors by name, not {a_type(state)}")
        missing, strange = own.keys() - state.keys(), state.keys() - own.keys()
        if strict and (missing or strange):
            raise UserError(
                f"the state does not belong to {type(self).__name__}: "
                + "; ".join(_name_some(missing, "missing") + _name_some(strange, "unknown"))
            )
        names = iter(own)

        def replaced(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            name = next(names)
            return _fit_parameter(name, state[name], leaf) if name in state else leaf

        return map_leaves(replaced, self)  # type: ignore[no-any-return]

    @public
    def map(self: M, function: Callable[[Tensor], Tensor]) -> M:
        """A module like this one with a function applied to each of its tensors."""
        made: M = map_leaves(lambda x: function(x) if isinstance(x, Tensor) else x, self)
        return made

    def __repr__(self) -> str:
        count = sum(tensor.size or 0 for tensor in self.parameters())
        return f"{type(self).__name__}({count:,} parameters)"


def own_state(module: Module) -> dict[str, Tensor]:
    """The tensors of a module, each under the one name that its attributes give it."""
    leaves, structure = flatten(module)
    named = zip(map(_dot_path, leaf_names(structure)), leaves, strict=True)
    return {name: leaf for name, leaf in named if isinstance(leaf, Tensor)}


def learnt(structure: Structure) -> list[bool]:
    """For every leaf of a container, whether it is outside of all buffers."""
    if structure.kind is None:
        return [True]
    names: Sequence[str] = ()
    buffers: tuple[str, ...] = ()
    if issubclass(structure.kind, Module):
        names, buffers = _attribute_names(structure.rest, 0), structure.kind.buffers
    found = []
    for index, child in enumerate(structure.children):
        held = bool(buffers) and names[index].lstrip(".") in buffers
        found += [False] * child.leaf_count if held else learnt(child)
    return found


def _fit_parameter(name: str, given: Any, own: Tensor) -> Tensor | Packed:
    if isinstance(given, Packed) and given.shape == own.shape and own.dtype.is_float:
        return given
    if isinstance(given, Packed):
        raise UserError(f"{name} is {given!r}, but the module has {own.type}")
    if not isinstance(given, Tensor):
        raise UserError(f"{name} is {_told_foreign(given)}")
    if given.type != own.type:
        raise SpecViolation(
            "ShapeMismatch", f"{name} is {given.type}, but the module has {own.type}", "convert it"
        )
    return given


def _told_foreign(given: Any) -> str:
    """What is in the place of a tensor, and how one is made of it."""
    package = type(given).__module__.partition(".")[0]
    if package == "torch" and hasattr(given, "__dlpack__"):
        return (
            f"a torch.{type(given).__name__}; take torch's tensors over with "
            "{name: weft.torch.from_tensor(x, copy=True) for name, x in state.items()}"
        )
    if package == "numpy":
        made = "{name: weft.asarray(x) for name, x in state.items()}"
        return f"NumPy's {type(given).__name__}, not a tensor; make tensors with {made}"
    return f"{a_type(given)}, not a tensor"


def _name_some(names: set[str], what: str) -> list[str]:
    shown = sorted(names)[:5]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [f"{what} {', '.join(shown)}{more}"] if names else []


def _dot_path(name: str) -> str:
    """`.blocks[0].weight` as `blocks.0.weight`."""
    plain = name.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")
    return plain.lstrip(".")


def _is_child(value: Any) -> bool:
    return (isinstance(value, list | dict) and not value) or _has_child(value)


def _has_child(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return any(map(_has_child, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Tensor | Module | Packed | Sharded)


class _Open(tuple[Any, ...]):
    """What a module has besides its children, where a setting may change while it stays the same
    object: it is looked at anew whenever the module comes apart. Settings without a hash, such as
    lists of numbers, are told apart by what is in them."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is _Open and self[0] == other[0] and self[2] == other[2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self[0], self[2]))


def _take_apart(module: Module) -> tuple[list[Any], Hashable]:
    held = attributes_of(module)
    known = module._apart
    if known is not None:
        return [held[name] for name in known[0]], known
    children = {name: value for name, value in held.items() if _is_child(value)}
    settings = tuple([(n, v) for n, v in held.items() if n not in children])
    if not can_change(settings) and has_hash(settings):
        return list(children.values()), (tuple(children), settings, exact(settings))
    forms = tuple([(name, _form_of(module, name, value)) for name, value in settings])
    kept = tuple([(name, _own(value)) for name, value in settings])
    return list(children.values()), _Open((tuple(children), kept, forms))


def _form_of(module: Module, name: str, value: Any) -> Hashable:
    """What tells a setting from another one."""
    if not has_hash(value):
        for part in inside_of(value):
            if isinstance(part, Tensor | Module | np.ndarray):
                raise UserError(
                    f"the attribute {name} of {type(module).__name__} {_told_setting(value, part)}"
                )
    return frozen(value, 0)


def _told_setting(value: Any, part: Any) -> str:
    """Why something is no setting, and what to do."""
    what = "is" if part is value else f"is {a_type(value)} with"
    if isinstance(part, np.ndarray):
        return f"{what} an array of NumPy, of which changes are not seen; make a tensor of it"
    kind = "a tensor" if isinstance(part, Tensor) else "a module"
    return (
        f"{what} {kind} in it, which would not be trained; put tensors and modules in attributes, "
        "lists, tuples and dicts of a module"
    )


def _put_together(cls: type[Module], rest: Any, children: Sequence[Any]) -> Module:
    if type(rest) is not _Open:
        made = blank(cls, rest if tells(cls) else None)
        furnish(made, rest, children)
        return made
    names, settings, _ = rest
    made = blank(cls)
    furnish(made, (names, [(name, _own(value)) for name, value in settings], None), children)
    return made


def _own(value: Any) -> Any:
    """A setting, to keep or for another module: lists and dicts are the module's own, as those of
    tensors are, objects everybody's. What is so large that it is compared by its identity is
    shared, too."""
    if not isinstance(value, list | dict | tuple) or len(value) > MOST_ITEMS:
        return value
    parts, structure = flatten(value, lambda x: not isinstance(x, list | dict | tuple))
    return unflatten(structure, parts)


def _later(cls: type[Module], rest: Any) -> Later | None:
    """How a module is made that has nothing until somebody looks at it."""
    names, settings, _ = rest
    own = cls.__getattr__ is Module.__getattr__ and type(rest) is tuple  # type: ignore[attr-defined]
    if own and can_wait(cls, (*names, *(name for name, _ in settings))):
        return partial(waiting_for, cls, rest)
    return None


def _attribute_names(rest: Any, count: int) -> list[str]:
    return [f".{name}" for name in rest[0]]
